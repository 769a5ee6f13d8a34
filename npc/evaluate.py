"""Judges a packet by a ruleset, as a kernel that holds it does; and says whose verdicts may change.

Pure. It answers for connections that exist already, which no rule in the kernel judges any more.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from npc.ruleset import Direction, SetKind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npc.ruleset import AddressSet, FamilyRules, Protocol, Rule


@dataclass(frozen=True, slots=True)
class Packet:
    """The first packet of a connection; addresses as the kernel writes them.

    ``protocol`` is ``None`` for one that no policy can name; then ``port`` means nothing.
    """

    source: str
    destination: str
    protocol: Protocol | None
    port: int


def allows(rules: FamilyRules, packet: Packet) -> bool:
    """Whether the packet, which is not from the node itself, passes in both directions."""
    exempt = rules.dispatch.exempt
    if exempt is not None:
        blocks = rules.sets[exempt]
        if _in_blocks(blocks, packet.source) or _in_blocks(blocks, packet.destination):
            return True
    return _side(rules, Direction.EGRESS, packet, packet.source, packet.destination) and _side(
        rules, Direction.INGRESS, packet, packet.destination, packet.source
    )


def _side(rules: FamilyRules, direction: Direction, packet: Packet, own: str, peer: str) -> bool:
    dispatch, sets = rules.dispatch, rules.sets
    if own in sets[dispatch.isolated[direction]].entries:
        for binding in dispatch.bindings[direction]:
            if own in sets[binding.members].entries:
                allowed = rules.chains[binding.chain].rules
                return own == peer or any(_matches(sets, rule, packet, peer) for rule in allowed)
    guard = dispatch.guard
    return (
        guard is None
        or own in sets[guard.open[direction]].entries
        or not _in_blocks(sets[guard.blocks], own)
    )


def _matches(sets: Mapping[str, AddressSet], rule: Rule, packet: Packet, peer: str) -> bool:
    if rule.ports is not None:
        if packet.protocol is not rule.ports.protocol:
            return False
        first, last = rule.ports.first, rule.ports.last
        if first is not None and not first <= packet.port <= (last or first):
            return False
    if rule.peer is None:
        return True
    found = sets[rule.peer.name]
    match found.kind:
        case SetKind.ADDRESS:
            return peer in found.entries
        case SetKind.ENDPOINT:
            name = packet.protocol.value.lower() if packet.protocol else ""
            return f"{packet.destination},{name}:{packet.port}" in found.entries
        case SetKind.NETWORK:
            return _in_blocks(found, peer)


def _in_blocks(found: AddressSet, text: str) -> bool:
    address = ipaddress.ip_address(text)
    return any(address in block for block in _networks(found.entries)) and not any(
        address in block for block in _networks(found.excluded)
    )


@lru_cache(maxsize=4096)
def _networks(
    texts: frozenset[str],
) -> tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


def restricted(old: FamilyRules | None, new: FamilyRules) -> frozenset[str]:
    """The isolated addresses for which ``new`` may forbid what ``old`` allowed.

    Those that have another chain now, and those of a chain of which a peer set lost a member. All
    isolated addresses where the old rules are not known.
    """
    found: set[str] = set()
    for direction in Direction:
        for binding in new.dispatch.bindings[direction]:
            members = new.sets[binding.members].entries
            if old is not None and not _lost_peers(old, new, binding.chain):
                members -= _bound(old, direction, binding.chain)
            found |= members
    return frozenset(found)


def _bound(rules: FamilyRules, direction: Direction, chain: str) -> frozenset[str]:
    bindings = rules.dispatch.bindings[direction]
    return frozenset().union(*(rules.sets[b.members].entries for b in bindings if b.chain == chain))


def _lost_peers(old: FamilyRules, new: FamilyRules, chain: str) -> bool:
    """Whether a chain of equal rules in both may allow less, since peers are gone."""
    if chain not in old.chains:
        return True
    names = {rule.peer.name for rule in new.chains[chain].rules if rule.peer}
    return any(not old.sets[name].entries <= new.sets[name].entries for name in names)

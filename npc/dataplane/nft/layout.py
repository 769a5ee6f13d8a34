"""How a ruleset looks as nftables' table ``inet npc``; docs/adr/0013-nftables.md says why.

    input, forward, output      base chains: what needs no verdict ends at once; then, by a look-up
                                in a verdict map, a packet of an isolated pod jumps to its chain
    ingress4, egress4, ...      verdict maps: from a pod's address to the chain that it is bound to
    policy chains               a rule that allows returns; the end goes to the denial
    deny-ingress4, ...          a pod may always reach itself; all else is refused, and counted
    denied-ingress4, ...        the counters

Rules are written in the very words in which ``listing`` spells what the kernel holds. The sets of a
ruleset are found here by their names, with three exceptions:

- the members of a binding are the entries of a verdict map that lead to its chain;
- the isolated pods of a direction are kept as pairs, the address twice, which is how the denial
  recognizes a pod that speaks to itself;
- the exceptions of a ``NETWORK`` set are a set of their own, since nftables has none inside a set.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from npc.ruleset import (
    Chain,
    DenyAction,
    Direction,
    Dispatch,
    Family,
    FamilyRules,
    Ports,
    Rule,
    SetKind,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from npc.ruleset import AddressSet

TABLE = "inet npc"
HOOKS = ("input", "forward", "output")
PRIORITY = -1
"""Just before iptables' filter tables (0): behind conntrack and every translation of addresses."""

Place = tuple[Family, Direction]
PLACES: tuple[Place, ...] = tuple(product(Family, Direction))
VERDICTS = {(f, d): f"{d.value.lower()}{f.value}" for f, d in PLACES}
"""The verdict maps of isolated pods."""
DENY = {place: f"deny-{name}" for place, name in VERDICTS.items()}
DENIED = {place: f"denied-{name}" for place, name in VERDICTS.items()}
"""The counters of what was refused."""

EXCEPT = "-EXCEPT"
"""What the name of a set of exceptions adds to the name of its ``NETWORK`` set."""

IP = {Family.IPV4: "ip", Family.IPV6: "ip6"}
ADDRESS_TYPE = {Family.IPV4: "ipv4_addr", Family.IPV6: "ipv6_addr"}

_OWN = {Direction.INGRESS: "daddr", Direction.EGRESS: "saddr"}
"""Where in a packet the isolated pod is. Its peer is on the other side."""
_PEER = {Direction.INGRESS: "saddr", Direction.EGRESS: "daddr"}

_SETTLED = "ct state established,related accept"
# Without neighbour discovery there is no IPv6; conntrack does not track it.
_LINK = (
    "icmpv6 type { nd-neighbor-advert, nd-neighbor-solicit, nd-redirect, nd-router-advert, "
    "nd-router-solicit } accept"
)
_FROM_NODE = "fib saddr type local accept"
# The group is the one that kube-router uses; `tcpdump -i nflog:100` shows what comes.
_LOG = "limit rate 10/minute burst 10 packets log group 100"

_LONGEST_COMMENT = 128
_NOT_PLAIN = re.compile(r"[^ !#-~]")


@dataclass(frozen=True, slots=True)
class Line:
    """One rule of a chain: its statements as text, and its comment."""

    text: str
    comment: str = ""


# -- the chains that are there whatever the policies say -------------------------------------------


def fixed_chains(dispatches: Mapping[Family, Dispatch]) -> dict[str, list[Line]]:
    """The base chains and the denials, for these families. No binding makes a difference to them.

    A packet of the node itself to a pod is seen by ``output`` alone and always allowed. What else
    is seen there with a pod's address are packets that IPVS sends on.
    """
    families = sorted(dispatches, key=lambda family: family.value)
    link = [_LINK] if Family.IPV6 in dispatches else []
    exempt = [line for f in families for line in _exempt(f, dispatches[f])]
    egress, ingress = (
        [line for f in families for line in _judge(f, d, dispatches[f])]
        for d in (Direction.EGRESS, Direction.INGRESS)
    )
    first = [_SETTLED, *link, *exempt]
    # The node's own packets to itself pass input too, with an address that may be in a held block.
    own = [_FROM_NODE] if any(one.guard for one in dispatches.values()) else []
    bodies = {
        "input": [*first, *own, *egress],
        "forward": [*first, *egress, *ingress],
        "output": [_FROM_NODE, *first, *egress, *ingress],
    }
    for family, direction in product(families, Direction):
        bodies[DENY[family, direction]] = _deny(family, direction, dispatches[family])
    return {name: [Line(text) for text in body] for name, body in bodies.items()}


def _exempt(family: Family, dispatch: Dispatch) -> list[str]:
    if dispatch.exempt is None:
        return []
    return [f"{IP[family]} {side} @{dispatch.exempt} accept" for side in ("saddr", "daddr")]


def _judge(family: Family, direction: Direction, dispatch: Dispatch) -> list[str]:
    """Send isolated pods to their chains, then refuse addresses that are held."""
    side = f"{IP[family]} {_OWN[direction]}"
    lines = [f"{side} vmap @{VERDICTS[family, direction]}"]
    if dispatch.guard:
        lines.append(
            f"{side} @{dispatch.guard.blocks} {side} != @{dispatch.guard.open[direction]} "
            f"{side} . {side} != @{dispatch.isolated[direction]} goto {DENY[family, direction]}"
        )
    return lines


def _deny(family: Family, direction: Direction, dispatch: Dispatch) -> list[str]:
    """Refuse what got here, except a pod's packets to itself.

    A packet that conntrack cannot place is dropped: the reset that answers it could end an allowed
    connection to which it does belong. Where the destination was translated (a service), TCP gets
    an ICMP error like all the rest, since the kernel sends a reset on a bridge without translating
    it back. Elsewhere a reset is better: the kernel limits the rate of ICMP errors.
    """
    ip, counted = IP[family], f"counter name {DENIED[family, direction]}"
    lines = [f"{ip} saddr . {ip} daddr @{dispatch.isolated[direction]} return"]
    if dispatch.denial.log:
        lines.append(f'{_LOG} prefix "npc: denied {direction.value.lower()}"')
    if dispatch.denial.action is DenyAction.DROP:
        return [*lines, f"{counted} drop"]
    return [
        *lines,
        f"ct state invalid {counted} drop",
        f"meta l4proto tcp ct status dnat {counted} reject with icmpx port-unreachable",
        f"meta l4proto tcp {counted} reject with tcp reset",
        f"{counted} reject with icmpx port-unreachable",
    ]


# -- policy chains ---------------------------------------------------------------------------------


def chain_lines(
    family: Family, chain: Chain, members: str, sets: Mapping[str, AddressSet]
) -> list[Line]:
    """The rules of a policy chain; the comment of the last one names the set of its members."""
    end = Line(f"goto {DENY[family, chain.direction]}", members)
    return [*(_line(family, chain.direction, rule, sets) for rule in chain.rules), end]


def _line(family: Family, direction: Direction, rule: Rule, sets: Mapping[str, AddressSet]) -> Line:
    parts: list[str] = []
    if rule.peer and rule.peer.kind is SetKind.ENDPOINT:
        parts.append(f"{IP[family]} daddr . meta l4proto . th dport @{rule.peer.name}")
    elif rule.peer:
        side = f"{IP[family]} {_PEER[direction]}"
        parts.append(f"{side} @{rule.peer.name}")
        if sets[rule.peer.name].excluded:
            parts.append(f"{side} != @{rule.peer.name}{EXCEPT}")
    if rule.ports:
        parts.append(_ports(rule.ports))
    return Line(" ".join([*parts, "return"]), _comment(rule.origin))


def _ports(ports: Ports) -> str:
    protocol = ports.protocol.value.lower()
    if ports.first is None:
        return f"meta l4proto {protocol}"
    if ports.last is None or ports.last == ports.first:
        return f"{protocol} dport {ports.first}"
    return f"{protocol} dport {ports.first}-{ports.last}"


def _comment(text: str) -> str:
    """The text as far as a comment can hold it: printable ASCII without quotes, not too long."""
    return _NOT_PLAIN.sub("?", text)[:_LONGEST_COMMENT]


def policy_chains(rules: FamilyRules, chains: Iterable[Chain]) -> dict[str, list[Line]]:
    """The rules of these policy chains of a ruleset."""
    members = {b.chain: b.members for bound in rules.dispatch.bindings.values() for b in bound}
    return {
        chain.name: chain_lines(rules.family, chain, members.get(chain.name, ""), rules.sets)
        for chain in chains
    }


# -- sets and verdict maps -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NftSet:
    """A set as nftables has it: its type, whether it holds intervals, its elements as text."""

    name: str
    type: str
    interval: bool
    elements: frozenset[str]


def nft_sets(rules: FamilyRules, wanted: Iterable[AddressSet]) -> Iterator[NftSet]:
    """The sets in the kernel that stand for those of a ruleset; none for members of bindings."""
    address = ADDRESS_TYPE[rules.family]
    isolated, members = set(rules.dispatch.isolated.values()), members_of(rules.dispatch)
    for one in wanted:
        if one.name in isolated:
            pairs = frozenset(f"{entry} . {entry}" for entry in one.entries)
            yield NftSet(one.name, f"{address} . {address}", False, pairs)
        elif one.name in members:
            continue
        elif one.kind is SetKind.ADDRESS:
            yield NftSet(one.name, address, False, one.entries)
        elif one.kind is SetKind.ENDPOINT:
            ends = frozenset(map(_endpoint, one.entries))
            yield NftSet(one.name, f"{address} . inet_proto . inet_service", False, ends)
        else:
            yield NftSet(one.name, address, True, disjoint(one.entries))
            if one.excluded:
                yield NftSet(f"{one.name}{EXCEPT}", address, True, disjoint(one.excluded))


def nft_names(sets: Iterable[AddressSet], dispatch: Dispatch) -> frozenset[str]:
    """The names alone of what ``nft_sets`` yields."""
    members = members_of(dispatch)
    found = [one for one in sets if one.name not in members]
    return frozenset(
        [one.name for one in found] + [f"{one.name}{EXCEPT}" for one in found if one.excluded]
    )


def members_of(dispatch: Dispatch) -> set[str]:
    """The names of the sets of the members of bindings."""
    return {binding.members for bound in dispatch.bindings.values() for binding in bound}


def _endpoint(entry: str) -> str:
    """``10.0.0.1,tcp:80`` in nftables' words."""
    address, _, rest = entry.partition(",")
    protocol, _, port = rest.partition(":")
    return f"{address} . {protocol} . {port}"


def disjoint(blocks: Iterable[str]) -> frozenset[str]:
    """The same addresses in the fewest blocks: nftables refuses blocks that overlap."""
    networks = [ipaddress.ip_network(block) for block in blocks]
    # One version alone: the blocks of one family.
    return frozenset(map(str, ipaddress.collapse_addresses(networks)))  # type: ignore[type-var]


def verdicts(rules: FamilyRules) -> dict[Direction, dict[str, str]]:
    """What the verdict maps hold: by address the chain. The first binding of an address wins."""
    found: dict[Direction, dict[str, str]] = {}
    for direction, bindings in rules.dispatch.bindings.items():
        found[direction] = {}
        for binding in bindings:
            for address in rules.sets[binding.members].entries:
                found[direction].setdefault(address, binding.chain)
    return found

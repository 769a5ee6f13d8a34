"""Judges packets by a ruleset, as a kernel that was given it would."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from npc.plan import FamilyPlan, FamilyState
from npc.ruleset import AddressSet, Chain, Direction, Dispatch, FamilyRules, Rule, SetKind
from tests.property.npc.reference import Packet


class Kernel:
    """The sets, chains and dispatch of one family, changed by the steps of plans."""

    def __init__(self) -> None:
        self.sets: dict[str, AddressSet] = {}
        self.chains: dict[str, Chain] = {}
        self.dispatch: Dispatch | None = None

    @classmethod
    def holding(cls, rules: FamilyRules) -> Kernel:
        """A kernel that holds exactly these rules."""
        kernel = cls()
        kernel.sets = dict(rules.sets)
        kernel.chains = dict(rules.chains)
        kernel.dispatch = rules.dispatch
        return kernel

    def state(self) -> FamilyState:
        """What an observer would see."""
        return FamilyState(self.sets, self.chains, self.dispatch)

    def allows(self, packet: Packet) -> bool:
        """Whether the packet passes both dispatches."""
        if packet.source == packet.destination:
            return True
        return self._side(Direction.EGRESS, packet, packet.source, packet.destination) and (
            self._side(Direction.INGRESS, packet, packet.destination, packet.source)
        )

    def _side(self, direction: Direction, packet: Packet, own: str, peer: str) -> bool:
        dispatch = self.dispatch
        if dispatch is None or (dispatch.exempt and self._in_blocks(dispatch.exempt, own, peer)):
            return True
        if own in self.sets[dispatch.isolated[direction]].entries:
            for binding in dispatch.bindings[direction]:
                if own in self.sets[binding.members].entries:
                    rules = self.chains[binding.chain].rules
                    return any(self._matches(rule, packet, peer) for rule in rules)
        guard = dispatch.guard
        return (
            guard is None
            or own in self.sets[guard.open[direction]].entries
            or not self._in_blocks(guard.blocks, own)
        )

    def _in_blocks(self, name: str, *addresses: str) -> bool:
        found = self.sets[name]
        assert found.kind is SetKind.NETWORK
        return any(
            any(ipaddress.ip_address(address) in ipaddress.ip_network(e) for e in found.entries)
            for address in addresses
        )

    def _matches(self, rule: Rule, packet: Packet, peer: str) -> bool:
        if rule.ports is not None:
            if rule.ports.protocol.value != packet.protocol:
                return False
            first, last = rule.ports.first, rule.ports.last
            if first is not None and not first <= packet.port <= (last or first):
                return False
        if rule.peer is None:
            return True
        found = self.sets[rule.peer.name]
        assert found.kind is rule.peer.kind
        if found.kind is SetKind.ADDRESS:
            return peer in found.entries
        if found.kind is SetKind.ENDPOINT:
            return f"{packet.destination},{packet.protocol.lower()}:{packet.port}" in found.entries
        address = ipaddress.ip_address(peer)
        return any(address in ipaddress.ip_network(e) for e in found.entries) and not any(
            address in ipaddress.ip_network(e) for e in found.excluded
        )

    def carry_out(self, plan: FamilyPlan) -> Iterator[str]:
        """Carry out a plan; yields the name of each step once it is done."""
        for made in plan.create:
            assert made.name not in self.sets
            self.sets[made.name] = made
            yield f"create {made.name}"
        for made in plan.replace:
            assert made.name in self.sets
            self.sets[made.name] = made
            yield f"replace {made.name}"
        for change in plan.add:
            for entry in change.entries:
                self._edit(change.name, add=entry)
                yield f"add {change.name} {entry}"
        if plan.changes_rules:
            chains = self.chains | {chain.name: chain for chain in plan.write_chains}
            if plan.write_dispatch:
                self.dispatch = plan.desired.dispatch
            for name in plan.delete_chains:
                del chains[name]
            self.chains = chains
            self._check_references()
            yield "rules"
        for change in plan.remove:
            for entry in change.entries:
                self._edit(change.name, remove=entry)
                yield f"remove {change.name} {entry}"
        for name in plan.destroy:
            del self.sets[name]
            self._check_references()
            yield f"destroy {name}"

    def _edit(self, name: str, *, add: str | None = None, remove: str | None = None) -> None:
        old = self.sets[name]
        entries = (old.entries | ({add} if add else set())) - ({remove} if remove else set())
        self.sets[name] = AddressSet(name, old.kind, frozenset(entries), old.excluded)

    def _check_references(self) -> None:
        """The kernel refuses rules that name a set or a chain that is not there."""
        named = {rule.peer.name for c in self.chains.values() for rule in c.rules if rule.peer}
        if self.dispatch is None:
            return
        bound = [binding for found in self.dispatch.bindings.values() for binding in found]
        named |= {binding.members for binding in bound} | set(self.dispatch.isolated.values())
        assert named <= self.sets.keys()
        assert {binding.chain for binding in bound} <= self.chains.keys()

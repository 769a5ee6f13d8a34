"""A kernel that is given plans, step by step, and judges packets in between."""

from __future__ import annotations

from collections.abc import Iterator

from npc import evaluate
from npc.plan import FamilyPlan, FamilyState
from npc.ruleset import AddressSet, Chain, Dispatch, Family, FamilyRules, Protocol
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
        if self.dispatch is None:
            return True
        # The verdict depends on the addresses, whatever their family is said to be.
        rules = FamilyRules(Family.IPV4, self.sets, self.chains, self.dispatch)
        protocol = Protocol(packet.protocol)
        judged = evaluate.Packet(packet.source, packet.destination, protocol, packet.port)
        return evaluate.allows(rules, judged)

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

"""From what the kernel holds to what it should hold: which steps, in which order. Pure.

The order keeps every moment safe, for a packet as for a crash: a step either leaves a packet's
verdict as it was or makes it what it should become, and nothing that rules still use is taken away.

1. sets that are new are created and filled; a fixed set that differs is rebuilt and swapped in;
2. members are added to sets in use;
3. chains, dispatch and jumps change in one transaction of the kernel;
4. members are removed from sets in use;
5. sets that nothing uses any more are destroyed.

A pod that moves between chains is for a moment a member of both; the first binding wins, so its
packets are judged by the old rules or by the new ones, never by none. A pod that becomes isolated
leaves the guard's open pods last, one that no policy isolates any more joins them first. Within
steps 2 and 4, a pod is isolated before others may reach it by its new address, and for as long as
they may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from npc.ruleset import AddressSet, Chain, Dispatch, Family, FamilyRules, Ruleset, SetKind

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, slots=True)
class FamilyState:
    """What the kernel holds of ours for one family.

    A chain is ``None`` where its content is unknown or no longer what we wrote, a set where its
    type is none of ours. ``dispatch`` is ``None`` unless jumps and dispatch are all exactly as
    written.
    """

    sets: Mapping[str, AddressSet | None] = field(default_factory=lambda: MappingProxyType({}))
    chains: Mapping[str, Chain | None] = field(default_factory=lambda: MappingProxyType({}))
    dispatch: Dispatch | None = None


KernelState = Mapping[Family, FamilyState]


@dataclass(frozen=True, slots=True)
class SetChange:
    """Entries to add to, or remove from, the set of that name."""

    name: str
    kind: SetKind
    entries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FamilyPlan:
    """The steps for one family, in the order of the fields; see the module's text."""

    desired: FamilyRules
    create: tuple[AddressSet, ...]
    replace: tuple[AddressSet, ...]
    add: tuple[SetChange, ...]
    write_chains: tuple[Chain, ...]
    write_dispatch: bool
    delete_chains: tuple[str, ...]
    remove: tuple[SetChange, ...]
    destroy: tuple[str, ...]

    @property
    def changes_rules(self) -> bool:
        """Whether the rule transaction has anything to do."""
        return self.write_dispatch or bool(self.write_chains or self.delete_chains)

    @property
    def empty(self) -> bool:
        """Whether the kernel holds exactly what is desired."""
        return not (
            self.changes_rules
            or self.create
            or self.replace
            or self.add
            or self.remove
            or self.destroy
        )


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps for every family."""

    families: tuple[FamilyPlan, ...]

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return all(family.empty for family in self.families)


def make_plan(state: KernelState, desired: Ruleset) -> Plan:
    """Say how to get from ``state`` to ``desired``."""
    return Plan(
        tuple(
            _plan_family(state.get(family, FamilyState()), rules)
            for family, rules in desired.families.items()
        )
    )


def state_of(desired: Ruleset) -> KernelState:
    """What the kernel holds once a plan for ``desired`` has been applied."""
    return {
        family: FamilyState(rules.sets, rules.chains, rules.dispatch)
        for family, rules in desired.families.items()
    }


def _plan_family(state: FamilyState, desired: FamilyRules) -> FamilyPlan:
    there = {
        name: found
        for name, found in state.sets.items()
        if found and name in desired.sets and found.kind is desired.sets[name].kind
    }
    create = [s for name, s in desired.sets.items() if name not in there]
    kept = [(there[name], s) for name, s in desired.sets.items() if name in there]
    fixed = [(old, new) for old, new in kept if new.kind is SetKind.NETWORK]
    changing = [(old, new) for old, new in kept if new.kind is not SetKind.NETWORK]

    isolated = set(desired.dispatch.isolated.values())
    peers = {rule.peer.name for c in desired.chains.values() for rule in c.rules if rule.peer}
    # Whoever is in an `isolated` set must already be bound; and whom others may reach must already
    # be isolated. So peers come last on the way in and first on the way out.
    changing.sort(key=lambda pair: (pair[1].name in peers, pair[1].name in isolated))
    add = _changes((new, new.entries - old.entries) for old, new in changing)
    remove = _changes((new, old.entries - new.entries) for old, new in reversed(changing))

    write_chains = tuple(c for name, c in desired.chains.items() if state.chains.get(name) != c)
    delete_chains = tuple(sorted(state.chains.keys() - desired.chains.keys()))
    return FamilyPlan(
        desired=desired,
        create=tuple(create),
        replace=tuple(new for old, new in fixed if old != new),
        add=add,
        write_chains=write_chains,
        write_dispatch=state.dispatch != desired.dispatch
        or any(_members(there, name) != _members(desired.sets, name) for name in isolated),
        delete_chains=delete_chains,
        remove=remove,
        destroy=tuple(sorted(state.sets.keys() - desired.sets.keys())),
    )


def _members(sets: Mapping[str, AddressSet], name: str) -> frozenset[str] | None:
    found = sets.get(name)
    return found.entries if found else None


def _changes(pairs: Iterable[tuple[AddressSet, frozenset[str]]]) -> tuple[SetChange, ...]:
    return tuple(
        SetChange(s.name, s.kind, tuple(sorted(entries))) for s, entries in pairs if entries
    )

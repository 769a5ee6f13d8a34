"""Transactions as text for ``nft -f -``: the whole table anew, or what a plan changes in it.

The kernel takes all of a text or nothing, so the order in it is one of references alone: nothing is
deleted while a rule or a verdict map still names it, nothing is named before it is there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from npc.dataplane.nft import layout
from npc.dataplane.nft.layout import EXCEPT, TABLE
from npc.ruleset import AddressSet, Direction, Dispatch, FamilyRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npc.dataplane.nft.layout import Line, NftSet
    from npc.plan import FamilyPlan


@dataclass(frozen=True, slots=True)
class Held:
    """What a transaction has to know of the table, since only what is there can be deleted."""

    sets: frozenset[str]
    verdicts: Mapping[Direction, Mapping[str, str]]
    dispatch: Dispatch

    @classmethod
    def after(cls, rules: FamilyRules) -> Held:
        """What the table holds once ``rules`` have been written."""
        names = layout.nft_names(rules.sets.values(), rules.dispatch)
        return cls(names, layout.verdicts(rules), rules.dispatch)

    def allows(self, plan: FamilyPlan) -> bool:
        """Whether the plan can be carried out by changes of policy chains, sets and verdicts."""
        desired = plan.desired.dispatch
        for one in plan.replace:
            wanted = layout.nft_names([one], desired)
            if self.sets & {one.name, f"{one.name}{EXCEPT}"} != wanted:
                return False
        return replace(self.dispatch, bindings=desired.bindings) == desired


def rebuild(families: Iterable[FamilyRules]) -> list[str]:
    """The whole table anew, whatever there was of it."""
    rules = {one.family: one for one in families}
    chains = layout.fixed_chains({family: one.dispatch for family, one in rules.items()})
    for one in rules.values():
        chains |= layout.policy_chains(one, one.chains.values())
    lines = [f"add table {TABLE}", f"delete table {TABLE}", f"add table {TABLE}"]
    lines += (f"add chain {TABLE} {name}{_hook(name)}" for name in chains)
    for family, one in rules.items():
        for made in layout.nft_sets(one, one.sets.values()):
            lines += _add_set(made)
        for direction, verdicts in layout.verdicts(one).items():
            name, key = layout.VERDICTS[family, direction], layout.ADDRESS_TYPE[family]
            lines.append(f"add map {TABLE} {name} {{ type {key} : verdict; }}")
            lines += _elements("add", name, _jumps(verdicts))
            lines.append(f"add counter {TABLE} {layout.DENIED[family, direction]}")
    for name, body in chains.items():
        lines += _rules(name, body)
    return lines


def _hook(chain: str) -> str:
    if chain not in layout.HOOKS:
        return ""
    return f" {{ type filter hook {chain} priority {layout.PRIORITY}; policy accept; }}"


def change(plan: FamilyPlan, held: Held) -> list[str]:
    """What a plan changes in a table that ``allows`` it."""
    desired = plan.desired
    chains = layout.policy_chains(desired, plan.write_chains)
    stale, new = _verdict_changes(held, desired)
    gone = [
        name for whole in plan.destroy for name in (whole, f"{whole}{EXCEPT}") if name in held.sets
    ]
    lines = [f"add chain {TABLE} {name}" for name in chains]
    lines += (f"flush chain {TABLE} {name}" for name in (*chains, *plan.delete_chains))
    for name, keys in stale.items():
        lines += _elements("delete", name, keys)
    lines += (f"delete chain {TABLE} {name}" for name in plan.delete_chains)
    lines += (f"delete set {TABLE} {name}" for name in gone)
    for made in layout.nft_sets(desired, plan.create):
        lines += _add_set(made)
    for made in layout.nft_sets(desired, plan.replace):
        lines.append(f"flush set {TABLE} {made.name}")
        lines += _elements("add", made.name, sorted(made.elements))
    lines += _member_changes(plan)
    for name, jumps in new.items():
        lines += _elements("add", name, jumps)
    for name, body in chains.items():
        lines += _rules(name, body)
    return lines


def _verdict_changes(
    held: Held, desired: FamilyRules
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """By verdict map, the keys to delete and the elements to add."""
    stale: dict[str, list[str]] = {}
    new: dict[str, list[str]] = {}
    for direction, wanted in layout.verdicts(desired).items():
        name, old = layout.VERDICTS[desired.family, direction], held.verdicts[direction]
        stale[name] = sorted(address for address in old if wanted.get(address) != old[address])
        new[name] = _jumps({a: chain for a, chain in wanted.items() if old.get(a) != chain})
    return stale, new


def _member_changes(plan: FamilyPlan) -> list[str]:
    lines: list[str] = []
    for verb, changes in (("add", plan.add), ("delete", plan.remove)):
        changed = [AddressSet(c.name, c.kind, frozenset(c.entries)) for c in changes]
        for made in layout.nft_sets(plan.desired, changed):
            lines += _elements(verb, made.name, sorted(made.elements))
    return lines


def _add_set(one: NftSet) -> list[str]:
    flags = " flags interval;" if one.interval else ""
    created = f"add set {TABLE} {one.name} {{ type {one.type};{flags} }}"
    return [created, *_elements("add", one.name, sorted(one.elements))]


def _elements(verb: str, name: str, entries: Sequence[str]) -> list[str]:
    """A command about entries of a set or map; each on a line of its own, to be named if wrong."""
    if not entries:
        return []
    *most, last = entries
    return [f"{verb} element {TABLE} {name} {{", *(f"{entry}," for entry in most), last, "}"]


def _jumps(verdicts: Mapping[str, str]) -> list[str]:
    """Jump, not goto: what a chain allows goes on to be judged for the other direction."""
    return [f"{address} : jump {chain}" for address, chain in sorted(verdicts.items())]


def _rules(chain: str, lines: Iterable[Line]) -> Iterator[str]:
    for line in lines:
        comment = f' comment "{line.comment}"' if line.comment else ""
        yield f"add rule {TABLE} {chain} {line.text}{comment}"

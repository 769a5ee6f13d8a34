"""What in the kernel is not as it was written: other programs were there. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npc.plan import FamilyState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npc.plan import KernelState
    from npc.ruleset import Family


def drift(written: KernelState, found: KernelState) -> list[str]:
    """Say what differs, one line for each chain and set, and one for each family's dispatch.

    A set more than was written is no difference: one that others use could not be destroyed.
    """
    return [
        line
        for family, state in written.items()
        for line in _differences(family, state, found.get(family, FamilyState()))
    ]


def _differences(family: Family, written: FamilyState, found: FamilyState) -> Iterator[str]:
    for name, chain in written.chains.items():
        if name not in found.chains:
            yield f"chain {name} is gone"
        elif found.chains[name] != chain:
            yield f"chain {name} was changed"
    yield from (f"chain {name} was added" for name in found.chains.keys() - written.chains.keys())
    for name, wanted in written.sets.items():
        there = found.sets.get(name)
        if there is None:
            yield f"set {name} is gone"
        elif wanted is not None and there != wanted:
            more, less = len(there.entries - wanted.entries), len(wanted.entries - there.entries)
            yield f"set {name} was changed ({more} entries more, {less} less)"
    if found.dispatch != written.dispatch:
        yield f"the {family.name} dispatch, or a jump to it, was changed"

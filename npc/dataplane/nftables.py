"""The dataplane of nftables: a table of our own, and one transaction of the kernel for each plan.

Whatever fails or dies leaves the old rules or the new ones, sets included. The kernel is asked for
its state and can answer after a restart too: the table is read back into the ruleset's own words.
Policy chains and sets that differ are mended where they are. A table that is not as we would have
built it is built anew, in the transaction that removes the old one.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from npc.dataplane.nft import layout
from npc.dataplane.nft.layout import TABLE
from npc.dataplane.nft.listing import ForeignError, read_counters, read_table
from npc.dataplane.nft.monitor import Generations, Monitor
from npc.dataplane.nft.probe import probe
from npc.dataplane.nft.read import Found, read_families
from npc.dataplane.nft.script import Held, change, rebuild
from npc.dataplane.tools import ToolError, run_tool
from npc.plan import FamilyState
from npc.ruleset import AddressSet, Direction, Family, FamilyRules, SetKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npc.dataplane.nft.layout import Place
    from npc.dataplane.tools import Run
    from npc.plan import KernelState, Plan

_ABSENT = "No such file or directory"

log = logging.getLogger(__name__)


class NftablesDataplane:
    """``Dataplane`` over nft; for the families of ``families``."""

    name = "nftables"

    def __init__(self, families: Iterable[Family], run: Run = run_tool) -> None:
        self._families = tuple(families)
        self._run = run
        self._written: dict[Family, FamilyRules] = {}
        # What had been refused each time before the table was built anew.
        self._denied: Counter[Place] = Counter()
        self._generations = Generations()
        # Empty unless the table is known, and but for policy chains and sets as we would build it.
        self._held: dict[Family, Held] = {}

    @classmethod
    def open(cls, families: Iterable[Family], run: Run = run_tool) -> NftablesDataplane:
        """See that this machine can do it.

        :raises MissingToolError: if nft is absent or too old, the kernel lacks a part, or we are
            not root
        """
        dataplane = cls(families, run)
        probe(run, dataplane._families)
        log.info("rules are written by nft")
        return dataplane

    def observe(self) -> KernelState:
        """Read what the kernel holds of ours, repairing nothing.

        A chain or set that enforces what was last written for it is returned as it was written,
        where the kernel's way to spell it differs. A table that has to be built anew is returned as
        if there were none.
        """
        self._held.clear()
        try:
            found = self._read()
        except ForeignError as error:
            log.warning("another program changed the table %s; it is built anew: %s", TABLE, error)
            found = {}
        for family, one in found.items():
            names = layout.nft_names(one.sets.values(), one.dispatch)
            self._held[family] = Held(names, one.verdicts, one.dispatch)
        return {
            family: _state(found[family], self._written.get(family)) if found else FamilyState()
            for family in self._families
        }

    def _read(self) -> dict[Family, Found]:
        try:
            listed = self._run(["nft", "-j", "list", "table", *TABLE.split()])
        except ToolError as error:
            if _ABSENT in error.stderr:
                return {}
            raise
        return read_families(read_table(listed), self._families)

    def apply(self, plan: Plan) -> None:
        """Carry out every step of the plan, all at once."""
        if plan.empty:
            return
        held, self._held = self._held, {}  # known again only when it is written
        plans = {one.desired.family: one for one in plan.families}
        desired = {family: one.desired for family, one in plans.items()}
        if all(family in held and held[family].allows(one) for family, one in plans.items()):
            lines = [line for family, one in plans.items() for line in change(one, held[family])]
            with self._generations.writing():
                _write(self._run, lines)
        else:
            counted = self._count_denied()
            with self._generations.writing():
                _write(self._run, rebuild(desired.values()))
            self._denied.update(counted)
        self._written.update(desired)
        self._held = {family: Held.after(rules) for family, rules in desired.items()}

    def denied_packets(self) -> Mapping[Direction, int]:
        """Count the packets refused since this object was made; see ``Dataplane``."""
        counted = self._denied + self._count_denied()
        return {d: sum(counted[f, d] for f in self._families) for d in Direction}

    def _count_denied(self) -> Counter[Place]:
        """What the table's counters say; nothing where there is no table."""
        try:
            listed = self._run(["nft", "-j", "list", "counters", "table", *TABLE.split()])
        except ToolError as error:
            if _ABSENT in error.stderr:
                return Counter()
            raise
        found = read_counters(listed)
        return Counter({place: found.get(name, 0) for place, name in layout.DENIED.items()})

    def watch(self, changed: Callable[[], None]) -> Monitor:
        """A part that calls ``changed`` whenever another program has changed our table.

        :raises DataplaneError: if the kernel does not let us listen
        """
        return Monitor(self._generations, changed)

    def cleanup(self) -> None:
        """Remove our table; fine when there is none."""
        remove_table(self._run)
        self._written.clear()
        self._held.clear()


def remove_table(run: Run = run_tool) -> None:
    """Remove everything that this dataplane ever wrote, and nothing else.

    :raises MissingToolError: if nft is absent or we are not root
    """
    _write(run, [f"add table {TABLE}", f"delete table {TABLE}"])


def _write(run: Run, lines: list[str]) -> None:
    if lines:
        run(["nft", "-f", "-"], "\n".join(lines) + "\n")


def _state(found: Found, written: FamilyRules | None) -> FamilyState:
    """The state, in the words in which it was written where it is the same."""
    if written is None:
        return FamilyState(found.sets, found.chains, found.dispatch)
    lines = layout.policy_chains(written, written.chains.values())
    return FamilyState(
        sets={name: _known(one, written.sets.get(name)) for name, one in found.sets.items()},
        chains={
            name: written.chains[name] if lines.get(name) == found.lines[name] else chain
            for name, chain in found.chains.items()
        },
        dispatch=found.dispatch,
    )


def _known(found: AddressSet, written: AddressSet | None) -> AddressSet:
    same = (
        written is not None
        and found.kind is written.kind is SetKind.NETWORK
        and found.entries == layout.disjoint(written.entries)
        and found.excluded == layout.disjoint(written.excluded)
    )
    return written if written and same else found

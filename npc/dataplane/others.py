"""The rules of other backends: a node whose agent changes its backend has two for a while.

Both enforce, so packets have to please the new rules and the old ones, which nobody keeps up to
date any more. They are removed once a sync has put the new ones in force, never before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npc.dataplane import DataplaneError, MissingToolError
from npc.dataplane.nftables import remove_table
from npc.dataplane.removal import TABLES, remove_chains
from npc.dataplane.restore import RestoreDataplane, cleanup_node, owns
from npc.dataplane.sets import destroy_sets, read_sets
from npc.dataplane.tools import run_tool
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npc.dataplane import Dataplane
    from npc.dataplane.tools import Run
    from npc.plan import KernelState, Plan
    from npc.ruleset import Direction
    from reconciler.manager import Runnable

log = logging.getLogger(__name__)


class SoleDataplane:
    """A dataplane that can see to it that its rules are the only ones."""

    def __init__(self, own: Dataplane, run: Run = run_tool) -> None:
        self.own = own
        self.name = own.name
        self._run = run
        self._alone = False

    def observe(self) -> KernelState:
        """Read what the kernel holds of ours; see ``Dataplane``."""
        return self.own.observe()

    def apply(self, plan: Plan) -> None:
        """Carry out the plan; see ``Dataplane``."""
        self.own.apply(plan)

    def denied_packets(self) -> Mapping[Direction, int]:
        """Count what was refused; see ``Dataplane``."""
        return self.own.denied_packets()

    def watch(self, changed: Callable[[], None]) -> Runnable | None:
        """A part that hears of changes by other programs; see ``Dataplane``."""
        return self.own.watch(changed)

    def cleanup(self) -> None:
        """Remove everything of ours; see ``cleanup_all``."""
        cleanup_all(self._run)

    def retire_others(self) -> None:
        """Remove the rules of other backends; call it whenever the own ones are up to date.

        Rules that are in force need not be: those that hold addresses until more is known protect
        nobody else, and others may be old. What cannot be removed is no error, and tried again by
        the next call.
        """
        if self._alone:
            return
        try:
            remove_others(self.own, self._run)
        except DataplaneError as error:
            log.warning("rules of another backend may be left, and enforced too: %s", error)
        else:
            self._alone = True


def remove_others(own: Dataplane, run: Run = run_tool) -> None:
    """Remove what every other backend, mode or family may have left.

    :raises DataplaneError: if some of it may still be there
    """
    if isinstance(own, RestoreDataplane):
        tables = [table for table in TABLES if table not in own.tables]
        families = {family for _, family in own.tables}
        _every(
            run,
            remove_table,
            lambda run: remove_chains(run, owns, tables),
            lambda run: _remove_sets(run, [family for family in Family if family not in families]),
        )
    else:
        _every(run, cleanup_node)


def _remove_sets(run: Run, families: Iterable[Family]) -> None:
    found = read_sets(run)
    destroy_sets(run, [name for family in families for name in found[family]])


def cleanup_all(run: Run = run_tool) -> None:
    """Remove everything that any backend ever wrote, and nothing else.

    :raises MissingToolError: if no backend has its tools here, or we are not root
    :raises DataplaneError: if something of ours may be left; all that went wrong is in its text
    """
    actions = (cleanup_node, remove_table)
    missing = _every(run, *actions)
    if len(missing) == len(actions):
        raise missing[0]


def _every(run: Run, *actions: Callable[[Run], None]) -> list[MissingToolError]:
    """Do all of it, then say what failed; what there are no tools for is not held here."""
    failures: list[str] = []
    missing: list[MissingToolError] = []
    for action in actions:
        try:
            action(run)
        except MissingToolError as error:
            missing.append(error)
        except DataplaneError as error:
            failures.append(str(error))
    if failures:
        raise DataplaneError("; ".join(failures))
    return missing

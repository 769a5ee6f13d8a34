"""The rules of other backends: a node whose agent changes its backend has two for a while.

Both enforce, so packets have to please the new rules and the old ones, which nobody keeps up to
date any more. They are removed once the new ones are in force, never before.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npc.dataplane import DataplaneError, MissingToolError
from npc.dataplane.mode import Mode
from npc.dataplane.nftables import remove_table
from npc.dataplane.restore import RestoreDataplane, cleanup_node, remove_chains
from npc.dataplane.tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npc.dataplane import Dataplane
    from npc.dataplane.tools import Run
    from npc.plan import KernelState, Plan
    from npc.ruleset import Direction

log = logging.getLogger(__name__)


class SoleDataplane:
    """A dataplane that, once its rules are in force, sees to it that they are the only ones."""

    def __init__(self, own: Dataplane, run: Run = run_tool) -> None:
        self.own = own
        self._run = run
        self._alone = False

    def observe(self) -> KernelState:
        """Read what the kernel holds of ours; see ``Dataplane``."""
        state = self.own.observe()
        if all(one.dispatch is not None for one in state.values()):
            self._remove_others()
        return state

    def apply(self, plan: Plan) -> None:
        """Carry out the plan; see ``Dataplane``. What others left is no error of it."""
        self.own.apply(plan)
        self._remove_others()

    def denied_packets(self) -> Mapping[Direction, int]:
        """Count what was refused; see ``Dataplane``."""
        return self.own.denied_packets()

    def cleanup(self) -> None:
        """Remove everything of ours; see ``cleanup_all``."""
        cleanup_all(self._run)

    def _remove_others(self) -> None:
        if self._alone:
            return
        try:
            remove_others(self.own, self._run)
        except DataplaneError as error:
            log.warning("rules of another backend may be left, and enforced too: %s", error)
        else:
            self._alone = True


def remove_others(own: Dataplane, run: Run = run_tool) -> None:
    """Remove what every backend but that of ``own`` may have left.

    :raises DataplaneError: if some of it may still be there
    """
    if isinstance(own, RestoreDataplane):
        other = Mode.LEGACY if own.mode is Mode.NFT else Mode.NFT
        # The sets are shared by both modes, and kept up to date.
        _every(run, remove_table, lambda run: remove_chains(run, [other]))
    else:
        _every(run, cleanup_node)


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

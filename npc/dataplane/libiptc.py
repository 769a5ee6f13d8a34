"""The dataplane of legacy iptables through libiptc, for nodes where the tool's start counts.

The rules are those of ``RestoreDataplane`` in legacy mode, read in the same way; they are committed
by python-iptables, in a program of its own that stays (docs/adr/0012-libiptc.md says why).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npc.dataplane import MissingToolError, layout, sets
from npc.dataplane.libiptc_client import Worker
from npc.dataplane.mode import Mode, choose_mode
from npc.dataplane.restore import RestoreDataplane, written_chains
from npc.dataplane.tools import LOCK_SECONDS, run_tool

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npc.dataplane.tools import Run
    from npc.plan import FamilyPlan
    from npc.ruleset import Direction, Family

log = logging.getLogger(__name__)


class LibiptcDataplane(RestoreDataplane):
    """``Dataplane`` over libiptc and ipset; for the families of ``families``."""

    def __init__(
        self, families: Iterable[Family], run: Run = run_tool, worker: Worker | None = None
    ) -> None:
        super().__init__(Mode.LEGACY, families, run)
        self.name = "libiptc"
        self._worker = worker or Worker()

    @classmethod
    def open(
        cls, wanted_mode: str, families: Iterable[Family], run: Run = run_tool
    ) -> LibiptcDataplane:
        """See that this node is one of legacy iptables, and that this machine can do it.

        :raises MissingToolError: if the node uses nft, a tool or library is absent, the kernel
            lacks a part, or we are not root
        :raises DataplaneError: if the rules cannot be read for another reason
        """
        if choose_mode(wanted_mode, run) is not Mode.LEGACY:
            raise MissingToolError(
                "libiptc writes legacy iptables alone, and this node uses nft: other programs "
                "would not see the rules, and packets would pass two sets of tables [choose the "
                "backend `restore', or the mode `legacy' if that is what this node uses]"
            )
        dataplane = cls(families, run)
        log.info("rules are written by libiptc (legacy) and ipset")
        for family in dataplane._families:
            dataplane._read_table(family)
            # To change nothing shows that the library is there and may write.
            dataplane._worker.ask({"family": family.value, "lock_seconds": LOCK_SECONDS})
            sets.probe_sets(run, family)
        return dataplane

    def _write_rules(self, plan: FamilyPlan) -> None:
        self._worker.ask(
            {
                "family": plan.desired.family.value,
                "chains": written_chains(plan),
                "jumps": {hook: layout.jump(hook) for hook in layout.JUMPS},
                "delete": plan.delete_chains,
                "lock_seconds": LOCK_SECONDS,
            }
        )

    def _read_denied(self, family: Family) -> dict[Direction, int]:
        chains = list(layout.DENY.values())
        counted = self._worker.ask({"family": family.value, "refused_in": chains})
        return {direction: counted[chain] for direction, chain in layout.DENY.items()}

"""Ends connections that began while they were allowed and that a new policy forbids.

The kernel does not judge what belongs to a connection that it knows. So after rules changed, the
connections of the pods that may have lost something are judged here, as new ones, and those that
would be refused now are forgotten by the kernel: their next packet is refused.

That packet may be the server's. Where the rules let it pass, as a new connection from the server to
the client's port, the old one would live on under that name. So these are looked for and forgotten
as well, until a packet of the client comes first, which is refused and ends it.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from npc.dataplane import conntrack
from npc.dataplane.conntrack import Flow, Selection
from npc.dataplane.tools import run_tool
from npc.evaluate import Packet, allows, restricted
from npc.ruleset import Protocol, Ruleset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npc.dataplane.tools import Run
    from npc.ruleset import Family, FamilyRules

_PROTOCOLS = {6: Protocol.TCP, 17: Protocol.UDP, 132: Protocol.SCTP}
_TRIES = 20
_PAUSE = 0.05

log = logging.getLogger(__name__)


class Terminator:
    """Called with the rules after each sync that put them in force. For one thread at a time."""

    def __init__(
        self,
        run: Run = run_tool,
        node_addresses: Callable[[], frozenset[str]] = conntrack.node_addresses,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = run
        self._node_addresses = node_addresses
        self._pause = pause
        self._done = Ruleset()

    def __call__(self, ruleset: Ruleset) -> None:
        """End what the rules forbid, as far as they differ from those of the last call.

        :raises DataplaneError: if connections cannot be read or forgotten; the next call tries anew
        """
        for family, rules in ruleset.families.items():
            addresses = restricted(self._done.families.get(family), rules)
            if addresses:
                self._end(family, rules, addresses)
        self._done = ruleset

    def _end(self, family: Family, rules: FamilyRules, addresses: frozenset[str]) -> None:
        node = self._node_addresses()
        flows = [
            flow
            for flow in conntrack.read_flows(self._run, family)
            if not addresses.isdisjoint((flow.original.source, flow.reply.source))
            and flow.original.source not in node
            and not allows(rules, _packet(flow))
        ]
        if not flows:
            return
        self._forget(family, flows)
        backwards = {(flow.protocol, flow.reply) for flow in flows}
        for _ in range(_TRIES):
            self._pause(_PAUSE)
            revived = [
                flow
                for flow in conntrack.read_flows(self._run, family)
                if (flow.protocol, flow.original) in backwards
            ]
            if not revived:
                log.info("%d connections ended that are not allowed any more", len(flows))
                return
            self._forget(family, revived)
        log.warning(
            "%d connections that are not allowed any more go on: their servers keep sending",
            len(revived),
        )

    def _forget(self, family: Family, flows: Iterable[Flow]) -> None:
        for selection in dict.fromkeys(map(_selection, flows)):
            conntrack.forget(self._run, family, selection)


def _packet(flow: Flow) -> Packet:
    """The first packet where rules saw it: its destination was translated, its source not yet."""
    protocol = _PROTOCOLS.get(flow.protocol)
    return Packet(flow.original.source, flow.reply.source, protocol, flow.reply.source_port)


def _selection(flow: Flow) -> Selection:
    port = flow.reply.source_port
    return Selection(flow.protocol, flow.original.source, flow.reply.source, port)

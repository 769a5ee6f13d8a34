"""The blocks of this node's pods, as its own Node object has them.

They are asked for again and again until the API server has named them, and then never more: the
API lets nobody change the blocks of a node. The first sync waits for the API server's answer, so
that it takes away no rule that holds addresses since an earlier run. If the answer names no blocks,
nothing can be held, and that is said; but policies are enforced all the same, as a node without
that would be the more open one.
"""

from __future__ import annotations

import ipaddress
import logging
from typing import TYPE_CHECKING

import msgspec

from npc.api import decode_node
from reconciler.backoff import Backoff
from reconciler.client import ApiError, Resource, TransportError
from reconciler.wire import decode_page
from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npc.policy import Network
    from npc.ruleset import Family
    from reconciler.client import Transport
    from reconciler.source import Add
    from reconciler.stop import Stop

NODES = Resource("", "v1", "nodes", "Node", namespaced=False)

_FORBIDDEN = 403

log = logging.getLogger(__name__)


class _NoBlocksError(Exception):
    """The API server answered, but does not say where the node's pods are."""


class NodeBlocks:
    """A part of the program that asks, and a source without keys that the controller waits for."""

    name = str(NODES)

    def __init__(
        self,
        transport: Transport,
        node: str,
        needed: Sequence[Family],
        found: Callable[[tuple[Network, ...]], None],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        :param needed: the families of which there must be a block; of none, any block will do
        :param found: told of the blocks, once; what it raises ends ``run``. Before it returns, no
            sync runs unless ``has_synced``
        """
        self._transport = transport
        self._node = node
        self._needed = needed
        self._found = found
        self._backoff = Backoff(clock=clock)
        self._missing: str | None = "not asked yet"
        self.has_synced = False
        """Whether the API server has answered, be it that it names no blocks."""

    def start(self, add: Add[str], stop: Stop) -> None:
        """Add nothing: who is told of the blocks knows what to do."""

    def check(self) -> str | None:
        """Whether the blocks are known; why not, if so."""
        return self._missing

    def run(self, stop: Stop) -> None:
        """Ask until the blocks are known or the program is to stop."""
        while not stop:
            try:
                blocks = self._ask(stop)
            except TransportError as error:
                self._wait_after(error, stop)
            except _NoBlocksError as error:
                self.has_synced = True
                self._wait_after(error, stop)
            else:
                log.info("pods of node %s are in %s", self._node, ", ".join(map(str, blocks)))
                self._found(blocks)
                self._missing = None
                self.has_synced = True
                return

    def _ask(self, stop: Stop) -> tuple[Network, ...]:
        query = {"fieldSelector": f"metadata.name={self._node}"}
        try:
            found = decode_page(self._transport.list(NODES, None, query, stop)).items
            texts = [cidr for raw in found or () for cidr in decode_node(raw).pod_cidrs]
        except ApiError as error:
            if error.status != _FORBIDDEN:
                raise
            message = f"{error}; --strict-startup needs the right to list nodes"
            raise _NoBlocksError(message) from error
        # The decoder meets JSON that is nested too deeply with a RecursionError.
        except (msgspec.DecodeError, RecursionError) as error:
            raise _NoBlocksError(f"node {self._node} cannot be read: {error}") from error
        if not found:
            raise _NoBlocksError(f"there is no node {self._node}")
        if not texts:
            raise _NoBlocksError(
                f"node {self._node} has no spec.podCIDRs; where the network plugin does not allot "
                "addresses from them, --strict-startup is of use only with --pod-cidr"
            )
        blocks = tuple(map(_block, texts))
        for family in self._needed:
            if all(block.version != family.value for block in blocks):
                raise _NoBlocksError(
                    f"node {self._node} has no {family.name.lower()} block among its spec.podCIDRs "
                    f"({', '.join(texts)}), though --families names that family"
                )
        return blocks

    def _wait_after(self, error: Exception, stop: Stop) -> None:
        if stop:
            return
        delay = self._backoff.step()
        if isinstance(error, ApiError) and error.retry_after is not None:
            delay = max(delay, error.retry_after)
        instead = "policies are enforced, but no address is held" if self.has_synced else ""
        parts = (str(error), instead, f"next try in {delay:.0f} s")
        self._missing = "; ".join(filter(None, parts))
        log.warning("the blocks of this node's pods are not known: %s", self._missing)
        stop.wait(delay)


def _block(text: str) -> Network:
    try:
        # Python takes fe80::%ANYTHING/64, the kernel does not.
        block = None if "%" in text else ipaddress.ip_network(text, strict=False)
    except ValueError:
        block = None
    if block is None or block.prefixlen == 0:
        raise _NoBlocksError(f"{text!r} among the spec.podCIDRs is no block of addresses")
    return block

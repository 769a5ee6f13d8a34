"""The blocks of the node's pods: what is asked, what is made of the answer, and what if none comes."""

from __future__ import annotations

import ipaddress
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from npc.agent import _caches, _controller
from npc.api import Node, decode_node
from npc.compile import Settings
from npc.controller import PolicySync
from npc.dataplane import DataplaneError
from npc.health import Ticker
from npc.node import NodeBlocks
from npc.policy import Network
from npc.ruleset import Family
from reconciler.client import ApiError, Resource, TransportError
from reconciler.manager import Runnable
from reconciler.stop import Stop
from tests.unit.npc.fake import PATIENCE, FakeDataplane, FakeStream, FakeTransport
from workqueue.testing import FakeClock


def node(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "n1"}, "spec": spec}


def page(*nodes: dict[str, Any]) -> bytes:
    return json.dumps({"metadata": {"resourceVersion": "1"}, "items": nodes}).encode()


class Answers:
    """A transport that gives these answers to lists, one each, and remembers what was asked."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, dict[str, str]]] = []

    def list(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], stop: Stop
    ) -> bytes:
        self.asked.append((resource.path(namespace), dict(query)))
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def watch(self, *_: Any) -> FakeStream:
        raise AssertionError("a node is not watched")


class Asking:
    """Blocks that are being asked for, on a clock of the test's own."""

    def __init__(self, answers: Answers, *needed: Family) -> None:
        self.clock = FakeClock()
        self.stop = Stop(self.clock)
        self.found: list[tuple[str, ...]] = []
        self.answers = answers
        self.blocks = NodeBlocks(answers, "n1", needed, self._take, clock=self.clock)
        self.thread = threading.Thread(target=self.blocks.run, args=(self.stop,))

    def _take(self, blocks: tuple[Network, ...]) -> None:
        assert not self.blocks.has_synced
        self.found.append(tuple(map(str, blocks)))

    def why(self) -> str:
        """What the check says once the next try is waited for."""
        self.clock.wait_for_waiters()
        missing = self.blocks.check()
        assert missing is not None
        return missing

    def end(self) -> None:
        """Wait until it has ended by itself."""
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


@contextmanager
def asking(*answers: bytes | Exception, needed: tuple[Family, ...] = ()) -> Iterator[Asking]:
    asked = Asking(Answers(*answers), *needed)
    asked.thread.start()
    try:
        yield asked
    finally:
        asked.stop.set()
        asked.end()


@pytest.mark.parametrize(
    ("spec", "cidrs"),
    [
        ({"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24", "fd00:1::/64"]}, 2),
        ({"podCIDR": "10.0.1.0/24"}, 1),
        ({"podCIDR": "10.0.1.0/24", "podCIDRs": []}, 1),
        ({"podCIDR": "", "podCIDRs": None}, 0),
        ({"providerID": "x"}, 0),
    ],
)
def test_a_nodes_blocks_are_read_from_either_field(spec: dict[str, Any], cidrs: int) -> None:
    expected = ("10.0.1.0/24", "fd00:1::/64")[:cidrs]
    assert decode_node(json.dumps(node(**spec)).encode()) == Node("n1", expected)


def test_one_list_of_this_node_alone_is_all_that_is_asked() -> None:
    with asking(page(node(podCIDRs=["10.0.1.0/24", "fd00:1::/64"])), needed=tuple(Family)) as a:
        a.end()
        assert a.answers.asked == [("/api/v1/nodes", {"fieldSelector": "metadata.name=n1"})]
        assert a.found == [("10.0.1.0/24", "fd00:1::/64")]
        assert a.blocks.has_synced
        assert a.blocks.check() is None


def test_a_block_with_host_bits_is_the_block_that_it_lies_in() -> None:
    with asking(page(node(podCIDR="10.0.1.7/24"))) as a:
        a.end()
        assert a.found == [("10.0.1.0/24",)]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (TransportError("connection refused"), "connection refused"),
        (ApiError(403, "Forbidden", "nodes is forbidden"), "403 Forbidden: nodes is forbidden"),
        (page(), "there is no node n1"),
        (page(node()), "node n1 has no spec.podCIDRs; --pod-cidr can name them"),
        (page(node(podCIDRs=["fd00:1::/64"])), "node n1 has no ipv4 block"),
        (page(node(podCIDRs=["nowhere"])), "'nowhere' among the spec.podCIDRs is no block"),
        (page(node(podCIDRs=["0.0.0.0/0"])), "'0.0.0.0/0' among the spec.podCIDRs is no block"),
        (page(node(podCIDRs=["fe80::%x/64"])), "'fe80::%x/64' among the spec.podCIDRs is no block"),
        (page(node(podCIDRs="10.0.0.0/8")), "Expected `array"),
        (b"not JSON", "JSON is malformed"),
        (b'{"metadata":' + b"[" * 100_000, "recursion"),
    ],
)
def test_it_says_what_is_wrong_and_asks_again(
    answer: bytes | Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    with asking(answer, page(node(podCIDR="10.0.1.0/24")), needed=(Family.IPV4,)) as a:
        assert message in a.why()
        assert not a.blocks.has_synced
        assert not a.found
        [line] = caplog.messages
        assert line == f"--strict-startup holds nothing yet: {a.why()}"
        a.clock.step(1.6)
        a.end()
        assert a.found == [("10.0.1.0/24",)]


def test_the_waits_grow_and_a_busy_server_says_how_long_it_wants() -> None:
    busy = ApiError(429, "TooManyRequests", "later", retry_after=40)
    down = TransportError("down")
    with asking(down, down, busy, page(node(podCIDR="10.0.1.0/24"))) as a:
        for at_least, at_most in [(0.8, 1.6), (1.6, 3.2), (40, 40)]:
            count = len(a.answers.asked)
            a.clock.wait_for_waiters()
            a.clock.step(at_least - 0.01)
            assert len(a.answers.asked) == count
            a.clock.step(at_most - at_least + 0.02)
            while len(a.answers.asked) == count:
                threading.Event().wait(0.0005)
        a.end()
        assert a.found


def test_a_stop_ends_the_wait_at_once() -> None:
    with asking(TransportError("down")) as a:
        a.clock.wait_for_waiters()
        a.stop.set()
        a.end()
        assert not a.blocks.has_synced


def test_a_stop_that_ends_the_request_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    class Stopped(Answers):
        def list(self, *_: Any) -> bytes:
            a.stop.set()
            raise TransportError("aborted")

    a = Asking(Stopped())
    a.blocks.run(a.stop)
    assert not caplog.messages


def test_an_error_of_who_is_told_ends_it_and_nothing_counts_as_known() -> None:
    def refuse(_: object) -> None:
        raise DataplaneError("busy")

    answers = Answers(page(node(podCIDR="10.0.1.0/24")))
    blocks = NodeBlocks(answers, "n1", (), refuse)
    with pytest.raises(DataplaneError):
        blocks.run(Stop())
    assert blocks.check() is not None


def test_no_sync_runs_before_the_blocks_are_known_and_the_first_one_holds_them() -> None:
    transport, dataplane, clock, stop = FakeTransport(), FakeDataplane(), FakeClock(), Stop()
    caches = _caches(transport)
    sync = PolicySync(caches, dataplane, node="n1", families=(Family.IPV4,))
    controller = _controller(caches, sync, Ticker(3600, sync.recheck_kernel))
    told: list[int] = []

    def found(_: tuple[Network, ...]) -> None:
        told.append(len(dataplane.applied))
        sync.settings = Settings(guarded=(ipaddress.ip_network("10.0.1.0/24"),))

    late = TransportError("down")
    blocks = NodeBlocks(Answers(late, page(node(podCIDR="10.0.1.0/24"))), "n1", (), found, clock)
    controller.watch(blocks)
    waiting = Stop(clock)
    parts: list[tuple[Runnable, Stop]] = [
        *((part, stop) for part in (caches.pods, caches.namespaces, caches.policies, controller)),
        (blocks, waiting),
    ]
    threads = [threading.Thread(target=part.run, args=(until,)) for part, until in parts]
    for thread in threads:
        thread.start()
    try:
        clock.wait_for_waiters()
        for plural in ("pods", "namespaces", "networkpolicies"):
            transport.stream(plural)  # so all is listed, and only the blocks are waited for
        clock.step(1.6)
        assert dataplane.entered.acquire(timeout=PATIENCE)
        assert told == [0]
        held = dataplane.applied[0].families[Family.IPV4].dispatch.guard
        assert held is not None
    finally:
        stop.set()
        waiting.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

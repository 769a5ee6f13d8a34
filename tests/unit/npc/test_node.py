"""The blocks of the node's pods: what is asked, and what is made of the answer or of none."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import pytest

from npc.agent import Options, _caches, _controller, _node_blocks
from npc.api import Node, decode_node
from npc.compile import DEFAULTS
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

OPTIONS = Options(
    node="n1",
    kubeconfig=None,
    backend="auto",
    families="ipv4",
    iptables_mode="auto",
    settings=DEFAULTS,
    strict_startup=True,
    terminate_established=False,
    sync_period=300,
    health_address=("127.0.0.1", 0),
)


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
        self.told_first = False
        self.answers = answers
        self.blocks = NodeBlocks(answers, "n1", needed, self._take, clock=self.clock)
        self.thread = threading.Thread(target=self.blocks.run, args=(self.stop,))

    def _take(self, blocks: tuple[Network, ...]) -> None:
        self.told_first = not self.blocks.has_synced
        assert self.blocks.check() is not None
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
        (ApiError(503, "ServiceUnavailable", "soon"), "503 ServiceUnavailable: soon"),
    ],
)
def test_without_an_answer_nothing_may_run_yet(
    answer: Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with asking(answer, page(node(podCIDR="10.0.1.0/24"))) as a:
        assert a.why().startswith(f"{message}; next try in ")
        assert caplog.messages == [f"the blocks of this node's pods are not known: {a.why()}"]
        assert not a.blocks.has_synced
        a.clock.step(1.6)
        a.end()
        assert a.found == [("10.0.1.0/24",)]
        assert a.told_first


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            ApiError(403, "Forbidden", "nodes is forbidden"),
            "403 Forbidden: nodes is forbidden; --strict-startup needs the right to list nodes",
        ),
        (page(), "there is no node n1"),
        (b'{"metadata": {}, "items": null}', "there is no node n1"),
        (page(node()), "node n1 has no spec.podCIDRs; where the network plugin does not allot"),
        (page(node(podCIDRs=["fd00:1::/64"])), "node n1 has no ipv4 block"),
        (page(node(podCIDRs=["nowhere"])), "'nowhere' among the spec.podCIDRs is no block"),
        (page(node(podCIDRs=["0.0.0.0/0"])), "'0.0.0.0/0' among the spec.podCIDRs is no block"),
        (page(node(podCIDRs=["fe80::%x/64"])), "'fe80::%x/64' among the spec.podCIDRs is no block"),
        (page(node(podCIDRs="10.0.0.0/8")), "node n1 cannot be read: Expected `array"),
        (b"not JSON", "node n1 cannot be read: JSON is malformed"),
        (b'{"metadata":{"x":' + b"[" * 100_000, "node n1 cannot be read: maximum recursion"),
    ],
)
def test_an_answer_without_blocks_says_what_is_wrong_and_is_asked_for_again(
    answer: bytes | Exception, message: str, caplog: pytest.LogCaptureFixture
) -> None:
    with asking(answer, page(node(podCIDR="10.0.1.0/24")), needed=(Family.IPV4,)) as a:
        why = a.why()
        assert why.startswith(message)
        assert "; policies are enforced, but no address is held; next try in " in why
        assert caplog.messages == [f"the blocks of this node's pods are not known: {why}"]
        assert a.blocks.has_synced
        assert not a.found
        a.clock.step(1.6)
        a.end()
        assert a.found == [("10.0.1.0/24",)]
        assert a.blocks.check() is None


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
    assert not blocks.has_synced


class Running:
    """The agent's parts that matter here, each in its thread, with blocks that are asked for."""

    def __init__(self, *answers: bytes | Exception) -> None:
        self.dataplane, self.clock, families = FakeDataplane(), FakeClock(), (Family.IPV4,)
        self.caches = _caches(FakeTransport())
        sync = PolicySync(self.caches, self.dataplane, node="n1", families=families)
        self.controller = _controller(self.caches, sync, Ticker(3600, sync.recheck_kernel))
        self.blocks = _node_blocks(
            Answers(*answers), self.dataplane, sync, self.controller, OPTIONS, families, self.clock
        )
        stop, waiting = Stop(), Stop(self.clock)
        self._stops = (stop, waiting)
        parts: list[tuple[Runnable, Stop]] = [
            *((part, stop) for part in (self.caches.pods, self.caches.namespaces)),
            *((part, stop) for part in (self.caches.policies, self.controller)),
            (self.blocks, waiting),
        ]
        self._threads = [threading.Thread(target=part.run, args=(on,)) for part, on in parts]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for stop in self._stops:
            stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for what must come about without the clock's help."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)

    def holding(self) -> list[bool]:
        """Of each set of rules that was written, whether it holds addresses."""
        applied = [rules.families[Family.IPV4].dispatch for rules in self.dataplane.applied]
        return [dispatch.guard is not None for dispatch in applied]


def test_no_sync_runs_before_the_answer_and_the_first_rules_hold_addresses() -> None:
    late = TransportError("down")
    with Running(late, page(node(podCIDR="10.0.1.0/24"))) as running:
        running.clock.wait_for_waiters()
        caches = running.caches
        running.wait(lambda: caches.pods.has_synced and caches.namespaces.has_synced)
        running.wait(lambda: caches.policies.has_synced)
        assert not running.controller.has_synced
        running.clock.step(1.6)
        running.wait(lambda: running.controller.has_synced and running.controller.idle)
        assert running.holding() == [True]


def test_without_blocks_policies_are_enforced_and_addresses_are_held_once_there_are_some() -> None:
    with Running(page(node()), page(node(podCIDR="10.0.1.0/24"))) as running:
        running.wait(lambda: running.holding() == [False])
        running.clock.wait_for_waiters()
        running.clock.step(1.6)
        running.wait(lambda: running.holding() == [False, True])
        assert not running.dataplane.overlapped

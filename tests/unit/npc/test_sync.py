"""What the agent promises about events and syncs, with the real queue, informers and controller."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer

from npc.agent import _caches, _controller
from npc.controller import Caches, PolicySync
from npc.dataplane import DataplaneError
from npc.health import (
    FAILING_SECONDS,
    STUCK_SECONDS,
    Ticker,
    check_running,
    check_sync,
    describe_state,
)
from npc.metrics import Metrics
from npc.ruleset import Direction, Family, Ruleset
from reconciler.controller import Controller
from reconciler.manager import Runnable
from reconciler.stop import Stop
from tests.unit.npc.fake import PATIENCE, FakeDataplane, FakeTransport, metadata, pod, policy


@dataclass
class Agent:
    transport: FakeTransport
    dataplane: FakeDataplane
    caches: Caches
    sync: PolicySync
    controller: Controller[str]
    stop: Stop
    threads: list[threading.Thread]

    def wait(self, condition: Any) -> None:
        """Wait until the condition holds; it must come about without the clock's help."""
        done = threading.Event()
        deadline = threading.Timer(PATIENCE, done.set)
        deadline.start()
        while not condition() and not done.is_set():
            done.wait(0.001)
        deadline.cancel()
        assert condition()

    def settle(self) -> None:
        """Wait until everything handled so far is in force."""
        self.wait(lambda: self.controller.idle and self.sync.report.total > 0)

    def state(self) -> dict[str, Any]:
        return describe_state(self.sync, self.caches, lambda: self.controller.idle)


@contextmanager
def agent(
    *,
    period: float = 3600,
    held: bool = False,
    metrics: Metrics | None = None,
    tracer: Tracer | None = None,
    **objects: list[dict[str, Any]],
) -> Iterator[Agent]:
    transport = FakeTransport(**objects)
    dataplane = FakeDataplane()
    if held:
        dataplane.hold()
    caches = _caches(transport)
    sync = PolicySync(caches, dataplane, node="n1", families=(Family.IPV4,), metrics=metrics)
    controller = _controller(caches, sync, Ticker(period, sync.recheck_kernel), tracer=tracer)
    stop = Stop()
    threads = threads_of(caches, controller, stop)
    for thread in threads:
        thread.start()
    try:
        yield Agent(transport, dataplane, caches, sync, controller, stop, threads)
    finally:
        dataplane.release_all()
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), f"{thread.name} did not end"


def threads_of(caches: Caches, controller: Controller[str], stop: Stop) -> list[threading.Thread]:
    parts: list[Runnable] = [caches.pods, caches.namespaces, caches.policies, controller]
    return [threading.Thread(target=part.run, args=(stop,), name=part.name) for part in parts]


def isolated(dataplane: FakeDataplane, direction: Direction = Direction.INGRESS) -> set[str]:
    rules = dataplane.applied[-1].families[Family.IPV4]
    return set(rules.sets[rules.dispatch.isolated[direction]].entries)


def test_the_first_sync_comes_without_any_event() -> None:
    with agent() as a:
        a.settle()
        assert len(a.dataplane.applied) == 1


def test_everything_listed_at_the_start_is_one_sync() -> None:
    pods = [pod(f"p{i}", f"10.0.0.{i}") for i in range(1, 51)]
    with agent(pods=pods, networkpolicies=[policy("deny")]) as a:
        a.settle()
        assert len(a.dataplane.applied) == 1
        assert len(isolated(a.dataplane)) == 50


def test_a_hundred_events_during_a_sync_cause_exactly_one_more() -> None:
    with agent(networkpolicies=[policy("deny")], held=True) as a:
        assert a.dataplane.entered.acquire(timeout=PATIENCE)
        stream = a.transport.stream("pods")
        for i in range(1, 101):
            stream.send("ADDED", pod(f"p{i}", f"10.0.0.{i}", version=i + 1))
        a.wait(lambda: a.caches.pods.handled_resource_version == "101")
        assert len(a.dataplane.applied) == 0
        a.dataplane.release_all()
        a.settle()
        assert a.sync.report.total == 2
        assert len(isolated(a.dataplane)) == 100
        assert not a.dataplane.overlapped


def test_an_event_in_the_last_moment_of_a_sync_is_not_lost() -> None:
    with agent(pods=[pod("a", "10.0.0.1")], held=True) as a:
        assert a.dataplane.entered.acquire(timeout=PATIENCE)
        a.transport.stream("networkpolicies").send("ADDED", policy("deny", version=2))
        a.wait(lambda: a.caches.policies.handled_resource_version == "2")
        a.dataplane.release()
        assert a.dataplane.entered.acquire(timeout=PATIENCE)
        a.dataplane.release_all()
        a.settle()
        assert isolated(a.dataplane) == {"10.0.0.1"}


def test_handlers_go_on_while_a_sync_hangs() -> None:
    with agent(held=True) as a:
        assert a.dataplane.entered.acquire(timeout=PATIENCE)
        for version in range(2, 200):
            a.transport.stream("pods").send("MODIFIED", pod("a", "10.0.0.1", version=version))
        a.wait(lambda: a.caches.pods.handled_resource_version == "199")
        assert a.dataplane.running == 1


def test_a_stop_beats_the_syncs_that_are_queued_and_the_worker_is_joined() -> None:
    with agent(pods=[pod("a", "10.0.0.1")], held=True) as a:
        assert a.dataplane.entered.acquire(timeout=PATIENCE)
        a.transport.stream("networkpolicies").send("ADDED", policy("deny", version=2))
        a.wait(lambda: a.controller.queue.statistics().reruns == 1)
        a.stop.set()
        a.dataplane.release_all()
        for thread in a.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert a.sync.report.total == 1
        assert not [t for t in threading.enumerate() if "full-sync" in t.name]


def test_a_periodic_sync_reads_the_kernel_and_repairs_it() -> None:
    with agent(period=0.01, networkpolicies=[policy("deny")], pods=[pod("a", "10.0.0.1")]) as a:
        a.settle()
        a.dataplane.drift()
        a.wait(lambda: len(a.dataplane.applied) > 1)
        assert a.dataplane.applied[-1] == a.dataplane.applied[0]


def test_without_a_change_nothing_is_written_and_the_kernel_is_not_read() -> None:
    with agent(networkpolicies=[policy("deny")]) as a:
        a.settle()
        observed = a.dataplane.observed
        a.controller.queue.add("full-sync")
        a.wait(lambda: a.sync.report.total == 2)
        assert len(a.dataplane.applied) == 1
        assert a.dataplane.observed == observed


def test_a_failed_apply_is_seen_and_tried_again_from_what_the_kernel_holds() -> None:
    with agent(held=True) as a:
        assert a.dataplane.entered.acquire(timeout=PATIENCE)
        a.dataplane.failures = 1
        a.dataplane.release()
        a.wait(lambda: a.sync.report.failed_in_a_row == 1)
        assert "exit code 4" in (check_sync(a.sync) or "")
        assert not a.state()["idle"]
        a.dataplane.release_all()
        a.wait(lambda: len(a.dataplane.applied) == 1)
        a.settle()
        assert a.dataplane.observed == 2
        assert check_sync(a.sync) is None


def test_what_follows_a_sync_is_part_of_it_and_is_tried_again() -> None:
    followed: list[Ruleset] = []

    def after(ruleset: Ruleset) -> None:
        followed.append(ruleset)
        if len(followed) == 1:
            raise DataplaneError("not yet")

    dataplane = FakeDataplane()
    caches = _caches(FakeTransport())
    sync = PolicySync(caches, dataplane, node="n1", families=(Family.IPV4,), after=after)
    reports = []
    with pytest.raises(DataplaneError):
        sync.full_sync("full-sync")
    reports.append(sync.report.last_error)
    sync.full_sync("full-sync")
    reports.append(sync.report.last_error)
    assert reports == ["not yet", None]
    assert followed == [dataplane.applied[0]] * 2
    assert len(dataplane.applied) == 1


def test_nothing_is_applied_while_the_server_cannot_be_listed() -> None:
    transport = FakeTransport()
    transport.broken = True
    caches = _caches(transport)
    dataplane = FakeDataplane()
    sync = PolicySync(caches, dataplane, node="n1", families=(Family.IPV4,))
    controller = _controller(caches, sync, Ticker(3600, sync.recheck_kernel))
    stop = Stop()
    threads = threads_of(caches, controller, stop)
    for thread in threads:
        thread.start()
    done = threading.Event()
    while caches.pods.last_error is None:
        done.wait(0.001)
    assert "connection refused" in caches.pods.last_error
    assert not controller.has_synced
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert not dataplane.applied
    assert not dataplane.observed


RUNNING = pod("a", "10.0.0.1", version=2)


@pytest.mark.parametrize(
    ("change", "matters"),
    [
        (RUNNING, False),
        (pod("a", "10.0.0.2", version=2), True),
        (pod("a", "10.0.0.1", version=2, app="web"), True),
        (pod("a", "10.0.0.1", version=2, node="n2"), True),
        (RUNNING | {"metadata": metadata("a", "x", 2) | {"annotations": {"k": "v"}}}, False),
        (RUNNING | {"status": RUNNING["status"] | {"phase": "Succeeded"}}, True),
        (RUNNING | {"status": RUNNING["status"] | {"conditions": []}}, False),
    ],
)
def test_only_what_enforcement_sees_of_a_pod_causes_a_sync(change: Any, matters: bool) -> None:
    with agent(pods=[pod("a", "10.0.0.1")]) as a:
        a.settle()
        a.transport.stream("pods").send("MODIFIED", change)
        a.wait(lambda: a.caches.pods.handled_resource_version == "2")
        a.settle()
        assert a.sync.report.total == (2 if matters else 1)
        assert a.state()["applied"]["pods"] == "2"


def test_a_policy_whose_status_changes_causes_no_sync() -> None:
    with agent(networkpolicies=[policy("deny")]) as a:
        a.settle()
        changed = {**policy("deny", version=2), "status": {"conditions": []}}
        a.transport.stream("networkpolicies").send("MODIFIED", changed)
        a.wait(lambda: a.caches.policies.handled_resource_version == "2")
        a.settle()
        assert a.sync.report.total == 1


def test_a_problem_is_logged_once_and_the_others_are_enforced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bad = policy("bad", ingress=[{"ports": [{"port": 0}]}])
    with agent(networkpolicies=[bad, policy("deny")], pods=[pod("a", "10.0.0.1")]) as a:
        a.settle()
        a.controller.queue.add("full-sync")
        a.wait(lambda: a.sync.report.total == 2)
    said = [r.getMessage() for r in caplog.records if "x/bad" in r.getMessage()]
    assert said == [
        (
            "NetworkPolicy x/bad: spec.ingress[0].ports[0].port: 0 is not a port number from 1 to "
            "65535; the port is left out"
        )
    ]


def test_readiness_outlasts_a_failure_that_passes() -> None:
    with agent() as a:
        a.settle()
        a.dataplane.failures = 2
        a.dataplane.drift()
        a.sync.recheck_kernel()
        a.controller.queue.add("full-sync")
        a.wait(lambda: a.sync.report.failed_in_a_row == 1)
        since = a.sync.report.failing_since
        assert since is not None
        assert check_sync(a.sync, lambda: since + FAILING_SECONDS - 1) is None
        problem = check_sync(a.sync, lambda: since + FAILING_SECONDS)
        assert "exit code 4" in (problem or "")


def test_a_sync_that_never_ends_is_not_alive() -> None:
    with agent(held=True) as a:
        assert a.dataplane.entered.acquire(timeout=PATIENCE)
        since = a.sync.running_since
        assert since is not None
        assert check_running(a.sync, lambda: since + STUCK_SECONDS - 1) is None
        assert "running for 600 s" in (check_running(a.sync, lambda: since + 600) or "")
        a.dataplane.release_all()
        a.settle()
        a.wait(lambda: a.sync.running_since is None)
        assert check_running(a.sync, lambda: since + STUCK_SECONDS) is None


def test_a_ticker_that_stands_still_is_not_alive() -> None:
    moments = [0.0]
    rechecks: list[None] = []
    ticker = Ticker(300, lambda: rechecks.append(None), lambda: moments[0])
    moments[0] = 660
    assert ticker.check() is None
    moments[0] = 661
    assert ticker.check() == "no tick for 661 s, though the period is 300 s"
    assert ticker.tick() == ("full-sync",)
    assert ticker.check() is None
    assert len(rechecks) == 1


def test_what_others_changed_is_named_counted_and_repaired(
    caplog: pytest.LogCaptureFixture,
) -> None:
    reader = InMemoryMetricReader()
    metrics = Metrics(MeterProvider([reader]).get_meter("test"))
    with agent(metrics=metrics, networkpolicies=[policy("deny")]) as a:
        a.settle()
        a.dataplane.drift()
        a.sync.recheck_kernel()
        a.controller.queue.add("full-sync")
        a.wait(lambda: len(a.dataplane.applied) == 2)
        a.settle()
    said = [r.getMessage() for r in caplog.records if "another program" in r.getMessage()]
    assert said == [
        (
            "another program changed our rules; repairing: set NPC-4-INGRESS is gone; "
            "set NPC-4-EGRESS is gone; the IPV4 dispatch, or a jump to it, was changed"
        )
    ]
    assert values(reader)["npc_drift_repairs"] == {(): 3}


def values(reader: InMemoryMetricReader) -> dict[str, dict[tuple[str, ...], float]]:
    """By name and the labels' values, what each series shows or how many values it has."""
    data = reader.get_metrics_data()
    assert data is not None
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        for point in metric.data.data_points:
            labels = tuple(map(str, (point.attributes or {}).values()))
            value = point.value if isinstance(point, NumberDataPoint) else point.count
            found.setdefault(metric.name, {})[labels] = value
    return found


def test_a_sync_is_counted_and_what_it_found_is_shown() -> None:
    reader = InMemoryMetricReader()
    metrics = Metrics(MeterProvider([reader]).get_meter("test"))
    pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod("c", "10.0.0.3", node="n2")]
    bad = policy("bad", ingress=[{"ports": [{"port": 0}]}])
    with agent(metrics=metrics, pods=pods, networkpolicies=[policy("deny"), bad]) as a:
        metrics.observe(
            lambda: a.sync.report,
            lambda: a.controller.statistics().coalesced,
            a.caches.silence,
        )
        metrics.sync_period(90)
        metrics.backend(backend="fake")
        a.settle()
        a.transport.stream("pods").send("MODIFIED", pod("a", "10.0.0.4", version=9))
        a.wait(lambda: a.sync.report.total == 2)
        a.settle()
        found = values(reader)
    assert found["npc_sync"] == {("changed",): 2, ("unchanged",): 0, ("failed",): 0}
    assert found["npc_sync_duration"] == {
        (phase,): n
        for phase, n in [("snapshot", 2), ("compile", 2), ("plan", 2), ("apply", 2), ("total", 2)]
    }
    assert found["npc_events"] == {
        ("pods", "added"): 3,
        ("pods", "modified"): 1,
        ("networkpolicies", "added"): 2,
    }
    assert found["npc_coalesced_events"] == {(): 4}
    assert found["npc_policies"] == {(): 2}
    assert found["npc_local_pods"] == {(): 2}
    assert found["npc_isolated_pods"] == {("ingress",): 2, ("egress",): 0}
    assert found["npc_policy_errors"] == {(): 1}
    assert found["npc_denied_packets"] == {("ingress",): 3, ("egress",): 3}
    assert found["npc_sync_period"] == {(): 90}
    assert found["npc_backend_info"] == {("fake",): 1}
    assert found["npc_sets"][()] == len(a.dataplane.applied[-1].families[Family.IPV4].sets)
    assert found["npc_last_success_timestamp"][()] - 1.7e9 > 0
    assert set(found["npc_watch_lag"]) == {("pods",), ("namespaces",), ("networkpolicies",)}
    assert set(found["npc_cache_hits"]) == {("policies",), ("addresses",)}


def test_a_sync_is_one_trace_with_its_phases() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    metrics = Metrics(tracer=tracer)
    pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]
    with agent(metrics=metrics, tracer=tracer, pods=pods, networkpolicies=[policy("deny")]) as a:
        a.settle()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    root = spans["process full-sync"]
    assert len(root.links) == 3
    assert (root.attributes or {})["npc.changed"] is True
    assert (root.attributes or {})["npc.dispatches_written"] == 1
    for name in ("snapshot", "compile", "plan", "apply"):
        assert spans[name].parent == root.context
    assert (spans["snapshot"].attributes or {})["npc.pods"] == 2
    assert (spans["compile"].attributes or {})["npc.local_pods"] == 2


def test_a_sync_that_changed_something_says_what_and_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    pods = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2")]
    with agent(pods=pods, networkpolicies=[policy("deny")]) as a:
        a.settle()
        a.controller.queue.add("full-sync")
        a.wait(lambda: a.sync.report.total == 2)
        a.settle()
    [said] = [r.getMessage() for r in caplog.records if r.getMessage().startswith("full-sync")]
    assert re.fullmatch(
        r"full-sync: 2 local pods \(2 isolated for ingress, 0 isolated for egress\); "
        r"1 chain written, 3 sets created, 1 dispatch written; "
        r"events: 1 of networkpolicies, 2 of pods; \d+ ms",
        said,
    )

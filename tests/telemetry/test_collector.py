"""A real OpenTelemetry Collector takes what the agent exports, and its faults cost no sync."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from google.protobuf.json_format import MessageToJson
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from reconciler.tracing import MAX_LINKS
from tests.telemetry.installed import installed
from tests.telemetry.processes import Collector
from tests.telemetry.receiver import Receiver
from tests.unit.npc.fake import PATIENCE, pod, policy
from tests.unit.npc.test_sync import Agent, agent

OUTPUT = Path("build/test-output")
"""What tests leave for people to look at, where they are run."""


def _roots(receiver: Receiver) -> list[Span]:
    return [span for _, span in receiver.spans() if span.name == "process full-sync"]


def _sync(a: Agent, times: int) -> None:
    """As many syncs, each of which writes to the kernel: an isolated pod moves."""
    for _ in range(times):
        before = a.sync.report.total
        moved = pod("a", f"10.0.0.{before}", version=before + 2)
        a.transport.stream("pods").send("MODIFIED", moved)
        a.wait(lambda before=before: a.sync.report.total > before)


@pytest.mark.parametrize("compression", ["none", "gzip"])
def test_traces_and_metrics_arrive_whole(
    real_collector: Collector, behind: Receiver, compression: str
) -> None:
    with installed(
        OTEL_EXPORTER_OTLP_ENDPOINT=real_collector.url,
        OTEL_EXPORTER_OTLP_COMPRESSION=compression,
        OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=npc-x",
    ) as telemetry:
        with agent(networkpolicies=[policy("deny")]) as a:
            a.settle()
            _sync(a, 5)
        telemetry.stop(5)
        exported = telemetry.span_statistics()["otlp"].exported
    behind.wait(lambda: len(behind.spans()) == exported and behind.metrics())
    assert len({span.trace_id for span in _roots(behind)}) == 6
    for received, span in behind.spans():
        assert received.scope in {"reconciler", "npc"}
        assert received.resource["service.name"] == "npc"
        assert received.resource["k8s.pod.name"] == "npc-x"
        assert span.end_time_unix_nano > span.start_time_unix_nano
    received, _ = behind.metrics()["npc_telemetry_spans"]
    assert received.resource["k8s.node.name"] == "n1"


def test_a_sync_links_to_the_events_behind_it_and_holds_its_phases(
    real_collector: Collector, behind: Receiver
) -> None:
    with installed(OTEL_EXPORTER_OTLP_ENDPOINT=real_collector.url) as telemetry:
        with agent(networkpolicies=[policy("deny")]) as a:
            a.settle()
            _sync(a, 3)
        telemetry.stop(5)
        exported = telemetry.span_statistics()["otlp"].exported
    behind.wait(lambda: len(behind.spans()) == exported)
    spans = [span for _, span in behind.spans()]
    events = {span.span_id: span for span in spans if span.name == "send full-sync"}
    assert len(_roots(behind)) == len(events) == 4  # the policy, and the pod three times
    for root in _roots(behind):
        [link] = root.links
        assert link.trace_id == events[link.span_id].trace_id != root.trace_id
        assert root.kind == Span.SpanKind.SPAN_KIND_CONSUMER
        phases = sorted(
            (span for span in spans if span.parent_span_id == root.span_id),
            key=lambda span: span.start_time_unix_nano,
        )
        assert [span.name for span in phases] == ["snapshot", "compile", "plan", "apply"]
        assert {span.trace_id for span in phases} == {root.trace_id}


def test_a_burst_is_one_sync_whose_span_counts_all_and_links_to_the_first_few(
    real_collector: Collector, behind: Receiver
) -> None:
    with installed(OTEL_EXPORTER_OTLP_ENDPOINT=real_collector.url) as telemetry:
        with agent(networkpolicies=[policy("deny")], held=True) as a:
            assert a.dataplane.entered.acquire(timeout=PATIENCE)
            stream = a.transport.stream("pods")
            for n in range(1, 1001):
                stream.send("ADDED", pod(f"p{n}", f"10.0.{n >> 8}.{n & 255}", version=n + 1))
            a.wait(lambda: a.caches.pods.handled_resource_version == "1001")
            a.dataplane.release_all()
            a.settle()
            a.wait(lambda: a.sync.report.total == 2)
        telemetry.stop(5)
        exported = telemetry.span_statistics()["otlp"].exported
    behind.wait(lambda: len(behind.spans()) == exported)
    OUTPUT.mkdir(parents=True, exist_ok=True)
    lines = [MessageToJson(span, indent=None) for _, span in behind.spans()]
    (OUTPUT / "burst-spans.jsonl").write_text("\n".join(lines) + "\n")
    first, burst = sorted(_roots(behind), key=lambda span: span.start_time_unix_nano)
    counted = {attribute.key: attribute.value.int_value for attribute in burst.attributes}
    assert counted["messaging.batch.message_count"] == 1000
    assert counted["reconciler.links.dropped"] == 1000 - MAX_LINKS
    sent = {s.span_id for _, s in behind.spans() if s.name == "send full-sync"}
    assert {link.span_id for link in burst.links} < sent
    assert len(burst.links) == MAX_LINKS
    assert len(first.links) == 1


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(lambda collector: collector.signal(signal.SIGSTOP), id="frozen"),
        pytest.param(lambda collector: collector.kill(), id="killed"),
    ],
)
def test_a_collector_that_fails_in_the_middle_stops_neither_syncs_nor_the_agent(
    fault: Callable[[Collector], None], real_collector: Collector, behind: Receiver
) -> None:
    with installed(
        OTEL_EXPORTER_OTLP_ENDPOINT=real_collector.url, OTEL_BSP_SCHEDULE_DELAY="1"
    ) as telemetry:
        with agent(networkpolicies=[policy("deny")]) as a:
            a.settle()
            behind.wait(lambda: _roots(behind))
            fault(real_collector)
            _sync(a, 20)
            assert a.sync.report.total == 21
            before = time.monotonic()
        telemetry.stop(0.5)
        assert time.monotonic() - before < PATIENCE
        found = telemetry.span_statistics()["otlp"]
    assert found.exported + found.failed + found.dropped >= 21
    assert found.failed + found.dropped > 0


def test_a_collector_that_comes_back_is_sent_what_waited(
    real_collector: Collector, behind: Receiver
) -> None:
    with (
        installed(
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{real_collector.url}/v1/traces"
        ) as telemetry,
        agent(networkpolicies=[policy("deny")]) as a,
    ):
        a.settle()
        real_collector.kill()
        _sync(a, 3)
        real_collector.start()
        telemetry.stop(5)
        assert telemetry.span_statistics()["otlp"].failed == 0
        behind.wait(lambda: len(_roots(behind)) == 4)

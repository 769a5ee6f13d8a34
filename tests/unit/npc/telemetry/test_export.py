"""The telemetry of real syncs on its way to a receiver, whatever that does with it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from opentelemetry import trace
from prometheus_client.parser import text_string_to_metric_families

from npc.telemetry.assembly import Telemetry
from tests.telemetry.receiver import Mode, Receiver, receiver, values
from tests.unit.npc.fake import PATIENCE, pod, policy
from tests.unit.npc.telemetry.conftest import Start
from tests.unit.npc.test_sync import agent

_SYNCS = 40


def sync(times: int = 1) -> None:
    """Run the agent over a fake kernel, which takes a write in each of so many syncs."""
    with agent(networkpolicies=[policy("deny")]) as a:
        a.settle()
        for number in range(1, times):
            added = pod("a", f"10.0.0.{number}", version=number + 1)
            a.transport.stream("pods").send("MODIFIED" if number > 1 else "ADDED", added)
            a.wait(lambda number=number: a.sync.report.total > number)
        assert len(a.dataplane.applied) == times


def samples(telemetry: Telemetry) -> dict[str, float]:
    """What ``/metrics`` says, by name and labels."""
    return {
        sample.name + json.dumps(sample.labels, sort_keys=True): sample.value
        for family in text_string_to_metric_families(telemetry.metrics_page()[1])
        for sample in family.samples
    }


def roots(collector: Receiver) -> list[Any]:
    return [s for _, s in collector.spans() if s.name == "process full-sync"]


def test_the_spans_of_syncs_arrive_and_say_who_sent_them(collector: Receiver, start: Start) -> None:
    telemetry = start(
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_RESOURCE_ATTRIBUTES="k8s.pod.name=npc-x",
    )
    sync(3)
    telemetry.stop(5)
    assert len(roots(collector)) == 3
    assert len({span.trace_id for span in roots(collector)}) == 3
    for received, _ in collector.spans():
        assert received.resource["service.name"] == "npc"
        assert received.resource["service.instance.id"] == "n1"
        assert received.resource["k8s.node.name"] == "n1"
        assert received.resource["k8s.pod.name"] == "npc-x"
        assert received.resource["service.version"]


def test_metrics_are_pushed_at_the_interval(collector: Receiver, start: Start) -> None:
    start(
        OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{collector.url}/v1/metrics",
        OTEL_METRIC_EXPORT_INTERVAL="20",
    )
    collector.wait(lambda: _exports(collector) > 1)
    assert trace.get_tracer_provider() is not None
    assert collector.spans() == []


def _exports(collector: Receiver) -> int:
    _, metric = collector.metrics().get("npc_telemetry_metric_exports", (None, None))
    if metric is None:
        return 0
    found = {values(p.attributes)["outcome"]: p.as_int for p in metric.sum.data_points}
    return int(found["exported"])


def test_a_pushed_measurement_leads_to_its_trace(collector: Receiver, start: Start) -> None:
    telemetry = start(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    sync()
    telemetry.stop(5)
    _, durations = collector.metrics()["npc_sync_duration"]
    exemplars = [e for point in durations.histogram.data_points for e in point.exemplars]
    assert exemplars
    assert {e.trace_id for e in exemplars} == {root.trace_id for root in roots(collector)}


def test_the_last_metrics_are_pushed_at_the_stop(collector: Receiver, start: Start) -> None:
    telemetry = start(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_EXPORTER="none")
    telemetry.stop(5)
    assert "npc_telemetry_metric_exports" in collector.metrics()


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_compression_and_headers_are_those_asked_for(
    collector: Receiver, start: Start, monkeypatch: pytest.MonkeyPatch, compression: str
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x")
    telemetry = start(
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_METRICS_EXPORTER="none",
        OTEL_EXPORTER_OTLP_COMPRESSION=compression,
    )
    sync()
    telemetry.stop(5)
    assert len(roots(collector)) == 1
    [headers] = collector.headers
    assert headers["Content-Encoding"] == compression
    assert headers["authorization"] == "Bearer x"


def test_what_an_exporter_cannot_use_costs_its_signal_and_no_secret_is_logged(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_TRACES_CREDENTIAL_PROVIDER", "no-such")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "secret")
    telemetry = start(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert telemetry.tracer_provider is None
    assert telemetry.meter_provider is not None
    assert "no traces are exported: " in caplog.text
    assert "secret" not in caplog.text


def test_a_wrong_propagator_does_not_end_the_agent() -> None:
    environment = os.environ | {"OTEL_PROPAGATORS": "pigeon"}
    subprocess.run([sys.executable, "-c", "import npc.agent"], env=environment, check=True)


def test_a_sampler_that_takes_none_sends_none(collector: Receiver, start: Start) -> None:
    telemetry = start(
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=collector.url, OTEL_TRACES_SAMPLER="always_off"
    )
    sync()
    telemetry.stop(5)
    assert collector.requests == 0


def test_with_nothing_set_nothing_is_exported_and_no_thread_runs(start: Start) -> None:
    before = set(threading.enumerate())
    telemetry = start()
    assert set(threading.enumerate()) <= before
    assert telemetry.tracer_provider is None
    assert telemetry.span_statistics() == {}
    assert "process_resident_memory_bytes{}" in samples(telemetry)


def test_a_disabled_sdk_does_nothing_and_the_process_is_still_measured(
    collector: Receiver, start: Start
) -> None:
    telemetry = start(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_SDK_DISABLED="true")
    sync()
    telemetry.stop(5)
    assert collector.requests == 0
    names = {name.partition("{")[0] for name in samples(telemetry)}
    assert "process_resident_memory_bytes" in names
    assert not any(name.startswith("npc") or name == "target_info" for name in names)


def test_the_console_is_stderr(start: Start, capfd: pytest.CaptureFixture[str]) -> None:
    telemetry = start(OTEL_TRACES_EXPORTER="console", OTEL_METRICS_EXPORTER="console")
    sync()
    telemetry.stop(5)
    out, err = capfd.readouterr()
    assert out == ""
    assert "process full-sync" in err
    assert "npc_telemetry_spans" in err


def test_what_becomes_of_spans_is_on_the_page(collector: Receiver, start: Start) -> None:
    telemetry = start(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="1")
    sync()
    exported = 'npc_telemetry_spans_total{"exporter": "otlp", "outcome": "exported"}'
    with agent() as a:
        a.wait(lambda: samples(telemetry)[exported] > 0)
    page = samples(telemetry)
    assert page['npc_telemetry_spans_total{"exporter": "otlp", "outcome": "dropped"}'] == 0
    assert page['npc_telemetry_spans_total{"exporter": "otlp", "outcome": "failed"}'] == 0
    assert 'npc_telemetry_spans_queued{"exporter": "otlp"}' in page


def test_pages_that_are_read_at_once_are_all_whole(start: Start) -> None:
    telemetry = start(OTEL_TRACES_EXPORTER="console")
    expected = samples(telemetry).keys()
    found: list[object] = []

    def read() -> None:
        found.extend(samples(telemetry).keys() == expected for _ in range(20))

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 80


@pytest.mark.parametrize("mode", [Mode.SLOW, Mode.BUSY, Mode.HANG, None])
def test_a_collector_at_fault_costs_spans_but_neither_syncs_nor_the_stop(
    mode: Mode | None, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    with receiver() as collector:
        collector.mode = mode or Mode.OK
        if mode is None:
            collector.close()
        telemetry = start(
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_BSP_SCHEDULE_DELAY="1",
            OTEL_BSP_MAX_QUEUE_SIZE="8",
            OTEL_BSP_MAX_EXPORT_BATCH_SIZE="4",
        )
        sync(_SYNCS)
        if mode is Mode.SLOW:
            collector.wait(collector.spans)
        before = time.monotonic()
        telemetry.stop(0.5)
        assert time.monotonic() - before < PATIENCE
        after = telemetry.span_statistics()["otlp"]
        arrived = len(collector.spans())
    assert after.queued == 0
    assert after.exported <= arrived <= after.exported + 4  # one batch may have been under way
    assert after.exported + after.failed + after.dropped >= _SYNCS
    if mode is Mode.SLOW:
        assert after.exported > 0
    else:
        assert after.failed + after.dropped >= _SYNCS
        assert [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_collector_that_comes_back_is_sent_what_is_new(start: Start) -> None:
    with receiver(Mode.BUSY) as collector:
        telemetry = start(
            OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{collector.url}/v1/traces",
            OTEL_EXPORTER_OTLP_TIMEOUT="100",
            OTEL_BSP_SCHEDULE_DELAY="1",
        )
        sync(3)
        collector.wait(lambda: collector.requests)
        collector.mode = Mode.OK
        sync()
        telemetry.stop(5)
        assert roots(collector)
        assert telemetry.span_statistics()["otlp"].exported == len(collector.spans())

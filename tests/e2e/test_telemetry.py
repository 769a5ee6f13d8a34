"""The real agent's telemetry: it arrives, it agrees with the log, and it holds nothing up."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from npc.lab import netns
from tests.deploy.tools import promtool
from tests.e2e.clusters import policy, reached, small_cluster, wait_until
from tests.telemetry.receiver import Mode, Receiver, receiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npc.lab.agents import Agent
    from npc.lab.cluster import Cluster

pytestmark = pytest.mark.netns

_ROOT = "process full-sync"


@pytest.fixture
def lab() -> Iterator[Cluster]:
    with small_cluster("nft") as made:
        yield made


@pytest.fixture
def collector(lab: Cluster) -> Iterator[Receiver]:
    """On the node's own loopback."""
    listener = _inside(lab, lambda: socket.create_server(("127.0.0.1", 4318)))
    with receiver(listener=listener) as made:
        yield made


def _inside(lab: Cluster, what: Any) -> Any:
    return netns.inside(lab.topology.nodes["node-1"].namespace, what)


def _restart(lab: Cluster, **environment: str) -> Agent:
    agent = lab.agents["node-1"]
    agent.stop()
    agent.log.write_text("")
    agent.environment |= environment
    agent.start()
    lab.settle()
    return agent


def _page(lab: Cluster) -> str:
    def ask() -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", 20245, timeout=5)) as connection:
            connection.request("GET", "/metrics")
            answer = connection.getresponse()
            assert answer.status == 200
            return answer.read().decode()

    return str(_inside(lab, ask))


def test_what_the_log_says_of_a_sync_is_found_among_the_traces(
    lab: Cluster, collector: Receiver
) -> None:
    agent = _restart(
        lab,
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_SERVICE_NAME="policies",
        NPC_LOG_FORMAT="json",
    )
    lab.apply(policy(80))
    lab.settle()
    assert agent.stop() == 0
    spans = [(received, span) for received, span in collector.spans() if span.name == _ROOT]
    assert spans
    for received, _ in spans:
        assert received.resource["service.name"] == "policies"
        assert received.resource["k8s.node.name"] == "node-1"
    lines = [json.loads(line) for line in agent.log.read_text().splitlines()]
    of_syncs = {line["trace_id"] for line in lines if line["logger"] == "npc.controller"}
    assert of_syncs
    assert of_syncs <= {span.trace_id.hex() for _, span in spans}
    assert "npc_telemetry_spans" in collector.metrics()


def test_metrics_are_served_though_nothing_is_exported(lab: Cluster) -> None:
    lab.apply(policy(80))
    lab.settle()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(_page(lab))
        for sample in family.samples
    }
    assert found["process_resident_memory_bytes",] > 0
    assert found["workqueue_depth", "full-sync"] == 0
    assert found["controller_runtime_reconcile_total", "full-sync", "success"] >= 2
    assert found["npc_sync_total", "changed"] >= 2
    assert found["npc_policies",] == 1
    assert not any(name.startswith("npc_telemetry") for name, *_ in found)


def test_prometheus_linter_finds_no_fault_with_the_metrics(lab: Cluster) -> None:
    checked = subprocess.run(
        [promtool(), "check", "metrics"],
        input=_page(lab),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr) == (0, "")


def test_a_mistake_in_a_variable_is_logged_and_enforcement_goes_on(lab: Cluster) -> None:
    agent = _restart(lab, OTEL_EXPORTER_OTLP_ENDPOINT="collector:4317")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT=collector:4317: no URL" in agent.log.read_text()
    lab.apply(policy(81))
    lab.settle()
    assert reached(lab) == {81}


@pytest.mark.parametrize("mode", [Mode.HANG, Mode.BUSY])
def test_a_dead_collector_delays_neither_enforcement_nor_the_stop(
    lab: Cluster, collector: Receiver, mode: Mode
) -> None:
    collector.mode = mode
    agent = _restart(lab, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="10")
    wait_until(lambda: collector.requests > 0)
    lab.apply(policy(80))
    lab.settle()
    assert reached(lab) == {80}
    assert agent.stop() == 0  # within 10 s, or it would have been killed
    assert "spans could not be exported before the stop" in agent.log.read_text()
    assert reached(lab) == {80}

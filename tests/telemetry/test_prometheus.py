"""A real Prometheus scrapes the agent's metrics."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from npc.telemetry.assembly import Telemetry
from reconciler.health import HealthServer
from reconciler.stop import Stop
from tests.telemetry.installed import installed
from tests.telemetry.processes import has_prometheus, prometheus
from tests.telemetry.receiver import receiver
from tests.unit.npc.fake import PATIENCE
from tests.unit.npc.test_sync import agent

pytestmark = pytest.mark.skipif(
    not has_prometheus(), reason="no prometheus on PATH (Debian: prometheus)"
)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Of an agent that has synced, with an exporter of spans."""
    with (
        receiver() as collector,
        installed(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as made,
        agent() as a,
    ):
        a.settle()
        yield made


def test_a_scrape_finds_the_metrics_and_who_they_are_of(
    telemetry: Telemetry, tmp_path: Path
) -> None:
    health = HealthServer(("127.0.0.1", 0))
    health.add_page("/metrics", telemetry.metrics_page)
    stop = Stop()
    server = threading.Thread(target=health.run, args=(stop,))
    server.start()
    try:
        with prometheus("{}:{}".format(*health.address), tmp_path) as scraper:
            [(_, up)] = scraper.wait_for('up{job="npc"} == 1')
            assert up == 1
            [(target, _)] = scraper.wait_for("target_info")
            assert target["service_name"] == "npc"
            assert target["k8s_node_name"] == "n1"
            spans = scraper.wait_for("npc_telemetry_spans_total")
            assert {labels["outcome"] for labels, _ in spans} == {"exported", "failed", "dropped"}
            assert scraper.wait_for("process_resident_memory_bytes")
    finally:
        stop.set()
        server.join(PATIENCE)

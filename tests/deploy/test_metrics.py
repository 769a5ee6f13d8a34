"""docs/metrics.md and what a running agent serves, held against each other."""

from __future__ import annotations

import http.client
import re
from collections import defaultdict
from contextlib import closing

import pytest
from prometheus_client.parser import text_string_to_metric_families

from npc.lab import netns
from tests.deploy.manifests import ROOT
from tests.deploy.promql import documented, selected
from tests.deploy.test_monitoring import ALERTS, QUERIES
from tests.e2e.clusters import policy, small_cluster

ANY_PROGRAM = re.compile(r"process_\w+|python_\w+|target_info")
BEFORE_THE_FIRST = {"workqueue_retries_total"}
"""Counters that have no series before there is something to count."""


Series = list[tuple[str, dict[str, str]]]


@pytest.fixture(scope="module")
def served() -> Series:
    """The names and labels of what an agent serves that exports to nobody."""
    with small_cluster("nft") as lab:
        agent = lab.agents["node-1"]
        agent.stop()
        agent.environment |= {
            "OTEL_TRACES_EXPORTER": "otlp",
            "OTEL_METRICS_EXPORTER": "otlp",
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
        }
        agent.start()
        lab.apply(policy(80))
        lab.settle()
        page = netns.inside(lab.topology.nodes["node-1"].namespace, _page)
    families = text_string_to_metric_families(page)
    return [(sample.name, sample.labels) for family in families for sample in family.samples]


@pytest.mark.netns
def test_the_page_lists_what_the_agent_serves(served: Series) -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for name, labels in served:
        if not ANY_PROGRAM.fullmatch(name):
            found[name] |= labels.keys() - {"le"}
    listed = documented(ROOT / "docs" / "metrics.md")
    of_any_program = {name for name in listed if ANY_PROGRAM.fullmatch(name)}
    assert found == {
        name: labels
        for name, labels in listed.items()
        if name not in BEFORE_THE_FIRST | of_any_program
    }
    assert of_any_program <= {name for name, _ in served}


@pytest.mark.netns
def test_alerts_and_panels_select_series_that_there_are(served: Series) -> None:
    """By labels of our own: ``job`` and ``daemonset`` are of who scrapes."""
    there = {(name, *item) for name, labels in served for item in labels.items()}
    asked = {
        selection
        for expression in [*(alert["expr"] for alert in ALERTS), *QUERIES]
        for selection in selected(expression)
        if selection[0] not in BEFORE_THE_FIRST and selection[1] not in ("job", "daemonset")
    }
    assert asked
    assert asked - there == set()


def _page() -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", 20245, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()

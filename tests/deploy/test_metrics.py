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
from tests.deploy.promql import documented
from tests.e2e.clusters import policy, small_cluster

ANY_PROGRAM = re.compile(r"process_\w+|python_\w+|target_info")
BEFORE_THE_FIRST = {"workqueue_retries_total"}
"""Counters that have no series before there is something to count."""


@pytest.mark.netns
def test_the_page_lists_what_the_agent_serves() -> None:
    listed = documented(ROOT / "docs" / "metrics.md")
    served = _served()
    ours = {name for name in served if not ANY_PROGRAM.fullmatch(name)}
    assert ours - listed.keys() == set()
    assert listed.keys() - served.keys() == BEFORE_THE_FIRST
    assert {name: served[name] for name in ours} == {name: listed[name] for name in ours}


def _served() -> dict[str, frozenset[str]]:
    """The series of an agent that exports to nobody, each with the labels that tell them apart."""
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
    found: dict[str, set[str]] = defaultdict(set)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] |= sample.labels.keys() - {"le"}
    return {name: frozenset(labels) for name, labels in found.items()}


def _page() -> str:
    with closing(http.client.HTTPConnection("127.0.0.1", 20245, timeout=10)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()

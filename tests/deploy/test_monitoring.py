"""Alerts and the dashboard: they ask for metrics that exist, and alerts fire when they should."""

from __future__ import annotations

import json
import re
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, KUSTOMIZE, ROOT, kustomize, pick
from tests.deploy.promql import documented, named
from tests.deploy.tools import promtool

DOCUMENTED = documented(ROOT / "docs" / "metrics.md")
# Made by Prometheus itself and by kube-state-metrics.
OTHERS = {
    "up": frozenset[str](),
    "kube_daemonset_status_desired_number_scheduled": frozenset({"daemonset"}),
    "kube_daemonset_status_number_ready": frozenset({"daemonset"}),
    "kube_daemonset_status_updated_number_scheduled": frozenset({"daemonset"}),
}
SCRAPED = {"job", "node", "le"}
"""Labels that every series may have, by the PodMonitor or as a histogram's bucket."""

RULES = pick(kustomize(KUSTOMIZE / "overlays/prometheus-operator"), "PrometheusRule")["spec"]
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "dashboards" / "npc.json").read_text())
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SITUATIONS = Path(__file__).with_name("alerts.yaml")


def _query(target: dict[str, Any]) -> str:
    """A panel's query as Grafana sends it."""
    query: str = target["expr"]
    return query.replace("$__rate_interval", "5m").replace("$node", ".*")


QUERIES = [_query(target) for panel in PANELS for target in panel["targets"]]


@pytest.mark.parametrize("expression", [*(alert["expr"] for alert in ALERTS), *QUERIES])
def test_every_metric_and_label_that_is_asked_for_is_documented(expression: str) -> None:
    known = DOCUMENTED | OTHERS
    asked = named(expression)
    assert asked.metrics
    assert asked.metrics <= known.keys()
    assert asked.labels <= SCRAPED.union(*(known[metric] for metric in asked.metrics))


def test_words_of_an_expression_are_told_apart() -> None:
    asked = named('sum by (a, le) (rate(m_total{b="x{y}", c!~"z"}[5m])) / on (d) n offset 5m > 1e3')
    assert asked.metrics == {"m_total", "n"}
    assert asked.labels == {"a", "b", "c", "d", "le"}


def test_the_dashboard_shows_every_metric() -> None:
    """Of a histogram any of its series; the process's start is for Prometheus itself."""
    shown = {metric for query in QUERIES for metric in named(query).metrics}
    families = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in shown}
    wanted = {re.sub(r"_(bucket|sum|count)$", "", metric) for metric in DOCUMENTED}
    assert wanted - families == {"process_start_time_seconds"}


def test_panels_have_their_own_place_and_number() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for one, other in combinations((panel["gridPos"] for panel in panels), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)


def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    recorded = [
        {"record": f"panel:{number}", "expr": query} for number, query in enumerate(QUERIES)
    ]
    rules = {"groups": [*RULES["groups"], {"name": "dashboard", "rules": recorded}]}
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump(rules))
    done = _promtool("check", "rules", "--lint=all", "--lint-fatal", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS) + len(QUERIES)} rules found" in done.stdout


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(RULES))
    situations = tmp_path / "alerts.yaml"
    situations.write_text(SITUATIONS.read_text())
    done = _promtool("test", "rules", str(situations))
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_moment_when_it_fires_and_one_when_it_does_not() -> None:
    tests = yaml.safe_load(SITUATIONS.read_text())["tests"]
    moments = [moment for test in tests for moment in test["alert_rule_test"]]
    names = {alert["alert"] for alert in ALERTS}
    assert {m["alertname"] for m in moments if m.get("exp_alerts")} == names
    assert {m["alertname"] for m in moments if not m.get("exp_alerts")} == names


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_says_what_is_wrong_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert alert["annotations"].keys() == {"summary", "description", "runbook_url"}
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor == alert["alert"].lower()
    assert alert["alert"] in headings


def _promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [promtool(), *arguments], capture_output=True, text=True, timeout=60, check=False
    )

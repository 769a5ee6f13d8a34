"""Draws the Grafana dashboard's panels as a real Prometheus answers them.

An agent in the lab works through a churn of pods and policies while Prometheus scrapes it; then
every expression of the dashboard is asked. Run as ``scripts/draw-dashboard [FILE]``, as root.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reconciler.health import HealthServer
from reconciler.stop import Stop
from scripts.pictures import burst
from scripts.pictures.panels import Panel, Series, draw
from tests.e2e.clusters import policy, reached, small_cluster
from tests.telemetry.processes import Prometheus, prometheus
from tests.telemetry.receiver import receiver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npc.lab.cluster import Cluster

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "docs" / "images" / "dashboard.svg"
DASHBOARD = ROOT / "deploy" / "dashboards" / "npc.json"

_SECONDS = 150.0
_VARIABLES = {"$node": ".*", "$__rate_interval": "10s"}
_PODS = 40


def main(arguments: Sequence[str]) -> None:
    """Run the agent for a while, and write the picture to the place that is given."""
    place = Path(arguments[0]) if arguments else PLACE
    with churned(_SECONDS) as measured:
        panels = measured.panels()
    place.write_text(draw(panels, "The dashboard of an agent under churn"))


@dataclass(frozen=True)
class Measured:
    """A Prometheus that scraped an agent from ``start`` to ``end``, in seconds since 1970."""

    prometheus: Prometheus
    start: float
    end: float

    def panels(self) -> list[Panel]:
        """Every panel of the dashboard with what Prometheus answers to it."""
        found: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
        return [self._panel(panel) for panel in found]

    def _panel(self, panel: dict[str, Any]) -> Panel:
        place = panel["gridPos"]
        return Panel(
            panel["type"],
            panel["title"],
            panel.get("fieldConfig", {}).get("defaults", {}).get("unit", "none"),
            (place["x"], place["y"], place["w"], place["h"]),
            [
                Series(_legend(target.get("legendFormat", ""), labels), labels, points)
                for target in panel.get("targets", [])
                for labels, points in self._ask(target["expr"])
            ],
        )

    def _ask(self, expression: str) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        for name, value in _VARIABLES.items():
            expression = expression.replace(name, value)
        step = max(1.0, (self.end - self.start) / 150)
        return self.prometheus.query_range(expression, self.start, self.end, step)


@contextmanager
def churned(seconds: float) -> Iterator[Measured]:
    """A real agent that had that long to do with pods and policies that come and go."""
    with ExitStack() as stack:
        lab = stack.enter_context(small_cluster("nft", "--sync-period", "5s"))
        collector = stack.enter_context(receiver(listener=burst.listen(lab, 4318)))
        burst.restart(lab, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        address = stack.enter_context(_relay(lab))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        scraper = stack.enter_context(prometheus(address, directory, node=burst.NODE))
        scraper.wait_for("npc_local_pods")
        start = time.time()
        _churn(lab, start + seconds)
        yield Measured(scraper, start, time.time())


def _churn(lab: Cluster, end: float) -> None:
    burst.create(lab, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    burst.create(lab, *map(burst.policy, range(burst.APPS)))
    pods = [burst.pod(number) for number in range(_PODS)]
    burst.create(lab, *pods)
    turn = 0
    while time.time() < end:
        changed = pods[turn * 5 % _PODS :][:5]
        for pod in changed:
            lab.api.delete("pods", pod["metadata"]["name"], burst.NAMESPACE)
        burst.create(lab, *changed)
        if turn % 4 == 0:
            lab.apply(policy(80 + turn // 4 % 2))
            reached(lab)  # on two ports, of which one is closed
        lab.settle()
        time.sleep(0.2)
        turn += 1


@contextmanager
def _relay(lab: Cluster) -> Iterator[str]:
    """Where the metrics of the node's agent can be had outside its namespace."""
    server = HealthServer(("127.0.0.1", 0))
    server.add_page("/metrics", lambda: ("text/plain; version=0.0.4", burst.metrics_page(lab)))
    stop = Stop()
    thread = threading.Thread(target=server.run, args=(stop,))
    thread.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        stop.set()
        thread.join()


def _legend(pattern: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), pattern)


if __name__ == "__main__":
    main(sys.argv[1:])

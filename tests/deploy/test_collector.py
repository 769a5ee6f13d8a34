"""The collector's configuration, read by the real collector."""

from __future__ import annotations

import os
import subprocess

import pytest
import yaml

from tests.deploy.manifests import DEPLOY, KUSTOMIZE, kustomize, pick
from tests.deploy.pods import environment
from tests.telemetry.processes import find_collector

CONFIGURATION = DEPLOY / "otel" / "collector.yaml"


@pytest.mark.parametrize(("upstream", "code"), [("https://otlp.example.org", 0), ("", 1)])
def test_the_collector_takes_it_if_it_is_told_where_to_send(upstream: str, code: int) -> None:
    collector = find_collector()
    if collector is None:
        pytest.skip("no OpenTelemetry Collector; tests/telemetry/otelcol/build makes one, with Go")
    done = subprocess.run(
        [collector, "validate", "--config", CONFIGURATION],
        env=os.environ | {"OTLP_UPSTREAM": upstream},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done.stderr


def test_agents_send_to_where_it_listens() -> None:
    daemon_set = pick(kustomize(KUSTOMIZE / "overlays/otel"), "DaemonSet")
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    known = environment(container)
    protocols = yaml.safe_load(CONFIGURATION.read_text())["receivers"]["otlp"]["protocols"]
    listens = protocols["http"]["endpoint"].replace("${env:HOST_IP:-0.0.0.0}", known["HOST_IP"])
    assert known["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://{listens}"


def test_both_signals_that_agents_send_are_handed_on() -> None:
    pipelines = yaml.safe_load(CONFIGURATION.read_text())["service"]["pipelines"]
    assert pipelines.keys() == {"traces", "metrics"}

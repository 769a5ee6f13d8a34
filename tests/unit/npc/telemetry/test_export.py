"""A real sync's telemetry on its way to a receiver."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from opentelemetry import metrics, trace

from npc.telemetry.assembly import Telemetry
from npc.telemetry.settings import read
from tests.receiver import Receiver, receiver
from tests.unit.npc.fake import pod, policy
from tests.unit.npc.test_sync import agent


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def telemetry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Telemetry]]:
    """Starts telemetry by an environment; it is the program's until the test ends."""
    started: list[Telemetry] = []

    def start(**environment: str) -> Telemetry:
        settings = read(environment)
        assert settings.problems == ()
        made = Telemetry(settings, "n1")
        started.append(made)
        monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.tracer_provider)
        monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", made.meter_provider)
        return made

    yield start
    for each in started:
        each.stop(5)


def test_the_span_of_a_sync_arrives(
    collector: Receiver, telemetry: Callable[..., Telemetry]
) -> None:
    started = telemetry(OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    with agent(pods=[pod("a", "10.0.0.1")], networkpolicies=[policy("deny")]) as a:
        a.settle()
    started.stop(5)
    [received] = [
        received for received, span in collector.spans() if span.name == "process network-policy"
    ]
    assert received.scope == "reconciler"
    assert received.resource["service.name"] == "npc"
    assert received.resource["k8s.node.name"] == "n1"

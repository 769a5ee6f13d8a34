from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import pytest
from opentelemetry import metrics, trace

from npc.telemetry.assembly import Telemetry
from npc.telemetry.settings import read
from tests.receiver import Receiver, receiver


class Start(Protocol):
    def __call__(self, **environment: str) -> Telemetry: ...


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
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
        each.stop(1)

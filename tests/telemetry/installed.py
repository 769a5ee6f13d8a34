"""Telemetry that is the program's for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from opentelemetry import metrics, trace

from npc.telemetry.assembly import Telemetry
from npc.telemetry.settings import read


@contextmanager
def installed(**environment: str) -> Iterator[Telemetry]:
    """What this environment asks for, installed as nothing but a test may: more than once."""
    settings = read(environment)
    assert settings.problems == ()
    telemetry = Telemetry(settings, "n1")
    with (
        mock.patch.object(trace, "_TRACER_PROVIDER", telemetry.tracer_provider),
        mock.patch.object(metrics._internal, "_METER_PROVIDER", telemetry.meter_provider),
    ):
        try:
            yield telemetry
        finally:
            telemetry.stop(1)

"""The SDK's exporters, as the settings want them."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics.export import (
    ConsoleMetricExporter,
    MetricExportResult,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.trace.export import ConsoleSpanExporter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, MetricsData
    from opentelemetry.sdk.trace.export import SpanExporter

    from npc.telemetry.settings import Otlp, Settings


def span_exporters(settings: Settings) -> Iterator[tuple[str, SpanExporter]]:
    """Those asked for, by name."""
    if (otlp := settings.traces_otlp) is not None:
        yield "otlp", OTLPSpanExporter(**_arguments(otlp))
    if settings.traces_console:
        yield "console", ConsoleSpanExporter(out=sys.stderr)


def metric_exporters(settings: Settings) -> Iterator[MetricExporter]:
    """Those asked for; that for Prometheus is no exporter to the SDK, but a page to be read."""
    if (otlp := settings.metrics_otlp) is not None:
        yield CountedMetricExporter(**_arguments(otlp))
    if settings.metrics_console:
        yield ConsoleMetricExporter(out=sys.stderr)


def pushing_reader(exporter: MetricExporter, settings: Settings) -> MetricReader:
    """Reads all metrics at the interval, on a thread of its own, and hands them over."""
    return PeriodicExportingMetricReader(
        exporter,
        export_interval_millis=settings.metric_interval * 1000,
        export_timeout_millis=settings.metric_timeout * 1000,
    )


class CountedMetricExporter(OTLPMetricExporter):
    """Knows how many of its exports were delivered and how many failed."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._counting = threading.Lock()
        self._outcomes = Counter(exported=0, failed=0)

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        result = super().export(metrics_data, timeout_millis, **kwargs)
        with self._counting:
            self._outcomes["exported" if result is MetricExportResult.SUCCESS else "failed"] += 1
        return result

    def outcomes(self) -> dict[str, int]:
        """How many exports ended so."""
        with self._counting:
            return dict(self._outcomes)


def _arguments(otlp: Otlp) -> dict[str, Any]:
    return {
        "endpoint": otlp.endpoint,
        "timeout": otlp.timeout,
        "compression": Compression(otlp.compression),
    }

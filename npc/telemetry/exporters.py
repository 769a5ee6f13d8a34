"""The SDK's exporters, as the settings want them."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

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
    from collections.abc import Callable, Iterator

    from opentelemetry.sdk.metrics.export import MetricExporter, MetricReader, MetricsData
    from opentelemetry.sdk.trace.export import SpanExporter

    from npc.telemetry.settings import Otlp, Settings

Exporter = TypeVar("Exporter")

_log = logging.getLogger(__name__)

# Of a header that it cannot read it logs all, and headers are where tokens are. ``settings`` says
# which variable is wrong.
logging.getLogger("opentelemetry.util.re").disabled = True


def span_exporters(settings: Settings) -> Iterator[tuple[str, SpanExporter]]:
    """Those asked for, by name."""
    for exporter in _otlp(OTLPSpanExporter, settings.traces_otlp, "traces"):
        yield "otlp", exporter
    if settings.traces_console:
        yield "console", ConsoleSpanExporter(out=sys.stderr)


def metric_exporters(settings: Settings) -> Iterator[MetricExporter]:
    """Those asked for; that for Prometheus is no exporter to the SDK, but a page to be read."""
    yield from _otlp(CountedMetricExporter, settings.metrics_otlp, "metrics")
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


def _otlp(kind: Callable[..., Exporter], otlp: Otlp | None, signal: str) -> Iterator[Exporter]:
    """One exporter, or none: what it reads from the environment by itself may be wrong too."""
    if otlp is None:
        return
    try:
        yield kind(
            endpoint=otlp.endpoint,
            timeout=otlp.timeout,
            compression=Compression(otlp.compression),
        )
    except Exception as error:  # noqa: BLE001 - telemetry's faults never keep us from enforcing
        _log.warning("no %s are exported: %s", signal, error)

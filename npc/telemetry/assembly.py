"""Makes the providers, installs them, and takes them down within a bound."""

from __future__ import annotations

import logging
import os
import threading
import time
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import AlwaysOffExemplarFilter, MeterProvider
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector, generate_latest

from npc.telemetry.exporters import (
    CountedMetricExporter,
    metric_exporters,
    pushing_reader,
    span_exporters,
)
from npc.telemetry.settings import read
from npc.telemetry.spans import SpanQueue, SpanStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from opentelemetry.metrics import CallbackOptions

    from npc.telemetry.settings import Settings

_PLAIN_TEXT = "text/plain; version=0.0.4; charset=utf-8"

# Of the time for a stop, what the parts may take: the rest is for them to say what was lost.
_SHARE = 0.9

_log = logging.getLogger(__name__)


def start(node: str) -> Telemetry:
    """Make the providers that the environment asks for, and install them for the whole program.

    :param node: the node's name, which says whose telemetry it is
    """
    settings = read(os.environ)
    for problem in settings.problems:
        _log.warning("%s", problem)
    telemetry = Telemetry(settings, node)
    telemetry.install()
    return telemetry


class Telemetry:
    """The providers of one program, from its start to its stop.

    ``tracer_provider`` is ``None`` where no spans are exported, ``meter_provider`` where the SDK is
    disabled: the API's own, which do nothing, are better at that.
    """

    def __init__(self, settings: Settings, node: str) -> None:
        resource = _resource(settings, node)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        GCCollector(registry=self._registry)
        self._scraping = threading.Lock()
        self._queues: dict[str, SpanQueue] = {}
        self._pushed: list[CountedMetricExporter] = []
        self.tracer_provider: TracerProvider | None = None
        self.meter_provider: MeterProvider | None = None
        self._stopped = False
        if settings.disabled:
            return
        self._make_spans(settings, resource)
        self._make_metrics(settings, resource)

    def install(self) -> None:
        """Make these the providers of the whole program."""
        if self.tracer_provider is not None:
            trace.set_tracer_provider(self.tracer_provider)
        if self.meter_provider is not None:
            metrics.set_meter_provider(self.meter_provider)

    def metrics_page(self) -> tuple[str, str]:
        """All metrics in Prometheus' text format: the content type and the text."""
        with self._scraping:  # the SDK's collector mixes what two readers at once ask for
            return _PLAIN_TEXT, generate_latest(self._registry).decode()

    def span_statistics(self) -> dict[str, SpanStatistics]:
        """What became of the spans, by exporter; also after the stop."""
        return {name: queue.statistics() for name, queue in self._queues.items()}

    def stop(self, within: float) -> None:
        """Export what is there, for at most so many seconds, and drop the rest.

        Pages are empty from then on, and another stop does nothing.
        """
        if self._stopped:
            return
        self._stopped = True
        deadline = time.monotonic() + within
        stops: list[Callable[[float], None]] = [queue.shutdown for queue in self._queues.values()]
        if self.meter_provider is not None:
            stops.append(self.meter_provider.shutdown)
        threads = [
            threading.Thread(
                target=_try, args=(stop, within * 1000 * _SHARE), name="stop", daemon=True
            )
            for stop in stops
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            _log.warning("telemetry did not end within %g s; it is left behind", within)

    def _make_spans(self, settings: Settings, resource: Resource) -> None:
        self._queues = {
            name: SpanQueue(exporter, settings.queue) for name, exporter in span_exporters(settings)
        }
        if not self._queues:
            return
        self.tracer_provider = TracerProvider(
            settings.sampler,
            resource,
            shutdown_on_exit=False,
            span_limits=settings.span_limits,
        )
        for queue in self._queues.values():
            self.tracer_provider.add_span_processor(queue)

    def _make_metrics(self, settings: Settings, resource: Resource) -> None:
        exporters = list(metric_exporters(settings))
        self._pushed = [each for each in exporters if isinstance(each, CountedMetricExporter)]
        self.meter_provider = MeterProvider(
            [
                PrometheusMetricReader(registry=self._registry, scope_info_enabled=False),
                *(pushing_reader(exporter, settings) for exporter in exporters),
            ],
            resource,
            # Nothing but a push carries exemplars, and each record would pay for them.
            settings.exemplars if exporters else AlwaysOffExemplarFilter(),
            shutdown_on_exit=False,
        )
        meter = self.meter_provider.get_meter("npc.telemetry")
        meter.create_observable_counter(
            "npc_telemetry_spans", [self._observe_spans], description="Spans that ended, by outcome"
        )
        meter.create_observable_gauge(
            "npc_telemetry_spans_queued", [self._observe_queues], description="Spans to be exported"
        )
        meter.create_observable_counter(
            "npc_telemetry_metric_exports",
            [self._observe_pushes],
            description="Exports of all metrics to a collector, by outcome",
        )

    def _observe_spans(self, _: CallbackOptions) -> Iterable[Observation]:
        for name, found in self.span_statistics().items():
            for outcome in ("exported", "failed", "dropped"):
                labels = {"exporter": name, "outcome": outcome}
                yield Observation(getattr(found, outcome), labels)

    def _observe_queues(self, _: CallbackOptions) -> Iterable[Observation]:
        for name, found in self.span_statistics().items():
            yield Observation(found.queued, {"exporter": name})

    def _observe_pushes(self, _: CallbackOptions) -> Iterable[Observation]:
        for exporter in self._pushed:
            for outcome, count in exporter.outcomes().items():
                yield Observation(count, {"exporter": "otlp", "outcome": outcome})


def _resource(settings: Settings, node: str) -> Resource:
    """Who sends this; what the environment says wins over what we know."""
    return Resource.create(
        {
            "service.name": "npc",
            "service.version": version("fullsync"),
            "service.instance.id": node,
            "k8s.node.name": node,
            **settings.resource,
        }
    )


def _try(stop: Callable[[float], None], milliseconds: float) -> None:
    try:
        stop(milliseconds)
    except Exception as error:  # noqa: BLE001 - the program ends in any case
        _log.warning("%s", error)

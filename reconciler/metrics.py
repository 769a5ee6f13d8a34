"""Queues' metrics for the libraries that collect them.

``OpenTelemetryMetrics`` makes instruments of an OpenTelemetry meter, ``PrometheusMetrics`` a
collector for a prometheus_client registry; hand either to a queue as ``metrics=``. Names, labels
and buckets are those of ``workqueue.metrics``, which are client-go's.

prometheus_client is imported when ``PrometheusMetrics`` is first asked for its metrics.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from workqueue.metrics import DURATION_BUCKETS, Gauges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_DEPTH = "workqueue_depth", "Keys queued, or to be queued when done"
_ADDS = "workqueue_adds", "Adds that changed something"
_QUEUE = "workqueue_queue_duration", "Seconds from the add until a worker has the key"
_WORK = "workqueue_work_duration", "Seconds from the get to the done"
_UNFINISHED = "workqueue_unfinished_work", "Seconds that keys in hand have been there, summed"
_LONGEST = "workqueue_longest_running_processor", "Seconds that the oldest key has been in hand"
_RETRIES = "workqueue_retries", "Calls of add_after"


class _Names:
    """The queues that have series now."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gauges: dict[str, Callable[[], Gauges]] = {}

    def open(self, name: str, gauges: Callable[[], Gauges]) -> None:
        """
        :raises ValueError: if there is a queue of that name
        """
        with self._lock:
            if name in self._gauges:
                raise ValueError(f"there is a queue {name!r} already; its series would be spoilt")
            self._gauges[name] = gauges

    def close(self, name: str) -> None:
        with self._lock:
            self._gauges.pop(name, None)

    def read(self) -> list[tuple[str, Gauges]]:
        """Each queue's gauges, now. Not under the lock: reading takes the queue's."""
        with self._lock:
            found = list(self._gauges.items())
        return [(name, gauges()) for name, gauges in found]


# -- OpenTelemetry -----------------------------------------------------------------------------


class OpenTelemetryMetrics:
    """A ``workqueue.MetricsProvider`` over a meter.

    Units make exporters append ``_seconds`` and ``_total``, which gives client-go's names.
    Counters and histograms of a queue that has ended keep their last values, as OpenTelemetry has
    no way to end a series; its gauges end.
    """

    def __init__(self, meter: Meter) -> None:
        self._names = _Names()
        self._adds = meter.create_counter(_ADDS[0], description=_ADDS[1])
        self._retries = meter.create_counter(_RETRIES[0], description=_RETRIES[1])
        self._queue, self._work = (
            meter.create_histogram(
                name,
                unit="s",
                description=description,
                explicit_bucket_boundaries_advisory=list(DURATION_BUCKETS),
            )
            for name, description in (_QUEUE, _WORK)
        )
        for (name, description), unit, read in (
            (_DEPTH, "", lambda gauges: gauges.depth),
            (_UNFINISHED, "s", lambda gauges: gauges.unfinished_work),
            (_LONGEST, "s", lambda gauges: gauges.longest_running_processor),
        ):
            meter.create_observable_gauge(
                name, [self._observer(read)], unit=unit, description=description
            )

    def open(self, name: str, gauges: Callable[[], Gauges]) -> _OpenTelemetryQueue:
        """Begin the series of a queue.

        :raises ValueError: if there is a queue of that name
        """
        self._names.open(name, gauges)
        return _OpenTelemetryQueue(self, name)

    def _observer(
        self, read: Callable[[Gauges], float]
    ) -> Callable[[CallbackOptions], Iterable[Observation]]:
        return lambda _: [
            Observation(read(gauges), {"name": name}) for name, gauges in self._names.read()
        ]


class _OpenTelemetryQueue:
    def __init__(self, provider: OpenTelemetryMetrics, name: str) -> None:
        self._provider = provider
        self._name = name
        self._labels = {"name": name}

    def added(self) -> None:
        self._provider._adds.add(1, self._labels)

    def retried(self) -> None:
        self._provider._retries.add(1, self._labels)

    def waited(self, seconds: float) -> None:
        self._provider._queue.record(seconds, self._labels)

    def worked(self, seconds: float) -> None:
        self._provider._work.record(seconds, self._labels)

    def close(self) -> None:
        self._provider._names.close(self._name)


# -- Prometheus --------------------------------------------------------------------------------


class PrometheusMetrics:
    """A ``workqueue.MetricsProvider`` that is also a collector: register it with a registry.

    The series of a queue that has ended are gone from the next scrape on.
    """

    def __init__(self) -> None:
        self._names = _Names()
        self._queues: dict[str, _PrometheusQueue] = {}

    def open(self, name: str, gauges: Callable[[], Gauges]) -> _PrometheusQueue:
        """Begin the series of a queue.

        :raises ValueError: if there is a queue of that name
        """
        self._names.open(name, gauges)
        self._queues[name] = _PrometheusQueue(self, name)
        return self._queues[name]

    def collect(self) -> Iterator[Any]:
        """What prometheus_client asks of a collector."""
        from prometheus_client import core

        read = self._names.read()
        for (name, description), unit, value in (
            (_DEPTH, "", lambda gauges: gauges.depth),
            (_UNFINISHED, "seconds", lambda gauges: gauges.unfinished_work),
            (_LONGEST, "seconds", lambda gauges: gauges.longest_running_processor),
        ):
            gauge = core.GaugeMetricFamily(name, description, labels=["name"], unit=unit)
            for name_of_queue, gauges in read:
                gauge.add_metric([name_of_queue], value(gauges))
            yield gauge
        # Queues may begin and end meanwhile; one that has gone is left out.
        known = dict(self._queues)
        queues = [(name, known[name]) for name, _ in read if name in known]
        for (name, description), count in (
            (_ADDS, lambda queue: queue.adds),
            (_RETRIES, lambda queue: queue.retries),
        ):
            counter = core.CounterMetricFamily(name, description, labels=["name"])
            for name_of_queue, queue in queues:
                counter.add_metric([name_of_queue], count(queue))
            yield counter
        for (name, description), durations in (
            (_QUEUE, lambda queue: queue.waits),
            (_WORK, lambda queue: queue.works),
        ):
            histogram = core.HistogramMetricFamily(
                name, description, labels=["name"], unit="seconds"
            )
            for name_of_queue, queue in queues:
                buckets, total = durations(queue).read()
                histogram.add_metric([name_of_queue], buckets, total)
            yield histogram


class _PrometheusQueue:
    def __init__(self, provider: PrometheusMetrics, name: str) -> None:
        self._provider = provider
        self._name = name
        self.adds = 0
        self.retries = 0
        self.waits = _Durations()
        self.works = _Durations()

    def added(self) -> None:
        self.adds += 1

    def retried(self) -> None:
        self.retries += 1

    def waited(self, seconds: float) -> None:
        self.waits.add(seconds)

    def worked(self, seconds: float) -> None:
        self.works.add(seconds)

    def close(self) -> None:
        self._provider._names.close(self._name)
        self._provider._queues.pop(self._name, None)


class _Durations:
    """How many fell into each bucket. Written under the queue's lock."""

    def __init__(self) -> None:
        self._counts = [0] * (len(DURATION_BUCKETS) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect_left(DURATION_BUCKETS, seconds)] += 1
        self._total += seconds

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets by their upper bounds, and the sum of all."""
        found, count = [], 0
        bounds = [*map(str, DURATION_BUCKETS), "+Inf"]
        for bound, more in zip(bounds, list(self._counts), strict=True):
            count += more
            found.append((bound, float(count)))
        return found, self._total

"""Both providers, against the real libraries."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from reconciler.metrics import OpenTelemetryMetrics, PrometheusMetrics
from workqueue import Gauges, Instruments, PriorityQueue, Queue, RateLimitingQueue, aio
from workqueue.metrics import DURATION_BUCKETS, MetricsProvider
from workqueue.testing import FakeClock, RecordingMetrics


def exercise(metrics: MetricsProvider, name: str = "q") -> RateLimitingQueue[str]:
    """Two adds, one taken for two seconds after one, one finished after three, one retry."""
    clock = FakeClock()
    queue: RateLimitingQueue[str] = RateLimitingQueue(None, name, clock=clock, metrics=metrics)
    queue.add("a")
    queue.add("b")
    clock.step(1)
    queue.get()
    clock.step(3)
    queue.done("a")
    queue.get()
    clock.step(2)
    queue.add_after("c", 100)
    return queue


def test_prometheus() -> None:
    metrics = PrometheusMetrics()
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics)
    queue = exercise(metrics)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, {"name": "q", **labels})

    assert value("workqueue_depth") == 0
    assert value("workqueue_adds_total") == 2
    assert value("workqueue_retries_total") == 1
    assert value("workqueue_unfinished_work_seconds") == 2
    assert value("workqueue_longest_running_processor_seconds") == 2
    assert value("workqueue_queue_duration_seconds_count") == 2
    assert value("workqueue_queue_duration_seconds_sum") == 5
    assert value("workqueue_queue_duration_seconds_bucket", le="1.0") == 1
    assert value("workqueue_work_duration_seconds_bucket", le="1.0") == 0
    assert value("workqueue_work_duration_seconds_bucket", le="10.0") == 1
    assert value("workqueue_work_duration_seconds_bucket", le="+Inf") == 1
    text = prometheus_client.generate_latest(registry).decode()
    assert "# TYPE workqueue_depth gauge" in text

    queue.shut_down()
    queue.done("b")
    assert 'name="q"' not in prometheus_client.generate_latest(registry).decode()


def test_opentelemetry() -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    metrics = OpenTelemetryMetrics(provider.get_meter("workqueue"))
    queue = exercise(metrics)

    def points() -> dict[str, Any]:
        data: Any = reader.get_metrics_data()
        return {
            metric.name: point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            for point in metric.data.data_points
        }

    found = points()
    assert all(dict(point.attributes) == {"name": "q"} for point in found.values())
    assert found["workqueue_depth"].value == 0
    assert found["workqueue_adds"].value == 2
    assert found["workqueue_retries"].value == 1
    assert found["workqueue_unfinished_work"].value == 2
    assert found["workqueue_longest_running_processor"].value == 2
    assert found["workqueue_queue_duration"].sum == 5
    assert tuple(found["workqueue_work_duration"].explicit_bounds) == DURATION_BUCKETS

    queue.shut_down()
    queue.done("b")
    assert "workqueue_depth" not in points()
    provider.shutdown()


def test_two_queues_of_one_name_are_refused_until_the_first_has_ended() -> None:
    provider = MeterProvider([InMemoryMetricReader()])
    for metrics in (
        PrometheusMetrics(),
        OpenTelemetryMetrics(provider.get_meter("workqueue")),
    ):
        first = exercise(metrics)
        with pytest.raises(ValueError, match="'q' already"):
            exercise(metrics)
        exercise(metrics, "other").shut_down()
        first.shut_down()
        first.done("b")
        exercise(metrics).shut_down()
    provider.shutdown()


def test_a_scrape_may_come_while_a_queue_begins_or_ends() -> None:
    metrics = PrometheusMetrics()
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics)
    scraped: list[bytes] = []

    class ScrapesWhenRead:
        """A provider that is read at once, as a scrape might do, and while its queue ends."""

        def open(self, name: str, gauges: Callable[[], Gauges]) -> Instruments:
            def read() -> Gauges:
                found = gauges()
                instruments.close()
                return found

            instruments = metrics.open(name, read)
            scraped.append(prometheus_client.generate_latest(registry))
            return instruments

    for kind in (Queue, PriorityQueue, aio.Queue, aio.PriorityQueue):
        kind(name="q", metrics=ScrapesWhenRead())
    assert len(scraped) == 4


def test_an_asyncio_queue_may_be_scraped_by_another_thread() -> None:
    """Reading changes nothing: what is due is queued on the loop's thread alone."""
    clock = FakeClock()
    metrics = RecordingMetrics()
    queue: aio.DelayingQueue[str] = aio.DelayingQueue("q", clock=clock, metrics=metrics)

    async def scenario() -> None:
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.add_after("a", 1)
        clock._now = 1  # the loop has not been told yet
        read = await asyncio.to_thread(metrics.queues["q"].gauges)
        assert read.depth == 0
        clock.step(0)
        assert await waiting == "a"

    asyncio.run(scenario())


def test_a_queue_without_a_name_has_no_metrics() -> None:
    metrics = PrometheusMetrics()
    exercise(metrics, "").shut_down()
    registry = prometheus_client.CollectorRegistry()
    registry.register(metrics)
    assert "name=" not in prometheus_client.generate_latest(registry).decode()

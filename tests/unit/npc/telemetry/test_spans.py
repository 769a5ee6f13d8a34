"""The queue of spans: what leaves it when, and that every span lost is counted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import Tracer

from npc.telemetry.spans import QueueLimits, SpanQueue, SpanStatistics
from tests.unit.npc.fake import PATIENCE

_FOREVER = 3600.0


class Exporter(SpanExporter):
    """Keeps the names of what it is given; the test holds it up, or lets it fail."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.result: SpanExportResult | Exception = SpanExportResult.SUCCESS
        self.entered = threading.Semaphore(0)
        self.open = threading.Event()
        self.open.set()
        self.shut = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.release()
        self.open.wait()
        if isinstance(self.result, Exception):
            raise self.result
        if self.result is SpanExportResult.SUCCESS:
            self.batches.append([span.name for span in spans])
        return self.result

    def shutdown(self) -> None:
        self.shut = True


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.open.set()


@pytest.fixture
def queue_of(exporter: Exporter) -> Iterator[Callable[..., SpanQueue]]:
    made: list[SpanQueue] = []

    def make(*, size: int = 100, batch: int = 10, delay: float = _FOREVER) -> SpanQueue:
        made.append(SpanQueue(exporter, QueueLimits(size, batch, delay)))
        return made[-1]

    yield make
    exporter.open.set()
    for queue in made:
        queue.shutdown()
        queue._thread.join(PATIENCE)
        assert not queue._thread.is_alive()


def end(queue: SpanQueue, *names: object, tracer: Tracer | None = None) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(queue)
    for name in names:
        (tracer or provider.get_tracer("t")).start_span(str(name)).end()


def test_a_full_batch_leaves_at_once(
    exporter: Exporter, queue_of: Callable[..., SpanQueue]
) -> None:
    queue = queue_of(batch=3)
    end(queue, *"abc")
    assert exporter.entered.acquire(timeout=PATIENCE)
    assert queue.force_flush()
    assert exporter.batches == [["a", "b", "c"]]


def test_fewer_spans_leave_when_the_first_has_waited_long_enough(
    exporter: Exporter, queue_of: Callable[..., SpanQueue]
) -> None:
    end(queue_of(delay=0.01), "a")
    assert exporter.entered.acquire(timeout=PATIENCE)


def test_a_flush_waits_for_nothing_but_the_exporter(
    exporter: Exporter, queue_of: Callable[..., SpanQueue]
) -> None:
    queue = queue_of(batch=2)
    assert queue.force_flush()
    end(queue, *"abcde")
    assert queue.force_flush()
    assert exporter.batches == [["a", "b"], ["c", "d"], ["e"]]
    assert queue.statistics() == SpanStatistics(queued=0, exported=5, failed=0, dropped=0)
    end(queue, "f")
    exporter.open.clear()
    assert not queue.force_flush(timeout_millis=10)


def test_the_oldest_are_dropped_where_there_is_no_room_and_that_is_said_once(
    exporter: Exporter, queue_of: Callable[..., SpanQueue], caplog: pytest.LogCaptureFixture
) -> None:
    exporter.open.clear()
    queue = queue_of(size=4, batch=2)
    end(queue, 1, 2)
    assert exporter.entered.acquire(timeout=PATIENCE)  # 1 and 2 are in its hands
    end(queue, *range(3, 10))
    assert queue.statistics() == SpanStatistics(queued=6, exported=0, failed=0, dropped=3)
    exporter.open.set()
    assert queue.force_flush()
    assert exporter.batches == [["1", "2"], ["6", "7"], ["8", "9"]]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


@pytest.mark.parametrize("result", [SpanExportResult.FAILURE, OSError("unplugged")])
def test_what_the_exporter_cannot_deliver_is_counted_and_the_next_batch_tried(
    exporter: Exporter,
    queue_of: Callable[..., SpanQueue],
    result: SpanExportResult | Exception,
) -> None:
    queue = queue_of()
    exporter.result = result
    end(queue, *"abc")
    assert queue.force_flush()
    exporter.result = SpanExportResult.SUCCESS
    end(queue, "d")
    assert queue.force_flush()
    assert queue.statistics() == SpanStatistics(queued=0, exported=1, failed=3, dropped=0)


def test_a_shutdown_exports_what_is_there(
    exporter: Exporter, queue_of: Callable[..., SpanQueue]
) -> None:
    queue = queue_of(batch=2)
    end(queue, *"abc")
    queue.shutdown()
    assert exporter.batches == [["a", "b"], ["c"]]
    assert exporter.shut
    end(queue, "late")
    assert queue.statistics() == SpanStatistics(queued=0, exported=3, failed=0, dropped=1)


def test_a_shutdown_leaves_a_dead_exporter_behind_and_counts_what_it_held(
    exporter: Exporter, queue_of: Callable[..., SpanQueue], caplog: pytest.LogCaptureFixture
) -> None:
    exporter.open.clear()
    queue = queue_of(batch=2)
    end(queue, *"abcde")
    before = time.monotonic()
    queue.shutdown(timeout_millis=50)
    assert time.monotonic() - before < PATIENCE
    lost = SpanStatistics(queued=0, exported=0, failed=0, dropped=5)
    assert queue.statistics() == lost
    assert "5 spans could not be exported" in caplog.text
    exporter.open.set()
    queue._thread.join(PATIENCE)
    assert queue.statistics() == lost  # what comes out late is not counted twice


def test_spans_that_are_not_sampled_are_no_loss(
    exporter: Exporter, queue_of: Callable[..., SpanQueue]
) -> None:
    queue = queue_of(batch=1)
    provider = TracerProvider(ALWAYS_OFF, shutdown_on_exit=False)
    provider.add_span_processor(queue)
    end(queue, "a", tracer=provider.get_tracer("t"))
    assert queue.statistics() == SpanStatistics(queued=0, exported=0, failed=0, dropped=0)


def test_no_span_is_lost_between_many_threads_that_end_them(
    exporter: Exporter, queue_of: Callable[..., SpanQueue]
) -> None:
    queue = queue_of(size=10_000, batch=7, delay=0.001)
    threads = [
        threading.Thread(target=end, args=(queue, *(f"{t}-{n}" for n in range(300))))
        for t in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert queue.force_flush()
    assert sorted(name for batch in exporter.batches for name in batch) == sorted(
        f"{t}-{n}" for t in range(8) for n in range(300)
    )


_ACTIONS = st.one_of(
    st.tuples(st.just("end"), st.integers(1, 9)),
    st.tuples(st.just("answer"), st.sampled_from(SpanExportResult)),
    st.tuples(st.just("flush"), st.none()),
)


@given(st.integers(1, 8), st.integers(1, 8), st.lists(_ACTIONS, max_size=12))
def test_every_span_is_accounted_for_whatever_happens(
    size: int, batch: int, actions: list[tuple[str, Any]]
) -> None:
    exporter = Exporter()
    queue = SpanQueue(exporter, QueueLimits(size, min(batch, size), _FOREVER))
    ended = 0
    for action, value in actions:
        if action == "end":
            end(queue, *range(ended, ended + value))
            ended += value
        elif action == "answer":
            exporter.result = value
        else:
            assert queue.force_flush()
            assert queue.statistics().queued == 0
        found = queue.statistics()
        assert found.queued + found.exported + found.failed + found.dropped == ended
        assert found.queued <= size + batch  # those that wait, and those in the exporter's hands
    queue.shutdown()
    found = queue.statistics()
    assert found.exported + found.failed + found.dropped == ended
    arrived = [int(name) for each in exporter.batches for name in each]
    assert len(arrived) == found.exported
    assert arrived == sorted(arrived)
    assert all(len(each) <= batch for each in exporter.batches)

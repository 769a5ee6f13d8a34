"""Which events a key stands for, and what its span says of them."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode, Tracer, use_span

from reconciler.telemetry import trace_headers
from reconciler.tracing import TracedQueue
from workqueue import Queue
from workqueue.testing import FakeClock


class Traced:
    """A traced queue, and the spans that ended."""

    def __init__(self, max_links: int = 8, **provider: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self._provider = TracerProvider(**provider)
        self._provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.clock = FakeClock()
        self.queue: Queue[str] = Queue("q", clock=self.clock)
        self.traced = TracedQueue(
            self.queue, max_links=max_links, clock=self.clock, tracer=self.tracer
        )

    @property
    def tracer(self) -> Tracer:
        return self._provider.get_tracer("test")

    def work(self) -> ReadableSpan | None:
        """Take a key, and return the span of the work on it."""
        with self.queue.lease() as key, self.traced.span(key):
            pass
        found = [s for s in self.spans() if s.kind is SpanKind.CONSUMER]
        return found[-1] if found else None

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())


def test_a_key_stands_for_all_its_events_and_links_to_the_first_few() -> None:
    t = Traced(max_links=3)
    for number in range(5):
        t.traced.add("k", {"number": number})
        t.clock.step(1)
    span = t.work()
    assert span is not None
    sent = [s for s in t.spans() if s.kind is SpanKind.PRODUCER]
    assert [s.name for s in sent] == ["send q"] * 3
    assert [(s.attributes or {})["number"] for s in sent] == [0, 1, 2]
    assert [link.context for link in span.links] == [s.context for s in sent]
    assert span.name == "process q"
    assert span.parent is None
    assert dict(span.attributes or {}) == {
        "messaging.system": "workqueue",
        "messaging.operation.name": "process",
        "messaging.destination.name": "q",
        "messaging.batch.message_count": 5,
        "reconciler.key": "k",
        "reconciler.queue.wait": 5.0,
        "reconciler.links.dropped": 2,
    }
    assert (t.traced.statistics().events, t.traced.statistics().coalesced) == (5, 4)


def test_an_event_during_the_work_counts_for_the_next() -> None:
    t = Traced()
    t.traced.add("k")
    with t.queue.lease() as key, t.traced.span(key):
        t.traced.add("k")
        t.traced.add("k")
    span = t.work()
    assert span is not None
    assert len(span.links) == 2


def test_keys_are_told_apart_and_a_retry_stands_for_no_event() -> None:
    t = Traced()
    t.traced.add("a")
    t.traced.add("b")
    t.queue.add("c")
    spans = [t.work() for _ in range(3)]
    assert [len(span.links) for span in spans if span is not None] == [1, 1, 0]
    assert spans[2] is not None
    attributes = spans[2].attributes or {}
    assert attributes["messaging.batch.message_count"] == 0
    assert "reconciler.queue.wait" not in attributes


def test_an_event_is_a_child_of_what_caused_it() -> None:
    t = Traced()
    with t.tracer.start_as_current_span("cause") as cause:
        t.traced.add("k")
    [sent] = [s for s in t.spans() if s.kind is SpanKind.PRODUCER]
    assert sent.parent == cause.get_span_context()


def test_work_that_fails_says_so() -> None:
    t = Traced()
    t.traced.add("k")
    with pytest.raises(KeyError), t.queue.lease() as key, t.traced.span(key):
        raise KeyError("gone")
    [span] = [s for s in t.spans() if s.kind is SpanKind.CONSUMER]
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"] == "KeyError"
    assert [event.name for event in span.events] == ["exception"]


def test_what_is_not_sampled_is_counted_only() -> None:
    t = Traced(sampler=ALWAYS_OFF)
    t.traced.add("k")
    assert t.work() is None
    assert t.traced.statistics().events == 1


def test_nothing_is_remembered_of_keys_that_were_handed_out() -> None:
    t = Traced()
    for number in range(100):
        t.traced.add(str(number))
        t.work()
    assert not t.traced._causes


def test_without_an_sdk_there_are_no_links() -> None:
    queue: Queue[str] = Queue("q")
    traced = TracedQueue(queue)
    traced.add("k")
    assert not traced._causes["k"].links
    with queue.lease() as key, traced.span(key) as span:
        assert not span.is_recording()


def test_a_negative_number_of_links_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot have -1 links"):
        TracedQueue(Queue[str]("q"), max_links=-1)


def test_a_sampled_trace_goes_on_in_the_api_server() -> None:
    t = Traced()
    assert trace_headers() == {}
    with t.tracer.start_as_current_span("outer") as span:
        trace_id = format(span.get_span_context().trace_id, "032x")
        assert trace_id in trace_headers()["traceparent"]
    unsampled = Traced(sampler=ALWAYS_OFF)
    with use_span(unsampled.tracer.start_span("outer")):
        assert trace_headers() == {}

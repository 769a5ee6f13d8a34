"""A queue whose spans say which events a key stands for.

A key that waits in a queue stands for every event that asked for it. ``TracedQueue`` remembers, for
each key until it is handed out, how many there were, since when the oldest has waited, and the span
contexts of the first few. The span of the work on the key links to those:

    traced = TracedQueue(queue)
    traced.add(key)                        # where an event comes in
    with queue.lease() as key, traced.span(key):
        ...                                # the work

Where the event comes in, a short ``send`` span is made for the link to lead to, a child of whatever
span is current there. Events beyond the first few are counted and make no span, so a burst costs a
bounded number of them. The names are those of OpenTelemetry's conventions for messaging; a work
queue within a process is no message broker, so attributes of our own begin with ``reconciler``.

Without an SDK nothing is recorded, and an event costs a count.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from reconciler.telemetry import tracer as default_tracer
from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping

    from opentelemetry.trace import Span, SpanContext, Tracer
    from opentelemetry.util.types import AttributeValue

    from workqueue import Queue

K = TypeVar("K", bound="Hashable")

MAX_LINKS = 8
"""How many events of one key are linked; the others are counted."""


@dataclass(slots=True)
class _Cause:
    """Why one key waits."""

    since: float
    events: int = 0
    links: list[SpanContext] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TracedStatistics:
    """``events``: how many were added; ``coalesced``: those whose key was waiting already."""

    events: int
    coalesced: int


class TracedQueue(Generic[K]):
    """Adds to ``queue`` and makes the spans of the work on its keys."""

    def __init__(
        self,
        queue: Queue[K],
        *,
        max_links: int = MAX_LINKS,
        clock: Clock = SYSTEM_CLOCK,
        tracer: Tracer | None = None,
    ) -> None:
        """
        :raises ValueError: if ``max_links`` is below 0
        """
        if max_links < 0:
            raise ValueError(f"a span cannot have {max_links} links")
        self._queue = queue
        self._max_links = max_links
        self._clock = clock
        self._tracer = tracer or default_tracer()
        self._lock = threading.Lock()
        self._causes: dict[K, _Cause] = {}
        self._events = self._coalesced = 0

    def statistics(self) -> TracedStatistics:
        """Count events, at one moment."""
        with self._lock:
            return TracedStatistics(self._events, self._coalesced)

    def add(
        self,
        key: K,
        attributes: Mapping[str, AttributeValue] | None = None,
        add: Callable[[K], None] | None = None,
    ) -> None:
        """Add a key because of an event.

        :param attributes: of the span that stands for the event
        :param add: what adds the key; ``queue.add`` if it is not given
        """
        # Noted before it is queued: whoever takes the key finds the note. One that is noted while
        # the key is handed out counts for the work that is about to begin, which will see it.
        if self._note(key):
            with self._tracer.start_as_current_span(
                f"send {self._queue.name}",
                kind=SpanKind.PRODUCER,
                attributes={**self._described("send"), **(attributes or {})},
            ) as span:
                self._link(key, span.get_span_context())
        (add or self._queue.add)(key)

    def _note(self, key: K) -> bool:
        """Count an event; whether there is room for a link to it."""
        with self._lock:
            self._events += 1
            cause = self._causes.get(key)
            if cause is None:
                cause = self._causes[key] = _Cause(self._clock.now())
            else:
                self._coalesced += 1
            cause.events += 1
            return cause.events <= self._max_links

    def _link(self, key: K, context: SpanContext) -> None:
        if not context.is_valid:
            return
        with self._lock:
            cause = self._causes.get(key)
            if cause is not None:
                cause.links.append(context)

    @contextmanager
    def span(self, key: K) -> Iterator[Span]:
        """A span for the work on a key that was just handed out; an exception marks it as failed.

        The key of a retry, which no event asked for, stands for none.
        """
        with self._lock:
            cause = self._causes.pop(key, None)
        attributes: dict[str, AttributeValue] = {
            **self._described("process"),
            "reconciler.key": str(key),
            "messaging.batch.message_count": cause.events if cause else 0,
        }
        if cause is not None:
            attributes["reconciler.queue.wait"] = self._clock.now() - cause.since
            attributes["reconciler.links.dropped"] = cause.events - len(cause.links)
        with self._tracer.start_as_current_span(
            f"process {self._queue.name}",
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(context) for context in cause.links] if cause else None,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except Exception as error:
                mark_failed(span, error)
                raise

    def _described(self, operation: str) -> dict[str, AttributeValue]:
        return {
            "messaging.system": "workqueue",
            "messaging.operation.name": operation,
            "messaging.destination.name": self._queue.name,
        }


def mark_failed(span: Span, error: BaseException) -> None:
    """Say in a span that this error ended its work."""
    if span.is_recording():
        span.record_exception(error)
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR, str(error) or type(error).__qualname__))

"""A bounded queue of ended spans, and the thread that exports them.

The SDK's batch processor would do, but for three things: it does not tell how many spans it lost,
nor how many the exporter could not deliver, and its shutdown waits 30 s for a collector that does
not answer.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SpanExportResult

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How spans are gathered. ``delay``: seconds that one may wait for others."""

    size: int
    batch: int
    delay: float


@dataclass(frozen=True, slots=True)
class SpanStatistics:
    """What became of the spans that ended, in numbers of spans."""

    queued: int
    """Waiting, or being exported now."""
    exported: int
    failed: int
    """Handed to the exporter, which could not deliver them."""
    dropped: int
    """Pushed out of the full queue by newer ones, not exported in time at the stop, or too late."""


class SpanQueue(SpanProcessor):
    """Exports in batches, the oldest spans first; ending a span never waits for that."""

    def __init__(self, exporter: SpanExporter, limits: QueueLimits) -> None:
        self._exporter = exporter
        self._limits = limits
        self._spans: deque[ReadableSpan] = deque()
        self._in_hand = 0
        self._exported = self._failed = self._dropped = 0
        self._overflowing = self._flushing = self._stopping = self._abandoned = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="span export", daemon=True)
        self._thread.start()

    def on_end(self, span: ReadableSpan) -> None:
        """Queue the span. If there is no room, the oldest one is lost."""
        context = span.context
        if context is None or not context.trace_flags.sampled:
            return
        with self._changed:
            if self._stopping:
                self._dropped += 1
                return
            overflows = len(self._spans) >= self._limits.size
            if overflows:
                self._spans.popleft()
                self._dropped += 1
            self._spans.append(span)
            begins = overflows and not self._overflowing
            self._overflowing = overflows
            if len(self._spans) in {1, self._limits.batch}:
                self._changed.notify_all()
        if begins:
            _log.warning("%d spans wait for export; the oldest are dropped", self._limits.size)

    def statistics(self) -> SpanStatistics:
        """Count, at one moment."""
        with self._changed:
            queued = len(self._spans) + self._in_hand
            return SpanStatistics(queued, self._exported, self._failed, self._dropped)

    def force_flush(self, timeout_millis: float = 30_000) -> bool:
        """Export what is queued without waiting for more; whether all was tried in time."""
        with self._changed:
            self._flushing = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not self._flushing, timeout_millis / 1000)

    def shutdown(self, timeout_millis: float = 30_000) -> None:
        """Export what is queued for as long as this allows, and drop the rest."""
        with self._changed:
            if self._abandoned:
                return
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_millis / 1000)
        with self._changed:
            lost = len(self._spans) + self._in_hand
            self._abandoned = True
            self._dropped += lost
            self._spans.clear()
            self._in_hand = 0
        self._exporter.shutdown()
        if lost:
            _log.warning("%d spans could not be exported before the stop; they are lost", lost)

    def _run(self) -> None:
        while batch := self._next_batch():
            self._export(batch)

    def _next_batch(self) -> list[ReadableSpan]:
        """The spans to export next; none if there will be no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._spans or self._urgent)
            while not self._spans and not self._stopping:
                self._flushing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._spans or self._urgent)
            self._changed.wait_for(
                lambda: self._urgent or len(self._spans) >= self._limits.batch, self._limits.delay
            )
            count = min(len(self._spans), self._limits.batch)
            self._in_hand = count
            return [self._spans.popleft() for _ in range(count)]

    @property
    def _urgent(self) -> bool:
        return self._stopping or self._flushing

    def _export(self, batch: list[ReadableSpan]) -> None:
        try:
            delivered = self._exporter.export(batch) is SpanExportResult.SUCCESS
        except Exception:  # noqa: BLE001 - an exporter's fault costs its batch, not the thread
            _log.exception("exporting %d spans failed", len(batch))
            delivered = False
        with self._changed:
            if self._abandoned:
                return
            self._in_hand = 0
            if delivered:
                self._exported += len(batch)
            else:
                self._failed += len(batch)
            if not self._spans:
                self._flushing = False
            self._changed.notify_all()

"""client-go's seven metrics of a queue, for whatever collects them.

The queue needs no metrics library: a ``MetricsProvider`` makes the instruments of one named queue,
and ``reconciler.metrics`` has providers for OpenTelemetry and for prometheus_client. Names, labels
and meaning are client-go's:

    workqueue_depth                              gauge      keys queued, or to be queued when done
    workqueue_adds_total                         counter    adds that changed something
    workqueue_queue_duration_seconds             histogram  from the add until a worker has the key
    workqueue_work_duration_seconds              histogram  from the get to the done
    workqueue_unfinished_work_seconds            gauge      how long keys in hand have been, summed
    workqueue_longest_running_processor_seconds  gauge      how long the oldest of them has
    workqueue_retries_total                      counter    calls of add_after

each with the label ``name``. Gauges are computed when they are read, so no thread refreshes them
and none is out of date. The series of a queue end when it is shut down and nothing is queued or in
hand.

A queue without a name has no metrics. Two queues of one name would spoil each other's series: a
provider refuses the second until the first has ended.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from workqueue.clock import Clock

K = TypeVar("K")

DURATION_BUCKETS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0, 1000.0)
"""Upper bounds of the histograms' buckets, in seconds."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What a queue's gauges show at one moment; durations in seconds."""

    depth: int
    unfinished_work: float
    longest_running_processor: float


class Instruments(Protocol):
    """The metrics of one queue. Called with the queue's lock held: must not call the queue."""

    def added(self) -> None:
        """Count an add."""
        ...

    def retried(self) -> None:
        """Count an ``add_after``."""
        ...

    def waited(self, seconds: float) -> None:
        """A key was queued for so long."""
        ...

    def worked(self, seconds: float) -> None:
        """A key was in hand for so long."""
        ...

    def close(self) -> None:
        """End the series: the queue is no more."""
        ...


class MetricsProvider(Protocol):
    """Makes the instruments of queues."""

    def open(self, name: str, gauges: Callable[[], Gauges]) -> Instruments:
        """Begin the series of a queue. ``gauges`` may be called by any thread, at any time.

        :raises ValueError: if there are series of a queue of that name already
        """
        ...


class Meter(Generic[K]):
    """Watches one queue's keys and tells its instruments.

    The moments are guarded by a lock of its own, because an asyncio queue has none and is read by
    other threads.
    """

    instruments: Instruments
    """Set before the queue is used."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._added_at: dict[K, float] = {}
        self._taken_at: dict[K, float] = {}

    def added(self, key: K, at: float | None) -> None:
        self.instruments.added()
        with self._lock:
            self._added_at[key] = self._clock.now() if at is None else at

    def taken(self, key: K) -> None:
        now = self._clock.now()
        with self._lock:
            added_at = self._added_at.pop(key)
            self._taken_at[key] = now
        self.instruments.waited(now - added_at)

    def finished(self, key: K) -> None:
        with self._lock:
            taken_at = self._taken_at.pop(key)
        self.instruments.worked(self._clock.now() - taken_at)

    def retried(self) -> None:
        self.instruments.retried()

    def gauges(self) -> Gauges:
        now = self._clock.now()
        with self._lock:
            depth = len(self._added_at)
            ages = [now - moment for moment in self._taken_at.values()]
        return Gauges(depth, sum(ages), max(ages, default=0.0))

    def close(self) -> None:
        self.instruments.close()

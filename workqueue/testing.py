"""For tests of code that uses the queues: a clock that stands still until it is told to move, and
metrics that remember what they were told.
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from workqueue.metrics import Gauges

_PATIENCE: Final = 10.0
"""Real seconds that a test waits for another thread before it fails."""


class FakeClock:
    """A ``Clock`` that moves only by ``step``, and wakes exactly those whose time has come.

    Give it to a queue, let workers wait in ``get``, and step over a deadline: they wake as if that
    time had passed, at once. ``wait_for_waiters`` is how a test knows that a worker waits.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = now
        self._lock = threading.Condition()
        self._waiters: dict[int, tuple[threading.Condition, float | None]] = {}
        self._timers: dict[int, _Timer] = {}
        self._next_id = 0

    def now(self) -> float:
        """The time that the steps so far have made, in seconds."""
        return self._now

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Wait until notified or until steps have reached ``until``."""
        with self._lock:
            if until is not None and until <= self._now:
                return
            self._next_id += 1
            mine = self._next_id
            self._waiters[mine] = (condition, until)
            self._lock.notify_all()
        try:
            condition.wait()
        finally:
            with self._lock:
                self._waiters.pop(mine, None)

    def call_at(self, when: float, callback: Callable[[], object]) -> _Timer:
        """Call back on the running event loop once steps have reached ``when``."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._next_id += 1
            timer = _Timer(self, self._next_id, when, loop, callback)
            self._timers[self._next_id] = timer
        if when <= self._now:
            self._fire([timer])
        return timer

    def step(self, seconds: float) -> None:
        """Move the clock and wake everyone whose time has come."""
        with self._lock:
            self._now += seconds
            due = {
                waiter: condition
                for waiter, (condition, until) in self._waiters.items()
                if until is not None and until <= self._now
            }
            # They wait no more, though they have not run yet: who counts waiters must not see them.
            for waiter in due:
                del self._waiters[waiter]
            timers = sorted(
                (timer for timer in self._timers.values() if timer.when <= self._now),
                key=lambda timer: (timer.when, timer.number),
            )
        for condition in due.values():
            with condition:
                condition.notify_all()
        self._fire(timers)

    def _fire(self, timers: list[_Timer]) -> None:
        for timer in timers:
            if self._timers.pop(timer.number, None) is not None:
                timer.loop.call_soon_threadsafe(timer.callback)

    @property
    def waiters(self) -> int:
        """How many threads wait on this clock."""
        with self._lock:
            return len(self._waiters)

    def wait_for_waiters(self, count: int = 1) -> None:
        """Wait, in real time, until that many threads wait on this clock.

        :raises AssertionError: if they do not come within ten seconds
        """
        with self._lock:
            if not self._lock.wait_for(lambda: len(self._waiters) >= count, _PATIENCE):
                raise AssertionError(f"{len(self._waiters)} threads wait on the clock, not {count}")


@dataclass
class _Timer:
    clock: FakeClock
    number: int
    when: float
    loop: asyncio.AbstractEventLoop
    callback: Callable[[], object]

    def cancel(self) -> None:
        self.clock._timers.pop(self.number, None)


@dataclass
class RecordedQueue:
    """What the metrics of one queue were told."""

    gauges: Callable[[], Gauges]
    adds: int = 0
    retries: int = 0
    queue_durations: list[float] = field(default_factory=list)
    work_durations: list[float] = field(default_factory=list)
    closed: bool = False

    def added(self) -> None:
        self.adds += 1

    def retried(self) -> None:
        self.retries += 1

    def waited(self, seconds: float) -> None:
        self.queue_durations.append(seconds)

    def worked(self, seconds: float) -> None:
        self.work_durations.append(seconds)

    def close(self) -> None:
        self.closed = True


class RecordingMetrics:
    """A ``MetricsProvider`` that keeps everything, by the queue's name."""

    def __init__(self) -> None:
        self.queues: dict[str, RecordedQueue] = {}

    @property
    def open_queues(self) -> list[str]:
        """The names of the queues whose series have not ended."""
        return [name for name, queue in self.queues.items() if not queue.closed]

    def open(self, name: str, gauges: Callable[[], Gauges]) -> RecordedQueue:
        """Begin to record a queue."""
        if name in self.queues and not self.queues[name].closed:
            raise ValueError(f"there is a queue {name!r} already")
        self.queues[name] = RecordedQueue(gauges)
        return self.queues[name]

"""For tests of code that uses the queues: a clock that stands still until it is told to move."""

from __future__ import annotations

import threading
from typing import Final

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
        for condition in due.values():
            with condition:
                condition.notify_all()

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

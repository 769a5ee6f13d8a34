"""Time, as the queues see it: injected, so that tests decide what time it is."""

from __future__ import annotations

import threading
import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock and the one way to wait on it. Seconds throughout."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Wait, with ``condition`` held, until it is notified or ``now()`` reaches ``until``.

        May return early for no reason; the caller looks again.
        """
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        # A wait longer than the platform's limit raises; waking up early is allowed.
        condition.wait(None if until is None else min(until - self.now(), threading.TIMEOUT_MAX))


SYSTEM_CLOCK = SystemClock()

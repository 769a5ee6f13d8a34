"""Time, as the queues see it: injected, so that tests decide what time it is."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable


class Timer(Protocol):
    """A call that is to come."""

    def cancel(self) -> None:
        """Do not make the call."""
        ...


class Clock(Protocol):
    """A monotonic clock, and the ways to wait on it. Seconds throughout."""

    def now(self) -> float:
        """Seconds since some fixed moment; never goes back."""
        ...

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        """Wait, with ``condition`` held, until it is notified or ``now()`` reaches ``until``.

        May return early for no reason; the caller looks again.
        """
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        """Call back on the running event loop once ``now()`` reaches ``when``.

        May call a little early; the callback looks again.

        :raises RuntimeError: if no event loop is running
        """
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        # A wait longer than the platform's limit raises; waking up early is allowed.
        condition.wait(None if until is None else min(until - self.now(), threading.TIMEOUT_MAX))

    def call_at(self, when: float, callback: Callable[[], object]) -> Timer:
        import asyncio  # here, because threaded programs need not load it

        # The loop's own clock may count from another moment.
        return asyncio.get_running_loop().call_later(when - self.now(), callback)


SYSTEM_CLOCK = SystemClock()

"""What the threaded and the asyncio queues share: everything that waits for nothing.

Each front says how it keeps others out during an operation (``_operation``), and how it wakes those
who wait.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Generic, TypeVar

from workqueue.limiters import RateLimiter, default_controller_rate_limiter
from workqueue.metrics import Gauges, Meter, MetricsProvider

if TYPE_CHECKING:
    from typing import Any

    from workqueue._core import Core, Statistics
    from workqueue._priority import PriorityCore
    from workqueue.clock import Clock

K = TypeVar("K")


class ShutDown(Exception):  # noqa: N818 - the name that queue.ShutDown has in newer Pythons
    """The queue is shutting down and has nothing more to hand out."""


class Front(Generic[K]):
    """Operations that never wait, over the core."""

    _core: Core[K]
    _meter: Meter[K] | None = None
    _metered = False

    def _set_up(self, name: str, clock: Clock, metrics: MetricsProvider | None) -> Meter[K] | None:
        self.name = name
        self._clock = clock
        self._getters = 0
        if metrics is not None and name:
            self._meter = Meter(clock)
        return self._meter

    def _open_metrics(self, metrics: MetricsProvider | None) -> None:
        """Begin the series; from here on the queue may be read at any moment, so that this comes
        once it is whole."""
        if metrics is not None and self._meter is not None:
            self._meter.instruments = metrics.open(self.name, self._gauges)
            self._metered = True

    def _operation(self) -> AbstractContextManager[Any]:
        """Keep others out."""
        return nullcontext()

    def _wake(self, count: int) -> None:
        """Wake so many of those who wait for a key."""
        raise AssertionError("each front says how")

    def _look_again(self) -> None:
        """The first deadline is a new one: whoever waits for the old one must learn of it."""
        raise AssertionError("each front says how")

    def _wake_all(self) -> None:
        """Wake everyone who waits, for a key or for the end."""
        raise AssertionError("each front says how")

    def _finished(self) -> None:
        """Wake those who wait for the end of all work, if it has come; close the metrics then."""
        if self._core.shutting_down and self._core.drained and self._metered:
            assert self._meter is not None
            self._metered = False
            self._meter.close()

    def _promote(self) -> None:
        """Queue what has become due, and wake as many.

        Before every operation, so that keys are queued in the order in which they became due or
        were added, whenever somebody looks.
        """
        if self._core.delayed:
            self._wake(self._core.promote(self._clock.now()))

    def _gauges(self) -> Gauges:
        with self._operation():
            self._promote()
            assert self._meter is not None
            return self._meter.gauges()

    @property
    def shutting_down(self) -> bool:
        """Whether no more keys are taken."""
        return self._core.shutting_down

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in hand, or becomes due later."""
        with self._operation():
            return self._core.idle

    def statistics(self) -> Statistics:
        """Count everything, at one moment."""
        with self._operation():
            self._promote()
            return self._core.statistics(self._getters)

    def __len__(self) -> int:
        """How many keys are queued: neither those in hand nor those that become due later."""
        with self._operation():
            self._promote()
            return len(self._core)

    def add(self, key: K) -> None:
        """Mark a key as needing work. Ignored after shutdown.

        :raises TypeError: if the key is not hashable
        """
        core = self._core
        with self._operation():
            if core.delayed:
                self._promote()
            if core.add(key) and self._getters:
                self._wake(1)

    def done(self, key: K) -> None:
        """End the work on a key. If it was added meanwhile, it is queued again.

        A key that is not in hand is ignored and counted.
        """
        core = self._core
        with self._operation():
            if core.delayed:
                self._promote()
            if core.done(key):
                if self._getters:
                    self._wake(1)
            elif core.shutting_down:
                self._finished()

    def _add_after(self, key: K, delay: float) -> None:
        with self._operation():
            self._promote()
            if self._meter is not None and not self._core.shutting_down:
                self._meter.retried()
            if self._core.add_after(key, delay, self._clock.now()):
                self._wake_for(delay)

    def _wake_for(self, delay: float) -> None:
        if delay > 0:
            self._look_again()
        else:
            self._wake(1)


class Delaying(Front[K]):
    """Adds for later. Ported from client-go ``TypedDelayingInterface``."""

    def add_after(self, key: K, delay: float) -> None:
        """Add the key once ``delay`` seconds have passed; at once if that is not above 0.

        A key has one deadline, the earliest asked for. An infinite delay adds it never. Deadlines
        do not survive shutdown.

        :raises ValueError: if ``delay`` is not a number
        """
        self._add_after(key, delay)

    def forget_delayed(self, key: K) -> bool:
        """Drop the key's deadline, if it has one; whether it had."""
        with self._operation():
            self._promote()
            return self._core.forget_delayed(key)


class RateLimiting(Delaying[K]):
    """Adds a failing key later and later. Ported from client-go ``TypedRateLimitingInterface``."""

    _limiter: RateLimiter[K]

    def _set_limiter(self, limiter: RateLimiter[K] | None) -> None:
        self._limiter = limiter or default_controller_rate_limiter(clock=self._clock)

    def add_rate_limited(self, key: K) -> None:
        """Add the key when the limiter says it may be tried again."""
        self.add_after(key, self._limiter.when(key))

    def forget(self, key: K) -> None:
        """Tell the limiter that the key succeeded. Removes nothing from the queue."""
        self._limiter.forget(key)

    def num_requeues(self, key: K) -> int:
        """How often the limiter saw the key fail since it was last forgotten."""
        return self._limiter.num_requeues(key)


class Prioritised(RateLimiting[K]):
    """Keys with priorities; see ``_priority``. ``add`` and ``add_after`` add at priority 0."""

    _core: PriorityCore[K]

    def add_with(
        self, *keys: K, priority: int = 0, after: float = 0.0, rate_limited: bool = False
    ) -> None:
        """Add keys at a priority. Ported from controller-runtime's ``AddWithOpts``.

        A key that is queued or waits already gets the higher of the priorities and the earlier of
        the moments.

        :param after: seconds to wait; with ``rate_limited`` the smaller of the two that is not 0
        :param rate_limited: whether the limiter counts a failure and says how long to wait
        :raises ValueError: if ``after`` is not a number
        """
        for key in keys:
            delays = [delay for delay in (after, self._limited(key, rate_limited)) if delay > 0]
            with self._operation():
                self._promote()
                delay = min(delays, default=after)
                if delay != 0 and self._meter is not None and not self._core.shutting_down:
                    self._meter.retried()
                if self._core.add_with(key, priority, delay, self._clock.now()):
                    self._wake_for(delay)

    def _limited(self, key: K, rate_limited: bool) -> float:
        return self._limiter.when(key) if rate_limited else 0.0

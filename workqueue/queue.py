"""The threaded queues: client-go's work queue, its delaying and its rate-limiting form.

All three share one lock. No thread of their own: workers that wait in ``get`` wake up when the next
delayed key becomes due. Every method may be called by any thread; none blocks but ``get`` and
``shut_down_with_drain``.

A worker's life::

    while True:
        try:
            with queue.lease() as key:
                work_on(key)
        except ShutDown:
            break
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, TypeVar

from workqueue._core import Core, Statistics
from workqueue.clock import SYSTEM_CLOCK, Clock
from workqueue.limiters import RateLimiter, default_controller_rate_limiter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

K = TypeVar("K")


class ShutDown(Exception):  # noqa: N818 - the name that queue.ShutDown has in newer Pythons
    """The queue is shutting down and has nothing more to hand out."""


class Queue(Generic[K]):
    """A queue of keys that holds each key at most once and hands it to one worker at a time.

    Keys are compared by value and must be hashable. Ported from client-go ``workqueue.Typed``.
    """

    def __init__(self, name: str = "", *, clock: Clock = SYSTEM_CLOCK) -> None:
        self.name = name
        self._clock = clock
        self._core: Core[K] = Core()
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._settled = threading.Condition(lock)
        self._draining = False

    def add(self, key: K) -> None:
        """Mark a key as needing work. Ignored after shutdown.

        :raises TypeError: if the key is not hashable
        """
        with self._changed:
            self._promote()
            if self._core.add(key):
                self._changed.notify()

    def get(self, timeout: float | None = None) -> K:
        """Wait for a key and take it in hand; ``done`` must follow.

        :param timeout: seconds to wait at most; ``None`` waits for ever
        :raises ShutDown: if the queue is shutting down and nothing is queued
        :raises TimeoutError: if nothing came in time
        """
        core = self._core
        with self._changed:
            until = None if timeout is None else self._clock.now() + timeout
            while True:
                self._promote()
                if len(core):
                    return core.take()
                if core.shutting_down:
                    raise ShutDown
                if until is not None and self._clock.now() >= until:
                    raise TimeoutError(f"no key within {timeout} s")
                moments = [m for m in (until, core.next_due()) if m is not None]
                self._clock.wait(self._changed, min(moments, default=None))

    def get_or_shutdown(self) -> tuple[K | None, bool]:
        """Wait for a key: ``(key, False)``, or ``(None, True)`` on shutdown, as Go's ``Get``."""
        try:
            return self.get(), False
        except ShutDown:
            return None, True

    def done(self, key: K) -> None:
        """End the work on a key. If it was added meanwhile, it is queued again.

        A key that is not in hand is ignored and counted.
        """
        with self._changed:
            self._promote()
            if self._core.done(key):
                self._changed.notify()
            elif self._core.drained:
                self._settled.notify_all()

    @contextmanager
    def lease(self, timeout: float | None = None) -> Iterator[K]:
        """``get`` a key, and ``done`` it however the block ends."""
        key = self.get(timeout)
        try:
            yield key
        finally:
            self.done(key)

    def shut_down(self) -> None:
        """Take no more keys. What is queued is still handed out; then ``get`` raises ``ShutDown``.

        Ends a drain that others wait for.
        """
        with self._changed:
            self._draining = False
            self._shut_down()

    def shut_down_with_drain(self, timeout: float | None = None) -> bool:
        """Take no more keys and wait until all that are queued or in hand are done.

        :param timeout: seconds to wait at most; ``None`` waits for ever
        :returns: whether everything was done; ``False`` on timeout or if ``shut_down`` came
        """
        with self._changed:
            self._draining = True
            self._shut_down()
            until = None if timeout is None else self._clock.now() + timeout
            while self._draining and not self._core.drained:
                if until is not None and self._clock.now() >= until:
                    break
                self._clock.wait(self._settled, until)
            return self._core.drained

    def _shut_down(self) -> None:
        self._promote()
        self._core.shut_down()
        self._changed.notify_all()
        self._settled.notify_all()

    @property
    def shutting_down(self) -> bool:
        """Whether no more keys are taken."""
        return self._core.shutting_down

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in hand, or becomes due later."""
        with self._changed:
            return self._core.idle

    def statistics(self) -> Statistics:
        """Count everything, at one moment."""
        with self._changed:
            self._promote()
            return self._core.statistics()

    def __len__(self) -> int:
        """How many keys are queued: neither those in hand nor those that become due later."""
        with self._changed:
            self._promote()
            return len(self._core)

    def _promote(self) -> None:
        """Queue what has become due, and wake as many workers.

        Before every operation, so that keys are queued in the order in which they became due or
        were added, whenever somebody looks.
        """
        self._changed.notify(self._core.promote(self._clock.now()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shut_down()


class DelayingQueue(Queue[K]):
    """A queue that can also add a key later. Ported from client-go ``TypedDelayingInterface``."""

    def add_after(self, key: K, delay: float) -> None:
        """Add the key once ``delay`` seconds have passed; at once if that is not above 0.

        A key has one deadline, the earliest asked for. An infinite delay adds it never. Deadlines
        do not survive shutdown.

        :raises ValueError: if ``delay`` is not a number
        """
        with self._changed:
            self._promote()
            if self._core.add_after(key, delay, self._clock.now()):
                self._changed.notify()

    def forget_delayed(self, key: K) -> bool:
        """Drop the key's deadline, if it has one; whether it had."""
        with self._changed:
            self._promote()
            return self._core.forget_delayed(key)


class RateLimitingQueue(DelayingQueue[K]):
    """A queue that adds a failing key later and later.

    Ported from client-go ``TypedRateLimitingInterface``.
    """

    def __init__(
        self,
        limiter: RateLimiter[K] | None = None,
        name: str = "",
        *,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        super().__init__(name, clock=clock)
        self._limiter = limiter or default_controller_rate_limiter(clock=clock)

    def add_rate_limited(self, key: K) -> None:
        """Add the key when the limiter says it may be tried again."""
        self.add_after(key, self._limiter.when(key))

    def forget(self, key: K) -> None:
        """Tell the limiter that the key succeeded. Removes nothing from the queue."""
        self._limiter.forget(key)

    def num_requeues(self, key: K) -> int:
        """How often the limiter saw the key fail since it was last forgotten."""
        return self._limiter.num_requeues(key)

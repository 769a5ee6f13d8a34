"""The threaded queues: client-go's work queue, its delaying, rate-limiting and priority forms.

Each has one lock. No thread of their own: workers that wait in ``get`` wake up when the next
delayed key becomes due. Every method may be called by any thread; none waits but ``get`` and
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
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from workqueue._core import Core, Order
from workqueue._front import Delaying, Front, Prioritised, RateLimiting, ShutDown
from workqueue._priority import PriorityCore
from workqueue.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType
    from typing import Self

    from workqueue.limiters import RateLimiter
    from workqueue.metrics import MetricsProvider

__all__ = ["DelayingQueue", "PriorityQueue", "Queue", "RateLimitingQueue", "ShutDown"]

K = TypeVar("K")


class Queue(Front[K]):
    """A queue of keys that holds each key at most once and hands it to one worker at a time.

    Keys are compared by value and must be hashable. Ported from client-go ``workqueue.Typed``.
    """

    def __init__(
        self,
        name: str = "",
        *,
        clock: Clock = SYSTEM_CLOCK,
        metrics: MetricsProvider | None = None,
        order: Order[K] | None = None,
        preempt_delayed: bool = False,
    ) -> None:
        """
        :param name: what metrics call it; without a name it has none
        :param order: the order in which keys are handed out; first in, first out by default
        :param preempt_delayed: whether an add drops the key's deadline. client-go's does not, so
            that such a key runs twice
        :raises ValueError: if the provider has a queue of that name already
        """
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._settled = threading.Condition(self._lock)
        self._draining = False
        meter = self._set_up(name, clock, metrics)
        self._core = Core(order, preempt_delayed=preempt_delayed, observer=meter)
        self._open_metrics(metrics)

    def _operation(self) -> AbstractContextManager[Any]:
        # The lock itself: entering a condition costs a call more.
        return self._lock

    def _wake(self, count: int) -> None:
        self._changed.notify(count)

    def _look_again(self) -> None:
        # All of them: one alone may give up, by its timeout, before the deadline that it learnt of.
        self._changed.notify_all()

    def _wake_all(self) -> None:
        self._changed.notify_all()
        self._settled.notify_all()

    def _finished(self) -> None:
        if self._core.drained:
            self._settled.notify_all()
        super()._finished()

    def get(self, timeout: float | None = None) -> K:
        """Wait for a key and take it in hand; ``done`` must follow.

        :param timeout: seconds to wait at most; ``None`` waits for ever
        :raises ShutDown: if the queue is shutting down and nothing is queued
        :raises TimeoutError: if nothing came in time
        """
        core = self._core
        with self._lock:
            if core.delayed:
                self._promote()
            if not len(core):
                self._wait(timeout)
            return core.take()

    def _wait(self, timeout: float | None) -> None:
        """Return when a key is queued."""
        core, clock = self._core, self._clock
        until = None if timeout is None else clock.now() + timeout
        while not len(core):
            if core.shutting_down:
                raise ShutDown
            if until is not None and clock.now() >= until:
                raise TimeoutError(f"no key within {timeout} s")
            moments = [m for m in (until, core.next_due()) if m is not None]
            self._getters += 1
            try:
                clock.wait(self._changed, min(moments, default=None))
            finally:
                self._getters -= 1
            self._promote()

    def get_or_shutdown(self) -> tuple[K | None, bool]:
        """Wait for a key: ``(key, False)``, or ``(None, True)`` on shutdown, as Go's ``Get``."""
        try:
            return self.get(), False
        except ShutDown:
            return None, True

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
        with self._lock:
            self._draining = False
            self._begin_shut_down()

    def shut_down_with_drain(self, timeout: float | None = None) -> bool:
        """Take no more keys and wait until all that are queued or in hand are done.

        :param timeout: seconds to wait at most; ``None`` waits for ever
        :returns: whether everything was done; ``False`` on timeout or if ``shut_down`` came
        """
        with self._lock:
            self._draining = True
            self._begin_shut_down()
            until = None if timeout is None else self._clock.now() + timeout
            while self._draining and not self._core.drained:
                if until is not None and self._clock.now() >= until:
                    break
                self._clock.wait(self._settled, until)
            return self._core.drained

    def _begin_shut_down(self) -> None:
        self._promote()
        self._core.shut_down()
        self._wake_all()
        self._finished()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shut_down()


class DelayingQueue(Queue[K], Delaying[K]):
    """A queue that can also add a key later. Ported from client-go ``TypedDelayingInterface``."""


class RateLimitingQueue(DelayingQueue[K], RateLimiting[K]):
    """A queue that adds a failing key later and later.

    Ported from client-go ``TypedRateLimitingInterface``.
    """

    def __init__(
        self,
        limiter: RateLimiter[K] | None = None,
        name: str = "",
        *,
        clock: Clock = SYSTEM_CLOCK,
        metrics: MetricsProvider | None = None,
        order: Order[K] | None = None,
        preempt_delayed: bool = False,
    ) -> None:
        """
        :param limiter: how long failing keys wait; client-go's default where none is given
        """
        super().__init__(
            name, clock=clock, metrics=metrics, order=order, preempt_delayed=preempt_delayed
        )
        self._set_limiter(limiter)


class PriorityQueue(RateLimitingQueue[K], Prioritised[K]):
    """A queue that hands out the key of the highest priority first.

    Higher numbers first; first in, first out within a priority. An add pulls a key forward that
    waits for its deadline. Ported from controller-runtime's ``priorityqueue``.
    """

    def __init__(
        self,
        limiter: RateLimiter[K] | None = None,
        name: str = "",
        *,
        clock: Clock = SYSTEM_CLOCK,
        metrics: MetricsProvider | None = None,
    ) -> None:
        super().__init__(limiter, name, clock=clock, metrics=metrics)
        self._core: PriorityCore[K] = PriorityCore(observer=self._meter)

    def get_with_priority(self, timeout: float | None = None) -> tuple[K, int]:
        """``get`` a key and the priority with which it was queued."""
        with self._lock:
            self._promote()
            if not len(self._core):
                self._wait(timeout)
            key = self._core.take()
            return key, self._core.priority_in_hand(key)

"""The queues for asyncio: the same names, rules and numbers as the threaded ones.

``add``, ``done`` and their like are plain calls on the event loop's thread; ``get``, ``lease`` and
``shut_down_with_drain`` are awaited. A queue belongs to the loop that first waits on it. From other
threads use ``add_threadsafe`` and ``add_after_threadsafe``, which are the only methods for them.

A ``get`` that is cancelled loses no key: one that was woken passes the wake on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from workqueue._core import Core, Order
from workqueue._front import Delaying, Front, Prioritised, RateLimiting, ShutDown
from workqueue._priority import PriorityCore
from workqueue.clock import SYSTEM_CLOCK, Clock, Timer
from workqueue.parallel import parallelize_until_async as parallelize_until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from types import TracebackType
    from typing import Self

    from workqueue.limiters import RateLimiter
    from workqueue.metrics import Gauges, MetricsProvider

__all__ = [
    "DelayingQueue",
    "PriorityQueue",
    "Queue",
    "RateLimitingQueue",
    "ShutDown",
    "parallelize_until",
]

K = TypeVar("K")


class Queue(Front[K]):
    """A queue of keys that holds each key at most once and hands it to one task at a time."""

    def __init__(
        self,
        name: str = "",
        *,
        clock: Clock = SYSTEM_CLOCK,
        metrics: MetricsProvider | None = None,
        order: Order[K] | None = None,
        preempt_delayed: bool = False,
    ) -> None:
        """See ``workqueue.Queue``."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._drainers: list[asyncio.Future[None]] = []
        self._timer: Timer | None = None
        self._draining = False
        meter = self._set_up(name, clock, metrics)
        self._core = Core(order, preempt_delayed=preempt_delayed, observer=meter)
        self._open_metrics(metrics)

    # -- waking --------------------------------------------------------------------------------

    def _wake(self, count: int) -> None:
        while count > 0 and self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    def _wake_all(self) -> None:
        self._wake(len(self._waiters))
        self._release_drainers()

    def _finished(self) -> None:
        if self._core.drained:
            self._release_drainers()
        super()._finished()

    def _release_drainers(self) -> None:
        for drainer in self._drainers:
            if not drainer.done():
                drainer.set_result(None)

    def _arm(self) -> None:
        """See that somebody who waits is woken when the next key becomes due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = self._core.next_due()
        if due is not None and self._waiters:
            self._timer = self._clock.call_at(due, self._on_due)

    def _on_due(self) -> None:
        self._timer = None
        self._promote()
        self._arm()

    def _look_again(self) -> None:
        self._arm()

    def _gauges(self) -> Gauges:
        """Called by whatever thread collects metrics, so it must not promote: that is the loop's.

        A key that became due while every task was busy is counted from the next operation on.
        """
        assert self._meter is not None
        return self._meter.gauges()

    # -- waiting -------------------------------------------------------------------------------

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        elif self._loop is not loop:
            raise RuntimeError(f"queue {self.name!r} belongs to another event loop")
        return loop

    async def get(self, timeout: float | None = None) -> K:  # noqa: ASYNC109 - as the threaded one
        """Wait for a key and take it in hand; ``done`` must follow.

        :param timeout: seconds to wait at most; ``None`` waits for ever
        :raises ShutDown: if the queue is shutting down and nothing is queued
        :raises TimeoutError: if nothing came in time
        :raises RuntimeError: if the queue belongs to another event loop
        """
        loop = self._running_loop()
        core, clock = self._core, self._clock
        until = None if timeout is None else clock.now() + timeout
        self._promote()
        while not len(core):
            if core.shutting_down:
                raise ShutDown
            if until is not None and clock.now() >= until:
                raise TimeoutError(f"no key within {timeout} s")
            await self._wait(loop.create_future(), until)
            self._promote()
        return core.take()

    async def _wait(self, waiter: asyncio.Future[None], until: float | None) -> None:
        """Wait until woken, or until that moment."""
        self._waiters.append(waiter)
        self._arm()
        alarm = None if until is None else self._clock.call_at(until, partial(_set, waiter))
        self._getters += 1
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake(1)  # somebody else takes what this one was woken for
            raise
        finally:
            self._getters -= 1
            if alarm is not None:
                alarm.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    async def get_or_shutdown(self) -> tuple[K | None, bool]:
        """Wait for a key: ``(key, False)``, or ``(None, True)`` on shutdown, as Go's ``Get``."""
        try:
            return await self.get(), False
        except ShutDown:
            return None, True

    @asynccontextmanager
    async def lease(self, timeout: float | None = None) -> AsyncIterator[K]:  # noqa: ASYNC109
        """``get`` a key, and ``done`` it however the block ends."""
        key = await self.get(timeout)
        try:
            yield key
        finally:
            self.done(key)

    # -- other threads -------------------------------------------------------------------------

    def add_threadsafe(self, key: K) -> None:
        """``add`` from another thread.

        :raises RuntimeError: if no task has waited on the queue yet, or its loop is closed
        """
        self._other_loop().call_soon_threadsafe(self.add, key)

    def _other_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise RuntimeError(f"queue {self.name!r} belongs to no event loop yet")
        return self._loop

    # -- the end -------------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Take no more keys. What is queued is still handed out; then ``get`` raises ``ShutDown``.

        Ends a drain that others wait for.
        """
        self._draining = False
        self._begin_shut_down()

    async def shut_down_with_drain(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Take no more keys and wait until all that are queued or in hand are done.

        :param timeout: seconds to wait at most; ``None`` waits for ever
        :returns: whether everything was done; ``False`` on timeout or if ``shut_down`` came
        """
        loop = self._running_loop()
        self._draining = True
        self._begin_shut_down()
        until = None if timeout is None else self._clock.now() + timeout
        while self._draining and not self._core.drained:
            if until is not None and self._clock.now() >= until:
                break
            drainer: asyncio.Future[None] = loop.create_future()
            self._drainers.append(drainer)
            alarm = None if until is None else self._clock.call_at(until, partial(_set, drainer))
            try:
                await drainer
            finally:
                self._drainers.remove(drainer)
                if alarm is not None:
                    alarm.cancel()
        return self._core.drained

    def _begin_shut_down(self) -> None:
        self._promote()
        self._core.shut_down()
        self._wake_all()
        self._arm()
        self._finished()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.shut_down()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class DelayingQueue(Queue[K], Delaying[K]):
    """A queue that can also add a key later."""

    def add_after_threadsafe(self, key: K, delay: float) -> None:
        """``add_after`` from another thread.

        :raises RuntimeError: if no task has waited on the queue yet, or its loop is closed
        """
        self._other_loop().call_soon_threadsafe(self.add_after, key, delay)


class RateLimitingQueue(DelayingQueue[K], RateLimiting[K]):
    """A queue that adds a failing key later and later."""

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
        """See ``workqueue.RateLimitingQueue``."""
        super().__init__(
            name, clock=clock, metrics=metrics, order=order, preempt_delayed=preempt_delayed
        )
        self._set_limiter(limiter)


class PriorityQueue(RateLimitingQueue[K], Prioritised[K]):
    """A queue that hands out the key of the highest priority first."""

    def __init__(
        self,
        limiter: RateLimiter[K] | None = None,
        name: str = "",
        *,
        clock: Clock = SYSTEM_CLOCK,
        metrics: MetricsProvider | None = None,
    ) -> None:
        """See ``workqueue.PriorityQueue``."""
        super().__init__(limiter, name, clock=clock, metrics=metrics)
        self._core: PriorityCore[K] = PriorityCore(observer=self._meter)

    async def get_with_priority(self, timeout: float | None = None) -> tuple[K, int]:  # noqa: ASYNC109
        """``get`` a key and the priority with which it was queued."""
        key = await self.get(timeout)
        return key, self._core.priority_in_hand(key)

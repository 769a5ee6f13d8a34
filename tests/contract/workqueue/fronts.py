"""Both kinds of queue behind one face, so that one suite holds for both.

``Threaded`` hands out the queues as they are. ``Asyncio`` runs an event loop in a thread of its own
and makes each call there; what waits in a coroutine looks to the test like a thread that waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self

import workqueue
from workqueue import ShutDown, Statistics, aio

PATIENCE = 10.0

CLASSES = ("Queue", "DelayingQueue", "RateLimitingQueue", "PriorityQueue")


class Threaded:
    """The queues for threads."""

    def make(self, kind: str, *args: Any, **options: Any) -> Any:
        return getattr(workqueue, kind)(*args, **options)

    def close(self) -> None:
        pass


class Asyncio:
    """The queues for asyncio, called from outside their loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def make(self, kind: str, *args: Any, **options: Any) -> Any:
        async def build() -> Any:
            return getattr(aio, kind)(*args, **options)

        return _FromOutside(self.run(build()), self)

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        async def cancel() -> None:
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()

        self.run(cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()


class _FromOutside:
    """Each method of the queue, run on the loop; the caller waits for its end."""

    def __init__(self, queue: Any, front: Asyncio) -> None:
        self._queue = queue
        self._front = front

    def __getattr__(self, name: str) -> Any:
        method = getattr(type(self._queue), name)
        if isinstance(method, property):
            return self._call(lambda: getattr(self._queue, name))

        def call(*args: Any, **options: Any) -> Any:
            return self._call(lambda: getattr(self._queue, name)(*args, **options))

        return call

    def _call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            result = function()
            return await result if asyncio.iscoroutine(result) else result

        return self._front.run(run())

    def __len__(self) -> int:
        found: int = self._call(lambda: len(self._queue))
        return found

    @contextmanager
    def lease(self, timeout: float | None = None) -> Iterator[Any]:
        key = self.get(timeout)
        try:
            yield key
        finally:
            self.done(key)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.shut_down()


class Caller(threading.Thread):
    """Calls a function in a thread of its own and keeps what came of it."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except (ShutDown, TimeoutError) as error:
            self.result = type(error)

    def outcome(self) -> object:
        self.join(PATIENCE)
        assert not self.is_alive(), "still waiting"
        return self.result


def until(condition: Callable[[], bool]) -> None:
    """Wait until something that other threads do has come about."""
    pause = threading.Event()
    for _ in range(20_000):
        if condition():
            return
        pause.wait(0.0005)
    raise AssertionError("it did not come about")


def until_getters(queue: Any, count: int) -> None:
    """Wait until so many wait for a key."""

    def there() -> bool:
        statistics: Statistics = queue.statistics()
        return statistics.getters == count

    until(there)

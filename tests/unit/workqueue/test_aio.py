"""What only the asyncio queues promise."""

from __future__ import annotations

import asyncio
import threading

import pytest

from workqueue import aio
from workqueue.testing import FakeClock


def test_a_get_that_is_cancelled_while_it_is_woken_passes_the_key_on() -> None:
    async def scenario() -> None:
        queue: aio.Queue[str] = aio.Queue()
        first, second = (asyncio.create_task(queue.get()) for _ in range(2))
        await asyncio.sleep(0)
        queue.add("a")  # wakes the first, which has not run yet
        first.cancel()
        assert await second == "a"
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(scenario())


def test_a_get_that_is_cancelled_before_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        queue: aio.Queue[str] = aio.Queue()
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        assert queue.statistics().getters == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert queue.statistics().getters == 0
        queue.add("a")
        assert await queue.get() == "a"

    asyncio.run(scenario())


def test_who_waits_longest_is_served_first() -> None:
    async def scenario() -> None:
        queue: aio.Queue[int] = aio.Queue()
        order: list[int] = []

        async def worker(number: int) -> None:
            await queue.get()
            order.append(number)

        tasks = [asyncio.create_task(worker(n)) for n in range(3)]
        await asyncio.sleep(0)
        for key in range(3):
            queue.add(key)
        await asyncio.gather(*tasks)
        assert order == [0, 1, 2]

    asyncio.run(scenario())


def test_adds_from_other_threads_wake_the_loop() -> None:
    async def scenario() -> None:
        queue: aio.DelayingQueue[str] = aio.DelayingQueue()
        with pytest.raises(RuntimeError, match="no event loop yet"):
            queue.add_threadsafe("early")
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        thread = threading.Thread(target=queue.add_threadsafe, args=("a",))
        thread.start()
        assert await waiting == "a"
        thread.join()
        later = threading.Thread(target=queue.add_after_threadsafe, args=("b", 0.001))
        later.start()
        assert await queue.get(timeout=10) == "b"
        later.join()

    asyncio.run(scenario())


def test_another_loop_is_refused() -> None:
    queue: aio.Queue[str] = aio.Queue("q")
    queue.add("a")
    assert asyncio.run(queue.get()) == "a"
    with pytest.raises(RuntimeError, match="'q' belongs to another event loop"):
        asyncio.run(queue.get())


def test_a_lease_is_returned_when_its_task_is_cancelled() -> None:
    async def scenario() -> None:
        queue: aio.Queue[str] = aio.Queue()
        queue.add("a")

        async def work() -> None:
            async with queue.lease():
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert queue.statistics().processing == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert queue.statistics().processing == 0

    asyncio.run(scenario())


def test_leaving_the_block_shuts_down() -> None:
    async def scenario() -> None:
        async with aio.Queue[str]() as queue:
            waiting = asyncio.create_task(queue.get())
            await asyncio.sleep(0)
        with pytest.raises(aio.ShutDown):
            await waiting

    asyncio.run(scenario())


def test_one_timer_however_many_keys_wait() -> None:
    async def scenario() -> None:
        clock = FakeClock()
        queue: aio.DelayingQueue[int] = aio.DelayingQueue(clock=clock)
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        for key in range(100):
            queue.add_after(key, 100 - key)
        await asyncio.sleep(0)
        assert len(clock._timers) == 1
        clock.step(1)
        assert await waiting == 99

    asyncio.run(scenario())

"""What the queue's operations cost, beside the queues of the standard library and client-go's.

All in one run on one machine; only the ratios mean anything elsewhere. client-go's queue is built
from ``peers/workqueue`` where there is Go, and reported as absent where there is none.
"""

from __future__ import annotations

import asyncio
import gc
import queue as stdlib
import shutil
import statistics
import subprocess
import sys
import threading
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING

from workqueue import DelayingQueue, Queue, ShutDown, aio

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 5
OPERATIONS = 100_000

PEER = Path(__file__).parent / "peers" / "workqueue"


def nanoseconds(work: Callable[[int], None], count: int = OPERATIONS) -> float:
    """The median of some rounds, for one operation."""
    found = []
    for _ in range(ROUNDS):
        gc.collect()
        started = time.perf_counter_ns()
        work(count)
        found.append((time.perf_counter_ns() - started) / count)
    return statistics.median(found)


# -- one thread --------------------------------------------------------------------------------


def put(count: int) -> None:
    q: stdlib.Queue[int] = stdlib.Queue()
    for i in range(count):
        q.put(i)


def put_and_get(count: int) -> None:
    q: stdlib.Queue[int] = stdlib.Queue()
    for i in range(count):
        q.put(i)
        q.get()


def collapsed_add(count: int) -> None:
    q: Queue[int] = Queue()
    q.add(1)
    for _ in range(count):
        q.add(1)


def add_get_done(count: int) -> None:
    q: Queue[int] = Queue()
    for i in range(count):
        q.add(i)
        q.done(q.get())


def asyncio_put_and_get(count: int) -> None:
    async def run() -> None:
        q: asyncio.Queue[int] = asyncio.Queue()
        for i in range(count):
            q.put_nowait(i)
            await q.get()

    asyncio.run(run())


def aio_add_get_done(count: int) -> None:
    async def run() -> None:
        q: aio.Queue[int] = aio.Queue()
        for i in range(count):
            q.add(i)
            q.done(await q.get())

    asyncio.run(run())


def add_after(count: int) -> None:
    q: DelayingQueue[int] = DelayingQueue()
    for i in range(count):
        q.add_after(i, 3600 + i % 1000)


# -- threads -----------------------------------------------------------------------------------


def four_and_four(count: int) -> None:
    q: Queue[int] = Queue()

    def consume() -> None:
        while True:
            try:
                q.done(q.get())
            except ShutDown:
                return

    run_threads(lambda start: [q.add(i) for i in range(start, count, 4)], consume, q.shut_down)  # type: ignore[func-returns-value]


def four_and_four_stdlib(count: int) -> None:
    q: stdlib.Queue[int] = stdlib.Queue()

    def consume() -> None:
        while q.get() >= 0:
            pass

    def stop() -> None:
        for _ in range(4):
            q.put(-1)

    run_threads(lambda start: [q.put(i) for i in range(start, count, 4)], consume, stop)  # type: ignore[func-returns-value]


def run_threads(
    produce: Callable[[int], object], consume: Callable[[], None], stop: Callable[[], None]
) -> None:
    consumers = [threading.Thread(target=consume) for _ in range(4)]
    producers = [threading.Thread(target=produce, args=(n,)) for n in range(4)]
    for thread in [*consumers, *producers]:
        thread.start()
    for thread in producers:
        thread.join()
    stop()
    for thread in consumers:
        thread.join()


# -- report ------------------------------------------------------------------------------------


def bytes_per_key(count: int) -> float:
    """What the queue adds to the keys themselves."""
    keys = [f"namespace/name-{i}" for i in range(count)]
    gc.collect()
    tracemalloc.start()
    q: Queue[str] = Queue()
    for key in keys:
        q.add(key)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return used / count


def client_go() -> dict[str, float]:
    go = shutil.which("go")
    if go is None:
        return {}
    done = subprocess.run([go, "run", "."], cwd=PEER, capture_output=True, text=True, check=False)
    if done.returncode:
        print(
            f"client-go's queue could not be built: {done.stderr.strip()[-300:]}", file=sys.stderr
        )
    lines = (line.rsplit(" ", 1) for line in done.stdout.splitlines())
    return {name: float(number) for name, number in lines}


def main() -> None:
    go = client_go()
    rows: list[tuple[str, Callable[[int], None], Callable[[int], None] | None, str]] = [
        ("collapsed add", collapsed_add, put, "queue.Queue.put"),
        ("add+get+done", add_get_done, put_and_get, "queue.Queue.put+get"),
        ("4 producers, 4 workers", four_and_four, four_and_four_stdlib, "queue.Queue"),
        ("add_after, 100,000 keys", add_after, None, ""),
        ("asyncio add+get+done", aio_add_get_done, asyncio_put_and_get, "asyncio.Queue.put+get"),
    ]
    print(f"{'':24} {'ns':>7} {'peer ns':>8} {'ratio':>6}  {'client-go ns':>12} {'ratio':>6}")
    for name, ours, peer, peer_name in rows:
        mine = nanoseconds(ours)
        theirs = nanoseconds(peer) if peer else None
        against = f"{theirs:8.0f} {mine / theirs:6.2f}" if theirs else f"{'':8} {'':6}"
        upstream = f"{go[name]:12.0f} {mine / go[name]:6.2f}" if name in go else f"{'absent':>12}"
        print(f"{name:24} {mine:7.0f} {against}  {upstream}  {peer_name}")
    print("\nkeys      add+get+done ns  add_after ns  bytes per queued key")
    for size in (1_000, 10_000, 100_000, 1_000_000):
        flat, delayed = nanoseconds(add_get_done, size), nanoseconds(add_after, size)
        print(f"{size:>9,} {flat:15.0f} {delayed:13.0f} {bytes_per_key(size):21.0f}")


if __name__ == "__main__":
    main()

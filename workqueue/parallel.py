"""Work on many pieces with some workers. Ported from client-go's ``ParallelizeUntil``."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator


def parallelize_until(
    workers: int,
    pieces: int,
    work: Callable[[int], object],
    *,
    chunk_size: int = 1,
    stop: Callable[[], bool] | None = None,
) -> None:
    """Call ``work`` once with each number from 0 to ``pieces`` - 1, by some threads.

    :param chunk_size: how many pieces a worker takes at a time
    :param stop: asked before each piece; once it says so, no further piece begins
    :raises ValueError: if there is no worker, a negative number of pieces, or an empty chunk
    :raises ExceptionGroup: what pieces raised, once all the others are done
    """
    chunks = _Chunks(workers, pieces, chunk_size)
    errors: list[Exception] = []

    def run() -> None:
        for piece in chunks:
            if stop is not None and stop():
                return
            try:
                work(piece)
            except Exception as error:  # noqa: BLE001 - raised together at the end
                errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(chunks.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _raise(errors)


async def parallelize_until_async(
    workers: int,
    pieces: int,
    work: Callable[[int], Awaitable[object]],
    *,
    chunk_size: int = 1,
    stop: Callable[[], bool] | None = None,
) -> None:
    """``parallelize_until`` with coroutines on the running loop."""
    chunks = _Chunks(workers, pieces, chunk_size)
    errors: list[Exception] = []

    async def run() -> None:
        for piece in chunks:
            if stop is not None and stop():
                return
            try:
                await work(piece)
            except Exception as error:  # noqa: BLE001 - raised together at the end
                errors.append(error)

    async with asyncio.TaskGroup() as group:
        for _ in range(chunks.workers):
            group.create_task(run())
    _raise(errors)


class _Chunks:
    """The pieces; each iterator of it takes whole chunks that no other has taken."""

    def __init__(self, workers: int, pieces: int, chunk_size: int) -> None:
        if workers < 1 or pieces < 0 or chunk_size < 1:
            raise ValueError(
                f"{workers} workers cannot do {pieces} pieces in chunks of {chunk_size}"
            )
        self._starts = iter(range(0, pieces, chunk_size))
        self._pieces = pieces
        self._size = chunk_size
        self._lock = threading.Lock()
        self.workers = min(workers, -(-pieces // chunk_size))

    def __iter__(self) -> Iterator[int]:
        while True:
            with self._lock:
                start = next(self._starts, None)
            if start is None:
                return
            yield from range(start, min(start + self._size, self._pieces))


def _raise(errors: list[Exception]) -> None:
    if errors:
        raise ExceptionGroup("some pieces failed", errors)

"""``parallelize_until``, by threads and by tasks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from workqueue import aio, parallelize_until


def by_threads(workers: int, pieces: int, work: Callable[[int], object], **options: Any) -> None:
    parallelize_until(workers, pieces, work, **options)


def by_tasks(workers: int, pieces: int, work: Callable[[int], object], **options: Any) -> None:
    async def one(piece: int) -> None:
        await asyncio.sleep(0)
        work(piece)

    asyncio.run(aio.parallelize_until(workers, pieces, one, **options))


both = pytest.mark.parametrize("parallelize", [by_threads, by_tasks])


@both
@pytest.mark.parametrize(
    ("pieces", "workers", "chunk"),
    [(1000, 10, 1), (1000, 10, 10), (1000, 10, 100), (999, 10, 13), (0, 5, 1), (3, 10, 100)],
)
def test_each_piece_exactly_once(
    parallelize: Callable[..., None], pieces: int, workers: int, chunk: int
) -> None:
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def work(piece: int) -> None:
        with lock:
            seen[piece] += 1

    parallelize(workers, pieces, work, chunk_size=chunk)
    assert seen == Counter(range(pieces))


@both
def test_errors_are_gathered_and_the_other_pieces_done(parallelize: Callable[..., None]) -> None:
    done: list[int] = []

    def work(piece: int) -> None:
        if piece % 10 == 0:
            raise ValueError(f"piece {piece}")
        done.append(piece)

    with pytest.raises(ExceptionGroup) as group:
        parallelize(4, 100, work)
    assert len(group.value.exceptions) == 10
    assert len(done) == 90


@both
def test_no_piece_begins_after_the_stop(parallelize: Callable[..., None]) -> None:
    done: list[int] = []
    parallelize(1, 100, done.append, stop=lambda: len(done) >= 7)
    assert done == list(range(7))


@both
@pytest.mark.parametrize(("workers", "pieces", "chunk"), [(0, 1, 1), (1, -1, 1), (1, 1, 0)])
def test_senseless_numbers_are_refused(
    parallelize: Callable[..., None], workers: int, pieces: int, chunk: int
) -> None:
    with pytest.raises(ValueError, match="workers cannot do"):
        parallelize(workers, pieces, print, chunk_size=chunk)

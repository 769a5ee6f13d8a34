"""Where coroutines run: one event loop in a thread of its own, used by a controller's workers.

A worker that reconciles with a coroutine function waits for it, so that everything a controller
promises holds for both kinds of function. All coroutines of a controller share the loop, and with
it sessions and connection pools. See ``docs/adr/0010``.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Self

R = TypeVar("R")


class OutOfTimeError(TimeoutError):
    """It was cancelled because it was not done in the time that it had."""


class Loop:
    """An event loop that runs within a ``with`` block."""

    def __init__(self, name: str) -> None:
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(self, *_: object) -> None:
        """End the loop. Tasks that coroutines left behind are cancelled."""
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def run(self, awaitable: Awaitable[R], timeout: float | None) -> R:
        """Run it on the loop, from another thread, and return or raise as it does.

        It sees the caller's context variables, the current span among them.

        :param timeout: seconds after which it is cancelled
        :raises OutOfTimeError: if it was cancelled for that
        """
        assert self._loop is not None
        here = contextvars.copy_context()

        async def in_context() -> R:
            return await asyncio.create_task(_within(awaitable, timeout), context=here)

        return asyncio.run_coroutine_threadsafe(in_context(), self._loop).result()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._end = asyncio.Event()
        self._ready.set()
        await self._end.wait()


async def _within(awaitable: Awaitable[R], timeout: float | None) -> R:  # noqa: ASYNC109 - of another
    try:
        async with asyncio.timeout(timeout) as bound:
            return await awaitable
    except TimeoutError:
        if bound.expired():
            raise OutOfTimeError(f"not done within {timeout:g} s") from None
        raise

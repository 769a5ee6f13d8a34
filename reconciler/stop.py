"""A request to stop, and how everything that waits learns of it at once."""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_log = logging.getLogger(__name__)


class Stop:
    """Set once, by any thread; waits end and callbacks run at that moment."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._parent: Stop | None = None
        self._condition = threading.Condition()
        self._set = False
        self._callbacks: list[Callable[[], None]] = []

    def set(self) -> None:
        """Ask everyone to stop. Asking again does nothing."""
        with self._condition:
            if self._set:
                return
            self._set = True
            callbacks, self._callbacks = self._callbacks, []
            self._condition.notify_all()
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - the others must hear of it all the same
                _log.exception("%r failed when it was told to stop", callback)

    def __bool__(self) -> bool:
        """Whether someone asked to stop."""
        return self._set or bool(self._parent)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until asked to stop, for ``seconds`` at most; whether it was asked."""
        with self._condition:
            until = None if seconds is None else self._clock.now() + seconds
            while not self._set and (until is None or self._clock.now() < until):
                self._clock.wait(self._condition, until)
            return self._set

    @contextmanager
    def child(self) -> Iterator[Stop]:
        """Within the block, a request of its own, which this one is passed on to."""
        child = Stop(self._clock)
        child._parent = self  # so that it counts from this moment, not from when it was told
        with self.calling(child.set):
            yield child

    @contextmanager
    def calling(self, callback: Callable[[], None]) -> Iterator[None]:
        """Within the block, a request to stop calls ``callback``; at once if it came before."""
        with self._condition:
            already = self._set
            if not already:
                self._callbacks.append(callback)
        if already:
            callback()
        try:
            yield
        finally:
            with self._condition:
                if callback in self._callbacks:
                    self._callbacks.remove(callback)

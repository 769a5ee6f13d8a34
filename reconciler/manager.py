"""Runs a program's parts in order, and stops them in the opposite one.

Servers start first, so that health can be asked for at once; then the caches; then the controllers,
which wait for their caches by themselves. A stop goes the other way: controllers end what they are
at, then the caches, then the servers, all within one bound.
"""

from __future__ import annotations

import enum
import logging
import os
import signal
import sys
import threading
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from reconciler.stop import Stop
from workqueue import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

_log = logging.getLogger(__name__)


class Runnable(Protocol):
    """A part of the program."""

    name: str

    def run(self, stop: Stop) -> None:
        """Work until asked to stop. Whatever it raises ends the program."""
        ...


class Group(enum.Enum):
    """When a part starts; they stop in the opposite order."""

    SERVERS = enum.auto()
    CACHES = enum.auto()
    CONTROLLERS = enum.auto()


class Manager:
    """``run`` it once, on the main thread."""

    def __init__(self, *, stop_within: float = 20.0) -> None:
        """
        :param stop_within: seconds for all parts together to end once asked
        """
        self._stop_within = stop_within
        self._stop = Stop()
        self._parts: dict[Group, list[Runnable]] = {group: [] for group in Group}
        self._stops = {group: Stop() for group in Group}
        self._threads: dict[Group, list[threading.Thread]] = {group: [] for group in Group}
        # Guards the three, which change when a part is added late.
        self._lock = threading.Lock()
        self._running = False
        self._error: BaseException | None = None

    def add(self, group: Group, *parts: Runnable) -> None:
        """Run these parts too: in their turn, or at once if the others run already.

        :raises RuntimeError: if the program has been asked to stop
        """
        with self._lock:
            if self._running and self._stop:
                raise RuntimeError("the program is stopping")
            if self._running:
                self._threads[group] += [self._start(part, self._stops[group]) for part in parts]
            else:
                self._parts[group] += parts

    def stop(self) -> None:
        """Ask the program to stop, from any thread."""
        self._stop.set()

    def run(self) -> None:
        """Run until one of ``stop_signals``, ``stop`` or a part's failure, then stop all parts.

        A second signal while they stop ends the process at once.

        :raises BaseException: what a part raised, once the others have ended
        :raises RuntimeError: on another thread than the main one, which gets no signals
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("a manager takes signals, so its run needs the main thread")
        with self._signals():
            with self._lock:
                self._running = True
                for group, parts in self._parts.items():
                    stop = self._stops[group]
                    self._threads[group] = [self._start(part, stop) for part in parts]
            while not self._stop.wait(_LOOK_UP):
                pass
            deadline = SYSTEM_CLOCK.now() + self._stop_within
            for group in reversed(Group):
                self._stops[group].set()
                with self._lock:
                    threads = list(self._threads[group])
                for thread in threads:
                    if not _joined(thread, deadline):
                        _report_stuck(thread, self._stop_within)
        if self._error is not None:
            raise self._error

    def _start(self, part: Runnable, stop: Stop) -> threading.Thread:
        def run() -> None:
            try:
                part.run(stop)
            except BaseException as error:  # noqa: BLE001 - raised again by the main thread
                _log.error("%s failed: %s", part.name, error)
                self._error = self._error or error
                self._stop.set()

        thread = threading.Thread(target=run, name=part.name, daemon=True)
        thread.start()
        return thread

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Within the block, the first signal asks to stop and the second ends the process."""

        def on_signal(number: int, _frame: FrameType | None) -> None:
            name = signal.Signals(number).name
            if self._stop:
                _log.warning("%s again: ending at once", name)
                os._exit(128 + number)
            _log.info("%s: stopping", name)
            # Not from here: whoever holds the lock may be the code that this interrupted.
            threading.Thread(target=self._stop.set, name="stop").start()

        before = {number: signal.signal(number, on_signal) for number in stop_signals()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that ask a program to stop: SIGTERM, SIGINT, and SIGHUP unless nohup started it."""
    hangup_is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    asking = signal.SIGTERM, signal.SIGINT
    return asking if hangup_is_ignored else (*asking, signal.SIGHUP)


# The kernel may hand a signal to any thread, but its handler runs on the main one, and only when
# that next runs Python. Seconds.
_LOOK_UP = 0.5


def _joined(thread: threading.Thread, deadline: float) -> bool:
    """Wait for it until the deadline, looking up now and then; whether it ended."""
    while thread.is_alive():
        left = deadline - SYSTEM_CLOCK.now()
        if left <= 0:
            return False
        thread.join(min(left, _LOOK_UP))
    return True


def _report_stuck(thread: threading.Thread, bound: float) -> None:
    frame = sys._current_frames().get(thread.ident or 0)
    where = "".join(traceback.format_stack(frame)) if frame else "?"
    _log.error("%s did not end within %g s; it is at\n%s", thread.name, bound, where)

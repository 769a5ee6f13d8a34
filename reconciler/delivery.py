"""How events reach a handler: at once, or by a thread of the handler's own.

Most handlers only add a key to a queue. They are called on the informer's thread, and nothing is
buffered. A handler that may block gets a thread and a buffer. The buffer holds at most one event of
each object: what happens to an object whose event still waits is merged into that event, so the
handler goes from what it last knew to what is true now and may skip what was between. The buffer is
therefore never larger than the number of objects that are there or that the handler knew, however
slow it is and however much happens; and the informer never waits for it.
"""

from __future__ import annotations

import enum
import logging
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from reconciler.event import Event, between
from reconciler.meta import Meta, Request, key_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reconciler.stop import Stop

T = TypeVar("T", bound=Meta)

_log = logging.getLogger(__name__)


class Registration(Generic[T]):
    """A handler's place at an informer, for as long as it wants to be told."""

    blocking = False

    def __init__(
        self,
        name: str,
        handler: Callable[[Event[T]], None],
        keep: Callable[[T], bool] | None,
        remove: Callable[[Registration[T]], None],
    ) -> None:
        self.name = name
        self.errors = 0
        """How often the handler raised; each was logged, and the next event was told."""
        self._handler = handler
        self._keep = keep
        self._remove = remove
        self._synced = threading.Event()
        self._closed = False

    @property
    def has_synced(self) -> bool:
        """Whether the handler has been told of every object that was there at the start."""
        return self._synced.is_set()

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait for that, ``timeout`` seconds at most; whether it came."""
        return self._synced.wait(timeout)

    @property
    def pending(self) -> int:
        """How many events wait for the handler."""
        return 0

    def remove(self) -> None:
        """Tell the handler nothing more. A call that is under way ends as it will."""
        self._remove(self)

    # -- what the informer calls, one thread at a time -----------------------------------------

    def tell(self, event: Event[T]) -> None:
        """Tell the handler what it sees of this event."""
        if self._closed:
            return
        try:
            seen = self._narrow(event)
        except Exception:  # noqa: BLE001 - as for the handler itself
            self._failed(event)
            return
        if seen is not None:
            self._deliver(seen)

    def initial_end(self) -> None:
        """Every object that was there has been told."""
        self._synced.set()

    def close(self) -> None:
        """Drop what waits; tell nothing more."""
        self._closed = True

    def _narrow(self, event: Event[T]) -> Event[T] | None:
        """The event as it looks to somebody for whom the objects not kept are not there."""
        keep = self._keep
        if keep is None:
            return event
        old = event.old if event.old is not None and keep(event.old) else None
        new = event.new if event.new is not None and keep(event.new) else None
        if old is event.old and new is event.new:
            return event
        return between(old, new, event)

    def _deliver(self, event: Event[T]) -> None:
        self._call(event)

    def _call(self, event: Event[T]) -> None:
        try:
            self._handler(event)
        except Exception:  # noqa: BLE001 - one handler's fault is not the others'
            self._failed(event)

    def _failed(self, event: Event[T]) -> None:
        self.errors += 1
        _log.exception("%s failed on %s", self.name, key_of(event.obj))


class _Mark(enum.Enum):
    """Stands in the buffer after the objects that were there at the start."""

    INITIAL_END = enum.auto()


class Buffered(Registration[T]):
    """A handler that may block: ``run`` tells it, in a thread of its own."""

    blocking = True

    def __init__(
        self,
        name: str,
        handler: Callable[[Event[T]], None],
        keep: Callable[[T], bool] | None,
        remove: Callable[[Registration[T]], None],
    ) -> None:
        super().__init__(name, handler, keep, remove)
        self._changed = threading.Condition()
        # In the order in which they were first put in. A key alone marks the end of the start.
        self._waiting: dict[Request | _Mark, Event[T] | None] = {}

    @property
    def pending(self) -> int:
        """How many events wait for the handler."""
        with self._changed:
            return len(self._waiting) - (_Mark.INITIAL_END in self._waiting)

    def initial_end(self) -> None:
        """Every object that was there has been put into the buffer."""
        with self._changed:
            self._waiting[_Mark.INITIAL_END] = None
            self._changed.notify_all()

    def close(self) -> None:
        """Drop what waits; tell nothing more."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _deliver(self, event: Event[T]) -> None:
        key = key_of(event.obj)
        with self._changed:
            if self._closed:
                return
            waiting = self._waiting.get(key)
            if waiting is None:
                self._waiting[key] = event
                self._changed.notify_all()
            elif (merged := _merge(waiting, event)) is not None:
                self._waiting[key] = merged
            else:
                del self._waiting[key]

    def run(self, stop: Stop) -> None:
        """Tell the handler until asked to stop; what waits then is dropped."""
        with stop.calling(self.close):
            while (taken := self._take()) is not None:
                if isinstance(taken, _Mark):
                    self._synced.set()
                else:
                    self._call(taken)

    def _take(self) -> Event[T] | _Mark | None:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            if self._closed:
                return None
            key = next(iter(self._waiting))
            return self._waiting.pop(key) or _Mark.INITIAL_END


def _merge(waiting: Event[T], event: Event[T]) -> Event[T] | None:
    """One event for two of the same object; ``None`` if together they are none.

    A resync changes nothing that waits already.
    """
    if event.old is event.new:
        return waiting
    merged = between(waiting.old, event.new, event)
    if merged is not None and merged.old is None and waiting.initial:
        return Event(merged.type, None, merged.new, initial=True)
    return merged

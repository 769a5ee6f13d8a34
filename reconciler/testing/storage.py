"""Objects, their history, and who is told of a change.

One counter numbers every write of the server; its value is the resourceVersion. Each resource has a
shelf: the current objects, and the latest events in order. A watch is a cursor into those events,
not a queue of its own: ten watchers of ten thousand pods share one list, and a watcher that reads
too slowly finds its place cut off instead of filling memory.

The history is bounded. What falls off its old end raises the shelf's `floor`: the oldest version
from which a watch may still begin. Lists of the past (continue tokens,
`resourceVersionMatch=Exact`) are the present with the events since then taken back.

All methods may be called from any thread. `lock` is re-entrant; hold it to read, decide and write
as one step.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reconciler.testing.objects import Object, encode

if TYPE_CHECKING:
    from collections.abc import Callable

ADDED: Final = "ADDED"
MODIFIED: Final = "MODIFIED"
DELETED: Final = "DELETED"

Key = tuple[str, str]
"""Group and plural of a resource."""


class HistoryCut(Exception):  # noqa: N818 - an answer, not a failure
    """The state asked for is older than the history. `floor` is the oldest version that is still
    known.
    """

    def __init__(self, floor: int) -> None:
        super().__init__(floor)
        self.floor = floor


@dataclass(frozen=True, slots=True)
class Stored:
    """One object as it was at one version. `obj` is shared by everybody: never change it."""

    path: str
    """`namespace/name`, or `name`."""
    version: int
    obj: Object
    raw: bytes
    """`obj` as JSON, encoded once for every reader."""


@dataclass(frozen=True, slots=True)
class Event:
    """One write. `now` is the object after it (for DELETED: its last state), `before` the state
    that it replaced.
    """

    type: str
    now: Stored
    before: Stored | None


@dataclass(slots=True)
class _Shelf:
    objects: dict[str, Stored] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    dropped: int = 0
    """How many events have left `events` at its old end: cursors count from the beginning of time.
    """
    floor: int = 0


class Storage:
    """The memory of one server.

    `history` is the least number of events each resource remembers. `changed(key)` is called after
    each write, with the lock held, in the writer's thread: it must only leave a note.
    """

    def __init__(self, *, history: int, changed: Callable[[Key], None]) -> None:
        if history < 1:
            raise ValueError("history must be at least 1")
        self.lock = threading.RLock()
        self._history = history
        self._changed = changed
        self._version = 1
        self._floor = 0
        self._shelves: dict[Key, _Shelf] = {}

    @property
    def version(self) -> int:
        """The version of the latest write."""
        return self._version

    def _shelf(self, key: Key) -> _Shelf:
        shelf = self._shelves.get(key)
        if shelf is None:
            shelf = self._shelves[key] = _Shelf(floor=self._floor)
        return shelf

    # --- writing

    def commit(self, key: Key, kind: str, path: str, obj: Object) -> Stored:
        """Write `obj` (which now belongs to the storage) under the next version; `kind` is the
        event type.
        """
        with self.lock:
            shelf = self._shelf(key)
            self._version += 1
            obj["metadata"]["resourceVersion"] = str(self._version)
            stored = Stored(path, self._version, obj, encode(obj))
            before = shelf.objects.get(path)
            if kind == DELETED:
                del shelf.objects[path]
            else:
                shelf.objects[path] = stored
            shelf.events.append(Event(kind, stored, before))
            if len(shelf.events) > 2 * self._history:
                self._trim(shelf, len(shelf.events) - self._history)
            self._changed(key)
            return stored

    def compact(self) -> None:
        """Forget all history: a watch from before this moment is answered with 410. Running watches
        go on.
        """
        with self.lock:
            self._floor = self._version
            for shelf in self._shelves.values():
                shelf.floor = self._version
                # Readers that have not caught up keep their place: the newest events stay, out of
                # the reach of newcomers.
                self._trim(shelf, len(shelf.events) - self._history)

    @staticmethod
    def _trim(shelf: _Shelf, count: int) -> None:
        if count > 0:
            shelf.floor = max(shelf.floor, shelf.events[count - 1].now.version)
            del shelf.events[:count]
            shelf.dropped += count

    # --- reading

    def get(self, key: Key, path: str) -> Stored | None:
        """The object now, or None."""
        return self._shelf(key).objects.get(path)

    def count(self) -> int:
        """How many objects there are."""
        with self.lock:
            return sum(len(shelf.objects) for shelf in self._shelves.values())

    def snapshot(self, key: Key, version: int | None = None) -> tuple[int, list[Stored]]:
        """All objects ordered by path, now or as they were at `version`; and that version. Raises
        `HistoryCut`.
        """
        with self.lock:
            shelf = self._shelf(key)
            if version is None or version >= self._version:
                return self._version, [shelf.objects[path] for path in sorted(shelf.objects)]
            if version < shelf.floor:
                raise HistoryCut(shelf.floor)
            then = dict(shelf.objects)
            for event in reversed(shelf.events):
                if event.now.version <= version:
                    break
                if event.before is None:
                    then.pop(event.now.path, None)
                else:
                    then[event.now.path] = event.before
            return version, [then[path] for path in sorted(then)]

    def cursor(self, key: Key, version: int | None = None) -> int:
        """The place in the history just after `version` (None: after the latest event). Raises
        `HistoryCut`.
        """
        with self.lock:
            shelf = self._shelf(key)
            end = shelf.dropped + len(shelf.events)
            if version is None:
                return end
            if version < shelf.floor:
                raise HistoryCut(shelf.floor)
            low, high = 0, len(shelf.events)
            while low < high:
                middle = (low + high) // 2
                if shelf.events[middle].now.version <= version:
                    low = middle + 1
                else:
                    high = middle
            return shelf.dropped + low

    def read(self, key: Key, cursor: int, limit: int) -> tuple[list[Event], int]:
        """At most `limit` events after `cursor`, and the version up to which the reader now knows
        everything.

        Raises `HistoryCut` if the reader was too slow and its place is gone.
        """
        with self.lock:
            shelf = self._shelf(key)
            start = cursor - shelf.dropped
            if start < 0:
                raise HistoryCut(shelf.floor)
            events = shelf.events[start : start + limit]
            caught_up = start + len(events) == len(shelf.events)
            return events, self._version if caught_up else events[-1].now.version

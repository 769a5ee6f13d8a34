"""Watches: one stream of JSON lines per client.

A stream is a cursor into the history and an `Ear` that is woken when something was written; between
writes it sleeps. It begins with the current objects (when asked), goes on with events as the
client's selector sees them, and ends at its deadline. An object that leaves the selection is
reported as DELETED, one that enters it as ADDED.
"""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reconciler.testing import errors, faults
from reconciler.testing.objects import Object, encode
from reconciler.testing.storage import (
    ADDED,
    DELETED,
    MODIFIED,
    Event,
    HistoryCut,
    Key,
    Storage,
    Stored,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from reconciler.testing.registry import Resource
    from reconciler.testing.selectors import Selector
    from reconciler.testing.tables import View

INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"
_BATCH: Final = 500
_SHORTEST, _LONGEST = 1800, 3600


class Ear:
    """What wakes one stream."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.bookmark = False
        """Somebody asked for a bookmark now."""


class Hub:
    """Wakes the streams of a loop when another thread (or the loop itself) has written.

    However many writes happen before the loop gets to run, it is woken once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._dirty: set[Key] = set()
        self._ears: dict[Key, set[Ear]] = {}

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """From now on streams run in `loop`; None: there are none."""
        with self._lock:
            self._loop = loop
            self._dirty.clear()
            self._ears.clear()

    def changed(self, key: Key) -> None:
        """Note a write; any thread."""
        with self._lock:
            if self._loop is None or not self._ears.get(key):
                return
            if not self._dirty:
                self._loop.call_soon_threadsafe(self._wake)
            self._dirty.add(key)

    def _wake(self) -> None:
        with self._lock:
            dirty, self._dirty = self._dirty, set()
            for key in dirty:
                for ear in self._ears.get(key, ()):
                    ear.woken.set()

    def add(self, key: Key, ear: Ear) -> None:
        """Wake `ear` on each write of `key`."""
        with self._lock:
            self._ears.setdefault(key, set()).add(ear)

    def discard(self, key: Key, ear: Ear) -> None:
        """Wake it no more."""
        with self._lock:
            self._ears.get(key, set()).discard(ear)

    def __len__(self) -> int:
        with self._lock:
            return sum(map(len, self._ears.values()))

    def ask_for_bookmarks(self) -> None:
        """Make every stream that may send bookmarks send one now; runs in the loop."""
        with self._lock:
            for ears in self._ears.values():
                for ear in ears:
                    ear.bookmark = True
                    ear.woken.set()


@dataclass(frozen=True, slots=True)
class Wish:
    """What the client asked for."""

    resource: Resource
    namespace: str
    selector: Selector
    version: str
    """As sent: empty, `0` or a version."""
    initial: bool | None
    """`sendInitialEvents`; None when absent."""
    bookmarks: bool
    seconds: float
    """`timeoutSeconds`."""
    view: View

    def sees(self, stored: Stored) -> bool:
        """Whether the client's selection contains an object."""
        if self.namespace and not stored.path.startswith(f"{self.namespace}/"):
            return False
        return not self.selector or self.selector.matches(stored.obj)


def deadline(seconds: str) -> float:
    """`timeoutSeconds` as a number; without it, half an hour to an hour, as the real server
    chooses.
    """
    if not seconds:
        return random.uniform(_SHORTEST, _LONGEST)  # noqa: S311
    if not seconds.isdigit():
        raise errors.bad_request(f'strconv.ParseInt: parsing "{seconds}": invalid syntax')
    return float(seconds) or random.uniform(_SHORTEST, _LONGEST)  # noqa: S311


class Stream:
    """One watch. Making it takes the place in the history; iterating it gives the bytes to send.

    Raises `ApiError` 504 when the client wants initial events from the future.
    """

    def __init__(
        self,
        storage: Storage,
        hub: Hub,
        wish: Wish,
        effects: list[faults.Effect],
        bookmark_interval: float,
    ) -> None:
        self._storage = storage
        self._hub = hub
        self._wish = wish
        self._interval = bookmark_interval
        self._stalled = any(isinstance(effect, faults.Stall) for effect in effects)
        self._silent = any(isinstance(effect, faults.NoBookmarks) for effect in effects)
        self._twice = any(isinstance(effect, faults.DuplicateInitial) for effect in effects)
        self._shuffle = next(
            (e.seed for e in effects if isinstance(e, faults.ShuffleInitial)), None
        )
        self._end = next((e for e in effects if isinstance(e, faults.EndWatch)), None)
        self._sent = 0
        self._begin: list[Stored] = []
        self._failed: errors.ApiError | None = None
        self._cursor = 0
        self._version = 0
        key = wish.resource.key
        number = int(wish.version or 0)
        with storage.lock:
            self._version = storage.version
            if wish.initial and number > storage.version:
                raise errors.too_large(number, storage.version)
            if wish.initial or (number == 0 and wish.initial is None):
                self._begin = storage.snapshot(key)[1]
                self._cursor = storage.cursor(key)
            elif number == 0:
                self._cursor = storage.cursor(key)
            else:
                try:
                    self._cursor = storage.cursor(key, number)
                except HistoryCut as cut:
                    self._failed = errors.expired_watch(number, cut.floor)

    async def lines(self) -> AsyncIterator[bytes]:
        """The body of the response. Ends at the deadline, or with an ERROR event."""
        ear = Ear()
        key = self._wish.resource.key
        self._hub.add(key, ear)
        try:
            if self._stalled:
                await asyncio.Event().wait()
            if self._failed is not None:
                yield _line("ERROR", encode(self._failed.status()))
                return
            for chunk in self._initial():
                yield chunk
                if self._spent():
                    break
            async for chunk in self._live(ear):
                yield chunk
            if self._end is not None and self._spent() and self._end.code:
                yield _line("ERROR", encode(self._end.error().status()))
        finally:
            self._hub.discard(key, ear)

    def _spent(self) -> bool:
        """Whether a fault ends the stream here."""
        return self._end is not None and self._sent >= self._end.events

    def _initial(self) -> Iterator[bytes]:
        chosen = [stored for stored in self._begin if self._wish.sees(stored)]
        self._begin = []
        if self._twice:
            chosen = [stored for stored in chosen for _ in range(2)]
        if self._shuffle is not None:
            random.Random(self._shuffle).shuffle(chosen)  # noqa: S311
        lines = [self._object_line(ADDED, stored) for stored in chosen]
        yield from self._counted(lines)
        if self._wish.initial and self._wish.bookmarks and not self._silent and not self._spent():
            yield self._bookmark({INITIAL_EVENTS_END: "true"})

    def _counted(self, lines: list[bytes]) -> Iterator[bytes]:
        """The lines in batches, no more of them than a fault allows."""
        if self._end is not None:
            lines = lines[: max(0, self._end.events - self._sent)]
        self._sent += len(lines)
        for at in range(0, len(lines), _BATCH):
            yield b"".join(lines[at : at + _BATCH])

    async def _live(self, ear: Ear) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._wish.seconds
        bookmark = loop.time() + self._interval
        may_bookmark = self._wish.bookmarks and not self._silent
        key = self._wish.resource.key
        while not self._spent():
            ear.woken.clear()
            try:
                events, self._version = self._storage.read(key, self._cursor, _BATCH)
            except HistoryCut:
                return  # too slow: it watches again from its last version, and is told: expired
            if events:
                self._cursor += len(events)
                lines = [line for event in events if (line := self._event_line(event))]
                for chunk in self._counted(lines):
                    yield chunk
                continue
            now = loop.time()
            if may_bookmark and (ear.bookmark or now >= min(bookmark, end)):
                bookmark = now + self._interval
                yield self._bookmark({})
            ear.bookmark = False
            if now >= end:
                return
            try:
                async with asyncio.timeout_at(min(end, bookmark) if may_bookmark else end):
                    await ear.woken.wait()
            except TimeoutError:
                continue

    def _event_line(self, event: Event) -> bytes | None:
        """The event as this client sees it, or None."""
        now = self._wish.sees(event.now)
        before = event.before is not None and self._wish.sees(event.before)
        if event.type == DELETED:
            return self._object_line(DELETED, event.now) if before else None
        if now:
            return self._object_line(MODIFIED if before else ADDED, event.now)
        if before and event.before is not None:
            return self._object_line(DELETED, _as_of(event.before, event.now.version))
        return None

    def _object_line(self, kind: str, stored: Stored) -> bytes:
        if self._wish.view.plain:
            return _line(kind, stored.raw)
        return _line(kind, encode(self._wish.view.one(self._wish.resource, stored.obj)))

    def _bookmark(self, annotations: dict[str, str]) -> bytes:
        meta: dict[str, Any] = {"resourceVersion": str(self._version), "creationTimestamp": None}
        if annotations:
            meta["annotations"] = annotations
        resource = self._wish.resource
        obj: Object = {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": meta}
        return _line("BOOKMARK", encode(self._wish.view.one(resource, obj)))


def _as_of(stored: Stored, version: int) -> Stored:
    obj = {**stored.obj, "metadata": {**stored.obj["metadata"], "resourceVersion": str(version)}}
    return Stored(stored.path, version, obj, encode(obj))


def _line(kind: str, raw: bytes) -> bytes:
    return b'{"type":"%b","object":%b}\n' % (kind.encode(), raw)

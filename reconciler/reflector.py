"""Keeps a sink in step with one kind of object on the server: list once, then watch.

A watch goes on from the last resourceVersion seen, bookmarks included. It is listed again only
when the server no longer knows that version (410). Every failure is followed by a longer and longer
wait, with jitter, so that a server in trouble is not made worse; at most one request is under way.

Ported from client-go's ``Reflector``; its numbers are kept.
"""

from __future__ import annotations

import enum
import logging
import random
from typing import TYPE_CHECKING, Protocol

import msgspec

from reconciler.client import ApiError, TransportError
from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.client import Resource, Transport
    from reconciler.stop import Stop

PAGE_SIZE = 500
WATCH_TIMEOUT = (300.0, 600.0)
"""The server ends a watch after a time between these two, in seconds."""

_log = logging.getLogger(__name__)


class EventType(enum.Enum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Sink(Protocol):
    """Where the objects go, as JSON."""

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """These are all objects there are."""
        ...

    def apply(self, event: EventType, obj: msgspec.Raw) -> None:
        """This happened to one object."""
        ...

    def advance(self, resource_version: str) -> None:
        """Everything up to this version has been given to the sink."""
        ...


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class _Page(msgspec.Struct):
    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Status(msgspec.Struct):
    code: int = 0
    reason: str = ""
    message: str = ""


class _ObjectMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _ObjectMeta


_page_decoder = msgspec.json.Decoder(_Page)
_event_decoder = msgspec.json.Decoder(_Event)
_status_decoder = msgspec.json.Decoder(_Status)
_object_decoder = msgspec.json.Decoder(_Object)


class Backoff:
    """0.8 s, doubled each time up to 30 s, plus up to as much again by chance.

    Starts over when nothing failed for two minutes.
    """

    def __init__(
        self,
        *,
        first: float = 0.8,
        cap: float = 30.0,
        reset_after: float = 120.0,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self._first = self._next = first
        self._cap = cap
        self._reset_after = reset_after
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._last: float | None = None

    def step(self) -> float:
        """Seconds to wait now, before the next try."""
        now = self._clock.now()
        if self._last is not None and now - self._last > self._reset_after:
            self._next = self._first
        delay = self._next * (1 + self._rng.random())
        self._last = now + delay
        self._next = min(self._next * 2, self._cap)
        return delay


class _Expired(Exception):  # noqa: N818 - a turn of events, handled at once
    """The server no longer has the version that we asked for."""


class Reflector:
    """One kind's list and watch; ``run`` it in a thread of its own."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        sink: Sink,
        *,
        namespace: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self._transport = transport
        self._resource = resource
        self._sink = sink
        self._namespace = namespace
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._backoff = Backoff(clock=clock, rng=self._rng)
        self._version: str | None = None
        self.last_error: str | None = None
        """Why the server cannot be watched at the moment, or ``None``."""

    def run(self, stop: Stop) -> None:
        """List and watch until asked to stop."""
        while not stop:
            try:
                if self._version is None:
                    self._list()
                self._watch(stop)
            except _Expired as error:
                # A watch that fell behind is no fault of the server's; a list will do.
                self._note(f"{error}; listing again")
                self._version = None
                stop.wait(self._backoff.step())
            except (TransportError, msgspec.DecodeError) as error:
                self._wait_after(error, stop)

    def _list(self) -> None:
        """Get all objects, in pages, and give them to the sink.

        A continuation that the server has forgotten begins the list anew, without pages.
        """
        query = {"limit": str(PAGE_SIZE)}
        objects: list[msgspec.Raw] = []
        while True:
            try:
                data = self._transport.list(self._resource, self._namespace, query)
            except ApiError as error:
                if error.status != 410 or "continue" not in query:
                    raise
                query, objects = {}, []
                continue
            page = _page_decoder.decode(data)
            objects += page.items or ()
            if not page.metadata.continue_:
                break
            query = {"limit": str(PAGE_SIZE), "continue": page.metadata.continue_}
        self._sink.replace(objects, page.metadata.resource_version)
        self._seen(page.metadata.resource_version)
        self._well()

    def _watch(self, stop: Stop) -> None:
        """Follow one watch to its end. The next one goes on from where it ended."""
        assert self._version is not None
        query = {"resourceVersion": self._version, "allowWatchBookmarks": "true"}
        try:
            stream = self._transport.watch(
                self._resource, self._namespace, query, self._rng.uniform(*WATCH_TIMEOUT)
            )
        except ApiError as error:
            if error.status == 410:
                raise _Expired(str(error)) from None
            raise
        started, events = self._clock.now(), 0
        with stop.calling(stream.close):
            for line in stream:
                self._handle(_event_decoder.decode(line))
                events += 1
                self._well()
        if not stop and not events and self._clock.now() - started < 1:
            raise TransportError("the watch ended at once and without an event")

    def _handle(self, event: _Event) -> None:
        if event.type == "ERROR":
            status = _status_decoder.decode(event.object)
            if status.code == 410:
                raise _Expired(f"410 {status.reason}: {status.message}")
            raise ApiError(status.code, status.reason, status.message)
        version = _object_decoder.decode(event.object).metadata.resource_version
        if event.type != "BOOKMARK":
            try:
                kind = EventType(event.type)
            except ValueError:
                _log.warning("%s: unknown event %r; ignored", self._resource, event.type)
                return
            # The sink may outlive the line, which it is a part of.
            self._sink.apply(kind, event.object)
        self._seen(version)

    def _seen(self, version: str) -> None:
        if version:
            self._version = version
            self._sink.advance(version)

    def _wait_after(self, error: Exception, stop: Stop) -> None:
        delay = self._backoff.step()
        if isinstance(error, ApiError) and error.retry_after is not None:
            delay = max(delay, error.retry_after)
        if not stop:
            self._note(f"{error}; next try in {delay:.0f} s")
            stop.wait(delay)

    def _note(self, problem: str) -> None:
        self.last_error = problem
        _log.warning("watching %s: %s", self._resource, problem)

    def _well(self) -> None:
        if self.last_error is not None:
            self.last_error = None
            _log.info("watching %s: works again", self._resource)

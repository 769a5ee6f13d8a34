"""Keeps a sink in step with one kind of object on the server: all objects once, then each change.

The objects come by a watch that begins with all of them, if the server can do that, or by a list in
pages. From then on a watch goes on from the last resourceVersion seen, bookmarks included. All are
asked for again only when the server no longer knows that version, or refuses for a reason that may
mean that we missed something. Every failure is followed by a longer and longer wait, with jitter,
so that a server in trouble is not made worse; at most one request is under way.

Ported from client-go's ``Reflector``; its numbers are kept. Three rules are stricter: a server that
begins to send all objects and does not say when it is done is asked for a list after a while,
instead of being waited for; a stream that ends before that point is followed by a wait; and so is a
watch that ends within a second, even if it brought events.
"""

from __future__ import annotations

import logging
import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec
from opentelemetry.trace import SpanKind, use_span

from reconciler.backoff import Backoff
from reconciler.client import ApiError, TransportError
from reconciler.event import EventType
from reconciler.stop import Stop
from reconciler.telemetry import tracer as default_tracer
from reconciler.tracing import mark_failed
from reconciler.wire import (
    Event,
    Page,
    decode_event,
    decode_page,
    decode_status,
    ends_initial_events,
    version_of,
)
from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from opentelemetry.trace import Span, Tracer

    from reconciler.client import Resource, Stream, Transport

PAGE_SIZE = 500
WATCH_TIMEOUT = (300.0, 600.0)
"""The server ends a watch after a time between these two, in seconds."""
INITIAL_SILENCE = 15.0
"""Seconds for which a server that sends all objects may pause before a list is asked for."""
INITIAL_TIMEOUT = 120.0
"""Seconds for which it may send in all."""
SHORTEST_WATCH = 1.0
"""No watch follows another sooner, in seconds, from start to start."""

# "Your query makes no sense": what a server answers that cannot begin a watch with all objects.
_NOT_UNDERSTOOD = frozenset({400, 405, 406, 415, 422})

_log = logging.getLogger(__name__)


class Replacement(Protocol):
    """All objects there are, as they arrive; nothing is seen of them before ``commit``."""

    def put(self, obj: msgspec.Raw) -> None:
        """This object is there."""
        ...

    def discard(self, obj: msgspec.Raw) -> None:
        """This object is there no more."""
        ...

    def commit(self, resource_version: str) -> None:
        """That was all."""
        ...


class Sink(Protocol):
    """Where the objects go, as JSON."""

    def replacing(self) -> Replacement:
        """Begin to take all objects there are."""
        ...

    def apply(self, event: EventType, obj: msgspec.Raw) -> None:
        """This happened to one object."""
        ...

    def advance(self, resource_version: str) -> None:
        """Everything up to this version has been given to the sink."""
        ...


@dataclass(frozen=True, slots=True)
class ReflectorStatistics:
    """What was asked of the server and what came, counted since the start."""

    lists: int = 0
    """Times that all objects were taken, by a list or by a watch."""
    watches: int = 0
    """Watches that the server accepted."""
    events: int = 0
    """Lines of watches, bookmarks included."""
    failures: int = 0
    """Times that something failed and was tried again after a wait."""


class _Watch:
    """A watch's events, which two loops take turns to read."""

    def __init__(self, stream: Stream, started: float, span: Span) -> None:
        self.close = stream.close
        self.span = span
        self.started = started
        self.events = 0
        self.overdue = False
        """Whether it was closed because it did not say that all objects had been sent."""
        self._lines = iter(stream)

    def __iter__(self) -> Iterator[Event]:
        for line in self._lines:
            self.events += 1
            yield decode_event(line)


class Reflector:
    """One kind's list and watch; ``run`` it in a thread of its own."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        sink: Sink,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        watch_list: bool = True,
        on_error: Callable[[Exception, float], None] | None = None,
        tracer: Tracer | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        """
        :param watch_list: whether to try a watch that begins with all objects
        :param on_error: told of every failure and the seconds until the next try
        """
        self._transport = transport
        self._resource = resource
        self._sink = sink
        self._namespace = namespace
        selectors = {"labelSelector": label_selector, "fieldSelector": field_selector}
        self._selectors = {name: value for name, value in selectors.items() if value}
        self._on_error = on_error
        self._tracer = tracer or default_tracer()
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._backoff = Backoff(clock=clock, rng=self._rng)

        self._version = ""
        self._may_resume = False  # a watch from `_version` misses nothing
        self._refused = False  # the server cannot list at `_version`
        self._paged = False  # the server's cache is off, so that it pages any list
        self._watch_list = watch_list
        self._list_next = False  # what a watch could not bring, a list may

        self._heard = clock.now()
        self._lists = self._watches = self._events = self._failures = 0
        self.last_error: str | None = None
        """Why the server cannot be watched at the moment, or ``None``."""

    @property
    def silence(self) -> float:
        """Seconds since the server last said anything: an event, a bookmark, a page of a list.

        A watch brings a bookmark about once a minute where nothing changes.
        """
        return self._clock.now() - self._heard

    def statistics(self) -> ReflectorStatistics:
        """Count what was asked and what came."""
        return ReflectorStatistics(self._lists, self._watches, self._events, self._failures)

    def run(self, stop: Stop) -> None:
        """List and watch until asked to stop."""
        while not stop:
            try:
                self._list_and_watch(stop)
            except ApiError as error:
                self._learn(error)
                self._wait_after(error, stop)
            # The decoder meets JSON that is nested too deeply with a RecursionError.
            except (TransportError, msgspec.DecodeError, RecursionError) as error:
                self._wait_after(error, stop)

    def _list_and_watch(self, stop: Stop) -> None:
        """Follow the server until a watch ends."""
        if not self._may_resume:
            if self._watch_list and not self._list_next:
                watch = self._open_initial(stop)
                if watch is not None:
                    with self._using(watch, stop):
                        if self._take_initial(watch, stop):
                            self._follow(watch, stop)
                            return
            if stop:
                return
            self._list(stop)
        watch = self._open({"resourceVersion": self._version}, stop)
        with self._using(watch, stop):
            self._follow(watch, stop)

    @contextmanager
    def _using(self, watch: _Watch, stop: Stop) -> Iterator[None]:
        """Within the block, a stop closes the watch. Its span ends with the block."""
        try:
            with stop.calling(watch.close):
                yield
        except Exception as error:
            mark_failed(watch.span, error)
            raise
        finally:
            watch.span.set_attribute("reconciler.events", watch.events)
            watch.span.end()

    # -- all objects, by a watch ---------------------------------------------------------------

    def _open_initial(self, stop: Stop) -> _Watch | None:
        """Start a watch that begins with all objects; ``None`` if the server does not know how."""
        query = {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "resourceVersion": "" if self._refused else self._version,
        }
        try:
            return self._open(query, stop)
        except ApiError as error:
            if error.status in _NOT_UNDERSTOOD:
                _log.info("watching %s: %s; listing instead", self._resource, error)
                self._watch_list = False
                return None
            if query["resourceVersion"] and (error.expired or error.version_too_large):
                self._refused = True
            elif error.status != 429:
                self._list_next = True
            raise

    def _take_initial(self, watch: _Watch, stop: Stop) -> bool:
        """Give all objects to the sink; false if it is better to list them.

        Their versions are in no order, so the position is known only once all have come.
        """
        self._list_next = True  # unless all goes well
        replacement = self._sink.replacing()
        with self._bounded(watch):
            for event in watch:
                self._events += 1
                if event.type == "BOOKMARK":
                    if ends_initial_events(event.object):
                        self._commit(replacement, version_of(event.object))
                        return True
                elif (kind := self._kind(event)) is EventType.DELETED:
                    replacement.discard(event.object)
                elif kind is not None:
                    replacement.put(event.object)
        if watch.overdue:
            _log.warning(
                "watching %s: the server did not say when it had sent all objects; listing instead",
                self._resource,
            )
            self._watch_list = False
            return False
        if stop:
            return False
        raise TransportError("the watch ended before it had brought all objects")

    @contextmanager
    def _bounded(self, watch: _Watch) -> Iterator[None]:
        """Within the block, a watch that makes no progress, or no end, is closed."""
        done = Stop(self._clock)
        until = self._clock.now() + INITIAL_TIMEOUT

        def guard() -> None:
            seen = -1
            while not done.wait(INITIAL_SILENCE):
                if watch.events == seen or self._clock.now() >= until:
                    watch.overdue = True
                    watch.close()
                    return
                seen = watch.events

        thread = threading.Thread(target=guard, name=f"{self._resource} deadline", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    # -- all objects, by a list ----------------------------------------------------------------

    def _list(self, stop: Stop) -> None:
        """Get all objects and give them to the sink.

        They are at least as new as what was seen before. A server that cannot promise that for the
        version we saw is asked for the newest there is, which costs it more.
        """
        try:
            self._list_at("" if self._refused else self._version or "0", stop)
        except ApiError as error:
            if self._refused or not (error.expired or error.version_too_large):
                raise
            self._refused = True
            self._list_at("", stop)

    def _list_at(self, version: str, stop: Stop) -> None:
        # A page size together with a version asks for exactly that version, which may be gone.
        page_size = {"limit": str(PAGE_SIZE)} if version in {"", "0"} or self._paged else {}
        at = {"resourceVersion": version} if version else {}
        query = {**at, **page_size}
        replacement = self._sink.replacing()
        while True:
            try:
                page = self._get_page(query, stop)
            except ApiError as error:
                if "continue" not in query or not error.expired:
                    raise
                # The server forgot where the next page begins: once more, in one piece.
                query, replacement = at, self._sink.replacing()
                continue
            for item in page.items or ():
                replacement.put(item)
            if not page.metadata.continue_:
                break
            self._paged = self._paged or version == "0"
            query = {**page_size, "continue": page.metadata.continue_}
        self._well()
        self._commit(replacement, page.metadata.resource_version)

    def _get_page(self, query: Mapping[str, str], stop: Stop) -> Page:
        span = self._start_span("list", query)
        with _requesting(span):
            data = self._transport.list(
                self._resource, self._namespace, {**self._selectors, **query}, stop
            )
            page = decode_page(data)
        span.set_attribute("reconciler.objects", len(page.items or ()))
        span.end()
        return page

    def _commit(self, replacement: Replacement, version: str) -> None:
        replacement.commit(version)
        self._lists += 1
        self._may_resume, self._refused, self._list_next = True, False, False
        self._seen(version)

    # -- each change ---------------------------------------------------------------------------

    def _open(self, query: dict[str, str], stop: Stop) -> _Watch:
        span = self._start_span("watch", query)
        with _requesting(span):
            stream = self._transport.watch(
                self._resource,
                self._namespace,
                {**self._selectors, **query, "allowWatchBookmarks": "true"},
                self._rng.uniform(*WATCH_TIMEOUT),
                stop,
            )
        self._watches += 1
        self._well()
        return _Watch(stream, self._clock.now(), span)

    def _start_span(self, what: str, query: Mapping[str, str]) -> Span:
        return self._tracer.start_span(
            f"{what} {self._resource}",
            kind=SpanKind.CLIENT,
            attributes={f"reconciler.query.{name}": value for name, value in query.items()},
        )

    def _follow(self, watch: _Watch, stop: Stop) -> None:
        """Give each event to the sink until the watch ends. The next goes on from there."""
        before = watch.events
        for event in watch:
            self._events += 1
            kind = None if event.type == "BOOKMARK" else self._kind(event)
            if kind is not None:
                self._sink.apply(kind, event.object)
            self._seen(version_of(event.object))
        lasted = self._clock.now() - watch.started
        if stop or lasted >= SHORTEST_WATCH:
            return
        if watch.events == before:
            raise TransportError("the watch ended at once and without an event")
        stop.wait(SHORTEST_WATCH - lasted)

    def _kind(self, event: Event) -> EventType | None:
        """What the event says; ``None`` for a type that is not known.

        :raises ApiError: if it says that the watch failed
        """
        if event.type == "ERROR":
            status = decode_status(event.object)
            raise ApiError(
                status.code,
                status.reason,
                status.message,
                status.retry_after,
                causes=status.causes,
            )
        try:
            return EventType(event.type)
        except ValueError:
            _log.warning("%s: unknown event %r; ignored", self._resource, event.type)
            return None

    def _seen(self, version: str) -> None:
        self._heard = self._clock.now()
        if version:
            self._version = version
            self._sink.advance(version)

    # -- failures ------------------------------------------------------------------------------

    def _learn(self, error: ApiError) -> None:
        """What a refusal says about the next try.

        A busy or broken server is asked again for the same. One that refuses for another reason is
        asked for everything, since what it would not tell us may be gone by then.
        """
        if error.version_too_large:
            self._may_resume, self._refused = False, True
        elif error.status < 500 and error.status != 429:
            self._may_resume = False

    def _wait_after(self, error: Exception, stop: Stop) -> None:
        if stop:
            return
        delay = self._backoff.step()
        if isinstance(error, ApiError) and error.retry_after is not None:
            delay = max(delay, error.retry_after)
        self._failures += 1
        self.last_error = f"{error}; next try in {delay:.0f} s"
        _log.warning("watching %s: %s", self._resource, self.last_error)
        if self._on_error is not None:
            self._on_error(error, delay)
        stop.wait(delay)

    def _well(self) -> None:
        if self.last_error is not None:
            self.last_error = None
            _log.info("watching %s: works again", self._resource)


@contextmanager
def _requesting(span: Span) -> Iterator[None]:
    """Within the block the span is the current one; a failure ends it.

    A watch lasts for minutes and is not the current span while it does: what its events cause is no
    part of it.
    """
    with use_span(span, record_exception=False, set_status_on_exception=False):
        try:
            yield
        except Exception as error:
            mark_failed(span, error)
            span.end()
            raise

"""A store that follows the server, and handlers that are told of each change.

A change is stored first and told to the handlers after, in order, on the informer's thread. Such
handlers must not block: they look whether the change matters and add a key to a queue. Nothing is
buffered for them, so memory is bounded by the number of objects, whatever the rate of events. A
handler that may block asks for a thread of its own; see ``reconciler.delivery``.

Ported from client-go's ``SharedInformer``. An object whose resourceVersion is the one already
stored is no change and reaches no handler, also when all objects were asked for again; the one
exception is a handler's own resync. What client-go calls a transform is ``decode`` here: it decides
what is kept of an object, before anybody sees it.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from reconciler.delivery import Buffered, Registration
from reconciler.event import Event, EventType
from reconciler.meta import Meta, Request, key_of
from reconciler.reflector import Reflector, ReflectorStatistics
from reconciler.store import Store
from reconciler.wire import identity_of
from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from opentelemetry.trace import Tracer

    from reconciler.client import Resource, Transport
    from reconciler.stop import Stop

T = TypeVar("T", bound=Meta)

SHORTEST_RESYNC = 1.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InformerStatistics:
    """An informer at one moment; counts are since its start."""

    objects: int
    """Stored now."""
    synced: bool
    undecodable: int
    """Objects that could not be decoded; each was logged, and what was stored stayed."""
    handler_errors: int
    """Times that a handler raised."""
    pending: int
    """Events that wait for handlers that may block."""
    reflector: ReflectorStatistics


class Informer(Generic[T]):
    """One kind's store and its handlers; ``run`` it in a thread of its own, once."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        decode: Callable[[msgspec.Raw], T],
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
        :param decode: makes an object of its JSON; raises ``msgspec.DecodeError`` if it cannot
        :param watch_list: whether to try a watch that begins with all objects
        :param on_error: told of every failure of the server and the seconds until the next try
        """
        self.resource = resource
        self.store: Store[T] = Store()
        self.name = f"informer {resource}"
        self._decode = decode
        self._reflector = Reflector(
            transport,
            resource,
            self,
            namespace=namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            watch_list=watch_list,
            on_error=on_error,
            tracer=tracer,
            clock=clock,
            rng=rng,
        )
        # Held while a change is stored and told, so that a handler added meanwhile misses nothing.
        # Handlers may add and remove handlers, hence reentrant.
        self._lock = threading.RLock()
        self._registrations: tuple[Registration[T], ...] = ()
        self._resyncs: dict[Registration[T], float] = {}
        self._removed_errors = 0
        self._synced = threading.Event()
        self._undecodable = 0
        self._handled_version = ""
        self._stop: Stop | None = None
        self._threads: list[threading.Thread] = []

    def add_handler(
        self,
        handler: Callable[[Event[T]], None],
        *,
        keep: Callable[[T], bool] | None = None,
        blocking: bool = False,
        resync: float | None = None,
    ) -> Registration[T]:
        """Tell ``handler`` of every object there is and of every change from now on.

        It is called on the informer's thread, the first times on this one, and must not block. If
        it raises, that is logged and the others go on.

        :param keep: which objects are there for this handler; one that begins or ceases to be kept
            is added or deleted for it
        :param blocking: call it on a thread of its own; it may skip states between two calls
        :param resync: every so many seconds, tell it of all objects as updates without a change
        :raises ValueError: if ``resync`` is below 1 s
        :raises RuntimeError: if the informer has been stopped
        """
        if resync is not None and not resync >= SHORTEST_RESYNC:
            raise ValueError(f"a resync period must be at least 1 s, not {resync!r}")
        form = Buffered if blocking else Registration
        name = f"a handler of {self.resource}"
        registration: Registration[T] = form(name, handler, keep, self._remove)
        with self._lock:
            if self._stop:
                raise RuntimeError(f"{self.name} has been stopped")
            for obj in self.store.snapshot():
                registration.tell(Event(EventType.ADDED, None, obj, initial=True))
            if self.has_synced:
                registration.initial_end()
            self._registrations = (*self._registrations, registration)
            if resync is not None:
                self._resyncs[registration] = resync
            if self._stop is not None:
                self._start_threads(registration, self._stop)
        return registration

    def run(self, stop: Stop) -> None:
        """Follow the server until asked to stop.

        :raises RuntimeError: if it ran before
        """
        with self._lock:
            if self._stop is not None:
                raise RuntimeError(f"{self.name} runs once")
            self._stop = stop
            for registration in self._registrations:
                self._start_threads(registration, stop)
        self._reflector.run(stop)
        with self._lock:
            threads = list(self._threads)
        for thread in threads:
            thread.join()

    @property
    def has_synced(self) -> bool:
        """Whether all objects have been stored once, and told to the handlers that do not block."""
        return self._synced.is_set()

    def wait_synced(self, timeout: float | None = None) -> bool:
        """Wait for that, ``timeout`` seconds at most; whether it came."""
        return self._synced.wait(timeout)

    @property
    def last_error(self) -> str | None:
        """Why the server cannot be watched at the moment, or ``None``."""
        return self._reflector.last_error

    @property
    def silence(self) -> float:
        """Seconds since the server last said anything; see ``Reflector.silence``."""
        return self._reflector.silence

    @property
    def handled_resource_version(self) -> str:
        """The version up to which every event is stored and told to handlers that do not block."""
        return self._handled_version

    @property
    def undecodable(self) -> int:
        """How many objects could not be decoded; each was logged, and what was stored stayed."""
        return self._undecodable

    def statistics(self) -> InformerStatistics:
        """Count everything."""
        with self._lock:
            return InformerStatistics(
                objects=len(self.store),
                synced=self.has_synced,
                undecodable=self._undecodable,
                handler_errors=self._removed_errors + sum(r.errors for r in self._registrations),
                pending=sum(r.pending for r in self._registrations),
                reflector=self._reflector.statistics(),
            )

    # -- what the reflector calls --------------------------------------------------------------

    def replacing(self) -> _Replacement[T]:
        """Begin to take all objects there are."""
        return _Replacement(self)

    def apply(self, event: EventType, obj: msgspec.Raw) -> None:
        """Store what happened to one object, and tell it."""
        decoded = self._decoded(obj)
        if event is EventType.DELETED:
            self._apply_delete(obj, decoded)
        elif decoded is not None:
            with self._lock:
                before = self.store.put(decoded)
                self._tell_stored(before, decoded, self._registrations, initial=False)

    def advance(self, resource_version: str) -> None:
        """Note that every event up to this version has been handled."""
        self.store.resource_version = self._handled_version = resource_version

    def _apply_delete(self, obj: msgspec.Raw, decoded: T | None) -> None:
        """Remove an object also if its last state says nothing to us but its name."""
        key = key_of(decoded) if decoded is not None else _key_of(obj)
        if key is None:
            return
        with self._lock:
            stored = self.store.remove(key)
            if stored is not None:
                known = decoded is not None
                last = decoded if decoded is not None else stored
                event = Event(EventType.DELETED, last, None, final_state_known=known)
                self._tell(event, self._registrations)

    def _replace(self, found: dict[Request, T], undecodable: set[Request]) -> None:
        initial = not self.has_synced
        with self._lock:
            stored = {key: self.store.find(key) for key in undecodable}
            kept = {key: obj for key, obj in stored.items() if obj is not None}
            before = self.store.replace({**kept, **found})
            # A handler that is added by one of these has been told of the whole new state.
            told = self._registrations
            for key, gone in before.items():
                if key not in found and key not in kept:
                    event = Event(EventType.DELETED, gone, None, final_state_known=False)
                    self._tell(event, told)
            for key, obj in found.items():
                self._tell_stored(before.get(key), obj, told, initial=initial)
            self._synced.set()
            if initial:
                for registration in self._registrations:
                    registration.initial_end()

    def _decoded(self, raw: msgspec.Raw) -> T | None:
        """The object, or ``None`` if it cannot be decoded, which is noted."""
        try:
            return self._decode(raw)
        except msgspec.DecodeError as error:
            self._undecodable += 1
            what = _key_of(raw) or "an object"
            _log.warning("%s: %s cannot be decoded: %s; ignored", self.resource, what, error)
            return None

    # -- telling -------------------------------------------------------------------------------

    def _tell_stored(
        self, before: T | None, obj: T, told: Iterable[Registration[T]], *, initial: bool
    ) -> None:
        if before is None:
            self._tell(Event(EventType.ADDED, None, obj, initial=initial), told)
        elif before.resource_version != obj.resource_version:
            self._tell(Event(EventType.MODIFIED, before, obj), told)

    def _tell(self, event: Event[T], told: Iterable[Registration[T]]) -> None:
        for registration in told:
            registration.tell(event)

    def _remove(self, registration: Registration[T]) -> None:
        with self._lock:
            if registration in self._registrations:
                self._registrations = tuple(r for r in self._registrations if r is not registration)
                self._resyncs.pop(registration, None)
                self._removed_errors += registration.errors
                registration.close()

    def _start_threads(self, registration: Registration[T], stop: Stop) -> None:
        if isinstance(registration, Buffered):
            self._start("handler", lambda: registration.run(stop))
        if registration in self._resyncs:
            self._start("resync", lambda: self._resync(registration, stop))

    def _start(self, what: str, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name=f"{self.name} {what}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _resync(self, registration: Registration[T], stop: Stop) -> None:
        period = self._resyncs[registration]
        while not stop.wait(period):
            with self._lock:
                if registration not in self._resyncs:
                    return
                if self.has_synced:
                    for obj in self.store.snapshot():
                        registration.tell(Event(EventType.MODIFIED, obj, obj))


class _Replacement(Generic[T]):
    """All objects there are, decoded as they arrive, so that their JSON need not be kept."""

    def __init__(self, informer: Informer[T]) -> None:
        self._informer = informer
        self._found: dict[Request, T] = {}
        self._undecodable: set[Request] = set()

    def put(self, obj: msgspec.Raw) -> None:
        """This object is there."""
        decoded = self._informer._decoded(obj)
        if decoded is not None:
            key = key_of(decoded)
            self._found[key] = decoded
            self._undecodable.discard(key)
        elif (key_ := _key_of(obj)) is not None and key_ not in self._found:
            self._undecodable.add(key_)

    def discard(self, obj: msgspec.Raw) -> None:
        """This object is there no more."""
        key = _key_of(obj)
        if key is not None:
            self._found.pop(key, None)
            self._undecodable.discard(key)

    def commit(self, resource_version: str) -> None:
        """That was all: store it, and tell what changed by that."""
        self._informer._replace(self._found, self._undecodable)


def _key_of(raw: msgspec.Raw) -> Request | None:
    try:
        return Request(*identity_of(raw))
    except msgspec.DecodeError:
        return None

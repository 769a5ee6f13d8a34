"""A store that follows the server, and handlers that are told of each change.

A change is stored first and told to the handlers after, in order, on the informer's thread.
Handlers must not block: they look whether the change matters and add a key to a queue. Nothing is
buffered, so memory is bounded by the number of objects, whatever the rate of events.

Ported from client-go's ``SharedInformer``. An object whose resourceVersion is the one already
stored is no change and reaches no handler, also after a relist.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

from reconciler.meta import Meta, Request, key_of
from reconciler.reflector import EventType, Reflector
from reconciler.store import Store
from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from reconciler.client import Resource, Transport
    from reconciler.stop import Stop

T = TypeVar("T", bound=Meta)
T_co = TypeVar("T_co", bound=Meta, covariant=True)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event(Generic[T_co]):
    """What happened to an object: ``old`` is ``None`` when added, ``new`` when deleted.

    A deletion that was noticed only by listing again has an ``old`` that may be out of date; then
    ``final_state_known`` is false. ``initial`` marks the objects that a handler is told of because
    they were there when it, or the informer, started.
    """

    type: EventType
    old: T_co | None
    new: T_co | None
    initial: bool = False
    final_state_known: bool = True

    @property
    def obj(self) -> T_co:
        """The object as it is now, or as it last was."""
        found = self.new if self.new is not None else self.old
        assert found is not None
        return found


class Informer(Generic[T]):
    """One kind's store and its handlers; ``run`` it in a thread of its own, once."""

    def __init__(
        self,
        transport: Transport,
        resource: Resource,
        decode: Callable[[msgspec.Raw], T],
        *,
        namespace: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        """
        :param decode: makes an object of its JSON; raises ``msgspec.DecodeError`` if it cannot
        """
        self.resource = resource
        self.store: Store[T] = Store()
        self.name = f"informer {resource}"
        self.undecodable = 0
        """How many objects could not be decoded; each was logged, and what was stored stayed."""
        self._decode = decode
        self._reflector = Reflector(
            transport, resource, self, namespace=namespace, clock=clock, rng=rng
        )
        # Held while a change is stored and told, so that a handler added meanwhile misses nothing.
        self._lock = threading.Lock()
        self._handlers: list[Callable[[Event[T]], None]] = []
        self._synced = threading.Event()
        self._handled_version = ""

    def add_handler(self, handler: Callable[[Event[T]], None]) -> None:
        """Tell ``handler`` of every object there is and of every change from now on.

        It is called on the informer's thread, the first times on this one, and must not block. If
        it raises, that is logged and the others go on.
        """
        with self._lock:
            self._handlers.append(handler)
            for obj in self.store.snapshot():
                self._call(handler, Event(EventType.ADDED, None, obj, initial=True))

    def run(self, stop: Stop) -> None:
        """Follow the server until asked to stop."""
        self._reflector.run(stop)

    @property
    def has_synced(self) -> bool:
        """Whether the first list has been stored and told to the handlers."""
        return self._synced.is_set()

    @property
    def last_error(self) -> str | None:
        """Why the server cannot be watched at the moment, or ``None``."""
        return self._reflector.last_error

    @property
    def handled_resource_version(self) -> str:
        """The version up to which every event has been stored and told to the handlers."""
        return self._handled_version

    # -- what the reflector calls --------------------------------------------------------------

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        """Store exactly these objects, and tell what changed by that."""
        initial = not self._synced.is_set()
        found: list[T] = []
        kept: list[T] = []
        for raw in objects:
            try:
                found.append(self._decode(raw))
            except msgspec.DecodeError as error:
                kept += self._keep(raw, error)
        with self._lock:
            before = self.store.replace([*kept, *found])
            gone = before.keys() - {key_of(obj) for obj in [*kept, *found]}
            for key in sorted(gone):
                event = Event(EventType.DELETED, before[key], None, final_state_known=False)
                self._tell(event)
            for obj in found:
                self._tell_stored(before.get(key_of(obj)), obj, initial=initial)
        self._synced.set()

    def apply(self, event: EventType, obj: msgspec.Raw) -> None:
        """Store what happened to one object, and tell it."""
        try:
            decoded = self._decode(obj)
        except msgspec.DecodeError as error:
            self._keep(obj, error)
            return
        with self._lock:
            if event is EventType.DELETED:
                if self.store.remove(key_of(decoded)) is not None:
                    self._tell(Event(EventType.DELETED, decoded, None))
            else:
                self._tell_stored(self.store.put(decoded), decoded, initial=False)

    def advance(self, resource_version: str) -> None:
        """Note that every event up to this version has been handled."""
        self._handled_version = resource_version

    # -- telling -------------------------------------------------------------------------------

    def _tell_stored(self, before: T | None, obj: T, *, initial: bool) -> None:
        if before is None:
            self._tell(Event(EventType.ADDED, None, obj, initial=initial))
        elif before.resource_version != obj.resource_version:
            self._tell(Event(EventType.MODIFIED, before, obj))

    def _tell(self, event: Event[T]) -> None:
        for handler in self._handlers:
            self._call(handler, event)

    def _call(self, handler: Callable[[Event[T]], None], event: Event[T]) -> None:
        try:
            handler(event)
        except Exception:  # noqa: BLE001 - one handler's fault is not the others'
            _log.exception("a handler of %s failed on %s", self.resource, key_of(event.obj))

    def _keep(self, raw: msgspec.Raw, error: msgspec.DecodeError) -> list[T]:
        """Note an object that cannot be decoded; what is stored of it, if anything, as a list."""
        self.undecodable += 1
        try:
            meta = _identity_decoder.decode(raw).metadata
        except msgspec.DecodeError:
            _log.warning("%s: an object cannot be decoded: %s; ignored", self.resource, error)
            return []
        key = Request(meta.namespace, meta.name)
        _log.warning("%s %s cannot be decoded: %s; ignored", self.resource, key, error)
        stored = self.store.get(meta.namespace, meta.name)
        return [] if stored is None else [stored]


class _IdentityMeta(msgspec.Struct):
    name: str
    namespace: str = ""


class _Identity(msgspec.Struct):
    metadata: _IdentityMeta


_identity_decoder = msgspec.json.Decoder(_Identity)

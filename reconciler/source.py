"""Where a controller's keys come from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from reconciler.meta import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from reconciler.delivery import Registration
    from reconciler.event import Event
    from reconciler.handler import Handler
    from reconciler.informer import Informer
    from reconciler.predicate import Predicate
    from reconciler.stop import Stop

T = TypeVar("T", bound=Meta)
K = TypeVar("K", bound="Hashable")
K_co = TypeVar("K_co", bound="Hashable", covariant=True)
K_contra = TypeVar("K_contra", bound="Hashable", contravariant=True)


class Add(Protocol[K_contra]):
    """Takes a key for a controller's queue. Never waits; may be called by any thread."""

    def __call__(self, key: K_contra, event: Event[Any] | None = None) -> None:
        """Add the key; ``event`` is what asks for it, where it is an informer's."""
        ...


class Source(Protocol[K_co]):
    """Adds keys to a queue from ``start`` until the stop."""

    name: str

    def start(self, add: Add[K_co], stop: Stop) -> threading.Thread | None:
        """Begin, without blocking; the thread to join after the stop, if one was started."""
        ...

    @property
    def has_synced(self) -> bool:
        """Whether everything that there was at the start has been added."""
        ...


class Kind(Generic[T, K]):
    """An informer's events, where every predicate agrees, as the keys that a handler makes of them.

    Runs on the informer's thread.
    """

    def __init__(
        self, informer: Informer[T], handler: Handler[T, K], *predicates: Predicate[T]
    ) -> None:
        self.name = str(informer.resource)
        self._informer = informer
        self._handler = handler
        self._predicates = predicates
        self._registration: Registration[T] | None = None

    def start(self, add: Add[K], stop: Stop) -> None:
        """Be told of the informer's events."""

        def on_event(event: Event[T]) -> None:
            if all(predicate(event) for predicate in self._predicates):
                for key in self._handler(event):
                    add(key, event)

        self._registration = self._informer.add_handler(on_event)

    @property
    def has_synced(self) -> bool:
        """Whether every object that was there at the start has been seen."""
        return self._registration is not None and self._registration.has_synced


class Periodic(Generic[K]):
    """The keys that ``keys`` gives, every so many seconds; the first time after that long."""

    has_synced = True

    def __init__(self, seconds: float, keys: Callable[[], Iterable[K]]) -> None:
        """
        :raises ValueError: if ``seconds`` is not above 0
        """
        if not seconds > 0:
            raise ValueError(f"a period must be above 0 seconds, not {seconds!r}")
        self.name = f"every {seconds:g} s"
        self._seconds = seconds
        self._keys = keys

    def start(self, add: Add[K], stop: Stop) -> threading.Thread:
        """Tick in a thread of its own until asked to stop."""

        def tick() -> None:
            while not stop.wait(self._seconds):
                for key in self._keys():
                    add(key)

        thread = threading.Thread(target=tick, name=self.name, daemon=True)
        thread.start()
        return thread


class Channel(Generic[K]):
    """Keys that the program itself sends, from any thread, to every controller that watches this.

    What is sent before the first controller starts is kept for that one, each key once.
    """

    has_synced = True

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._adds: list[Add[K]] = []
        self._early: dict[K, None] = {}

    def send(self, key: K) -> None:
        """Add the key to the queues. Does not wait."""
        with self._lock:
            if not self._adds:
                self._early[key] = None
            for add in self._adds:
                add(key)

    def start(self, add: Add[K], stop: Stop) -> None:
        """Add what was sent so far and whatever is sent from now on."""
        with self._lock:
            self._adds.append(add)
            for key in self._early:
                add(key)
            self._early.clear()


class Func(Generic[K]):
    """A source made of a function: ``start`` as in ``Source``, with nothing to wait for."""

    has_synced = True

    def __init__(self, name: str, start: Callable[[Add[K], Stop], threading.Thread | None]) -> None:
        self.name = name
        self._start = start

    def start(self, add: Add[K], stop: Stop) -> threading.Thread | None:
        """Call the function."""
        return self._start(add, stop)

"""Where a controller's keys come from."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from reconciler.meta import Meta

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable

    from reconciler.event import Event
    from reconciler.handler import Handler
    from reconciler.informer import Informer
    from reconciler.predicate import Predicate
    from reconciler.stop import Stop

T = TypeVar("T", bound=Meta)
K = TypeVar("K", bound="Hashable")
K_co = TypeVar("K_co", bound="Hashable", covariant=True)


class Source(Protocol[K_co]):
    """Adds keys to a queue from ``start`` until the stop."""

    name: str

    def start(self, add: Callable[[K_co], None], stop: Stop) -> threading.Thread | None:
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

    def start(self, add: Callable[[K], None], stop: Stop) -> None:
        """Be told of the informer's events."""

        def on_event(event: Event[T]) -> None:
            if all(predicate(event) for predicate in self._predicates):
                for key in self._handler(event):
                    add(key)

        self._informer.add_handler(on_event)

    @property
    def has_synced(self) -> bool:
        """Whether the informer's first list has been handled."""
        return self._informer.has_synced


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

    def start(self, add: Callable[[K], None], stop: Stop) -> threading.Thread:
        """Tick in a thread of its own until asked to stop."""

        def tick() -> None:
            while not stop.wait(self._seconds):
                for key in self._keys():
                    add(key)

        thread = threading.Thread(target=tick, name=self.name, daemon=True)
        thread.start()
        return thread

"""The objects of one kind, as last seen. Readers get whole snapshots, never a lock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from reconciler.meta import Meta, Request, key_of

if TYPE_CHECKING:
    from collections.abc import Iterable

T = TypeVar("T", bound=Meta)


class Store(Generic[T]):
    """Objects by key. Reads may come from any thread, and see all of a change or nothing of it.

    Ported from client-go's ``ThreadSafeStore``; objects are shared and must not be changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[Request, T] = {}

    def get(self, namespace: str, name: str) -> T | None:
        """The object of that key, if there is one."""
        with self._lock:
            return self._objects.get(Request(namespace, name))

    def snapshot(self) -> list[T]:
        """All objects at one moment; a new list of the same objects."""
        with self._lock:
            return list(self._objects.values())

    def keys(self) -> list[Request]:
        """All keys at one moment."""
        with self._lock:
            return list(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def put(self, obj: T) -> T | None:
        """Add or replace an object; the one that was there before."""
        key = key_of(obj)
        with self._lock:
            before = self._objects.get(key)
            self._objects[key] = obj
            return before

    def remove(self, key: Request) -> T | None:
        """Remove an object; the one that was there."""
        with self._lock:
            return self._objects.pop(key, None)

    def replace(self, objects: Iterable[T]) -> dict[Request, T]:
        """Hold exactly these objects from now on; those that were held before, by key."""
        after = {key_of(obj): obj for obj in objects}
        with self._lock:
            before, self._objects = self._objects, after
            return before

"""The objects of one kind, as last seen. Readers get whole snapshots, never a lock."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Generic, TypeVar

from reconciler.index import Index
from reconciler.meta import Meta, Request, key_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T", bound=Meta)


class Store(Generic[T]):
    """Objects by key. Reads may come from any thread, and see all of a change or nothing of it.

    Ported from client-go's ``ThreadSafeStore``; objects are shared and must not be changed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[Request, T] = {}
        self._indexes: dict[str, Index[T]] = {}
        self.resource_version = ""
        """The last version that the store reflects, bookmarks included. Opaque."""

    def get(self, namespace: str, name: str) -> T | None:
        """The object of that name, if there is one."""
        return self.find(Request(namespace, name))

    def find(self, key: Request) -> T | None:
        """The object of that key, if there is one."""
        with self._lock:
            return self._objects.get(key)

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

    # -- indexes -------------------------------------------------------------------------------

    def add_index(self, name: str, function: Callable[[T], Iterable[str]]) -> None:
        """Let objects be found by the values that ``function`` gives them; at any time.

        :raises ValueError: if there is an index of that name
        """
        with self._lock:
            if name in self._indexes:
                raise ValueError(f"there is an index {name!r} already")
            self._indexes[name] = Index(name, function, self._objects)

    def has_index(self, name: str) -> bool:
        """Whether there is an index of that name."""
        return name in self._indexes

    def by_index(self, name: str, value: str) -> list[T]:
        """The objects that have this value.

        :raises LookupError: if there is no such index
        """
        with self._lock:
            return self._index(name).find(value)

    def index_values(self, name: str) -> list[str]:
        """Every value that some object has, sorted.

        :raises LookupError: if there is no such index
        """
        with self._lock:
            return self._index(name).values()

    def _index(self, name: str) -> Index[T]:
        found = self._indexes.get(name)
        if found is None:
            raise LookupError(f"there is no index {name!r}")
        return found

    # -- changes, by whoever fills the store ---------------------------------------------------

    def put(self, obj: T) -> T | None:
        """Add or replace an object; the one that was there before."""
        key = key_of(obj)
        with self._lock:
            before = self._objects.get(key)
            self._objects[key] = obj
            for index in self._indexes.values():
                index.put(key, obj)
            return before

    def remove(self, key: Request) -> T | None:
        """Remove an object; the one that was there."""
        with self._lock:
            for index in self._indexes.values():
                index.remove(key)
            return self._objects.pop(key, None)

    def replace(self, objects: Mapping[Request, T]) -> Mapping[Request, T]:
        """Hold exactly these objects from now on; those that were held before."""
        after = dict(objects)
        with self._lock:
            before, self._objects = self._objects, after
            for index in self._indexes.values():
                for key in before:
                    if key not in after:
                        index.remove(key)
                for key, obj in after.items():
                    if before.get(key) is not obj:
                        index.put(key, obj)
            return before

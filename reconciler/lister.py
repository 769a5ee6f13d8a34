"""Reading a store the way a program reads the API: by namespace, name and label selector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from reconciler.index import NAMESPACE
from reconciler.meta import Meta
from reconciler.selector import everything, parse

if TYPE_CHECKING:
    import builtins

    from reconciler.store import Store

T = TypeVar("T", bound=Meta)


class Lister(Generic[T]):
    """All objects of a store, or those of one namespace.

    A namespace is found by the store's index ``"namespace"`` if it has one, else by looking at all
    objects. Objects are shared and must not be changed.
    """

    def __init__(self, store: Store[T], namespace: str | None = None) -> None:
        self._store = store
        self._namespace = namespace

    def namespace(self, name: str) -> Lister[T]:
        """The objects of one namespace."""
        return Lister(self._store, name)

    def list(self, selector: str = "") -> builtins.list[T]:
        """The objects whose labels a selector like ``app=web,tier in (a, b)`` selects.

        :raises ValueError: if the text is no selector
        """
        selects = parse(selector)
        objects = self._objects()
        return objects if selects is everything else [o for o in objects if selects(o.labels)]

    def get(self, name: str) -> T | None:
        """The object of that name, in this lister's namespace or in none."""
        return self._store.get(self._namespace or "", name)

    def _objects(self) -> builtins.list[T]:
        if self._namespace is None:
            return self._store.snapshot()
        if self._store.has_index(NAMESPACE):
            return self._store.by_index(NAMESPACE, self._namespace)
        return [obj for obj in self._store.snapshot() if obj.namespace == self._namespace]

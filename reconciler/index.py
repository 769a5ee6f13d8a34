"""Finding objects by what a function says of them, without looking at all of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Generic, TypeVar

from reconciler.meta import Meta, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

T = TypeVar("T", bound=Meta)

NAMESPACE = "namespace"

_log = logging.getLogger(__name__)


def by_namespace(obj: Meta) -> tuple[str]:
    """For an index of that name: the object's namespace."""
    return (obj.namespace,)


class Index(Generic[T]):
    """Objects by each of the values that a function gives them. The store's lock guards it."""

    def __init__(
        self,
        name: str,
        function: Callable[[T], Iterable[str]],
        objects: Mapping[Request, T],
    ) -> None:
        """Raises whatever the function raises of an object."""
        self._name = name
        self._function = function
        self._by_value: dict[str, dict[Request, T]] = {}
        self._values: dict[Request, tuple[str, ...]] = {}
        for key, obj in objects.items():
            self._enter(key, obj, tuple(function(obj)))

    def find(self, value: str) -> list[T]:
        """The objects that have this value."""
        return list(self._by_value.get(value, {}).values())

    def values(self) -> list[str]:
        """Every value that some object has, sorted."""
        return sorted(self._by_value)

    def put(self, key: Request, obj: T) -> None:
        """The object is new, or has changed.

        If the function fails, that is logged, and the object has no value until it changes again.
        """
        self.remove(key)
        try:
            values = tuple(self._function(obj))
        except Exception:  # noqa: BLE001 - a fault of one index must not stop the store
            _log.exception("index %s failed on %s; it is not found there", self._name, key)
            return
        self._enter(key, obj, values)

    def remove(self, key: Request) -> None:
        """The object is gone. A value that nobody has any more is dropped."""
        for value in self._values.pop(key, ()):
            holders = self._by_value.get(value)
            if holders is not None:
                holders.pop(key, None)
                if not holders:
                    del self._by_value[value]

    def _enter(self, key: Request, obj: T, values: tuple[str, ...]) -> None:
        if values:
            self._values[key] = values
        for value in values:
            self._by_value.setdefault(value, {})[key] = obj

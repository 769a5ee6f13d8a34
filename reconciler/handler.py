"""From an event to the keys that need work. Handlers are pure and never block."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TYPE_CHECKING, TypeVar

from reconciler.event import Event
from reconciler.meta import Meta, Request, key_of

if TYPE_CHECKING:
    from reconciler.client import Resource
    from reconciler.meta import FullMeta

T = TypeVar("T", bound=Meta)
K = TypeVar("K", bound=Hashable)

Handler = Callable[[Event[T]], Iterable[K]]


def enqueue_key(key: K) -> Callable[[Event[Meta]], tuple[K]]:
    """Every event needs the same work: one constant key."""
    keys = (key,)
    return lambda _event: keys


def enqueue_object(event: Event[Meta]) -> tuple[Request]:
    """The object itself needs work."""
    return (key_of(event.obj),)


def enqueue_map(function: Callable[[T], Iterable[K]]) -> Callable[[Event[T]], list[K]]:
    """Whatever ``function`` says of the object as it was and as it is, each key once."""

    def keys(event: Event[T]) -> list[K]:
        found = [key for obj in (event.old, event.new) if obj is not None for key in function(obj)]
        return list(dict.fromkeys(found))

    return keys


def enqueue_owner(
    resource: Resource, *, only_controller: bool = True
) -> Callable[[Event[FullMeta]], list[Request]]:
    """The object's owners of one kind, of any version, need work: those before and those after.

    :param only_controller: whether only the owner that is marked as the controller counts
    """

    def owners(obj: FullMeta) -> list[Request]:
        return [
            Request(obj.namespace if resource.namespaced else "", reference.name)
            for reference in obj.owner_references
            if (reference.group, reference.kind) == (resource.group, resource.kind)
            and (reference.controller or not only_controller)
        ]

    return enqueue_map(owners)

"""Which events matter. Predicates are pure; an event that one refuses reaches no queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from reconciler.event import Event
from reconciler.meta import FullMeta, Meta

T = TypeVar("T", bound=Meta)

Predicate = Callable[[Event[T]], bool]


def view_changed(view: Callable[[T], Any]) -> Predicate[T]:
    """The object looks different from before, to somebody who sees only ``view`` of it.

    A view of ``None`` is as good as no object: its appearance and disappearance are events, its
    changes are not.
    """

    def changed(event: Event[T]) -> bool:
        before = None if event.old is None else view(event.old)
        after = None if event.new is None else view(event.new)
        return bool(before != after)

    return changed


def _updates(differ: Callable[[T, T], bool]) -> Predicate[T]:
    """Creations and deletions always matter, updates where the two differ."""
    return lambda event: event.old is None or event.new is None or differ(event.old, event.new)


def resource_version_changed(event: Event[Meta]) -> bool:
    """The object was written."""
    changed: Predicate[Meta] = _updates(lambda a, b: a.resource_version != b.resource_version)
    return changed(event)


def label_changed(event: Event[Meta]) -> bool:
    """The object's labels are others than before."""
    changed: Predicate[Meta] = _updates(lambda a, b: a.labels != b.labels)
    return changed(event)


def generation_changed(event: Event[FullMeta]) -> bool:
    """The object's ``metadata.generation`` changed: its spec did, not only its status."""
    changed: Predicate[FullMeta] = _updates(lambda a, b: a.generation != b.generation)
    return changed(event)


def annotation_changed(event: Event[FullMeta]) -> bool:
    """The object's annotations are others than before."""
    changed: Predicate[FullMeta] = _updates(lambda a, b: a.annotations != b.annotations)
    return changed(event)


def all_of(*predicates: Predicate[T]) -> Predicate[T]:
    """Every one agrees."""
    return lambda event: all(predicate(event) for predicate in predicates)


def any_of(*predicates: Predicate[T]) -> Predicate[T]:
    """At least one agrees."""
    return lambda event: any(predicate(event) for predicate in predicates)


def not_(predicate: Predicate[T]) -> Predicate[T]:
    """It disagrees."""
    return lambda event: not predicate(event)

"""What happened to an object, as handlers are told it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

from reconciler.meta import Meta

T = TypeVar("T", bound=Meta)
T_co = TypeVar("T_co", bound=Meta, covariant=True)


class EventType(enum.Enum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Event(Generic[T_co]):
    """What happened to an object: ``old`` is ``None`` when added, ``new`` when deleted.

    A deletion that was noticed only by asking for all objects again has an ``old`` that may be out
    of date; then ``final_state_known`` is false (client-go's tombstone). ``initial`` marks the
    objects that a handler is told of because they were there when it, or the informer, started.
    An update whose ``old`` and ``new`` are the same object is the handler's own resync.
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


def between(old: T | None, new: T | None, like: Event[T]) -> Event[T] | None:
    """What somebody hears who knew ``old`` and is to know ``new``; the rest is as in ``like``."""
    if old is None and new is None:
        return None
    if old is None:
        return Event(EventType.ADDED, None, new, initial=like.initial)
    if new is None:
        return Event(EventType.DELETED, old, None, final_state_known=like.final_state_known)
    return Event(EventType.MODIFIED, old, new)

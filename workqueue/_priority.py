"""The queue's rules when keys have priorities.

Higher numbers first; within one priority, first in, first out. A key has one priority until it is
handed out: the highest that was asked for since it was handed out last. A queued key whose priority
rises moves behind the others of its new priority; one that becomes due is queued behind the others
of its own. A key is either queued (or to be queued) or becomes due later, never both: an add pulls
a delayed key forward.

Ported from controller-runtime's ``priorityqueue``, on top of the rules in ``_core``.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from workqueue._core import Core, Observer
from workqueue._heap import KeyedHeap

K = TypeVar("K")


class _ByPriority(Generic[K]):
    """The order of queued keys; the priorities are kept by the core, for keys not queued too."""

    def __init__(self, priorities: dict[K, int]) -> None:
        self._priorities = priorities
        self._heap: KeyedHeap[K] = KeyedHeap()

    def push(self, key: K) -> None:
        self._heap.put(key, -self._priorities[key])

    def touch(self, key: K) -> None:
        """Move the key up if its priority rose."""
        if self._heap.rank(key) != -self._priorities[key]:
            self.push(key)

    def pop(self) -> K:
        return self._heap.pop()[0]

    def __len__(self) -> int:
        return len(self._heap)


class PriorityCore(Core[K]):
    """The state machine; see the module's text."""

    __slots__ = ("_in_hand", "_priorities")

    def __init__(self, *, observer: Observer[K] | None = None) -> None:
        self._priorities: dict[K, int] = {}
        self._in_hand: dict[K, int] = {}
        super().__init__(_ByPriority(self._priorities), preempt_delayed=True, observer=observer)

    def add(self, key: K) -> bool:
        """``add_with`` at priority 0."""
        return self.add_with(key, 0)

    def add_after(self, key: K, delay: float, now: float) -> bool:
        """``add_with`` at priority 0."""
        return self.add_with(key, 0, delay, now)

    def add_with(self, key: K, priority: int, delay: float = 0, now: float = 0) -> bool:
        """Add a key at a priority, at once or once ``delay`` seconds have passed; whether something
        changed for waiters.

        :raises ValueError: if ``delay`` is not a number
        """
        known = self._priorities.get(key)
        if not self.shutting_down and (known is None or priority > known):
            self._priorities[key] = priority
        try:
            if delay != 0:
                # An add_after that is due at once comes back through ``add``, to the same effect.
                changed = super().add_after(key, delay, now)
                if key in self._dirty and key not in self._processing and self._touch is not None:
                    self._touch(key)
                return changed
            return super().add(key)
        finally:
            self._drop_unused(key)

    def priority_in_hand(self, key: K) -> int:
        """The priority with which a key was handed out that is in hand.

        :raises KeyError: if the key is not in hand
        """
        return self._in_hand[key]

    def forget_delayed(self, key: K) -> bool:
        """Drop the key's deadline, if it has one; whether it had."""
        forgotten = super().forget_delayed(key)
        self._drop_unused(key)
        return forgotten

    def take(self) -> K:
        """Hand out the first key of the highest priority.

        :raises IndexError: if none is queued
        """
        key = super().take()
        self._in_hand[key] = self._priorities.pop(key)
        return key

    def done(self, key: K) -> bool:
        """End the work on a key; whether it was queued again, so that one worker should wake."""
        self._in_hand.pop(key, None)
        return super().done(key)

    def shut_down(self) -> None:
        """Take no more; drop what is not due yet. What is queued is still handed out."""
        delayed = list(self.delayed)
        super().shut_down()
        for key in delayed:
            self._drop_unused(key)

    def _drop_unused(self, key: K) -> None:
        if key not in self._dirty and key not in self.delayed:
            self._priorities.pop(key, None)

"""The queue's rules, and nothing else: no lock, no clock, no thread.

A key is in one of four states, by its membership in two sets:

    dirty   processing
    -       -            clean: unknown to the queue
    x       -            queued: in the order of work, exactly once
    -       x            in a worker's hands
    x       x            in a worker's hands, and added again: it is queued when it is done

So a key is never in two hands, an add is never lost, and any number of adds before the next get
cost one run. Beside that stands a heap of keys that become due later; each key has one deadline,
the earliest that was asked for, and becomes due by an ordinary add.

Every method that depends on time takes ``now``, in seconds. The fronts hold a lock around each call
and wake waiters as the return values say.

Ported from client-go's util/workqueue ``Typed`` and ``delayingType``, with stricter rules where
those break their own promises: ``done`` of a key that is not in hand is ignored, and drained means
that nothing is queued or in hand.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Statistics:
    """A queue at one moment. The last five count since the queue was made."""

    queued: int
    """Keys ready for the next worker."""
    processing: int
    """Keys in workers' hands."""
    reruns: int
    """Keys in workers' hands that were added again and will be queued when done."""
    waiting: int
    """Keys that become due later."""
    shutting_down: bool
    adds: int
    """Adds that changed something."""
    collapsed: int
    """Adds that changed nothing, because the key was queued (or to be queued) already."""
    retries: int
    """Calls of ``add_after``, and so of ``add_rate_limited``."""
    spurious_dones: int
    """Calls of ``done`` for a key that was not in hand; ignored."""
    ignored_adds: int
    """Adds after shutdown; ignored."""


class Core(Generic[K]):
    """The state machine; see the module's text."""

    __slots__ = (
        "_adds",
        "_collapsed",
        "_deadlines",
        "_dirty",
        "_heap",
        "_ignored_adds",
        "_processing",
        "_queue",
        "_retries",
        "_sequence",
        "_spurious_dones",
        "shutting_down",
    )

    def __init__(self) -> None:
        self._queue: deque[K] = deque()
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._deadlines: dict[K, float] = {}
        # Entries whose deadline is no longer the key's are stale and skipped when they surface.
        self._heap: list[tuple[float, int, K]] = []
        self._sequence = 0
        self.shutting_down = False
        self._adds = self._collapsed = self._retries = 0
        self._spurious_dones = self._ignored_adds = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, key: K) -> bool:
        """Mark a key as needing work; whether one waiting worker should be woken."""
        if self.shutting_down:
            self._ignored_adds += 1
            return False
        if key in self._dirty:
            self._collapsed += 1
            return False
        self._adds += 1
        self._dirty.add(key)
        if key in self._processing:
            return False
        self._queue.append(key)
        return True

    def add_after(self, key: K, delay: float, now: float) -> bool:
        """Add the key once ``delay`` seconds have passed; whether to wake one waiting worker.

        :raises ValueError: if ``delay`` is not a number
        """
        if math.isnan(delay):
            raise ValueError(f"delay of {key!r} is not a number")
        if self.shutting_down:
            self._ignored_adds += 1
            return False
        self._retries += 1
        if delay <= 0:
            return self.add(key)
        due = now + delay
        if due >= self._deadlines.get(key, math.inf):
            return False
        self._deadlines[key] = due
        self._sequence += 1
        heapq.heappush(self._heap, (due, self._sequence, key))
        return self._heap[0][2] is key

    def forget_delayed(self, key: K) -> bool:
        """Drop the key's deadline, if it has one; whether it had."""
        return self._deadlines.pop(key, None) is not None

    def promote(self, now: float) -> int:
        """Add every key that is due by ``now``, in the order of their deadlines; how many woke."""
        woken = 0
        while self._heap and self._heap[0][0] <= now:
            due, _, key = heapq.heappop(self._heap)
            if self._deadlines.get(key) == due:
                del self._deadlines[key]
                woken += self.add(key)
        return woken

    def next_due(self) -> float | None:
        """When the next key becomes due, or ``None``."""
        while self._heap and self._deadlines.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self) -> K:
        """Hand out the first queued key.

        :raises IndexError: if none is queued
        """
        key = self._queue.popleft()
        self._dirty.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> bool:
        """End the work on a key; whether it was queued again, so that one worker should wake."""
        if key not in self._processing:
            self._spurious_dones += 1
            return False
        self._processing.discard(key)
        if key not in self._dirty:
            return False
        self._queue.append(key)
        return True

    def shut_down(self) -> None:
        """Take no more; drop what is not due yet. What is queued is still handed out."""
        self.shutting_down = True
        self._deadlines.clear()
        self._heap.clear()

    @property
    def drained(self) -> bool:
        """Whether nothing is queued or in hand."""
        return not self._queue and not self._processing

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in hand, or becomes due later."""
        return self.drained and not self._deadlines

    def statistics(self) -> Statistics:
        """Count everything."""
        return Statistics(
            queued=len(self._queue),
            processing=len(self._processing),
            reruns=len(self._dirty) - len(self._queue),
            waiting=len(self._deadlines),
            shutting_down=self.shutting_down,
            adds=self._adds,
            collapsed=self._collapsed,
            retries=self._retries,
            spurious_dones=self._spurious_dones,
            ignored_adds=self._ignored_adds,
        )

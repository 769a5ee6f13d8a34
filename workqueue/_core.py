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

Every method that depends on time takes ``now``, in seconds. The fronts hold a lock around each
call, ``promote`` what is due before every operation, and wake waiters as the return values say.

Ported from client-go's util/workqueue ``Typed`` and ``delayingType``, with stricter rules where
those break their own promises: ``done`` of a key that is not in hand is ignored, and drained means
that nothing is queued or in hand.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from workqueue._heap import KeyedHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Sized

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)


class Order(Protocol[K]):
    """In which order queued keys are handed out. Ported from client-go ``workqueue.Queue``.

    All calls are made with the queue's lock held, and so must not call the queue. A key is pushed
    only while it is not in the order.
    """

    def touch(self, key: K) -> None:
        """A key that is in the order was added again: it may be moved."""
        ...

    def push(self, key: K) -> None:
        """Take a key into the order."""
        ...

    def pop(self) -> K:
        """Give out the next key. Called only while there is one."""
        ...

    def __len__(self) -> int:
        """How many keys are in the order."""
        ...


class Observer(Protocol[K_contra]):
    """Learns of each change of a key's state; for metrics."""

    def added(self, key: K_contra, at: float | None) -> None:
        """The key became dirty, now or at an earlier moment."""
        ...

    def taken(self, key: K_contra) -> None:
        """The key was handed to a worker."""
        ...

    def finished(self, key: K_contra) -> None:
        """The worker is done with the key."""
        ...


@dataclass(frozen=True, slots=True)
class Statistics:
    """A queue at one moment. From ``adds`` on, the numbers count since the queue was made."""

    queued: int
    """Keys ready for the next worker."""
    processing: int
    """Keys in workers' hands."""
    reruns: int
    """Keys in workers' hands that were added again and will be queued when done."""
    waiting: int
    """Keys that become due later."""
    getters: int
    """Workers that wait for a key."""
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
        "_ignored_adds",
        "_observer",
        "_pop",
        "_preempt_delayed",
        "_processing",
        "_push",
        "_queue",
        "_retries",
        "_spurious_dones",
        "_touch",
        "delayed",
        "shutting_down",
    )

    def __init__(
        self,
        order: Order[K] | None = None,
        *,
        preempt_delayed: bool = False,
        observer: Observer[K] | None = None,
    ) -> None:
        self._queue: Sized
        self._push: Callable[[K], None]
        self._pop: Callable[[], K]
        self._touch: Callable[[K], None] | None
        if order is None:
            # First in, first out, by calls that stay inside the interpreter's C code.
            fifo: deque[K] = deque()
            self._queue, self._push, self._pop, self._touch = fifo, fifo.append, fifo.popleft, None
        else:
            self._queue, self._push, self._pop = order, order.push, order.pop
            self._touch = order.touch
        self._preempt_delayed = preempt_delayed
        self._observer = observer
        self._dirty: set[K] = set()
        self._processing: set[K] = set()
        self._deadlines: KeyedHeap[K] = KeyedHeap()
        self.delayed = self._deadlines.entries
        """Not empty while keys become due later."""
        self.shutting_down = False
        self._adds = self._collapsed = self._retries = 0
        self._spurious_dones = self._ignored_adds = 0

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, key: K) -> bool:
        """Mark a key as needing work; whether it was queued, so that one worker should wake."""
        if self.shutting_down:
            self._ignored_adds += 1
            return False
        if key in self._dirty:
            self._collapsed += 1
            if self._touch is not None and key not in self._processing:
                self._touch(key)
            return False
        if self._preempt_delayed and self.delayed:
            self._deadlines.discard(key)
        return self._mark(key, None)

    def _mark(self, key: K, at: float | None) -> bool:
        """Make a key dirty that is not; whether it was queued."""
        self._dirty.add(key)
        self._adds += 1
        if self._observer is not None:
            self._observer.added(key, at)
        if key in self._processing:
            return False
        self._push(key)
        return True

    def add_after(self, key: K, delay: float, now: float) -> bool:
        """Add the key once ``delay`` seconds have passed; whether something changed for waiters:
        a key was queued, or the first deadline is a new one.

        :raises ValueError: if ``delay`` is not a number
        """
        if math.isnan(delay):
            raise ValueError(f"the delay of {key!r} is not a number")
        if self.shutting_down:
            self._ignored_adds += 1
            return False
        old = self._deadlines.rank(key)
        self._retries += 1
        if delay <= 0:
            return self.add(key)
        if self._preempt_delayed and key in self._dirty:
            self._collapsed += 1
            return False
        due = now + delay
        # Infinity is no deadline: such a key never becomes due, and is not kept.
        if due >= (math.inf if old is None else old):
            return False
        self._deadlines.put(key, due)
        return self._deadlines.first() == due

    def forget_delayed(self, key: K) -> bool:
        """Drop the key's deadline, if it has one; whether it had."""
        return self._deadlines.discard(key)

    def promote(self, now: float) -> int:
        """Add every key that is due by ``now``, in the order of their deadlines; how many were
        queued."""
        queued = 0
        while (due := self._deadlines.first()) is not None and due <= now:
            key, _ = self._deadlines.pop()
            if key in self._dirty:
                self._collapsed += 1
                if self._touch is not None and key not in self._processing:
                    self._touch(key)
            else:
                queued += self._mark(key, due)
        return queued

    def next_due(self) -> float | None:
        """When the next key becomes due, or ``None``."""
        return self._deadlines.first()

    def take(self) -> K:
        """Hand out the first queued key.

        :raises IndexError: if none is queued
        """
        key = self._pop()
        self._dirty.discard(key)
        self._processing.add(key)
        if self._observer is not None:
            self._observer.taken(key)
        return key

    def done(self, key: K) -> bool:
        """End the work on a key; whether it was queued again, so that one worker should wake."""
        if key not in self._processing:
            self._spurious_dones += 1
            return False
        self._processing.discard(key)
        if self._observer is not None:
            self._observer.finished(key)
        if key not in self._dirty:
            return False
        self._push(key)
        return True

    def shut_down(self) -> None:
        """Take no more; drop what is not due yet. What is queued is still handed out."""
        self.shutting_down = True
        self._deadlines.clear()

    @property
    def drained(self) -> bool:
        """Whether nothing is queued or in hand."""
        return not self._processing and not len(self._queue)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, in hand, or becomes due later."""
        return self.drained and not self.delayed

    def statistics(self, getters: int) -> Statistics:
        """Count everything."""
        return Statistics(
            queued=len(self._queue),
            processing=len(self._processing),
            reruns=len(self._dirty) - len(self._queue),
            waiting=len(self.delayed),
            getters=getters,
            shutting_down=self.shutting_down,
            adds=self._adds,
            collapsed=self._collapsed,
            retries=self._retries,
            spurious_dones=self._spurious_dones,
            ignored_adds=self._ignored_adds,
        )

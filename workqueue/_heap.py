"""A heap of keys, each in it at most once, whose rank can change.

The heap itself is never searched: a key that is ranked again or discarded leaves its old entry
behind, and such an entry is dropped when it comes up. When more than half are left behind the heap
is built anew, so that memory follows the number of keys and every operation stays logarithmic on
average.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

K = TypeVar("K")

_Entry = tuple[float, int, K]

# Below this, old entries cost less than looking after them.
_SPARE = 64


class KeyedHeap(Generic[K]):
    """Lowest rank first; among equal ranks, the one that was ranked first."""

    __slots__ = ("_heap", "_sequence", "entries")

    def __init__(self) -> None:
        self.entries: dict[K, _Entry[K]] = {}
        """The keys in the heap. Read-only for others, who use it where a call costs too much."""
        self._heap: list[_Entry[K]] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self.entries)

    def rank(self, key: K) -> float | None:
        """The key's rank, or ``None`` if it is not in the heap."""
        entry = self.entries.get(key)
        return None if entry is None else entry[0]

    def put(self, key: K, rank: float) -> None:
        """Put the key behind all others of that rank, wherever it was before."""
        self._sequence += 1
        entry = (rank, self._sequence, key)
        self.entries[key] = entry
        heapq.heappush(self._heap, entry)
        self._tidy()

    def discard(self, key: K) -> bool:
        """Take the key out; whether it was in."""
        if self.entries.pop(key, None) is None:
            return False
        self._tidy()
        return True

    def first(self) -> float | None:
        """The lowest rank, or ``None`` if the heap is empty."""
        heap = self._heap
        while heap and self.entries.get(heap[0][2]) is not heap[0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def pop(self) -> tuple[K, float]:
        """Take out the first key, with its rank.

        :raises IndexError: if the heap is empty
        """
        while True:
            entry = heapq.heappop(self._heap)
            rank, _, key = entry
            if self.entries.get(key) is entry:
                del self.entries[key]
                return key, rank

    def clear(self) -> None:
        """Take everything out."""
        self.entries.clear()
        self._heap.clear()

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self.entries) + _SPARE:
            self._heap = list(self.entries.values())
            heapq.heapify(self._heap)

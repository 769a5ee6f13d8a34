"""How long to leave a server alone that failed: longer and longer, and never all at once."""

from __future__ import annotations

import random

from workqueue import SYSTEM_CLOCK, Clock


class Backoff:
    """0.8 s, doubled each time up to 30 s, plus up to as much again by chance.

    Starts over when nothing failed for two minutes. The numbers are those of client-go's reflector.
    """

    def __init__(
        self,
        *,
        first: float = 0.8,
        cap: float = 30.0,
        reset_after: float = 120.0,
        clock: Clock = SYSTEM_CLOCK,
        rng: random.Random | None = None,
    ) -> None:
        self._first = self._next = first
        self._cap = cap
        self._reset_after = reset_after
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._last: float | None = None

    def step(self) -> float:
        """Seconds to wait now, before the next try."""
        now = self._clock.now()
        if self._last is not None and now - self._last > self._reset_after:
            self._next = self._first
        delay = self._next * (1 + self._rng.random())
        self._last = now + delay
        self._next = min(self._next * 2, self._cap)
        return delay

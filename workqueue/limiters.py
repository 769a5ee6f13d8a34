"""How long a failing key waits until it is tried again.

Ported from client-go's ``default_rate_limiters.go``, numbers included. Delays are seconds. Every
limiter may be used by several threads.
"""

from __future__ import annotations

import math
import random
import threading
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from workqueue.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import MutableMapping

K = TypeVar("K")
K_contra = TypeVar("K_contra", contravariant=True)

# From here on 2**n times any base that matters is beyond every maximum, and floats stay exact.
_MAX_EXPONENT = 63


class RateLimiter(Protocol[K_contra]):
    """Decides when a key may be tried again."""

    def when(self, key: K_contra) -> float:
        """Count one more failure of the key; seconds until it may be tried again."""
        ...

    def forget(self, key: K_contra) -> None:
        """The key succeeded, or is given up: count from zero again."""
        ...

    def num_requeues(self, key: K_contra) -> int:
        """How many failures of the key are counted."""
        ...


class _FailureCounter(Generic[K]):
    """Counts failures of each key in any mapping, under a lock.

    With ``max_keys`` no more keys than that are counted: a further one is treated as if it had
    failed often, and nothing that is counted makes way for it. A failing key that was dropped would
    start over, and be tried in a hot loop.
    """

    def __init__(self, failures: MutableMapping[K, int] | None, max_keys: int | None) -> None:
        self._failures: MutableMapping[K, int] = {} if failures is None else failures
        self._max_keys = max_keys
        self._lock = threading.Lock()

    def _count(self, key: K) -> int | None:
        """Count one more failure and return how many there were before; ``None`` if it is full."""
        with self._lock:
            before = self._failures.get(key, 0)
            if not before and self._max_keys is not None and len(self._failures) >= self._max_keys:
                return None
            self._failures[key] = before + 1
            return before

    def forget(self, key: K) -> None:
        """Count from zero again."""
        with self._lock:
            self._failures.pop(key, None)

    def num_requeues(self, key: K) -> int:
        """How many failures of the key are counted."""
        with self._lock:
            return self._failures.get(key, 0)


class ItemExponentialFailureRateLimiter(_FailureCounter[K]):
    """``base * 2**failures`` seconds, at most ``maximum``; each key by itself."""

    def __init__(
        self,
        base: float,
        maximum: float,
        *,
        failures: MutableMapping[K, int] | None = None,
        max_keys: int | None = None,
        jitter: float = 0.0,
        rng: random.Random | None = None,
    ) -> None:
        """
        :param base: seconds after the first failure
        :param maximum: seconds at most
        :param failures: where failures are counted; a ``dict`` of its own by default
        :param max_keys: how many keys are counted; a further one waits ``maximum`` at once
        :param jitter: up to this part of the delay is added by chance, so that many who fail
            together do not come back together; the maximum is then exceeded by as much
        :raises ValueError: if a duration is negative or not a number
        """
        super().__init__(failures, max_keys)
        self._jitter = _duration("jitter", jitter)
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._base = _duration("base", base)
        self._maximum = _duration("maximum", maximum)

    def when(self, key: K) -> float:
        """Count one more failure; seconds until the key may be tried again."""
        exponent = self._count(key)
        if exponent is None or exponent >= _MAX_EXPONENT:
            delay = self._maximum if self._base else 0.0
        else:
            delay = min(self._base * 2.0**exponent, self._maximum)
        return delay * (1 + self._jitter * self._rng.random()) if self._jitter else delay


class ItemFastSlowRateLimiter(_FailureCounter[K]):
    """``fast`` seconds for the first ``attempts`` failures of a key, then ``slow`` seconds."""

    def __init__(
        self,
        fast: float,
        slow: float,
        attempts: int,
        *,
        failures: MutableMapping[K, int] | None = None,
        max_keys: int | None = None,
    ) -> None:
        """
        :param failures: where failures are counted; a ``dict`` of its own by default
        :param max_keys: how many keys are counted; a further one is slow at once
        :raises ValueError: if a duration is negative or not a number
        """
        super().__init__(failures, max_keys)
        self._fast = _duration("fast", fast)
        self._slow = _duration("slow", slow)
        self._attempts = attempts

    def when(self, key: K) -> float:
        """Count one more failure; seconds until the key may be tried again."""
        before = self._count(key)
        return self._fast if before is not None and before < self._attempts else self._slow


class BucketRateLimiter(Generic[K]):
    """A token bucket shared by all keys: ``rate`` tries a second, ``burst`` at once.

    Each ``when`` takes a token, if need be one that is still to come, and answers how long until it
    is there. A bucket with no burst never has one: the delay is infinite.
    """

    def __init__(self, rate: float, burst: int, *, clock: Clock = SYSTEM_CLOCK) -> None:
        """
        :raises ValueError: if ``rate`` is not above 0 or ``burst`` is negative
        """
        if not rate > 0:
            raise ValueError(f"rate must be above 0 tries a second, not {rate!r}")
        if burst < 0:
            raise ValueError(f"burst must not be negative, not {burst!r}")
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._updated = clock.now()
        self._lock = threading.Lock()

    def when(self, key: K) -> float:
        """Take a token; seconds until it is there."""
        if not self._burst:
            return math.inf
        with self._lock:
            now = self._clock.now()
            gained = (now - self._updated) * self._rate
            self._tokens = min(self._tokens + gained, float(self._burst)) - 1
            self._updated = now
            return max(-self._tokens / self._rate, 0.0)

    def forget(self, key: K) -> None:
        """Nothing: a bucket does not know keys."""

    def num_requeues(self, key: K) -> int:
        """Always 0: a bucket does not know keys."""
        return 0


class MaxOfRateLimiter(Generic[K]):
    """The longest of several limiters' delays. Every one of them counts every failure."""

    def __init__(self, *limiters: RateLimiter[K]) -> None:
        self._limiters = limiters

    def when(self, key: K) -> float:
        """Count one more failure everywhere; the longest delay, 0 without limiters."""
        return max([limiter.when(key) for limiter in self._limiters], default=0.0)

    def forget(self, key: K) -> None:
        """Count from zero again everywhere."""
        for limiter in self._limiters:
            limiter.forget(key)

    def num_requeues(self, key: K) -> int:
        """The largest of the limiters' counts."""
        return max([limiter.num_requeues(key) for limiter in self._limiters], default=0)


class WithMaxWaitRateLimiter(Generic[K]):
    """Another limiter, whose delays are cut at ``maximum`` seconds."""

    def __init__(self, limiter: RateLimiter[K], maximum: float) -> None:
        self._limiter = limiter
        self._maximum = _duration("maximum", maximum)

    def when(self, key: K) -> float:
        """Count one more failure; the limiter's delay, at most ``maximum`` seconds."""
        return min(self._limiter.when(key), self._maximum)

    def forget(self, key: K) -> None:
        """Count from zero again."""
        self._limiter.forget(key)

    def num_requeues(self, key: K) -> int:
        """The limiter's count."""
        return self._limiter.num_requeues(key)


def default_controller_rate_limiter(*, clock: Clock = SYSTEM_CLOCK) -> MaxOfRateLimiter[K]:
    """client-go's default: 5 ms to 1000 s for each key, and 10 tries a second, 100 at once."""
    return MaxOfRateLimiter(
        ItemExponentialFailureRateLimiter(0.005, 1000),
        BucketRateLimiter(10, 100, clock=clock),
    )


def default_item_based_rate_limiter() -> ItemExponentialFailureRateLimiter[K]:
    """client-go's default without a bucket: 1 ms to 1000 s for each key."""
    return ItemExponentialFailureRateLimiter(0.001, 1000)


def _duration(name: str, seconds: float) -> float:
    if not seconds >= 0:
        raise ValueError(f"{name} must be 0 or more seconds, not {seconds!r}")
    return float(seconds)

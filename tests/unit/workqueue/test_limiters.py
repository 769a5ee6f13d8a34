"""Every limiter's numbers, which are client-go's."""

from __future__ import annotations

import math
import random

import pytest
from cachetools import TTLCache

from workqueue import (
    BucketRateLimiter,
    ItemExponentialFailureRateLimiter,
    ItemFastSlowRateLimiter,
    MaxOfRateLimiter,
    WithMaxWaitRateLimiter,
    default_controller_rate_limiter,
    default_item_based_rate_limiter,
)
from workqueue.testing import FakeClock


def test_exponential() -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(0.001, 1)
    assert [limiter.when("one") for _ in range(5)] == [0.001, 0.002, 0.004, 0.008, 0.016]
    assert limiter.num_requeues("one") == 5
    assert [limiter.when("two") for _ in range(2)] == [0.001, 0.002]
    limiter.forget("one")
    assert limiter.num_requeues("one") == 0
    assert limiter.when("one") == 0.001


@pytest.mark.parametrize(
    ("base", "maximum", "third"), [(0.001, 1000.0, 0.004), (60.0, 1000 * 3600.0, 240.0)]
)
def test_exponential_does_not_overflow(base: float, maximum: float, third: float) -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
        base, maximum
    )
    delays = [limiter.when("one") for _ in range(1001)]
    assert delays[2] == third
    assert delays[-1] == maximum
    assert delays == sorted(delays)


def test_exponential_with_base_0_never_waits() -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(0, 9)
    assert {limiter.when("one") for _ in range(100)} == {0.0}


def test_fast_slow() -> None:
    limiter: ItemFastSlowRateLimiter[str] = ItemFastSlowRateLimiter(0.005, 10, 3)
    assert [limiter.when("one") for _ in range(5)] == [0.005, 0.005, 0.005, 10, 10]
    assert limiter.num_requeues("one") == 5
    assert limiter.when("two") == 0.005
    limiter.forget("one")
    assert limiter.when("one") == 0.005


def test_bucket() -> None:
    clock = FakeClock()
    limiter: BucketRateLimiter[str] = BucketRateLimiter(10, 2, clock=clock)
    assert [limiter.when("any") for _ in range(4)] == pytest.approx([0, 0, 0.1, 0.2])
    clock.step(0.2)
    assert limiter.when("other") == pytest.approx(0.1)
    clock.step(100)
    assert [limiter.when("any") for _ in range(3)] == pytest.approx([0, 0, 0.1])
    limiter.forget("any")
    assert limiter.num_requeues("any") == 0
    never: BucketRateLimiter[str] = BucketRateLimiter(10, 0, clock=clock)
    assert never.when("any") == math.inf


def test_max_of() -> None:
    slow: ItemFastSlowRateLimiter[str] = ItemFastSlowRateLimiter(0.005, 3, 3)
    exponential: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
        0.001, 1
    )
    limiter = MaxOfRateLimiter(slow, exponential)
    assert [limiter.when("one") for _ in range(5)] == [0.005, 0.005, 0.005, 3, 3]
    assert (slow.num_requeues("one"), exponential.num_requeues("one")) == (5, 5)
    assert limiter.num_requeues("one") == 5
    limiter.forget("one")
    assert (slow.num_requeues("one"), exponential.num_requeues("one")) == (0, 0)
    nothing: MaxOfRateLimiter[str] = MaxOfRateLimiter()
    assert (nothing.when("one"), nothing.num_requeues("one")) == (0, 0)


def test_with_max_wait() -> None:
    inner: ItemFastSlowRateLimiter[str] = ItemFastSlowRateLimiter(0.005, 1000, 100)
    limiter = WithMaxWaitRateLimiter(inner, 500)
    assert [limiter.when("one") for _ in range(200)] == [0.005] * 100 + [500] * 100
    assert limiter.num_requeues("one") == 200
    limiter.forget("one")
    assert inner.num_requeues("one") == 0


def test_defaults() -> None:
    clock = FakeClock()
    controller: MaxOfRateLimiter[str] = default_controller_rate_limiter(clock=clock)
    assert controller.when("a") == 0.005
    assert sum(controller.when(f"k{i}") > 0.005 for i in range(200)) > 90
    item: ItemExponentialFailureRateLimiter[str] = default_item_based_rate_limiter()
    assert [item.when("a") for _ in range(2)] == [0.001, 0.002]


def test_failures_may_be_counted_in_any_mapping() -> None:
    failures: dict[str, int] = {}
    limiter = ItemExponentialFailureRateLimiter(1, 8, failures=failures)
    limiter.when("a")
    assert failures == {"a": 1}


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_durations_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="base must be 0 or more seconds"):
        ItemExponentialFailureRateLimiter(seconds, 1)
    with pytest.raises(ValueError, match="slow must be 0 or more seconds"):
        ItemFastSlowRateLimiter(1, seconds, 1)
    with pytest.raises(ValueError, match="rate must be above 0"):
        BucketRateLimiter(seconds, 1)
    with pytest.raises(ValueError, match="burst must not be negative"):
        BucketRateLimiter(1, -1)


def test_a_full_map_fails_closed_and_drops_nobody() -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
        1, 30, max_keys=2
    )
    assert [limiter.when(key) for key in "aabc"] == [1, 2, 1, 30]
    assert limiter.num_requeues("c") == 0
    assert limiter.when("a") == 4
    limiter.forget("b")
    assert limiter.when("c") == 1
    slow: ItemFastSlowRateLimiter[str] = ItemFastSlowRateLimiter(1, 9, 5, max_keys=1)
    assert [slow.when(key) for key in "aba"] == [1, 9, 1]


def test_forgotten_failures_expire_in_a_cache_with_a_lifetime() -> None:
    clock = FakeClock()
    failures: TTLCache[str, int] = TTLCache(maxsize=100, ttl=60, timer=clock.now)
    limiter = ItemExponentialFailureRateLimiter(1, 30, failures=failures, max_keys=2)
    assert [limiter.when(key) for key in "abc"] == [1, 1, 30]
    clock.step(59)
    assert limiter.when("a") == 2
    clock.step(59)
    assert limiter.when("c") == 1  # b was never forgotten, but its time is over
    assert limiter.when("a") == 4


def test_jitter_spreads_upwards() -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(
        1, 4, jitter=0.5, rng=random.Random(1)
    )
    delays = [limiter.when("a") for _ in range(50)]
    assert 1 <= delays[0] <= 1.5
    assert all(4 <= delay <= 6 for delay in delays[2:])
    assert len(set(delays[2:])) > 40

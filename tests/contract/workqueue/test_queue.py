"""client-go's behaviours by name, and the pitfalls that are decided otherwise, on both fronts."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections import Counter
from functools import partial
from typing import Any

import pytest

from tests.contract.workqueue.fronts import (
    PATIENCE,
    Asyncio,
    Caller,
    Threaded,
    until,
    until_getters,
)
from workqueue import ItemExponentialFailureRateLimiter, Queue, ShutDown
from workqueue.testing import FakeClock, RecordingMetrics

Front = Threaded | Asyncio


def drainers(front: Front, queue: Any, clock: FakeClock) -> int:
    """How many wait for the end of all work."""
    if isinstance(front, Threaded):
        return clock.waiters
    return len(queue._queue._drainers)


# -- the queue ---------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [False, True])
def test_basic(front: Front, drain: bool) -> None:
    queue = front.make("Queue")
    done: Counter[int] = Counter()
    lock = threading.Lock()

    def consume() -> None:
        while True:
            try:
                with queue.lease() as key:
                    assert key != -1
                    with lock:
                        done[key] += 1
            except ShutDown:
                return

    consumers = [Caller(consume) for _ in range(10)]

    def produce(start: int) -> None:
        for i in range(50):
            queue.add(start + i)

    producers = [Caller(partial(produce, 50 * n)) for n in range(50)]
    for producer in producers:
        producer.outcome()
    if drain:
        assert queue.shut_down_with_drain(PATIENCE)
    else:
        queue.shut_down()
    queue.add(-1)
    for consumer in consumers:
        consumer.outcome()
    assert len(queue) == 0
    assert set(done) == set(range(2500))


def test_add_while_processing(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("k")
    for _ in range(50):
        with queue.lease() as key:
            queue.add(key)
    assert len(queue) == 1


def test_len(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("a")
    assert len(queue) == 1
    queue.add("b")
    assert len(queue) == 2
    queue.add("a")
    assert len(queue) == 2


def test_reinsert(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.done("a")
    assert queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_collapse(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("a")
    queue.add("a")
    with queue.lease():
        assert len(queue) == 0
    assert queue.statistics().collapsed == 1


def test_collapse_while_processing(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    second = Caller(queue.get)
    until_getters(queue, 1)
    queue.add("a")
    queue.add("a")
    assert queue.statistics().reruns == 1
    assert second.is_alive()
    queue.done("a")
    assert second.outcome() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_the_order_is_first_in_first_out_and_a_rerun_goes_to_the_back(front: Front) -> None:
    queue = front.make("Queue")
    for key in "abc":
        queue.add(key)
    assert queue.get() == "a"
    queue.add("a")
    queue.add("d")
    queue.done("a")
    assert [queue.get() for _ in range(4)] == ["b", "c", "d", "a"]


def test_drain_waits_for_what_is_in_hand_and_what_is_queued(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)
    queue.add("a")
    queue.add("b")
    assert queue.get() == "a"
    drain = Caller(queue.shut_down_with_drain)
    until(lambda: queue.shutting_down)
    queue.done("a")
    assert drain.is_alive()
    assert queue.get() == "b"
    assert Caller(queue.get).outcome() is ShutDown
    queue.done("b")
    assert drain.outcome() is True


def test_drain_hands_out_a_key_that_was_added_while_in_hand(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    drain = Caller(queue.shut_down_with_drain)
    until(lambda: queue.shutting_down)
    queue.done("a")
    assert queue.get() == "a"
    queue.done("a")
    assert drain.outcome() is True
    assert Caller(queue.get).outcome() is ShutDown


def test_shut_down_does_not_wait(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("a")
    assert queue.get() == "a"
    queue.shut_down()
    assert queue.shutting_down


def test_shut_down_releases_every_drain(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    drains = [Caller(queue.shut_down_with_drain) for _ in range(3)]
    until(lambda: drainers(front, queue, clock) == 3)
    queue.shut_down()
    assert [drain.outcome() for drain in drains] == [False] * 3


def test_every_drain_ends_when_the_work_does(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    drains = [Caller(queue.shut_down_with_drain) for _ in range(3)]
    until(lambda: drainers(front, queue, clock) == 3)
    queue.done("a")
    assert [drain.outcome() for drain in drains] == [True] * 3


def test_a_drain_gives_up_after_its_time(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)
    queue.add("a")
    drain = Caller(lambda: queue.shut_down_with_drain(5))
    until(lambda: drainers(front, queue, clock) == 1)
    clock.step(5)
    assert drain.outcome() is False


def test_garbage_is_collected(front: Front) -> None:
    class Key:
        pass

    queue = front.make("Queue")
    key = Key()
    gone = weakref.ref(key)
    queue.add(key)
    queue.done(queue.get())
    del key
    gc.collect()
    assert gone() is None


def test_done_of_a_key_that_is_not_in_hand_is_ignored_and_counted(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("a")
    queue.done("a")
    queue.done("never")
    assert len(queue) == 1
    assert queue.get() == "a"
    queue.done("a")
    queue.done("a")
    assert len(queue) == 0
    assert queue.statistics().spurious_dones == 3


def test_what_is_queued_at_shutdown_is_still_handed_out(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("a")
    queue.shut_down()
    queue.add("b")
    assert queue.get_or_shutdown() == ("a", False)
    assert queue.get_or_shutdown() == (None, True)
    assert queue.statistics().ignored_adds == 1


def test_get_gives_up_after_its_time(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)

    waiting = Caller(lambda: queue.get(timeout=3))
    until_getters(queue, 1)
    clock.step(2.9)
    assert waiting.is_alive()
    clock.step(0.1)
    assert waiting.outcome() is TimeoutError


def test_a_lease_is_returned_also_when_the_work_fails(front: Front) -> None:
    queue = front.make("Queue")
    queue.add("a")
    with pytest.raises(ValueError, match="no"), queue.lease():
        raise ValueError("no")
    assert queue.statistics().processing == 0


def test_leaving_the_block_shuts_down(front: Front) -> None:
    with front.make("Queue") as queue:
        waiting = Caller(queue.get)
    assert waiting.outcome() is ShutDown


def test_a_key_must_be_hashable(front: Front) -> None:
    queue = front.make("Queue")
    with pytest.raises(TypeError, match="unhashable"):
        queue.add([1])
    assert queue.idle


# -- the delaying queue ------------------------------------------------------------------------


def test_simple_delay(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    queue.add_after("a", 0.05)
    waiting = Caller(queue.get)
    until_getters(queue, 1)
    assert queue.statistics().waiting == 1
    clock.step(0.06)
    assert waiting.outcome() == "a"
    queue.done("a")
    clock.step(10)
    assert queue.idle


def test_the_earliest_deadline_counts(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    queue.add_after("later first", 0.07)
    queue.add_after("later first", 0.05)
    queue.add_after("earlier first", 0.05)
    queue.add_after("earlier first", 0.07)
    clock.step(0.05)
    got = {queue.get(timeout=0), queue.get(timeout=0)}
    assert got == {"later first", "earlier first"}
    for key in got:
        queue.done(key)
    clock.step(10)
    with pytest.raises(TimeoutError):
        queue.get(timeout=0)


def test_keys_become_due_in_the_order_of_their_deadlines(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    for key, delay in (("third", 3.0), ("first", 1.0), ("second", 2.0), ("also third", 3.0)):
        queue.add_after(key, delay)
    clock.step(5)
    assert [queue.get(timeout=0) for _ in range(4)] == ["first", "second", "third", "also third"]


def test_an_earlier_deadline_wakes_a_worker_that_waits_for_a_later_one(
    front: Front, clock: FakeClock
) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    queue.add_after("later", 60)
    waiting = Caller(queue.get)
    until_getters(queue, 1)
    queue.add_after("sooner", 1)
    until_getters(queue, 1)
    clock.step(1)
    assert waiting.outcome() == "sooner"


def test_a_deadline_outlives_the_worker_that_was_woken_for_it(front: Front) -> None:
    # The real clock, because a step of the fake one wakes more than the queue asks for.
    queue = front.make("DelayingQueue")
    patient_for_a_moment = Caller(lambda: queue.get(timeout=0.05))
    until_getters(queue, 1)
    patient = Caller(queue.get)
    until_getters(queue, 2)
    queue.add_after("a", 0.2)
    assert patient_for_a_moment.outcome() is TimeoutError
    assert patient.outcome() == "a"


def test_all_that_is_due_at_once_reaches_all_who_wait(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    workers = [Caller(queue.get) for _ in range(3)]
    until_getters(queue, 3)
    for key in "abc":
        queue.add_after(key, 1)
    until_getters(queue, 3)
    clock.step(1)
    assert sorted(str(worker.outcome()) for worker in workers) == ["a", "b", "c"]


@pytest.mark.parametrize("delay", [0, -1, -float("inf")])
def test_no_delay_is_an_add(front: Front, clock: FakeClock, delay: float) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    queue.add_after("a", delay)
    assert len(queue) == 1
    assert queue.statistics().retries == 1


def test_a_delay_that_is_no_number_is_refused(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    with pytest.raises(ValueError, match="'a' is not a number"):
        queue.add_after("a", float("nan"))
    assert queue.idle


def test_deadlines_do_not_survive_shutdown(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    queue.add_after("a", 1)
    queue.shut_down()
    queue.add_after("b", 1)
    clock.step(5)
    assert Caller(queue.get).outcome() is ShutDown
    assert queue.idle


def test_a_drain_does_not_wait_for_deadlines(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    queue.add_after("a", 1)
    assert queue.shut_down_with_drain() is True


def test_a_deadline_can_be_forgotten(front: Front, clock: FakeClock) -> None:
    queue = front.make("DelayingQueue", clock=clock)
    queue.add_after("a", 1)
    assert queue.forget_delayed("a")
    assert not queue.forget_delayed("a")
    clock.step(5)
    assert queue.idle


# -- the rate-limiting queue -------------------------------------------------------------------


def test_rate_limiting(front: Front, clock: FakeClock) -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(0.001, 1)
    queue = front.make("RateLimitingQueue", limiter, clock=clock)
    queue.add_rate_limited("one")
    queue.add_rate_limited("one")
    assert queue.num_requeues("one") == 2
    queue.add_rate_limited("two")
    assert queue.num_requeues("two") == 1
    queue.forget("one")
    assert queue.num_requeues("one") == 0
    queue.add_rate_limited("one")
    assert queue.num_requeues("one") == 1
    clock.step(0.001)
    assert {queue.get(timeout=0), queue.get(timeout=0)} == {"one", "two"}


def test_many_threads_never_share_a_key_and_lose_no_add(front: Front) -> None:
    queue = front.make("Queue")
    in_hand: set[int] = set()
    added: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    lock = threading.Lock()

    def produce() -> None:
        for i in range(4000):
            with lock:
                added[i % 37] += 1
            queue.add(i % 37)

    def consume() -> None:
        while True:
            try:
                key = queue.get()
            except ShutDown:
                return
            with lock:
                assert key not in in_hand
                in_hand.add(key)
                seen[key] = added[key]
            with lock:
                in_hand.remove(key)
            queue.done(key)

    consumers = [Caller(consume) for _ in range(4)]
    producers = [Caller(produce) for _ in range(4)]
    for producer in producers:
        producer.outcome()
    assert queue.shut_down_with_drain(PATIENCE)
    for consumer in consumers:
        consumer.outcome()
    assert seen == added


def test_stress() -> None:
    """Sixteen producers, eight workers, a million adds of a hundred keys."""
    queue: Queue[int] = Queue()
    moments = itertools.count()
    last_add, last_run = [0] * 100, [0] * 100
    in_hand: set[int] = set()
    lock = threading.Lock()

    def produce(number: int) -> None:
        for i in range(62_500):
            key = (number + i) % 100
            with lock:
                last_add[key] = next(moments)
            queue.add(key)

    def consume() -> None:
        while True:
            try:
                key = queue.get()
            except ShutDown:
                return
            with lock:
                assert key not in in_hand
                in_hand.add(key)
                last_run[key] = next(moments)
            with lock:
                in_hand.remove(key)
            queue.done(key)

    consumers = [Caller(consume) for _ in range(8)]
    producers = [Caller(partial(produce, number)) for number in range(16)]
    for producer in producers:
        producer.join()
    assert queue.shut_down_with_drain(PATIENCE)
    for consumer in consumers:
        consumer.outcome()
    found = queue.statistics()
    assert found.adds + found.collapsed == 1_000_000
    assert all(run > add for run, add in zip(last_run, last_add, strict=True))


def test_the_limiter_counts_also_after_shutdown_though_nothing_is_queued(front: Front) -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(1, 9)
    queue = front.make("RateLimitingQueue", limiter)
    queue.shut_down()
    queue.add_rate_limited("a")
    assert queue.num_requeues("a") == 1
    assert queue.idle


def test_a_key_that_is_never_done_is_never_handed_out_again(front: Front, clock: FakeClock) -> None:
    queue = front.make("Queue", clock=clock)
    queue.add("a")
    queue.get()
    queue.add("a")
    queue.add("b")
    assert queue.get() == "b"
    with pytest.raises(TimeoutError):
        queue.get(timeout=0)


def test_keys_are_compared_by_value(front: Front) -> None:
    queue = front.make("Queue")
    for key in (1, True, 1.0):
        queue.add(key)
    assert len(queue) == 1


# -- the priority queue ------------------------------------------------------------------------


def in_order(queue: Any) -> list[tuple[str, int]]:
    found = []
    while len(queue):
        found.append(queue.get_with_priority(timeout=0))
        queue.done(found[-1][0])
    return found


def test_higher_priorities_first_and_first_in_first_out_within_one(front: Front) -> None:
    queue = front.make("PriorityQueue")
    queue.add("a")
    queue.add_with("b", "c", priority=5)
    queue.add_with("d", priority=-100)
    queue.add("e")
    assert in_order(queue) == [("b", 5), ("c", 5), ("a", 0), ("e", 0), ("d", -100)]


def test_a_priority_only_rises_and_a_risen_key_goes_to_the_end_of_its_level(front: Front) -> None:
    queue = front.make("PriorityQueue")
    queue.add_with("low", priority=-1)
    queue.add_with("high", priority=3)
    queue.add_with("low", priority=3)
    queue.add_with("high", priority=-5)
    assert in_order(queue) == [("high", 3), ("low", 3)]


def test_an_add_pulls_a_waiting_key_forward_and_it_runs_once(
    front: Front, clock: FakeClock
) -> None:
    queue = front.make("PriorityQueue", clock=clock)
    queue.add_after("a", 60)
    queue.add("a")
    assert in_order(queue) == [("a", 0)]
    clock.step(60)
    assert queue.idle


def test_a_waiting_key_keeps_the_highest_priority_and_the_earliest_moment(
    front: Front, clock: FakeClock
) -> None:
    queue = front.make("PriorityQueue", clock=clock)
    queue.add_with("a", priority=1, after=5)
    queue.add_with("a", priority=7, after=50)
    queue.add_with("a", priority=2, after=2)
    queue.add_after("b", 2)
    clock.step(2)
    assert in_order(queue) == [("a", 7), ("b", 0)]


def test_after_and_rate_limit_together_are_the_smaller(front: Front, clock: FakeClock) -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(4, 100)
    queue = front.make("PriorityQueue", limiter, clock=clock)
    queue.add_with("a", after=10, rate_limited=True)
    queue.add_with("b", after=1, rate_limited=True)
    clock.step(1)
    assert in_order(queue) == [("b", 0)]
    clock.step(3)
    assert in_order(queue) == [("a", 0)]
    assert queue.num_requeues("a") == 1


def test_a_key_in_hand_is_added_again_at_its_new_priority(front: Front) -> None:
    queue = front.make("PriorityQueue")
    queue.add_with("a", priority=9)
    assert queue.get_with_priority() == ("a", 9)
    queue.add_with("a", priority=1)
    queue.add_with("b", priority=2)
    queue.done("a")
    assert in_order(queue) == [("b", 2), ("a", 1)]


# -- order, preemption, metrics ----------------------------------------------------------------


class LastInFirstOut:
    def __init__(self) -> None:
        self.keys: list[str] = []
        self.touched: list[str] = []

    def touch(self, key: str) -> None:
        self.touched.append(key)

    def push(self, key: str) -> None:
        self.keys.append(key)

    def pop(self) -> str:
        return self.keys.pop()

    def __len__(self) -> int:
        return len(self.keys)


def test_the_order_is_pluggable_and_only_queued_keys_are_touched(front: Front) -> None:
    order = LastInFirstOut()
    queue = front.make("Queue", order=order)
    for key in "aab":
        queue.add(key)
    assert order.touched == ["a"]
    assert queue.get() == "b"
    queue.add("b")
    queue.add("b")
    assert order.touched == ["a"]
    queue.done("b")
    assert [queue.get(), queue.get()] == ["b", "a"]


@pytest.mark.parametrize(("preempt", "runs"), [(False, 2), (True, 1)])
def test_whether_an_add_drops_the_deadline_is_the_owners_choice(
    front: Front, clock: FakeClock, preempt: bool, runs: int
) -> None:
    queue = front.make("DelayingQueue", clock=clock, preempt_delayed=preempt)
    queue.add_after("a", 5)
    queue.add("a")
    queue.done(queue.get(timeout=0))
    clock.step(5)
    assert 1 + len(queue) == runs


def test_metrics(front: Front, clock: FakeClock) -> None:
    metrics = RecordingMetrics()
    queue = front.make("RateLimitingQueue", None, "q", clock=clock, metrics=metrics)
    seen = metrics.queues["q"]
    queue.add("a")
    queue.add("a")
    assert (seen.adds, seen.gauges().depth) == (1, 1)
    clock.step(50e-6)
    assert queue.get() == "a"
    assert seen.queue_durations == pytest.approx([50e-6])
    for _ in range(5):
        queue.add("a")
    assert (seen.adds, seen.gauges().depth) == (2, 1)
    clock.step(25e-6)
    queue.done("a")
    assert seen.work_durations == pytest.approx([25e-6])
    clock.step(25e-6)
    assert queue.get() == "a"
    assert seen.queue_durations[1] == pytest.approx(50e-6)
    clock.step(1e-3)
    assert seen.gauges().unfinished_work == pytest.approx(1e-3)
    assert seen.gauges().longest_running_processor == pytest.approx(1e-3)
    queue.add_after("b", 1)
    queue.add_after("b", 0)
    assert seen.retries == 2


def test_a_key_that_became_due_was_queued_from_that_moment(front: Front, clock: FakeClock) -> None:
    metrics = RecordingMetrics()
    queue = front.make("DelayingQueue", "q", clock=clock, metrics=metrics)
    queue.add_after("a", 1)
    clock.step(5)
    queue.get(timeout=0)
    assert metrics.queues["q"].queue_durations == pytest.approx([4])


def test_metrics_end_with_the_last_work_after_shutdown(front: Front, clock: FakeClock) -> None:
    metrics = RecordingMetrics()
    queue = front.make("Queue", "q", clock=clock, metrics=metrics)
    queue.add("a")
    queue.add("b")
    queue.get()
    queue.shut_down()
    assert metrics.open_queues == ["q"]
    queue.done(queue.get())
    with pytest.raises(ValueError, match="'q' already"):
        front.make("Queue", "q", metrics=metrics)
    queue.done("a")
    assert metrics.open_queues == []
    front.make("Queue", "q", metrics=metrics).shut_down()
    assert metrics.open_queues == []

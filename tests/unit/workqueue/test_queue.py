"""The threaded queues: client-go's behaviours by name, and pitfalls that are decided otherwise."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from workqueue import (
    DelayingQueue,
    ItemExponentialFailureRateLimiter,
    Queue,
    RateLimitingQueue,
    ShutDown,
)
from workqueue.testing import FakeClock

PATIENCE = 10.0


class Caller(threading.Thread):
    """Calls a function in a thread of its own and keeps what came of it."""

    def __init__(self, function: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self.result: object = None
        self.start()

    def run(self) -> None:
        try:
            self.result = self._function()
        except ShutDown as error:
            self.result = type(error)

    def outcome(self) -> object:
        self.join(PATIENCE)
        assert not self.is_alive(), "still waiting"
        return self.result


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


# -- the queue ---------------------------------------------------------------------------------


@pytest.mark.parametrize("drain", [False, True])
def test_basic(drain: bool) -> None:
    queue: Queue[int] = Queue()
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


def test_add_while_processing() -> None:
    queue: Queue[str] = Queue()
    queue.add("k")
    for _ in range(50):
        with queue.lease() as key:
            queue.add(key)
    assert len(queue) == 1


def test_len() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    assert len(queue) == 1
    queue.add("b")
    assert len(queue) == 2
    queue.add("a")
    assert len(queue) == 2


def test_reinsert() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.done("a")
    assert queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_collapse() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    queue.add("a")
    with queue.lease():
        assert len(queue) == 0
    assert queue.statistics().collapsed == 1


def test_collapse_while_processing(clock: FakeClock) -> None:
    queue: Queue[str] = Queue(clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    second = Caller(queue.get)
    clock.wait_for_waiters()
    queue.add("a")
    queue.add("a")
    assert queue.statistics().reruns == 1
    assert second.is_alive()
    queue.done("a")
    assert second.outcome() == "a"
    queue.done("a")
    assert len(queue) == 0


def test_the_order_is_first_in_first_out_and_a_rerun_goes_to_the_back() -> None:
    queue: Queue[str] = Queue()
    for key in "abc":
        queue.add(key)
    assert queue.get() == "a"
    queue.add("a")
    queue.add("d")
    queue.done("a")
    assert [queue.get() for _ in range(4)] == ["b", "c", "d", "a"]


def test_drain_waits_for_what_is_in_hand_and_what_is_queued(clock: FakeClock) -> None:
    queue: Queue[str] = Queue(clock=clock)
    queue.add("a")
    queue.add("b")
    assert queue.get() == "a"
    drain = Caller(queue.shut_down_with_drain)
    clock.wait_for_waiters()
    queue.done("a")
    assert drain.is_alive()
    assert queue.get() == "b"
    assert Caller(queue.get).outcome() is ShutDown
    queue.done("b")
    assert drain.outcome() is True


def test_drain_hands_out_a_key_that_was_added_while_in_hand(clock: FakeClock) -> None:
    queue: Queue[str] = Queue(clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    drain = Caller(queue.shut_down_with_drain)
    clock.wait_for_waiters()
    queue.done("a")
    assert queue.get() == "a"
    queue.done("a")
    assert drain.outcome() is True
    assert Caller(queue.get).outcome() is ShutDown


def test_shut_down_does_not_wait() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    assert queue.get() == "a"
    queue.shut_down()
    assert queue.shutting_down


def test_shut_down_releases_every_drain(clock: FakeClock) -> None:
    queue: Queue[str] = Queue(clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    drains = [Caller(queue.shut_down_with_drain) for _ in range(3)]
    clock.wait_for_waiters(3)
    queue.shut_down()
    assert [drain.outcome() for drain in drains] == [False] * 3


def test_every_drain_ends_when_the_work_does(clock: FakeClock) -> None:
    queue: Queue[str] = Queue(clock=clock)
    queue.add("a")
    assert queue.get() == "a"
    drains = [Caller(queue.shut_down_with_drain) for _ in range(3)]
    clock.wait_for_waiters(3)
    queue.done("a")
    assert [drain.outcome() for drain in drains] == [True] * 3


def test_a_drain_gives_up_after_its_time(clock: FakeClock) -> None:
    queue: Queue[str] = Queue(clock=clock)
    queue.add("a")
    drain = Caller(lambda: queue.shut_down_with_drain(5))
    clock.wait_for_waiters()
    clock.step(5)
    assert drain.outcome() is False


def test_garbage_is_collected() -> None:
    class Key:
        pass

    queue: Queue[Key] = Queue()
    key = Key()
    gone = weakref.ref(key)
    queue.add(key)
    queue.done(queue.get())
    del key
    gc.collect()
    assert gone() is None


def test_done_of_a_key_that_is_not_in_hand_is_ignored_and_counted() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    queue.done("a")
    queue.done("never")
    assert len(queue) == 1
    assert queue.get() == "a"
    queue.done("a")
    queue.done("a")
    assert len(queue) == 0
    assert queue.statistics().spurious_dones == 3


def test_what_is_queued_at_shutdown_is_still_handed_out() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    queue.shut_down()
    queue.add("b")
    assert queue.get_or_shutdown() == ("a", False)
    assert queue.get_or_shutdown() == (None, True)
    assert queue.statistics().ignored_adds == 1


def test_get_gives_up_after_its_time(clock: FakeClock) -> None:
    queue: Queue[str] = Queue(clock=clock)

    def get() -> str:
        try:
            return queue.get(timeout=3)
        except TimeoutError:
            return "nothing"

    waiting = Caller(get)
    clock.wait_for_waiters()
    clock.step(2.9)
    assert waiting.is_alive()
    clock.step(0.1)
    assert waiting.outcome() == "nothing"


def test_a_lease_is_returned_also_when_the_work_fails() -> None:
    queue: Queue[str] = Queue()
    queue.add("a")
    with pytest.raises(ValueError, match="no"), queue.lease():
        raise ValueError("no")
    assert queue.statistics().processing == 0


def test_leaving_the_block_shuts_down() -> None:
    with Queue[str]() as queue:
        waiting = Caller(queue.get)
    assert waiting.outcome() is ShutDown


def test_a_key_must_be_hashable() -> None:
    queue: Queue[list[int]] = Queue()
    with pytest.raises(TypeError, match="unhashable"):
        queue.add([1])
    assert queue.idle


# -- the delaying queue ------------------------------------------------------------------------


def test_simple_delay(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    queue.add_after("a", 0.05)
    waiting = Caller(queue.get)
    clock.wait_for_waiters()
    assert queue.statistics().waiting == 1
    clock.step(0.06)
    assert waiting.outcome() == "a"
    queue.done("a")
    clock.step(10)
    assert queue.idle


def test_the_earliest_deadline_counts(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
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


def test_keys_become_due_in_the_order_of_their_deadlines(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    for key, delay in (("third", 3.0), ("first", 1.0), ("second", 2.0), ("also third", 3.0)):
        queue.add_after(key, delay)
    clock.step(5)
    assert [queue.get(timeout=0) for _ in range(4)] == ["first", "second", "third", "also third"]


def test_an_earlier_deadline_wakes_a_worker_that_waits_for_a_later_one(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    queue.add_after("later", 60)
    waiting = Caller(queue.get)
    clock.wait_for_waiters()
    queue.add_after("sooner", 1)
    clock.wait_for_waiters()
    clock.step(1)
    assert waiting.outcome() == "sooner"


def test_all_that_is_due_at_once_reaches_all_who_wait(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    workers = [Caller(queue.get) for _ in range(3)]
    clock.wait_for_waiters(3)
    for key in "abc":
        queue.add_after(key, 1)
    clock.wait_for_waiters(3)
    clock.step(1)
    assert sorted(str(worker.outcome()) for worker in workers) == ["a", "b", "c"]


@pytest.mark.parametrize("delay", [0, -1, -float("inf")])
def test_no_delay_is_an_add(clock: FakeClock, delay: float) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    queue.add_after("a", delay)
    assert len(queue) == 1
    assert queue.statistics().retries == 1


def test_a_delay_that_is_no_number_is_refused(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    with pytest.raises(ValueError, match="'a' is not a number"):
        queue.add_after("a", float("nan"))
    assert queue.idle


def test_deadlines_do_not_survive_shutdown(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    queue.add_after("a", 1)
    queue.shut_down()
    queue.add_after("b", 1)
    clock.step(5)
    assert Caller(queue.get).outcome() is ShutDown
    assert queue.idle


def test_a_drain_does_not_wait_for_deadlines(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    queue.add_after("a", 1)
    assert queue.shut_down_with_drain() is True


def test_a_deadline_can_be_forgotten(clock: FakeClock) -> None:
    queue: DelayingQueue[str] = DelayingQueue(clock=clock)
    queue.add_after("a", 1)
    assert queue.forget_delayed("a")
    assert not queue.forget_delayed("a")
    clock.step(5)
    assert queue.idle


# -- the rate-limiting queue -------------------------------------------------------------------


def test_rate_limiting(clock: FakeClock) -> None:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(0.001, 1)
    queue = RateLimitingQueue(limiter, clock=clock)
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


def test_many_threads_never_share_a_key_and_lose_no_add() -> None:
    queue: Queue[int] = Queue()
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

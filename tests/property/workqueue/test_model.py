"""The queue against a model that is too simple to be wrong.

Several workers, one clock, every operation in any order. What must hold after each: the queue and
the model have the same keys in the same states, a key is never in two hands, keys come first in
first out, and an add after the last get of a key is followed by one more run.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.contract.workqueue.fronts import Asyncio, Threaded
from workqueue import ItemExponentialFailureRateLimiter, ShutDown
from workqueue.testing import FakeClock

keys = st.sampled_from("abc")


class Model:
    """Lists and dictionaries, looked through from end to end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.queued: list[str] = []
        self.in_hand: dict[str, bool] = {}
        """Whether the key was added again, for each key in a hand."""
        self.due: list[tuple[float, int, str]] = []
        self.failures: dict[str, int] = {}
        self.shut = False
        self._count = 0

    def add(self, key: str) -> None:
        if self.shut:
            return
        if key in self.in_hand:
            self.in_hand[key] = True
        elif key not in self.queued:
            self.queued.append(key)

    def add_after(self, key: str, delay: float) -> None:
        if self.shut:
            return
        if delay <= 0:
            self.add(key)
            return
        when = self.now + delay
        if math.isinf(when):
            return
        if any(k == key and w <= when for w, _, k in self.due):
            return
        self.due = [entry for entry in self.due if entry[2] != key]
        self._count += 1
        self.due.append((when, self._count, key))

    def step(self, seconds: float) -> None:
        self.now += seconds
        for entry in sorted(self.due):
            if entry[0] <= self.now:
                self.due.remove(entry)
                self.add(entry[2])

    def done(self, key: str) -> None:
        if key in self.in_hand and self.in_hand.pop(key):
            self.queued.append(key)

    def shut_down(self) -> None:
        self.shut = True
        self.due = []


class QueueMachine(RuleBasedStateMachine):
    make_front: type[Threaded | Asyncio] = Threaded

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.model = Model()
        limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(1, 4)
        self.front = self.make_front()
        self.queue = self.front.make("RateLimitingQueue", limiter, clock=self.clock)

    def teardown(self) -> None:
        self.front.close()

    @rule(key=keys)
    def add(self, key: str) -> None:
        self.queue.add(key)
        self.model.add(key)

    @rule(key=keys, delay=st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, math.inf]))
    def add_after(self, key: str, delay: float) -> None:
        self.queue.add_after(key, delay)
        self.model.add_after(key, delay)

    @rule(key=keys)
    def add_rate_limited(self, key: str) -> None:
        self.queue.add_rate_limited(key)
        failures = self.model.failures.get(key, 0)
        self.model.failures[key] = failures + 1
        self.model.add_after(key, min(2.0**failures, 4.0))

    @rule(key=keys)
    def forget(self, key: str) -> None:
        self.queue.forget(key)
        self.model.failures.pop(key, None)

    @rule(key=keys)
    def forget_delayed(self, key: str) -> None:
        had = any(k == key for _, _, k in self.model.due)
        assert self.queue.forget_delayed(key) == had
        self.model.due = [entry for entry in self.model.due if entry[2] != key]

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 5.0]))
    def step(self, seconds: float) -> None:
        self.clock.step(seconds)
        self.model.step(seconds)

    @precondition(lambda self: self.model.queued)
    @rule()
    def get(self) -> None:
        key = self.queue.get(timeout=0)
        assert key == self.model.queued.pop(0)
        assert key not in self.model.in_hand
        self.model.in_hand[key] = False

    @rule(key=keys)
    def done(self, key: str) -> None:
        self.queue.done(key)
        self.model.done(key)

    @precondition(lambda self: not self.model.shut)
    @rule(really=st.sampled_from([False, False, False, True]))
    def shut_down(self, really: bool) -> None:
        if really:
            self.queue.shut_down()
            self.model.shut_down()

    @precondition(lambda self: not self.model.queued)
    @rule()
    def get_nothing(self) -> None:
        with pytest.raises(ShutDown if self.model.shut else TimeoutError):
            self.queue.get(timeout=0)

    @precondition(lambda self: self.model.shut)
    @rule()
    def drain(self) -> None:
        drained = not self.model.queued and not self.model.in_hand
        assert self.queue.shut_down_with_drain(timeout=0) == drained

    @invariant()
    def states_agree(self) -> None:
        found, model = self.queue.statistics(), self.model
        assert found.processing == len(model.in_hand)
        assert found.reruns == sum(model.in_hand.values())
        assert (found.queued, found.waiting) == (len(model.queued), len(model.due))
        assert len(self.queue) == len(model.queued)
        for key in "abc":
            assert self.queue.num_requeues(key) == model.failures.get(key, 0)


class AsyncioMachine(QueueMachine):
    make_front = Asyncio


QueueMachine.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
AsyncioMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestThreaded = QueueMachine.TestCase
TestAsyncio = AsyncioMachine.TestCase

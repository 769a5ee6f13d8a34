"""Leader election against the in-memory API server, on a clock that the test moves."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reconciler.client import Client
from reconciler.leader import Elector, LeadershipLostError, Leading, LeaseConfig
from reconciler.stop import Stop
from reconciler.testing import ApiServer, Refuse
from tests.unit.reconciler.scripted import PATIENCE
from workqueue.testing import FakeClock

LEASE = "lock"


def elector(client: Client, identity: str, clock: FakeClock) -> Elector:
    config = LeaseConfig("default", LEASE, identity)
    return Elector(client, config, clock=clock, rng=random.Random(1))


def lease(server: ApiServer) -> Any:
    return server.get("leases", LEASE, "default")["spec"]


def once(candidate: Elector) -> bool:
    """Try once to lead."""
    return candidate._try(Stop(), candidate.clock.now() + 10)


class Running:
    """Something that runs in a thread on the fake clock, and how it ended."""

    def __init__(self, run: Callable[[Stop], object], clock: FakeClock) -> None:
        self.stop = Stop(clock)
        self.clock = clock
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(run,))

    def _run(self, run: Callable[[Stop], object]) -> None:
        try:
            run(self.stop)
        except LeadershipLostError as error:
            self.error = error

    def step_until(self, condition: Callable[[], object], waiting: int = 1) -> None:
        """Let as much time pass as it takes, whenever that many threads wait for it."""
        for _ in range(5000):
            if condition():
                return
            if self.clock.waiters >= waiting:
                self.clock.step(0.5)
            threading.Event().wait(0.002)
        raise AssertionError("it never came about")


@contextmanager
def running(run: Callable[[Stop], object], clock: FakeClock) -> Iterator[Running]:
    made = Running(run, clock)
    made.thread.start()
    try:
        yield made
    finally:
        made.stop.set()
        made.thread.join(PATIENCE)
        assert not made.thread.is_alive()


def test_one_leads_and_the_other_waits(server: ApiServer, client: Client) -> None:
    clock = FakeClock()
    first, second = elector(client, "first", clock), elector(client, "second", clock)
    assert once(first)
    assert not once(second)
    found = lease(server)
    assert (found["holderIdentity"], found["leaseDurationSeconds"]) == ("first", 15)
    clock.step(10)
    assert once(first), "the holder renews"
    assert lease(server)["renewTime"] > found["renewTime"]
    assert lease(server)["acquireTime"] == found["acquireTime"]
    assert not once(second)


def test_a_silent_leader_is_followed_after_the_duration_as_we_saw_it(
    server: ApiServer, client: Client
) -> None:
    clock = FakeClock()
    first, second = elector(client, "first", clock), elector(client, "second", clock)
    assert once(first)
    clock.step(100)
    assert not once(second), "the lease may be fresh: it was never seen before"
    clock.step(14.9)
    assert not once(second)
    clock.step(0.2)
    assert once(second)
    found = lease(server)
    assert (found["holderIdentity"], found["leaseTransitions"]) == ("second", 1)
    assert not once(first)


def test_only_one_of_two_that_see_a_free_lease_gets_it(server: ApiServer, client: Client) -> None:
    clock = FakeClock()
    made = [elector(client, name, clock) for name in ("a", "b")]
    won: list[bool] = []
    threads = [threading.Thread(target=lambda e=e: won.append(once(e))) for e in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(won) == [False, True]


def test_a_released_lease_is_taken_at_once(server: ApiServer, client: Client) -> None:
    clock = FakeClock()
    first, second = elector(client, "first", clock), elector(client, "second", clock)
    assert first.acquire(Stop(clock))
    assert not once(second)
    first.release()
    assert not first.leads
    assert lease(server)["holderIdentity"] == ""
    assert once(second)


def test_a_leader_that_cannot_renew_gives_up_in_time(
    server: ApiServer, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    leader = elector(client, "first", clock)
    assert leader.acquire(Stop(clock))
    server.faults.add(Refuse(500), times=100)
    with running(leader.keep, clock) as run:
        run.step_until(lambda: run.error)
        assert "not renewed" in str(run.error)
    assert not leader.leads
    assert 10 <= clock.now() < 15
    assert "500" in caplog.text


def test_a_slow_renewal_counts_from_when_it_was_asked_for(
    server: ApiServer, client: Client
) -> None:
    clock = FakeClock()

    class Slow:
        def request(self, method: str, path: str, *args: Any, **options: Any) -> bytes:
            if method == "PUT":
                clock.step(4)
                server.faults.add(Refuse(500), times=100, skip=1)
            return client.request(method, path, *args, **options)

    leader = Elector(Slow(), LeaseConfig("default", LEASE, "first"), clock=clock)
    assert leader.acquire(Stop(clock))
    with running(leader.keep, clock) as run:
        run.step_until(lambda: run.error)
    # Asked for at 2 s, answered at 6 s: the others wait no longer than until 17 s.
    assert 12 <= clock.now() < 15


def test_a_leader_whose_lease_was_taken_gives_up_at_once(server: ApiServer, client: Client) -> None:
    clock = FakeClock()
    leader = elector(client, "first", clock)
    assert leader.acquire(Stop(clock))
    taken = server.get("leases", LEASE, "default")
    taken["spec"] |= {"holderIdentity": "thief", "renewTime": "2030-01-01T00:00:00.000000Z"}
    server.apply(taken)
    with running(leader.keep, clock) as run:
        run.step_until(lambda: run.error)
        assert "thief holds it" in str(run.error)
    assert clock.now() <= 5


class Part:
    name = "part"

    def __init__(self) -> None:
        self.started = threading.Event()
        self.ended = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def run(self, stop: Stop) -> None:
        self.started.set()
        stop.wait()
        assert self.may_end.wait(PATIENCE)
        self.ended.set()


def test_what_is_led_runs_only_while_leading_and_ends_before_the_release(
    server: ApiServer, client: Client
) -> None:
    clock = FakeClock()
    one, two = Part(), Part()
    first = Leading(elector(client, "first", clock), one)
    second = Leading(elector(client, "second", clock), two)
    with running(first.run, clock) as a:
        assert one.started.wait(PATIENCE)
        with running(second.run, clock) as b:
            # The keeper and the candidate, and two that wait without a bound.
            b.step_until(lambda: clock.now() > 20, waiting=4)
            assert not two.started.is_set()

            one.may_end.clear()
            a.stop.set()
            b.step_until(lambda: clock.now() > 45, waiting=2)
            assert lease(server)["holderIdentity"] == "first", "renewed while its part ends"
            assert not two.started.is_set()

            one.may_end.set()
            a.thread.join(PATIENCE)
            assert one.ended.is_set()
            b.step_until(two.started.is_set)
    assert lease(server)["holderIdentity"] == ""


def test_a_lost_lease_stops_what_is_led_without_waiting(server: ApiServer, client: Client) -> None:
    clock = FakeClock()
    part = Part()
    part.may_end.clear()
    with running(Leading(elector(client, "first", clock), part).run, clock) as run:
        assert part.started.wait(PATIENCE)
        server.faults.add(Refuse(500), times=100)
        run.step_until(lambda: not run.thread.is_alive())
        assert isinstance(run.error, LeadershipLostError)
        assert not part.ended.is_set()
        part.may_end.set()
        assert part.ended.wait(PATIENCE)


def test_a_part_that_fails_frees_the_lease(server: ApiServer, client: Client) -> None:
    class Broken:
        name = "broken"

        def run(self, stop: Stop) -> None:
            raise ValueError("no disk")

    clock = FakeClock()
    with pytest.raises(ValueError, match="no disk"):
        Leading(elector(client, "first", clock), Broken()).run(Stop(clock))
    assert lease(server)["holderIdentity"] == ""


def test_a_stop_ends_the_wait_to_lead(server: ApiServer, client: Client) -> None:
    clock = FakeClock()
    assert once(elector(client, "first", clock))
    with running(Leading(elector(client, "second", clock), Part()).run, clock) as run:
        clock.wait_for_waiters()
        run.stop.set()
        run.thread.join(PATIENCE)
        assert not run.thread.is_alive()


@pytest.mark.parametrize(
    ("duration", "renew", "retry"), [(10, 10, 2), (15, 2, 2), (15, 10, 0), (15, 16, 2)]
)
def test_times_that_would_allow_two_leaders_are_refused(
    duration: int, renew: float, retry: float
) -> None:
    with pytest.raises(ValueError, match="duration > renew_deadline"):
        LeaseConfig("ns", "n", "me", duration, renew, retry)

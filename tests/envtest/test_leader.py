"""Leader election against both API servers, on a clock that the test moves."""

from __future__ import annotations

import random
import threading
from typing import Any

from reconciler.client import load
from reconciler.leader import Elector, Leading, LeaseConfig
from reconciler.stop import Stop
from tests.envtest.api import PATIENCE, Api
from workqueue.testing import FakeClock


def elector(api: Api, namespace: str, identity: str, clock: FakeClock) -> Elector:
    config = LeaseConfig(namespace, "lock", identity)
    return Elector(load(str(api.kubeconfig)), config, clock=clock, rng=random.Random(1))


def lease(api: Api, namespace: str) -> Any:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/lock"
    return api.request("GET", path)["spec"]


def tries(candidate: Elector) -> bool:
    """Whether it leads after trying once."""
    return candidate._try(Stop(), candidate.clock.now() + 10)


def test_one_leads_until_it_falls_silent(api: Api, namespace: str) -> None:
    clock = FakeClock()
    first, second = (elector(api, namespace, name, clock) for name in ("first", "second"))
    assert tries(first)
    assert not tries(second)
    taken = lease(api, namespace)
    assert (taken["holderIdentity"], taken["leaseDurationSeconds"]) == ("first", 15)
    clock.step(10)
    assert tries(first)
    assert not tries(second)
    clock.step(14)
    assert not tries(second)
    clock.step(2)
    assert tries(second)
    assert not tries(first)
    after = lease(api, namespace)
    assert (after["holderIdentity"], after["leaseTransitions"]) == ("second", 1)
    assert after["renewTime"] >= taken["renewTime"]


def test_two_that_saw_the_same_lease_do_not_both_lead(api: Api, namespace: str) -> None:
    clock = FakeClock()
    silent = elector(api, namespace, "silent", clock)
    assert tries(silent)
    rivals = [elector(api, namespace, f"rival {n}", clock) for n in range(4)]
    assert not any(map(tries, rivals))
    clock.step(16)
    won: list[Elector] = []
    barrier = threading.Barrier(len(rivals))

    def race(rival: Elector) -> None:
        barrier.wait(PATIENCE)
        if tries(rival):
            won.append(rival)

    threads = [threading.Thread(target=race, args=(rival,)) for rival in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(won) == 1
    assert lease(api, namespace)["holderIdentity"] == won[0].config.identity


def test_a_leader_that_ends_lets_the_next_begin_at_once(api: Api, namespace: str) -> None:
    clock = FakeClock()
    first, second = (elector(api, namespace, name, clock) for name in ("first", "second"))

    class Part:
        name = "part"
        began = threading.Event()

        def run(self, stop: Stop) -> None:
            self.began.set()
            stop.wait()

    part, stop = Part(), Stop(clock)
    thread = threading.Thread(target=Leading(first, part).run, args=(stop,))
    thread.start()
    assert part.began.wait(PATIENCE)
    assert not tries(second)
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert lease(api, namespace)["holderIdentity"] == ""
    assert tries(second)

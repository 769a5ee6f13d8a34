"""Changes of our nftables table by other programs, as the kernel tells of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from npc.dataplane.nft.layout import TABLE
from npc.dataplane.nftables import NftablesDataplane
from npc.dataplane.tools import run_tool
from npc.plan import make_plan
from npc.ruleset import Family, Ruleset
from reconciler.stop import Stop
from tests.contract.dataplane import samples

if TYPE_CHECKING:
    from tests.contract.dataplane.netns import Namespace

pytestmark = pytest.mark.netns

PATIENCE = 10.0


class Watched:
    """A dataplane whose monitor runs; ``heard`` has a permit for each foreign change."""

    def __init__(self) -> None:
        self.heard = threading.Semaphore(0)
        self.dataplane = NftablesDataplane([Family.IPV4])
        self.monitor = self.dataplane.watch(self.heard.release)

    def sync(self, desired: Ruleset) -> None:
        self.dataplane.apply(make_plan(self.dataplane.observe(), desired))

    def hears(self, what: str) -> bool:
        """Whether this change of another program is heard."""
        run_tool(["nft", *what.split()])
        return self.heard.acquire(timeout=PATIENCE)

    def heard_nothing(self) -> bool:
        """Whether there was no foreign change up to now: the next is the first that is heard."""
        assert self.hears(f"add set {TABLE} other {{ type mark ; }}")
        assert self.hears(f"delete set {TABLE} other")
        return not self.heard.acquire(blocking=False)


@pytest.fixture
def watched(namespace: Namespace) -> Iterator[Watched]:
    found = Watched()
    with running(found):
        found.sync(samples.simple(Family.IPV4, 1))
        yield found


@contextmanager
def running(watched: Watched) -> Iterator[None]:
    stop = Stop()
    thread = threading.Thread(target=watched.monitor.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_our_own_transactions_are_not_heard(watched: Watched) -> None:
    for number in range(20):
        watched.sync(samples.simple(Family.IPV4, 1, 2 + number % 3, port=80 + number % 2))
    assert watched.heard_nothing()


@pytest.mark.parametrize("what", [f"delete table {TABLE}", "flush ruleset", f"flush table {TABLE}"])
def test_what_another_program_takes_away_is_heard(watched: Watched, what: str) -> None:
    assert watched.hears(what)


def test_another_programs_own_table_is_none_of_ours(watched: Watched) -> None:
    run_tool(["nft", "add", "table", "inet", "other"])
    run_tool(["nft", "add", "table", "ip", "npc"])
    run_tool(["nft", "flush", "table", "inet", "other"])
    assert watched.heard_nothing()


def test_a_stop_ends_it_whenever_it_comes(namespace: Namespace) -> None:
    for _ in range(20):
        with running(Watched()):
            pass


def test_a_stop_that_came_before_ends_it_at_once(namespace: Namespace) -> None:
    stop = Stop()
    stop.set()
    Watched().monitor.run(stop)

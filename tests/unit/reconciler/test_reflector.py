"""The reflector's rules, one test each, against a transport that follows a script."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

from reconciler.client import ApiError, TransportError
from reconciler.reflector import PAGE_SIZE, WATCH_TIMEOUT, Backoff, EventType, Reflector
from reconciler.stop import Stop
from tests.unit.reconciler.scripted import (
    PATIENCE,
    WIDGETS,
    Lines,
    Scripted,
    bookmark,
    event,
    page,
    status,
    widget,
)
from workqueue.testing import FakeClock


class Collected:
    """A sink that remembers what it was given."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.version = ""

    def replace(self, objects: Sequence[msgspec.Raw], resource_version: str) -> None:
        self.log.append([_name(obj) for obj in objects])

    def apply(self, event: EventType, obj: msgspec.Raw) -> None:
        self.log.append((event.value, _name(obj)))

    def advance(self, resource_version: str) -> None:
        self.version = resource_version


def _name(raw: msgspec.Raw) -> str:
    name: str = msgspec.json.decode(raw)["metadata"]["name"]
    return name


class Running:
    def __init__(self, transport: Scripted) -> None:
        self.transport = transport
        self.clock = FakeClock()
        self.sink = Collected()
        self.stop = Stop(self.clock)
        self.reflector = Reflector(
            transport, WIDGETS, self.sink, clock=self.clock, rng=random.Random(1)
        )
        self.thread = threading.Thread(target=self.reflector.run, args=(self.stop,))
        self._calls = threading.Condition()
        transport.on_call = self._called

    def _called(self) -> None:
        with self._calls:
            self._calls.notify_all()

    def until_calls(self, verbs: str) -> None:
        """Wait until these calls, and no others, have been made."""
        with self._calls:
            count = len(verbs.split())
            assert self._calls.wait_for(lambda: len(self.transport.calls) >= count, PATIENCE)
        assert self.transport.verbs == verbs

    def until_it_waits(self) -> None:
        """Wait until the reflector backs off."""
        self.clock.wait_for_waiters()


@contextmanager
def running(*script: Any) -> Iterator[Running]:
    run = Running(Scripted(list(script)))
    run.thread.start()
    try:
        yield run
    finally:
        run.stop.set()
        run.thread.join(PATIENCE)
        assert not run.thread.is_alive()


def test_it_lists_once_and_watches_from_the_lists_version() -> None:
    with running(page(widget("a", 3), widget("b", 2), version=7)) as run:
        run.until_calls("list watch")
        assert run.sink.log == [["a", "b"]]
        list_, watch = run.transport.calls
        assert list_.query == {"limit": str(PAGE_SIZE)}
        assert watch.query == {"resourceVersion": "7", "allowWatchBookmarks": "true"}
        assert watch.timeout is not None
        assert WATCH_TIMEOUT[0] <= watch.timeout <= WATCH_TIMEOUT[1]


def test_pages_are_joined_and_the_last_version_counts() -> None:
    with running(
        page(widget("a", 1), version=5, continue_="more"), page(widget("b", 1), version=5)
    ) as run:
        run.until_calls("list list watch")
        assert run.sink.log == [["a", "b"]]
        assert run.transport.calls[1].query["continue"] == "more"


def test_a_forgotten_continuation_begins_the_list_anew_in_one_piece() -> None:
    with running(
        page(widget("a", 1), continue_="more"),
        ApiError(410, "Expired", "too old"),
        page(widget("b", 1), version=9),
    ) as run:
        run.until_calls("list list list watch")
        assert run.sink.log == [["b"]]
        assert run.transport.calls[2].query == {}


def test_a_watch_that_ends_is_followed_by_one_from_the_last_version_seen() -> None:
    with running(
        page(version=1),
        Lines(event("ADDED", widget("a", 5)), bookmark(8)),
        Lines(event("MODIFIED", widget("a", 9))),
    ) as run:
        run.until_calls("list watch watch watch")
        versions = [call.query["resourceVersion"] for call in run.transport.calls[1:]]
        assert versions == ["1", "8", "9"]
        assert run.sink.log == [[], ("ADDED", "a"), ("MODIFIED", "a")]
        assert run.sink.version == "9"


@pytest.mark.parametrize(
    "answer",
    [ApiError(410, "Expired", "too old"), Lines(status(410, "Expired", "too old"))],
    ids=["the call is refused", "an event says so"],
)
def test_an_expired_version_is_listed_again(answer: Any) -> None:
    with running(page(version=1), answer, page(widget("a", 4), version=4)) as run:
        run.until_it_waits()
        assert "410" in (run.reflector.last_error or "")
        run.clock.step(10)
        run.until_calls("list watch list watch")
        assert run.sink.log == [[], ["a"]]
        assert run.reflector.last_error is None


@pytest.mark.parametrize(
    "error", [TransportError("connection refused"), ApiError(500, "InternalError", "oops")]
)
def test_a_failed_watch_is_tried_again_without_a_list(error: Exception) -> None:
    with running(page(version=3), error) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("list watch watch")
        assert run.transport.calls[2].query["resourceVersion"] == "3"


def test_a_broken_line_is_an_error_and_the_watch_goes_on_after_it() -> None:
    with running(page(version=1), Lines(event("ADDED", widget("a", 2)), b'{"type": "ADD')) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("list watch watch")
        assert run.transport.calls[2].query["resourceVersion"] == "2"


def test_a_watch_that_ends_at_once_without_an_event_is_an_error() -> None:
    with running(page(version=1), Lines()) as run:
        run.until_it_waits()
        assert run.transport.verbs == "list watch"
        assert "ended at once" in (run.reflector.last_error or "")


def test_an_event_of_an_unknown_type_is_passed_over() -> None:
    lines = Lines(event("SPECIAL", widget("a", 2)), event("ADDED", widget("b", 3)), stay=True)
    with running(page(version=1), lines) as run:
        run.until_calls("list watch")
        while run.sink.version != "3":
            threading.Event().wait(0.001)
        assert run.sink.log == [[], ("ADDED", "b")]


def test_the_server_says_how_long_to_leave_it_alone() -> None:
    with running(ApiError(429, "TooManyRequests", "slow down", retry_after=17)) as run:
        run.until_it_waits()
        run.clock.step(16.9)
        run.until_calls("list")
        run.clock.step(0.2)
        run.until_calls("list list watch")


def test_gaps_grow_while_the_server_fails_and_no_request_comes_between() -> None:
    failing = [ApiError(500, "InternalError", "oops")] * 8
    with running(*failing) as run:
        gaps = []
        for count in range(1, 9):
            run.until_it_waits()
            assert len(run.transport.calls) == count
            waited = 0.0
            while len(run.transport.calls) == count and run.clock.waiters:
                run.clock.step(0.1)
                waited += 0.1
                threading.Event().wait(0.0005)
                if waited > 70:
                    break
            gaps.append(waited)
        run.until_calls("list " * 9 + "watch")
    first, last = gaps[0], gaps[-1]
    assert 0.8 <= first <= 1.8
    assert 30 <= last <= 62


def test_stopping_closes_a_quiet_watch_and_ends_the_thread() -> None:
    with running(page(version=1), Lines(stay=True)) as run:
        run.until_calls("list watch")
        run.stop.set()
        run.thread.join(PATIENCE)
        assert not run.thread.is_alive()


def test_stopping_ends_a_wait() -> None:
    with running(TransportError("down")) as run:
        run.until_it_waits()
        run.stop.set()
        run.thread.join(PATIENCE)
        assert run.transport.verbs == "list"


def test_backoff_doubles_to_its_cap_with_jitter_and_starts_over_after_quiet_minutes() -> None:
    clock = FakeClock()
    backoff = Backoff(clock=clock, rng=random.Random(0))
    for base in (0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 30):
        delay = backoff.step()
        assert base <= delay <= 2 * base
        clock.step(delay)
    clock.step(119)
    assert backoff.step() >= 30
    clock.step(300)
    assert 0.8 <= backoff.step() <= 1.6

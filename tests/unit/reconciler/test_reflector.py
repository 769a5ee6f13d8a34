"""The reflector's rules, one test each, against a transport that follows a script."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reconciler.backoff import Backoff
from reconciler.client import ApiError, TransportError
from reconciler.event import EventType
from reconciler.reflector import INITIAL_SILENCE, PAGE_SIZE, WATCH_TIMEOUT, Reflector
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

    def replacing(self) -> Collecting:
        return Collecting(self)

    def apply(self, event: EventType, obj: msgspec.Raw) -> None:
        self.log.append((event.value, _name(obj)))

    def advance(self, resource_version: str) -> None:
        self.version = resource_version


class Collecting:
    def __init__(self, collected: Collected) -> None:
        self._collected = collected
        self._names: list[str] = []

    def put(self, obj: msgspec.Raw) -> None:
        self._names.append(_name(obj))

    def discard(self, obj: msgspec.Raw) -> None:
        self._names.remove(_name(obj))

    def commit(self, resource_version: str) -> None:
        self._collected.log.append(self._names)


def _name(raw: msgspec.Raw) -> str:
    name: str = msgspec.json.decode(raw)["metadata"]["name"]
    return name


class Running:
    def __init__(self, transport: Scripted, *, watch_list: bool, **options: Any) -> None:
        self.transport = transport
        self.clock = FakeClock()
        self.sink = Collected()
        self.stop = Stop(self.clock)
        self.reflector = Reflector(
            transport,
            WIDGETS,
            self.sink,
            clock=self.clock,
            rng=random.Random(1),
            watch_list=watch_list,
            **options,
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

    def step_until_calls(self, verbs: str) -> None:
        """Let as much time pass as it takes until these calls, and no others, have been made."""
        count = len(verbs.split())
        while len(self.transport.calls) < count:
            if self.clock.waiters:
                self.clock.step(1)
            threading.Event().wait(0.0005)
        self.until_calls(verbs)

    def until_version(self, version: str) -> None:
        """Wait until the sink has got so far."""
        for _ in range(10_000):
            if self.sink.version == version:
                return
            threading.Event().wait(0.001)
        raise AssertionError(f"at version {self.sink.version!r}, not {version!r}")

    def until_it_waits(self) -> None:
        """Wait until the reflector backs off."""
        self.clock.wait_for_waiters()


@contextmanager
def running(*script: Any, watch_list: bool = False, **options: Any) -> Iterator[Running]:
    run = Running(Scripted(list(script)), watch_list=watch_list, **options)
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
        assert list_.query == {"resourceVersion": "0", "limit": str(PAGE_SIZE)}
        assert watch.query == {"resourceVersion": "7", "allowWatchBookmarks": "true"}
        assert watch.timeout is not None
        assert WATCH_TIMEOUT[0] <= watch.timeout <= WATCH_TIMEOUT[1]


def test_pages_are_joined_and_the_last_version_counts() -> None:
    with running(
        page(widget("a", 1), version=5, continue_="more"), page(widget("b", 1), version=5)
    ) as run:
        run.until_calls("list list watch")
        assert run.sink.log == [["a", "b"]]
        assert run.transport.calls[1].query == {"limit": str(PAGE_SIZE), "continue": "more"}


def test_a_forgotten_continuation_begins_the_list_anew_in_one_piece() -> None:
    with running(
        page(widget("a", 1), continue_="more"),
        ApiError(410, "Expired", "too old"),
        page(widget("b", 1), version=9),
    ) as run:
        run.until_calls("list list list watch")
        assert run.sink.log == [["b"]]
        assert run.transport.calls[2].query == {"resourceVersion": "0"}


def test_a_watch_that_ends_is_followed_by_one_from_the_last_version_seen() -> None:
    with running(
        page(version=1),
        Lines(event("ADDED", widget("a", 5)), bookmark(8)),
        Lines(event("MODIFIED", widget("a", 9))),
    ) as run:
        run.step_until_calls("list watch watch watch")
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
        run.until_version("3")
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


# -- what a refused version means ----------------------------------------------------------------


TOO_LARGE = ApiError(504, "Timeout", "Too large resource version: 9, current: 3")


@pytest.mark.parametrize("refusal", [ApiError(410, "Expired", "too old"), TOO_LARGE])
def test_a_list_at_a_version_that_the_server_lacks_is_asked_for_the_newest(
    refusal: ApiError,
) -> None:
    with running(page(version=7), status_410(), refusal, page(version=3)) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("list watch list list watch")
        versions = [call.query.get("resourceVersion") for call in run.transport.calls]
        assert versions == ["0", "7", "7", None, "3"]
        # A page size beside a version would ask for exactly that version.
        assert "limit" not in run.transport.calls[2].query
        assert run.transport.calls[3].query == {"limit": str(PAGE_SIZE)}


def status_410() -> Lines:
    return Lines(status(410, "Expired", "too old"))


def test_a_watch_from_a_version_that_is_still_to_come_lists_the_newest() -> None:
    cause = [{"reason": "ResourceVersionTooLarge"}]
    too_large = Lines(status(504, "Timeout", "later", causes=cause))
    with running(page(version=7), too_large) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("list watch list watch")
        assert "resourceVersion" not in run.transport.calls[2].query


def test_a_server_that_pages_its_cache_goes_on_paging() -> None:
    first = [page(version=7, continue_="more"), page(version=7)]
    with running(*first, status_410(), page(version=9)) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("list list watch list watch")
        assert run.transport.calls[3].query == {"resourceVersion": "7", "limit": str(PAGE_SIZE)}


@pytest.mark.parametrize("code", [401, 403, 404])
def test_a_refusal_that_may_hide_changes_is_followed_by_a_list(code: int) -> None:
    with running(page(version=7), ApiError(code, "No", "no")) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("list watch list watch")


def test_a_busy_server_is_never_asked_for_a_list() -> None:
    busy = [ApiError(429, "TooManyRequests", "later")] * 4
    with running(page(version=7), *busy) as run:
        run.step_until_calls("list watch watch watch watch watch")


def test_selectors_are_sent_with_every_request() -> None:
    with running(page(version=1), label_selector="a=b", field_selector="metadata.name=x") as run:
        run.until_calls("list watch")
        for call in run.transport.calls:
            assert call.query["labelSelector"] == "a=b"
            assert call.query["fieldSelector"] == "metadata.name=x"


def test_somebody_may_hear_of_every_failure() -> None:
    heard: list[tuple[str, float]] = []
    error = TransportError("down")
    with running(error, on_error=lambda e, delay: heard.append((str(e), delay))) as run:
        run.until_it_waits()
        assert [text for text, _ in heard] == ["down"]
        assert 0.8 <= heard[0][1] <= 1.6
        assert run.reflector.statistics().failures == 1


# -- all objects by a watch --------------------------------------------------------------------


def test_a_watch_brings_all_objects_and_goes_on() -> None:
    lines = Lines(
        event("ADDED", widget("b", 9)),
        event("ADDED", widget("a", 2)),
        event("MODIFIED", widget("c", 3)),
        bookmark(4),
        event("DELETED", widget("b", 10)),
        bookmark(11, end=True),
        event("ADDED", widget("d", 12)),
        stay=True,
    )
    with running(lines, watch_list=True) as run:
        run.until_version("12")
        assert run.sink.log == [["a", "c"], ("ADDED", "d")]
        (call,) = run.transport.calls
        assert call.query == {
            "sendInitialEvents": "true",
            "resourceVersionMatch": "NotOlderThan",
            "resourceVersion": "",
            "allowWatchBookmarks": "true",
        }


def test_a_watch_that_brought_all_is_resumed_by_a_plain_one() -> None:
    with running(Lines(bookmark(7, end=True)), watch_list=True) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("watch watch")
        assert run.transport.calls[1].query == {
            "resourceVersion": "7",
            "allowWatchBookmarks": "true",
        }


@pytest.mark.parametrize("code", [400, 422])
def test_a_server_that_does_not_understand_is_listed_at_once_and_ever_after(code: int) -> None:
    refusal = ApiError(code, "Invalid", "sendInitialEvents is forbidden for watch")
    with running(refusal, page(version=3), status_410(), watch_list=True) as run:
        run.until_calls("watch list watch")
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("watch list watch list watch")


def test_a_server_that_does_not_say_when_all_were_sent_is_listed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    silent = Lines(event("ADDED", widget("a", 1)), bookmark(5), stay=True)
    with running(silent, page(widget("a", 1), version=5), watch_list=True) as run:
        run.until_it_waits()
        run.clock.step(INITIAL_SILENCE - 1)
        assert run.transport.verbs == "watch"
        run.step_until_calls("watch list watch")
        assert run.sink.log == [["a"]]
    assert "did not say when it had sent all objects" in caplog.text


def test_a_stream_that_ends_too_early_is_no_list_and_a_list_comes_after_a_wait() -> None:
    with running(Lines(event("ADDED", widget("a", 1))), page(version=5), watch_list=True) as run:
        run.step_until_calls("watch list watch")
        assert run.sink.log == [[]]
        assert run.clock.now() >= 0.8


def test_a_busy_server_is_asked_for_a_watch_again() -> None:
    busy = ApiError(429, "TooManyRequests", "later")
    with running(busy, Lines(bookmark(3, end=True), stay=True), watch_list=True) as run:
        run.until_it_waits()
        run.clock.step(10)
        run.until_calls("watch watch")
        run.until_version("3")


def test_a_version_that_is_refused_is_not_asked_for_again() -> None:
    gone = ApiError(410, "Expired", "too old")
    with running(
        Lines(bookmark(7, end=True)), gone, gone, Lines(bookmark(9, end=True)), watch_list=True
    ) as run:
        run.step_until_calls("watch watch watch watch watch")
        versions = [call.query["resourceVersion"] for call in run.transport.calls]
        assert versions == ["", "7", "7", "", "9"]


@pytest.mark.parametrize("refusal", [ApiError(410, "Expired", "too old"), TOO_LARGE])
def test_a_server_that_refuses_even_the_newest_version_is_listed(refusal: ApiError) -> None:
    with running(refusal, page(version=5), watch_list=True) as run:
        run.step_until_calls("watch list watch")
        assert run.clock.now() >= 0.8


def test_a_stop_ends_the_wait_for_all_objects() -> None:
    with running(Lines(event("ADDED", widget("a", 1)), stay=True), watch_list=True) as run:
        run.until_it_waits()
        run.stop.set()
        run.thread.join(PATIENCE)
        assert not run.thread.is_alive()
        assert run.transport.verbs == "watch"
        assert run.sink.log == []


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


def test_lists_and_watches_are_spans_and_say_how_they_ended() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with running(
        page(widget("a", 1), widget("b", 1), version=1),
        TransportError("connection refused"),
        Lines(event("ADDED", widget("a", 5)), bookmark(8)),
        Lines(status(410, "Expired", "too old")),
        tracer=provider.get_tracer("test"),
    ) as run:
        run.step_until_calls("list watch watch watch list watch")
    spans = exporter.get_finished_spans()
    assert [span.name for span in spans[:4]] == [
        "list widgets.example.com",
        *["watch widgets.example.com"] * 3,
    ]
    listed, refused, followed, expired = (dict(span.attributes or {}) for span in spans[:4])
    assert listed["reconciler.objects"] == 2
    assert listed["reconciler.query.resourceVersion"] == "0"
    assert refused["error.type"] == "TransportError"
    assert followed["reconciler.events"] == 2
    assert "error.type" not in followed
    assert expired["error.type"] == "ApiError"
    assert expired["reconciler.query.resourceVersion"] == "8"


def test_silence_is_how_long_ago_the_server_said_anything() -> None:
    with running(page(version=1), Lines(bookmark(2), stay=True)) as run:
        run.until_version("2")
        assert run.reflector.silence == 0
        run.clock.step(70)
        assert run.reflector.silence == 70


def test_json_that_is_nested_too_deeply_does_not_end_the_reflector() -> None:
    deep = b'{"metadata":{},"items":[' + b"[" * 100_000 + b"]" * 100_000 + b"]}"
    with running(deep, page(widget("a", 1)), Lines(stay=True)) as run:
        run.step_until_calls("list list watch")

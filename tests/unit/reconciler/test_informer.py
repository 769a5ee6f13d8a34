"""What a store and its handlers are promised."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import pytest

from reconciler.event import Event, EventType
from reconciler.informer import Informer
from reconciler.meta import Request, Unstructured
from reconciler.stop import Stop
from tests.unit.reconciler.scripted import (
    PATIENCE,
    WIDGETS,
    Lines,
    Scripted,
    event,
    page,
    raw,
    replace,
    widget,
)
from workqueue.testing import FakeClock


def informer() -> Informer[Unstructured]:
    return Informer(Scripted([]), WIDGETS, Unstructured.decode)


def told(found: list[str]) -> Callable[[Event[Unstructured]], None]:
    def handler(event: Event[Unstructured]) -> None:
        old = event.old.resource_version if event.old else "-"
        new = event.new.resource_version if event.new else "-"
        extra = " initial" * event.initial + " stale" * (not event.final_state_known)
        found.append(f"{event.type.value} {event.obj.name} {old}>{new}{extra}")

    return handler


def test_events_carry_what_was_and_what_is() -> None:
    i, log = informer(), list[str]()
    i.add_handler(told(log))
    replace(i, [raw(widget("a", 1))], "1")
    i.apply(EventType.ADDED, raw(widget("b", 2)))
    i.apply(EventType.MODIFIED, raw(widget("a", 3)))
    i.apply(EventType.DELETED, raw(widget("b", 4)))
    assert log == ["ADDED a ->1 initial", "ADDED b ->2", "MODIFIED a 1>3", "DELETED b 4>-"]


def test_the_store_is_changed_before_a_handler_hears_of_it() -> None:
    i = informer()
    seen: list[int] = []
    i.add_handler(lambda _: seen.append(len(i.store)))
    replace(i, [raw(widget("a", 1)), raw(widget("b", 1))], "1")
    i.apply(EventType.DELETED, raw(widget("a", 2)))
    assert seen == [2, 2, 1]


def test_a_relist_tells_what_is_gone_first_and_nothing_that_is_unchanged() -> None:
    i, log = informer(), list[str]()
    replace(i, [raw(widget("a", 1)), raw(widget("b", 1)), raw(widget("c", 1))], "1")
    i.add_handler(told(log))
    log.clear()
    replace(i, [raw(widget("d", 5)), raw(widget("b", 4)), raw(widget("a", 1))], "5")
    assert log == ["DELETED c 1>- stale", "ADDED d ->5", "MODIFIED b 1>4"]
    assert set(i.store.keys()) == {Request("ns", n) for n in "abd"}


def test_a_repeated_event_is_no_event() -> None:
    i, log = informer(), list[str]()
    i.add_handler(told(log))
    replace(i, [], "1")
    i.apply(EventType.ADDED, raw(widget("a", 2)))
    i.apply(EventType.ADDED, raw(widget("a", 2)))
    i.apply(EventType.DELETED, raw(widget("x", 3)))
    assert log == ["ADDED a ->2"]


def test_a_handler_that_comes_late_hears_of_all_that_is_there() -> None:
    i, log = informer(), list[str]()
    replace(i, [raw(widget("a", 1))], "1")
    i.apply(EventType.ADDED, raw(widget("b", 2)))
    i.add_handler(told(log))
    i.apply(EventType.ADDED, raw(widget("c", 3)))
    assert log == ["ADDED a ->1 initial", "ADDED b ->2 initial", "ADDED c ->3"]


def test_a_handler_that_fails_is_logged_and_the_others_go_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    i, log = informer(), list[str]()

    def broken(_: Event[Unstructured]) -> None:
        raise ValueError("no")

    i.add_handler(broken)
    i.add_handler(told(log))
    replace(i, [raw(widget("a", 1))], "1")
    assert log == ["ADDED a ->1 initial"]
    assert "ns/a" in caplog.text


def test_synced_and_handled_versions_come_after_the_handlers() -> None:
    i = informer()
    seen: list[tuple[bool, str]] = []
    i.add_handler(lambda _: seen.append((i.has_synced, i.handled_resource_version)))
    replace(i, [raw(widget("a", 1))], "1")
    assert i.has_synced
    i.advance("1")
    i.apply(EventType.MODIFIED, raw(widget("a", 2)))
    assert seen == [(False, ""), (True, "1")]
    i.advance("2")
    assert i.handled_resource_version == "2"


def test_an_object_that_cannot_be_decoded_is_told_of_and_stops_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def strict(data: msgspec.Raw) -> Unstructured:
        found = Unstructured.decode(data)
        if found.labels.get("bad"):
            raise msgspec.ValidationError("Expected `int`, got `str` - at `$.spec.size`")
        return found

    i = Informer(Scripted([]), WIDGETS, strict)
    log: list[str] = []
    i.add_handler(told(log))
    replace(i, [raw(widget("a", 1)), raw(widget("b", 1, bad="1"))], "1")
    i.apply(EventType.MODIFIED, raw(widget("a", 2, bad="1")))
    replace(i, [raw(widget("a", 2, bad="1")), raw(widget("c", 3))], "3")
    assert log == ["ADDED a ->1 initial", "ADDED c ->3"]
    assert i.undecodable == 3
    assert "ns/b cannot be decoded" in caplog.text
    assert "$.spec.size" in caplog.text
    kept = i.store.get("ns", "a")
    assert kept is not None
    assert kept.resource_version == "1"


def test_what_is_no_object_at_all_is_ignored(caplog: pytest.LogCaptureFixture) -> None:
    i = informer()
    replace(i, [raw({"spec": {}}), raw(widget("a", 1))], "1")
    assert i.store.keys() == [Request("ns", "a")]
    assert "cannot be decoded" in caplog.text


def test_a_snapshot_is_of_one_moment() -> None:
    i = informer()
    replace(i, [raw(widget("a", 1))], "1")
    before = i.store.snapshot()
    i.apply(EventType.ADDED, raw(widget("b", 2)))
    assert [obj.name for obj in before] == ["a"]
    assert len(i.store) == 2


def test_a_deletion_removes_an_object_that_cannot_be_decoded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def strict(data: msgspec.Raw) -> Unstructured:
        found = Unstructured.decode(data)
        if found.labels.get("bad"):
            raise msgspec.ValidationError("bad")
        return found

    i, log = Informer(Scripted([]), WIDGETS, strict), list[str]()
    replace(i, [raw(widget("a", 1))], "1")
    i.add_handler(told(log))
    i.apply(EventType.DELETED, raw(widget("a", 2, bad="1")))
    i.apply(EventType.DELETED, raw(widget("never-seen", 2, bad="1")))
    i.apply(EventType.DELETED, raw({"spec": {}}))
    assert log == ["ADDED a ->1 initial", "DELETED a 1>- stale"]
    assert len(i.store) == 0


def test_what_vanishes_before_all_have_come_was_never_there() -> None:
    i, log = informer(), list[str]()
    i.add_handler(told(log))
    coming = i.replacing()
    coming.put(raw(widget("a", 1)))
    coming.put(raw(widget("b", 1)))
    coming.put(raw(widget("a", 3)))
    coming.discard(raw(widget("b", 4)))
    assert not i.has_synced
    assert len(i.store) == 0
    coming.commit("5")
    assert log == ["ADDED a ->3 initial"]
    assert i.wait_synced(0)


def test_a_handler_may_see_some_of_the_objects_only() -> None:
    i, log = informer(), list[str]()
    replace(i, [raw(widget("a", 1, app="x")), raw(widget("b", 1))], "1")
    i.add_handler(told(log), keep=lambda o: "app" in o.labels)
    i.apply(EventType.MODIFIED, raw(widget("b", 2)))
    i.apply(EventType.MODIFIED, raw(widget("b", 3, app="x")))
    i.apply(EventType.MODIFIED, raw(widget("b", 4, app="y")))
    i.apply(EventType.MODIFIED, raw(widget("a", 5)))
    i.apply(EventType.DELETED, raw(widget("a", 6)))
    i.apply(EventType.DELETED, raw(widget("b", 7, app="y")))
    assert log == [
        "ADDED a ->1 initial",
        "ADDED b ->3",
        "MODIFIED b 3>4",
        "DELETED a 1>-",
        "DELETED b 7>-",
    ]


def test_a_filter_that_fails_is_counted_like_its_handler(caplog: pytest.LogCaptureFixture) -> None:
    i = informer()
    registration = i.add_handler(lambda _: None, keep=lambda o: bool(o.data["spec"]))
    replace(i, [raw(widget("a", 1))], "1")
    assert registration.errors == i.statistics().handler_errors == 1
    registration.remove()
    assert i.statistics().handler_errors == 1


def test_a_handler_that_was_removed_hears_nothing_more() -> None:
    i, log = informer(), list[str]()
    first = i.add_handler(told(log))
    i.add_handler(lambda _: first.remove())
    replace(i, [raw(widget("a", 1)), raw(widget("b", 1))], "1")
    first.remove()
    assert log == ["ADDED a ->1 initial"]


def test_a_handler_may_add_a_handler() -> None:
    i, log = informer(), list[str]()

    def adds(event: Event[Unstructured]) -> None:
        if event.obj.name == "a":
            i.add_handler(told(log))

    i.add_handler(adds)
    replace(i, [raw(widget("a", 1)), raw(widget("b", 1))], "1")
    i.apply(EventType.ADDED, raw(widget("c", 2)))
    assert sorted(log) == ["ADDED a ->1 initial", "ADDED b ->1 initial", "ADDED c ->2"]


@contextmanager
def running(i: Informer[Unstructured], stop: Stop) -> Iterator[threading.Thread]:
    thread = threading.Thread(target=i.run, args=(stop,), name=f"run {i.name}")
    thread.start()
    try:
        yield thread
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Slow:
    """A handler that takes as long as the test says."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.note = told(self.log)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Semaphore(0)

    def __call__(self, event: Event[Unstructured]) -> None:
        self.note(event)
        self.entered.release()
        assert self.gate.acquire(timeout=PATIENCE)


def test_a_slow_handler_delays_nobody_and_hears_what_is_true_when_it_is_ready() -> None:
    slow, quick = Slow(), list[str]()
    i, stop = Informer(Scripted([]), WIDGETS, Unstructured.decode, watch_list=False), Stop()
    registration = i.add_handler(slow, blocking=True)
    i.add_handler(told(quick))
    with running(i, stop):
        assert i.wait_synced(PATIENCE)
        assert registration.wait_synced(PATIENCE)
        i.apply(EventType.ADDED, raw(widget("first", 2)))
        assert slow.entered.acquire(timeout=PATIENCE)
        for version in range(3, 1003):
            i.apply(EventType.MODIFIED, raw(widget("first", version)))
        i.apply(EventType.ADDED, raw(widget("gone", 1003)))
        i.apply(EventType.DELETED, raw(widget("gone", 1004)))
        i.apply(EventType.ADDED, raw(widget("last", 1005)))
        assert len(quick) == 1004
        assert registration.pending == i.statistics().pending == 2
        slow.gate.release(10)
        for _ in range(2):
            assert slow.entered.acquire(timeout=PATIENCE)
    assert slow.log == ["ADDED first ->2", "MODIFIED first 2>1002", "ADDED last ->1005"]


def test_a_slow_handler_that_saw_an_object_hears_of_its_return_as_a_change() -> None:
    slow = Slow()
    i, stop = Informer(Scripted([]), WIDGETS, Unstructured.decode, watch_list=False), Stop()
    i.add_handler(slow, blocking=True)
    with running(i, stop):
        assert i.wait_synced(PATIENCE)
        i.apply(EventType.ADDED, raw(widget("a", 2)))
        assert slow.entered.acquire(timeout=PATIENCE)
        i.apply(EventType.DELETED, raw(widget("a", 3)))
        i.apply(EventType.ADDED, raw(widget("a", 4)))
        slow.gate.release(2)
        assert slow.entered.acquire(timeout=PATIENCE)
    assert slow.log == ["ADDED a ->2", "MODIFIED a 3>4"]


def test_what_was_there_at_the_start_and_changed_before_it_was_told_is_still_of_the_start() -> None:
    slow = Slow()
    script = [page(widget("a", 1), widget("b", 1), version=1)]
    i, stop = Informer(Scripted(script), WIDGETS, Unstructured.decode, watch_list=False), Stop()
    i.add_handler(slow, blocking=True)
    with running(i, stop):
        assert i.wait_synced(PATIENCE)
        assert slow.entered.acquire(timeout=PATIENCE)
        i.apply(EventType.MODIFIED, raw(widget("b", 2)))
        slow.gate.release(2)
        assert slow.entered.acquire(timeout=PATIENCE)
    assert slow.log == ["ADDED a ->1 initial", "ADDED b ->2 initial"]


def test_a_slow_handler_has_synced_once_it_was_told_of_all_that_was_there() -> None:
    slow = Slow()
    script = [page(widget("a", 1), widget("b", 1), version=1)]
    i, stop = Informer(Scripted(script), WIDGETS, Unstructured.decode, watch_list=False), Stop()
    early = i.add_handler(slow, blocking=True)
    with running(i, stop):
        assert i.wait_synced(PATIENCE)
        assert slow.entered.acquire(timeout=PATIENCE)
        assert not early.has_synced
        slow.gate.release(2)
        assert early.wait_synced(PATIENCE)
        late = i.add_handler(slow, blocking=True)
        assert slow.entered.acquire(timeout=PATIENCE)
        assert not late.has_synced
        slow.gate.release(2)
        assert late.wait_synced(PATIENCE)
        late.remove()
        i.apply(EventType.ADDED, raw(widget("c", 2)))
        slow.gate.release(1)
    assert sorted(slow.log)[:4] == ["ADDED a ->1 initial"] * 2 + ["ADDED b ->1 initial"] * 2
    assert not [t for t in threading.enumerate() if t.name.startswith(i.name)]


def test_a_resync_tells_all_again_as_they_are_to_the_one_who_asked() -> None:
    clock = FakeClock()
    stop = Stop(clock)
    i = Informer(
        Scripted([page(widget("a", 1), version=1)]),
        WIDGETS,
        Unstructured.decode,
        watch_list=False,
        clock=clock,
    )
    asked, other = list[str](), list[str]()
    heard = threading.Semaphore(0)

    def note(event: Event[Unstructured]) -> None:
        told(asked)(event)
        heard.release()

    i.add_handler(note, resync=30)
    i.add_handler(told(other))
    with running(i, stop):
        assert i.wait_synced(PATIENCE)
        assert heard.acquire(timeout=PATIENCE)
        for _ in range(2):
            clock.wait_for_waiters()
            clock.step(30)
            assert heard.acquire(timeout=PATIENCE)
    assert asked == ["ADDED a ->1 initial", "MODIFIED a 1>1", "MODIFIED a 1>1"]
    assert other == ["ADDED a ->1 initial"]
    with pytest.raises(ValueError, match=r"at least 1 s, not 0\.5"):
        i.add_handler(note, resync=0.5)


def test_an_informer_runs_once_and_takes_no_handler_after_its_end() -> None:
    i, stop = informer(), Stop()
    stop.set()
    i.run(stop)
    with pytest.raises(RuntimeError, match="runs once"):
        i.run(stop)
    with pytest.raises(RuntimeError, match="has been stopped"):
        i.add_handler(lambda _: None)


def test_statistics_count() -> None:
    script = [page(widget("a", 1), version=1), Lines(event("ADDED", widget("b", 2)), stay=True)]
    i, stop = Informer(Scripted(script), WIDGETS, Unstructured.decode, watch_list=False), Stop()
    heard = threading.Semaphore(0)
    i.add_handler(lambda _: heard.release())
    with running(i, stop):
        for _ in range(2):
            assert heard.acquire(timeout=PATIENCE)
        found = i.statistics()
        assert (found.objects, found.synced, found.undecodable) == (2, True, 0)
        assert (found.reflector.lists, found.reflector.watches, found.reflector.events) == (1, 1, 1)

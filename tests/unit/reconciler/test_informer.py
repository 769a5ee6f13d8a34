"""What a store and its handlers are promised."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from reconciler.event import Event, EventType
from reconciler.informer import Informer
from reconciler.meta import Request, Unstructured
from tests.unit.reconciler.scripted import WIDGETS, Scripted, raw, replace, widget


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

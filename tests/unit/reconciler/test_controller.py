"""Sources, predicates, handlers, and what becomes of a key by how its reconcile ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from reconciler import predicate
from reconciler.controller import Controller, Result, TerminalError
from reconciler.event import Event, EventType
from reconciler.handler import enqueue_key, enqueue_map, enqueue_object, enqueue_owner
from reconciler.informer import Informer
from reconciler.meta import Request, Unstructured
from reconciler.source import Kind, Periodic
from reconciler.stop import Stop
from tests.unit.reconciler.scripted import PATIENCE, WIDGETS, Scripted, raw, replace, widget
from workqueue import ItemExponentialFailureRateLimiter
from workqueue.testing import FakeClock


@contextmanager
def running(controller: Controller[Any], stop: Stop | None = None) -> Iterator[Stop]:
    stop = stop or Stop()
    thread = threading.Thread(target=controller.run, args=(stop,))
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


class Reconciler:
    """Takes keys; the test says how each reconcile ends, and waits for it."""

    def __init__(self, *outcomes: Any) -> None:
        self._outcomes = list(outcomes)
        self.keys: list[Any] = []
        self._done = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.gate: threading.Event | None = None

    def __call__(self, key: Any) -> Result | None:
        self.keys.append(key)
        outcome = self._outcomes.pop(0) if self._outcomes else None
        self.entered.release()
        if self.gate is not None:
            assert self.gate.wait(PATIENCE)
        self._done.release()
        if isinstance(outcome, Exception):
            raise outcome
        found: Result | None = outcome
        return found

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self._done.acquire(timeout=PATIENCE)


def until_waiting(controller: Controller[Any]) -> None:
    while controller.queue.statistics().waiting == 0:
        threading.Event().wait(0.001)


def make(reconcile: Reconciler, clock: FakeClock) -> Controller[str]:
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(1, 60)
    return Controller("test", reconcile, limiter=limiter, clock=clock)


def test_success_forgets_the_key() -> None:
    reconcile = Reconciler(ValueError("once"), None)
    clock = FakeClock()
    controller = make(reconcile, clock)
    controller.queue.add("k")
    with running(controller):
        reconcile.wait()
        until_waiting(controller)
        assert controller.queue.num_requeues("k") == 1
        clock.step(1)
        reconcile.wait()
        while not controller.idle:
            threading.Event().wait(0.001)
        assert controller.queue.num_requeues("k") == 0


def test_an_error_brings_the_key_back_later_and_later(caplog: pytest.LogCaptureFixture) -> None:
    reconcile = Reconciler(ValueError("one"), ValueError("two"), ValueError("three"))
    clock = FakeClock()
    controller = make(reconcile, clock)
    controller.queue.add("k")
    with running(controller):
        for seconds in (1, 2, 4):
            reconcile.wait()
            until_waiting(controller)
            clock.step(seconds - 0.01)
            assert controller.queue.statistics().waiting == 1
            clock.step(0.01)
        reconcile.wait()
    assert reconcile.keys == ["k"] * 4
    assert "controller test: k failed (3 in a row): three" in caplog.text


def test_a_result_can_ask_for_another_time() -> None:
    reconcile = Reconciler(Result(requeue_after=30))
    clock = FakeClock()
    controller = make(reconcile, clock)
    controller.queue.add("k")
    with running(controller):
        reconcile.wait()
        until_waiting(controller)
        assert controller.queue.num_requeues("k") == 0
        clock.step(30)
        reconcile.wait()


def test_a_terminal_error_waits_for_the_next_event(caplog: pytest.LogCaptureFixture) -> None:
    reconcile = Reconciler(TerminalError("no such size"))
    clock = FakeClock()
    controller = make(reconcile, clock)
    controller.queue.add("k")
    with running(controller):
        reconcile.wait()
        while not controller.idle:
            threading.Event().wait(0.001)
        controller.queue.add("k")
        reconcile.wait()
    assert "no such size; not tried again" in caplog.text


def test_a_stop_lets_the_running_reconcile_end_and_starts_no_other() -> None:
    reconcile = Reconciler()
    reconcile.gate = threading.Event()
    controller = make(reconcile, FakeClock())
    for key in ("a", "b", "c"):
        controller.queue.add(key)
    with running(controller) as stop:
        assert reconcile.entered.acquire(timeout=PATIENCE)
        stop.set()
        reconcile.gate.set()
    assert reconcile.keys == ["a"]
    assert not [t for t in threading.enumerate() if "controller test" in t.name]


def test_workers_share_the_keys_and_never_one_key() -> None:
    reconcile = Reconciler()
    reconcile.gate = threading.Event()
    controller: Controller[str] = Controller("test", reconcile, workers=3)
    for key in ("a", "b", "c"):
        controller.queue.add(key)
    with running(controller):
        for _ in range(3):
            assert reconcile.entered.acquire(timeout=PATIENCE)
        controller.queue.add("a")
        assert controller.queue.statistics().reruns == 1
        reconcile.gate.set()
        reconcile.wait(4)
    assert sorted(reconcile.keys) == ["a", "a", "b", "c"]


def test_no_reconcile_before_every_source_has_synced() -> None:
    informer = Informer(Scripted([]), WIDGETS, Unstructured.decode)
    reconcile = Reconciler()
    controller: Controller[Request] = Controller("test", reconcile)
    controller.watch(Kind(informer, enqueue_object))
    with running(controller):
        informer.apply(EventType.ADDED, raw(widget("a", 2)))
        assert not controller.has_synced
        assert not reconcile.keys
        replace(informer, [raw(widget("a", 2)), raw(widget("b", 2))], "2")
        reconcile.wait(2)
    assert set(reconcile.keys) == {Request("ns", "a"), Request("ns", "b")}


def test_a_controller_without_workers_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one worker, not 0"):
        Controller("test", Reconciler(), workers=0)


def test_a_period_ticks_until_the_stop() -> None:
    clock = FakeClock()
    stop = Stop(clock)
    added: list[str] = []
    thread = Periodic(60, lambda: ["k"]).start(added.append, stop)
    for _ in range(3):
        clock.wait_for_waiters()
        clock.step(60)
        clock.wait_for_waiters()
    assert added == ["k"] * 3
    stop.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    with pytest.raises(ValueError, match="above 0 seconds, not 0"):
        Periodic(0, list)


# -- handlers and predicates -------------------------------------------------------------------


def obj(name: str = "a", version: int = 1, **metadata: Any) -> Unstructured:
    made = widget(name, version)
    made["metadata"] |= metadata
    return Unstructured(made)


def changed(old: Unstructured | None, new: Unstructured | None) -> Event[Unstructured]:
    kind = EventType.ADDED if old is None else EventType.DELETED if new is None else None
    return Event(kind or EventType.MODIFIED, old, new)


def owned(*owners: tuple[str, str, str, bool]) -> Unstructured:
    return obj(
        ownerReferences=[
            {"apiVersion": version, "kind": kind, "name": name, "controller": controller}
            for version, kind, name, controller in owners
        ]
    )


def test_handlers_name_the_keys() -> None:
    event = changed(obj(), obj(version=2))
    assert enqueue_key("full-sync")(event) == ("full-sync",)
    assert enqueue_object(event) == (Request("ns", "a"),)
    assert enqueue_map(lambda o: [o.resource_version, "x"])(event) == ["1", "x", "2"]


def test_owners_before_and_after_are_told() -> None:
    before = owned(("apps/v1", "Set", "old", True), ("apps/v1", "Set", "other", False))
    after = owned(("apps/v1", "Set", "new", True), ("batch/v1", "Set", "wrong", True))
    event = changed(before, after)
    assert enqueue_owner("apps", "Set")(event) == [Request("ns", "old"), Request("ns", "new")]
    assert Request("ns", "other") in enqueue_owner("apps", "Set", only_controller=False)(event)


@pytest.mark.parametrize(
    ("check", "same", "different"),
    [
        (predicate.resource_version_changed, obj(), obj(version=2)),
        (predicate.label_changed, obj(version=2), obj(labels={"a": "b"})),
        (predicate.generation_changed, obj(labels={"a": "b"}), obj(generation=2)),
        (predicate.annotation_changed, obj(generation=2), obj(annotations={"a": "b"})),
    ],
)
def test_predicates_see_their_own_kind_of_change(
    check: predicate.Predicate[Unstructured], same: Unstructured, different: Unstructured
) -> None:
    assert not check(changed(obj(), same))
    assert check(changed(obj(), different))
    assert check(changed(None, obj()))
    assert check(changed(obj(), None))


def test_predicates_combine() -> None:
    event = changed(obj(), obj(version=2))

    def yes(_: Event[Unstructured]) -> bool:
        return True

    no = predicate.not_(yes)
    assert predicate.all_of(yes, yes)(event)
    assert not predicate.all_of(yes, no)(event)
    assert predicate.any_of(no, yes)(event)
    assert not predicate.any_of(no, no)(event)


def test_a_view_decides_what_is_a_change() -> None:
    def view(o: Unstructured) -> str | None:
        return o.labels.get("app")

    seen = predicate.view_changed(view)
    assert not seen(changed(None, obj()))
    assert seen(changed(None, obj(labels={"app": "x"})))
    assert not seen(changed(obj(labels={"app": "x"}), obj(labels={"app": "x", "b": "c"})))
    assert seen(changed(obj(labels={"app": "x"}), obj()))
    assert seen(changed(obj(labels={"app": "x"}), None))

"""Sources, predicates, handlers, and what becomes of a key by how its reconcile ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, NumberDataPoint
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, get_current_span

from reconciler import predicate
from reconciler.client import Resource
from reconciler.controller import Controller, Outcome, Result, SyncTimeoutError, TerminalError
from reconciler.event import Event, EventType
from reconciler.handler import enqueue_key, enqueue_map, enqueue_object, enqueue_owner
from reconciler.informer import Informer
from reconciler.instruments import Instruments
from reconciler.meta import Request, Unstructured
from reconciler.source import Channel, Func, Kind, Periodic
from reconciler.stop import Stop
from tests.unit.reconciler.scripted import PATIENCE, WIDGETS, Scripted, raw, replace, widget
from workqueue import ItemExponentialFailureRateLimiter
from workqueue.testing import FakeClock


@contextmanager
def running(controller: Controller[Any], stop: Stop | None = None) -> Iterator[Stop]:
    stop = Stop() if stop is None else stop
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


def until_idle(controller: Controller[Any]) -> None:
    while not controller.idle:
        threading.Event().wait(0.001)


def counting() -> tuple[Instruments, Callable[[], dict[str, dict[str, float]]]]:
    """Instruments, and what reads them: by name and ``result`` the value, or how many values."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])

    def read() -> dict[str, dict[str, float]]:
        data = reader.get_metrics_data()
        assert data is not None
        found: dict[str, dict[str, float]] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            for point in metric.data.data_points:
                assert point.attributes is not None
                result = str(point.attributes.get("result", ""))
                value = point.value if isinstance(point, NumberDataPoint) else point.count
                found.setdefault(metric.name, {})[result] = value
        return found

    return Instruments(provider.get_meter("test")), read


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
        until_idle(controller)
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
        until_idle(controller)
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


def test_a_key_that_a_worker_takes_after_the_stop_is_left() -> None:
    reconcile = Reconciler()
    controller: Controller[str] = Controller("test", reconcile)
    stop = Stop()

    def add_and_wait() -> None:
        """The first to be told to stop, with a worker ready to take the key."""
        controller.queue.add("late")
        while controller.queue:
            threading.Event().wait(0.001)

    with stop.calling(add_and_wait), running(controller, stop):
        controller.queue.add("early")
        reconcile.wait()
        until_idle(controller)
        stop.set()
    assert reconcile.keys == ["early"]


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
    thread = Periodic(60, lambda: ["k"]).start(lambda key, _event=None: added.append(key), stop)
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


def test_an_unexpected_error_shows_where_it_came_from_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class RefusedError(Exception):
        pass

    reconcile = Reconciler(ValueError("a"), ValueError("b"), None, RefusedError("c"))
    clock = FakeClock()
    limiter: ItemExponentialFailureRateLimiter[str] = ItemExponentialFailureRateLimiter(1, 60)
    controller: Controller[str] = Controller(
        "test", reconcile, limiter=limiter, clock=clock, plain_errors=(RefusedError,)
    )
    controller.queue.add("k")
    with running(controller):
        for _ in range(2):
            reconcile.wait()
            until_waiting(controller)
            clock.step(60)
        reconcile.wait()
        until_idle(controller)
        controller.queue.add("k")
        reconcile.wait()
        until_waiting(controller)
    failures = [record for record in caplog.records if "failed" in record.message]
    assert [bool(record.exc_info) for record in failures] == [True, False, False]


def test_a_reconcile_that_ends_its_thread_ends_the_controller() -> None:
    def reconcile(key: str) -> None:
        raise SystemExit(3)

    controller: Controller[str] = Controller("test", reconcile, workers=2)
    controller.queue.add("k")
    with pytest.raises(SystemExit):
        controller.run(Stop())
    assert not [t for t in threading.enumerate() if "controller test" in t.name]


def test_outcomes_are_counted_and_told() -> None:
    told: list[tuple[str, float]] = []
    outcomes = [None, Result(requeue_after=1), ValueError("no"), TerminalError("never")]
    reconcile = Reconciler(*outcomes)
    controller: Controller[int] = Controller(
        "test", reconcile, on_reconciled=lambda how, took: told.append((how.value, took))
    )
    for key in range(4):
        controller.queue.add(key)
    with running(controller):
        reconcile.wait(4)
        while len(told) < 4:
            threading.Event().wait(0.001)
    assert [how for how, _ in told] == ["success", "requeue_after", "error", "terminal_error"]
    assert all(0 <= took < PATIENCE for _, took in told)
    found = controller.statistics()
    assert (found.workers, found.active) == (1, 0)
    assert set(found.outcomes.values()) == {1}


def test_a_key_that_comes_back_keeps_its_priority_unless_it_is_given_another() -> None:
    reconcile = Reconciler(
        ValueError("no"), Result(requeue_after=1), Result(requeue_after=1, priority=7), None
    )
    clock = FakeClock()
    controller = make(reconcile, clock)
    taken: list[int] = []
    get = controller.queue.get_with_priority

    def watched() -> tuple[str, int]:
        key, priority = get()
        taken.append(priority)
        return key, priority

    controller.queue.get_with_priority = watched  # type: ignore[method-assign, assignment]
    controller.queue.add_with("k", priority=3)
    with running(controller):
        for _ in range(3):
            reconcile.wait()
            until_waiting(controller)
            clock.step(1)
        reconcile.wait()
    assert taken == [3, 3, 3, 7]


def test_what_was_there_at_the_start_or_is_only_repeated_comes_last() -> None:
    informer = Informer(Scripted([]), WIDGETS, Unstructured.decode)
    reconcile = Reconciler()
    reconcile.gate = threading.Event()
    controller: Controller[Request] = Controller("test", reconcile)
    controller.watch(Kind(informer, enqueue_object))
    replace(informer, [raw(widget(name, 1)) for name in "abc"], "1")
    with running(controller):
        assert reconcile.entered.acquire(timeout=PATIENCE)
        controller.queue.add(Request("ns", "new"))
        reconcile.gate.set()
        reconcile.wait(4)
    first = reconcile.keys[0]
    assert reconcile.keys[1] == Request("ns", "new")
    assert {first, *reconcile.keys[2:]} == {Request("ns", name) for name in "abc"}


def test_what_was_left_in_the_queue_ends_with_the_controller() -> None:
    instruments, read = counting()
    reconcile = Reconciler()
    reconcile.gate = threading.Event()
    controller: Controller[str] = Controller("test", reconcile, instruments=instruments)
    for key in "abc":
        controller.queue.add(key)
    with running(controller) as stop:
        assert reconcile.entered.acquire(timeout=PATIENCE)
        stop.set()
        reconcile.gate.set()
    assert len(reconcile.keys) == 1
    assert controller.queue.statistics().queued == 0
    assert "workqueue_depth" not in read()
    Controller[str]("test", reconcile, instruments=instruments)  # the name is free again


def test_reconciles_are_counted_under_the_names_of_controller_runtime() -> None:
    instruments, read = counting()
    outcomes = [None, Result(requeue_after=99), ValueError("no"), TerminalError("never")]
    reconcile = Reconciler(*outcomes)
    told = threading.Semaphore(0)
    controller: Controller[int] = Controller(
        "test",
        reconcile,
        workers=2,
        limiter=ItemExponentialFailureRateLimiter(60, 60),
        instruments=instruments,
        on_reconciled=lambda *_: told.release(),
    )
    total = "controller_runtime_reconcile"
    assert read()[total] == {"error": 0, "requeue_after": 0, "success": 0}
    for key in range(4):
        controller.queue.add(key)
    with running(controller):
        for _ in range(4):
            assert told.acquire(timeout=PATIENCE)
        found = read()
        assert found["controller_runtime_max_concurrent_reconciles"] == {"": 2}
        assert found["controller_runtime_active_workers"] == {"": 0}
    assert found[total] == {"success": 1, "requeue_after": 1, "error": 2}
    assert found["controller_runtime_reconcile_errors"] == {"": 2}
    assert found["controller_runtime_terminal_reconcile_errors"] == {"": 1}
    assert found["controller_runtime_reconcile_panics"] == {"": 0}
    assert found["controller_runtime_reconcile_timeouts"] == {"": 0}
    assert found["controller_runtime_reconcile_time"] == {"": 4}
    assert found["workqueue_adds"] == {"": 4}
    assert read()["controller_runtime_max_concurrent_reconciles"] == {"": 0}


def test_a_coroutine_that_took_too_long_is_counted_as_such() -> None:
    instruments, read = counting()
    told = threading.Semaphore(0)

    async def reconcile(key: str) -> None:
        await asyncio.Event().wait()

    controller: Controller[str] = Controller(
        "test",
        reconcile,
        reconcile_timeout=0.01,
        limiter=ItemExponentialFailureRateLimiter(60, 60),
        instruments=instruments,
        on_reconciled=lambda *_: told.release(),
    )
    controller.queue.add("k")
    with running(controller):
        assert told.acquire(timeout=PATIENCE)
    assert read()["controller_runtime_reconcile_timeouts"] == {"": 1}


def test_a_reconcile_that_no_worker_survives_is_counted() -> None:
    instruments, read = counting()

    def reconcile(key: str) -> None:
        raise SystemExit(3)

    controller: Controller[str] = Controller("test", reconcile, instruments=instruments)
    controller.queue.add("k")
    with pytest.raises(SystemExit):
        controller.run(Stop())
    assert read()["controller_runtime_reconcile_panics"] == {"": 1}


def test_the_span_of_a_reconcile_is_current_in_functions_and_coroutines() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    seen: list[SpanContext] = []

    def function(key: str) -> None:
        seen.append(get_current_span().get_span_context())

    async def coroutine(key: str) -> None:
        await asyncio.sleep(0)
        function(key)

    for reconcile in (function, coroutine):
        controller: Controller[str] = Controller(
            "test", reconcile, tracer=provider.get_tracer("test")
        )
        controller.watch(Func("f", lambda add, stop: add("k")))
        with running(controller):
            while not controller.statistics().outcomes[Outcome.SUCCESS]:
                threading.Event().wait(0.001)
    process = [span for span in exporter.get_finished_spans() if span.name == "process test"]
    assert [span.context for span in process] == seen
    assert [len(span.links) for span in process] == [1, 1]


def test_a_source_that_does_not_sync_in_time_is_named() -> None:
    informer = Informer(Scripted([]), WIDGETS, Unstructured.decode)
    clock = FakeClock()
    controller: Controller[Request] = Controller(
        "test", Reconciler(), sync_timeout=120, clock=clock
    )
    controller.watch(Kind(informer, enqueue_object))
    clock_moves = threading.Timer(0.05, lambda: clock.step(120))
    clock_moves.start()
    with pytest.raises(SyncTimeoutError, match=r"within 120 s: widgets\.example\.com"):
        controller.run(Stop())
    clock_moves.join()


def test_a_controller_runs_once_and_takes_no_source_after() -> None:
    controller: Controller[str] = Controller("test", Reconciler())
    stop = Stop()
    stop.set()
    controller.run(stop)
    with pytest.raises(RuntimeError, match="runs once"):
        controller.run(stop)
    with pytest.raises(RuntimeError, match="runs already"):
        controller.watch(Channel("c"))


def test_a_channel_carries_keys_to_every_controller() -> None:
    channel: Channel[str] = Channel("c")
    channel.send("early")
    channel.send("early")
    reconcilers = [Reconciler(), Reconciler()]
    controllers = [Controller[str](f"test {i}", r) for i, r in enumerate(reconcilers)]
    for controller in controllers:
        controller.watch(channel)
    with running(controllers[0]):
        reconcilers[0].wait()
        with running(controllers[1]):
            while not controllers[1].queue.idle or len(channel._adds) < 2:
                threading.Event().wait(0.001)
            channel.send("late")
            for reconcile in reconcilers:
                reconcile.wait()
    assert [r.keys for r in reconcilers] == [["early", "late"], ["late"]]


def test_a_function_is_a_source() -> None:
    reconcile = Reconciler()
    controller: Controller[str] = Controller("test", reconcile)

    def start(add: Callable[[str], None], stop: Stop) -> threading.Thread:
        add("k")
        thread = threading.Thread(target=stop.wait, name="controller test source")
        thread.start()
        return thread

    controller.watch(Func("mine", start))
    with running(controller):
        reconcile.wait()
    assert not [t for t in threading.enumerate() if "controller test" in t.name]


# -- coroutine functions -----------------------------------------------------------------------


def test_coroutines_share_a_loop_and_run_side_by_side() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()
    meeting = asyncio.Barrier(2)
    met = threading.Event()

    async def reconcile(key: str) -> None:
        loops.add(asyncio.get_running_loop())
        await meeting.wait()
        met.set()

    controller: Controller[str] = Controller("test", reconcile, workers=2)
    controller.queue.add("a")
    controller.queue.add("b")
    with running(controller):
        assert met.wait(PATIENCE)
    assert len(loops) == 1
    assert loops.pop().is_closed()


def test_a_coroutine_ends_as_a_function_does(caplog: pytest.LogCaptureFixture) -> None:
    keys: list[str] = []

    class Reconcile:
        async def __call__(self, key: str) -> Result | None:
            keys.append(key)
            match key:
                case "again":
                    return Result(requeue_after=3600)
                case "never":
                    raise TerminalError("no use")
                case "fails":
                    raise ValueError("oops")
            return None

    controller: Controller[str] = Controller("test", Reconcile(), clock=FakeClock())
    for key in ("fine", "again", "never", "fails"):
        controller.queue.add(key)
    with running(controller):
        while sum(controller.statistics().outcomes.values()) < 4:
            threading.Event().wait(0.001)
        assert controller.queue.statistics().waiting == 2
        assert controller.queue.num_requeues("fails") == 1
    assert set(controller.statistics().outcomes.values()) == {1}
    assert "oops" in caplog.text


def test_a_coroutine_that_takes_too_long_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    cancelled = threading.Event()

    async def reconcile(key: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    controller: Controller[str] = Controller("test", reconcile, reconcile_timeout=0.02)
    controller.queue.add("k")
    with running(controller):
        assert cancelled.wait(PATIENCE)
        until_waiting(controller)
    assert "k failed (1 in a row): not done within 0.02 s" in caplog.text


def test_tasks_that_coroutines_leave_behind_are_cancelled_at_the_stop() -> None:
    left: list[asyncio.Task[bool]] = []
    done = threading.Event()

    async def reconcile(key: str) -> None:
        left.append(asyncio.create_task(asyncio.Event().wait()))
        done.set()

    controller: Controller[str] = Controller("test", reconcile)
    controller.queue.add("k")
    with running(controller):
        assert done.wait(PATIENCE)
    assert left[0].cancelled()


def test_a_function_cannot_have_a_timeout() -> None:
    with pytest.raises(ValueError, match="only a coroutine function"):
        Controller("test", Reconciler(), reconcile_timeout=1)


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
    sets = Resource("apps", "v1beta1", "sets", "Set")
    assert enqueue_owner(sets)(event) == [Request("ns", "old"), Request("ns", "new")]
    assert Request("ns", "other") in enqueue_owner(sets, only_controller=False)(event)


def test_an_owner_without_a_namespace_has_none_in_its_key() -> None:
    event = changed(None, owned(("v1", "Node", "node-1", True)))
    nodes = Resource("", "v1", "nodes", "Node", namespaced=False)
    assert enqueue_owner(nodes)(event) == [Request("", "node-1")]


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


def test_who_leads_is_shown() -> None:
    instruments, read = counting()
    leads = [False]
    instruments.leader("lock", lambda: leads[0])
    assert read()["leader_election_master_status"] == {"": 0}
    leads[0] = True
    assert read()["leader_election_master_status"] == {"": 1}

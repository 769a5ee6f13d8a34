"""Whatever goes wrong on the way, once it is quiet the store is what the server has.

An informer follows the in-memory API server over real HTTP while objects come, change and go, and
while requests are refused, cut, stalled, duplicated and reordered. No object may be lost, none may
remain that is gone, and what the handlers were told must add up to the store: those that were told
of everything, and those that slept until the end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from reconciler.client import Resource, load
from reconciler.event import Event, EventType
from reconciler.informer import Informer
from reconciler.meta import Request, Unstructured, key_of
from reconciler.stop import Stop
from reconciler.testing import (
    ApiServer,
    Cut,
    DuplicateInitial,
    EndWatch,
    HangUp,
    NoBookmarks,
    Refuse,
    ShuffleInitial,
)
from workqueue import SystemClock

CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMES = [f"c{i}" for i in range(6)]
PATIENCE = 20.0


class Hurried(SystemClock):
    """A clock that goes a thousand times as fast, so that waits between tries are short."""

    FACTOR = 1000.0

    def now(self) -> float:
        return super().now() * self.FACTOR

    def wait(self, condition: threading.Condition, until: float | None) -> None:
        condition.wait(None if until is None else max(0.0, (until - self.now()) / self.FACTOR))


class Known:
    """What a handler believes, from nothing but what it was told."""

    def __init__(self, gate: threading.Event | None = None) -> None:
        """
        :param gate: to wait for before each event, as one does who may skip what was between
        """
        self.objects: dict[Request, str] = {}
        self.wrong: list[str] = []
        self._gate = gate

    def __call__(self, event: Event[Unstructured]) -> None:
        if self._gate is not None:
            assert self._gate.wait(PATIENCE)
        key, version = key_of(event.obj), event.obj.resource_version
        before = self.objects.get(key)
        match event.type:
            case EventType.ADDED if before is not None:
                self.wrong.append(f"{key} was added twice")
            case EventType.MODIFIED if before is None:
                self.wrong.append(f"{key} was changed and never added")
            case EventType.DELETED if before is None:
                self.wrong.append(f"{key} was deleted and never added")
        if self._gate is None and event.type is EventType.MODIFIED:
            assert event.old is not None
            if event.old.resource_version != before:
                self.wrong.append(f"{key} was {before}, not {event.old.resource_version}")
        if event.type is EventType.DELETED:
            self.objects.pop(key, None)
        else:
            self.objects[key] = version


faults = st.one_of(
    st.builds(Refuse, st.sampled_from([401, 403, 404, 410, 429, 500, 503, 504])),
    st.just(HangUp()),
    st.builds(Cut, st.integers(0, 2000)),
    st.builds(EndWatch, st.sampled_from([0, 410, 500]), st.integers(0, 4)),
    st.just(NoBookmarks()),
    st.just(DuplicateInitial()),
    st.builds(ShuffleInitial, st.integers(0, 9)),
)

changes = st.tuples(st.sampled_from(["put", "delete"]), st.sampled_from(NAMES))

steps = st.lists(
    st.one_of(
        changes,
        st.tuples(st.just("fault"), st.tuples(faults, st.integers(1, 3), st.integers(0, 2))),
        st.tuples(st.just("outage"), st.lists(changes, max_size=6)),
        st.tuples(st.just("compact"), st.none()),
        st.tuples(st.just("breathe"), st.none()),
    ),
    max_size=30,
)


def put(server: ApiServer, name: str, count: int) -> None:
    metadata = {"namespace": "default", "name": name}
    server.apply(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"n": f"{count}"}}
    )


def act(server: ApiServer, action: str, argument: Any, count: int) -> None:
    match action:
        case "put":
            put(server, argument, count)
        case "delete" if any(
            found["metadata"]["name"] == argument for found in server.list("configmaps", "default")
        ):
            server.delete("configmaps", argument, "default")
        case "fault":
            fault, times, skip = argument
            server.faults.add(fault, resource="configmaps", times=times, skip=skip)
        case "outage":
            server.stop()
            for inner, name in argument:
                act(server, inner, name, count)
            server.compact()
            server.start()
        case "compact":
            server.compact()
        case "breathe":
            threading.Event().wait(0.005)


def there(server: ApiServer) -> dict[Request, str]:
    return {
        Request(o["metadata"]["namespace"], o["metadata"]["name"]): o["metadata"]["resourceVersion"]
        for o in server.list("configmaps", "default")
    }


def until(server: ApiServer, informer: Informer[Unstructured]) -> None:
    """Wait until the informer has handled the last thing that happened on the server."""
    put(server, "last", 0)
    version = there(server)[Request("default", "last")]
    moment = threading.Event()
    for _ in range(int(PATIENCE / 0.002)):
        found = informer.store.get("default", "last")
        if found is not None and found.resource_version == version:
            return
        moment.wait(0.002)
    raise AssertionError(f"not quiet within {PATIENCE} s; {informer.last_error}")


@contextmanager
def following(server: ApiServer, *, watch_list: bool) -> Iterator[Informer[Unstructured]]:
    clock = Hurried()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(server.kubeconfig())
        client = load(str(path))
    informer = Informer(
        client,
        CONFIGMAPS,
        Unstructured.decode,
        namespace="default",
        watch_list=watch_list,
        clock=clock,
    )
    stop = Stop(clock)
    thread = threading.Thread(target=informer.run, args=(stop,))
    thread.start()
    try:
        yield informer
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(before=steps, during=steps, watch_list=st.booleans(), synced=st.booleans())
def test_once_quiet_the_store_is_what_the_server_has(
    before: list[Any], during: list[Any], *, watch_list: bool, synced: bool
) -> None:
    with ApiServer(bookmark_interval=0.01) as server:
        for count, (action, argument) in enumerate(before):
            act(server, action, argument, count)
        with following(server, watch_list=watch_list) as informer:
            gate = threading.Event()
            inline, slow = Known(), Known(gate)
            informer.add_handler(inline)
            buffered = informer.add_handler(slow, blocking=True)
            if synced:
                assert informer.wait_synced(PATIENCE)
            for count, (action, argument) in enumerate(during):
                act(server, action, argument, 100 + count)
            server.faults.clear()
            until(server, informer)
            note(f"{informer.statistics()}")

            stored = {key_of(obj): obj.resource_version for obj in informer.store.snapshot()}
            assert stored == there(server)
            assert inline.objects == stored
            gate.set()
            while buffered.pending:
                threading.Event().wait(0.001)
        assert slow.objects == stored
        assert inline.wrong == []
        assert slow.wrong == []

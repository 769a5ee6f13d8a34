"""A transport and a dataplane that tests hold in their hands."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from npc.dataplane import DataplaneError
from npc.plan import KernelState, Plan, state_of
from npc.ruleset import Direction, Ruleset
from reconciler.client import ApiError, Resource, TransportError
from reconciler.stop import Stop

PATIENCE = 10.0
"""Real seconds to wait for another thread before a test fails."""


class FakeStream:
    """A watch whose lines the test sends."""

    def __init__(self) -> None:
        self._lines: queue.Queue[bytes | None] = queue.Queue()

    def send(self, kind: str, obj: Mapping[str, Any]) -> None:
        self._lines.put(json.dumps({"type": kind, "object": obj}).encode())

    def __iter__(self) -> Iterator[bytes]:
        while (line := self._lines.get()) is not None:
            yield line

    def close(self) -> None:
        self._lines.put(None)


class FakeTransport:
    """Lists what it was given; each kind has one watch, open as long as nobody closes it."""

    def __init__(self, **objects: list[dict[str, Any]]) -> None:
        self._objects = objects
        self.streams: dict[str, FakeStream] = {}
        self._opened = threading.Condition()
        self.broken = False

    def list(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], stop: Stop
    ) -> bytes:
        if self.broken:
            raise TransportError("connection refused")
        items = self._objects.get(resource.plural, [])
        return json.dumps({"metadata": {"resourceVersion": "1"}, "items": items}).encode()

    def watch(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        timeout: float,
        stop: Stop,
    ) -> FakeStream:
        if "sendInitialEvents" in query:
            raise ApiError(400, "BadRequest", "a list will do")
        with self._opened:
            stream = self.streams[resource.plural] = FakeStream()
            self._opened.notify_all()
            return stream

    def stream(self, plural: str) -> FakeStream:
        """The kind's watch, once it is open."""
        with self._opened:
            assert self._opened.wait_for(lambda: plural in self.streams, PATIENCE)
            return self.streams[plural]


class FakeDataplane:
    """Remembers what it was told; the test decides when an apply ends, and how."""

    name = "fake"

    def __init__(self) -> None:
        self.applied: list[Ruleset] = []
        self.observed = 0
        self.running = 0
        self.overlapped = False
        self.entered = threading.Semaphore(0)
        self._gate = threading.Semaphore(0)
        self._gated = False
        self.failures = 0
        self._state: KernelState = {}

    def hold(self) -> None:
        """From now on an apply waits for ``release``."""
        self._gated = True

    def release(self, times: int = 1) -> None:
        """Let applies that wait go on."""
        self._gate.release(times)

    def release_all(self) -> None:
        """Wait no more."""
        self._gated = False
        self._gate.release(1)

    def observe(self) -> KernelState:
        self.observed += 1
        return self._state

    def apply(self, plan: Plan) -> None:
        self.running += 1
        self.overlapped = self.overlapped or self.running > 1
        try:
            self.entered.release()
            if self._gated:
                assert self._gate.acquire(timeout=PATIENCE)
            if self.failures:
                self.failures -= 1
                raise DataplaneError("iptables-nft-restore: exit code 4: busy")
            desired = Ruleset({part.desired.family: part.desired for part in plan.families})
            self.applied.append(desired)
            self._state = state_of(desired)
        finally:
            self.running -= 1

    def denied_packets(self) -> Mapping[Direction, int]:
        return dict.fromkeys(Direction, 3)

    def watch(self, changed: Callable[[], None]) -> None:
        """Nothing ever changes by itself."""

    def cleanup(self) -> None:
        self._state = {}

    def drift(self) -> None:
        """Somebody flushes everything of ours."""
        self._state = {}


def metadata(name: str, namespace: str | None = None, version: int = 1, **labels: str) -> Any:
    found: dict[str, Any] = {
        "name": name,
        "uid": f"uid-{namespace}-{name}",
        "resourceVersion": str(version),
        "labels": labels,
    }
    if namespace is not None:
        found["namespace"] = namespace
    return found


def pod(name: str, ip: str, *, version: int = 1, node: str = "n1", **labels: str) -> Any:
    return {
        "metadata": metadata(name, "x", version, **labels),
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": [{"ip": ip}]},
    }


def policy(name: str, version: int = 1, **spec: Any) -> Any:
    return {"metadata": metadata(name, "x", version), "spec": {"podSelector": {}, **spec}}

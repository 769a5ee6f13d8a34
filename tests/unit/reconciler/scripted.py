"""A transport whose every answer the test has written down beforehand."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from reconciler.client import Resource
from reconciler.reflector import Sink
from reconciler.stop import Stop

WIDGETS = Resource("example.com", "v1", "widgets", "Widget")
PATIENCE = 10.0


def widget(name: str, version: int, **labels: str) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "ns",
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": labels,
        }
    }


def raw(obj: Any) -> msgspec.Raw:
    return msgspec.Raw(json.dumps(obj).encode())


def replace(sink: Sink, objects: Sequence[msgspec.Raw], version: str) -> None:
    """These are all objects there are."""
    replacement = sink.replacing()
    for obj in objects:
        replacement.put(obj)
    replacement.commit(version)


def page(*objects: Any, version: int = 1, continue_: str = "") -> bytes:
    meta = {"resourceVersion": str(version), "continue": continue_}
    return json.dumps({"metadata": meta, "items": objects}).encode()


def event(kind: str, obj: Any) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode()


def bookmark(version: int, *, end: bool = False) -> bytes:
    annotations = {"k8s.io/initial-events-end": "true"} if end else {}
    metadata = {"resourceVersion": str(version), "annotations": annotations}
    return event("BOOKMARK", {"metadata": metadata})


def status(code: int, reason: str = "", message: str = "", **details: Any) -> bytes:
    obj = {"code": code, "reason": reason, "message": message, "details": details}
    return event("ERROR", obj)


class Lines:
    """A watch that yields what it was given, and then stays open or ends."""

    def __init__(self, *lines: bytes, stay: bool = False) -> None:
        self._lines = lines
        self._stay = stay
        self._closed = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        yield from self._lines
        if self._stay:
            assert self._closed.wait(PATIENCE), "nobody closed the watch"

    def close(self) -> None:
        self._closed.set()


@dataclass
class Call:
    verb: str
    query: dict[str, str]
    timeout: float | None = None


@dataclass
class Scripted:
    """Answers in order: bytes for lists, ``Lines`` for watches, or an exception to raise.

    When the script ends, every further watch stays open.
    """

    script: list[Any]
    calls: list[Call] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    on_call: Callable[[], None] | None = None

    def list(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], stop: Stop
    ) -> bytes:
        self.calls.append(Call("list", dict(query)))
        answer: bytes = self._next(default=page())
        return answer

    def watch(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        timeout: float,
        stop: Stop,
    ) -> Lines:
        self.calls.append(Call("watch", dict(query), timeout))
        answer: Lines = self._next(default=Lines(stay=True))
        return answer

    def _next(self, default: Any) -> Any:
        if self.on_call is not None:
            self.on_call()
        answer = self.script.pop(0) if self.script else default
        if isinstance(answer, Exception):
            raise answer
        return answer

    @property
    def verbs(self) -> str:
        """The calls so far, as ``list watch watch``."""
        return " ".join(call.verb for call in self.calls)

"""Running an example as a program, and seeing what it brings about."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reconciler.client import Resource, load
from reconciler.event import Event
from reconciler.informer import Informer
from reconciler.meta import Unstructured
from reconciler.stop import Stop
from tests.envtest.api import PATIENCE, Api

EXAMPLES = Path(__file__).parents[2] / "docs" / "reconciler" / "examples"
DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition"
)


class Seen:
    """All that was seen of each object, and waiting until it is as it should be."""

    def __init__(self, informer: Informer[Unstructured]) -> None:
        self._states: dict[str, list[Any]] = {}
        self._changed = threading.Condition()
        informer.add_handler(self._note)

    def _note(self, event: Event[Unstructured]) -> None:
        with self._changed:
            state = None if event.new is None else event.new.data
            self._states.setdefault(event.obj.name, []).append(state)
            self._changed.notify_all()

    def until(self, name: str, condition: Callable[[Any], object], since: Any = None) -> Any:
        """Wait until an object, or its absence (``None``), meets the condition.

        :param since: a state of the object; only what it was after that counts
        """
        with self._changed:
            met = self._changed.wait_for(
                lambda: [state for state in self._after(name, since) if condition(state)], PATIENCE
            )
            assert met, f"{name} did not become as expected; it is {self._after(name, None)[-1:]}"
            return met[-1]

    def _after(self, name: str, since: Any) -> list[Any]:
        states = self._states.get(name, [])
        if since is None:
            return states[-1:]
        versions = [_version(state) for state in states]
        return states[versions.index(_version(since)) + 1 :] if _version(since) in versions else []


def _version(state: Any) -> str | None:
    return None if state is None else state["metadata"]["resourceVersion"]


@contextmanager
def seeing(api: Api, resource: Resource, namespace: str | None = None) -> Iterator[Seen]:
    client = load(str(api.kubeconfig))
    informer = Informer(client, resource, Unstructured.decode, namespace=namespace)
    seen, stop = Seen(informer), Stop()
    thread = threading.Thread(target=informer.run, args=(stop,))
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join(PATIENCE)


@contextmanager
def program(api: Api, name: str, log: Path, kubeconfig: Path | None = None) -> Iterator[None]:
    """An example runs; at the end it is asked to stop, and must do so without complaint."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, EXAMPLES / name],
            env={**os.environ, "KUBECONFIG": str(kubeconfig or api.kubeconfig)},
            stderr=output,
        ) as process,
    ):
        try:
            yield
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0, log.read_text()
        finally:
            process.kill()
    assert "SIGTERM: stopping" in log.read_text()
    assert "Traceback" not in log.read_text(), log.read_text()


def define(api: Api, manifest: str) -> None:
    """Have a custom resource, and wait until it is served."""
    api.define(EXAMPLES / manifest)
    if api.memory is None:
        with seeing(api, DEFINITIONS) as definitions:
            name = manifest.removesuffix("-crd.yaml") + "s.example.com"
            definitions.until(name, lambda found: found and _established(found))


def _established(definition: dict[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions", ())
    return any((c["type"], c["status"]) == ("Established", "True") for c in conditions)

"""The guide's examples, run as the programs they are, against both API servers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reconciler.client import Resource, load
from reconciler.controller import Result
from reconciler.event import Event
from reconciler.informer import Informer
from reconciler.meta import Request, Unstructured
from reconciler.stop import Stop
from reconciler.testing import Refuse
from tests.envtest.api import PATIENCE, Api

EXAMPLES = Path(__file__).parents[2] / "docs" / "reconciler" / "examples"
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
WEBSITES = Resource("example.com", "v1", "websites", "Website")
PROBES = Resource("example.com", "v1", "probes", "Probe")
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
def program(api: Api, name: str, log: Path) -> Iterator[None]:
    """An example runs; at the end it is asked to stop, and must do so without complaint."""
    with (
        log.open("wb") as output,
        subprocess.Popen(
            [sys.executable, EXAMPLES / name],
            env={**os.environ, "KUBECONFIG": str(api.kubeconfig)},
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


# -- configmaps.py -----------------------------------------------------------------------------


def checksum(**data: str) -> str:
    return hashlib.sha256(json.dumps([data, None]).encode()).hexdigest()


def annotated(value: str) -> Callable[[Any], bool]:
    def condition(obj: dict[str, Any] | None) -> bool:
        annotations = (obj or {"metadata": {}})["metadata"].get("annotations", {})
        return bool(annotations.get("example.com/checksum") == value)

    return condition


def test_a_checksum_is_kept_right(api: Api, namespace: str, tmp_path: Path) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    labels = {"example.com/checksum": "wanted"}
    api.request("POST", path, {"metadata": {"name": "plain"}, "data": {"a": "1"}})
    api.request("POST", path, {"metadata": {"name": "early", "labels": labels}, "data": {"a": "1"}})
    with (
        seeing(api, CONFIG_MAPS, namespace) as config_maps,
        program(api, "configmaps.py", tmp_path / "log"),
    ):
        config_maps.until("early", annotated(checksum(a="1")))
        api.request("POST", path, {"metadata": {"name": "late", "labels": labels}, "data": {}})
        config_maps.until("late", lambda found: found and not annotated("")(found))

        api.patch(f"{path}/early", {"data": {"b": "2"}})
        config_maps.until("early", annotated(checksum(a="1", b="2")))
        for spoilt in ({"example.com/checksum": "?"}, None):
            changed = api.patch(f"{path}/early", {"metadata": {"annotations": spoilt}})
            config_maps.until("early", annotated(checksum(a="1", b="2")), since=changed)
    assert "annotations" not in api.request("GET", f"{path}/plain")["metadata"]


# -- owner.py ----------------------------------------------------------------------------------


def shows(title: str) -> Callable[[Any], bool]:
    return lambda page: page is not None and f"<h1>{title}</h1>" in page["data"]["index.html"]


def observed(generation: int) -> Callable[[Any], bool]:
    wanted = {"page": "home-page", "observedGeneration": generation}
    return lambda website: website is not None and website.get("status") == wanted


def website(title: str) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Website",
        "metadata": {"name": "home"},
        "spec": {"title": title},
    }


def test_a_website_has_its_page(api: Api, namespace: str, tmp_path: Path) -> None:
    define(api, "website-crd.yaml")
    path = f"/apis/example.com/v1/namespaces/{namespace}/websites"
    page_path = f"/api/v1/namespaces/{namespace}/configmaps/home-page"
    with (
        program(api, "owner.py", tmp_path / "log"),
        seeing(api, WEBSITES, namespace) as websites,
        seeing(api, CONFIG_MAPS, namespace) as pages,
    ):
        created = api.request("POST", path, website("Cats & dogs"))
        page = pages.until("home-page", shows("Cats &amp; dogs"))
        (owner,) = page["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Website", created["metadata"]["uid"])
        assert owner["controller"] is True
        websites.until("home", observed(1))

        api.request("DELETE", page_path)
        pages.until("home-page", shows("Cats &amp; dogs"), since=page)
        spoilt = api.patch(page_path, {"data": {"index.html": "spoilt"}})
        pages.until("home-page", shows("Cats &amp; dogs"), since=spoilt)
        spoilt = api.patch(page_path, {"metadata": {"labels": None}})
        pages.until("home-page", lambda found: "labels" in found["metadata"], since=spoilt)

        api.patch(f"{path}/home", {"spec": {"title": "Birds"}})
        pages.until("home-page", shows("Birds"))
        websites.until("home", observed(2))

        for number in range(3, 30):  # faster than the program follows
            api.patch(f"{path}/home", {"spec": {"title": f"Bird {number}"}})
        pages.until("home-page", shows("Bird 29"))
        websites.until("home", observed(29))


@pytest.mark.parametrize("api", ["memory"], indirect=True)  # which refuses on demand
def test_a_refused_status_is_written_later(api: Api, namespace: str, tmp_path: Path) -> None:
    assert api.memory is not None
    define(api, "website-crd.yaml")
    refusal = api.memory.faults.add(Refuse(409), verb="update", resource="websites", times=3)
    path = f"/apis/example.com/v1/namespaces/{namespace}/websites"
    with (
        seeing(api, WEBSITES, namespace) as websites,
        program(api, "owner.py", tmp_path / "log"),
    ):
        api.request("POST", path, website("Cats"))
        websites.until("home", observed(1))
        assert refusal.spent


def test_a_website_seen_too_early_is_looked_at_again(api: Api, namespace: str) -> None:
    define(api, "website-crd.yaml")
    path = f"/apis/example.com/v1/namespaces/{namespace}/websites"
    seen = Unstructured(api.request("POST", path, website("Cats")))
    api.patch(f"{path}/home", {"spec": {"title": "Birds"}})

    reconcile = _module("owner").WebsiteReconciler(load(str(api.kubeconfig)))
    reconcile.informer.store.put(seen)
    assert reconcile(Request(namespace, "home")) == Result(requeue_after=0.1)
    assert "status" not in api.request("GET", f"{path}/home")

    reconcile.informer.store.put(Unstructured(api.request("GET", f"{path}/home")))
    assert reconcile(Request(namespace, "home")) is None
    assert observed(2)(api.request("GET", f"{path}/home"))


def _module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- asynchronous.py ---------------------------------------------------------------------------


class Answering(socketserver.ThreadingTCPServer):
    """Answers no request before so many have come: only those who ask at once are answered."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, together: int) -> None:
        super().__init__(("127.0.0.1", 0), self._Handler)
        self.barrier = threading.Barrier(together)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/{path}"

    class _Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            assert isinstance(self.server, Answering)
            self.rfile.readline()
            self.server.barrier.wait(PATIENCE)
            self.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")


@contextmanager
def answering(together: int) -> Iterator[Answering]:
    with Answering(together) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def probe(name: str, period: float, *urls: str) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Probe",
        "metadata": {"name": name},
        "spec": {"urls": list(urls), "periodSeconds": period},
    }


def answers(*urls: str) -> Callable[[Any], bool]:
    wanted = dict.fromkeys(urls, "HTTP/1.0 200 OK")
    return lambda found: found is not None and found.get("status", {}).get("answers") == wanted


def test_many_probes_wait_together(api: Api, namespace: str, tmp_path: Path) -> None:
    define(api, "probe-crd.yaml")
    path = f"/apis/example.com/v1/namespaces/{namespace}/probes"
    with (
        answering(together=8) as server,
        seeing(api, PROBES, namespace) as probes,
        program(api, "asynchronous.py", tmp_path / "log"),
    ):
        first = [server.url(f"first/{number}") for number in range(4)]
        second = [server.url(f"second/{number}") for number in range(4)]
        api.request("POST", path, probe("first", 3600, *first))
        api.request("POST", path, probe("second", 3600, *second))
        probes.until("first", answers(*first))
        probes.until("second", answers(*second))


def test_a_probe_is_repeated_and_says_why_there_is_no_answer(
    api: Api, namespace: str, tmp_path: Path
) -> None:
    define(api, "probe-crd.yaml")
    path = f"/apis/example.com/v1/namespaces/{namespace}/probes"
    with (
        seeing(api, PROBES, namespace) as probes,
        program(api, "asynchronous.py", tmp_path / "log"),
    ):
        with answering(together=1) as server:
            url = server.url("")
            api.request("POST", path, probe("web", 0.2, url))
            probes.until("web", answers(url))
        refused = probes.until("web", lambda found: found and not answers(url)(found))
        assert "Connect call failed" in refused["status"]["answers"][url]
        api.request("DELETE", f"{path}/web")
        probes.until("web", lambda found: found is None)

"""The guide's examples, run as the programs they are, against both API servers."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.client import Resource, load
from reconciler.controller import Result
from reconciler.meta import Request, Unstructured
from reconciler.testing import Refuse
from tests.envtest.api import PATIENCE, Api
from tests.envtest.processes import GUEST, RealServer
from tests.envtest.programs import EXAMPLES, define, program, seeing

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
WEBSITES = Resource("example.com", "v1", "websites", "Website")
PROBES = Resource("example.com", "v1", "probes", "Probe")


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


# -- what each needs to be allowed -------------------------------------------------------------

ROLES = {
    role["metadata"]["name"]: role
    for page in EXAMPLES.parent.glob("*.md")
    for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    for role in [yaml.safe_load(text)]
}


@contextmanager
def granted(api: Api, real: RealServer, name: str) -> Iterator[Path]:
    """The kubeconfig of a guest, who may do what the guide says that this example needs."""
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    binding = {
        "metadata": {"name": name},
        "roleRef": {"kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "name": "guest"}],
    }
    api.request("POST", roles, ROLES[name])
    api.request("POST", bindings, binding)
    try:
        yield real.kubeconfig(GUEST)
    finally:
        api.request("DELETE", f"{bindings}/{name}")
        api.request("DELETE", f"{roles}/{name}")


only_real = pytest.mark.parametrize("api", ["real"], indirect=True)  # which looks at roles


@only_real
def test_the_role_of_configmaps_is_enough(
    api: Api, real_api: RealServer, namespace: str, tmp_path: Path
) -> None:
    labels = {"example.com/checksum": "wanted"}
    config_map = {"metadata": {"name": "a", "labels": labels}, "data": {"a": "1"}}
    api.request("POST", f"/api/v1/namespaces/{namespace}/configmaps", config_map)
    with (
        seeing(api, CONFIG_MAPS, namespace) as config_maps,
        granted(api, real_api, "configmaps") as guest,
        program(api, "configmaps.py", tmp_path / "log", guest),
    ):
        config_maps.until("a", annotated(checksum(a="1")))


@only_real
def test_the_role_of_owner_is_enough(
    api: Api, real_api: RealServer, namespace: str, tmp_path: Path
) -> None:
    define(api, "website-crd.yaml")
    path = f"/apis/example.com/v1/namespaces/{namespace}/websites"
    api.request("POST", path, website("Cats"))
    with (
        seeing(api, WEBSITES, namespace) as websites,
        granted(api, real_api, "owner") as guest,
        program(api, "owner.py", tmp_path / "log", guest),
    ):
        websites.until("home", observed(1))


@only_real
def test_the_role_of_asynchronous_is_enough(
    api: Api, real_api: RealServer, namespace: str, tmp_path: Path
) -> None:
    define(api, "probe-crd.yaml")
    path = f"/apis/example.com/v1/namespaces/{namespace}/probes"
    with (
        answering(together=1) as server,
        seeing(api, PROBES, namespace) as probes,
        granted(api, real_api, "asynchronous") as guest,
        program(api, "asynchronous.py", tmp_path / "log", guest),
    ):
        api.request("POST", path, probe("web", 3600, server.url("")))
        probes.until("web", answers(server.url("")))

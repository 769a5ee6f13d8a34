"""The client side against API servers: the real one, and the in-memory one that stands in for it.

Every test runs against both, so what holds for the one is known to hold for the other.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reconciler.client import ApiError, Resource, load
from reconciler.event import Event, EventType
from reconciler.informer import Informer
from reconciler.meta import Unstructured
from reconciler.stop import Stop
from tests.envtest.api import PATIENCE, Api
from tests.envtest.processes import NOBODY

CONFIGMAPS = Resource("", "v1", "configmaps", "ConfigMap")
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")


class Watching:
    """An informer that runs, and what its handler was told."""

    def __init__(self, informer: Informer[Unstructured], thread: threading.Thread) -> None:
        self.informer = informer
        self.thread = thread
        self._told: queue.Queue[Event[Unstructured]] = queue.Queue()
        informer.add_handler(self._told.put)

    def next(self) -> Event[Unstructured]:
        return self._told.get(timeout=PATIENCE)

    def quiet(self) -> bool:
        return self._told.empty()


@contextmanager
def watching(
    api: Api, namespace: str, resource: Resource = CONFIGMAPS, kubeconfig: Path | None = None
) -> Iterator[Watching]:
    client = load(str(kubeconfig or api.kubeconfig))
    informer = Informer(client, resource, Unstructured.decode, namespace=namespace)
    stop = Stop()
    thread = threading.Thread(target=informer.run, args=(stop,))
    watch = Watching(informer, thread)
    thread.start()
    try:
        yield watch
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a quiet watch did not end at once"


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def test_what_is_there_and_what_happens_is_told_in_order(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.request("POST", path, config_map("first", a="1"))
    with watching(api, namespace, kubeconfig=api.kubeconfig) as watch:
        seen = watch.next()
        while seen.obj.name != "first":  # a real server puts its CA into each namespace
            seen = watch.next()
        assert (seen.type, seen.initial) == (EventType.ADDED, True)

        created = api.request("POST", path, config_map("second", a="1"))
        changed = api.patch(f"{path}/second", {"data": {"a": "2"}})
        api.request("DELETE", f"{path}/second")

        told = [watch.next() for _ in range(3)]
        assert [event.type.value for event in told] == ["ADDED", "MODIFIED", "DELETED"]
        assert {event.obj.name for event in told} == {"second"}
        assert told[0].obj.resource_version == created["metadata"]["resourceVersion"]
        assert told[1].obj.resource_version == changed["metadata"]["resourceVersion"]
        assert told[1].old is not None
        assert told[1].old.data["data"] == {"a": "1"}
        assert told[1].obj.data["data"] == {"a": "2"}
        assert watch.informer.store.get(namespace, "second") is None
        assert watch.informer.store.get(namespace, "first") is not None


def test_a_list_of_many_pages_is_whole(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    for i in range(1050):
        api.request("POST", path, config_map(f"c{i:04}"))
    with watching(api, namespace) as watch:
        names: set[str] = set()
        while len(names) < 1050:
            event = watch.next()
            if event.obj.name.startswith("c"):
                names.add(event.obj.name)
        assert watch.informer.has_synced or watch.informer.store
        assert len(names) == 1050


def test_the_handled_version_follows_every_event(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    with watching(api, namespace) as watch:
        version = api.request("POST", path, config_map("a"))["metadata"]["resourceVersion"]
        while watch.next().obj.name != "a":
            pass
        done = threading.Event()
        for _ in range(2000):
            if watch.informer.handled_resource_version == version:
                break
            done.wait(0.005)
        assert watch.informer.handled_resource_version == version


def test_an_object_that_is_recreated_is_told_as_deleted_and_added(api: Api, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    api.request("POST", path, config_map("a"))
    with watching(api, namespace) as watch:
        while (first := watch.next()).obj.name != "a":
            pass
        api.request("DELETE", f"{path}/a")
        api.request("POST", path, config_map("a"))
        gone, back = watch.next(), watch.next()
        assert (gone.type, back.type) == (EventType.DELETED, EventType.ADDED)
        assert first.obj.uid == gone.obj.uid != back.obj.uid


def test_a_policy_is_defaulted_by_the_server(api: Api, namespace: str) -> None:
    path = f"/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies"
    policy = {
        "metadata": {"name": "p"},
        "spec": {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]},
    }
    with watching(api, namespace, POLICIES) as watch:
        api.request("POST", path, policy)
        spec = watch.next().obj.data["spec"]
        assert spec["policyTypes"] == ["Ingress"]
        assert spec["ingress"] == [{"ports": [{"port": 80, "protocol": "TCP"}]}]


def test_a_refusal_says_what_was_refused_to_whom(real_api: Any) -> None:
    client = load(str(real_api.kubeconfig(NOBODY)))
    with pytest.raises(
        ApiError, match=r'403 Forbidden: .*"nobody" cannot list .*"configmaps"'
    ) as e:
        client.list(CONFIGMAPS, None, {})
    assert e.value.status == 403

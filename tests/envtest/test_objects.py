"""Reading and writing single objects: the same against the in-memory server and the real one."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.client import ApiError, Client, Resource, load
from reconciler.meta import Request, Unstructured
from reconciler.objects import Objects, controller_reference
from tests.envtest.api import Api

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
PODS = Resource("", "v1", "pods", "Pod")
UNKNOWN = Resource("example.com", "v1", "nothings", "Nothing")


@pytest.fixture
def client(api: Api) -> Client:
    return load(str(api.kubeconfig))


@pytest.fixture
def config_maps(client: Client) -> Objects[Unstructured]:
    return Objects(client, CONFIG_MAPS, Unstructured.decode, manager="tests")


def config_map(namespace: str, name: str = "a", **data: str) -> dict[str, Any]:
    return {"metadata": {"namespace": namespace, "name": name}, "data": data}


def test_an_object_is_created_read_and_deleted(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    key = Request(namespace, "a")
    assert config_maps.get(key) is None
    created = config_maps.create(config_map(namespace, x="1"))
    assert (created.data["kind"], created.data["data"]) == ("ConfigMap", {"x": "1"})
    read = config_maps.get(key)
    assert read is not None
    assert (read.uid, read.resource_version) == (created.uid, created.resource_version)

    with pytest.raises(ApiError, match="already exists") as refusal:
        config_maps.create(config_map(namespace))
    assert refusal.value.already_exists
    assert not refusal.value.conflict

    assert config_maps.delete(key)
    assert config_maps.get(key) is None
    assert not config_maps.delete(key), "there was none"


def test_a_name_may_be_left_to_the_server(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    created = config_maps.create({"metadata": {"namespace": namespace, "generateName": "a-"}})
    assert created.name.startswith("a-")


def test_an_update_of_what_has_changed_meanwhile_is_a_conflict(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    old = config_maps.create(config_map(namespace, x="1"))
    new = config_maps.update({**old.data, "data": {"x": "2"}})
    assert new.data["data"] == {"x": "2"}
    with pytest.raises(ApiError, match="the object has been modified") as refusal:
        config_maps.update({**old.data, "data": {"x": "3"}})
    assert refusal.value.conflict
    assert not refusal.value.already_exists


def test_a_patch_merges_and_may_ask_for_a_version(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    key = Request(namespace, "a")
    old = config_maps.create(config_map(namespace, x="1", y="1"))
    new = config_maps.patch(key, {"data": {"y": None, "z": "1"}})
    assert new.data["data"] == {"x": "1", "z": "1"}
    with pytest.raises(ApiError, match="the object has been modified") as refusal:
        config_maps.patch(key, {"metadata": {"resourceVersion": old.resource_version}, "data": {}})
    assert refusal.value.conflict


def test_an_apply_creates_keeps_and_removes(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    first = config_maps.apply(config_map(namespace, x="1", y="1"))
    again = config_maps.apply(config_map(namespace, x="1", y="1"))
    assert again.resource_version == first.resource_version, "nothing was to be done"
    config_maps.patch(Request(namespace, "a"), {"data": {"theirs": "1"}})
    last = config_maps.apply(config_map(namespace, x="1"))
    assert last.data["data"]["x"] == "1"
    assert "y" not in last.data["data"]


def test_an_apply_takes_what_another_owns_only_by_force(
    client: Client, config_maps: Objects[Unstructured], namespace: str
) -> None:
    others = Objects(client, CONFIG_MAPS, Unstructured.decode, manager="others")
    config_maps.apply(config_map(namespace, x="1", y="1"))
    with pytest.raises(ApiError, match="conflict") as refusal:
        others.apply(config_map(namespace, x="2"), force=False)
    assert refusal.value.conflict
    assert others.apply(config_map(namespace, x="2")).data["data"] == {"x": "2", "y": "1"}


def test_the_status_is_written_by_itself(client: Client, namespace: str) -> None:
    pods = Objects(client, PODS, Unstructured.decode, manager="tests")
    key = Request(namespace, "a")
    containers = [{"name": "main", "image": "nginx"}]
    pod = pods.create(
        {
            "metadata": {"namespace": namespace, "name": "a"},
            "spec": {"containers": containers, "activeDeadlineSeconds": 9},
        }
    )
    spec = {**pod.data["spec"], "activeDeadlineSeconds": 8}
    changed = {**pod.data, "spec": spec, "status": {"phase": "Running"}}
    running = pods.status.update(changed)
    assert running.data["status"]["phase"] == "Running"
    assert running.data["spec"]["activeDeadlineSeconds"] == 9, "only the status was written"
    with pytest.raises(ApiError, match="the object has been modified"):
        pods.status.update(changed)
    failed = pods.status.patch(key, {"status": {"phase": "Failed"}})
    assert failed.data["status"]["phase"] == "Failed"
    assert pods.patch(key, {"status": {"phase": "Running"}}).data["status"]["phase"] == "Failed"


def test_a_kind_without_namespaces(client: Client, namespace: str) -> None:
    namespaces = Objects(client, NAMESPACES, Unstructured.decode, manager="tests")
    found = namespaces.get(Request("", namespace))
    assert found is not None
    assert namespaces.patch(Request("", namespace), {"metadata": {"labels": {"a": "b"}}}).labels[
        "a"
    ]


def test_a_kind_that_the_server_does_not_know_is_no_missing_object(
    client: Client, namespace: str
) -> None:
    nothings = Objects(client, UNKNOWN, Unstructured.decode, manager="tests")
    with pytest.raises(ApiError) as refusal:
        nothings.get(Request(namespace, "a"))
    assert (refusal.value.status, refusal.value.not_found) == (404, False)
    with pytest.raises(ApiError):
        nothings.delete(Request(namespace, "a"))


def test_another_object_of_the_same_name_is_not_deleted(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    key = Request(namespace, "a")
    old = config_maps.create(config_map(namespace))
    config_maps.delete(key)
    new = config_maps.create(config_map(namespace))
    with pytest.raises(ApiError) as refusal:
        config_maps.delete(key, uid=old.uid)
    assert refusal.value.conflict
    assert config_maps.delete(key, uid=new.uid)


def test_what_has_no_namespace_or_name_is_not_sent(config_maps: Objects[Unstructured]) -> None:
    with pytest.raises(ValueError, match="configmaps: a without a namespace"):
        config_maps.get(Request("", "a"))
    with pytest.raises(ValueError, match="configmaps: an object without a name"):
        config_maps.update({"metadata": {"namespace": "x"}})
    with pytest.raises(ValueError, match="configmaps: an object without a namespace"):
        config_maps.create({"metadata": {}})


def test_an_owner_is_written_as_the_api_wants_it(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    owner = config_maps.create(config_map(namespace, "owner"))
    reference = controller_reference(owner, CONFIG_MAPS)
    owned = config_map(namespace, "owned")
    owned["metadata"]["ownerReferences"] = [reference]
    assert config_maps.create(owned).metadata["ownerReferences"] == [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "name": "owner",
            "uid": owner.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def test_a_strange_name_asks_for_nothing_else(
    config_maps: Objects[Unstructured], namespace: str
) -> None:
    assert config_maps.get(Request(namespace, "?limit=1")) is None

"""The test's own door, the server's life, and its sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.testing import ApiError, ApiServer, Resource
from tests.conformance.apiserver.client import (
    APPLY,
    CONFIG_MAPS,
    POLICIES,
    STRATEGIC,
    Api,
    config_map,
    pod,
    policy,
)

WIDGET = Resource("example.com", "v1", "widgets", "Widget", status=True, short_names=("wd",))


def widget(name: str = "w", **fields: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        **fields,
    }


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until the server's thread has caught up; fails after ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


# --- the door


def test_objects_made_by_the_test_keep_their_status(server: ApiServer, api: Api) -> None:
    made = server.create({**pod(), "status": {"phase": "Running", "podIP": "10.0.0.1"}})
    assert made["metadata"]["namespace"] == "default"
    assert made["status"]["podIPs"] == [{"ip": "10.0.0.1"}]
    assert api.get("/api/v1/namespaces/default/pods/web").body == made
    assert server.get("pods", "web") == made


def test_apply_creates_and_replaces(server: ApiServer) -> None:
    first = server.apply({**pod(), "status": {"phase": "Running"}})
    changed = pod(labels={"new": "label"})
    second = server.apply(changed)
    assert second["metadata"]["uid"] == first["metadata"]["uid"]
    assert second["metadata"]["labels"] == {"new": "label"}
    assert second["status"]["phase"] == "Running"
    before = server.resource_version
    assert server.apply(changed) == second
    assert server.resource_version == before


def test_apply_ignores_an_old_version(server: ApiServer) -> None:
    first = server.create(config_map(a="1"))
    server.patch("configmaps", "settings", {"data": {"a": "2"}})
    assert server.apply(first)["data"] == {"a": "1"}


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("merge", {"status": {"phase": "Failed"}}),
        ("json", [{"op": "replace", "path": "/status/phase", "value": "Failed"}]),
        ("strategic", {"status": {"phase": "Failed"}}),
        (
            "apply",
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "web"},
                "status": {"phase": "Failed"},
            },
        ),
    ],
)
def test_patch(server: ApiServer, kind: Any, change: Any) -> None:
    server.create(pod())
    assert server.patch("po", "web", change, kind=kind)["status"]["phase"] == "Failed"


def test_list_and_delete(server: ApiServer) -> None:
    server.create(config_map("b", {"x": "1"}))
    server.create(config_map("a"))
    assert [item["metadata"]["name"] for item in server.list("cm")] == ["a", "b"]
    assert [i["metadata"]["name"] for i in server.list("cm", "default", "x=1")] == ["b"]
    server.delete("ConfigMap", "a")
    with pytest.raises(ApiError, match='configmaps "a" not found') as refusal:
        server.get("configmaps", "a")
    assert refusal.value.code == 404


def test_what_comes_out_is_a_copy(server: ApiServer) -> None:
    server.create(config_map(a="1"))
    server.get("cm", "settings")["data"]["a"] = "changed"
    assert server.get("cm", "settings")["data"] == {"a": "1"}


def test_what_goes_in_is_copied(server: ApiServer) -> None:
    mine = config_map(a="1")
    server.create(mine)
    mine["data"]["a"] = "changed"
    server.apply(config_map(a="1"))
    assert server.get("cm", "settings")["data"] == {"a": "1"}


def test_a_refusal_has_causes(server: ApiServer) -> None:
    with pytest.raises(ApiError) as refusal:
        server.create(policy(policyTypes=["Inside"]))
    assert refusal.value.code == 422
    assert refusal.value.status()["details"]["causes"][0]["field"] == "spec.policyTypes[0]"


def test_unknown_kinds(server: ApiServer) -> None:
    with pytest.raises(LookupError, match="Widget"):
        server.create(widget())
    with pytest.raises(LookupError, match="widgets"):
        server.list("widgets")


@pytest.mark.parametrize(
    "spec",
    [
        {"ingress": "everything"},
        {"ingress": [{"from": "nowhere", "ports": [7]}]},
        {"podSelector": {"matchLabels": ["a"]}},
        {"policyTypes": ["Inside"], "colour": "red"},
        None,
    ],
    ids=["text", "deep", "list", "unknown", "null"],
)
def test_malformed_objects_can_be_let_in(server: ApiServer, api: Api, spec: Any) -> None:
    path = POLICIES.format(ns="default")
    wanted = {**policy(), "spec": spec}
    with contextlib.suppress(ApiError):
        server.create(wanted)
        server.delete("networkpolicies", "policy")
    made = server.create(wanted, validate=False)
    for key, value in (spec or {}).items():
        assert made["spec"][key] == value
    assert api.get(f"{path}/policy").body == made
    table = api.get(path, accept="application/json;as=Table;v=v1;g=meta.k8s.io").body
    assert table["rows"][0]["cells"][0] == "policy"
    with api.watch(path, labelSelector="!a") as events:
        assert events.next()["object"] == made
    assert api.call("PUT", f"{path}/policy", policy()).code == 200
    assert api.call("DELETE", f"{path}/policy").code == 200


def test_malformed_labels_match_no_selector(server: ApiServer, api: Api) -> None:
    broken = config_map()
    broken["metadata"]["labels"] = {"a": ["list"]}
    server.create(broken, validate=False)
    path = CONFIG_MAPS.format(ns="default")
    assert api.get(path, labelSelector="a in (b)").body["items"] == []
    assert len(api.get(path, labelSelector="a!=b").body["items"]) == 1


def test_even_a_malformed_object_has_a_name(server: ApiServer) -> None:
    for meta in ({}, {"name": 5}, {"name": "x", "namespace": 5}):
        with pytest.raises(ApiError, match="must be a string"):
            server.create({**config_map(), "metadata": meta}, validate=False)


def test_host_bits_of_older_servers(server: ApiServer, api: Api) -> None:
    """A cluster may hold what its API server would no longer take."""
    old = policy(ingress=[{"from": [{"ipBlock": {"cidr": "10.1.2.3/8"}}]}])
    server.create(old)
    path = f"{POLICIES.format(ns='default')}/policy"
    assert api.patch(path, {"metadata": {"labels": {"a": "b"}}}).code == 200
    other = {"spec": {"ingress": [{"from": [{"ipBlock": {"cidr": "10.1.2.4/8"}}]}]}}
    assert api.patch(path, other).code == 422


# --- namespaces


def test_a_new_server_has_the_usual_namespaces(server: ApiServer) -> None:
    assert [item["metadata"]["name"] for item in server.list("namespaces")] == [
        "default",
        "kube-node-lease",
        "kube-public",
        "kube-system",
    ]


def test_a_namespace_goes_with_everything_in_it(server: ApiServer, api: Api) -> None:
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    for obj in (pod(), policy(), config_map()):
        server.create({**obj, "metadata": {**obj["metadata"], "namespace": "shop"}})
    server.create(config_map("stays"))
    since = server.resource_version
    assert api.call("DELETE", "/api/v1/namespaces/shop").code == 200
    assert api.get("/api/v1/namespaces/shop").code == 404
    assert server.list("pods") == server.list("networkpolicies") == []
    assert [item["metadata"]["name"] for item in server.list("cm")] == ["stays"]
    with api.watch("/api/v1/namespaces", resourceVersion=since) as events:
        assert events.take(2) == [("MODIFIED", "shop"), ("DELETED", "shop")]


def test_a_namespace_waits_for_finalizers(server: ApiServer) -> None:
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    held = config_map()
    held["metadata"] |= {"namespace": "shop", "finalizers": ["example.com/hold"]}
    server.create(held)
    server.delete("namespaces", "shop")
    assert server.get("namespaces", "shop")["status"]["phase"] == "Terminating"
    server.patch("cm", "settings", {"metadata": {"finalizers": None}}, "shop")
    with pytest.raises(ApiError, match="not found"):
        server.get("namespaces", "shop")


# --- custom resources


def test_custom_resources(server: ApiServer, api: Api) -> None:
    server.add_resource(WIDGET)
    with pytest.raises(ValueError, match="registered already"):
        server.add_resource(WIDGET)
    path = "/apis/example.com/v1/namespaces/default/widgets"
    made = api.create(path, widget(spec={"size": 1}, status={"ready": True})).body
    assert made["metadata"]["generation"] == 1
    assert "status" not in made
    status = api.patch(f"{path}/w/status", {"status": {"ready": True}, "spec": {"size": 9}}).body
    assert (status["spec"], status["status"]) == ({"size": 1}, {"ready": True})
    assert status["metadata"]["generation"] == 1
    spec = api.patch(f"{path}/w", {"spec": {"size": 2}, "status": {"ready": False}}).body
    assert (spec["spec"], spec["status"]) == ({"size": 2}, {"ready": True})
    assert spec["metadata"]["generation"] == 2
    assert api.call("PUT", f"{path}/w", widget(spec={})).code == 422, "no resourceVersion"
    assert api.patch(f"{path}/w", {}, STRATEGIC).code == 415
    applied = api.patch(f"{path}/x", widget("x", spec={"list": [1]}), APPLY, fieldManager="tester")
    assert applied.code == 201
    listed = api.get("/apis/example.com/v1").body["resources"]
    assert [item["name"] for item in listed] == ["widgets", "widgets/status"]
    assert server.get("wd", "w")["spec"] == {"size": 2}


# --- life


def test_kubeconfig(server: ApiServer) -> None:
    config = yaml.safe_load(server.kubeconfig())
    assert config["clusters"][0]["cluster"]["server"] == server.url
    other = yaml.safe_load(server.kubeconfig("http://10.0.0.1:1"))
    assert other["clusters"][0]["cluster"]["server"] == "http://10.0.0.1:1"


def test_stop_ends_everything_at_once(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    server = ApiServer().start()
    api = Api(server.url, tmp_path)
    with api.watch("/api/v1/pods") as first, api.watch("/api/v1/namespaces") as second:
        assert second.next()["type"] == "ADDED"
        wait_for(lambda: server.statistics().watches == 2)
        began = time.monotonic()
        server.stop()
        assert time.monotonic() - began < 2
        assert set(threading.enumerate()) == before
        for events in (first, second):
            with contextlib.suppress(OSError, ValueError):  # reset, or cut short: both end it
                events.rest()
    with pytest.raises(OSError, match="refused"):
        api.get("/version")
    server.stop()


def test_a_server_can_come_back(tmp_path: Path) -> None:
    server = ApiServer()
    with server:
        api = Api(server.url, tmp_path)
        made = server.create(config_map(a="1"))
    server.create(config_map("meanwhile"))
    with server:
        assert server.url == api.url
        assert api.get(f"{CONFIG_MAPS.format(ns='default')}/settings").body == made
        since = made["metadata"]["resourceVersion"]
        with api.watch(CONFIG_MAPS.format(ns="default"), resourceVersion=since) as events:
            assert events.take(1) == [("ADDED", "meanwhile")]
            server.create(config_map("later"))
            assert events.take(1) == [("ADDED", "later")]


def test_it_starts_once(server: ApiServer) -> None:
    with pytest.raises(RuntimeError, match="running already"):
        server.start()


def test_what_needs_a_running_server() -> None:
    server = ApiServer()
    with pytest.raises(RuntimeError, match="not been started"):
        _ = server.url
    for call in (server.send_bookmarks, server.drop_connections):
        with pytest.raises(RuntimeError, match="not running"):
            call()
    with socket.create_server(("127.0.0.1", 0)) as sock, pytest.raises(RuntimeError):
        server.serve(sock)


def test_a_taken_port_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        taken = ApiServer(port=sock.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            taken.start()
        taken.stop()


def test_more_sockets(server: ApiServer, tmp_path: Path) -> None:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
    for sock in sockets:
        server.serve(sock)
    urls = [f"http://127.0.0.1:{sock.getsockname()[1]}" for sock in sockets]
    for url in urls:
        assert Api(url, tmp_path).get("/version").code == 200
    server.stop()
    assert all(sock.fileno() == -1 for sock in sockets)


def test_it_sleeps_when_idle(server: ApiServer, api: Api) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            stack.enter_context(api.watch("/api/v1/pods"))
        wait_for(lambda: server.statistics().watches == 10)
        wait_for(lambda: server.statistics().requests == 10)
        begin = time.process_time()
        time.sleep(0.5)
        assert time.process_time() - begin < 0.05


def test_a_client_that_leaves_is_forgotten(server: ApiServer, api: Api) -> None:
    with api.watch("/api/v1/pods"):
        wait_for(lambda: server.statistics().watches == 1)
    wait_for(lambda: server.statistics().watches == 0)
    wait_for(lambda: server.statistics().connections == 0)


def test_records_and_statistics(server: ApiServer, api: Api) -> None:
    api.get("/api/v1/pods", labelSelector="a=b")
    api.get("/api/v1/namespaces/default/pods/none")
    with api.watch("/api/v1/pods", sendInitialEvents="true", resourceVersionMatch="NotOlderThan"):
        records = server.requests()
        assert [(record.verb, record.resource, record.code) for record in records] == [
            ("list", "pods", 200),
            ("get", "pods", 404),
            ("watchlist", "pods", 200),
        ]
        assert server.requests("list", "pods")[0].query == {"labelSelector": "a=b"}
        assert server.requests(resource="nodes") == []
        statistics = server.statistics()
    assert (statistics.requests, statistics.objects) == (3, 4)
    assert statistics.resource_version == server.resource_version

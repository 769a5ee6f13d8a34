"""Decoding the API server's JSON, whatever else it holds."""

from __future__ import annotations

import copy
import json
import re
import tracemalloc
from typing import Any

import msgspec
import pytest

from npc.api import NamedPort, Pod, decode_namespace, decode_pod, decode_policy
from reconciler.store import Store


def raw(obj: Any) -> bytes:
    return json.dumps(obj).encode()


POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {
        "name": "a",
        "namespace": "x",
        "uid": "u",
        "resourceVersion": "7",
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {"app": "web"},
        "managedFields": [{"manager": "kubectl"}],
    },
    "spec": {
        "nodeName": "n1",
        "containers": [
            {
                "name": "c",
                "ports": [
                    {"name": "http", "containerPort": 80},
                    {"containerPort": 81},
                    {"name": "dns", "containerPort": 53, "protocol": "UDP"},
                ],
            }
        ],
        "initContainers": [
            {
                "name": "sidecar",
                "restartPolicy": "Always",
                "ports": [{"name": "mesh", "containerPort": 9}],
            },
            {"name": "setup", "ports": [{"name": "never", "containerPort": 1}]},
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
        "conditions": [{"type": "Ready"}],
    },
}


def test_a_pod() -> None:
    pod = decode_pod(raw(POD))
    assert (pod.namespace, pod.name, pod.uid, pod.resource_version) == ("x", "a", "u", "7")
    assert pod.labels == {"app": "web"}
    assert (pod.node, pod.phase, pod.host_network) == ("n1", "Running", False)
    assert pod.ips == ("10.0.0.1", "fd00::1")
    assert pod.named_ports == (
        NamedPort("http", "TCP", 80),
        NamedPort("dns", "UDP", 53),
        NamedPort("mesh", "TCP", 9),
    )
    assert pod.created == "2026-01-01T00:00:00Z"
    assert pod.enforceable


def test_a_pod_that_has_nothing_yet() -> None:
    pod = decode_pod(raw({"metadata": {"name": "a", "namespace": "x"}}))
    assert (pod.node, pod.ips, pod.labels, pod.named_ports) == ("", (), {}, ())
    assert not pod.enforceable


def test_the_single_address_counts_where_there_is_no_list() -> None:
    pod = decode_pod(raw({"metadata": {"name": "a"}, "status": {"podIP": "10.0.0.1"}}))
    assert pod.ips == ("10.0.0.1",)


def test_a_thousand_pods_of_a_few_deployments_take_less_than_a_kilobyte_each() -> None:
    labels = {f"app.kubernetes.io/{word}": f"{word}-of-a-pod" for word in ("name", "part", "tier")}
    cluster = [
        raw(
            {
                **POD,
                "metadata": {
                    **POD["metadata"],
                    "name": f"web-7c9d8b6f5-{number}",
                    "uid": f"5b0a6f3e-0000-4000-8000-{number:012}",
                    "resourceVersion": str(1000 + number),
                    "labels": {**labels, "app": f"app-{number % 10}"},
                },
                "status": {"phase": "Running", "podIP": f"10.0.{number // 250}.{number % 250}"},
            }
        )
        for number in range(1000)
    ]
    store: Store[Pod] = Store()
    tracemalloc.start()
    try:
        for data in cluster:
            store.put(decode_pod(data))
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used / len(cluster) < 1024


def test_a_namespace_and_a_policy() -> None:
    found = decode_namespace(raw({"metadata": {"name": "x", "labels": None}}))
    assert (found.name, found.namespace, found.labels) == ("x", "", {})
    policy = decode_policy(raw({"metadata": {"name": "p", "namespace": "x"}, "spec": [1]}))
    assert policy.spec == [1]


@pytest.mark.parametrize("broken", [{"spec": {}}, {"metadata": 5}, {"metadata": None}, [], 5, None])
def test_what_is_no_object_with_metadata_cannot_be_decoded(broken: Any) -> None:
    with pytest.raises(msgspec.DecodeError, match=r"metadata|object"):
        decode_pod(raw(broken))


BAD_FIELDS: list[tuple[str, Any, dict[str, Any]]] = [
    # where, what stands there, and what it comes to besides a fault
    ("metadata.labels", ["app=web"], {"labels": {}}),
    ("metadata.labels.app", 5, {"labels": {"app": "5"}}),
    ("metadata.labels.app", {"a": [True]}, {"labels": {"app": '{"a":[true]}'}}),
    ("metadata.resourceVersion", 7, {"resource_version": "7"}),
    ("metadata.creationTimestamp", 7, {"created": "7"}),
    ("spec", "none", {"node": "", "named_ports": ()}),
    ("spec.hostNetwork", "true", {"host_network": False}),
    ("spec.nodeName", 12, {"node": "12"}),
    ("spec.containers", {}, {"named_ports": (NamedPort("mesh", "TCP", 9),)}),
    ("spec.containers[0]", "c", {"named_ports": (NamedPort("mesh", "TCP", 9),)}),
    (
        "spec.containers[0].ports[0].containerPort",
        "80",
        {"named_ports": (NamedPort("dns", "UDP", 53), NamedPort("mesh", "TCP", 9))},
    ),
    ("spec.containers[0].ports[0].containerPort", True, {}),
    ("spec.containers[0].ports[1].name", 81, {}),
    ("status", [], {"ips": (), "phase": ""}),
    ("status.phase", {}, {"phase": "{}"}),
    ("status.podIPs", "10.0.0.1", {"ips": ("10.0.0.1",)}),
    ("status.podIPs[0]", "10.0.0.1", {"ips": ("fd00::1",)}),
    ("status.podIPs[0].ip", 10, {"ips": ("10", "fd00::1")}),
]


@pytest.mark.parametrize(("path", "value", "comes_to"), BAD_FIELDS, ids=str)
def test_a_bad_field_of_a_pod_is_named_and_costs_no_other(
    path: str, value: Any, comes_to: dict[str, Any]
) -> None:
    pod, good = decode_pod(raw(put(POD, path, value))), decode_pod(raw(POD))
    assert [fault.field.startswith(path) for fault in pod.faults] == [True]
    for name, expected in comes_to.items():
        assert getattr(pod, name) == expected
    same = {"name", "namespace", "uid", "labels", "node", "host_network", "ips"} - comes_to.keys()
    if path != "spec" and path != "status":
        for name in same:
            assert getattr(pod, name) == getattr(good, name)


@pytest.mark.parametrize(
    "path",
    [
        *("metadata.namespace", "metadata.uid", "metadata.labels", "metadata.labels.app"),
        *("spec", "spec.containers", "spec.containers[0]", "spec.containers[0].ports[1]"),
        *("status", "status.podIPs", "status.podIPs[1]", "status.podIPs[1].ip", "status.phase"),
    ],
)
def test_null_is_as_good_as_absent(path: str) -> None:
    assert decode_pod(raw(put(POD, path, None))).faults == ()


def test_namespaces_and_policies_with_a_bad_field_count_too() -> None:
    meta = {"metadata": {"name": "p", "namespace": "x", "labels": 5}}
    namespace, policy = decode_namespace(raw(meta)), decode_policy(raw({**meta, "spec": [1]}))
    assert (namespace.name, namespace.labels, policy.spec) == ("p", {}, [1])
    for faulty in (namespace, policy):
        assert [fault.field for fault in faulty.faults] == ["metadata.labels"]


def put(obj: Any, path: str, value: Any) -> Any:
    """The object with another value at a path such as ``spec.containers[0].name``."""
    changed = copy.deepcopy(obj)
    *way, last = [
        int(part) if part.isdecimal() else part for part in re.findall(r"[^.\[\]]+", path)
    ]
    inner = changed
    for step in way:
        inner = inner[step]
    inner[last] = value
    return changed

"""Decoding the API server's JSON, whatever else it holds."""

from __future__ import annotations

import json
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


@pytest.mark.parametrize(
    "broken",
    [
        {"spec": {}},
        {"metadata": {"name": "a", "labels": {"a": 1}}},
        {"metadata": {"name": "a"}, "spec": {"containers": [{"ports": [{"containerPort": "80"}]}]}},
        {"metadata": {"name": "a"}, "status": {"podIPs": "10.0.0.1"}},
    ],
)
def test_a_pod_that_cannot_be_decoded_says_where(broken: Any) -> None:
    with pytest.raises(msgspec.DecodeError, match=r"metadata|\$\."):
        decode_pod(raw(broken))

"""A real kube-apiserver with pods in it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reconciler.client import Resource, load
from rig.pods import namespaces, pod
from tests.envtest.processes import real_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PODS = Resource("", "v1", "pods", "Pod")


@contextmanager
def server_with_pods(binaries: Path, folder: Path, pods: int) -> Iterator[tuple[Path, float]]:
    """Start one; its kubeconfig, and the bytes of JSON of a pod on average."""
    with real_server(binaries, folder) as server:
        kubeconfig = server.kubeconfig()
        client = load(str(kubeconfig))

        def create(number: int) -> None:
            obj = pod(number)
            path = PODS.path(obj["metadata"]["namespace"])
            created = json.loads(client.request("POST", path, body=json.dumps(obj).encode()))
            created["status"] = obj["status"]
            status = f"{path}/{obj['metadata']['name']}/status"
            client.request("PUT", status, body=json.dumps(created).encode())

        for name in namespaces(pods):
            body = json.dumps({"metadata": {"name": name}}).encode()
            client.request("POST", "/api/v1/namespaces", body=body)
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(create, range(pods)):
                pass
        page = client.list(PODS, None, {"limit": "500"})
        yield kubeconfig, len(page) / 500

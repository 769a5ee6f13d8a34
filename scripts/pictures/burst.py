"""What the pictures are taken of: one node of a lab, with pods and policies that come in bursts."""

from __future__ import annotations

import http.client
import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from npc.lab import netns
from npc.lab.agents import Enforcement
from npc.lab.cluster import Cluster, cluster
from npc.lab.runs import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

NODE = "node-1"
NAMESPACE = "shop"
APPS = 10


@contextmanager
def node() -> Iterator[Cluster]:
    """A cluster of one node, whose agent runs, with an empty namespace."""
    with Run() as run, cluster(run, [NODE], enforcement=Enforcement(mode="nft")) as lab:
        lab.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        yield lab


def listen(lab: Cluster, port: int) -> socket.socket:
    """Listen on the node's own loopback."""
    return netns.inside(
        lab.topology.nodes[NODE].namespace, lambda: socket.create_server(("127.0.0.1", port))
    )


def restart(lab: Cluster, **environment: str) -> None:
    """Start the agent anew with this in its environment, and wait until it enforces."""
    agent = lab.agents[NODE]
    agent.stop()
    agent.environment |= environment
    agent.start()
    lab.settle()


def metrics_page(lab: Cluster) -> str:
    """All metrics of the node's agent, as Prometheus reads them."""

    def ask() -> str:
        with closing(http.client.HTTPConnection("127.0.0.1", 20245, timeout=5)) as connection:
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()

    return netns.inside(lab.topology.nodes[NODE].namespace, ask)


def pod(number: int) -> dict[str, Any]:
    """A pod that has an address, which is all that the agent looks at."""
    address = f"10.244.9.{number + 1}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": NAMESPACE,
            "name": f"pod-{number}",
            "labels": {"app": f"app-{number % APPS}"},
        },
        "spec": {"nodeName": NODE, "containers": [{"name": "main", "image": "lab"}]},
        "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]},
    }


def policy(number: int) -> dict[str, Any]:
    """Lets the next app alone reach this one."""
    peer = {"podSelector": {"matchLabels": {"app": f"app-{(number + 1) % APPS}"}}}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": NAMESPACE, "name": f"to-app-{number}"},
        "spec": {
            "podSelector": {"matchLabels": {"app": f"app-{number}"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [peer], "ports": [{"port": 80}]}],
        },
    }


def create(lab: Cluster, *manifests: dict[str, Any]) -> None:
    """Write objects to the API, as they are."""
    for manifest in manifests:
        lab.api.create(manifest, validate=False)

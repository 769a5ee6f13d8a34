"""The lab's kubelet and scheduler: makes true what the API says of pods.

A pod that exists gets a node, a namespace with addresses, and servers; then its status says that it
runs. A pod that is gone, or was made anew under the same name, loses what the old one had. Every
call looks at the state as it is, so calls may be repeated and events may be missed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import itertools
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npc.lab.netns import LabError
from reconciler.client import Resource, load
from reconciler.controller import Controller
from reconciler.handler import enqueue_object
from reconciler.informer import Informer
from reconciler.meta import Request, Unstructured
from reconciler.source import Kind
from reconciler.stop import Stop
from reconciler.testing import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from npc.lab.topology import Host, Topology
    from npc.lab.traffic import Traffic
    from npc.ruleset import Protocol
    from reconciler.testing import ApiServer

_PODS = Resource("", "v1", "pods", "Pod")
_FIRST_ADDRESS = 10
_NOT_FOUND = 404


@dataclass(frozen=True)
class RunningPod:
    """A pod that was started: where it is reached, and which object it was started for."""

    uid: str
    node: str
    host: Host
    host_network: bool


class Kubelet:
    """Of all nodes at once. Not for two threads at a time."""

    def __init__(self, api: ApiServer, topology: Topology, traffic: Traffic) -> None:
        self._api = api
        self._topology = topology
        self._traffic = traffic
        self._pods: dict[tuple[str, str], RunningPod] = {}
        self._turn = itertools.cycle(topology.nodes)
        self.ports: frozenset[tuple[int, Protocol]] = frozenset()
        """What every pod listens on."""

    @property
    def pods(self) -> dict[tuple[str, str], RunningPod]:
        """All that run, by namespace and name."""
        return dict(sorted(self._pods.items()))

    def host(self, namespace: str, name: str) -> Host | None:
        """Where a pod is reached; ``None`` if it does not run."""
        pod = self._pods.get((namespace, name))
        return pod.host if pod is not None else None

    def sync(self, namespace: str, name: str) -> None:
        """Make one pod be as the API says.

        :raises LabError: if it asks for a node or an address that cannot be
        """
        pod = self._read(namespace, name)
        key = (namespace, name)
        running = self._pods.get(key)
        if running is not None and (pod is None or pod["metadata"]["uid"] != running.uid):
            del self._pods[key]
            self._stop(running)
            running = None
        if pod is not None and running is None:
            self._pods[key] = self._start(pod)

    def serve(self, ports: Iterable[tuple[int, Protocol]]) -> None:
        """Let every pod listen on these ports, those that run and those that start later."""
        self.ports = frozenset(ports)
        for pod in self._pods.values():
            self._traffic.serve(pod.host, self.ports)

    @contextlib.contextmanager
    def following(self, kubeconfig: Path) -> Iterator[None]:
        """Within the block, keep up with pods that others make and delete, as kubelets do."""
        pods = Informer(load(str(kubeconfig)), _PODS, Unstructured.decode)

        def reconcile(key: Request) -> None:
            self.sync(key.namespace, key.name)

        controller = Controller("kubelet", reconcile)
        controller.watch(Kind(pods, enqueue_object))
        stop = Stop()
        threads = [threading.Thread(target=part.run, args=(stop,)) for part in (pods, controller)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            for thread in threads:
                thread.join()

    def _read(self, namespace: str, name: str) -> dict[str, Any] | None:
        try:
            return self._api.get("pods", name, namespace)
        except ApiError as error:
            if error.code == _NOT_FOUND:
                return None
            raise

    def _start(self, pod: dict[str, Any]) -> RunningPod:
        meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
        namespace, name = meta["namespace"], meta["name"]
        node = spec.get("nodeName") or next(self._turn)
        where = self._topology.nodes.get(node)
        if where is None:
            raise LabError(f"pod {namespace}/{name} wants the node {node}, which does not exist")
        host_network = bool(spec.get("hostNetwork"))
        if host_network:
            host = where
        else:
            wanted = self._topology.of_families(e["ip"] for e in status.get("podIPs") or ())
            addresses = self._checked(node, wanted) if wanted else self._allot(node)
            host = self._topology.add_pod(namespace, name, node, addresses)
        self._traffic.serve(host, self.ports)
        if not spec.get("nodeName"):
            # Only a scheduler may do this, which the API cannot tell us apart from by itself.
            bound = {"spec": {"nodeName": node}}
            self._api.patch("pods", name, bound, namespace, validate=False)
        self._api.patch("pods", name, {"status": _running(pod, where, host)}, namespace)
        return RunningPod(meta["uid"], node, host, host_network)

    def _stop(self, pod: RunningPod) -> None:
        if not pod.host_network:
            self._traffic.stop_serving(pod.host)
            self._topology.remove(pod.host)

    def _checked(self, node: str, addresses: tuple[str, ...]) -> tuple[str, ...]:
        networks = self._topology.pod_networks(node)
        for address in addresses:
            if not any(ipaddress.ip_address(address) in network for network in networks):
                ranges = " and ".join(map(str, networks))
                raise LabError(f"{address} is not among the pods of {node}, which are in {ranges}")
        return addresses

    def _allot(self, node: str) -> tuple[str, ...]:
        taken = {address for pod in self._pods.values() for address in pod.host.addresses}
        found = []
        for network in self._topology.pod_networks(node):
            candidates = (str(network[n]) for n in range(_FIRST_ADDRESS, 255))
            address = next((a for a in candidates if a not in taken), None)
            if address is None:
                raise LabError(f"{node} has no free address in {network}")
            found.append(address)
        return tuple(found)


def _running(pod: dict[str, Any], node: Host, host: Host) -> dict[str, Any]:
    """The status of a started pod: it runs, unless its object says that it has ended."""
    phase = pod["status"].get("phase")
    return {
        "phase": phase if phase in {"Succeeded", "Failed"} else "Running",
        "hostIP": node.addresses[0],
        "hostIPs": [{"ip": address} for address in node.addresses],
        "podIP": host.addresses[0],
        "podIPs": [{"ip": address} for address in host.addresses],
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "restartCount": 0,
                "state": {"running": {}},
            }
            for container in pod["spec"]["containers"]
        ],
    }

"""A cluster out of namespaces: control plane, kubelets and the real agents.

The control plane is the in-memory API server, which the agents reach over the lab's own network. A
change through this class is a write to that server, followed by what a kubelet would do for it;
``settle`` waits until every agent says that all writes are in force.
"""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from npc.lab import netns, services
from npc.lab.agents import Agent, AgentError, Enforcement
from npc.lab.kubelet import Kubelet
from npc.lab.netns import LabError
from npc.lab.topology import Host, Topology
from npc.lab.traffic import Traffic
from npc.ruleset import Family
from reconciler.testing import ApiError, ApiServer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npc.lab.runs import Run
    from npc.lab.services import Service
    from npc.ruleset import Protocol

Manifest = dict[str, Any]

SETTLE_SECONDS = 30.0
"""How long agents may take to enforce what was written, on a machine however busy."""

_DEFAULT = Enforcement()
_POLL = 0.01
_API_PORT = 6443
_PLURALS = {"Pod": "pods", "Namespace": "namespaces", "NetworkPolicy": "networkpolicies"}
_VERSIONS = {"Pod": "v1", "Namespace": "v1", "NetworkPolicy": "networking.k8s.io/v1"}
_SYSTEM_NAMESPACES = {"default", "kube-node-lease", "kube-public", "kube-system"}


class Cluster:
    """Nodes that stay, and namespaces, pods and policies that come and go."""

    def __init__(self, api: ApiServer, topology: Topology, traffic: Traffic) -> None:
        self.api = api
        self.topology = topology
        self.traffic = traffic
        self.kubelet = Kubelet(api, topology, traffic)
        self.agents: dict[str, Agent] = {}

    # -- objects -------------------------------------------------------------------------------

    def apply(self, manifest: Manifest) -> None:
        """Create or replace a pod, a namespace or a policy.

        A pod is made anew, as pods cannot be replaced, and started, unless its manifest says that
        it is ``Pending``.

        :raises LabError: if the API refuses it, or it cannot be started
        """
        kind, meta = manifest["kind"], manifest["metadata"]
        manifest = {"apiVersion": _VERSIONS[kind], **manifest}
        namespace, name = meta.get("namespace", "default"), meta["name"]
        waiting = (manifest.get("status") or {}).get("phase") == "Pending"
        with _refusals(f"apply {kind} {_full_name(namespace, name, kind)}"):
            if kind == "Pod":
                self._forget_pod(namespace, name)
                manifest = _complete_pod(manifest)
            self.api.apply(manifest)
        if kind == "Pod" and not waiting:
            self.kubelet.sync(namespace, name)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object; a namespace goes with all that is in it.

        :raises LabError: if there is no such object
        """
        with _refusals(f"delete {kind} {_full_name(namespace, name, kind)}"):
            self.api.delete(_PLURALS[kind], name, namespace)
        for pod in self.kubelet.pods:
            self.kubelet.sync(*pod)

    def patch(self, kind: str, namespace: str, name: str, merge: Manifest) -> None:
        """Apply a JSON merge patch, to the status too.

        :raises LabError: if there is no such object, or the API refuses the result
        """
        with _refusals(f"patch {kind} {_full_name(namespace, name, kind)}"):
            self.api.patch(_PLURALS[kind], name, merge, namespace)

    def reset(self) -> None:
        """Delete every policy, pod, namespace and outside host, and wait until that is in force."""
        for kind in ("NetworkPolicy", "Pod", "Namespace"):
            for found in self.api.list(_PLURALS[kind]):
                meta = found["metadata"]
                if kind != "Namespace" or meta["name"] not in _SYSTEM_NAMESPACES:
                    self.api.delete(_PLURALS[kind], meta["name"], meta.get("namespace", ""))
        for pod in self.kubelet.pods:
            self.kubelet.sync(*pod)
        self.kubelet.ports = frozenset()
        self.set_services([])
        for host in list(self.topology.outside.values()):
            self.traffic.stop_serving(host)
            self.topology.remove(host)
        for node in self.topology.nodes.values():
            self.traffic.stop_serving(node)
        self.settle()

    def _forget_pod(self, namespace: str, name: str) -> None:
        if any(p["metadata"]["name"] == name for p in self.api.list("pods", namespace)):
            self.api.delete("pods", name, namespace)
            self.kubelet.sync(namespace, name)

    # -- control plane and agents --------------------------------------------------------------

    def start_control_plane(self) -> None:
        """Serve the API: on the machine's loopback, for us, and in the fabric, for the agents."""
        self.api.start()
        self.api.serve(_listen(self.topology.fabric, self.topology.fabric_addresses[0]))

    def stop_control_plane(self) -> None:
        """Let nobody reach the API any more; its objects stay."""
        self.api.stop()

    def settle(self) -> float:
        """Wait until every agent enforces all that was written; the seconds that took.

        :raises AgentError: if one does not get there, with the end of its log
        """
        started = time.monotonic()
        version = self.api.resource_version
        waiting = list(self.agents.values())
        while True:
            # Kinds that nothing was written of learn by a bookmark that they are up to date.
            self.api.send_bookmarks()
            waiting = [agent for agent in waiting if not _enforces(agent, version)]
            elapsed = time.monotonic() - started
            if not waiting:
                return elapsed
            if elapsed > SETTLE_SECONDS:
                raise _late(waiting[0], version)
            time.sleep(_POLL)

    # -- hosts ---------------------------------------------------------------------------------

    def serve(self, ports: Iterable[tuple[int, Protocol]]) -> None:
        """Answer on these ports everywhere, also in pods and hosts that come later."""
        self.kubelet.serve(ports)
        for host in [*self.topology.outside.values(), *self.topology.nodes.values()]:
            self.traffic.serve(host, self.kubelet.ports)

    def add_outside(self, name: str, addresses: tuple[str, ...], mtu: int = 1500) -> None:
        """Add a host outside the cluster, whose cable carries packets of at most ``mtu`` bytes."""
        self.traffic.serve(self.topology.add_outside(name, addresses, mtu), self.kubelet.ports)

    def set_services(self, wanted: Iterable[Service]) -> None:
        """Let every node lead to these services, and to no others."""
        found = [(service, self.host(service.target)) for service in wanted]
        services.write(self.topology, found)

    def host(self, reference: str) -> Host:
        """The host that ``NAMESPACE/POD``, ``node/NAME`` or ``outside/NAME`` names.

        :raises LabError: if there is none
        """
        space, _, name = reference.partition("/")
        found = {"node": self.topology.nodes, "outside": self.topology.outside}.get(space, {})
        host = found.get(name) or self.kubelet.host(space, name)
        if host is None:
            raise LabError(f"there is no {reference}")
        return host


def _enforces(agent: Agent, version: int) -> bool:
    state = agent.get("/debug/state")
    return state is not None and all(int(v or 0) >= version for v in _applied(state).values())


def _applied(state: Manifest) -> dict[str, str]:
    applied = state["applied"]
    return {plural: applied.get(plural, "0") for plural in _PLURALS.values()}


def _late(agent: Agent, version: int) -> AgentError:
    state = agent.get("/debug/state")
    said = "answers nothing" if state is None else f"says {state}"
    return agent.failure(
        f"does not enforce version {version} after {SETTLE_SECONDS:g} s and {said}"
    )


@contextmanager
def cluster(
    run: Run,
    nodes: Sequence[str],
    *,
    enforcement: Enforcement | None = _DEFAULT,
    families: Sequence[Family] = (Family.IPV4,),
    bridged: bool = False,
    options: Sequence[str] = (),
) -> Iterator[Cluster]:
    """Make a cluster whose agents are in force; at the end it is gone.

    Without ``enforcement`` it has no agents. ``options`` are more of ``npc run``.

    The calling thread must last as long: the agents are killed when it ends.

    :raises UnusableMachineError: if this machine lacks something
    """
    with ExitStack() as stack:
        topology = Topology(run.prefix, tuple(families), bridged)
        stack.callback(topology.destroy)
        topology.build(list(nodes))
        traffic = stack.enter_context(Traffic())
        api = ApiServer()
        stack.callback(api.stop)
        config = run.directory / "agent-kubeconfig"
        config.write_text(api.kubeconfig(_url(topology.fabric_addresses[0])))
        made = Cluster(api, topology, traffic)
        made.start_control_plane()
        stack.callback(_stop, made.agents)
        for name, node in topology.nodes.items():
            api.create(_node_manifest(name, node, topology))
            if enforcement is not None:
                agent = Agent(name, node.namespace, config, enforcement, families, run.directory)
                agent.options += options
                made.agents[name] = agent
                agent.start()
        made.settle()
        yield made


def _stop(agents: dict[str, Agent]) -> None:
    for agent in agents.values():
        agent.ask_to_stop()
    for agent in agents.values():
        agent.stop()


def _listen(namespace: str, address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return netns.inside(
        namespace,
        lambda: socket.create_server((address, _API_PORT), family=family, backlog=128),
    )


def _url(address: str) -> str:
    return f"http://[{address}]:{_API_PORT}" if ":" in address else f"http://{address}:{_API_PORT}"


def _node_manifest(name: str, node: Host, topology: Topology) -> Manifest:
    blocks = [str(network) for network in topology.pod_networks(name)]
    addresses = [{"type": "InternalIP", "address": address} for address in node.addresses]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "spec": {"podCIDR": blocks[0], "podCIDRs": blocks},
        "status": {"addresses": addresses, "conditions": [{"type": "Ready", "status": "True"}]},
    }


def _complete_pod(manifest: Manifest) -> Manifest:
    """What the API demands of a pod and a scenario need not spell out: names and images."""
    spec = dict(manifest.get("spec") or {})
    spec["containers"] = [
        {"name": f"c{number}", "image": "lab", **container}
        for number, container in enumerate(spec.get("containers") or [{}])
    ]
    return {**manifest, "spec": spec}


@contextmanager
def _refusals(what: str) -> Iterator[None]:
    try:
        yield
    except ApiError as error:
        raise LabError(f"cannot {what}: {error}") from error


def _full_name(namespace: str, name: str, kind: str) -> str:
    return name if kind == "Namespace" else f"{namespace}/{name}"

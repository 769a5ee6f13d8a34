"""Scenarios: a cluster, and steps that change it and say who can reach whom after.

The format is told in ``docs/lab.md``. Everything that can be judged without a cluster is judged
here, so that a mistake costs no packets.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npc.lab.fields import Fields
from npc.lab.located import LocatedDict, ScenarioError, load_all
from npc.lab.services import Service
from npc.lab.traffic import ICMP, SMALL, Wire
from npc.ruleset import Family, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

KINDS = ("NetworkPolicy", "Pod", "Namespace")

NETWORKS = ("routed", "bridged")
"""How pods are connected to their node."""

_CLUSTER_FIELDS = {"nodes", "network", "namespaces", "pods", "services", "outside"}
_SERVICE_FIELDS = {"name", "ip", "ips", "port", "protocol", "target", "targetPort", "nodePort"}
_SERVICE_FIELDS |= {"externalTrafficPolicy"}
_POD_FIELDS = {"namespace", "name", "node", "labels", "ports", "ips", "hostNetwork"}
_STEP_FIELDS = {"name", "patch", "apply", "delete", "probes"}
_PROBE_FIELDS = {"from", "to", "port", "protocol", "size", "hold", "expect"}
_HELD_FIELDS = {"over", "expect"}
_REFERENCE = {"kind", "namespace", "name"}
# What may stand before the slash instead of a namespace.
_SPECIAL = {"ip", "node", "outside", "service"}


@dataclass(frozen=True)
class Reference:
    """An object to change or delete; ``namespace`` is empty for a namespace."""

    kind: str
    namespace: str
    name: str
    line: int


@dataclass(frozen=True)
class Patch:
    """A JSON merge patch of an object."""

    target: Reference
    merge: dict[str, Any]


class Expect(enum.Enum):
    """What should become of a probe; the last two are ways to deny."""

    ALLOW = "allow"
    DENY = "deny"
    REJECT = "reject"
    DROP = "drop"


@dataclass(frozen=True)
class Expectation:
    """A probe and what should become of it.

    ``port`` is ``None`` for ICMP alone. ``hold`` names the connection that is to stay open; with
    ``over`` it goes over the one that an earlier probe of that name left.
    """

    source: str
    target: str
    port: int | None
    protocol: Wire
    expect: Expect
    line: int
    size: int = SMALL
    hold: str | None = None
    over: str | None = None

    def __str__(self) -> str:
        port = "" if self.port is None else f"/{self.port}"
        over = "" if self.over is None else f" over {self.over}"
        return f"{self.source} -> {self.target} {self.protocol.value}{port}{over}"


@dataclass(frozen=True)
class OutsideHost:
    """A host outside the cluster; the cable to it carries packets of at most ``mtu`` bytes."""

    name: str
    addresses: tuple[str, ...]
    mtu: int


@dataclass(frozen=True)
class Step:
    """Changes, in the order of the fields, then probes."""

    name: str
    line: int
    patch: tuple[Patch, ...]
    apply: tuple[LocatedDict, ...]
    delete: tuple[Reference, ...]
    probes: tuple[Expectation, ...]


@dataclass(frozen=True)
class Scenario:
    """One document. ``objects`` are its namespaces and pods as Kubernetes manifests."""

    path: str
    line: int
    name: str
    nodes: tuple[str, ...]
    objects: tuple[LocatedDict, ...]
    outside: tuple[OutsideHost, ...]
    services: tuple[Service, ...]
    network: str
    families: tuple[Family, ...]
    agent: tuple[str, ...]
    steps: tuple[Step, ...]

    @property
    def ports(self) -> set[tuple[int, Protocol]]:
        """Every port that some probe aims at, or a service leads to."""
        aimed = {
            (probe.port, probe.protocol)
            for step in self.steps
            for probe in step.probes
            if probe.port is not None and isinstance(probe.protocol, Protocol)
        }
        return aimed | {(service.target_port, service.protocol) for service in self.services}


def read(path: str, families: tuple[Family, ...] = (Family.IPV4,)) -> list[Scenario]:
    """Read every scenario of a file. ``families`` are for those that name none.

    :raises ScenarioError: naming file and line
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ScenarioError(f"{path}: {reason}") from error
    return [_Reader(path, document, families).scenario() for document in load_all(text, path)]


class _Reader(Fields):
    def __init__(self, path: str, document: Any, families: tuple[Family, ...]) -> None:
        super().__init__(path)
        self._document = document
        self._default_families = families
        self._nodes: tuple[str, ...] = ()
        self._outside: dict[str, OutsideHost] = {}
        self._services: dict[str, Service] = {}
        self._held: dict[str, Expectation] = {}
        self._running: set[str] = set()  # pods, as far as the steps have been read

    def scenario(self) -> Scenario:
        known = {"name", "cluster", "families", "agent", "steps"}
        document = self.mapping(self._document, "a scenario", known, 1)
        cluster = self.mapping(
            document.get("cluster", {}), "cluster", _CLUSTER_FIELDS, document.line
        )
        self._nodes = self.names(cluster, "nodes") or ("node-1",)
        namespaces = [self._namespace(namespace) for namespace in self._namespaces(cluster)]
        pods = [self._pod(pod) for pod in self.mappings(cluster, "pods", "a pod", _POD_FIELDS)]
        declared = {namespace["metadata"]["name"] for namespace in namespaces}
        for pod in pods:
            if pod["metadata"]["namespace"] not in declared:
                self.fail(pod.line, f"there is no namespace {pod['metadata']['namespace']!r}")
        self._outside = {host.name: host for host in self._outside_hosts(cluster)}
        self._services = {service.name: service for service in self._read_services(cluster)}
        return Scenario(
            path=self.path,
            line=document.line,
            name=self.text(document, "name"),
            nodes=self._nodes,
            objects=(*namespaces, *pods),
            outside=tuple(self._outside.values()),
            services=tuple(self._services.values()),
            network=self.choice(cluster, "network", NETWORKS),
            families=self._families(document),
            agent=self.names(document, "agent"),
            steps=tuple(
                self._step(step, number)
                for number, step in enumerate(
                    self.mappings(document, "steps", "a step", _STEP_FIELDS), 1
                )
            ),
        )

    def _families(self, document: LocatedDict) -> tuple[Family, ...]:
        names = {"ipv4": Family.IPV4, "ipv6": Family.IPV6}
        found = self.names(document, "families")
        for name in found:
            if name not in names:
                self.fail(document.line, f"families: {name!r} is neither ipv4 nor ipv6")
        return tuple(family for name, family in names.items() if name in found) or (
            self._default_families
        )

    # -- cluster -------------------------------------------------------------------------------

    def _namespaces(self, cluster: LocatedDict) -> list[LocatedDict]:
        return self.mappings(cluster, "namespaces", "a namespace", {"name", "labels"})

    def _namespace(self, item: LocatedDict) -> LocatedDict:
        metadata = {"name": self.text(item, "name"), "labels": self.labels(item)}
        return LocatedDict.at(item.line, kind="Namespace", metadata=metadata)

    def _pod(self, item: LocatedDict) -> LocatedDict:
        node = item.get("node", self._nodes[0])
        if node not in self._nodes:
            self.fail(item.line, f"node: there is no node {node!r}")
        namespace, name = self.text(item, "namespace"), self.text(item, "name")
        pod = LocatedDict.at(
            item.line,
            kind="Pod",
            metadata={"namespace": namespace, "name": name, "labels": self.labels(item)},
            spec={"nodeName": node, "containers": [{"ports": self._container_ports(item)}]},
        )
        if item.get("hostNetwork"):
            pod["spec"]["hostNetwork"] = True
        ips = self.addresses(item)
        if ips:
            pod["status"] = {"podIPs": [{"ip": address} for address in ips]}
        self._running.add(f"{namespace}/{name}")
        return pod

    def _container_ports(self, pod: LocatedDict) -> list[dict[str, Any]]:
        found = []
        for port in self.mappings(pod, "ports", "a port", {"name", "port", "protocol"}):
            protocol = self.protocol(port).value
            made: dict[str, Any] = {"containerPort": self.port(port), "protocol": protocol}
            if "name" in port:
                made["name"] = self.text(port, "name")
            found.append(made)
        return found

    def _outside_hosts(self, cluster: LocatedDict) -> Iterator[OutsideHost]:
        fields = {"name", "ip", "ips", "mtu"}
        for host in self.mappings(cluster, "outside", "an outside host", fields):
            addresses = self.addresses(host)
            if not addresses:
                self.fail(host.line, "an outside host needs an ip")
            mtu = self.number(host, "mtu", 1280, 1500) if "mtu" in host else 1500
            yield OutsideHost(self.text(host, "name"), addresses, mtu)

    def _read_services(self, cluster: LocatedDict) -> Iterator[Service]:
        for item in self.mappings(cluster, "services", "a service", _SERVICE_FIELDS):
            target = self.text(item, "target")
            if target not in self._running:
                self.fail(item.line, f"target: there is no pod {target!r}")
            addresses = self.addresses(item)
            if not addresses:
                self.fail(item.line, "a service needs an ip")
            policy = self.choice(item, "externalTrafficPolicy", ("Cluster", "Local"))
            port = self.port(item)
            yield Service(
                name=self.text(item, "name"),
                addresses=addresses,
                port=port,
                protocol=self.protocol(item),
                target=target,
                target_port=self.port(item, "targetPort") if "targetPort" in item else port,
                node_port=self.port(item, "nodePort") if "nodePort" in item else None,
                local=policy == "Local",
                line=item.line,
            )

    # -- steps ---------------------------------------------------------------------------------

    def _step(self, step: LocatedDict, number: int) -> Step:
        return Step(
            name=str(step.get("name", f"step {number}")),
            line=step.line,
            patch=tuple(
                self._patch(item)
                for item in self.mappings(step, "patch", "a patch", {*_REFERENCE, "merge"})
            ),
            apply=tuple(
                self._manifest(item) for item in self.mappings(step, "apply", "an object", None)
            ),
            delete=tuple(
                self._delete(item)
                for item in self.mappings(step, "delete", "a reference", _REFERENCE)
            ),
            probes=tuple(
                self._probe(item) for item in self.mappings(step, "probes", "a probe", None)
            ),
        )

    def _manifest(self, item: LocatedDict) -> LocatedDict:
        kind = self._kind(item)
        parts = {field: item.get(field) or {} for field in ("metadata", "spec", "status")}
        for field, value in parts.items():
            self.mapping(value, field, None, item.line)
        name, namespace = parts["metadata"].get("name"), parts["metadata"].get("namespace")
        if not isinstance(name, str) or not name:
            self.fail(item.line, "an object needs metadata.name")
        self._check_scope(item.line, kind, namespace)
        if kind == "Pod":
            node = parts["spec"].get("nodeName", self._nodes[0])
            if node not in self._nodes:
                self.fail(item.line, f"spec.nodeName: there is no node {node!r}")
            if parts["status"].get("phase") != "Pending":
                self._running.add(f"{namespace}/{name}")
        return item

    def _patch(self, item: LocatedDict) -> Patch:
        merge = self.mapping(item.get("merge"), "merge", None, item.line)
        return Patch(self._reference(item), merge)

    def _delete(self, item: LocatedDict) -> Reference:
        gone = self._reference(item)
        if gone.kind == "Pod":
            self._running.discard(f"{gone.namespace}/{gone.name}")
        if gone.kind == "Namespace":
            self._running = {p for p in self._running if not p.startswith(f"{gone.name}/")}
        return gone

    def _reference(self, item: LocatedDict) -> Reference:
        kind = self._kind(item)
        self._check_scope(item.line, kind, item.get("namespace"))
        return Reference(kind, item.get("namespace", ""), self.text(item, "name"), item.line)

    def _check_scope(self, line: int, kind: str, namespace: Any) -> None:
        if (kind == "Namespace") != (namespace is None):
            self.fail(line, f"a {kind} needs {'no' if kind == 'Namespace' else 'a'} namespace")

    def _kind(self, item: LocatedDict) -> str:
        kind = item.get("kind")
        if kind not in KINDS:
            self.fail(item.line, f"kind: {kind!r} is none of {', '.join(KINDS)}")
        return str(kind)

    def _probe(self, probe: LocatedDict) -> Expectation:
        self.mapping(probe, "a probe", _HELD_FIELDS if "over" in probe else _PROBE_FIELDS, 0)
        try:
            expect = Expect(probe.get("expect"))
        except ValueError:
            words = ", ".join(word.value for word in Expect)
            self.fail(probe.line, f"expect: {probe.get('expect')!r} is none of {words}")
        if "over" in probe:
            return self._held_probe(probe, expect)
        icmp = probe.get("protocol") == ICMP.value
        if icmp and "port" in probe:
            self.fail(probe.line, "port: ICMP has none")
        found = Expectation(
            source=self._place(probe, "from"),
            target=self._place(probe, "to"),
            port=None if icmp else self.port(probe),
            protocol=ICMP if icmp else self.protocol(probe),
            expect=expect,
            line=probe.line,
            size=self.number(probe, "size", SMALL, 60_000) if "size" in probe else SMALL,
            hold=self.text(probe, "hold") if "hold" in probe else None,
        )
        if found.hold is not None:
            if found.protocol not in (Protocol.TCP, Protocol.UDP) or expect is not Expect.ALLOW:
                self.fail(probe.line, "hold: only an allowed probe by TCP or UDP can be held")
            self._held[found.hold] = found
        return found

    def _held_probe(self, probe: LocatedDict, expect: Expect) -> Expectation:
        held = self._held.get(self.text(probe, "over"))
        if held is None:
            self.fail(probe.line, f"over: no earlier probe holds {probe['over']!r}")
        return replace(held, expect=expect, line=probe.line, hold=None, over=held.hold)

    def _place(self, probe: LocatedDict, field: str) -> str:
        text = self.text(probe, field)
        space, slash, name = text.partition("/")
        if not slash or not name:
            self.fail(probe.line, f"{field}: {text!r} is not of the form NAMESPACE/POD")
        if space == "ip":
            if field == "from":
                self.fail(probe.line, "from: a probe cannot come from an address; name a host")
            self.address(probe, name)
        elif space == "node" and name not in self._nodes:
            self.fail(probe.line, f"{field}: there is no node {name!r}")
        elif space == "outside" and name not in self._outside:
            self.fail(probe.line, f"{field}: there is no outside host {name!r}")
        elif space == "service" and (field == "from" or name not in self._services):
            self.fail(probe.line, f"{field}: there is no service {name!r}")
        elif space not in _SPECIAL and text not in self._running:
            self.fail(probe.line, f"{field}: at this step no pod {text!r} runs")
        return text

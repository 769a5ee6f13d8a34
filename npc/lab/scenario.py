"""Scenarios: a cluster, and steps that change it and say who can reach whom after.

The format is told in ``docs/lab.md``. Everything that can be judged without a cluster is judged
here, so that a mistake costs no packets.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from npc.lab.located import LocatedDict, LocatedList, ScenarioError, load_all
from npc.lab.traffic import Verdict
from npc.ruleset import Family, Protocol

KINDS = ("NetworkPolicy", "Pod", "Namespace")

_POD_FIELDS = {"namespace", "name", "node", "labels", "ports", "ips", "hostNetwork"}
_STEP_FIELDS = {"name", "patch", "apply", "delete", "probes"}
_PROBE_FIELDS = {"from", "to", "port", "protocol", "expect"}
_REFERENCE = {"kind", "namespace", "name"}
_SPECIAL = {"ip", "node", "outside"}  # before the slash, where otherwise a namespace stands


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


@dataclass(frozen=True)
class Expectation:
    """A probe and what should become of it."""

    source: str
    target: str
    port: int
    protocol: Protocol
    expect: Verdict
    line: int


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
    outside: tuple[tuple[str, tuple[str, ...]], ...]
    families: tuple[Family, ...]
    steps: tuple[Step, ...]

    @property
    def ports(self) -> set[tuple[int, Protocol]]:
        """Every port that some probe aims at."""
        return {(p.port, p.protocol) for step in self.steps for p in step.probes}


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


class _Reader:
    def __init__(self, path: str, document: Any, families: tuple[Family, ...]) -> None:
        self._path = path
        self._document = document
        self._default_families = families
        self._nodes: tuple[str, ...] = ()
        self._outside: dict[str, tuple[str, ...]] = {}
        self._running: set[str] = set()  # pods, as far as the steps have been read

    def scenario(self) -> Scenario:
        known = {"name", "cluster", "families", "steps"}
        document = self._mapping(self._document, "a scenario", known, 1)
        cluster = self._mapping(
            document.get("cluster", {}),
            "cluster",
            {"nodes", "namespaces", "pods", "outside"},
            document.line,
        )
        self._nodes = self._names(cluster, "nodes") or ("node-1",)
        namespaces = [self._namespace(namespace) for namespace in self._namespaces(cluster)]
        pods = [self._pod(pod) for pod in self._mappings(cluster, "pods", "a pod", _POD_FIELDS)]
        declared = {namespace["metadata"]["name"] for namespace in namespaces}
        for pod in pods:
            if pod["metadata"]["namespace"] not in declared:
                self._fail(pod.line, f"there is no namespace {pod['metadata']['namespace']!r}")
        for host in self._mappings(cluster, "outside", "an outside host", {"name", "ip", "ips"}):
            texts = [host["ip"]] if "ip" in host else self._list(host, "ips")
            if not texts:
                self._fail(host.line, "an outside host needs an ip")
            self._outside[self._text(host, "name")] = tuple(self._address(host, t) for t in texts)
        return Scenario(
            path=self._path,
            line=document.line,
            name=self._text(document, "name"),
            nodes=self._nodes,
            objects=(*namespaces, *pods),
            outside=tuple(self._outside.items()),
            families=self._families(document),
            steps=tuple(
                self._step(step, number)
                for number, step in enumerate(
                    self._mappings(document, "steps", "a step", _STEP_FIELDS), 1
                )
            ),
        )

    def _families(self, document: LocatedDict) -> tuple[Family, ...]:
        names = {"ipv4": Family.IPV4, "ipv6": Family.IPV6}
        found = self._names(document, "families")
        for name in found:
            if name not in names:
                self._fail(document.line, f"families: {name!r} is neither ipv4 nor ipv6")
        return tuple(family for name, family in names.items() if name in found) or (
            self._default_families
        )

    # -- cluster -------------------------------------------------------------------------------

    def _namespaces(self, cluster: LocatedDict) -> list[LocatedDict]:
        return self._mappings(cluster, "namespaces", "a namespace", {"name", "labels"})

    def _namespace(self, item: LocatedDict) -> LocatedDict:
        metadata = {"name": self._text(item, "name"), "labels": self._labels(item)}
        return LocatedDict.at(item.line, kind="Namespace", metadata=metadata)

    def _pod(self, item: LocatedDict) -> LocatedDict:
        node = item.get("node", self._nodes[0])
        if node not in self._nodes:
            self._fail(item.line, f"node: there is no node {node!r}")
        namespace, name = self._text(item, "namespace"), self._text(item, "name")
        pod = LocatedDict.at(
            item.line,
            kind="Pod",
            metadata={"namespace": namespace, "name": name, "labels": self._labels(item)},
            spec={"nodeName": node, "containers": [{"ports": self._container_ports(item)}]},
        )
        if item.get("hostNetwork"):
            pod["spec"]["hostNetwork"] = True
        ips = [self._address(item, text) for text in self._list(item, "ips")]
        if ips:
            pod["status"] = {"podIPs": [{"ip": address} for address in ips]}
        self._running.add(f"{namespace}/{name}")
        return pod

    def _container_ports(self, pod: LocatedDict) -> list[dict[str, Any]]:
        found = []
        for port in self._mappings(pod, "ports", "a port", {"name", "port", "protocol"}):
            protocol = self._protocol(port).value
            made: dict[str, Any] = {"containerPort": self._port(port), "protocol": protocol}
            if "name" in port:
                made["name"] = self._text(port, "name")
            found.append(made)
        return found

    # -- steps ---------------------------------------------------------------------------------

    def _step(self, step: LocatedDict, number: int) -> Step:
        return Step(
            name=str(step.get("name", f"step {number}")),
            line=step.line,
            patch=tuple(
                self._patch(item)
                for item in self._mappings(step, "patch", "a patch", {*_REFERENCE, "merge"})
            ),
            apply=tuple(
                self._manifest(item) for item in self._mappings(step, "apply", "an object", None)
            ),
            delete=tuple(
                self._delete(item)
                for item in self._mappings(step, "delete", "a reference", _REFERENCE)
            ),
            probes=tuple(
                self._probe(item)
                for item in self._mappings(step, "probes", "a probe", _PROBE_FIELDS)
            ),
        )

    def _manifest(self, item: LocatedDict) -> LocatedDict:
        kind = self._kind(item)
        parts = {field: item.get(field) or {} for field in ("metadata", "spec", "status")}
        for field, value in parts.items():
            self._mapping(value, field, None, item.line)
        name, namespace = parts["metadata"].get("name"), parts["metadata"].get("namespace")
        if not isinstance(name, str) or not name:
            self._fail(item.line, "an object needs metadata.name")
        self._check_scope(item.line, kind, namespace)
        if kind == "Pod":
            node = parts["spec"].get("nodeName", self._nodes[0])
            if node not in self._nodes:
                self._fail(item.line, f"spec.nodeName: there is no node {node!r}")
            if parts["status"].get("phase") != "Pending":
                self._running.add(f"{namespace}/{name}")
        return item

    def _patch(self, item: LocatedDict) -> Patch:
        merge = self._mapping(item.get("merge"), "merge", None, item.line)
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
        return Reference(kind, item.get("namespace", ""), self._text(item, "name"), item.line)

    def _check_scope(self, line: int, kind: str, namespace: Any) -> None:
        if (kind == "Namespace") != (namespace is None):
            self._fail(line, f"a {kind} needs {'no' if kind == 'Namespace' else 'a'} namespace")

    def _kind(self, item: LocatedDict) -> str:
        kind = item.get("kind")
        if kind not in KINDS:
            self._fail(item.line, f"kind: {kind!r} is none of {', '.join(KINDS)}")
        return str(kind)

    def _probe(self, probe: LocatedDict) -> Expectation:
        expect = probe.get("expect")
        if expect not in ("allow", "deny"):
            self._fail(probe.line, f"expect: {expect!r} is neither allow nor deny")
        return Expectation(
            source=self._place(probe, "from"),
            target=self._place(probe, "to"),
            port=self._port(probe),
            protocol=self._protocol(probe),
            expect=Verdict(expect),
            line=probe.line,
        )

    def _place(self, probe: LocatedDict, field: str) -> str:
        text = self._text(probe, field)
        space, slash, name = text.partition("/")
        if not slash or not name:
            self._fail(probe.line, f"{field}: {text!r} is not of the form NAMESPACE/POD")
        if space == "ip":
            if field == "from":
                self._fail(probe.line, "from: a probe cannot come from an address; name a host")
            self._address(probe, name)
        elif space == "node" and name not in self._nodes:
            self._fail(probe.line, f"{field}: there is no node {name!r}")
        elif space == "outside" and name not in self._outside:
            self._fail(probe.line, f"{field}: there is no outside host {name!r}")
        elif space not in _SPECIAL and text not in self._running:
            self._fail(probe.line, f"{field}: at this step no pod {text!r} runs")
        return text

    # -- plain values --------------------------------------------------------------------------

    def _fail(self, line: int, message: str) -> NoReturn:
        raise ScenarioError(f"{self._path}:{line}: {message}")

    def _mapping(self, value: Any, what: str, known: set[str] | None, line: int) -> LocatedDict:
        if not isinstance(value, dict):
            self._fail(line, f"{what} must be a mapping, not {value!r}")
        found = value if isinstance(value, LocatedDict) else LocatedDict.at(line, **value)
        for key in found:
            if known is not None and key not in known:
                fields = ", ".join(sorted(known))
                self._fail(found.line, f"{what} has no field {key!r} (it has {fields})")
        return found

    def _list(self, mapping: LocatedDict, field: str) -> LocatedList:
        value = mapping.get(field)
        if value is None:
            return LocatedList()
        if not isinstance(value, LocatedList):
            self._fail(mapping.line, f"{field} must be a list, not {value!r}")
        return value

    def _mappings(
        self, mapping: LocatedDict, field: str, what: str, known: set[str] | None
    ) -> list[LocatedDict]:
        items = self._list(mapping, field)
        return [self._mapping(item, what, known, items.line) for item in items]

    def _names(self, mapping: LocatedDict, field: str) -> tuple[str, ...]:
        items = self._list(mapping, field)
        for item in items:
            if not isinstance(item, str) or not item:
                self._fail(items.line, f"{field}: {item!r} is not a name")
        return tuple(items)

    def _text(self, mapping: LocatedDict, field: str) -> str:
        value = mapping.get(field)
        if not isinstance(value, str) or not value:
            self._fail(mapping.line, f"{field} must be a text, not {value!r}")
        return value

    def _labels(self, mapping: LocatedDict) -> dict[str, str]:
        labels = mapping.get("labels", {})
        if not isinstance(labels, dict) or not all(isinstance(v, str) for v in labels.values()):
            self._fail(mapping.line, f"labels must be texts by name, not {labels!r}")
        return labels

    def _port(self, mapping: LocatedDict) -> int:
        port = mapping.get("port")
        if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
            self._fail(mapping.line, f"port: {port!r} is not a number from 1 to 65535")
        return port

    def _protocol(self, mapping: LocatedDict) -> Protocol:
        name = mapping.get("protocol", "TCP")
        try:
            return Protocol(name)
        except ValueError:
            self._fail(mapping.line, f"protocol: {name!r} is none of TCP, UDP, SCTP")

    def _address(self, mapping: LocatedDict, text: Any) -> str:
        try:
            return str(ipaddress.ip_address(text))
        except ValueError:
            self._fail(mapping.line, f"{text!r} is not an address")

"""The cluster's objects, slimmed to the fields that enforcement reads.

Decoding goes straight from the API server's JSON bytes into these; whatever is not named here is
skipped by the decoder and never allocated. Unknown fields are ignored, as the API does. What many
pods have in common, as the labels of a deployment's, they share; a table of limited size finds it.
None of them can be part of a cycle, so Python's garbage collector is told to leave them alone.

A policy's ``spec`` stays plain JSON, since a policy that we cannot understand must still isolate
the pods that it selects: ``npc.policy`` reads it field by field. Of an object that has a field of
the wrong type, the others count (``npc.lenient``); its ``faults`` say what is wrong with it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from npc.lenient import Fault, read

S = TypeVar("S", bound=msgspec.Struct)

_NO_LABELS: dict[str, str] = {}
_REMEMBERED = 2048


class NamedPort(msgspec.Struct, frozen=True, gc=False):
    """A container port that has a name."""

    name: str
    protocol: str
    number: int


class Pod(msgspec.Struct, frozen=True, gc=False):
    """A pod. ``ips`` are its addresses, the primary first, at most one of each family.

    ``created`` is when, as RFC 3339 text in UTC, so that it sorts by time.
    """

    namespace: str
    name: str
    uid: str
    resource_version: str
    labels: dict[str, str]
    node: str
    phase: str
    host_network: bool
    ips: tuple[str, ...]
    named_ports: tuple[NamedPort, ...]
    created: str = ""
    faults: tuple[Fault, ...] = ()

    @property
    def enforceable(self) -> bool:
        """Whether it has an address of its own that is in use.

        A finished pod's address may already be another pod's, a host-network pod's is its node's.
        """
        return bool(self.ips) and not self.host_network and self.phase not in _FINISHED


_FINISHED = frozenset({"Succeeded", "Failed"})


class Namespace(msgspec.Struct, frozen=True, gc=False):
    """A namespace; cluster-scoped, so its own ``namespace`` is empty."""

    name: str
    uid: str
    resource_version: str
    labels: dict[str, str]
    namespace: str = ""
    faults: tuple[Fault, ...] = ()


class NetworkPolicy(msgspec.Struct, frozen=True, gc=False):
    """A NetworkPolicy whose ``spec`` is JSON as it came."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    labels: dict[str, str]
    spec: Any
    faults: tuple[Fault, ...] = ()


class Node(msgspec.Struct, frozen=True):
    """A node. ``pod_cidrs`` are the blocks of its pods, the primary first, as text."""

    name: str
    pod_cidrs: tuple[str, ...]


class _Metadata(msgspec.Struct, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] | None = None


class _ContainerPort(msgspec.Struct, rename="camel"):
    container_port: int | None = None
    name: str | None = None
    protocol: str | None = None


class _Container(msgspec.Struct, rename="camel"):
    ports: list[_ContainerPort] | None = None
    restart_policy: str | None = None


class _PodSpec(msgspec.Struct, rename="camel"):
    node_name: str | None = None
    host_network: bool | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class _PodIP(msgspec.Struct):
    ip: str | None = None


class _PodStatus(msgspec.Struct):
    phase: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    pod_ips: list[_PodIP] | None = msgspec.field(default=None, name="podIPs")


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Namespace(msgspec.Struct):
    metadata: _Metadata


class _NetworkPolicy(msgspec.Struct):
    metadata: _Metadata
    spec: Any = None


class _NodeSpec(msgspec.Struct):
    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")
    pod_cidrs: list[str] | None = msgspec.field(default=None, name="podCIDRs")


class _Node(msgspec.Struct):
    metadata: _Metadata
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


_pod_decoder = msgspec.json.Decoder(_Pod)
_namespace_decoder = msgspec.json.Decoder(_Namespace)
_policy_decoder = msgspec.json.Decoder(_NetworkPolicy)
_node_decoder = msgspec.json.Decoder(_Node)


def _decode(
    decoder: msgspec.json.Decoder[S], raw: bytes | msgspec.Raw
) -> tuple[S, tuple[Fault, ...]]:
    try:
        return decoder.decode(raw), ()
    except msgspec.ValidationError:
        return read(raw, decoder)


# Each gives back its argument, or an equal one that was met before.


@lru_cache(_REMEMBERED)
def _text(value: str) -> str:
    return value


@lru_cache(_REMEMBERED)
def _labels(items: tuple[tuple[str, str], ...]) -> dict[str, str]:
    return dict(items)


@lru_cache(_REMEMBERED)
def _ports(ports: tuple[NamedPort, ...]) -> tuple[NamedPort, ...]:
    return ports


def decode_pod(raw: bytes | msgspec.Raw) -> Pod:
    """Decode one v1 Pod.

    :raises msgspec.DecodeError: if it is not JSON, no object, or has no metadata
    """
    pod, faults = _decode(_pod_decoder, raw)
    meta, spec, status = pod.metadata, pod.spec, pod.status
    listed = tuple(entry.ip for entry in status.pod_ips or () if entry.ip)
    return Pod(
        namespace=_text(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=_labels(tuple(meta.labels.items())) if meta.labels else _NO_LABELS,
        node=_text(spec.node_name or ""),
        phase=_text(status.phase or ""),
        host_network=bool(spec.host_network),
        ips=listed or ((status.pod_ip,) if status.pod_ip else ()),
        named_ports=_ports(_named_ports(spec)),
        created=meta.creation_timestamp or "",
        faults=faults,
    )


def _named_ports(spec: _PodSpec) -> tuple[NamedPort, ...]:
    """The named ports of all containers that stay: sidecars are init containers that restart."""
    sidecars = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    return tuple(
        NamedPort(port.name, port.protocol or "TCP", port.container_port)
        for container in [*(spec.containers or ()), *sidecars]
        for port in container.ports or ()
        if port.name and port.container_port is not None
    )


def decode_namespace(raw: bytes | msgspec.Raw) -> Namespace:
    """Decode one v1 Namespace.

    :raises msgspec.DecodeError: if it is not JSON, no object, or has no metadata
    """
    namespace, faults = _decode(_namespace_decoder, raw)
    meta = namespace.metadata
    return Namespace(
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=meta.labels or _NO_LABELS,
        faults=faults,
    )


def decode_policy(raw: bytes | msgspec.Raw) -> NetworkPolicy:
    """Decode one networking.k8s.io/v1 NetworkPolicy; its spec is not looked at yet.

    :raises msgspec.DecodeError: if it is not JSON, no object, or has no metadata
    """
    policy, faults = _decode(_policy_decoder, raw)
    meta = policy.metadata
    return NetworkPolicy(
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
        labels=meta.labels or _NO_LABELS,
        spec=policy.spec,
        faults=faults,
    )


def decode_node(raw: bytes | msgspec.Raw) -> Node:
    """Decode one v1 Node.

    :raises msgspec.DecodeError: if it is not JSON or a field that we read has the wrong type
    """
    node = _node_decoder.decode(raw)
    spec = node.spec
    return Node(
        name=node.metadata.name,
        pod_cidrs=tuple(spec.pod_cidrs or ((spec.pod_cidr,) if spec.pod_cidr else ())),
    )

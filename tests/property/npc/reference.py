"""What NetworkPolicy means, written straight from the API's definition and as slowly as it likes.

Works on plain JSON objects as the API server would give them, and shares no code with ``npc``: it
has its own selectors, its own reading of lists and its own arithmetic on addresses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True)
class Packet:
    """The first packet of a connection."""

    source: str
    destination: str
    protocol: str
    port: int


class Cluster:
    """Pods, namespaces and policies, and who may talk to whom as seen by one node."""

    def __init__(
        self,
        pods: list[Object],
        namespaces: list[Object],
        policies: list[Object],
        node: str,
        exempt: Sequence[str] = (),
        guarded: Sequence[str] = (),
    ) -> None:
        self._pods = [pod for pod in pods if _counts(pod)]
        self._namespaces = {ns["metadata"]["name"]: _labels(ns) for ns in namespaces}
        self._policies = policies
        self._node = node
        self._exempt = exempt
        self._guarded = guarded

    def allows(self, packet: Packet) -> bool:
        """Whether this node's agent must let the packet pass."""
        return self._side(packet, "Egress", packet.source, packet.destination) and self._side(
            packet, "Ingress", packet.destination, packet.source
        )

    def _side(self, packet: Packet, direction: str, own: str, peer: str) -> bool:
        """Whether the pod at ``own``, if it is one of this node's, allows its direction."""
        pods = [
            p for p in self._pods if own in _addresses(p) and p["spec"]["nodeName"] == self._node
        ]
        if _within(own, self._exempt) or _within(peer, self._exempt):
            return True
        if not pods:
            return not _within(own, self._guarded)
        [pod] = pods
        applying = [p for p in self._policies if self._applies(p, pod, direction)]
        if not applying or own == peer:
            return True
        return any(
            self._rule_allows(rule, policy, packet, direction, pod, peer)
            for policy in applying
            for rule in policy["spec"].get(direction.lower()) or []
        )

    def _applies(self, policy: Object, pod: Object, direction: str) -> bool:
        spec = policy["spec"]
        if _namespace(policy) != _namespace(pod):
            return False
        if not _selects(spec.get("podSelector") or {}, _labels(pod)):
            return False
        types = spec.get("policyTypes")
        if not types:
            types = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
        return direction in types

    def _rule_allows(
        self, rule: Object, policy: Object, packet: Packet, direction: str, pod: Object, peer: str
    ) -> bool:
        peers = rule.get("from" if direction == "Ingress" else "to")
        if peers and not any(self._is_peer(p, policy, peer) for p in peers):
            return False
        ports = rule.get("ports")
        if not ports:
            return True
        destination = pod if direction == "Ingress" else self._pod_at(packet.destination)
        return any(_port_matches(port, packet, destination) for port in ports)

    def _is_peer(self, peer: Object, policy: Object, address: str) -> bool:
        if peer.get("ipBlock") is not None:
            return _in_block(peer["ipBlock"], address)
        pod = self._pod_at(address)
        if pod is None:
            return False
        if peer.get("namespaceSelector") is None:
            if _namespace(pod) != _namespace(policy):
                return False
        else:
            labels = self._namespaces.get(_namespace(pod))
            if labels is None or not _selects(peer["namespaceSelector"], labels):
                return False
        return _selects(peer.get("podSelector") or {}, _labels(pod))

    def _pod_at(self, address: str) -> Object | None:
        return next((pod for pod in self._pods if address in _addresses(pod)), None)


def _counts(pod: Object) -> bool:
    return (
        bool(_addresses(pod))
        and not pod["spec"].get("hostNetwork")
        and pod["status"].get("phase") not in ("Succeeded", "Failed")
    )


def _addresses(pod: Object) -> list[str]:
    return [entry["ip"] for entry in pod["status"].get("podIPs") or []]


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _namespace(obj: Object) -> str:
    return str(obj["metadata"]["namespace"])


def _selects(selector: Object, labels: dict[str, str]) -> bool:
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    for expression in selector.get("matchExpressions") or []:
        key, operator = expression["key"], expression["operator"]
        values = expression.get("values") or []
        here = key in labels
        fulfilled = {
            "In": here and labels.get(key) in values,
            "NotIn": not here or labels[key] not in values,
            "Exists": here,
            "DoesNotExist": not here,
        }[operator]
        if not fulfilled:
            return False
    return True


def _in_block(block: Object, text: str) -> bool:
    address = ipaddress.ip_address(text)
    if address not in ipaddress.ip_network(block["cidr"], strict=False):
        return False
    holes = block.get("except") or []
    return not any(address in ipaddress.ip_network(hole, strict=False) for hole in holes)


def _port_matches(port: Object, packet: Packet, destination: Object | None) -> bool:
    if (port.get("protocol") or "TCP") != packet.protocol:
        return False
    wanted = port.get("port")
    if wanted is None:
        return True
    if isinstance(wanted, int):
        return wanted <= packet.port <= (port.get("endPort") or wanted)
    if destination is None:
        return False
    return any(
        declared.get("name") == wanted
        and (declared.get("protocol") or "TCP") == packet.protocol
        and declared["containerPort"] == packet.port
        for container in destination["spec"].get("containers") or []
        for declared in container.get("ports") or []
    )


def _within(address: str, blocks: Sequence[str]) -> bool:
    return any(ipaddress.ip_address(address) in ipaddress.ip_network(block) for block in blocks)

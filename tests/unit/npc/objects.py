"""Short ways to write a cluster."""

from __future__ import annotations

from typing import Any

from npc.api import NamedPort, Namespace, NetworkPolicy, Pod
from npc.compile import DEFAULTS, Compiled, Settings, compile
from npc.ruleset import AddressSet, Chain, Direction, Family, FamilyRules, SetKind

NODE = "n1"


def pod(name: str, ip: str | None = None, *, namespace: str = "x", **more: Any) -> Pod:
    labels = more.pop("labels", {})
    ports = tuple(NamedPort(*port) for port in more.pop("ports", ()))
    fields: dict[str, Any] = {
        "uid": f"{namespace}-{name}",
        "resource_version": "1",
        "node": NODE,
        "phase": "Running",
        "host_network": False,
        "ips": () if ip is None else tuple(ip.split()),
        "created": "2026-01-01T00:00:00Z",
    }
    fields |= more
    return Pod(namespace=namespace, name=name, labels=labels, named_ports=ports, **fields)


def namespace(name: str, **labels: str) -> Namespace:
    return Namespace(name=name, uid=name, resource_version="1", labels=labels)


def policy(spec: Any, name: str = "p", *, namespace: str = "x") -> NetworkPolicy:
    return NetworkPolicy(
        namespace=namespace, name=name, uid="", resource_version="", labels={}, spec=spec
    )


def compiled(
    *objects: Any, families: tuple[Family, ...] = (Family.IPV4,), settings: Settings = DEFAULTS
) -> Compiled:
    return compile(
        [o for o in objects if isinstance(o, Pod)],
        [o for o in objects if isinstance(o, Namespace)],
        [o for o in objects if isinstance(o, NetworkPolicy)],
        node=NODE,
        families=families,
        settings=settings,
    )


def rules(*objects: Any, settings: Settings = DEFAULTS) -> FamilyRules:
    return compiled(*objects, settings=settings).ruleset.families[Family.IPV4]


def chain_of(found: FamilyRules, address: str, direction: Direction) -> Chain | None:
    """The chain that a local address is bound to."""
    for binding in found.dispatch.bindings[direction]:
        if address in found.sets[binding.members].entries:
            return found.chains[binding.chain]
    return None


def ingress(found: FamilyRules, address: str) -> list[tuple[Any, Any]]:
    """What may come to an address: (peers, ports) in words, sorted."""
    return _words(found, chain_of(found, address, Direction.INGRESS))


def egress(found: FamilyRules, address: str) -> list[tuple[Any, Any]]:
    """Where an address may send: (peers, ports) in words, sorted."""
    return _words(found, chain_of(found, address, Direction.EGRESS))


def _words(found: FamilyRules, chain: Chain | None) -> list[tuple[Any, Any]]:
    assert chain is not None, "not isolated"
    words = []
    for rule in chain.rules:
        peers: Any = "any"
        if rule.peer is not None:
            peers = _members(found.sets[rule.peer.name])
        ports: Any = "any"
        if rule.ports is not None:
            first, last = rule.ports.first, rule.ports.last
            numbers = "" if first is None else f" {first}" if first == last else f" {first}-{last}"
            ports = rule.ports.protocol.value + numbers
        words.append((peers, ports))
    return sorted(words, key=str)


def _members(found: AddressSet) -> str:
    text = " ".join(sorted(found.entries))
    if found.kind is SetKind.NETWORK and found.excluded:
        text += " without " + " ".join(sorted(found.excluded))
    return text

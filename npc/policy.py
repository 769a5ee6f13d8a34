"""From a NetworkPolicy's JSON to what it means.

Read field by field. What cannot be understood is left out, which can only close: a bad peer, a bad
port, a bad rule. Whether a list is empty, and so means "all", is judged before anything is left
out. The pods that the policy selects stay isolated in its directions. A selector that cannot be
read selects the whole namespace; policy types that cannot be read mean both directions.

Fields that we do not know are ignored, as the API does.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npc.ruleset import Direction, Protocol
from npc.selector import EVERYTHING, Operator, Requirement, Selector

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeVar

    from npc.api import NetworkPolicy

    T = TypeVar("T")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something in an object that could not be understood, and what was done instead."""

    kind: str
    object: str
    """``namespace/name``."""
    field: str
    """A path such as ``spec.ingress[0].ports[1].endPort``."""
    message: str

    def __str__(self) -> str:
        return f"{self.kind} {self.object}: {self.field}: {self.message}"


@dataclass(frozen=True, slots=True)
class PodPeer:
    """Pods of one namespace, or of the namespaces that a selector selects."""

    namespace: str | None
    namespaces: Selector
    pods: Selector


@dataclass(frozen=True, slots=True)
class Block:
    """The addresses of ``network`` that lie in none of ``excluded``."""

    network: Network
    excluded: frozenset[Network] = frozenset()


Peer = PodPeer | Block


@dataclass(frozen=True, slots=True)
class Port:
    """Ports ``first`` to ``last``, or the port of that name, or (neither) every port."""

    protocol: Protocol
    first: int | None = None
    last: int | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """Any of the peers on any of the ports; ``None`` stands for all of them."""

    peers: tuple[Peer, ...] | None
    ports: tuple[Port, ...] | None


@dataclass(frozen=True, slots=True)
class Policy:
    """What a policy means. Its pods are isolated in the directions that ``rules`` has."""

    namespace: str
    name: str
    pods: Selector
    rules: Mapping[Direction, tuple[PolicyRule, ...]]
    problems: tuple[Problem, ...]

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


def parse(policy: NetworkPolicy) -> Policy:
    """Say what a policy means; never fails."""
    return _Parser(policy).parse()


class _BadFieldError(Exception):
    """A field that cannot be understood; caught where the thing that it belongs to is left out."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(field, message)
        self.field = field
        self.message = message


class _Parser:
    def __init__(self, policy: NetworkPolicy) -> None:
        self._policy = policy
        self._problems: list[Problem] = []

    def parse(self) -> Policy:
        nothing: dict[str, Any] = {}
        spec = self._or(
            "the policy isolates its namespace", nothing, _object, self._policy.spec, "spec"
        )
        broken = bool(self._problems)
        pods = self._or(
            "the policy isolates every pod of its namespace",
            EVERYTHING,
            _selector,
            spec.get("podSelector"),
            "spec.podSelector",
        )
        both: tuple[Direction, ...] = (Direction.INGRESS, Direction.EGRESS)
        directions = (
            both
            if broken
            else self._or(
                "isolated in both directions", both, _directions, spec, "spec.policyTypes"
            )
        )
        rules = {
            direction: self._rules(spec, _SECTIONS[direction], _PEERS[direction])
            for direction in directions
        }
        return Policy(self._policy.namespace, self._policy.name, pods, rules, tuple(self._problems))

    def _rules(self, spec: dict[str, Any], section: str, peers: str) -> tuple[PolicyRule, ...]:
        path = f"spec.{section}"
        nothing: list[Any] = []
        items = self._or("nothing is allowed", nothing, _list, spec.get(section), path)
        rules = (
            self._or("the rule allows nothing", None, self._rule, item, f"{path}[{i}]", peers)
            for i, item in enumerate(items)
        )
        return tuple(rule for rule in rules if rule is not None)

    def _rule(self, item: Any, path: str, peers_field: str) -> PolicyRule:
        rule = _object(item, path)
        peers = self._items(rule, peers_field, path, "the peer", self._peer)
        ports = self._items(rule, "ports", path, "the port", _port)
        return PolicyRule(peers, ports)

    def _items(
        self,
        rule: dict[str, Any],
        field: str,
        path: str,
        what: str,
        read: Callable[[Any, str], T],
    ) -> tuple[T, ...] | None:
        """A rule's list without its bad items, or ``None`` where it is missing or empty."""
        items = _list(rule.get(field), f"{path}.{field}")
        if not items:
            return None
        found = (
            self._or(f"{what} is left out", None, read, item, f"{path}.{field}[{i}]")
            for i, item in enumerate(items)
        )
        return tuple(dict.fromkeys(item for item in found if item is not None))

    def _peer(self, item: Any, path: str) -> Peer:
        peer = _object(item, path)
        selectors = [f for f in ("namespaceSelector", "podSelector") if peer.get(f) is not None]
        if peer.get("ipBlock") is not None:
            if selectors:
                raise _BadFieldError(f"{path}.{selectors[0]}", "must not stand beside ipBlock")
            return _block(peer["ipBlock"], f"{path}.ipBlock")
        if not selectors:
            raise _BadFieldError(path, "names neither pods, namespaces nor an ipBlock")
        pods = _selector(peer.get("podSelector"), f"{path}.podSelector")
        if "namespaceSelector" not in selectors:
            return PodPeer(self._policy.namespace, EVERYTHING, pods)
        namespaces = _selector(peer["namespaceSelector"], f"{path}.namespaceSelector")
        return PodPeer(None, namespaces, pods)

    def _or(
        self, instead: str, default: T, read: Callable[..., T], value: Any, path: str, *more: Any
    ) -> T:
        """What ``read`` makes of the value; where it cannot, note it and take the default."""
        try:
            return read(value, path, *more)
        except _BadFieldError as bad:
            self._problems.append(
                Problem(
                    "NetworkPolicy",
                    f"{self._policy.namespace}/{self._policy.name}",
                    bad.field,
                    f"{bad.message}; {instead}",
                )
            )
            return default


_SECTIONS = {Direction.INGRESS: "ingress", Direction.EGRESS: "egress"}
_PEERS = {Direction.INGRESS: "from", Direction.EGRESS: "to"}


def _directions(spec: dict[str, Any], path: str) -> tuple[Direction, ...]:
    types = _list(spec.get("policyTypes"), path)
    if not types:
        egress = spec.get("egress")
        return (Direction.INGRESS, Direction.EGRESS) if egress else (Direction.INGRESS,)
    named = {direction.value: direction for direction in Direction}
    for i, name in enumerate(types):
        if not isinstance(name, str) or name not in named:
            raise _BadFieldError(f"{path}[{i}]", f"{name!r} is neither Ingress nor Egress")
    return tuple(direction for direction in Direction if direction.value in types)


def _selector(value: Any, path: str) -> Selector:
    selector = _object(value, path)
    found = set()
    labels = _object(selector.get("matchLabels"), f"{path}.matchLabels")
    for key, label in labels.items():
        found.add(
            Requirement(key, Operator.IN, frozenset({_text(label, f"{path}.matchLabels[{key}]")}))
        )
    expressions_path = f"{path}.matchExpressions"
    for i, item in enumerate(_list(selector.get("matchExpressions"), expressions_path)):
        found.add(_requirement(item, f"{expressions_path}[{i}]"))
    return Selector(frozenset(found))


def _requirement(item: Any, path: str) -> Requirement:
    expression = _object(item, path)
    key = _text(expression.get("key"), f"{path}.key")
    if not key:
        raise _BadFieldError(f"{path}.key", "is empty")
    name = expression.get("operator")
    try:
        operator = Operator(name)
    except ValueError:
        raise _BadFieldError(f"{path}.operator", f"{name!r} is no known operator") from None
    values_path = f"{path}.values"
    values = frozenset(
        _text(v, f"{values_path}[{i}]")
        for i, v in enumerate(_list(expression.get("values"), values_path))
    )
    if operator in (Operator.IN, Operator.NOT_IN):
        if not values:
            raise _BadFieldError(values_path, f"{operator.value} needs at least one value")
    elif values:
        raise _BadFieldError(values_path, f"{operator.value} takes no values")
    return Requirement(key, operator, values)


def _block(value: Any, path: str) -> Block:
    block = _object(value, path)
    network = _network(block.get("cidr"), f"{path}.cidr")
    excluded = set()
    for i, item in enumerate(_list(block.get("except"), f"{path}.except")):
        inner = _network(item, f"{path}.except[{i}]")
        if inner.version != network.version or not _within(inner, network):
            raise _BadFieldError(f"{path}.except[{i}]", f"{item!r} does not lie within {network}")
        excluded.add(inner)
    return Block(network, frozenset(excluded))


def _within(inner: Network, outer: Network) -> bool:
    return (
        inner.prefixlen >= outer.prefixlen
        and inner.network_address in outer
        and inner.broadcast_address in outer
    )


def _network(value: Any, path: str) -> Network:
    text = _text(value, path)
    if "/" not in text or "%" in text:  # Python takes fe80::%ANYTHING/64, the kernel does not
        raise _BadFieldError(path, f"{text!r} is not a CIDR block")
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise _BadFieldError(path, f"{text!r} is not a CIDR block: {error}") from None


def _port(value: Any, path: str) -> Port:
    item = _object(value, path)
    protocol = _protocol(item.get("protocol"), f"{path}.protocol")
    port, end = item.get("port"), item.get("endPort")
    if isinstance(port, str):
        if end is not None:
            raise _BadFieldError(f"{path}.endPort", "needs a port number, not a port name")
        if not port:
            raise _BadFieldError(f"{path}.port", "is an empty name")
        return Port(protocol, name=port)
    if port is None:
        if end is not None:
            raise _BadFieldError(f"{path}.endPort", "needs a port")
        return Port(protocol)
    first = _number(port, f"{path}.port")
    last = first if end is None else _number(end, f"{path}.endPort")
    if last < first:
        raise _BadFieldError(f"{path}.endPort", f"{last} is below port {first}")
    return Port(protocol, first, last)


def _protocol(value: Any, path: str) -> Protocol:
    if value is None:
        return Protocol.TCP
    try:
        return Protocol(value)
    except ValueError:
        raise _BadFieldError(path, f"{value!r} is none of TCP, UDP, SCTP") from None


def _number(value: Any, path: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 65535:
        raise _BadFieldError(path, f"{value!r} is not a port number from 1 to 65535")
    return value


def _object(value: Any, path: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _BadFieldError(path, f"{value!r} is not an object")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise _BadFieldError(path, f"{value!r} is not a list")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise _BadFieldError(path, f"{value!r} is not a string")
    return value

"""From the cluster's objects to what this node enforces: a pure function.

Only what this node needs is built: policies that select none of its pods cost a parse and a label
look-up, and peer sets are filled for the chains that use them.

The result does not depend on the order of the input, nor on what was compiled before: the caches
here hold values of pure functions, so dropping them changes the time and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import json
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache, cached

from npc.index import LabelIndex
from npc.policy import Block, Network, PodPeer, Policy, Port, Problem, parse
from npc.ruleset import (
    PREFIX,
    AddressSet,
    Binding,
    Chain,
    Denial,
    Direction,
    Dispatch,
    Family,
    FamilyRules,
    Guard,
    Ports,
    Protocol,
    Rule,
    Ruleset,
    SetKind,
    SetRef,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from npc.api import NamedPort, Namespace, NetworkPolicy, Pod
    from npc.policy import Peer, PolicyRule
    from npc.selector import Selector


@dataclass(frozen=True, slots=True)
class Settings:
    """What the operator decides about enforcement.

    Traffic from or to the blocks ``exempt`` is never judged. The blocks ``guarded`` belong to the
    pods of this node: an address in them is held as long as no pod is known to have it.
    """

    denial: Denial = field(default_factory=Denial)
    exempt: tuple[Network, ...] = ()
    guarded: tuple[Network, ...] = ()


DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Compiled:
    """What to enforce, what could not be understood, and how many pods it is about."""

    ruleset: Ruleset
    problems: tuple[Problem, ...]
    local_pods: int
    isolated: Mapping[Direction, int]


def compile(
    pods: Collection[Pod],
    namespaces: Collection[Namespace],
    policies: Collection[NetworkPolicy],
    *,
    node: str,
    families: Sequence[Family],
    settings: Settings = DEFAULTS,
) -> Compiled:
    """Say what the node of that name has to enforce; never fails."""
    cluster = _Cluster(pods, namespaces)
    parsed = sorted(map(_parse, policies), key=_by_name)
    local = [pod for pod in cluster.pods if pod.node == node]
    isolated = _isolated(local, parsed)
    problems = [problem for policy in parsed for problem in policy.problems]
    problems += _faults("Pod", pods)
    problems += _faults("Namespace", namespaces)
    problems += _faults("NetworkPolicy", policies)
    return Compiled(
        ruleset=Ruleset(
            {
                family: _FamilyCompiler(cluster, family, settings).compile(local, isolated)
                for family in families
            }
        ),
        problems=tuple(sorted(problems + cluster.problems)),
        local_pods=len(local),
        isolated={direction: len(found) for direction, found in isolated.items()},
    )


def _faults(kind: str, objects: Iterable[Pod | Namespace | NetworkPolicy]) -> list[Problem]:
    """What is wrong with the objects themselves, as they came."""
    return [
        Problem(kind, f"{one.namespace}/{one.name}".lstrip("/"), fault.field, fault.message)
        for one in objects
        for fault in one.faults
    ]


# -- who is isolated by what -------------------------------------------------------------------


def _version(policy: NetworkPolicy) -> tuple[str, str, str, str]:
    return policy.uid, policy.resource_version, policy.namespace, policy.name


@cached(LRUCache(maxsize=16_384), key=_version, info=True)
def _parse_version(policy: NetworkPolicy) -> Policy:
    return parse(policy)


def _parse(policy: NetworkPolicy) -> Policy:
    """``parse``, remembered for objects that the API server has given an identity and a version."""
    versioned = policy.uid and policy.resource_version
    return _parse_version(policy) if versioned else parse(policy)


def cache_statistics() -> dict[str, tuple[int, int]]:
    """By cache, how often a result was remembered and how often it was computed."""
    found = {"policies": _parse_version.cache_info(), "addresses": _address.cache_info()}
    return {name: (hits, misses) for name, (hits, misses, *_) in found.items()}


# Policies of one namespace that select the same pods, in the order of their names.
_Alike = tuple[Policy, ...]
_Isolated = dict[Direction, list[tuple["Pod", list[_Alike]]]]


def _isolated(local: Iterable[Pod], policies: Iterable[Policy]) -> _Isolated:
    """The local pods that some policy isolates, with those policies, by direction.

    Policies that select alike are looked up once, and not written down for each pod: thousands may
    hold for a whole namespace.
    """
    by_namespace = _by_namespace(local)
    alike: defaultdict[tuple[Direction, str, Selector], list[Policy]] = defaultdict(list)
    for policy in policies:
        if policy.namespace in by_namespace:
            for direction in policy.rules:
                alike[direction, policy.namespace, policy.pods].append(policy)
    selecting: dict[Direction, dict[int, tuple[Pod, list[_Alike]]]] = {d: {} for d in Direction}
    for (direction, namespace, selector), found in alike.items():
        together = tuple(found)
        for pod in by_namespace[namespace].select(selector):
            selecting[direction].setdefault(id(pod), (pod, []))[1].append(together)
    return {direction: list(found.values()) for direction, found in selecting.items()}


def _by_namespace(pods: Iterable[Pod]) -> dict[str, LabelIndex[Pod]]:
    grouped: defaultdict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        grouped[pod.namespace].append(pod)
    return {namespace: LabelIndex(found) for namespace, found in grouped.items()}


# -- the cluster, as peers see it --------------------------------------------------------------


class _Cluster:
    """Every pod that has an address of its own in use, and the namespaces."""

    def __init__(self, pods: Iterable[Pod], namespaces: Iterable[Namespace]) -> None:
        self.problems: list[Problem] = []
        ordered = sorted(pods, key=lambda pod: (pod.created, pod.namespace, pod.name))
        self.pods = [pod for pod in ordered if pod.enforceable]
        self._by_namespace = _by_namespace(self.pods)
        self._namespaces = LabelIndex(namespaces)
        self._addresses: dict[int, dict[Family, str]] = {}
        for pod in self.pods:
            self._addresses[id(pod)] = self._read_addresses(pod)
            self._check_ports(pod)

    def _read_addresses(self, pod: Pod) -> dict[Family, str]:
        found: dict[Family, str] = {}
        for i, text in enumerate(pod.ips):
            address = _address(text)
            if address is None:
                where = f"{pod.namespace}/{pod.name}"
                message = f"{text!r} is not an address; left out"
                self.problems.append(Problem("Pod", where, f"status.podIPs[{i}]", message))
            else:
                found.setdefault(*address)
        return found

    def _check_ports(self, pod: Pod) -> None:
        for port in pod.named_ports:
            if port.number not in _PORTS:
                where = f"{pod.namespace}/{pod.name}"
                message = f"{port.number} is not a port number from 1 to 65535; left out"
                field_ = f"spec.containers.ports[{port.name}]"
                self.problems.append(Problem("Pod", where, field_, message))

    def address(self, pod: Pod, family: Family) -> str | None:
        """The pod's address of that family, as the kernel writes it."""
        return self._addresses[id(pod)].get(family)

    def matching(self, peer: Peer | None, family: Family) -> Iterator[Pod]:
        """The pods that a peer stands for; ``None`` stands for all."""
        match peer:
            case None:
                yield from self.pods
            case Block():
                for pod in self.pods:
                    address = self.address(pod, family)
                    if address is not None and _in_block(address, peer):
                        yield pod
            case PodPeer(namespace=None):
                for namespace in self._namespaces.select(peer.namespaces):
                    yield from self._in_namespace(namespace.name, peer)
            case PodPeer(namespace=str(name)):
                yield from self._in_namespace(name, peer)

    def _in_namespace(self, namespace: str, peer: PodPeer) -> Sequence[Pod]:
        index = self._by_namespace.get(namespace)
        return index.select(peer.pods) if index else ()


@lru_cache(maxsize=65_536)
def _address(text: str) -> tuple[Family, str] | None:
    if "%" in text:  # Python takes fe80::1%ANYTHING, the kernel does not
        return None
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return Family(address.version), str(address)


def _in_block(text: str, block: Block) -> bool:
    address = ipaddress.ip_address(text)
    return address in block.network and not any(address in inner for inner in block.excluded)


# -- rules of one family -----------------------------------------------------------------------


class _FamilyCompiler:
    def __init__(self, cluster: _Cluster, family: Family, settings: Settings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._family = family
        self._sets: dict[str, AddressSet] = {}
        self._chains: dict[str, Chain] = {}
        self._peers: dict[tuple[Peer, ...], tuple[SetRef | None, ...]] = {}

    def compile(self, local: Iterable[Pod], isolated: _Isolated) -> FamilyRules:
        names = {d: self._fixed_name(d.value) for d in Direction}
        bindings = {d: self._bind(d, isolated[d], names[d]) for d in Direction}
        dispatch = Dispatch(
            names, bindings, self._exempt(), self._guard(local, names), self._settings.denial
        )
        return FamilyRules(self._family, self._sets, self._chains, dispatch)

    def _exempt(self) -> str | None:
        blocks = self._own_blocks(self._settings.exempt)
        return (
            self._add_set(self._fixed_name("exempt"), SetKind.NETWORK, blocks) if blocks else None
        )

    def _guard(self, local: Iterable[Pod], isolated: Mapping[Direction, str]) -> Guard | None:
        blocks = self._own_blocks(self._settings.guarded)
        if not blocks:
            return None
        found = {self._cluster.address(pod, self._family) for pod in local}
        unheld = {
            d: self._add_set(
                self._fixed_name(f"open-{d.value}"),
                SetKind.ADDRESS,
                found - self._sets[isolated[d]].entries,
            )
            for d in Direction
        }
        return Guard(self._add_set(self._fixed_name("held"), SetKind.NETWORK, blocks), unheld)

    def _own_blocks(self, networks: Iterable[Network]) -> list[str]:
        return [str(network) for network in networks if network.version == self._family.value]

    def _fixed_name(self, what: str) -> str:
        return f"{PREFIX}{self._family.value}-{what.upper()}"

    def _bind(
        self, direction: Direction, isolated: Iterable[tuple[Pod, list[_Alike]]], everyone: str
    ) -> tuple[Binding, ...]:
        """Bind each isolated pod's address to its chain.

        Where two isolated pods claim one address, the one that was created last has it.
        """
        chain_of: dict[str, str] = {}
        # Pods that the same policies select share a chain, unless named ports tell them apart.
        shared: dict[tuple[tuple[int, ...], tuple[NamedPort, ...]], str] = {}
        for pod, selecting in sorted(isolated, key=lambda found: _age(found[0])):
            address = self._cluster.address(pod, self._family)
            if address is not None:
                key = tuple(map(id, selecting)), pod.named_ports
                if key not in shared:
                    policies = sorted(chain.from_iterable(selecting), key=_by_name)
                    shared[key] = self._chain(direction, pod, policies)
                chain_of[address] = shared[key]
        members: defaultdict[str, set[str]] = defaultdict(set)
        for address, name in chain_of.items():
            members[name].add(address)
        self._add_set(everyone, SetKind.ADDRESS, chain_of)
        return tuple(
            Binding(name, self._named_set(SetKind.ADDRESS, addresses, "members", name).name)
            for name, addresses in sorted(members.items())
        )

    def _chain(self, direction: Direction, pod: Pod, policies: Iterable[Policy]) -> str:
        allowed: dict[tuple[SetRef | None, Ports | None], str] = {}
        for policy in policies:
            for rule in policy.rules[direction]:
                for what in self._rules(direction, rule, pod):
                    allowed.setdefault(what, policy.full_name)
        if (None, None) in allowed:
            allowed = {(None, None): allowed[None, None]}
        rules = tuple(
            Rule(peer, ports, origin)
            for (peer, ports), origin in sorted(allowed.items(), key=lambda item: _order(*item[0]))
        )
        content = [[r.peer and r.peer.name, _plain(r.ports), r.origin] for r in rules]
        name = _name(direction.value[0], self._family.value, content)
        if name not in self._chains:
            self._chains[name] = Chain(name, direction, rules)
        return name

    def _rules(
        self, direction: Direction, rule: PolicyRule, pod: Pod
    ) -> Iterator[tuple[SetRef | None, Ports | None]]:
        peers = (None,) if rule.peers is None else self._peer_sets(rule.peers)
        # Missing lists are everything; lists of which nothing could be understood are nothing.
        for port in (None,) if rule.ports is None else rule.ports:
            if port is None:
                for peer in peers:
                    yield peer, None
            elif port.name is None:
                for peer in peers:
                    yield peer, Ports(port.protocol, port.first, port.last)
            elif direction is Direction.INGRESS:
                for number in _numbers(pod, port):
                    for peer in peers:
                        yield peer, Ports(port.protocol, number, number)
            else:
                for target in (None,) if rule.peers is None else rule.peers:
                    yield self._endpoints(target, port), None

    def _peer_sets(self, peers: tuple[Peer, ...]) -> tuple[SetRef | None, ...]:
        """One set for each pod peer and each block with exceptions, one for all other blocks."""
        if peers not in self._peers:
            found: list[SetRef | None] = []
            plain: set[Network] = set()
            for peer in peers:
                if isinstance(peer, PodPeer):
                    found.append(self._pods(peer))
                elif peer.network.version != self._family.value:
                    continue
                elif peer.excluded:
                    found.append(self._block([peer.network], peer.excluded))
                else:
                    plain.add(peer.network)
            if any(network.prefixlen == 0 for network in plain):
                found.append(None)
            elif plain:
                found.append(self._block(plain, ()))
            self._peers[peers] = tuple(dict.fromkeys(found))
        return self._peers[peers]

    def _pods(self, peer: PodPeer) -> SetRef:
        return self._named_set(
            SetKind.ADDRESS,
            (self._cluster.address(pod, self._family) for pod in self._matching(peer)),
            "pods",
            _identity(peer),
        )

    def _endpoints(self, peer: Peer | None, port: Port) -> SetRef:
        """The set of (address, port) where matching pods serve a port of that name."""
        return self._named_set(
            SetKind.ENDPOINT,
            (
                f"{address},{port.protocol.value.lower()}:{number}"
                for pod in self._matching(peer)
                if (address := self._cluster.address(pod, self._family))
                for number in _numbers(pod, port)
            ),
            "endpoints",
            _identity(peer),
            port.protocol.value,
            port.name,
        )

    def _matching(self, peer: Peer | None) -> Iterator[Pod]:
        return self._cluster.matching(peer, self._family)

    def _block(self, networks: Iterable[Network], excluded: Iterable[Network]) -> SetRef:
        entries, holes = sorted(map(str, networks)), sorted(map(str, excluded))
        return self._named_set(SetKind.NETWORK, entries, "blocks", entries, holes, excluded=holes)

    def _named_set(
        self,
        kind: SetKind,
        entries: Iterable[str | None],
        *identity: Any,
        excluded: Iterable[str] = (),
    ) -> SetRef:
        """The set with that identity; ``entries`` are looked at only the first time."""
        name = _name(str(self._family.value), kind.value, *identity)
        if name not in self._sets:
            self._add_set(name, kind, entries, excluded)
        return SetRef(name, kind)

    def _add_set(
        self,
        name: str,
        kind: SetKind,
        entries: Iterable[str | None],
        excluded: Iterable[str] = (),
    ) -> str:
        self._sets[name] = AddressSet(
            name, kind, frozenset(e for e in entries if e is not None), frozenset(excluded)
        )
        return name


_PORTS = range(1, 65536)


def _numbers(pod: Pod, port: Port) -> list[int]:
    """The numbers that a port name stands for on a pod; none where it has no such port."""
    protocol = port.protocol.value
    named = pod.named_ports
    found = {p.number for p in named if p.name == port.name and p.protocol == protocol}
    return sorted(number for number in found if number in _PORTS)


def _by_name(policy: Policy) -> tuple[str, str]:
    return policy.namespace, policy.name


def _age(pod: Pod) -> tuple[str, str, str]:
    return pod.created, pod.namespace, pod.name


def _identity(peer: Peer | None) -> Any:
    """A peer as plain values, equal for peers that mean the same."""
    match peer:
        case None:
            return None
        case Block():
            return ["block", str(peer.network), sorted(map(str, peer.excluded))]
        case PodPeer():
            return [
                "pods",
                peer.namespace,
                peer.namespaces.canonical(),
                peer.pods.canonical(),
            ]


_PROTOCOLS = list(Protocol)


def _order(peer: SetRef | None, ports: Ports | None) -> tuple[Any, ...]:
    """Any order will do, so long as it is always the same."""
    number = (-1, 0, 0)
    if ports is not None:
        number = (_PROTOCOLS.index(ports.protocol), ports.first or 0, ports.last or 0)
    return number, "" if peer is None else peer.name


def _plain(ports: Ports | None) -> Any:
    return ports and [ports.protocol.value, ports.first, ports.last]


def _name(label: str, *identity: Any) -> str:
    """A name of 22 characters, the same for the same identity and no other."""
    text = json.dumps(identity, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).digest()[:10]
    return f"{PREFIX}{label}-{base64.b32encode(digest).decode()}"

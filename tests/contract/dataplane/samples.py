"""Rulesets built by hand, small enough to reason about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from npc.plan import SetChange
from npc.ruleset import (
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
    from collections.abc import Iterable, Sequence

__all__ = [
    "Denial",
    "SetChange",
    "address",
    "block",
    "decided",
    "everything",
    "nothing",
    "ruleset",
    "simple",
]

IN, OUT = Direction.INGRESS, Direction.EGRESS


def address(family: Family, number: int) -> str:
    """The pod address of that number."""
    return f"10.0.0.{number}" if family is Family.IPV4 else f"fd00::{number:x}"


def block(family: Family, number: int) -> str:
    """One of 200 disjoint blocks."""
    return f"192.{number}.0.0/16" if family is Family.IPV4 else f"fc{number:02x}:1::/32"


def whole(family: Family) -> str:
    """Every address of the family."""
    return "0.0.0.0/0" if family is Family.IPV4 else "::/0"


def ruleset(
    family: Family,
    sets: Iterable[AddressSet] = (),
    bound: Iterable[tuple[Chain, Sequence[str]]] = (),
) -> Ruleset:
    """Rules for pods: each chain with the addresses that are bound to it."""
    chains: dict[str, Chain] = {}
    all_sets = {s.name: s for s in sets}
    bindings: dict[Direction, tuple[Binding, ...]] = {IN: (), OUT: ()}
    isolated: dict[Direction, frozenset[str]] = {IN: frozenset(), OUT: frozenset()}
    for chain, addresses in bound:
        members = AddressSet(f"{chain.name}-M", SetKind.ADDRESS, frozenset(addresses))
        chains[chain.name] = chain
        all_sets[members.name] = members
        bindings[chain.direction] += (Binding(chain.name, members.name),)
        isolated[chain.direction] |= members.entries
    names = {d: f"NPC-{family.value}-{d.name}" for d in Direction}
    for direction, name in names.items():
        all_sets[name] = AddressSet(name, SetKind.ADDRESS, isolated[direction])
    return Ruleset({family: FamilyRules(family, all_sets, chains, Dispatch(names, bindings))})


def chain(family: Family, label: str, direction: Direction, *rules: Rule) -> Chain:
    """A chain whose name says the family too, since sets of both share one space of names."""
    return Chain(f"NPC-{direction.value[0]}{family.value}-{label}", direction, rules)


def decided(family: Family, denial: Denial) -> Ruleset:
    """Some pods are isolated, some open, some addresses held, some exempt."""
    rules = simple(family, 1, 2).families[family]
    held = frozenset({"10.0.0.0/24" if family is Family.IPV4 else "fd00::/64"})
    sets = [
        AddressSet(f"NPC-{family.value}-EXEMPT", SetKind.NETWORK, frozenset({block(family, 9)})),
        AddressSet(f"NPC-{family.value}-HELD", SetKind.NETWORK, held),
        *(
            AddressSet(
                f"NPC-{family.value}-OPEN-{d.name}",
                SetKind.ADDRESS,
                frozenset({address(family, 5)}),
            )
            for d in Direction
        ),
    ]
    guard = Guard(sets[1].name, {d: f"NPC-{family.value}-OPEN-{d.name}" for d in Direction})
    dispatch = replace(rules.dispatch, exempt=sets[0].name, guard=guard, denial=denial)
    added = {s.name: s for s in sets}
    return Ruleset({family: replace(rules, sets={**rules.sets, **added}, dispatch=dispatch)})


def nothing(family: Family) -> Ruleset:
    """No pod is isolated."""
    return ruleset(family)


def simple(family: Family, *members: int, port: int = 80, label: str = "WEB") -> Ruleset:
    """Some pods accept one port from one block, and send nothing."""
    v = family.value
    source = AddressSet(f"NPC-{v}-{label}", SetKind.NETWORK, frozenset({block(family, 1)}))
    allow = Rule(SetRef(source.name, source.kind), Ports(Protocol.TCP, port, port), "shop/web")
    addresses = [address(family, n) for n in members]
    return ruleset(
        family,
        [source],
        [
            (chain(family, f"{label}{port}", IN, allow), addresses),
            (chain(family, "NONE", OUT), addresses),
        ],
    )


def everything(family: Family) -> Ruleset:
    """Every kind of set and rule, and names that are hard to write down."""
    v = family.value
    pods = AddressSet(
        f"NPC-{v}-PODS", SetKind.ADDRESS, frozenset(address(family, n) for n in range(1, 40))
    )
    endpoints = AddressSet(
        f"NPC-{v}-ENDPOINTS",
        SetKind.ENDPOINT,
        frozenset(
            f"{address(family, n)},{protocol}:{port}"
            for n in (1, 2)
            for protocol, port in (("tcp", 80), ("udp", 53), ("sctp", 9999))
        ),
    )
    host = address(family, 77) + ("/32" if family is Family.IPV4 else "/128")
    internet = AddressSet(
        f"NPC-{v}-INTERNET",
        SetKind.NETWORK,
        frozenset({whole(family)}),
        frozenset({block(family, 1), block(family, 2), host}),
    )
    closed = AddressSet(
        f"NPC-{v}-CLOSED",
        SetKind.NETWORK,
        frozenset({block(family, 3)}),
        frozenset({block(family, 3)}),
    )
    refs = [SetRef(s.name, s.kind) for s in (pods, endpoints, internet, closed)]
    ports = [
        None,
        Ports(Protocol.TCP),
        Ports(Protocol.UDP, 53, 53),
        Ports(Protocol.SCTP, 1, 65535),
        Ports(Protocol.TCP, 8000, 8080),
    ]
    origins = ["a/b", "plain", "", "x" * 63 + "/" + "y" * 253, 'q"uo\\te/né\n$(x)`', "-j/ACCEPT"]
    incoming = [
        Rule(peer, port, origin)
        for peer in (None, refs[0], refs[2], refs[3])
        for port, origin in zip(ports, origins, strict=False)
    ]
    outgoing = [*incoming, *(Rule(refs[1], None, origin) for origin in origins)]
    return ruleset(
        family,
        [pods, endpoints, internet, closed],
        [
            (chain(family, "ALL", IN, *incoming), [address(family, 1), address(family, 2)]),
            (chain(family, "FREE", IN, Rule(None, None, "a/b")), [address(family, 3)]),
            (chain(family, "ALL", OUT, *outgoing), [address(family, 1)]),
            (chain(family, "NONE", OUT), [address(family, 9)]),
        ],
    )

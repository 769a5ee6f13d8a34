"""What enforcement should look like, in words that no backend owns.

A ``Ruleset`` holds one ``FamilyRules`` for each address family. Per direction, every isolated local
pod is bound to one ``Chain``: the ordered list of what is allowed; whatever no rule allows is
denied. Pods with the same rules share a chain, so a chain's name is derived from its content and a
pod that moves between chains is only a change of set membership.

Rules name their peers by ``AddressSet``. A set of pods is named after the selector it stands for
and its members come and go; a set of CIDR blocks is named after its content and never changes.

All values are immutable, hashable and comparable: two equal rulesets enforce the same.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "NPC-"
"""How every chain and set of ours begins; nothing else may begin so."""


class Family(enum.Enum):
    """An address family; the value is the IP version."""

    IPV4 = 4
    IPV6 = 6


class Direction(enum.Enum):
    """Seen from the isolated pod: what comes in, what goes out."""

    INGRESS = "Ingress"
    EGRESS = "Egress"


class Protocol(enum.Enum):
    """The transport protocols that a NetworkPolicy can name."""

    TCP = "TCP"
    UDP = "UDP"
    SCTP = "SCTP"


class SetKind(enum.Enum):
    """What one entry of an address set is."""

    ADDRESS = "address"
    """One address: ``10.0.0.1``."""
    NETWORK = "network"
    """One CIDR block with no host bits: ``10.0.0.0/8``. A block of prefix length 0 is allowed."""
    ENDPOINT = "endpoint"
    """One address, protocol and port: ``10.0.0.1,tcp:80``. Matches a packet's destination."""


@dataclass(frozen=True, slots=True)
class AddressSet:
    """A named set of addresses of one family.

    ``excluded`` is used by ``NETWORK`` sets alone: blocks inside an entry that do not match.
    """

    name: str
    kind: SetKind
    entries: frozenset[str]
    excluded: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, order=True)
class SetRef:
    """How a rule names a set; the kind says which part of the packet is looked up in it."""

    name: str
    kind: SetKind = field(compare=False)


@dataclass(frozen=True, slots=True)
class Ports:
    """Destination ports ``first`` to ``last``, both included, of one protocol.

    ``first`` is ``None`` for every port of the protocol.
    """

    protocol: Protocol
    first: int | None = None
    last: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that is allowed: a peer (``None``: any) on ports (``None``: any protocol).

    The peer is the packet's source in an ingress chain and its destination in an egress chain; an
    ``ENDPOINT`` set speaks of the destination and its port, and comes with ``ports=None``.
    ``origin`` is the policy as ``namespace/name``, for people who read the kernel's rules.
    """

    peer: SetRef | None
    ports: Ports | None
    origin: str


@dataclass(frozen=True, slots=True)
class Chain:
    """What some pods may receive (or send): any rule allows, nothing else is allowed."""

    name: str
    direction: Direction
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """The local pods that a chain holds for: the name of the set of their addresses."""

    chain: str
    members: str


@dataclass(frozen=True, slots=True)
class Guard:
    """Addresses that are held: they neither send nor receive until it is known whose they are.

    An address in the ``NETWORK`` set ``blocks`` is held, by direction, unless it is isolated (then
    its chain decides) or in the ``ADDRESS`` set ``open`` of that direction: the known pods of this
    node that no policy isolates. What a held address sends to itself, through a service, is refused
    too. Traffic of the node itself is never held.
    """

    blocks: str
    open: Mapping[Direction, str]


class DenyAction(enum.Enum):
    """What becomes of a packet that is refused."""

    REJECT = "reject"
    """Its sender is told at once, by a TCP reset or an ICMP error."""
    DROP = "drop"
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Denial:
    """How packets are refused; ``log``: a few each minute are also handed to a logging program."""

    action: DenyAction = DenyAction.REJECT
    log: bool = False


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Which packets are judged, by which chain, and what becomes of those that are refused.

    ``isolated`` names, for each direction, the set of all local pods that some chain holds for: a
    packet that touches none of them (and is not held) concerns us no further. ``bindings`` are in
    chain order; the first that has the pod's address decides. A packet with an address in the
    ``NETWORK`` set ``exempt`` is never judged.
    """

    isolated: Mapping[Direction, str]
    bindings: Mapping[Direction, tuple[Binding, ...]]
    exempt: str | None = None
    guard: Guard | None = None
    denial: Denial = Denial()


@dataclass(frozen=True, slots=True)
class FamilyRules:
    """Everything to enforce for one address family.

    Every set that a rule or the dispatch names is in ``sets``.
    """

    family: Family
    sets: Mapping[str, AddressSet]
    chains: Mapping[str, Chain]
    dispatch: Dispatch


@dataclass(frozen=True, slots=True)
class Ruleset:
    """The whole of what a node enforces, by family."""

    families: Mapping[Family, FamilyRules] = field(default_factory=lambda: MappingProxyType({}))

"""Carries clusters out on a node, one after the other, and compares it with what policies mean."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npc.api import decode_namespace, decode_pod, decode_policy
from npc.compile import Settings, compile
from npc.plan import make_plan
from npc.ruleset import Denial, DenyAction, Family, Ruleset
from tests.contract.dataplane.node import make_dataplane
from tests.e2e.fuzz.frames import Arrival, Reset, Unreachable
from tests.e2e.fuzz.world import NODE as NODE_ADDRESS
from tests.e2e.fuzz.world import PODS
from tests.property.npc.reference import Cluster, Packet
from tests.property.npc.strategies import NODE, PORTS, PROTOCOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tests.e2e.fuzz.frames import Seen
    from tests.e2e.fuzz.world import World

Object = dict[str, Any]
Snapshot = tuple[list[Object], list[Object], list[Object]]

# Ports that a policy can only name as part of a range, and where some ranges end.
_BEYOND = (82, 9000)

NOTHING: Snapshot = ([], [], [])


@dataclass(frozen=True)
class Step:
    """A cluster, what the operator chose, and whether the agent was started anew before."""

    snapshot: Snapshot
    chosen: Settings
    restarted: bool = False


class Enforcer:
    """A node whose agent, a dataplane and the compiler, is told of one cluster after another.

    ``clusters`` and ``packets`` count what has been judged.
    """

    def __init__(self, world: World, variant: str, families: Sequence[Family]) -> None:
        self._world, self._variant, self._families = world, variant, families
        self._addresses = {family: world.addresses(family) for family in families}
        self.clusters = self.packets = 0
        self.restart()

    def restart(self) -> None:
        """Forget what was written."""
        self._dataplane = make_dataplane(self._variant, self._families)

    def clean(self) -> None:
        """Begin anew, without any rules."""
        self.restart()
        with self._world.node:
            self._dataplane.cleanup()

    def take(self, step: Step) -> Ruleset:
        """Enforce a cluster as the agent does; the rules."""
        if step.restarted:
            self.restart()
        pods, namespaces, policies = step.snapshot
        self.clusters += 1
        self._world.place([n for n in PODS for pod in pods if _is_here(pod, n)])
        compiled = compile(
            [decode_pod(json.dumps(pod).encode()) for pod in pods],
            [decode_namespace(json.dumps(namespace).encode()) for namespace in namespaces],
            [decode_policy(json.dumps(policy).encode()) for policy in policies],
            node=NODE,
            families=self._families,
            settings=step.chosen,
        )
        assert not compiled.problems
        self.write(compiled.ruleset)
        return compiled.ruleset

    def write(self, desired: Ruleset) -> None:
        """Write rules, and see that they are what is then read."""
        with self._world.node:
            self._dataplane.apply(make_plan(self._dataplane.observe(), desired))
            assert make_plan(self._dataplane.observe(), desired).empty

    def differences(self, step: Step) -> dict[Packet, str]:
        """By packet, what became of it and what should have."""
        chosen = step.chosen
        exempt, guarded = ([*map(str, blocks)] for blocks in (chosen.exempt, chosen.guarded))
        reference = Cluster(*step.snapshot, NODE, exempt, guarded)
        found = self._world.probe(self._packets())
        self.packets += len(found)
        wanted = {
            packet: Arrival if reference.allows(packet) else _refusal(packet, chosen.denial)
            for packet in found
        }
        return {
            packet: f"{_names(seen)} instead of {_names({wanted[packet]})}"
            for packet, seen in found.items()
            if _judgement(packet, seen) != {wanted[packet]} - {None}
        }

    def _packets(self) -> Iterator[Packet]:
        """Every pair of addresses, also of pods that are not there, and the node as a receiver."""
        for family, addresses in self._addresses.items():
            for source in addresses:
                for destination in (*addresses, NODE_ADDRESS[family]):
                    for protocol in PROTOCOLS:
                        for port in (*PORTS, *_BEYOND):
                            yield Packet(source, destination, protocol, port)


def _is_here(pod: Object, number: int) -> bool:
    return (
        pod["metadata"]["name"] == f"p{number}"
        and pod["spec"]["nodeName"] == NODE
        and not pod["spec"]["hostNetwork"]
    )


def _refusal(packet: Packet, denial: Denial) -> type[Seen] | None:
    if denial.action is DenyAction.DROP:
        return None
    return Reset if packet.protocol == "TCP" else Unreachable


def _judgement(packet: Packet, seen: set[type[Seen]]) -> set[type[Seen]]:
    """What was seen, without the node's own answers to what it took."""
    to_node = packet.destination in NODE_ADDRESS.values()
    return {Arrival} if to_node and Arrival in seen else seen


def _names(kinds: Iterable[type[Seen] | None]) -> str:
    return " and ".join(kind.__name__ for kind in kinds if kind) or "nothing"

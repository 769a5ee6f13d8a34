"""Which connections have to be looked at when rules change."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from npc.evaluate import Packet, allows, restricted
from npc.ruleset import Protocol
from tests.property.npc.test_compile import thorough
from tests.unit.npc.objects import namespace, pod, policy, rules

ADDRESSES = [f"10.0.0.{number}" for number in range(1, 6)]
PACKETS = [
    Packet(source, destination, Protocol.TCP, port)
    for source in ADDRESSES
    for destination in ADDRESSES
    for port in (80, 81)
]

# Few words, so that rules are often the same before and after while their peers are not.
PEERS: list[dict[str, Any]] = [
    {"podSelector": {"matchLabels": {"app": "x"}}},
    {"podSelector": {"matchLabels": {"app": "y"}}},
    {"ipBlock": {"cidr": "10.0.0.4/31"}},
]
CHOSEN = st.lists(st.sampled_from(PEERS), min_size=1, max_size=2)
PORTS = st.sampled_from([[], [{"port": 80}], [{"port": "http"}]])
SPECS = st.fixed_dictionaries(
    {
        "podSelector": st.sampled_from([{}, PEERS[0]["podSelector"]]),
        "policyTypes": st.sampled_from([["Ingress"], ["Egress"], ["Ingress", "Egress"]]),
        "ingress": st.lists(st.fixed_dictionaries({"from": CHOSEN, "ports": PORTS}), max_size=2),
        "egress": st.lists(st.fixed_dictionaries({"to": CHOSEN, "ports": PORTS}), max_size=2),
    }
)
POLICIES = st.lists(SPECS, max_size=2)
LABELS = st.lists(st.sampled_from(["x", "y", None]), min_size=4, max_size=4)


def world(labels: list[str | None], specs: list[Any]) -> list[Any]:
    """Two pods of this node, two of another, each if it has a label; and policies."""
    pods = [
        pod(
            f"p{number}",
            ADDRESSES[number],
            node="n1" if number < 2 else "n2",
            labels={"app": label},
            ports=[("http", "TCP", 80 + number % 2)],
        )
        for number, label in enumerate(labels)
        if label is not None
    ]
    return [namespace("x"), *pods, *(policy(spec, f"n{n}") for n, spec in enumerate(specs))]


@given(LABELS, LABELS, POLICIES, st.none() | POLICIES)
@thorough
def test_whatever_is_forbidden_anew_touches_an_address_that_is_looked_at(
    old: list[str | None], new: list[str | None], specs: list[Any], other: list[Any] | None
) -> None:
    before = rules(*world(old, specs))
    after = rules(*world(new, specs if other is None else other))
    looked_at = restricted(before, after)
    for packet in PACKETS:
        if allows(before, packet) and not allows(after, packet):
            assert not looked_at.isdisjoint((packet.source, packet.destination)), packet

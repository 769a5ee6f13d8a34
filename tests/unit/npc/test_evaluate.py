"""Whose verdicts may become stricter. What the verdicts are is a matter of the property tests."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from npc.compile import Settings
from npc.evaluate import Packet, allows, restricted
from npc.ruleset import Protocol
from tests.unit.npc.objects import namespace, pod, policy, rules

X = namespace("x")
A = pod("a", "10.0.0.1", labels={"app": "a"})
B = pod("b", "10.0.0.2", labels={"app": "b"})
C = pod("c", "10.0.0.3", node="n2", labels={"app": "c"})
FROM_C = {"from": [{"podSelector": {"matchLabels": {"app": "c"}}}]}
OPEN_TO_C = policy({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [FROM_C]})
CLOSED = policy({"podSelector": {}})


@pytest.mark.parametrize(
    ("before", "after", "addresses"),
    [
        ([A, B, C, OPEN_TO_C], [A, B, C, OPEN_TO_C], set()),
        ([A, B, C], [A, B, C, OPEN_TO_C], {"10.0.0.1"}),
        ([A, B, C, OPEN_TO_C], [A, B, C], set()),
        ([A, B, C, OPEN_TO_C], [A, B, C, CLOSED], {"10.0.0.1", "10.0.0.2"}),
        ([A, C, CLOSED], [A, B, C, CLOSED], {"10.0.0.2"}),
        ([A, B, C, OPEN_TO_C], [A, B, OPEN_TO_C], {"10.0.0.1"}),
        ([A, B, OPEN_TO_C], [A, B, C, OPEN_TO_C], set()),
    ],
    ids=[
        "nothing changed",
        "isolated",
        "not isolated any more",
        "another chain",
        "a pod came to a chain",
        "a peer went",
        "a peer came",
    ],
)
def test_whoever_may_have_lost_something(
    before: list[Any], after: list[Any], addresses: set[str]
) -> None:
    assert restricted(rules(X, *before), rules(X, *after)) == addresses


def test_everybody_isolated_where_nothing_is_known_of_before() -> None:
    assert restricted(None, rules(X, A, B, C, OPEN_TO_C)) == {"10.0.0.1"}


def test_a_protocol_that_no_policy_can_name_passes_by_rules_without_ports_alone() -> None:
    ports = {**FROM_C, "ports": [{"protocol": p.value} for p in Protocol]}
    echo = Packet("10.0.0.3", "10.0.0.1", None, 0)
    assert allows(rules(X, A, C, policy({"podSelector": {}, "ingress": [FROM_C]})), echo)
    assert not allows(rules(X, A, C, policy({"podSelector": {}, "ingress": [ports]})), echo)


def test_a_pod_may_reach_itself_but_an_address_that_is_held_may_not() -> None:
    held = Settings(guarded=(ip_network("10.0.0.0/24"),))
    found = rules(X, A, B, policy({"podSelector": {"matchLabels": {"app": "a"}}}), settings=held)
    for address, passes in (("10.0.0.1", True), ("10.0.0.2", True), ("10.0.0.9", False)):
        assert allows(found, Packet(address, address, Protocol.TCP, 80)) is passes

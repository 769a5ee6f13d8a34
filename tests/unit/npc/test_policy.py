"""Every field of a policy that can be wrong: what is said, and that nothing opens by it."""

from __future__ import annotations

from typing import Any

import pytest

from npc.policy import Policy, parse
from npc.ruleset import Direction
from npc.selector import EVERYTHING
from tests.unit.npc.objects import compiled, ingress, pod, policy, rules

BOTH = {Direction.INGRESS, Direction.EGRESS}


def read(spec: Any) -> Policy:
    return parse(policy(spec))


def said(spec: Any) -> list[str]:
    return [f"{problem.field}: {problem.message}" for problem in read(spec).problems]


@pytest.mark.parametrize(
    ("spec", "directions"),
    [
        ({}, {Direction.INGRESS}),
        (None, {Direction.INGRESS}),
        ({"egress": []}, {Direction.INGRESS}),
        ({"egress": [{}]}, BOTH),
        ({"policyTypes": []}, {Direction.INGRESS}),
        ({"policyTypes": ["Egress"], "ingress": [{}]}, {Direction.EGRESS}),
        ({"policyTypes": ["Egress", "Ingress"]}, BOTH),
    ],
)
def test_directions_follow_from_types_or_rules(spec: Any, directions: set[Direction]) -> None:
    found = read(spec)
    assert set(found.rules) == directions
    assert not found.problems


def test_unknown_fields_are_ignored() -> None:
    spec = {"podSelector": {"new": 1}, "newer": {}, "ingress": [{"from": [], "when": "now"}]}
    assert not read(spec).problems


def with_rule(rule: Any) -> Any:
    return {"ingress": [rule]}


def with_peer(peer: Any) -> Any:
    return with_rule({"from": [peer]})


def with_block(**block: Any) -> Any:
    return with_peer({"ipBlock": block})


def with_labels(labels: Any) -> Any:
    return with_peer({"podSelector": {"matchLabels": labels}})


def with_port(port: Any) -> Any:
    return with_rule({"ports": [port]})


def with_expression(expression: Any) -> Any:
    return with_peer({"podSelector": {"matchExpressions": [expression]}})


RULE = "spec.ingress[0]"
PEER = f"{RULE}.from[0]"
PORT = f"{RULE}.ports[0]"
LABELS = f"{PEER}.podSelector.matchLabels"
EXCEPT = f"{PEER}.ipBlock.except[0]"
EXPRESSION = f"{PEER}.podSelector.matchExpressions[0]"


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"ingress": "all"}, "spec.ingress"),
        (with_rule("all"), RULE),
        (with_rule({"from": {}}), f"{RULE}.from"),
        (with_rule({"ports": 80}), f"{RULE}.ports"),
        (with_peer("x"), PEER),
        (with_peer({}), PEER),
        (with_peer({"podSelector": None, "namespaceSelector": None}), PEER),
        (with_peer({"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8"}}), f"{PEER}.podSelector"),
        (with_peer({"podSelector": []}), f"{PEER}.podSelector"),
        (with_labels(["a"]), LABELS),
        (with_labels({"a": 1}), f"{LABELS}[a]"),
        (with_peer({"namespaceSelector": 1}), f"{PEER}.namespaceSelector"),
        (with_expression({}), f"{EXPRESSION}.key"),
        (with_expression({"key": "", "operator": "Exists"}), f"{EXPRESSION}.key"),
        (with_expression({"key": "a", "operator": "Equals"}), f"{EXPRESSION}.operator"),
        (with_expression({"key": "a", "operator": ["In"]}), f"{EXPRESSION}.operator"),
        (with_expression({"key": "a", "operator": "In"}), f"{EXPRESSION}.values"),
        (with_expression({"key": "a", "operator": "NotIn", "values": []}), f"{EXPRESSION}.values"),
        (
            with_expression({"key": "a", "operator": "Exists", "values": ["b"]}),
            f"{EXPRESSION}.values",
        ),
        (with_expression({"key": "a", "operator": "In", "values": [1]}), f"{EXPRESSION}.values[0]"),
        (with_peer({"ipBlock": "10.0.0.0/8"}), f"{PEER}.ipBlock"),
        (with_peer({"ipBlock": {}}), f"{PEER}.ipBlock.cidr"),
        (with_peer({"ipBlock": {"cidr": "10.0.0.0"}}), f"{PEER}.ipBlock.cidr"),
        (with_peer({"ipBlock": {"cidr": "10.0.0.0/33"}}), f"{PEER}.ipBlock.cidr"),
        (with_block(cidr="fe80::%x\nflush NPC-6-EGRESS/64"), f"{PEER}.ipBlock.cidr"),
        (with_block(cidr="fe80::/10", **{"except": ["fe80::%eth0/64"]}), EXCEPT),
        (with_peer({"ipBlock": {"cidr": "10.0.0.0/8", "except": "x"}}), f"{PEER}.ipBlock.except"),
        (with_block(cidr="10.0.0.0/8", **{"except": ["11.0.0.0/9"]}), EXCEPT),
        (with_block(cidr="10.0.0.0/8", **{"except": ["0.0.0.0/0"]}), EXCEPT),
        (with_block(cidr="10.0.0.0/8", **{"except": ["fd00::/8"]}), EXCEPT),
        (with_port("80"), PORT),
        (with_port({"port": 0}), f"{PORT}.port"),
        (with_port({"port": 65536}), f"{PORT}.port"),
        (with_port({"port": 8.5}), f"{PORT}.port"),
        (with_port({"port": True}), f"{PORT}.port"),
        (with_port({"port": ""}), f"{PORT}.port"),
        (with_port({"port": 80, "protocol": "ICMP"}), f"{PORT}.protocol"),
        (with_port({"port": 80, "protocol": "tcp"}), f"{PORT}.protocol"),
        (with_port({"port": 80, "endPort": 79}), f"{PORT}.endPort"),
        (with_port({"port": "http", "endPort": 90}), f"{PORT}.endPort"),
        (with_port({"endPort": 90}), f"{PORT}.endPort"),
    ],
)
def test_what_cannot_be_read_is_named_and_allows_nothing(spec: Any, field: str) -> None:
    [problem] = read(spec).problems
    assert problem.field == field
    assert str(problem).startswith(f"NetworkPolicy x/p: {field}: ")
    found = rules(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), policy(spec))
    assert ingress(found, "10.0.0.1") == []


@pytest.mark.parametrize("selector", ["all", {"matchLabels": {"a": 1}}, {"matchExpressions": [{}]}])
def test_a_selector_that_cannot_be_read_isolates_the_namespace(selector: Any) -> None:
    found = read({"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [{}]})
    assert found.pods == EVERYTHING
    assert set(found.rules) == {Direction.INGRESS}
    assert "isolates every pod of its namespace" in found.problems[0].message


@pytest.mark.parametrize("types", ["Ingress", ["Sideways"], [["Ingress"]], [1]])
def test_types_that_cannot_be_read_isolate_both_ways(types: Any) -> None:
    found = read({"podSelector": {}, "policyTypes": types})
    assert set(found.rules) == BOTH
    assert found.problems


@pytest.mark.parametrize("spec", ["all", 7, [1]])
def test_a_spec_that_is_no_object_isolates_the_namespace_both_ways(spec: Any) -> None:
    found = read(spec)
    assert found.pods == EVERYTHING
    assert found.rules == {Direction.INGRESS: (), Direction.EGRESS: ()}


def test_one_bad_item_leaves_the_others() -> None:
    spec = {
        "ingress": [
            {
                "from": [{}, {"ipBlock": {"cidr": "192.0.2.0/24"}}],
                "ports": [{"port": 80}, {"port": "x", "endPort": 1}],
            },
            "nonsense",
            {"ports": [{"port": 81}]},
        ]
    }
    found = rules(pod("a", "10.0.0.1"), policy(spec))
    assert ingress(found, "10.0.0.1") == [("192.0.2.0/24", "TCP 80"), ("any", "TCP 81")]
    assert len(said(spec)) == 3


def test_a_bad_policy_does_not_touch_another() -> None:
    good = policy({"ingress": [{"ports": [{"port": 80}]}]}, "good")
    bad = policy({"podSelector": "?", "ingress": [{}]}, "bad", namespace="y")
    objects = [pod("a", "10.0.0.1"), pod("b", "10.0.0.2", namespace="y"), good, bad]
    found = compiled(*objects)
    assert [problem.object for problem in found.problems] == ["y/bad"]
    assert ingress(rules(*objects), "10.0.0.1") == [("any", "TCP 80")]


def test_host_bits_in_a_block_are_ignored() -> None:
    found = rules(pod("a", "10.0.0.1"), policy(with_peer({"ipBlock": {"cidr": "192.0.2.77/24"}})))
    assert ingress(found, "10.0.0.1") == [("192.0.2.0/24", "any")]

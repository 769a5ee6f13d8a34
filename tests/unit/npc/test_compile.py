"""The compiler's choices: which pods, which sets, which chains."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from npc.api import Namespace, NetworkPolicy
from npc.compile import _FamilyCompiler
from npc.lenient import Fault
from npc.ruleset import Direction, Family, SetKind
from tests.unit.npc.objects import (
    NODE,
    chain_of,
    compiled,
    egress,
    ingress,
    namespace,
    pod,
    policy,
    rules,
)

DENY = policy({"policyTypes": ["Ingress", "Egress"]}, "deny")


def test_pods_with_the_same_rules_share_a_chain() -> None:
    pods = [pod(f"p{n}", f"10.0.0.{n}") for n in range(1, 51)]
    found = rules(*pods, DENY)
    assert len(found.chains) == 2
    assert [
        len(found.sets[b.members].entries) for b in found.dispatch.bindings[Direction.INGRESS]
    ] == [50]


def test_what_holds_for_many_pods_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pods = [pod(f"p{n}", f"10.0.0.{n}") for n in range(1, 51)]
    allowing = [
        policy({"podSelector": {}, "ingress": [{"ports": [{"port": 1 + n}]}]}, f"p{n:02}")
        for n in range(40)
    ]
    worked = Counter[str]()

    def counted(self: _FamilyCompiler, *arguments: Any) -> Any:
        worked["rules"] += 1
        return original(self, *arguments)

    original = _FamilyCompiler._rules
    monkeypatch.setattr(_FamilyCompiler, "_rules", counted)
    found = rules(*pods, *allowing)
    assert worked["rules"] == len(allowing)
    [only] = found.chains.values()
    assert [rule.origin for rule in only.rules] == [f"x/p{n:02}" for n in range(40)]


@pytest.mark.parametrize(
    "change",
    [
        {"node": "n2"},
        {"host_network": True},
        {"phase": "Succeeded"},
        {"phase": "Failed"},
        {"ips": ()},
        {"namespace": "y"},
    ],
)
def test_who_is_not_enforced(change: dict[str, Any]) -> None:
    found = rules(pod("a", **({"ips": ("10.0.0.1",)} | change)), DENY)
    assert not found.chains
    assert chain_of(found, "10.0.0.1", Direction.INGRESS) is None


def test_a_terminating_or_pending_pod_with_an_address_is_enforced() -> None:
    found = rules(pod("a", "10.0.0.1", phase="Pending"), DENY)
    assert ingress(found, "10.0.0.1") == []


def test_equal_selectors_however_written_are_one_set() -> None:
    expression = {"key": "app", "operator": "In", "values": ["a"]}
    one = {"ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "a"}}}]}]}
    two = {"ingress": [{"from": [{"podSelector": {"matchExpressions": [expression]}}]}]}
    found = rules(pod("a", "10.0.0.1", labels={"app": "a"}), policy(one, "one"), policy(two, "two"))
    peers = [s for s in found.sets.values() if s.entries == {"10.0.0.1"}]
    # The pod itself: as a member of its chain, as isolated, and as the one peer set.
    assert len(peers) == 3
    assert ingress(found, "10.0.0.1") == [("10.0.0.1", "any")]


def test_the_same_selector_in_two_namespaces_is_two_sets() -> None:
    spec: Any = {"ingress": [{"from": [{"podSelector": {}}]}]}
    found = rules(
        pod("a", "10.0.0.1"),
        pod("b", "10.0.0.2", namespace="y"),
        policy(spec),
        policy(spec, namespace="y"),
    )
    assert ingress(found, "10.0.0.1") == [("10.0.0.1", "any")]
    assert ingress(found, "10.0.0.2") == [("10.0.0.2", "any")]


def test_names_that_run_together_are_not_confused() -> None:
    spec: Any = {"ingress": [{"from": [{"podSelector": {}}]}]}
    one = rules(pod("a", "10.0.0.1", namespace="a"), policy(spec, "bc", namespace="a"))
    two = rules(pod("a", "10.0.0.1", namespace="ab"), policy(spec, "c", namespace="ab"))
    assert not one.chains.keys() & two.chains.keys()


def test_a_policy_that_selects_no_local_pod_costs_no_rule() -> None:
    found = rules(pod("a", "10.0.0.1", node="n2"), namespace("x"), policy({"ingress": [{}]}))
    assert not found.chains
    assert sorted(found.sets) == sorted(found.dispatch.isolated.values())


def test_everything_swallows_the_rest() -> None:
    spec = {"ingress": [{"ports": [{"port": 80}]}, {"from": [{"podSelector": {}}]}, {}]}
    assert ingress(rules(pod("a", "10.0.0.1"), policy(spec)), "10.0.0.1") == [("any", "any")]


def test_equal_rules_of_two_policies_are_one() -> None:
    spec = {"ingress": [{"ports": [{"port": 80}, {"port": 80}]}]}
    found = rules(pod("a", "10.0.0.1"), policy(spec, "one"), policy(spec, "two"))
    chain = chain_of(found, "10.0.0.1", Direction.INGRESS)
    assert chain is not None
    assert [rule.origin for rule in chain.rules] == ["x/one"]


# -- blocks ------------------------------------------------------------------------------------


def blocks(*items: Any) -> Any:
    return policy({"ingress": [{"from": [{"ipBlock": item} for item in items]}]})


def test_blocks_without_exceptions_share_a_set_the_others_have_their_own() -> None:
    found = rules(
        pod("a", "10.0.0.1"),
        blocks(
            {"cidr": "192.0.2.0/24"},
            {"cidr": "198.51.100.0/24"},
            {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]},
            {"cidr": "10.0.0.0/8", "except": ["10.2.0.0/16"]},
        ),
    )
    assert ingress(found, "10.0.0.1") == [
        ("10.0.0.0/8 without 10.1.0.0/16", "any"),
        ("10.0.0.0/8 without 10.2.0.0/16", "any"),
        ("192.0.2.0/24 198.51.100.0/24", "any"),
    ]


def test_all_addresses_need_no_set() -> None:
    found = rules(pod("a", "10.0.0.1"), blocks({"cidr": "0.0.0.0/0"}))
    assert ingress(found, "10.0.0.1") == [("any", "any")]


def test_a_block_speaks_of_its_own_family_alone() -> None:
    both = (Family.IPV4, Family.IPV6)
    found = compiled(
        pod("a", "10.0.0.1 fd00::1"),
        blocks({"cidr": "0.0.0.0/0"}, {"cidr": "2001:db8::/32"}),
        families=both,
    ).ruleset.families
    assert ingress(found[Family.IPV4], "10.0.0.1") == [("any", "any")]
    assert ingress(found[Family.IPV6], "fd00::1") == [("2001:db8::/32", "any")]


# -- named ports -------------------------------------------------------------------------------

HTTP = {"ports": [{"port": "http"}]}


def test_a_named_port_is_each_pods_own() -> None:
    found = rules(
        pod("a", "10.0.0.1", ports=[("http", "TCP", 80), ("metrics", "TCP", 9090)]),
        pod("b", "10.0.0.2", ports=[("http", "TCP", 8080), ("http", "UDP", 53)]),
        pod("c", "10.0.0.3"),
        policy({"ingress": [HTTP]}),
    )
    assert ingress(found, "10.0.0.1") == [("any", "TCP 80")]
    assert ingress(found, "10.0.0.2") == [("any", "TCP 8080")]
    assert ingress(found, "10.0.0.3") == []


def test_a_name_that_stands_for_two_numbers_allows_both() -> None:
    found = rules(
        pod("a", "10.0.0.1", ports=[("http", "TCP", 80), ("http", "TCP", 81)]),
        policy({"ingress": [HTTP]}),
    )
    assert ingress(found, "10.0.0.1") == [("any", "TCP 80"), ("any", "TCP 81")]


def out(rule: Any) -> Any:
    return policy({"policyTypes": ["Egress"], "egress": [rule]})


S1 = "10.0.1.1/32"
SERVERS = [
    pod("s1", "10.0.1.1", node="n2", labels={"app": "s"}, ports=[("http", "TCP", 80)]),
    pod("s2", "10.0.1.2", node="n2", labels={"app": "s"}, ports=[("http", "TCP", 81)]),
    pod("s3", "10.0.1.3", node="n2", labels={"app": "s"}),
    pod("t", "10.0.2.1", node="n2", namespace="y", ports=[("http", "TCP", 82)]),
]


@pytest.mark.parametrize(
    ("peers", "endpoints"),
    [
        ({}, "10.0.1.1,tcp:80 10.0.1.2,tcp:81 10.0.2.1,tcp:82"),
        ({"to": []}, "10.0.1.1,tcp:80 10.0.1.2,tcp:81 10.0.2.1,tcp:82"),
        ({"to": [{"podSelector": {}}]}, "10.0.1.1,tcp:80 10.0.1.2,tcp:81"),
        ({"to": [{"ipBlock": {"cidr": "10.0.1.0/31"}}]}, "10.0.1.1,tcp:80"),
        ({"to": [{"ipBlock": {"cidr": "10.0.1.0/30", "except": [S1]}}]}, "10.0.1.2,tcp:81"),
        ({"to": [{"ipBlock": {"cidr": "192.0.2.0/24"}}]}, ""),
    ],
)
def test_egress_to_a_named_port_is_the_pods_that_have_it(peers: Any, endpoints: str) -> None:
    found = rules(pod("a", "10.0.0.1"), *SERVERS, out(HTTP | peers))
    assert egress(found, "10.0.0.1") == [(endpoints, "any")]
    [reference] = [
        rule.peer for chain in found.chains.values() for rule in chain.rules if rule.peer
    ]
    assert reference.kind is SetKind.ENDPOINT


# -- addresses ---------------------------------------------------------------------------------


def test_an_address_that_two_pods_claim_is_the_younger_ones() -> None:
    old = pod("old", "10.0.0.1", labels={"app": "old"}, created="2026-01-01T00:00:00Z")
    new = pod("new", "10.0.0.1", labels={"app": "new"}, created="2026-01-02T00:00:00Z")

    def allow(app: str, port: int) -> Any:
        selector = {"matchLabels": {"app": app}}
        rule = {"ports": [{"port": port}]}
        return policy({"podSelector": selector, "ingress": [rule]}, app)

    for pods in ([old, new], [new, old]):
        found = rules(*pods, allow("old", 80), allow("new", 81))
        assert ingress(found, "10.0.0.1") == [("any", "TCP 81")]


def test_a_finished_pods_address_is_free() -> None:
    done = pod("done", "10.0.0.1", phase="Succeeded", labels={"app": "done"})
    heir = pod("heir", "10.0.0.1", namespace="y")
    found = rules(done, heir, policy({"podSelector": {"matchLabels": {"app": "done"}}}))
    assert chain_of(found, "10.0.0.1", Direction.INGRESS) is None


def test_an_address_that_is_none_is_reported_and_left_out() -> None:
    found = compiled(pod("a", "10.0.0.1"), pod("b", "banana"), DENY)
    assert [str(problem) for problem in found.problems] == [
        "Pod x/b: status.podIPs[0]: 'banana' is not an address; left out"
    ]
    assert found.isolated == {Direction.INGRESS: 2, Direction.EGRESS: 2}


def test_what_cannot_be_read_of_an_object_is_reported_and_the_rest_counts() -> None:
    fault = (Fault("metadata.labels", "5 is not an object; left out"),)
    team = Namespace("x", "x", "1", {}, faults=fault)
    deny = NetworkPolicy("x", "p", "", "", {}, DENY.spec, faults=fault)
    found = compiled(pod("a", "10.0.0.1", faults=fault), team, deny)
    assert [str(problem) for problem in found.problems] == [
        f"{what}: metadata.labels: 5 is not an object; left out"
        for what in ("Namespace x", "NetworkPolicy x/p", "Pod x/a")
    ]
    assert found.isolated == {Direction.INGRESS: 1, Direction.EGRESS: 1}


def test_an_address_with_a_zone_is_reported_and_left_out() -> None:
    found = compiled(pod("a", "fe80::1%x"), DENY, families=(Family.IPV6,))
    assert [problem.message for problem in found.problems] == [
        "'fe80::1%x' is not an address; left out"
    ]
    for one in found.ruleset.families[Family.IPV6].sets.values():
        assert not one.entries


@pytest.mark.parametrize("number", [-1, 0, 65536])
def test_a_named_port_that_no_packet_can_have_is_reported_and_left_out(number: int) -> None:
    server = pod("a", "10.0.0.1", ports=[("web", "TCP", number), ("web", "TCP", 80)])
    named = [{"ports": [{"port": "web"}]}]
    both = policy({"podSelector": {}, "ingress": named, "egress": named})
    found = compiled(server, both)
    [problem] = found.problems
    assert problem.field == "spec.containers.ports[web]"
    assert problem.message == f"{number} is not a port number from 1 to 65535; left out"
    ruleset = found.ruleset.families[Family.IPV4]
    assert ingress(ruleset, "10.0.0.1") == [("any", "TCP 80")]
    endpoints = [one.entries for one in ruleset.sets.values() if one.kind is SetKind.ENDPOINT]
    assert endpoints == [{"10.0.0.1,tcp:80"}]


def test_a_pod_without_an_address_of_the_family_is_passed_over() -> None:
    both = (Family.IPV4, Family.IPV6)
    found = compiled(pod("a", "10.0.0.1"), DENY, families=both).ruleset.families
    assert found[Family.IPV6].dispatch.bindings == {Direction.INGRESS: (), Direction.EGRESS: ()}


def test_counts() -> None:
    found = compiled(pod("a", "10.0.0.1"), pod("b", "10.0.0.2", node="n2"), DENY)
    assert (NODE, found.local_pods) == ("n1", 1)
    assert found.isolated == {Direction.INGRESS: 1, Direction.EGRESS: 1}

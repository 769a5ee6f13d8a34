"""The compiler against the API's definition, over whole clusters and all pairs of addresses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npc import compile as compile_module
from npc.api import decode_namespace, decode_pod, decode_policy
from npc.compile import DEFAULTS, Compiled, Settings, compile
from npc.plan import make_plan, state_of
from npc.ruleset import Direction, Family, Ruleset
from tests.property.npc.interpreter import Kernel
from tests.property.npc.reference import Cluster, Packet
from tests.property.npc.strategies import NODE, OUTSIDE, PORTS, PROTOCOLS, choices, clusters
from tests.property.npc.strategies import pods as new_pods

Object = dict[str, Any]
Snapshot = tuple[list[Object], list[Object], list[Object]]

FAMILIES = (Family.IPV4, Family.IPV6)

thorough = settings(
    max_examples=max(300, settings().max_examples),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def compiled(snapshot: Snapshot, chosen: Settings = DEFAULTS) -> Compiled:
    pods, namespaces, policies = snapshot
    return compile(
        [decode_pod(json.dumps(pod).encode()) for pod in pods],
        [decode_namespace(json.dumps(namespace).encode()) for namespace in namespaces],
        [decode_policy(json.dumps(policy).encode()) for policy in policies],
        node=NODE,
        families=FAMILIES,
        settings=chosen,
    )


def packets(pods: list[Object], family: Family) -> Iterator[Packet]:
    """Every pair of addresses of the family, on every port and protocol that could matter."""
    addresses = [
        entry["ip"]
        for pod in pods
        for entry in pod["status"]["podIPs"]
        if (":" in entry["ip"]) == (family is Family.IPV6)
    ]
    addresses += OUTSIDE[family.value]
    for source in addresses:
        for destination in addresses:
            for protocol in PROTOCOLS:
                for port in (*PORTS, 9000):
                    yield Packet(source, destination, protocol, port)


@given(clusters(), choices())
@thorough
def test_the_ruleset_means_what_the_policies_mean(snapshot: Snapshot, chosen: Settings) -> None:
    result = compiled(snapshot, chosen)
    assert not result.problems
    reference = Cluster(*snapshot, NODE, [*map(str, chosen.exempt)], [*map(str, chosen.guarded)])
    for family, rules in result.ruleset.families.items():
        kernel = Kernel.holding(rules)
        for packet in packets(snapshot[0], family):
            assert kernel.allows(packet) == reference.allows(packet), packet


@given(clusters(), st.randoms(use_true_random=False))
@thorough
def test_the_order_of_the_input_does_not_matter(snapshot: Snapshot, random: Any) -> None:
    shuffled: Snapshot = ([*snapshot[0]], [*snapshot[1]], [*snapshot[2]])
    for part in shuffled:
        random.shuffle(part)
    assert compiled(shuffled) == compiled(snapshot)


@given(clusters())
@thorough
def test_dropping_the_caches_does_not_change_the_result(snapshot: Snapshot) -> None:
    for number, policy in enumerate(snapshot[2]):
        policy["metadata"] |= {"uid": f"u{number}", "resourceVersion": json.dumps(policy)}
    first = compiled(snapshot)
    assert compiled(snapshot) == first
    compile_module._parse_version.cache_clear()
    compile_module._address.cache_clear()
    assert compiled(snapshot) == first


@given(clusters())
@thorough
def test_names_fit_the_kernel_and_everything_named_is_there(snapshot: Snapshot) -> None:
    for rules in compiled(snapshot).ruleset.families.values():
        for name in rules.sets:
            assert name.startswith("NPC-")
            assert len(name) <= 31
        for name, chain in rules.chains.items():
            assert name.startswith("NPC-")
            assert len(name) <= 28
            assert all(r.peer is None or r.peer.name in rules.sets for r in chain.rules)
        for direction in Direction:
            everyone = rules.sets[rules.dispatch.isolated[direction]].entries
            bound = [rules.sets[b.members].entries for b in rules.dispatch.bindings[direction]]
            assert frozenset().union(*bound) == everyone
            assert sum(map(len, bound)) == len(everyone)


# -- plans -------------------------------------------------------------------------------------


@given(clusters(), choices(), clusters(), choices())
@thorough
def test_a_plan_leads_from_any_rules_to_any_others(
    old: Snapshot, old_choice: Settings, new: Snapshot, new_choice: Settings
) -> None:
    before, after = compiled(old, old_choice).ruleset, compiled(new, new_choice).ruleset
    for part in make_plan(state_of(before), after).families:
        kernel = Kernel.holding(before.families[part.desired.family])
        for _ in kernel.carry_out(part):
            pass
        desired = part.desired
        assert kernel.sets == desired.sets
        assert kernel.chains == desired.chains
        assert kernel.dispatch == desired.dispatch
    assert make_plan(state_of(after), after).empty


@given(clusters())
@thorough
def test_a_plan_cut_short_anywhere_can_be_taken_up_again(snapshot: Snapshot) -> None:
    desired = compiled(snapshot).ruleset
    [plan, _] = make_plan({}, desired).families
    for cut in range(len(list(Kernel().carry_out(plan)))):
        kernel = Kernel()
        steps = kernel.carry_out(plan)
        for _ in range(cut):
            next(steps)
        again = make_plan({Family.IPV4: kernel.state()}, Ruleset({Family.IPV4: plan.desired}))
        for _ in kernel.carry_out(again.families[0]):
            pass
        assert kernel.state() == state_of(desired)[Family.IPV4]


@given(clusters(), choices(), st.data())
@thorough
def test_while_one_object_changes_every_verdict_is_the_old_or_the_new_one(
    snapshot: Snapshot, chosen: Settings, data: st.DataObject
) -> None:
    pods, namespaces, policies = snapshot
    other = data.draw(clusters())
    kind = data.draw(
        st.sampled_from(["pod", "pod gone", "pod new", "policy", "policy gone", "policy new"])
    )
    changed: Snapshot = ([*pods], [*namespaces], [*policies])
    if kind == "pod":
        # The same pod, with other labels: its address and its node stay.
        place = data.draw(st.integers(0, len(pods) - 1))
        relabelled = {**pods[place]["metadata"], "labels": other[0][0]["metadata"]["labels"]}
        changed[0][place] = {**pods[place], "metadata": relabelled}
    elif kind == "pod gone":
        del changed[0][data.draw(st.integers(0, len(pods) - 1))]
    elif kind == "pod new":
        changed[0].append(data.draw(new_pods(len(pods) + 1)))
    elif kind == "policy new" and other[2]:
        changed[2].append({**other[2][0], "metadata": {"namespace": "a", "name": "new"}})
    elif policies:
        place = data.draw(st.integers(0, len(policies) - 1))
        if kind == "policy gone":
            del changed[2][place]
        elif other[2]:
            changed[2][place] = {**policies[place], "spec": other[2][0]["spec"]}
    before, after = compiled(snapshot, chosen).ruleset, compiled(changed, chosen).ruleset
    for part in make_plan(state_of(before), after).families:
        family = part.desired.family
        old, new = Kernel.holding(before.families[family]), Kernel.holding(part.desired)
        kernel = Kernel.holding(before.families[family])
        probes = list(packets([*pods, *changed[0]], family))[:: 7 if "policy" in kind else 5]
        for step in kernel.carry_out(part):
            for packet in probes:
                verdict = kernel.allows(packet)
                assert verdict in (old.allows(packet), new.allows(packet)), (step, packet)

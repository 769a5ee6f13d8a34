"""The plan's steps where the properties do not look."""

from __future__ import annotations

from dataclasses import replace

from npc.plan import FamilyPlan, FamilyState, make_plan, state_of
from npc.ruleset import Family, Ruleset, SetKind
from tests.unit.npc.objects import compiled, pod, policy

BLOCK = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
DESIRED = compiled(pod("a", "10.0.0.1"), policy({"ingress": [{"from": [BLOCK]}]})).ruleset
RULES = DESIRED.families[Family.IPV4]
FULL = state_of(DESIRED)[Family.IPV4]


def plan(state: FamilyState) -> FamilyPlan:
    [found] = make_plan({Family.IPV4: state}, DESIRED).families
    return found


def test_nothing_to_do() -> None:
    assert make_plan(state_of(DESIRED), DESIRED).empty


def test_a_set_of_blocks_that_differs_is_rebuilt_not_edited() -> None:
    [name] = [name for name, s in RULES.sets.items() if s.kind is SetKind.NETWORK]
    broken = replace(RULES.sets[name], excluded=frozenset())
    found = plan(replace(FULL, sets={**FULL.sets, name: broken}))
    assert [s.name for s in found.replace] == [name]
    assert not found.changes_rules
    assert [*found.create, *found.add, *found.remove, *found.destroy] == []


def test_a_chain_that_was_altered_is_written_again_and_nothing_else() -> None:
    [name] = RULES.chains
    found = plan(replace(FULL, chains={name: None}))
    assert [chain.name for chain in found.write_chains] == [name]
    assert not found.write_dispatch


def test_dispatch_that_was_altered_is_written_again_and_nothing_else() -> None:
    found = plan(replace(FULL, dispatch=None))
    assert found.write_dispatch
    assert not found.write_chains


def test_what_nobody_wants_goes_after_the_rules() -> None:
    stale = replace(next(iter(RULES.sets.values())), name="NPC-4-STALE")
    found = plan(
        FamilyState(
            {**FULL.sets, "NPC-4-STALE": stale}, {**FULL.chains, "NPC-I-STALE": None}, FULL.dispatch
        )
    )
    assert found.delete_chains == ("NPC-I-STALE",)
    assert found.destroy == ("NPC-4-STALE",)


def test_a_family_that_is_not_desired_is_not_touched() -> None:
    assert make_plan({Family.IPV6: FULL}, Ruleset()).empty


def test_whom_others_may_reach_is_isolated_before_and_as_long_as_they_may() -> None:
    closed = policy({"podSelector": {}, "ingress": [], "egress": [{"to": [{"podSelector": {}}]}]})
    one = compiled(pod("a", "10.0.0.1"), closed).ruleset
    two = compiled(pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), closed).ruleset
    rules = two.families[Family.IPV4]
    [peers] = {rule.peer.name for c in rules.chains.values() for rule in c.rules if rule.peer}
    isolated = set(rules.dispatch.isolated.values())
    members = {b.members for found in rules.dispatch.bindings.values() for b in found}
    inward = [change.name for change in make_plan(state_of(one), two).families[0].add]
    outward = [change.name for change in make_plan(state_of(two), one).families[0].remove]
    for order in (inward, outward[::-1]):
        assert set(order[:2]) == members
        assert set(order[2:4]) == isolated
        assert order[4:] == [peers]

"""What every dataplane promises, against the real kernel."""

from __future__ import annotations

import pytest

from npc.plan import make_plan, state_of
from npc.ruleset import AddressSet, Denial, DenyAction, Direction, Family, SetKind
from tests.contract.dataplane import samples
from tests.contract.dataplane.node import Node

pytestmark = pytest.mark.netns

DENIALS = [Denial(action, log) for action in DenyAction for log in (False, True)]


def test_what_was_applied_is_observed(node: Node) -> None:
    desired = samples.everything(node.family)
    node.sync(desired)
    assert node.dataplane.observe() == state_of(desired)
    assert make_plan(node.dataplane.observe(), desired).empty


@pytest.mark.parametrize("denial", DENIALS, ids=str)
def test_what_the_operator_decides_is_observed(node: Node, denial: Denial) -> None:
    desired = samples.decided(node.family, denial)
    node.sync(samples.simple(node.family, 1, 2))
    plan = node.sync(desired)
    assert plan.families[0].write_dispatch
    assert not plan.families[0].write_chains
    assert node.restarted().observe() == state_of(desired)
    node.sync(samples.simple(node.family, 1, 2))
    assert node.restarted().observe() == state_of(samples.simple(node.family, 1, 2))


def test_what_was_refused_before_there_were_rules_is_nothing(node: Node) -> None:
    assert node.dataplane.denied_packets() == dict.fromkeys(Direction, 0)
    node.sync(samples.simple(node.family, 1, 2))
    assert node.dataplane.denied_packets() == dict.fromkeys(Direction, 0)


def test_nothing_is_ours_at_first(node: Node) -> None:
    state = node.state()
    assert not state.sets
    assert not state.chains
    assert state.dispatch is None


def test_a_restart_finds_its_rules_and_writes_nothing(node: Node) -> None:
    desired = samples.simple(node.family, 1, 2)
    node.sync(desired)
    assert make_plan(node.restarted().observe(), desired).empty


def test_a_restart_converges_where_the_kernel_spells_it_otherwise(node: Node) -> None:
    desired = samples.everything(node.family)
    node.sync(desired)
    node.dataplane = node.restarted()
    plan = node.sync(desired)
    assert not plan.families[0].write_dispatch
    assert make_plan(node.dataplane.observe(), desired).empty


def test_no_isolated_pod_still_makes_a_whole_state(node: Node) -> None:
    node.sync(samples.nothing(node.family))
    assert make_plan(node.restarted().observe(), samples.nothing(node.family)).empty


def test_an_empty_plan_runs_nothing(node: Node) -> None:
    node.sync(samples.simple(node.family, 1))
    node.sync(samples.simple(node.family, 1))
    assert node.calls == []


def test_what_is_stale_goes(node: Node) -> None:
    node.sync(samples.everything(node.family))
    node.sync(samples.simple(node.family, 5))
    assert node.dataplane.observe() == state_of(samples.simple(node.family, 5))
    assert not [name for name in node.sets() if "ENDPOINTS" in name]


def test_a_set_grows_past_the_usual_limit(node4: Node) -> None:
    many = frozenset(f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}" for n in range(70_000))
    desired = samples.ruleset(Family.IPV4, [AddressSet("NPC-MANY", SetKind.ADDRESS, many)])
    node4.sync(desired)
    assert len(node4.sets()["NPC-MANY"]) == 70_000


def test_cleanup_leaves_nothing(node: Node) -> None:
    node.sync(samples.everything(node.family))
    node.dataplane.cleanup()
    assert node.ours() == []
    assert node.sets() == {}
    assert make_plan(node.dataplane.observe(), samples.nothing(node.family)).families[0].create

"""What each dataplane does to real packets against what policies mean, over random clusters."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npc.compile import DEFAULTS
from npc.ruleset import DenyAction, Direction, Family, FamilyRules, Ruleset
from tests.contract.dataplane.node import VARIANTS
from tests.e2e.fuzz.enforcer import NOTHING, Enforcer, Step
from tests.e2e.fuzz.world import World, pod_address
from tests.property.npc.strategies import NODE, choices, clusters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.e2e.fuzz.enforcer import Object

pytestmark = pytest.mark.netns

FAMILIES = [(Family.IPV4,), (Family.IPV6,), tuple(Family)]

COURSES = 30 if settings.get_current_profile_name() == "fuzz" else 3
steps = st.builds(Step, clusters(), choices(), restarted=st.booleans())
courses = st.lists(steps, min_size=2, max_size=5)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The xtables lock is a file, so no namespace makes it private."""
    lock = tmp_path_factory.mktemp("lock") / "xtables.lock"
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("XTABLES_LOCKFILE", str(lock))
        yield World(stack)


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """The name of a dataplane."""
    value: str = request.param
    return value


@pytest.fixture(params=FAMILIES, ids=lambda found: "and".join(f"v{f.value}" for f in found))
def enforcer(world: World, variant: str, request: pytest.FixtureRequest) -> Iterator[Enforcer]:
    made = Enforcer(world, variant, request.param)
    yield made
    made.clean()
    print(f"{request.node.name}: {made.clusters} clusters, {made.packets} packets")


@pytest.mark.timeout(400)  # a failure is made small first, which Hypothesis does for 300 s at most
@settings(
    max_examples=COURSES,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,  # every course begins without any rules
    ],
)
@given(course=courses)
def test_packets_fare_as_the_policies_say(enforcer: Enforcer, course: list[Step]) -> None:
    enforcer.clean()
    for step in course:
        enforcer.take(step)
        assert enforcer.differences(step) == {}


def test_without_rules_everything_passes(enforcer: Enforcer) -> None:
    enforcer.clean()
    assert enforcer.differences(Step(NOTHING, DEFAULTS)) == {}


OPEN_TO_P2 = {
    "metadata": {"namespace": "a", "name": "open-to-p2"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "x"}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "y"}}}]}],
        "egress": [{"ports": [{"port": 80, "endPort": 81}]}],
    },
}


def pod(number: int, app: str) -> Object:
    return {
        "metadata": {"namespace": "a", "name": f"p{number}", "labels": {"app": app}},
        "spec": {"nodeName": NODE, "hostNetwork": False},
        "status": {"podIPs": [{"ip": pod_address(family, number)} for family in Family]},
    }


def _without(rules: FamilyRules, direction: Direction) -> FamilyRules:
    """One thing that should be allowed is forgotten."""
    chains = {
        name: replace(chain, rules=()) if chain.direction is direction else chain
        for name, chain in rules.chains.items()
    }
    return replace(rules, chains=chains)


def _one_port_more(rules: FamilyRules) -> FamilyRules:
    chains = {
        name: replace(
            chain,
            rules=tuple(
                replace(rule, ports=replace(rule.ports, last=82)) if rule.ports else rule
                for rule in chain.rules
            ),
        )
        for name, chain in rules.chains.items()
    }
    return replace(rules, chains=chains)


def _another_pod(rules: FamilyRules) -> FamilyRules:
    """The peer is the pod at the wrong address."""
    right, wrong = (pod_address(rules.family, n) for n in (2, 3))
    sets = {
        name: replace(one, entries=one.entries - {right} | {wrong}) if right in one.entries else one
        for name, one in rules.sets.items()
    }
    return replace(rules, sets=sets)


def _silent(rules: FamilyRules) -> FamilyRules:
    denial = replace(rules.dispatch.denial, action=DenyAction.DROP)
    return replace(rules, dispatch=replace(rules.dispatch, denial=denial))


@pytest.mark.parametrize(
    "mistake",
    [
        lambda rules: _without(rules, Direction.INGRESS),
        lambda rules: _without(rules, Direction.EGRESS),
        _one_port_more,
        _another_pod,
        _silent,
    ],
    ids=["no ingress", "no egress", "one port more", "another pod", "no refusals"],
)
def test_a_mistake_in_the_rules_is_noticed(
    enforcer: Enforcer, mistake: Callable[[FamilyRules], FamilyRules]
) -> None:
    step = Step(([pod(1, "x"), pod(2, "y"), pod(3, "z")], [], [OPEN_TO_P2]), DEFAULTS)
    enforcer.clean()
    right = enforcer.take(step)
    assert enforcer.differences(step) == {}
    for family, rules in right.families.items():
        enforcer.write(Ruleset({**right.families, family: mistake(rules)}))
        found = enforcer.differences(step)
        assert {":" in packet.source for packet in found} == {family is Family.IPV6}

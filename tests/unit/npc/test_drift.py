"""What is said of a kernel that is not as it was written."""

from __future__ import annotations

from dataclasses import replace

from npc.drift import drift
from npc.plan import state_of
from npc.ruleset import AddressSet, Family, SetKind
from tests.unit.npc.objects import compiled, pod, policy

RULES = compiled(pod("a", "10.0.0.1"), policy({"ingress": [{"ports": [{"port": 80}]}]})).ruleset
WRITTEN = state_of(RULES)
STATE = WRITTEN[Family.IPV4]
[CHAIN] = STATE.chains
SET = "NPC-4-INGRESS"


def said(**changes: object) -> list[str]:
    return drift(WRITTEN, {Family.IPV4: replace(STATE, **changes)})  # type: ignore[arg-type]


def test_what_is_as_written_is_no_drift() -> None:
    assert drift(WRITTEN, WRITTEN) == []
    assert drift({}, WRITTEN) == []


def test_each_chain_and_set_and_the_dispatch_is_named() -> None:
    assert said(chains={}) == [f"chain {CHAIN} is gone"]
    assert said(chains={CHAIN: None}) == [f"chain {CHAIN} was changed"]
    assert said(chains={**STATE.chains, "NPC-X": None}) == ["chain NPC-X was added"]
    assert said(dispatch=None) == ["the IPV4 dispatch, or a jump to it, was changed"]
    others = {name: s for name, s in STATE.sets.items() if name != SET}
    assert said(sets=others) == [f"set {SET} is gone"]
    changed = AddressSet(SET, SetKind.ADDRESS, frozenset({"10.0.0.8", "10.0.0.9"}))
    assert said(sets={**others, SET: changed}) == [
        f"set {SET} was changed (2 entries more, 1 less)"
    ]
    assert said(sets={**STATE.sets, "NPC-MORE": changed}) == []


def test_a_family_of_which_nothing_is_left_is_all_drift() -> None:
    assert len(drift(WRITTEN, {})) == len(STATE.chains) + len(STATE.sets) + 1

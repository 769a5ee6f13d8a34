"""Any rules after any others, in one kernel: each change leads to just what a fresh start would."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from npc.dataplane.nft.layout import TABLE
from npc.dataplane.nftables import NftablesDataplane
from npc.dataplane.tools import run_tool
from npc.plan import make_plan, state_of
from npc.ruleset import Family
from tests.contract.dataplane.netns import Namespace
from tests.property.npc.strategies import choices, clusters
from tests.property.npc.test_compile import compiled

if TYPE_CHECKING:
    from npc.compile import Settings
    from npc.ruleset import Ruleset
    from tests.property.npc.test_compile import Snapshot

pytestmark = pytest.mark.netns

FAMILIES = tuple(Family)


def _listed() -> str:
    return run_tool(["nft", "--stateless", "list", "table", TABLE])


def _fresh(desired: Ruleset) -> str:
    with Namespace():
        dataplane = NftablesDataplane(FAMILIES)
        dataplane.apply(make_plan(dataplane.observe(), desired))
        return "\n".join(sorted(_listed().splitlines()))


@pytest.mark.timeout(300)
@given(st.lists(st.tuples(clusters(), choices()), min_size=2, max_size=3), st.data())
@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_any_change_leads_where_a_fresh_start_leads(
    steps: list[tuple[Snapshot, Settings]], data: st.DataObject
) -> None:
    with Namespace():
        dataplane = NftablesDataplane(FAMILIES)
        known = dataplane.observe()
        for snapshot, chosen in steps:
            desired = compiled(snapshot, chosen).ruleset
            match data.draw(st.sampled_from(["go on", "look again", "restart"])):
                case "look again":
                    known = dataplane.observe()
                case "restart":
                    dataplane = NftablesDataplane(FAMILIES)
                    known = dataplane.observe()
            dataplane.apply(make_plan(known, desired))
            known = state_of(desired)
            assert dataplane.observe() == known
            assert "\n".join(sorted(_listed().splitlines())) == _fresh(desired)

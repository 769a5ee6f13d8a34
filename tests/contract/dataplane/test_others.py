"""Backends that follow one another on one node, and what removes them all."""

from __future__ import annotations

import logging
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError, MissingToolError
from npc.dataplane.mode import Mode, tool
from npc.dataplane.others import SoleDataplane, cleanup_all
from npc.dataplane.tools import run_tool
from npc.plan import make_plan, state_of
from npc.ruleset import Family
from tests.contract.dataplane import samples
from tests.contract.dataplane.node import Node, make_dataplane, make_node

if TYPE_CHECKING:
    from tests.contract.dataplane.netns import Namespace
    from tests.contract.dataplane.node import Wrapped

pytestmark = pytest.mark.netns

# One for each place where rules are kept.
WRITERS = ("nft", "legacy", "nftables")


@pytest.mark.parametrize(("before", "after"), [*permutations(WRITERS, 2)])
def test_the_rules_before_go_once_the_rules_after_are_in_force(
    namespace: Namespace, family: Family, before: str, after: str
) -> None:
    old, new = make_node(before, family), make_node(after, family)
    desired = samples.simple(family, 1)
    old.sync(desired)
    left = old.ours()
    sole = SoleDataplane(new.dataplane)
    plan = make_plan(sole.observe(), desired)
    assert old.ours() == left
    sole.apply(plan)
    assert old.ours() == left
    sole.retire_others()
    assert old.ours() == []
    assert sole.observe() == state_of(desired)
    assert new.ours()
    assert new.sets()
    assert bool(run_tool(["ipset", "save"])) == (after != "nftables")


def test_rules_that_cannot_be_removed_stop_nothing_and_are_tried_again(
    namespace: Namespace, wrapped: Wrapped, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = make_node("nft", Family.IPV4), make_node("nftables", Family.IPV4)
    desired = samples.simple(Family.IPV4, 1)
    old.sync(desired)
    wrapped.replace(tool(Mode.NFT, Family.IPV4, "restore"), "echo it broke >&2\nexit 1")
    sole = SoleDataplane(new.dataplane)
    with caplog.at_level(logging.WARNING):
        sole.apply(make_plan(sole.observe(), desired))
        sole.retire_others()
    assert "rules of another backend may be left" in caplog.text
    assert sole.observe() == state_of(desired)
    wrapped.undo()
    sole.retire_others()
    assert old.ours() == []


def test_old_rules_that_we_may_not_see_are_no_secret(
    namespace: Namespace, wrapped: Wrapped, caplog: pytest.LogCaptureFixture
) -> None:
    old, new = make_node("legacy", Family.IPV4), make_node("nftables", Family.IPV4)
    desired = samples.simple(Family.IPV4, 1)
    old.sync(desired)
    without_raw = 'exec setpriv --bounding-set -net_raw --inh-caps -net_raw "$REAL" "$@"'
    wrapped.replace(tool(Mode.LEGACY, Family.IPV4, "save"), without_raw)
    sole = SoleDataplane(new.dataplane)
    with caplog.at_level(logging.WARNING):
        sole.apply(make_plan(sole.observe(), desired))
        sole.retire_others()
    assert "rules of iptables-legacy that cannot be read" in caplog.text
    assert "CAP_NET_RAW" in caplog.text
    wrapped.undo()
    sole.retire_others()
    assert old.ours() == []


def test_a_node_without_the_tools_of_others_has_nothing_of_them(
    namespace: Namespace, wrapped: Wrapped, caplog: pytest.LogCaptureFixture
) -> None:
    wrapped.alone()
    wrapped.replace("nft", 'exec "$REAL" "$@"')
    sole = SoleDataplane(make_dataplane("nftables", [Family.IPV4]))
    with caplog.at_level(logging.WARNING):
        sole.apply(make_plan(sole.observe(), samples.simple(Family.IPV4, 1)))
        sole.retire_others()
        sole.cleanup()
    assert caplog.text == ""
    assert run_tool(["nft", "list", "ruleset"]) == ""


def test_cleanup_takes_every_backend_in_both_families(namespace: Namespace) -> None:
    nodes = [Node(variant, family) for variant in WRITERS[:2] for family in Family]
    nodes.append(make_node("nftables", Family.IPV6))
    for node in nodes:
        node.sync(samples.simple(node.family, 1))
    cleanup_all()
    cleanup_all()
    for node in nodes:
        assert node.ours() == []
    assert run_tool(["ipset", "save"]) == ""


def test_cleanup_goes_on_where_one_backend_fails(node4: Node, wrapped: Wrapped) -> None:
    node4.sync(samples.nothing(Family.IPV4))
    broken = "nft" if node4.variant != "nftables" else tool(Mode.LEGACY, Family.IPV4, "save")
    wrapped.replace(broken, "echo it broke >&2\nexit 1")
    with pytest.raises(DataplaneError, match="it broke"):
        cleanup_all()
    wrapped.undo()
    assert node4.ours() == []


def test_cleanup_without_root_says_so(namespace: Namespace, wrapped: Wrapped) -> None:
    unprivileged = 'exec setpriv --reuid 65534 --clear-groups "$REAL" "$@"'
    for name in ("nft", "ipset", *(tool(m, f, "save") for m in Mode for f in Family)):
        wrapped.replace(name, unprivileged)
    with pytest.raises(MissingToolError, match="needs root"):
        cleanup_all()

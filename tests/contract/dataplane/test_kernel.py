"""What the dataplanes of iptables do, against the real kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError
from npc.dataplane.libiptc import LibiptcDataplane
from npc.dataplane.mode import Mode, tool
from npc.dataplane.restore import RestoreDataplane, cleanup_node
from npc.dataplane.tools import run_tool
from npc.plan import make_plan, state_of
from npc.ruleset import AddressSet, Family, SetKind
from tests.contract.dataplane import samples
from tests.contract.dataplane.node import IPTABLES, Node

if TYPE_CHECKING:
    from tests.contract.dataplane.netns import Namespace

pytestmark = pytest.mark.netns


@pytest.fixture(params=IPTABLES)
def variant(request: pytest.FixtureRequest) -> str:
    value: str = request.param
    return value


# -- writing and reading back --------------------------------------------------------------------


def test_a_new_member_touches_sets_and_the_denial_alone(node: Node) -> None:
    node.sync(samples.simple(node.family, 1, 2))
    chain = [line for line in node.ours() if "WEB80" in line]
    plan = node.sync(samples.simple(node.family, 1, 3))
    assert not plan.families[0].write_chains
    assert [line for line in node.ours() if "WEB80" in line] == chain
    assert node.sets()[f"NPC-I{node.family.value}-WEB80-M"] == {
        samples.address(node.family, 1),
        samples.address(node.family, 3),
    }
    assert make_plan(node.restarted().observe(), samples.simple(node.family, 1, 3)).empty


def test_a_peer_that_comes_or_goes_runs_no_iptables(node: Node) -> None:
    peers = AddressSet("NPC-PEERS", SetKind.ADDRESS, frozenset([samples.address(node.family, 1)]))
    node.sync(samples.ruleset(node.family, [peers]))
    more = AddressSet("NPC-PEERS", SetKind.ADDRESS, frozenset([samples.address(node.family, 2)]))
    node.sync(samples.ruleset(node.family, [more]))
    assert node.calls == ["ipset", "ipset"]
    assert node.sets()["NPC-PEERS"] == set(more.entries)


def test_a_fixed_set_is_rebuilt_and_swapped_in(node: Node) -> None:
    node.sync(samples.simple(node.family, 1))
    name = f"NPC-{node.family.value}-WEB"
    run_tool(["ipset", "add", name, samples.block(node.family, 7)])
    # What a crash in an earlier rebuild leaves.
    left = f"NPC-REBUILD-{node.family.value}"
    inet = "inet" if node.family is Family.IPV4 else "inet6"
    run_tool(["ipset", "create", left, "hash:net", "family", inet, "maxelem", "1048576"])
    run_tool(["ipset", "add", left, samples.block(node.family, 8)])
    plan = node.sync(samples.simple(node.family, 1))
    assert [s.name for s in plan.families[0].replace] == [name]
    assert node.sets()[name] == {samples.block(node.family, 1)}
    assert left not in node.sets()


def test_a_set_in_use_stays_until_it_can_go(node: Node) -> None:
    old = AddressSet("NPC-OLD", SetKind.ADDRESS, frozenset([samples.address(node.family, 1)]))
    free = AddressSet("NPC-ZZZ", SetKind.ADDRESS, frozenset())
    node.sync(samples.ruleset(node.family, [old, free]))
    node.iptables("-A INPUT -m set --match-set NPC-OLD src -j ACCEPT")
    node.sync(samples.nothing(node.family))
    assert "NPC-OLD" in node.state().sets
    assert "NPC-ZZZ" not in node.sets()
    node.iptables("-D INPUT -m set --match-set NPC-OLD src -j ACCEPT")
    node.sync(samples.nothing(node.family))
    assert "NPC-OLD" not in node.sets()


@pytest.mark.parametrize(
    "other", ["hash:net", "bitmap:port range 0-1023", "list:set", "hash:ip family {other}"]
)
def test_a_set_of_ours_that_others_made_of_another_type_is_made_anew(
    node: Node, other: str
) -> None:
    desired = samples.everything(node.family)
    node.sync(desired)
    flush(node)
    typed = other.format(other="inet6" if node.family is Family.IPV4 else "inet").split()
    wanted = [one.name for family in desired.families.values() for one in family.sets.values()]
    for name in [*wanted, f"NPC-REBUILD-{node.family.value}"]:
        run_tool(["ipset", "create", name, *typed])
    node.sync(desired)
    assert node.dataplane.observe() == state_of(desired)


def test_a_set_of_another_type_that_is_in_use_is_an_error_that_names_it(node4: Node) -> None:
    desired = samples.simple(node4.family, 1)
    run_tool(["ipset", "create", "NPC-4-INGRESS", "hash:net"])
    node4.iptables("-A INPUT -m set --match-set NPC-4-INGRESS src -j ACCEPT")
    with pytest.raises(DataplaneError, match=r"the set NPC-4-INGRESS of another type.*in use"):
        node4.sync(desired)
    node4.iptables("-F INPUT")
    node4.sync(desired)
    assert make_plan(node4.restarted().observe(), desired).empty


def flush(node: Node) -> None:
    node.iptables("-F")
    node.iptables("-X")
    run_tool(["ipset", "destroy"])


def test_a_set_of_another_type_goes(node4: Node) -> None:
    run_tool(["ipset", "create", "NPC-BITS", "bitmap:port", "range", "0-1023"])
    node4.sync(samples.nothing(Family.IPV4))
    assert "NPC-BITS" not in node4.sets()


# -- drift ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "-I {chain} 1 -j RETURN",
        "-A {chain} -j RETURN",
        "-D {chain} 1",
        "-F {chain}",
        "-R {chain} 1 -p tcp --dport 80 -j RETURN",
        "-R {chain} 1 -m limit --limit 1/s -j RETURN",
        "-R {chain} 1 -j DROP",
    ],
)
def test_an_altered_chain_is_noticed_and_repaired(node: Node, change: str) -> None:
    desired = samples.simple(node.family, 1)
    node.sync(desired)
    chain = f"NPC-I{node.family.value}-WEB80"
    node.iptables(change.format(chain=chain))
    assert node.state().chains[chain] != desired.families[node.family].chains[chain]
    assert node.state().dispatch is not None
    node.sync(desired)
    assert node.dataplane.observe() == state_of(desired)


@pytest.mark.parametrize(
    "change",
    [
        "-F NPC-FORWARD",
        "-I NPC-INPUT 1 -j RETURN",
        "-D NPC-OUTPUT 1",
        "-D NPC-INGRESS 1",
        "-I NPC-EGRESS 1 -j RETURN",
        "-D NPC-DENY-INGRESS 1",
        "-I NPC-DENY-EGRESS 1 -j RETURN",
        "-I INPUT 1 -j ACCEPT",
        "-D FORWARD 1",
        "-F OUTPUT",
        "-A FORWARD -j NPC-FORWARD",
        "-I INPUT 1 -j NPC-INPUT",
        "-A OUTPUT -g NPC-DENY-EGRESS",
        "-F",
    ],
)
def test_altered_jumps_and_dispatch_are_noticed_and_repaired(node: Node, change: str) -> None:
    desired = samples.simple(node.family, 1)
    node.sync(desired)
    before = node.ours()
    node.iptables(change)
    assert node.state().dispatch != desired.families[node.family].dispatch
    node.sync(desired)
    assert node.dataplane.observe() == state_of(desired)
    assert node.ours() == before


def test_strays_in_chains_of_others_are_removed(node: Node) -> None:
    node.sync(samples.simple(node.family, 1))
    before = node.ours()
    for rule in (
        "-N KUBE-X",
        "-A KUBE-X -p tcp -j NPC-FORWARD",
        "-A KUBE-X -j NPC-FORWARD",
        "-N NPC-STALE",
        "-A KUBE-X -g NPC-STALE",
    ):
        node.iptables(rule)
    node.sync(samples.simple(node.family, 1))
    assert node.ours() == before
    assert make_plan(node.dataplane.observe(), samples.simple(node.family, 1)).empty


def test_all_chains_gone_is_repaired(node: Node) -> None:
    desired = samples.simple(node.family, 1)
    node.sync(desired)
    before = node.ours()
    node.iptables("-F")
    node.iptables("-X")
    assert node.ours() == []
    node.sync(desired)
    assert node.ours() == before


def test_altered_sets_are_noticed_and_repaired(node: Node) -> None:
    desired = samples.everything(node.family)
    node.sync(desired)
    v = node.family.value
    run_tool(["ipset", "flush", f"NPC-{v}-PODS"])
    run_tool(["ipset", "add", f"NPC-{v}-INGRESS", samples.address(node.family, 99)])
    run_tool(["ipset", "del", f"NPC-{v}-INTERNET", samples.block(node.family, 1)])
    assert not make_plan(node.dataplane.observe(), desired).empty
    node.sync(desired)
    assert node.dataplane.observe() == state_of(desired)


def test_jumps_return_to_the_first_place_when_chains_change(node: Node) -> None:
    """Also by a plan that does not know that they moved."""
    old, new = samples.simple(node.family, 1), samples.simple(node.family, 1, port=81)
    node.sync(old)
    node.iptables(
        "-I FORWARD 1 -s 203.0.113.1 -j ACCEPT"
        if node.family is Family.IPV4
        else "-I FORWARD 1 -s 2001:db8::1 -j ACCEPT"
    )
    node.dataplane.apply(make_plan(state_of(old), new))
    assert make_plan(node.dataplane.observe(), new).empty
    forward = [line for line in node.saved() if line.startswith("-A FORWARD")]
    assert [line.split()[-1] for line in forward] == ["NPC-FORWARD", "ACCEPT"]


# -- other programs ------------------------------------------------------------------------------


def _others(node: Node) -> None:
    inet = "inet" if node.family is Family.IPV4 else "inet6"
    run_tool(["ipset", "create", "OTHERS", "hash:ip", "family", inet, "comment"])
    run_tool(
        ["ipset", "add", "OTHERS", samples.address(node.family, 1), "comment", "add NPC-X 1.1.1.1"]
    )
    for rule in (
        "-N KUBE-FORWARD",
        "-A FORWARD -m comment --comment kubernetes -j KUBE-FORWARD",
        "-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP",
        "-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT",
        "-A INPUT -p tcp -m multiport --dports 22,443 -j ACCEPT",
        "-A INPUT -m set --match-set OTHERS src -j ACCEPT",
        "-A OUTPUT -m comment --comment see-NPC_and-j-NPCX -j ACCEPT",
        "-P FORWARD DROP",
    ):
        node.iptables(rule)


def test_rules_and_sets_of_others_are_never_touched(node: Node) -> None:
    _others(node)
    before, sets = node.foreign(), node.sets()
    node.sync(samples.everything(node.family))
    assert node.foreign() == before
    node.sync(samples.simple(node.family, 2))
    assert node.foreign() == before
    node.iptables("-A FORWARD -j NPC-FORWARD")
    node.sync(samples.simple(node.family, 2))
    assert node.foreign() == before
    node.dataplane.cleanup()
    assert node.saved() == before
    assert node.sets() == sets


def test_the_other_mode_and_the_other_family_are_left_alone(node: Node) -> None:
    other_mode = Mode.LEGACY if node.mode is Mode.NFT else Mode.NFT
    other_family = Family.IPV6 if node.family is Family.IPV4 else Family.IPV4
    before = node.saved(other_mode), node.saved(family=other_family)
    node.sync(samples.everything(node.family))
    assert (node.saved(other_mode), node.saved(family=other_family)) == before


def test_native_nftables_rules_in_the_table_are_a_clear_error(namespace: Namespace) -> None:
    node = Node("nft", Family.IPV4)
    node.sync(samples.simple(Family.IPV4, 1))
    rules = run_tool(["nft", "list", "chain", "ip", "filter", "NPC-INGRESS"])
    run_tool(["nft", "add", "rule", "ip", "filter", "INPUT", "ct", "state", "new", "log", "accept"])
    with pytest.raises(DataplaneError, match="rules that iptables cannot read"):
        node.dataplane.observe()
    assert run_tool(["nft", "list", "chain", "ip", "filter", "NPC-INGRESS"]) == rules
    run_tool(["nft", "flush", "chain", "ip", "filter", "INPUT"])
    node.sync(samples.simple(Family.IPV4, 1))
    assert make_plan(node.dataplane.observe(), samples.simple(Family.IPV4, 1)).empty


def test_native_nftables_tables_do_not_matter(namespace: Namespace) -> None:
    node = Node("nft", Family.IPV4)
    run_tool(
        ["nft", "-f", "-"],
        "table inet other { chain c { type filter hook forward priority 0; "
        "ct state new log accept; }; }",
    )
    node.sync(samples.simple(Family.IPV4, 1))
    assert make_plan(node.dataplane.observe(), samples.simple(Family.IPV4, 1)).empty


# -- cleanup -------------------------------------------------------------------------------------


def test_cleanup_takes_both_modes_and_both_families_at_once(namespace: Namespace) -> None:
    nodes = [Node(variant, family) for variant in IPTABLES for family in Family]
    for node in nodes:
        node.sync(samples.simple(node.family, 1))
    cleanup_node()
    for node in nodes:
        assert node.ours() == []
        assert node.sets() == {}


def test_cleanup_of_a_clean_machine_creates_nothing(namespace: Namespace) -> None:
    cleanup_node()
    cleanup_node()
    assert Path("/proc/thread-self/net/ip_tables_names").read_text() == ""
    assert Path("/proc/thread-self/net/ip6_tables_names").read_text() == ""
    assert run_tool(["nft", "list", "ruleset"]) == ""


def test_cleanup_removes_what_a_crash_or_another_version_left(node: Node) -> None:
    for rule in (
        "-N NPC-OLD-LAYOUT",
        "-N NPC-OLDER",
        "-A NPC-OLDER -j NPC-OLD-LAYOUT",
        "-A NPC-OLD-LAYOUT -j DROP",
        "-A FORWARD -s 0/0 -j NPC-OLDER",
        "-A INPUT -g NPC-OLD-LAYOUT",
    ):
        node.iptables(rule)
    run_tool(["ipset", "create", "NPC-LONELY", "hash:ip"])
    node.dataplane.cleanup()
    assert node.ours() == []
    assert node.sets() == {}


def test_cleanup_says_what_it_could_not_remove(node: Node) -> None:
    node.sync(samples.simple(node.family, 1))
    name = f"NPC-{node.family.value}-WEB"
    node.iptables(f"-A INPUT -m set --match-set {name} src -j ACCEPT")
    pauses: list[float] = []
    with pytest.raises(DataplaneError, match=f"{name} is in use"):
        cleanup_node(pause=pauses.append)
    assert pauses
    assert list(node.sets()) == [name]
    assert node.ours() == [f"-A INPUT -m set --match-set {name} src -j ACCEPT"]


def opened(node: Node, mode: str | None = None) -> RestoreDataplane:
    """The node's kind of dataplane, by the way that the agent takes."""
    kind = LibiptcDataplane if node.variant == "libiptc" else RestoreDataplane
    return kind.open(mode or node.mode.value, [node.family])


def test_open_leaves_the_rules_in_force_alone(node: Node) -> None:
    node.sync(samples.everything(node.family))
    before = node.saved()
    opened(node)
    assert node.saved() == before


def test_open_takes_nft_where_the_kubelet_says_nothing(namespace: Namespace) -> None:
    assert RestoreDataplane.open("auto", [Family.IPV4]).mode is Mode.NFT


def test_open_sees_that_the_machine_can_do_it_and_leaves_nothing(node: Node) -> None:
    assert opened(node).mode is node.mode
    assert node.sets() == {}
    assert node.ours() == []


def test_open_follows_the_kubelet(node4: Node) -> None:
    run_tool(
        [tool(node4.mode, Family.IPV4, "restore")], "*mangle\n:KUBE-KUBELET-CANARY -\nCOMMIT\n"
    )
    assert opened(node4, "auto").mode is node4.mode

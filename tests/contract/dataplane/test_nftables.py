"""What the dataplane of nftables does besides, against the real kernel."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError, MissingToolError
from npc.dataplane.nftables import NftablesDataplane, remove_table
from npc.dataplane.tools import ToolError, run_tool
from npc.plan import make_plan, state_of
from npc.ruleset import AddressSet, Family, Rule, Ruleset, SetKind, SetRef
from tests.contract.dataplane import samples
from tests.contract.dataplane.node import NftablesNode

if TYPE_CHECKING:
    from tests.contract.dataplane.netns import Namespace
    from tests.contract.dataplane.node import Wrapped

pytestmark = pytest.mark.netns


@pytest.fixture
def variant() -> str:
    return "nftables"


@pytest.fixture
def node(namespace: Namespace, family: Family) -> NftablesNode:
    return NftablesNode("nftables", family)


@pytest.fixture
def node4(namespace: Namespace) -> NftablesNode:
    return NftablesNode("nftables", Family.IPV4)


def _both(*parts: Ruleset) -> Ruleset:
    return Ruleset({family: rules for part in parts for family, rules in part.families.items()})


# -- what is written -------------------------------------------------------------------------------


def test_a_whole_plan_is_one_transaction(node: NftablesNode) -> None:
    node.sync(samples.everything(node.family))
    node.sync(samples.simple(node.family, 2, 3))
    assert node.calls == ["nft"]
    assert node.dataplane.observe() == state_of(samples.simple(node.family, 2, 3))


def test_a_new_member_touches_no_rule(node: NftablesNode) -> None:
    node.sync(samples.simple(node.family, 1, 2))
    node.sync(samples.simple(node.family, 1, 2, 3))
    assert [line for line in node.inputs[0].splitlines() if "element" not in line] == [
        line
        for address in [samples.address(node.family, 3)]
        for one in (
            [f"{address} . {address}"],
            [f"{address} . {address}"],
            [f"{address} : jump NPC-I{node.family.value}-WEB80"],
            [f"{address} : jump NPC-E{node.family.value}-NONE"],
        )
        for line in (*one, "}")
    ]


def test_a_peer_that_comes_or_goes_is_one_element(node4: NftablesNode) -> None:
    def peers(*numbers: int) -> Ruleset:
        entries = frozenset(samples.address(Family.IPV4, n) for n in numbers)
        return samples.ruleset(Family.IPV4, [AddressSet("NPC-PEERS", SetKind.ADDRESS, entries)])

    node4.sync(peers(1, 2))
    node4.sync(peers(2, 3))
    assert node4.inputs[0].splitlines() == [
        "add element inet npc NPC-PEERS {",
        "10.0.0.3",
        "}",
        "delete element inet npc NPC-PEERS {",
        "10.0.0.1",
        "}",
    ]


def test_a_pod_that_moves_between_chains_is_no_change_of_chains(node: NftablesNode) -> None:
    one, two = (samples.chain(node.family, x, samples.IN) for x in ("ONE", "TWO"))
    a, b, c = (samples.address(node.family, n) for n in (1, 2, 3))
    node.sync(samples.ruleset(node.family, [], [(one, [a, b]), (two, [c])]))
    moved = samples.ruleset(node.family, [], [(one, [a]), (two, [b, c])])
    node.sync(moved)
    assert "chain" not in node.inputs[0]
    assert node.dataplane.observe() == state_of(moved)


def test_blocks_that_overlap_or_touch_are_written_as_the_fewest(node4: NftablesNode) -> None:
    blocks = {"10.0.0.0/8", "10.1.0.0/16", "11.0.0.0/8", "192.0.2.1/32", "0.0.0.0/32"}
    source = AddressSet("NPC-NET", SetKind.NETWORK, frozenset(blocks), frozenset({"10.1.2.0/24"}))
    rule = Rule(SetRef(source.name, source.kind), None, "a/b")
    desired = samples.ruleset(
        Family.IPV4, [source], [(samples.chain(Family.IPV4, "C", samples.IN, rule), ["10.0.0.9"])]
    )
    node4.sync(desired)
    assert node4.dataplane.observe() == state_of(desired)
    found = node4.restarted().observe()[Family.IPV4].sets[source.name]
    assert found is not None
    assert found.entries == {"10.0.0.0/7", "192.0.2.1/32", "0.0.0.0/32"}
    assert found.excluded == source.excluded
    node4.dataplane = node4.restarted()
    node4.sync(desired)
    assert make_plan(node4.dataplane.observe(), desired).empty


def test_both_families_share_the_table_and_the_transaction(node4: NftablesNode) -> None:
    dataplane = NftablesDataplane(list(Family), node4.run)
    old = _both(*(samples.everything(family) for family in Family))
    new = _both(*(samples.decided(family, samples.Denial()) for family in Family))
    for desired in (old, new, old):
        plan = make_plan(dataplane.observe(), desired)
        node4.calls.clear()
        dataplane.apply(plan)
        assert node4.calls.count("nft") <= 2
        assert dataplane.observe() == state_of(desired)
    mixed = _both(samples.simple(Family.IPV4, 1), samples.everything(Family.IPV6))
    dataplane.apply(make_plan(dataplane.observe(), mixed))
    assert dataplane.observe() == state_of(mixed)
    assert NftablesDataplane(list(Family)).observe()[Family.IPV4] == state_of(mixed)[Family.IPV4]


def test_a_table_for_other_families_is_built_anew(node4: NftablesNode) -> None:
    both = NftablesDataplane(list(Family))
    desired = _both(*(samples.simple(family, 1) for family in Family))
    both.apply(make_plan(both.observe(), desired))
    node4.sync(samples.simple(Family.IPV4, 1))
    assert not [line for line in node4.ours() if "ip6" in line or "fd00" in line]
    both.apply(make_plan(both.observe(), desired))
    assert both.observe() == state_of(desired)


# -- drift -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        "insert rule inet npc {chain} return",
        "add rule inet npc {chain} return",
        "add rule inet npc {chain} ip saddr 192.0.2.1 return",
        "insert rule inet npc {chain} limit rate 1/second return",
        "insert rule inet npc {chain} tcp dport vmap {{ 80 : accept }}",
        "insert rule inet npc {chain} ct mark 1 return",
        "insert rule inet npc {chain} meta mark set 1",
        "flush chain inet npc {chain}",
        "flush chain inet npc {chain}; add rule inet npc {chain} goto {deny}",
    ],
)
def test_an_altered_chain_is_noticed_and_repaired(node: NftablesNode, change: str) -> None:
    desired = samples.simple(node.family, 1)
    node.sync(desired)
    before = node.ours()
    v = node.family.value
    chain = f"NPC-I{v}-WEB80"
    node.nft(change.format(chain=chain, deny=f"deny-ingress{v}"))
    assert node.state().chains[chain] != desired.families[node.family].chains[chain]
    assert node.state().dispatch is not None
    node.sync(desired)
    assert node.ours() == before
    assert node.dataplane.observe() == state_of(desired)


@pytest.mark.parametrize(
    "change",
    [
        "flush chain inet npc forward",
        "insert rule inet npc input accept",
        "insert rule inet npc {deny} return",
        "flush chain inet npc {deny}",
        "delete chain inet npc output",
        "delete chain inet npc input; add chain inet npc input",
        "add chain inet npc forward {{ type filter hook forward priority -1; policy drop; }}",
        "add element inet npc {map} {{ {new} : accept }}",
        "add element inet npc {map} {{ {new} : goto {chain} }}",
        "add element inet npc {isolated} {{ {new} . {pod} }}",
        "flush set inet npc {isolated}",
        "add chain inet npc NPC-OTHER",
        "add chain inet npc mine {{ type filter hook forward priority -5; policy drop; }}",
        "add set inet npc theirs {{ type inet_service; }}",
        "add set inet npc theirs {{ type {type}; flags timeout; }}",
        "add set inet npc NPC-LONE-EXCEPT {{ type {type}; flags interval; }}",
        "add map inet npc theirs {{ type {type} : verdict; }}",
        "add table inet npc {{ flags dormant; }}",
        "add quota inet npc theirs {{ over 1 mbytes }}",
    ],
)
def test_any_other_alteration_is_noticed_and_repaired(node: NftablesNode, change: str) -> None:
    desired = samples.simple(node.family, 1)
    node.sync(desired)
    before = node.ours()
    v = node.family.value
    node.nft(
        change.format(
            deny=f"deny-ingress{v}",
            map=f"ingress{v}",
            chain=f"NPC-I{v}-WEB80",
            isolated=f"NPC-{v}-INGRESS",
            type="ipv4_addr" if node.family is Family.IPV4 else "ipv6_addr",
            pod=samples.address(node.family, 1),
            new=samples.address(node.family, 2),
        )
    )
    assert not make_plan(node.dataplane.observe(), desired).empty
    node.sync(desired)
    assert node.ours() == before
    assert node.dataplane.observe() == state_of(desired)


@pytest.mark.parametrize("change", ["flush ruleset", "delete table inet npc"])
def test_a_table_that_is_gone_is_written_again(node: NftablesNode, change: str) -> None:
    desired = samples.everything(node.family)
    node.sync(desired)
    before = node.ours()
    node.nft(change)
    node.sync(desired)
    assert node.ours() == before


def test_altered_sets_and_verdicts_are_mended_where_they_are(node: NftablesNode) -> None:
    desired = samples.everything(node.family)
    node.sync(desired)
    before = node.ours()
    v, one = node.family.value, samples.address(node.family, 1)
    closed = f"NPC-E{v}-NONE"
    for change in (
        f"flush set inet npc NPC-{v}-PODS",
        f"add element inet npc NPC-{v}-ENDPOINTS {{ {one} . tcp . 443 }}",
        f"delete element inet npc NPC-{v}-INTERNET-EXCEPT {{ {samples.block(node.family, 1)} }}",
        f"flush set inet npc NPC-{v}-INTERNET",
        f"delete element inet npc ingress{v} {{ {one} }}",
        f"delete element inet npc egress{v} {{ {one} }}",
        f"add element inet npc egress{v} {{ {one} : jump {closed} }}",
        f"add element inet npc egress{v} {{ {samples.address(node.family, 50)} : jump {closed} }}",
    ):
        node.nft(change)
    plan = node.sync(desired)
    assert not plan.families[0].write_chains
    assert "delete table" not in node.inputs[0]
    assert node.ours() == before
    assert node.dataplane.observe() == state_of(desired)


def test_a_change_that_nobody_saw_fails_as_a_whole(node: NftablesNode) -> None:
    old, new = samples.simple(node.family, 1), samples.simple(node.family, 1, 2, port=81)
    node.sync(old)
    plan = make_plan(node.dataplane.observe(), new)
    node.nft("delete table inet npc")
    with pytest.raises(ToolError, match=r"No such file or directory.*\[line 1: add chain"):
        node.dataplane.apply(plan)
    assert node.ours() == []
    node.sync(new)
    assert node.dataplane.observe() == state_of(new)


def test_a_plan_for_an_unknown_table_builds_it_whole(node: NftablesNode) -> None:
    old, new = samples.simple(node.family, 1), samples.simple(node.family, 1, 2)
    node.dataplane.apply(make_plan(state_of(old), new))
    assert node.dataplane.observe() == state_of(new)


# -- other programs --------------------------------------------------------------------------------


def test_what_is_not_ours_is_never_touched(node: NftablesNode) -> None:
    node.iptables("-A FORWARD -j ACCEPT")
    node.nft(
        """
        add table inet other
        add set inet other NPC-X { type ipv4_addr; elements = { 10.0.0.1 } }
        add chain inet other input { type filter hook input priority -1; }
        add rule inet other input ip saddr @NPC-X accept
        add table ip npc
        add chain ip npc deny-ingress4
        add rule ip npc deny-ingress4 counter drop
        add table inet npc2
        add chain inet npc2 NPC-Y
        """
    )
    run_tool(["ipset", "create", "NPC-SET", "hash:ip"])
    before = node.saved()
    for desired in (samples.everything(node.family), samples.simple(node.family, 2)):
        node.sync(desired)
        assert node.foreign() == before[: len(node.foreign())]
    node.dataplane.cleanup()
    assert node.saved() == before
    assert "NPC-SET" in run_tool(["ipset", "list", "-n"])


def test_cleanup_of_a_clean_machine_creates_nothing(node4: NftablesNode) -> None:
    remove_table()
    remove_table()
    assert run_tool(["nft", "list", "ruleset"]) == ""


def test_what_was_refused_is_counted_over_a_table_built_anew(node4: NftablesNode) -> None:
    desired = samples.simple(Family.IPV4, 1)
    node4.sync(desired)
    node4.nft(
        "delete table inet npc\n"
        + "\n".join(node4.ours()).replace(
            "denied-ingress4 {", "denied-ingress4 { packets 5 bytes 9"
        )
    )
    assert node4.dataplane.denied_packets()[samples.IN] == 5
    rules = desired.families[Family.IPV4]
    dropped = replace(rules.dispatch, denial=samples.Denial(log=True))
    node4.sync(Ruleset({Family.IPV4: replace(rules, dispatch=dropped)}))
    counters = json.loads(run_tool(["nft", "-j", "list", "counters"]))["nftables"][1:]
    assert [one["counter"]["packets"] for one in counters] == [0, 0]
    assert node4.dataplane.denied_packets()[samples.IN] == 5


# -- what may be lacking ---------------------------------------------------------------------------


@pytest.mark.parametrize("families", [[Family.IPV4], [Family.IPV6], list(Family)], ids=str)
def test_open_sees_that_the_machine_can_do_it_and_leaves_nothing(
    node4: NftablesNode, families: list[Family]
) -> None:
    NftablesDataplane.open(families)
    assert run_tool(["nft", "list", "ruleset"]) == ""
    node4.sync(samples.simple(Family.IPV4, 1))
    before = node4.ours()
    NftablesDataplane.open(families)
    assert node4.ours() == before


def test_an_absent_tool_is_named_with_its_package(node4: NftablesNode, wrapped: Wrapped) -> None:
    wrapped.alone()
    for action in (node4.dataplane.observe, lambda: NftablesDataplane.open([Family.IPV4])):
        with pytest.raises(MissingToolError, match=r"nft is not .* install the package 'nftables'"):
            action()


def test_without_root_it_says_so(node4: NftablesNode, wrapped: Wrapped) -> None:
    wrapped.replace("nft", 'exec setpriv --reuid 65534 --clear-groups "$REAL" "$@"')
    for action in (
        node4.dataplane.observe,
        node4.dataplane.cleanup,
        node4.dataplane.denied_packets,
        lambda: NftablesDataplane.open([Family.IPV4]),
    ):
        with pytest.raises(MissingToolError, match="needs root"):
            action()


@pytest.mark.parametrize(
    "said",
    [
        "netlink: Error: cache initialization failed: Protocol not supported",
        "/dev/stdin:4:1-70: Error: Could not process rule: No such file or directory",
        "/dev/stdin:9:1-70: Error: syntax error, unexpected vmap",
    ],
)
def test_a_machine_that_cannot_is_told_from_a_fault(
    node4: NftablesNode, wrapped: Wrapped, said: str
) -> None:
    wrapped.replace("nft", f"cat >/dev/null\ncat >&2 <<'.'\n{said}\n.\nexit 1")
    with pytest.raises(MissingToolError, match="lacks what it needs"):
        NftablesDataplane.open([Family.IPV4])


def test_the_element_at_fault_is_named(node4: NftablesNode) -> None:
    bad = AddressSet("NPC-BAD", SetKind.ADDRESS, frozenset(["10.0.0.1", "10.0.0.2/999"]))
    desired = samples.ruleset(Family.IPV4, [bad])
    with pytest.raises(DataplaneError, match=r"\[line \d+: 10\.0\.0\.2/999\]"):
        node4.dataplane.apply(make_plan(node4.dataplane.observe(), desired))
    assert node4.ours() == []

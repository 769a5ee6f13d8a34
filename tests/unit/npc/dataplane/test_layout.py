"""Chains to text and back, and what other spellings and foreign rules do to that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npc.dataplane import DataplaneError
from npc.dataplane.layout import (
    FIXED,
    JUMPS,
    as_read,
    chain_rules,
    fixed_chains,
    jump,
    jumps_in_place,
    read_chain,
    read_dispatch,
)
from npc.dataplane.table import FilterTable, options_of, parse_save
from npc.ruleset import (
    Chain,
    Denial,
    DenyAction,
    Direction,
    Family,
    FamilyRules,
    Ports,
    Protocol,
    Rule,
    SetKind,
    SetRef,
)
from tests.contract.dataplane import samples

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = {f"NPC-{kind.name}": kind for kind in SetKind}

_ports = st.one_of(
    st.none(),
    st.builds(Ports, st.sampled_from(Protocol)),
    st.tuples(st.sampled_from(Protocol), st.integers(1, 65535), st.integers(1, 65535)).map(
        lambda t: Ports(t[0], min(t[1:]), max(t[1:]))
    ),
)
_refs = st.sampled_from([SetRef(name, kind) for name, kind in KINDS.items()])
_plain_origins = st.from_regex(r"[a-z0-9.-]{0,40}/[a-z0-9.-]{0,40}", fullmatch=True)


def _chains(origins: st.SearchStrategy[str]) -> st.SearchStrategy[Chain]:
    rules = st.builds(Rule, st.none() | _refs, _ports, origins)
    return st.builds(
        Chain, st.just("NPC-X"), st.sampled_from(Direction), st.lists(rules, max_size=5).map(tuple)
    )


@given(_chains(_plain_origins))
def test_a_chain_is_read_as_it_was_written(chain: Chain) -> None:
    assert read_chain("NPC-X", chain_rules(chain), KINDS) == chain
    assert as_read(chain) == chain


@given(_chains(st.text(max_size=400)))
def test_any_origin_can_be_written_on_one_line(chain: Chain) -> None:
    lines = chain_rules(chain)
    assert "\n".join(lines).splitlines() == lines
    assert all(line.isascii() for line in lines)
    found = as_read(chain)
    assert found is not None
    assert [(r.peer, r.ports) for r in found.rules] == [(r.peer, r.ports) for r in chain.rules]
    assert all(len(r.origin) <= 255 for r in found.rules)
    assert read_chain("NPC-X", chain_rules(found), KINDS) == found


def test_a_port_without_a_last_one_is_that_port() -> None:
    chain = Chain("NPC-X", Direction.INGRESS, (Rule(None, Ports(Protocol.TCP, 80), "a/b"),))
    assert "--dport 80 " in chain_rules(chain)[0]


TCP80 = '-p tcp -m set --match-set NPC-ADDRESS src -m tcp --dport 80 -m comment --comment "a/b"'


@pytest.mark.parametrize(
    "rule",
    [
        f"{TCP80} -j RETURN",
        # As other versions of iptables could print it.
        (
            "-m set --match-set NPC-ADDRESS src -p tcp -m tcp --dport 80 -m comment --comment a/b"
            " -j RETURN"
        ),
    ],
)
def test_the_order_and_the_quotes_do_not_matter(rule: str) -> None:
    found = read_chain("NPC-X", [f"-A NPC-X {rule}", "-A NPC-X -g NPC-DENY-INGRESS"], KINDS)
    ref = SetRef("NPC-ADDRESS", SetKind.ADDRESS)
    assert found == Chain(
        "NPC-X", Direction.INGRESS, (Rule(ref, Ports(Protocol.TCP, 80, 80), "a/b"),)
    )


@pytest.mark.parametrize(
    "rule",
    [
        f"{TCP80} -j ACCEPT",
        f"{TCP80} -g RETURN",
        f"{TCP80}",
        f"{TCP80} -m limit --limit 1/sec -j RETURN",
        f"{TCP80} -s 10.0.0.1/32 -j RETURN",
        f"{TCP80} -i eth0 -j RETURN",
        f"{TCP80.replace('src', 'dst')} -j RETURN",
        f"{TCP80.replace('src', 'src,src')} -j RETURN",
        f"{TCP80.replace('--match-set', '! --match-set')} -j RETURN",
        f"{TCP80.replace('--dport', '! --dport')} -j RETURN",
        f"! {TCP80} -j RETURN",
        f"{TCP80.replace('80', '80:81:82')} -j RETURN",
        f"{TCP80.replace('80', 'http')} -j RETURN",
        f"{TCP80.replace('80', '80,81')} -j RETURN",
        f"{TCP80.replace('tcp', 'icmp')} -j RETURN",
        f"{TCP80.replace('tcp', '47')} -j RETURN",
        f"{TCP80.replace('NPC-ADDRESS', 'OTHER')} -j RETURN",
        f"{TCP80.replace('--dport', '--sport')} -j RETURN",
        '-m comment --comment "a" --comment "b" -j RETURN',
        "-j RETURN",
        "-g NPC-DENY-INGRESS",
        "",
    ],
)
def test_a_rule_that_we_would_not_write_makes_the_chain_unknown(rule: str) -> None:
    lines = [f"-A NPC-X {rule}", "-A NPC-X -g NPC-DENY-INGRESS"]
    assert read_chain("NPC-X", lines, KINDS) is None


@pytest.mark.parametrize(
    "end",
    [
        [],
        ["-A NPC-X -j NPC-DENY-INGRESS"],
        ["-A NPC-X -g NPC-INGRESS"],
        ["-A NPC-X -p tcp -g NPC-DENY-INGRESS"],
        ["-A NPC-X -j RETURN"],
    ],
)
def test_a_chain_that_does_not_end_in_the_denial_is_unknown(end: list[str]) -> None:
    assert read_chain("NPC-X", end, KINDS) is None


def _family_rules(family: Family) -> FamilyRules:
    return samples.everything(family).families[family]


def _decided(family: Family) -> FamilyRules:
    return samples.decided(family, Denial(DenyAction.DROP, log=True)).families[family]


def _table(rules: FamilyRules) -> dict[str, tuple[str, ...]]:
    chains = {name: tuple(lines) for name, lines in fixed_chains(rules).items()}
    return {**{hook: (jump(hook), f"-A {hook} -j ACCEPT") for hook in JUMPS}, **chains}


@pytest.mark.parametrize("family", list(Family))
def test_all_fixed_chains_are_written_and_read_back(family: Family) -> None:
    rules = _family_rules(family)
    assert set(fixed_chains(rules)) == FIXED
    table = FilterTable(_table(rules))
    assert jumps_in_place(table)
    assert read_dispatch(table, family, rules.sets) == rules.dispatch


@pytest.mark.parametrize("family", list(Family))
@pytest.mark.parametrize("rules_of", [_family_rules, _decided])
def test_any_line_that_is_gone_doubled_or_moved_is_noticed(
    rules_of: Callable[[Family], FamilyRules], family: Family
) -> None:
    rules = rules_of(family)
    chains = _table(rules)
    for name, lines in chains.items():
        for place in range(len(lines)):
            if name in JUMPS and place:
                continue  # a rule of others
            gone = (*lines[:place], *lines[place + 1 :])
            doubled = (*lines[: place + 1], lines[place], *lines[place + 1 :])
            moved = (*gone[: place + 1], lines[place], *gone[place + 1 :])
            for altered in (gone, doubled, *([moved] if moved != lines else [])):
                table = FilterTable({**chains, name: altered})
                assert read_dispatch(table, family, rules.sets) != rules.dispatch


def test_a_set_of_isolated_pods_that_vanished_is_noticed() -> None:
    rules = _family_rules(Family.IPV4)
    sets = {
        name: s for name, s in rules.sets.items() if name not in rules.dispatch.isolated.values()
    }
    assert read_dispatch(FilterTable(_table(rules)), Family.IPV4, sets) is None


def test_names_fit_into_the_kernel() -> None:
    assert all(len(name) <= 28 for name in FIXED)


# -- iptables-save -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "options"),
    [
        ("-A X", ()),
        ("-A X -j RETURN", (("-j", "RETURN"),)),
        ("-A X -p tcp -m tcp --dport 80", (("--dport", "80"), ("-p", "tcp"))),
        ('-A X -m comment --comment "a b" -j Y', (("--comment", "a b"), ("-j", "Y"))),
        (r'-A X -m comment --comment "a\"b\\c"', (("--comment", r'a"b\c'),)),
        ('-A X -m comment --comment ""', (("--comment", ""),)),
        ('-A X -m comment --comment "-j Y"', (("--comment", "-j Y"),)),
        ("-A X ! -s 10.0.0.0/8 -j Y", (("!-s", "10.0.0.0/8"), ("-j", "Y"))),
        ("-A X -m conntrack ! --ctstate DNAT", (("!--ctstate", "DNAT"),)),
        ("-A X -p tcp --tcp-flags FIN,SYN SYN", (("--tcp-flags", "FIN,SYN", "SYN"), ("-p", "tcp"))),
        ("-A X nonsense -j Y", (("-j", "Y"), ("nonsense",))),
    ],
)
def test_the_options_of_a_rule(rule: str, options: tuple[tuple[str, ...], ...]) -> None:
    assert options_of(rule) == options


def test_only_the_filter_table_is_read() -> None:
    table = parse_save(
        "# Generated\n*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -j NPC-NAT\nCOMMIT\n"
        "*filter\n:INPUT ACCEPT [1:2]\n:NPC-A - [0:0]\n-A INPUT -j NPC-A\n-A NPC-A -j DROP\n"
        "COMMIT\n# Completed\n"
    )
    assert table.chains == {"INPUT": ("-A INPUT -j NPC-A",), "NPC-A": ("-A NPC-A -j DROP",)}
    assert table.ours == ["NPC-A"]
    assert list(table.references()) == [("INPUT", 0, "-A INPUT -j NPC-A")]


@pytest.mark.parametrize("saved", ["", "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n"])
def test_a_table_that_is_not_there_is_empty(saved: str) -> None:
    assert parse_save(saved).chains == {}


def test_a_table_that_iptables_cannot_read_is_an_error() -> None:
    with pytest.raises(DataplaneError, match="another program wrote them with nft"):
        parse_save("# Table `filter' is incompatible, use 'nft' tool.\n")


def test_base_chains_that_iptables_cannot_read_do_not_matter() -> None:
    saved = (
        "# Table `filter' contains incompatible base-chains, use 'nft' tool to list them.\n"
        "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"
    )
    assert parse_save(saved).chains == {"INPUT": ()}


def test_words_that_only_look_like_ours_are_no_references() -> None:
    rules = (
        '-A INPUT -m comment --comment "-j NPC-INPUT" -j ACCEPT',
        "-A INPUT -m set --match-set NPC-A src -j ACCEPT",
        "-A INPUT -j KUBE-NPC-X",
        "-A INPUT -j",
    )
    assert list(FilterTable({"INPUT": rules}).references()) == []

"""JSON of nft as text, in the spellings of several versions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from npc.dataplane.nft.layout import Line, NftSet
from npc.dataplane.nft.listing import ForeignError, read_counters, read_table

TABLE = {"family": "inet", "name": "npc", "handle": 1}


def listed(*items: dict[str, Any]) -> str:
    return json.dumps({"nftables": [{"metainfo": {"version": "1.1.4"}}, {"table": TABLE}, *items]})


def a_set(**other: Any) -> dict[str, Any]:
    return {"set": {"name": "s", "family": "inet", "table": "npc", "type": "ipv4_addr"} | other}


def rule(*statements: dict[str, Any]) -> str:
    """The text of a rule."""
    chain = {"name": "c", "family": "inet", "table": "npc", "handle": 2}
    found = read_table(listed({"chain": chain}, {"rule": {"chain": "c", "expr": statements}}))
    [line] = found.chains["c"]
    assert line == Line(line.text)
    return line.text


def matching(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


@pytest.mark.parametrize("flags", [["interval"], "interval"])
def test_a_single_flag_of_a_set_may_stand_alone(flags: Any) -> None:
    block = {"prefix": {"addr": "10.0.0.0", "len": 8}}
    found = read_table(listed(a_set(flags=flags, elem=[block, "192.0.2.1"])))
    elements = frozenset({"10.0.0.0/8", "192.0.2.1"})
    assert found.sets["s"] == NftSet("s", "ipv4_addr", True, elements)


@pytest.mark.parametrize("flags", [["saddr"], "saddr"])
def test_a_single_flag_of_fib_may_stand_alone(flags: Any) -> None:
    fib = {"fib": {"result": "type", "flags": flags}}
    assert rule(matching(fib, "local"), {"accept": None}) == "fib saddr type local accept"


def test_addresses_are_in_our_spelling() -> None:
    found = read_table(listed(a_set(type="ipv6_addr", elem=["::ffff:1.2.3.4", "fd00::1"])))
    assert found.sets["s"].elements == {"::ffff:102:304", "fd00::1"}


def test_elements_may_have_comments() -> None:
    found = read_table(listed(a_set(elem=[{"elem": {"val": "10.0.0.1", "comment": "x"}}])))
    assert found.sets["s"].elements == {"10.0.0.1"}


@pytest.mark.parametrize("reset", [{"type": "tcp reset"}, {"type": "tcp reset", "expr": None}])
def test_a_reset(reset: dict[str, Any]) -> None:
    assert rule({"counter": "n"}, {"reject": reset}) == "counter name n reject with tcp reset"


def test_members_of_a_list_have_one_order() -> None:
    states = matching({"ct": {"key": "state"}}, ["related", "established"], "in")
    assert rule(states, {"accept": None}) == "ct state established,related accept"


@pytest.mark.parametrize(
    "statement",
    [
        {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 1}},
        {"limit": {"rate": 10, "burst": 10, "per": "minute", "inv": True}},
        {"log": {"prefix": "x", "group": 100, "queue-threshold": 5}},
        {"counter": {"packets": 0, "bytes": 0}},
        {"xt": {"type": "target", "name": "LOG"}},
        matching({"ct": {"key": "bytes", "dir": "original"}}, 1),
        matching({"meta": {"key": "mark"}}, {"|": [1, 2]}),
        matching({"&": [{"meta": {"key": "mark"}}, 1]}, 1),
    ],
    ids=str,
)
def test_what_we_never_write_is_never_read_as_ours(statement: dict[str, Any]) -> None:
    """It is kept as it came, so that it makes a difference."""
    assert "{" in rule(statement)


@pytest.mark.parametrize(
    "item",
    [
        a_set(flags=["timeout"]),
        a_set(flags=["interval", "timeout"]),
        a_set(timeout=60),
        a_set(size=10),
        a_set(stmt=[{"counter": None}]),
        {"table": TABLE | {"flags": "dormant"}},
        {"flowtable": {"family": "inet", "name": "f", "table": "npc", "handle": 4}},
        {"map": a_set(map="mark")["set"] | {"name": "ingress4"}},
        {"map": a_set(map="verdict")["set"]},
    ],
    ids=str,
)
def test_a_table_with_anything_else_in_it_is_foreign(item: dict[str, Any]) -> None:
    with pytest.raises(ForeignError):
        read_table(listed(item))


def test_counters() -> None:
    counter = {"name": "denied-ingress4", "packets": 7, "bytes": 420}
    assert read_counters(listed({"counter": counter})) == {"denied-ingress4": 7}

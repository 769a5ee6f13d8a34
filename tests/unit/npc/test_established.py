"""Which connections are ended, and what is asked of the tool that ends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from npc.dataplane import DataplaneError
from npc.dataplane.conntrack import node_addresses, read_flows
from npc.dataplane.tools import ToolError
from npc.established import Terminator
from npc.ruleset import Family, Ruleset
from tests.unit.npc.objects import compiled, namespace, pod, policy

if TYPE_CHECKING:
    from pathlib import Path

NODE_ADDRESS = "10.0.0.254"
TCP = "tcp      6 431999 ESTABLISHED src={} dst={} sport={} dport={}"
REPLY = " src={} dst={} sport={} dport={} [ASSURED] mark=0 use=1"
ECHO = "icmp     1 29 src=10.0.9.9 dst=10.0.0.1 type=8 code=0 id=5"
ECHO += " src=10.0.0.1 dst=10.0.9.9 type=0 code=0 id=5 mark=0 use=1"

X = namespace("x")
A = pod("a", "10.0.0.1", labels={"app": "a"})
FRIEND = pod("friend", "10.0.0.2", labels={"app": "friend"})
PEER = {"podSelector": {"matchLabels": {"app": "friend"}}}
POLICY = policy({"podSelector": {"matchLabels": {"app": "a"}}, "ingress": [{"from": [PEER]}]})


def flow(source: str, port: int = 80, target: str = "10.0.0.1", real: str | None = None) -> str:
    reply = REPLY.format(real or target, source, port, 5000)
    return TCP.format(source, target, 5000, port) + reply


@dataclass
class Kernel:
    """Plays ``conntrack``: a list of flows that any ``-D`` call changes as told."""

    lists: list[list[str]]
    failure: DataplaneError | None = None
    calls: list[str] = field(default_factory=list)

    def __call__(self, argv: Sequence[str], stdin: str = "") -> str:
        assert argv[0] == "conntrack"
        if argv[1] == "-D":
            self.calls.append(" ".join(argv[2:]))
            if self.failure is not None:
                raise self.failure
            return ""
        return "\n".join(self.lists.pop(0) if len(self.lists) > 1 else self.lists[0])


def terminator(kernel: Kernel) -> Terminator:
    return Terminator(kernel, lambda: frozenset({NODE_ADDRESS}), lambda _: None)


def rules(*objects: Any) -> Ruleset:
    return compiled(X, *objects).ruleset


def test_what_is_forbidden_is_forgotten_once_for_equal_connections_and_nothing_else() -> None:
    kernel = Kernel(
        [
            [
                flow("10.0.9.9"),
                flow("10.0.9.9").replace("5000", "5001"),
                flow("10.0.9.9", target="10.96.0.1", real="10.0.0.1"),
                flow("10.0.9.9", 81),
                ECHO,
                flow("10.0.0.2"),
                flow(NODE_ADDRESS),
                flow("10.0.0.1", target="10.0.9.9"),
                flow("10.0.9.9", target="10.0.0.2"),
                "unknown  2 599 src=10.0.9.9 no second direction",
            ],
            [flow("10.0.0.2")],
        ]
    )
    terminator(kernel)(rules(A, FRIEND, POLICY))
    assert kernel.calls == [
        "-f ipv4 -p 6 -s 10.0.9.9 -r 10.0.0.1 --reply-port-src 80",
        "-f ipv4 -p 6 -s 10.0.9.9 -r 10.0.0.1 --reply-port-src 81",
        "-f ipv4 -p 1 -s 10.0.9.9 -r 10.0.0.1",
    ]


def test_rules_that_forbid_nothing_more_ask_nothing() -> None:
    kernel = Kernel([[]])
    ending = terminator(kernel)
    ending(rules(A, FRIEND, POLICY))
    kernel.lists = []  # a question would fail
    ending(rules(A, FRIEND, POLICY))
    ending(rules(A, FRIEND))


def test_one_that_its_server_revives_is_forgotten_again() -> None:
    revived = TCP.format("10.0.0.1", "10.0.9.9", 80, 5000) + REPLY.format(
        "10.0.9.9", "10.0.0.1", 5000, 80
    )
    kernel = Kernel([[flow("10.0.9.9")], [revived], [revived], []])
    terminator(kernel)(rules(A, FRIEND, POLICY))
    again = "-f ipv4 -p 6 -s 10.0.0.1 -r 10.0.9.9 --reply-port-src 5000"
    assert kernel.calls[1:] == [again, again]


def test_one_that_cannot_be_ended_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    revived = TCP.format("10.0.0.1", "10.0.9.9", 80, 5000) + REPLY.format(
        "10.0.9.9", "10.0.0.1", 5000, 80
    )
    terminator(Kernel([[flow("10.0.9.9")], [revived]]))(rules(A, FRIEND, POLICY))
    assert "1 connections that are not allowed any more go on" in caplog.text


def test_one_that_ended_by_itself_is_no_error() -> None:
    gone = ToolError("failed", "conntrack v1.4.7: 0 flow entries have been deleted.")
    kernel = Kernel([[flow("10.0.9.9")], []], failure=gone)
    terminator(kernel)(rules(A, FRIEND, POLICY))
    assert kernel.calls


def test_what_failed_is_tried_by_the_next_call() -> None:
    kernel = Kernel([[flow("10.0.9.9")]], failure=ToolError("no", "out of memory"))
    ending = terminator(kernel)
    with pytest.raises(ToolError, match="no"):
        ending(rules(A, FRIEND, POLICY))
    kernel.failure, kernel.lists = None, [[flow("10.0.9.9")], []]
    ending(rules(A, FRIEND, POLICY))
    assert len(kernel.calls) == 2


def test_ipv6_addresses_are_read_in_our_spelling() -> None:
    line = flow("fd00:0:0:0:0:0:0:9", target="fd00:0:0:0:0:0:0:1")
    [found] = read_flows(lambda *_: line, Family.IPV6)
    assert (found.original.source, found.reply.source) == ("fd00::9", "fd00::1")


def test_the_nodes_addresses_are_those_of_its_local_table(tmp_path: Path) -> None:
    (tmp_path / "fib_trie").write_text(
        "Local:\n"
        "     |-- 10.0.0.0\n        /24 link UNICAST\n"
        "     |-- 10.0.0.254\n        /32 host LOCAL\n"
        "     |-- 10.0.0.255\n        /32 link BROADCAST\n"
    )
    assert node_addresses(tmp_path) == {"10.0.0.254"}
    (tmp_path / "if_inet6").write_text("fd0000000000000000000000000000fe 02 40 00 80 eth0\n")
    assert node_addresses(tmp_path) == {"10.0.0.254", "fd00::fe"}

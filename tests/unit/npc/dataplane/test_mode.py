"""The choice between the two iptables, without either."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npc.dataplane import DataplaneError, MissingToolError
from npc.dataplane.mode import Mode, choose_mode, detect_mode, tool
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

HINT = "*mangle\n:PREROUTING ACCEPT [0:0]\n:{} - [0:0]\nCOMMIT\n"


class Tools:
    """Says what it was told for each tool, and nothing for the others."""

    def __init__(self, said: Mapping[str, str | DataplaneError]) -> None:
        self._said = said
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str], stdin: str = "") -> str:
        self.asked.append(list(argv))
        said = self._said.get(argv[0], "")
        if isinstance(said, DataplaneError):
            raise said
        return said


@pytest.mark.parametrize("chain", ["KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY"])
@pytest.mark.parametrize(
    ("saved", "mode"),
    [
        ("iptables-nft-save", Mode.NFT),
        ("ip6tables-nft-save", Mode.NFT),
        ("iptables-legacy-save", Mode.LEGACY),
        ("ip6tables-legacy-save", Mode.LEGACY),
    ],
)
def test_the_kubelets_chains_decide(chain: str, saved: str, mode: Mode) -> None:
    assert detect_mode(Tools({saved: HINT.format(chain)})) is mode


def test_nft_wins_where_both_have_them() -> None:
    hint = HINT.format("KUBE-KUBELET-CANARY")
    assert detect_mode(Tools({"iptables-legacy-save": hint, "ip6tables-nft-save": hint})) is (
        Mode.NFT
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":KUBE-KUBELET-CANARY_OTHER - [0:0]",
        "-A PREROUTING -j KUBE-KUBELET-CANARY",
        "# :KUBE-IPTABLES-HINT",
    ],
)
def test_without_them_it_is_nft(text: str) -> None:
    assert detect_mode(Tools({"iptables-legacy-save": text})) is Mode.NFT


@pytest.mark.parametrize("error", [DataplaneError("broken"), MissingToolError("absent")])
def test_a_tool_that_fails_has_found_nothing(error: DataplaneError) -> None:
    hint = HINT.format("KUBE-IPTABLES-HINT")
    tools = Tools({"iptables-nft-save": error, "ip6tables-legacy-save": hint})
    assert detect_mode(tools) is Mode.LEGACY


def test_legacy_tables_are_never_named_since_that_would_create_them() -> None:
    tools = Tools({})
    detect_mode(tools)
    assert [argv for argv in tools.asked if "legacy" in argv[0]] == [
        ["iptables-legacy-save"],
        ["ip6tables-legacy-save"],
    ]


def test_a_mode_that_is_named_asks_nobody() -> None:
    tools = Tools({})
    assert choose_mode("legacy", tools) is Mode.LEGACY
    assert choose_mode("nft", tools) is Mode.NFT
    assert tools.asked == []
    with pytest.raises(ValueError, match="other"):
        choose_mode("other", tools)


def test_tools_are_called_by_the_name_that_says_their_mode() -> None:
    assert tool(Mode.NFT, Family.IPV4, "restore") == "iptables-nft-restore"
    assert tool(Mode.LEGACY, Family.IPV6, "save") == "ip6tables-legacy-save"

"""What the command line's words become."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npc.dataplane import MissingToolError
from npc.dataplane.choose import BACKENDS, choose_families, kernel_has, open_dataplane
from npc.dataplane.mode import Mode
from npc.dataplane.restore import RestoreDataplane
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Sequence


@pytest.mark.parametrize(
    ("wanted", "families"),
    [
        ("ipv4", (Family.IPV4,)),
        ("ipv6", (Family.IPV6,)),
        ("dual", (Family.IPV4, Family.IPV6)),
    ],
)
def test_named_families_are_taken_whatever_the_kernel_speaks(
    wanted: str, families: tuple[Family, ...]
) -> None:
    assert choose_families(wanted, lambda _: False) == families


@pytest.mark.parametrize("spoken", [(Family.IPV4,), (Family.IPV6,), tuple(Family)])
def test_auto_is_what_the_kernel_speaks(spoken: tuple[Family, ...]) -> None:
    assert choose_families("auto", lambda family: family in spoken) == spoken


def test_auto_is_iptables_restore_in_the_mode_of_the_node() -> None:
    def run(argv: Sequence[str], stdin: str = "") -> str:
        return ":KUBE-IPTABLES-HINT - [0:0]" if argv[0] == "iptables-legacy-save" else ""

    dataplane = open_dataplane("auto", "auto", [Family.IPV4], run).own
    assert isinstance(dataplane, RestoreDataplane)
    assert dataplane.mode is Mode.LEGACY


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_needs_a_machine_that_can(backend: str) -> None:
    def run(argv: Sequence[str], stdin: str = "") -> str:
        raise MissingToolError(f"{argv[0]} is not on this machine")

    with pytest.raises(MissingToolError):
        open_dataplane(backend, "nft", [Family.IPV4], run)


def test_this_kernel_speaks_ipv4() -> None:
    assert kernel_has(Family.IPV4)


@pytest.mark.parametrize("mode", ["auto", "nft"])
def test_libiptc_is_for_nodes_of_legacy_iptables(mode: str) -> None:
    with pytest.raises(MissingToolError, match="this node uses nft"):
        open_dataplane("libiptc", mode, [Family.IPV4], lambda argv, stdin="": "")

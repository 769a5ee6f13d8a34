"""Which of the two iptables this node uses: neither shows the rules of the other.

Packets meet the rules of both, but an administrator looks where the rest of Kubernetes writes. The
kubelet leaves chains of a known name for just this question. The order of questions and the default
are those of kubernetes-sigs/iptables-wrappers, version 3; unlike it we change no symbolic link but
call the tools by the names that say their mode.
"""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from npc.dataplane import DataplaneError
from npc.ruleset import Family

if TYPE_CHECKING:
    from npc.dataplane.tools import Run

_KUBELET = re.compile(r"^:(?:KUBE-IPTABLES-HINT|KUBE-KUBELET-CANARY)\b", re.MULTILINE)

_NAMES = {Family.IPV4: "iptables", Family.IPV6: "ip6tables"}


class Mode(enum.Enum):
    """Which part of the kernel iptables speaks to."""

    NFT = "nft"
    LEGACY = "legacy"


def tool(mode: Mode, family: Family, verb: str | None = None) -> str:
    """The name of a tool: ``iptables-nft-restore``, or ``iptables-nft`` without a verb."""
    name = f"{_NAMES[family]}-{mode.value}"
    return f"{name}-{verb}" if verb else name


def choose_mode(wanted: str, run: Run) -> Mode:
    """Turn ``auto``, ``nft`` or ``legacy`` into a mode.

    :raises ValueError: for any other text
    """
    return detect_mode(run) if wanted == "auto" else Mode(wanted)


def detect_mode(run: Run) -> Mode:
    """Look for the kubelet's chains; without them, nft. A tool that fails has found nothing."""
    # To name a table to legacy iptables would make the kernel create it, and packets pass through
    # it from then on; without a name it prints the tables that are there.
    questions: tuple[tuple[Mode, Family, list[str]], ...] = (
        (Mode.NFT, Family.IPV4, ["-t", "mangle"]),
        (Mode.NFT, Family.IPV6, ["-t", "mangle"]),
        (Mode.LEGACY, Family.IPV4, []),
        (Mode.LEGACY, Family.IPV6, []),
    )
    for mode, family, table in questions:
        try:
            saved = run([tool(mode, family, "save"), *table])
        except DataplaneError:
            continue
        if _KUBELET.search(saved):
            return mode
    return Mode.NFT

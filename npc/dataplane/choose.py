"""What the command line chooses of a dataplane, turned into one that is ready."""

from __future__ import annotations

import logging
import socket
from typing import TYPE_CHECKING

from npc.dataplane.libiptc import LibiptcDataplane
from npc.dataplane.nftables import NftablesDataplane
from npc.dataplane.others import SoleDataplane
from npc.dataplane.restore import RestoreDataplane
from npc.dataplane.tools import run_tool
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npc.dataplane import Dataplane
    from npc.dataplane.tools import Run

    Open = Callable[[str, Sequence[Family], Run], Dataplane]

log = logging.getLogger(__name__)

_BACKENDS: dict[str, Open] = {
    "restore": RestoreDataplane.open,
    "nftables": lambda _mode, families, run: NftablesDataplane.open(families, run),
    "libiptc": LibiptcDataplane.open,
}
_AUTO = "restore"

BACKENDS = ("auto", *_BACKENDS)
"""What ``open_dataplane`` understands."""

FAMILIES = ("auto", "ipv4", "ipv6", "dual")
"""What ``choose_families`` understands."""

_NAMED = {
    "ipv4": (Family.IPV4,),
    "ipv6": (Family.IPV6,),
    "dual": (Family.IPV4, Family.IPV6),
}
_SOCKETS = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}


def open_dataplane(
    backend: str, iptables_mode: str, families: Sequence[Family], run: Run = run_tool
) -> SoleDataplane:
    """Open one of ``BACKENDS``, and see that this machine can do it.

    :raises MissingToolError: if this machine cannot
    :raises DataplaneError: if the rules that are there cannot be read
    """
    opened = _BACKENDS[_AUTO if backend == "auto" else backend](iptables_mode, families, run)
    return SoleDataplane(opened, run)


def kernel_has(family: Family) -> bool:
    """Whether this kernel speaks the family at all."""
    try:
        socket.socket(_SOCKETS[family], socket.SOCK_DGRAM).close()
    except OSError:
        return False
    return True


def choose_families(wanted: str, has: Callable[[Family], bool] = kernel_has) -> tuple[Family, ...]:
    """Turn one of ``FAMILIES`` into families; ``auto`` is every one that the kernel speaks.

    A family that the kernel speaks but cannot filter is an error later and not left out here: pods
    may have such addresses, and would be open.
    """
    return named_families(wanted) or tuple(family for family in Family if has(family))


def named_families(wanted: str) -> tuple[Family, ...]:
    """The families that one of ``FAMILIES`` names; ``auto`` names none."""
    return _NAMED.get(wanted, ())

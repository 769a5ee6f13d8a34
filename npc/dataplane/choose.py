"""What the command line chooses of a dataplane, turned into one that is ready."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Callable

FAMILIES = ("auto", "ipv4", "ipv6", "dual")
"""What ``choose_families`` understands."""

_NAMED = {
    "ipv4": (Family.IPV4,),
    "ipv6": (Family.IPV6,),
    "dual": (Family.IPV4, Family.IPV6),
}
_SOCKETS = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}


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
    if wanted == "auto":
        return tuple(family for family in Family if has(family))
    return _NAMED[wanted]

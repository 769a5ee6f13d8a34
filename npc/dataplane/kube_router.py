"""Removes what kube-router's network policy controller leaves on a node.

Its chains, jumps and sets of the iptables way and its tables of the nftables way, by the names that
its versions 1 and 2 give them; nothing of kube-router's service proxy and routing, whose names
begin alike, and nothing of kube-proxy's.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING

from npc.dataplane import MissingToolError
from npc.dataplane.removal import remove_chains_and_sets
from npc.dataplane.tools import run_tool

if TYPE_CHECKING:
    from collections.abc import Callable

    from npc.dataplane.tools import Run

_HASH = "[A-Z2-7]{16}"
_NAMES = re.compile(
    "KUBE-ROUTER-(?:INPUT|FORWARD|OUTPUT)"
    f"|KUBE-NWPLCY-(?:{_HASH}|DEFAULT|COMMON|TAIL)"
    f"|KUBE-POD-FW-{_HASH}"
    f"|(?:inet6:)?(?:KUBE-(?:SRC|DST)-{_HASH}|kube-router-local-pods)"
)
_TABLES = ("ip kube-router-filter-ipv4", "ip6 kube-router-filter-ipv6")

log = logging.getLogger(__name__)


def cleanup_kube_router(run: Run = run_tool, pause: Callable[[float], None] = time.sleep) -> None:
    """Remove it in both iptables modes, in nftables, and for both families.

    :raises DataplaneError: if something may be left; all that went wrong is in its text
    """
    remove_chains_and_sets(run, lambda name: _NAMES.fullmatch(name) is not None, pause)
    # A table has to be there to be deleted.
    lines = [f"{verb} table {table}" for table in _TABLES for verb in ("add", "delete")]
    try:
        run(["nft", "-f", "-"], "\n".join(lines) + "\n")
    except MissingToolError as error:
        log.debug("nothing to remove by nft: %s", error)

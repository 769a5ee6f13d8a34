"""Removing chains and sets by their names: every rule that leads there, then they themselves."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npc.dataplane import DataplaneError, MissingToolError, sets
from npc.dataplane.mode import Mode, tool
from npc.dataplane.table import options_of, parse_save
from npc.dataplane.tools import LOCK_SECONDS
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npc.dataplane.table import FilterTable
    from npc.dataplane.tools import Run

    Owns = Callable[[str], bool]

# The kernel may give a set free a moment after the rules that used it are gone.
_DESTROY_TRIES = 10
_DESTROY_PAUSE = 0.05

_LEGACY_TABLES = {Family.IPV4: "ip_tables_names", Family.IPV6: "ip6_tables_names"}

TABLES = tuple((mode, family) for mode in Mode for family in Family)
"""Every filter table that iptables can have."""

log = logging.getLogger(__name__)


def remove_chains_and_sets(
    run: Run, owns: Owns, pause: Callable[[float], None] = time.sleep
) -> None:
    """Remove every jump to, and every chain and set of, a name that is owned; nothing else.

    In both modes and both families. Goes on where something fails, so that one part that cannot be
    removed does not keep the rest.

    :raises DataplaneError: if something may be left; all that went wrong is in its text
    """
    failures = _remove_from(run, owns, TABLES)
    left = [name for name in run(["ipset", "list", "-n"]).splitlines() if owns(name)]
    for _ in range(_DESTROY_TRIES):
        left = sets.destroy_sets(run, left)
        if not left:
            break
        pause(_DESTROY_PAUSE)
    failures += (f"the set {name} is in use by rules that are not ours" for name in left)
    if failures:
        raise DataplaneError("; ".join(failures))


def remove_chains(run: Run, owns: Owns, tables: Iterable[tuple[Mode, Family]]) -> None:
    """Remove every jump to, and every chain of, a name that is owned, in these filter tables.

    :raises DataplaneError: if something may be left; all that went wrong is in its text
    """
    if failures := _remove_from(run, owns, tables):
        raise DataplaneError("; ".join(failures))


def _remove_from(run: Run, owns: Owns, tables: Iterable[tuple[Mode, Family]]) -> list[str]:
    failures: list[str] = []
    for mode, family in tables:
        try:
            _remove_chains(run, owns, mode, family)
        except MissingToolError as error:
            # What cannot be asked for holds nothing; if we are only not root, ipset will tell.
            if mode is Mode.LEGACY and _has_legacy_table(family):
                failures.append(f"there are rules of iptables-legacy that cannot be read: {error}")
            else:
                log.debug("nothing to remove: %s", error)
        except DataplaneError as error:
            failures.append(str(error))
    return failures


def _has_legacy_table(family: Family) -> bool:
    try:
        return "filter" in Path("/proc/thread-self/net", _LEGACY_TABLES[family]).read_text().split()
    except OSError:
        return False


def _remove_chains(run: Run, owns: Owns, mode: Mode, family: Family) -> None:
    # Legacy iptables prints the tables that are there unless one is named: that would create it.
    named = ["-t", "filter"] if mode is Mode.NFT else []
    table = parse_save(run([tool(mode, family, "save"), *named]))
    owned = sorted(filter(owns, table.chains))
    if not owned:
        return
    lines = ["*filter", *(f":{name} - [0:0]" for name in owned)]
    lines += (rule.replace("-A", "-D", 1) for rule in _leading_to(table, owns))
    lines += (f"-X {name}" for name in owned)
    argv = [tool(mode, family, "restore"), "--noflush", "-w", str(LOCK_SECONDS)]
    run(argv, "\n".join([*lines, "COMMIT"]) + "\n")


def _leading_to(table: FilterTable, owns: Owns) -> Iterator[str]:
    """Every rule in a chain that is not owned and leads into one that is."""
    for chain, rules in table.chains.items():
        if not owns(chain):
            for rule in rules:
                if any(
                    option[0] in {"-j", "-g"} and any(map(owns, option[1:]))
                    for option in options_of(rule)
                ):
                    yield rule

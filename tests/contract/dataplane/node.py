"""A machine to try a dataplane on, and stand-ins for its tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npc.dataplane.libiptc import LibiptcDataplane
from npc.dataplane.mode import Mode, tool
from npc.dataplane.nft.layout import TABLE
from npc.dataplane.nftables import NftablesDataplane
from npc.dataplane.restore import RestoreDataplane
from npc.dataplane.tools import run_tool
from npc.plan import make_plan
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from npc.dataplane import Dataplane
    from npc.dataplane.tools import Run
    from npc.plan import FamilyState, Plan
    from npc.ruleset import Ruleset


TOOLS = {"nft": Mode.NFT, "legacy": Mode.LEGACY}
"""The dataplane that writes by the tools of iptables, by its mode."""

IPTABLES = {**TOOLS, "libiptc": Mode.LEGACY}
"""The dataplanes of iptables, by the mode in which it shows their rules."""

VARIANTS = {**IPTABLES, "nftables": Mode.NFT}
"""Every dataplane, by the mode of iptables that other programs use beside it."""


def make_dataplane(variant: str, families: Sequence[Family], run: Run = run_tool) -> Dataplane:
    """A dataplane that remembers nothing."""
    if variant == "nftables":
        return NftablesDataplane(families, run)
    if variant == "libiptc":
        return LibiptcDataplane(families, run)
    return RestoreDataplane(TOOLS[variant], families, run)


@dataclass
class Node:
    """One machine with one dataplane; ``calls`` are the tools that it ran, in order."""

    variant: str
    family: Family
    calls: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mode = VARIANTS[self.variant]
        self.dataplane = self.restarted()

    def restarted(self) -> Dataplane:
        """A dataplane that remembers nothing."""
        return make_dataplane(self.variant, [self.family], self.run)

    def run(self, argv: Sequence[str], stdin: str = "") -> str:
        self.calls.append(argv[0])
        self.inputs.append(stdin)
        return run_tool(argv, stdin)

    def sync(self, desired: Ruleset) -> Plan:
        """One sync that asks the kernel first."""
        plan = make_plan(self.dataplane.observe(), desired)
        self.calls.clear()
        self.inputs.clear()
        self.dataplane.apply(plan)
        return plan

    def state(self) -> FamilyState:
        return self.dataplane.observe()[self.family]

    def iptables(self, rule: str) -> None:
        """What another program does: arguments of iptables."""
        name = tool(self.mode, self.family)
        subprocess.run([name, "-w", "5", *rule.split()], check=True)

    def saved(self, mode: Mode | None = None, family: Family | None = None) -> list[str]:
        """The rules and chains of the filter table, as iptables-save prints them."""
        name = tool(mode or self.mode, family or self.family, "save")
        text = run_tool([name, "-t", "filter"])
        return [line for line in text.splitlines() if line[:1] in {":", "-"}]

    def foreign(self) -> list[str]:
        """The part of ``saved`` that is not ours."""
        return [line for line in self.saved() if "NPC-" not in line]

    def ours(self) -> list[str]:
        """The part of ``saved`` that is ours."""
        return [line for line in self.saved() if "NPC-" in line]

    def sets(self) -> dict[str, set[str]]:
        """The elements of every set on the machine."""
        found: dict[str, set[str]] = {}
        for line in run_tool(["ipset", "save"]).splitlines():
            verb, name, rest = line.split(" ", 2)
            found.setdefault(name, set())
            if verb == "add":
                found[name].add(rest)
        return found


class NftablesNode(Node):
    """One machine with the dataplane of nftables, which has a table of its own."""

    def nft(self, commands: str) -> None:
        """What another program does to our table: commands of nft."""
        run_tool(["nft", "-f", "-"], commands)

    def foreign(self) -> list[str]:
        """What iptables shows, and the tables of nftables but ours."""
        tables = [line for line in self._nft("list", "tables") if line != f"table {TABLE}"]
        return super().saved() + [line for table in tables for line in self._nft("list", table)]

    def ours(self) -> list[str]:
        if f"table {TABLE}" not in self._nft("list", "tables"):
            return []
        return self._nft("list", "table", TABLE)

    def saved(self, mode: Mode | None = None, family: Family | None = None) -> list[str]:
        """All that there is."""
        return super().saved(mode, family) + self._nft("list", "ruleset")

    def sets(self) -> dict[str, set[str]]:
        return {name: set(one.entries) for name, one in self.state().sets.items() if one}

    def _nft(self, *words: str) -> list[str]:
        """What nft prints, without what counters have counted."""
        return run_tool(["nft", "--stateless", *words]).splitlines()


def make_node(variant: str, family: Family) -> Node:
    """A machine with that dataplane."""
    return (NftablesNode if variant == "nftables" else Node)(variant, family)


class Wrapped:
    """A directory that comes first on the PATH, with stand-ins for the netfilter tools."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        self._monkeypatch = monkeypatch
        self._real = os.environ["PATH"]
        directory.mkdir()
        monkeypatch.setenv("PATH", f"{directory}:{self._real}")

    def replace(self, name: str, script: str) -> None:
        """Put a shell script in the tool's place; ``$REAL`` is the tool itself."""
        real = shutil.which(name, path=self._real)
        path = self._directory / name
        path.write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
        path.chmod(0o755)

    def at_call(self, number: int, action: str) -> None:
        """Do ``action`` instead at that call of any tool, counted from 1."""
        count = self._directory / "count"
        count.write_text("")
        names = [tool(m, f, v) for m in Mode for f in Family for v in (None, "save", "restore")]
        for name in [*names, "ipset", "nft"]:
            self.replace(
                name,
                f'echo x >>{count}\nif [ "$(wc -l <{count})" -eq {number} ]; then\n{action}\nfi\n'
                'exec "$REAL" "$@"',
            )

    def alone(self) -> None:
        """Take everything else off the PATH."""
        self._monkeypatch.setenv("PATH", str(self._directory))

    def undo(self) -> None:
        self._monkeypatch.setenv("PATH", self._real)

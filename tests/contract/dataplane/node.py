"""A machine to try a dataplane on, and stand-ins for its tools."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from npc.dataplane.mode import Mode, tool
from npc.dataplane.restore import RestoreDataplane
from npc.dataplane.tools import run_tool
from npc.plan import make_plan
from npc.ruleset import Family

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pytest

    from npc.plan import FamilyState, Plan
    from npc.ruleset import Ruleset


@dataclass
class Node:
    """One machine in one mode; ``calls`` are the tools that the dataplane ran, in order."""

    mode: Mode
    family: Family
    calls: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.dataplane = self.restarted()

    def restarted(self) -> RestoreDataplane:
        """A dataplane that remembers nothing."""
        return RestoreDataplane(self.mode, [self.family], self.run)

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
        for name in [*names, "ipset"]:
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

"""The real agent, ``npc run``, as a process in a node's namespace.

It dies with the lab, even if that is killed. What it logs goes to a file, whose end is shown when
something goes wrong.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npc.lab import netns
from npc.lab.netns import LabError, UnusableMachineError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npc.ruleset import Family

_HEALTH = ("127.0.0.1", 20245)  # each node has its own loopback
_LOG_LINES = 12
_STOP_SECONDS = 10.0
_UNUSABLE = 2


class AgentError(LabError):
    """An agent ended, or does not do its work; the message holds the end of its log."""


@dataclass(frozen=True)
class Enforcement:
    """How agents enforce: the backend that writes the rules, and which iptables it uses."""

    backend: str = "auto"
    mode: str = "nft"


class Agent:
    """The agent of one node; its files are in ``directory``."""

    def __init__(
        self,
        node: str,
        namespace: str,
        kubeconfig: Path,
        enforcement: Enforcement,
        families: Sequence[Family],
        directory: Path,
    ) -> None:
        self.node = node
        self.log = directory / f"agent-{node}.log"
        self.options: list[str] = []
        """More options of ``npc run``, for the next start."""
        # The lock that iptables takes is a file, so without this all nodes would share one.
        self.environment = {"XTABLES_LOCKFILE": str(directory / f"xtables-{node}.lock")}
        """What the next start has in its environment besides ours."""
        self.program = [sys.executable, "-m", "npc"]
        """What the next start runs: npc, or a command that becomes npc in the same process."""
        self._namespace = namespace
        self._prefix = ["ip", "netns", "exec", namespace, "setpriv", "--pdeathsig", "KILL"]
        self._arguments = [
            "run",
            *("--kubeconfig", str(kubeconfig), "--node-name", node),
            *("--families", "dual" if len(families) > 1 else families[0].name.lower()),
            *("--backend", enforcement.backend, "--iptables-mode", enforcement.mode),
            *("--health-address", "{}:{}".format(*_HEALTH)),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False

    def start(self) -> None:
        """Start it. It is killed when the calling thread ends, so that must be a lasting one."""
        self._asked = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._prefix, *self.program, *self._arguments, *self.options],
                env=os.environ | self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.log.parent,
                start_new_session=True,  # the terminal's Ctrl-C is for the lab, not for it
            )

    def kill(self) -> None:
        """End it as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._wait()

    def ask_to_stop(self) -> None:
        """Ask it to end without waiting for that; once, as a second time means at once."""
        if self._process is not None and not self._asked:
            self._asked = True
            self._process.terminate()

    def stop(self) -> int | None:
        """Ask it to end, and see that it does; its exit code, if it ran."""
        self.ask_to_stop()
        return self._wait()

    def _wait(self) -> int | None:
        if self._process is None:
            return None
        process, self._process = self._process, None
        try:
            return process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()

    def get(self, path: str) -> Any:
        """What its health server answers, as JSON; ``None`` if nothing listens there yet.

        :raises AgentError: if it has ended
        :raises UnusableMachineError: if it ended because this machine cannot enforce
        """
        code = None if self._process is None else self._process.poll()
        if code is not None:
            failure = self.failure(f"ended with exit code {code}")
            raise UnusableMachineError(str(failure)) if code == _UNUSABLE else failure

        def ask() -> Any:
            connection = http.client.HTTPConnection(*_HEALTH, timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", path)
                return json.loads(connection.getresponse().read())

        try:
            return netns.inside(self._namespace, ask)
        except (ConnectionError, TimeoutError, http.client.HTTPException):
            return None

    def failure(self, what: str) -> AgentError:
        """An error that says what is wrong with this agent and shows the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        end = "\n".join(f"  | {line}" for line in lines[-_LOG_LINES:])
        return AgentError(f"the agent of {self.node} {what}; the end of its log:\n{end}")

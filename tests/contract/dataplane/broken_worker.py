"""The program that owns libiptc, with a fault: ``STEP before|after ACTION [TIMES]``.

STEP is a method of its modules, such as ``Table.commit``; ACTION is what happens then, that often
(once, if not said).
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from typing import Any

from npc.dataplane.libiptc_worker import __main__ as worker
from npc.dataplane.libiptc_worker import rules, table


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _crash() -> None:
    ctypes.string_at(0)


def _hang() -> None:
    time.sleep(600)


def _orphan() -> None:
    """Kill the agent."""
    agent = os.getppid()
    os.kill(agent, signal.SIGKILL)
    while os.getppid() == agent:
        time.sleep(0.001)


def _meddle() -> None:
    """Another program adds a rule and takes no lock."""
    _other_program("iptables-legacy", "-A", "INPUT", "-s", "203.0.113.1", "-j", "ACCEPT")


def _destroy() -> None:
    """Another program destroys a set that no rule uses yet."""
    _other_program("ipset", "destroy", "NPC-4-NEXT")


def _try_lock() -> None:
    """Say on standard output whether another program gets the lock."""
    lock = os.environ["XTABLES_LOCKFILE"]
    done = subprocess.run(["flock", "--nonblock", lock, "true"], check=False)
    print("held" if done.returncode else "free", flush=True)


def _other_program(*argv: str) -> None:
    lock = {"XTABLES_LOCKFILE": os.environ["XTABLES_LOCKFILE"] + "-ignored"}
    subprocess.run(argv, env={**os.environ, **lock}, check=True)


ACTIONS = {
    "crash": _crash,
    "destroy": _destroy,
    "die": _die,
    "hang": _hang,
    "meddle": _meddle,
    "orphan": _orphan,
    "try-lock": _try_lock,
}


def main(step: str, when: str, action: str, times: str = "1") -> None:
    """Put the fault in and serve the agent."""
    owner, _, name = step.partition(".")
    kind = {"Builder": rules.Builder, "Table": table.Table}[owner]
    original = getattr(kind, name)
    left = int(times)

    def act() -> None:
        nonlocal left
        if left:
            left -= 1
            ACTIONS[action]()

    def replaced(*args: Any) -> Any:
        if when == "before":
            act()
        result = original(*args)
        if when == "after":
            act()
        return result

    setattr(kind, name, replaced)
    worker.main()


if __name__ == "__main__":
    main(*sys.argv[1:])

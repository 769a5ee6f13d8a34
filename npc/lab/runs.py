"""What a run of the lab leaves on the machine, and how it goes away whatever happens.

Every run has an id; all its namespaces begin with ``npc-<id>-`` and its files are in
``/run/npc-lab/<id>/``. As long as the process lives it holds a lock there, which the kernel
releases however it dies. So a run whose lock is free is dead, and ``clean`` removes what it left
and nothing of those that live.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import shutil
import signal
from pathlib import Path
from typing import IO, TYPE_CHECKING

from npc.lab import netns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

ROOT = Path("/run/npc-lab")

_NAMESPACE = re.compile(r"npc-([0-9a-f]{6})-.+")


class Run:
    """One run: its names, its directory, its lock. Use it as a context manager.

    :raises UnusableMachineError: on entering, if no lab can be made here
    """

    def __init__(self) -> None:
        self.id = secrets.token_hex(3)
        self.prefix = _prefix(self.id)
        self.directory = ROOT / self.id

    def __enter__(self) -> Self:
        netns.require_machine()
        with _registry():
            self.directory.mkdir()
            self._lock = _lock(self.directory)
        return self

    def __exit__(self, *_: object) -> None:
        with _registry():
            _remove(self.id)
        self._lock.close()


def clean() -> list[str]:
    """Remove what dead runs left, their processes included; the ids of these runs.

    :raises UnusableMachineError: if this machine cannot have had a lab
    """
    netns.require_machine()
    with _registry():
        left = {path.name for path in ROOT.iterdir() if path.is_dir()}
        for name in netns.existing("npc-"):
            match = _NAMESPACE.fullmatch(name)
            if match:
                left.add(match[1])
        dead = sorted(run for run in left if not _lives(run))
        for run in dead:
            _remove(run)
    return dead


def _prefix(run: str) -> str:
    return f"npc-{run}-"


def _lives(run: str) -> bool:
    directory = ROOT / run
    if not directory.is_dir():
        return False
    try:
        _lock(directory).close()
    except BlockingIOError:
        return True
    return False


def _remove(run: str) -> None:
    names = netns.existing(_prefix(run))
    for name in names:
        for process in netns.processes(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
    netns.delete(names)
    shutil.rmtree(ROOT / run, ignore_errors=True)


@contextlib.contextmanager
def _registry() -> Iterator[None]:
    """Keep runs from beginning and ending while dead ones are looked for."""
    ROOT.mkdir(exist_ok=True)
    with (ROOT / "lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _lock(directory: Path) -> IO[str]:
    """
    :raises BlockingIOError: if a living process holds it
    """
    handle = (directory / "lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise
    return handle

"""Network namespaces: made, entered and removed.

A namespace needs no process of its own: a thread enters it, makes a socket and leaves, and the
socket stays in that namespace for good. So one process serves every pod of a lab and probes from
each.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

R = TypeVar("R")

_DIRECTORY = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class LabError(Exception):
    """The lab cannot do what it was asked for; the message says what and why."""


class UnusableMachineError(LabError):
    """This machine lacks something that the lab needs."""


def require_machine() -> None:
    """See that network namespaces can be made here.

    :raises UnusableMachineError: saying everything that is missing
    """
    missing = []
    if os.geteuid() != 0:
        missing.append("root: namespaces and netfilter rules need it (try: sudo)")
    tools = {"ip": "iproute2", "ipset": "ipset", "iptables-nft-restore": "iptables"}
    missing += [f"{tool} (Debian's package {p})" for tool, p in tools.items() if not _have(tool)]
    if missing:
        raise UnusableMachineError("the lab needs " + "; ".join(missing))


def _have(tool: str) -> bool:
    return shutil.which(tool) is not None


def ip(commands: Iterable[str], namespace: str | None = None) -> None:
    """Run ``ip`` commands, without the word ``ip``, in one process.

    :raises LabError: if one fails; those before it stand
    """
    text = "\n".join(commands)
    where = [] if namespace is None else ["-n", namespace]
    done = subprocess.run(
        ["ip", *where, "-batch", "-"], input=text, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise LabError(f"ip in {namespace or 'the host'}: {done.stderr.strip()}")


def create(names: Iterable[str], sysctls: Mapping[str, str]) -> None:
    """Make namespaces with the loopback up and these settings below ``/proc/sys/net``.

    :raises UnusableMachineError: if this machine lets us make none
    """
    names = list(names)
    try:
        ip(f"netns add {name}" for name in names)
    except LabError as error:
        raise UnusableMachineError(f"no network namespaces can be made here: {error}") from error

    def prepare() -> None:
        for key, value in sysctls.items():
            path = Path("/proc/sys/net") / key
            if path.exists():
                path.write_text(value)

    for name in names:
        ip(["link set lo up"], name)
        inside(name, prepare)


def delete(names: Iterable[str]) -> None:
    """Remove namespaces; those that are gone already are fine."""
    for name in names:
        if (_DIRECTORY / name).exists():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def existing(prefix: str) -> list[str]:
    """The names of all namespaces that begin so."""
    if not _DIRECTORY.is_dir():
        return []
    return sorted(path.name for path in _DIRECTORY.iterdir() if path.name.startswith(prefix))


def processes(name: str) -> list[int]:
    """The processes that live in a namespace."""
    done = subprocess.run(
        ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
    )
    return [int(word) for word in done.stdout.split()]


class _Inside(threading.Thread, Generic[R]):
    def __init__(self, name: str, function: Callable[[], R]) -> None:
        super().__init__(daemon=True)
        self._namespace = name
        self._function = function
        self.result: R
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            enter(self._namespace)
            self.result = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again by the caller's thread
            self.error = error


def enter(name: str) -> None:
    """Move the calling thread, and it alone, into a namespace.

    :raises OSError: if there is no such namespace
    """
    with (_DIRECTORY / name).open() as handle:
        if _libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), name)


def inside(name: str, function: Callable[[], R]) -> R:
    """Call a function by a thread that is in a namespace; what it returns or raises."""
    thread = _Inside(name, function)
    thread.start()
    thread.join()
    if thread.error is not None:
        raise thread.error
    return thread.result


def socket_in(
    name: str, family: socket.AddressFamily, kind: socket.SocketKind, protocol: int = 0
) -> socket.socket:
    """A non-blocking socket that belongs to a namespace."""

    def make() -> socket.socket:
        made = socket.socket(family, kind, protocol)
        made.setblocking(False)
        return made

    return inside(name, make)

"""Network namespaces without names: they live in this process and vanish with it, however it ends.

A socket stays in the namespace where it was made, so one thread can hold sockets of all of them.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: int) -> None:
    if getattr(_libc, name)(*args):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)} (root is needed)")


def _here() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


class Namespace:
    """A new network namespace with ``lo`` up. ``with`` runs this thread and its children in it."""

    def __init__(self) -> None:
        self._outer: list[int] = []
        before = _here()
        try:
            _call("unshare", _CLONE_NEWNET)
            self._fd = _here()
            ip("link set lo up")
        finally:
            _call("setns", before, _CLONE_NEWNET)
            os.close(before)

    @property
    def path(self) -> str:
        """A name of it that other processes of root can open."""
        return f"/proc/{os.getpid()}/fd/{self._fd}"

    def __enter__(self) -> Self:
        self._outer.append(_here())
        _call("setns", self._fd, _CLONE_NEWNET)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        outer = self._outer.pop()
        _call("setns", outer, _CLONE_NEWNET)
        os.close(outer)

    def close(self) -> None:
        """Let go of it; it ends when no socket of it is open."""
        os.close(self._fd)


def ip(*commands: str) -> None:
    """Run commands of ip(8) in the current namespace."""
    subprocess.run(["ip", "-batch", "-"], input="\n".join(commands), text=True, check=True)

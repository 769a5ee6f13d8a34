"""Talks to the program that owns libiptc, starts it, and ends it when it does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import weakref
from typing import TYPE_CHECKING, Any, BinaryIO

from npc.dataplane import MissingToolError
from npc.dataplane.tools import TIMEOUT_SECONDS, ToolError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = (sys.executable, "-P", "-W", "ignore", "-m", "npc.dataplane.libiptc_worker")


class Worker:
    """The program, started when it is first asked and again after it ended; used by one thread.

    It is in the network namespace of the thread that started it. It ends with this object.
    """

    def __init__(self, program: Sequence[str] = PROGRAM) -> None:
        self._program = program
        self._running: _Running | None = None

    def ask(self, request: Mapping[str, object]) -> dict[str, int]:
        """Have one request carried out; what it asked to count, by chain.

        :raises ToolError: if it failed, or the program ended or did not answer in time; the
            kernel has carried out all of it or nothing
        :raises MissingToolError: if something is not on this machine
        """
        running = self._running
        if running is None or running.process.poll() is not None:
            running = self._running = _Running(self._program)
        try:
            reply = running.exchange(json.dumps(request) + "\n")
        except BaseException:
            self.close()
            raise
        if "error" in reply:
            self.close()
            kind = MissingToolError if reply["missing"] else ToolError
            raise kind(f"libiptc: {reply['error']}")
        counted: dict[str, int] = reply["counted"]
        return counted

    def close(self) -> None:
        """End the program, if it runs."""
        if self._running is not None:
            self._running.end()
            self._running = None


class _Running:
    def __init__(self, program: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(TIMEOUT_SECONDS)
        self._replies = self._socket.makefile("rb")
        try:
            self.process = subprocess.Popen(
                program,
                stdin=theirs.fileno(),
                stdout=2,  # whatever python-iptables lets slip is to be read where logs are
                env={**os.environ, "LC_ALL": "C"},
                process_group=0,
            )
        except OSError as error:
            self._replies.close()
            self._socket.close()
            raise ToolError(f"the libiptc worker could not be started: {error}") from error
        finally:
            theirs.close()
        # Also at the end of the interpreter, and when nobody refers to this any more.
        self.end = weakref.finalize(self, _end, self.process, self._replies, self._socket)

    def exchange(self, line: str) -> dict[str, Any]:
        """Send a request and wait for its reply."""
        try:
            self._socket.sendall(line.encode())
            reply = self._replies.readline()
        except TimeoutError:
            raise ToolError(
                f"the libiptc worker was killed: it had not answered after {TIMEOUT_SECONDS:g} s"
            ) from None
        except OSError:
            reply = b""
        if not reply.endswith(b"\n"):
            raise ToolError(f"the libiptc worker {self._how_it_ended()}")
        answer: dict[str, Any] = json.loads(reply)
        return answer

    def _how_it_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(TIMEOUT_SECONDS)
        code = self.process.returncode
        if code is None:
            return "closed its socket and was killed"
        return f"was ended by signal {-code}" if code < 0 else f"ended by itself (exit {code})"


def _end(process: subprocess.Popen[bytes], *files: BinaryIO | socket.socket) -> None:
    for file in files:
        file.close()
    process.kill()
    process.wait()

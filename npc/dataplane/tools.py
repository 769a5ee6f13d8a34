"""Runs one netfilter tool: text in, text out, and an error that says what was wrong and where.

A tool never waits without end: iptables gets a bound for its lock, and every process a bound for
its life. It runs in a process group of its own, so that Ctrl-C in a terminal reaches the agent
alone and the agent decides between two steps, not within one.
"""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, Protocol

from opentelemetry.trace import get_tracer

from npc.dataplane import DataplaneError, MissingToolError

if TYPE_CHECKING:
    from collections.abc import Sequence

TIMEOUT_SECONDS = 60.0
LOCK_SECONDS = 5
"""How long iptables waits for another program to give the xtables lock back."""

_LINE = re.compile(r"\bline:? (\d+)|^/dev/stdin:(\d+):", re.MULTILINE)
_USELESS = re.compile(r"Try `.*' for more information|Perhaps .* needs to be upgraded|^[\s^~]+$")
_NO_ROOT = re.compile(r"you must be root|Permission denied|Operation not permitted")
_NO_KERNEL = re.compile(
    r"do you need to insmod|missing kernel module|set type not supported|Cannot open session"
    r"|Could not fetch rule set generation id|Protocol not supported|Table does not exist"
)
_LOCKED = "holding the xtables lock"


class Run(Protocol):
    """Runs a tool and returns what it wrote to its standard output.

    :raises ToolError: if it fails, or does not end in time
    :raises MissingToolError: if it is absent, may not do this, or the kernel cannot
    """

    def __call__(self, argv: Sequence[str], stdin: str = "") -> str:
        """Run ``argv`` with ``stdin`` as its input."""
        ...


class ToolError(DataplaneError):
    """A tool ran and failed. ``line`` is the number of the input line at fault, from 1."""

    def __init__(self, message: str, stderr: str = "", line: int | None = None) -> None:
        super().__init__(message)
        self.stderr = stderr
        self.line = line


def run_tool(argv: Sequence[str], stdin: str = "") -> str:
    """Run a tool of this machine; see ``Run``. Each call is a span, with what went in and out."""
    with get_tracer("npc").start_as_current_span(
        argv[0],
        attributes={"process.command_args": list(argv), "npc.tool.stdin_bytes": len(stdin)},
    ) as span:
        done = _run(argv, stdin)
        span.set_attribute("process.exit.code", done.returncode)
        if done.returncode:
            stderr = done.stderr.decode(errors="backslashreplace")
            raise _failure(argv, stdin, done.returncode, stderr)
        return done.stdout.decode(errors="backslashreplace")


def _run(argv: Sequence[str], stdin: str) -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(
            argv,
            input=stdin.encode(),
            capture_output=True,
            timeout=TIMEOUT_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
            process_group=0,
            check=False,
        )
    except FileNotFoundError:
        raise MissingToolError(
            f"{argv[0]} is not on this machine: install the package {_package(argv[0])!r}"
        ) from None
    except PermissionError as error:
        raise MissingToolError(f"{argv[0]} cannot be run: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ToolError(
            f"{' '.join(argv)} was killed: it had not ended after {TIMEOUT_SECONDS:g} s"
        ) from None
    except OSError as error:
        raise ToolError(f"{argv[0]} could not be started: {error}") from error


def _failure(argv: Sequence[str], stdin: str, code: int, stderr: str) -> DataplaneError:
    lines = stdin.splitlines()
    echoed = {"", *(line.strip() for line in lines)}
    said = " ".join(
        line.strip()
        for line in stderr.splitlines()
        if line.strip() not in echoed and not _USELESS.search(line)
    )
    ended = f"ended by signal {-code}" if code < 0 else f"failed (exit {code})"
    message = f"{' '.join(argv)} {ended}: {said or 'it gave no reason'}"
    if _LOCKED in stderr:
        return ToolError(f"{message} [held by another program for {LOCK_SECONDS} s]", stderr)
    if _NO_ROOT.search(stderr):
        needs = "needs root with CAP_NET_ADMIN, and CAP_NET_RAW for iptables-legacy"
        return MissingToolError(f"{message} [{needs}]")
    if _NO_KERNEL.search(stderr):
        return MissingToolError(f"{message} [this kernel lacks what it needs]")
    found = _LINE.search(stderr)
    number = int(found[1] or found[2]) if found else 0
    if not 0 < number <= len(lines):
        return ToolError(message, stderr)
    return ToolError(f"{message} [line {number}: {lines[number - 1]}]", stderr, number)


def _package(tool: str) -> str:
    packages = {"ipset": "ipset", "nft": "nftables", "conntrack": "conntrack"}
    return packages.get(tool, "iptables")

"""A part of a benchmark in a process of its own, so that its CPU time and memory are its own.

The parent calls the child's functions by name: a line of JSON there, a line of JSON back.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable

_BENCHMARKS = Path(__file__).parent.parent


class Child:
    """The parent's side: ``child.call("name", key=value)``. Ends the process when left."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=_BENCHMARKS,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def call(self, name: str, /, **arguments: object) -> Any:
        """Call a function of the child and wait for what it returns.

        :raises RuntimeError: if the child has died
        """
        self.send(name, **arguments)
        return self.receive()

    def send(self, name: str, /, **arguments: object) -> None:
        """Call a function of the child; ``receive`` waits for what it returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """What the function of the last ``send`` returned."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} died: {self._process.wait()}")
        return json.loads(line)

    def pause(self) -> None:
        """Let the process do nothing until ``resume``."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


def serve(*functions: Callable[..., object]) -> None:
    """The child's side: answer until the parent closes standard input."""
    by_name = {function.__name__: function for function in functions}
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(by_name[name](**arguments)), flush=True)


def usage() -> dict[str, float]:
    """This process' CPU seconds so far, and its memory now and at its largest, in bytes."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    lines = Path("/proc/self/status").read_text().splitlines()
    status = dict(line.split(":", 1) for line in lines)
    return {
        "cpu": spent.ru_utime + spent.ru_stime,
        "rss": int(status["VmRSS"].split()[0]) * 1024,
        "peak": int(status["VmHWM"].split()[0]) * 1024,
    }

"""Helm, promtool and the definitions of Prometheus' operator, where they have been built."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

_BUILD = Path(__file__).parent / "binaries" / "build"


def find_tools() -> Path | None:
    """The folder that ``tests/deploy/binaries/build`` made."""
    done = subprocess.run([_BUILD, "--find"], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip()) if done.stdout.strip() else None


def tool(name: str) -> Path:
    """The path of a tool, or of the folder ``crds``; skips the test where there is none."""
    tools = find_tools()
    if tools is None:
        pytest.skip(f"no {name}: let tests/deploy/binaries/build make one, which takes Go")
    return tools / name

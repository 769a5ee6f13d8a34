"""Other programs that the tests ask, where they are."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

_BUILD = Path(__file__).parent / "binaries" / "build"


def find_tools() -> Path | None:
    """The folder that ``tests/deploy/binaries/build`` made."""
    done = subprocess.run([_BUILD, "--find"], check=True, capture_output=True, text=True)
    return Path(done.stdout.strip()) if done.stdout.strip() else None


def built(name: str) -> Path:
    """``helm``, or the folder ``crds``; skips the test where they have not been built."""
    tools = find_tools()
    if tools is None:
        pytest.skip(f"no {name}: let tests/deploy/binaries/build make one, which takes Go")
    return tools / name


def promtool() -> str:
    """Prometheus' tool; skips the test where there is none."""
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool: it is in Debian's package prometheus")
    return found

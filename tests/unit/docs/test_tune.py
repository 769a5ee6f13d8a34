"""The page about tuning names what the command line and the environment offer, and no more."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path

from npc import cli
from npc.dataplane.choose import BACKENDS

PAGE = (Path(__file__).parents[3] / "docs" / "tune.md").read_text()


def options(parser: argparse.ArgumentParser) -> set[str]:
    """Those of the whole program and of ``npc run``."""
    found = {name for action in parser._actions for name in action.option_strings}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= options(action.choices["run"])
    found -= {"--help", "--version"}
    return {name for name in found if name.startswith("--")}


def test_every_option_has_a_row_of_its_own() -> None:
    rows = re.findall(r"^\| `(--[a-z-]+)` \|", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(options(cli._parser()))


def test_every_variable_that_the_command_line_reads_is_named() -> None:
    read = set(re.findall(r'environ\.get\("(\w+)"', inspect.getsource(cli)))
    assert read
    assert {name for name in read if f"`{name}`" in PAGE} == read


def test_every_backend_is_named() -> None:
    assert {name for name in BACKENDS if f"`{name}`" in PAGE} == set(BACKENDS)

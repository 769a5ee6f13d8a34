"""Every public report has a test or a scenario that is really there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from npc.lab import scenario

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "public-cases.md"

_TEST = re.compile(r"`([\w/]+\.py)::(\w+)`")
_SCENARIO = re.compile(r"`scenarios/(\w+)\.yaml`: (.+)")

ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| report")
]
REFERENCES = sorted({reference for row in ROWS for reference in row[-1].split("<br>")})


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((TESTS / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@cache
def scenarios_of(name: str) -> set[str]:
    return {s.name for s in scenario.read(str(TESTS / "e2e" / "scenarios" / f"{name}.yaml"))}


def test_every_report_says_all() -> None:
    assert len(ROWS) == 56
    for row in ROWS:
        assert len(row) == 5, row
        assert all(row), row
        assert row[2] in {"yes", "partly", "as documented", "no"}, row


@pytest.mark.parametrize("reference", REFERENCES)
def test_what_a_report_names_is_there(reference: str) -> None:
    if found := _TEST.fullmatch(reference):
        assert found[2] in functions_of(found[1])
    elif found := _SCENARIO.fullmatch(reference):
        assert found[2] in scenarios_of(found[1])
    else:
        pytest.fail(f"{reference!r} names neither a test nor a scenario")

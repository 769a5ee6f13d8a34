"""What import-linter cannot say: which part of a package may be imported where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("workqueue", "reconciler", "npc")


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_opentelemetry_sdk_is_used_only_where_the_agent_is_put_together() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    users = {
        path.relative_to(ROOT).parts[:2]
        for path in files
        if any(
            name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))
            for name in imports(path)
        )
    }
    assert users == {("npc", "telemetry")}

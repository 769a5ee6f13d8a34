"""What import-linter cannot say: which part of a package may be imported where."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import npc
import reconciler
import workqueue

# Where they are installed, which need not be the checkout.
PACKAGES = [Path(str(package.__file__)).parent for package in (workqueue, reconciler, npc)]


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_the_opentelemetry_sdk_is_used_only_where_the_agent_is_put_together() -> None:
    users = {
        path.relative_to(package.parent).parts[:2]
        for package in PACKAGES
        for path in package.rglob("*.py")
        if any(
            name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))
            for name in imports(path)
        )
    }
    assert users == {("npc", "telemetry")}

"""What the documents show runs, and what they link to is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])

_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = [
        link
        for link in _LINK.findall(document.read_text())
        if not (document.parent / link).exists()
    ]
    assert broken == []


def test_the_queues_example_runs() -> None:
    page = ROOT / "docs" / "queue" / "python.md"
    example = _EXAMPLE.findall(page.read_text())[0]
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'web': 3" in done.stdout
    assert "'api': 2" in done.stdout

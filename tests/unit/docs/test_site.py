"""What the site shows of the repository, and that its links and navigation hold."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]


def load_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hook", ROOT / "scripts" / "docs_repository.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def hook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The hook, in a small repository."""
    files = {
        "docs/page.md": "[a](../deploy/a.yaml) [b](../NOTES.md#top) [c](deep/other.md) [d](#here)",
        "docs/deep/other.md": "[e](../../src/) [f](https://example.com/) [g](../../gone.md)",
        "NOTES.md": "[h](docs/page.md) [i](src/code.py)",
        "deploy/a.yaml": "````\nkind: List\n",
        "src/code.py": "x = 1\n",
        "src/more/data": "",
        "src/__pycache__/code.pyc": "",
        "secret": "no document leads here",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    module = load_hook()
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "DOCS", tmp_path / "docs")
    return module


def test_everything_that_documents_lead_to_is_shown(hook: ModuleType, tmp_path: Path) -> None:
    documents = sorted((tmp_path / "docs").rglob("*.md"))
    found = {str(path.relative_to(tmp_path)) for path in hook.linked(documents)}
    assert found == {"NOTES.md", "deploy/a.yaml", "src", "src/code.py"}


@pytest.mark.parametrize(
    ("document", "relinked"),
    [
        (
            "docs/page.md",
            (
                "[a](repository/deploy/a.yaml.md) [b](repository/NOTES.md#top) "
                "[c](deep/other.md) [d](#here)"
            ),
        ),
        (
            "docs/deep/other.md",
            "[e](../repository/src.md) [f](https://example.com/) [g](../../gone.md)",
        ),
        ("NOTES.md", "[h](../page.md) [i](src/code.py.md)"),
    ],
)
def test_links_lead_to_the_pages_of_the_site(
    hook: ModuleType, tmp_path: Path, document: str, relinked: str
) -> None:
    path = tmp_path / document
    assert hook.relinked(path.read_text(), path) == relinked


def test_a_file_is_shown_as_code_and_a_folder_as_a_list(hook: ModuleType, tmp_path: Path) -> None:
    fence = "`" * 8
    shown = f"# `deploy/a.yaml`\n\n{fence}yaml\n````\nkind: List\n{fence}\n"
    assert hook.shown(tmp_path / "deploy" / "a.yaml") == shown
    assert hook.shown(tmp_path / "src") == "# `src`\n\n- `code.py`\n- `more/`\n"
    assert hook.shown(tmp_path / "NOTES.md") == "[h](../page.md) [i](src/code.py.md)"


def test_the_navigation_has_every_page_once() -> None:
    hook = load_hook()
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    documents = {str(path.relative_to(hook.DOCS)) for path in hook.DOCS.rglob("*.md")}
    assert sorted(leaves(hook.expanded(settings["nav"]))) == sorted(
        {*documents, "repository/CHANGELOG.md"}
    )


class Loader(yaml.SafeLoader):
    """Reads what mkdocs reads, but for names of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, dict):
        nav = list(nav.values())
    return [nav] if isinstance(nav, str) else [leaf for entry in nav for leaf in leaves(entry)]

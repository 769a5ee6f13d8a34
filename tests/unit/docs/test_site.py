"""What the site shows of the repository, and that its links and navigation hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts import docs_repository

ROOT = Path(__file__).parents[3]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small one, which the hook takes for ours."""
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
    monkeypatch.setattr(docs_repository, "ROOT", tmp_path)
    monkeypatch.setattr(docs_repository, "DOCS", tmp_path / "docs")
    return tmp_path


def test_everything_that_documents_lead_to_is_shown(repository: Path) -> None:
    documents = sorted((repository / "docs").rglob("*.md"))
    found = {str(path.relative_to(repository)) for path in docs_repository.linked(documents)}
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
    repository: Path, document: str, relinked: str
) -> None:
    path = repository / document
    assert docs_repository.relinked(path.read_text(), path) == relinked


def test_a_file_is_shown_as_code_and_a_folder_as_a_list(repository: Path) -> None:
    fence = "`" * 8
    shown = f"# `deploy/a.yaml`\n\n{fence}yaml\n````\nkind: List\n{fence}\n"
    assert docs_repository.shown(repository / "deploy" / "a.yaml") == shown
    assert docs_repository.shown(repository / "src") == "# `src`\n\n- `code.py`\n- `more/`\n"
    assert docs_repository.shown(repository / "NOTES.md") == "[h](../page.md) [i](src/code.py.md)"


def test_diagrams_are_text_which_needs_no_script_of_another_site() -> None:
    """What Material draws from a fence named mermaid, it draws by a script from a CDN."""
    pages = [ROOT / "README.md", *docs_repository.DOCS.rglob("*.md")]
    assert [page for page in pages if "```mermaid" in page.read_text()] == []
    assert "mermaid" not in (ROOT / "mkdocs.yml").read_text()


def test_what_documents_tell_to_make_can_be_made() -> None:
    made = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    pages = [ROOT / "README.md", *docs_repository.DOCS.rglob("*.md")]
    told = {
        name
        for page in pages
        for name in re.findall(r"(?:^|`)make ([a-z-]+)\b", page.read_text(), re.MULTILINE)
    }
    assert told >= {"demo", "docs", "test"}
    assert told <= made


def test_code_in_lists_is_indented_as_the_sites_markdown_demands() -> None:
    """By four spaces, where other renderers are content with less."""
    shallow = [
        f"{document.relative_to(ROOT)}:{number}"
        for document in sorted(docs_repository.DOCS.rglob("*.md"))
        for number, line in enumerate(document.read_text().splitlines(), 1)
        if re.match(" {1,3}```", line)
    ]
    assert shallow == []


def test_the_navigation_has_every_page_once() -> None:
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)
    documents = {
        str(path.relative_to(docs_repository.DOCS)) for path in docs_repository.DOCS.rglob("*.md")
    }
    assert sorted(leaves(docs_repository.expanded(settings["nav"]))) == sorted(
        {*documents, "repository/CHANGELOG.md"}
    )


class Loader(yaml.SafeLoader):
    """Reads what mkdocs reads, but for names of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)


def leaves(nav: Any) -> list[str]:
    if isinstance(nav, dict):
        nav = list(nav.values())
    return [nav] if isinstance(nav, str) else [leaf for entry in nav for leaf in leaves(entry)]

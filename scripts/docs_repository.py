"""A hook of mkdocs: files of the repository that the documents link to become pages of the site.

A link is written once, relative to the document, and works wherever that is read: in a checkout it
leads to the file, on the site to a page that shows the file. Markdown is shown as Markdown, a
folder as the list of what is in it, anything else as code. Such pages are under ``repository/``.
In the navigation a folder of documents (``adr/``) stands for all its pages.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
CHANGELOG = ROOT / "CHANGELOG.md"
SHOWN = PurePosixPath("repository")

_LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)#\s]+)")
_FENCE = "`" * 8


def on_config(config: MkDocsConfig) -> None:
    """Put a folder's pages where the navigation names the folder."""
    config.nav = expanded(config.nav)
    config.watch.append(str(CHANGELOG))


def on_files(files: Files, config: MkDocsConfig) -> None:
    """Add a page for everything in the repository that a document leads to."""
    from mkdocs.structure.files import File

    documents = [DOCS / page.src_uri for page in files.documentation_pages()]
    for path in sorted({CHANGELOG} | linked([*documents, CHANGELOG])):
        files.append(File.generated(config, str(address(path)), content=shown(path)))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links that leave the documents to the pages that show their targets."""
    if page.file.generated_by:
        return markdown
    return relinked(markdown, DOCS / page.file.src_uri)


def linked(documents: list[Path]) -> set[Path]:
    """Everything outside the documents that they lead to, and that leads to in turn."""
    found: set[Path] = set()
    waiting = list(documents)
    while waiting:
        document = waiting.pop()
        targets = {
            target
            for link in _LINK.findall(document.read_text())
            if (target := _target(link, document)) and not target.is_relative_to(DOCS)
        }
        waiting += [path for path in targets - found if path.suffix == ".md"]
        found |= targets
    return found


def address(path: Path) -> PurePosixPath:
    """Where on the site a document, or a page that shows another file, is; below docs/."""
    if path.is_relative_to(DOCS):
        return PurePosixPath(path.relative_to(DOCS))
    place = SHOWN / path.relative_to(ROOT)
    return place if path.suffix == ".md" else place.with_name(f"{place.name}.md")


def shown(path: Path) -> str:
    """The Markdown of the page that shows a file or folder."""
    title = f"# `{path.relative_to(ROOT)}`\n\n"
    if path.is_dir():
        names = sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in _seen(path))
        return title + "\n".join(f"- `{name}`" for name in names) + "\n"
    if path.suffix == ".md":
        return relinked(path.read_text(), path)
    language = {"": "text", ".py": "python", ".yml": "yaml"}.get(path.suffix, path.suffix[1:])
    return f"{title}{_FENCE}{language}\n{path.read_text().rstrip()}\n{_FENCE}\n"


def relinked(markdown: str, document: Path) -> str:
    """The document with every link to a file of the repository as a link within the site."""
    here = address(document).parent

    def turn(match: re.Match[str]) -> str:
        target = _target(match[0], document)
        return match[0] if target is None else os.path.relpath(address(target), here)

    return _LINK.sub(turn, markdown)


def _target(link: str, document: Path) -> Path | None:
    """What a document's link leads to, if that is in the repository."""
    path = (document.parent / link).resolve()
    return path if path.exists() and path.is_relative_to(ROOT) else None


def _seen(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.name != "__pycache__"]


def expanded(nav: Any) -> Any:
    if isinstance(nav, list):
        return [expanded(entry) for entry in nav]
    if isinstance(nav, dict):
        return {title: expanded(entry) for title, entry in nav.items()}
    if isinstance(nav, str) and nav.endswith("/"):
        pages = sorted((DOCS / nav).glob("*.md"), key=lambda page: (page.name != "README.md", page))
        return [str(address(page)) for page in pages]
    return nav

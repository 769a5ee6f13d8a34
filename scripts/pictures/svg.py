"""As much of SVG as the pictures need."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

COLOURS = ("#3f51b5", "#00897b", "#f4511e", "#8e24aa", "#6d4c41", "#c0ca33", "#039be5", "#d81b60")
INK = "#263238"
PALE = "#78909c"
LINE = "#dfe5e8"


class Picture:
    """Shapes in pixels, from the upper left corner; ``text`` is the finished document."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_n(width)} {_n(height)}" '
            f'width="{_n(width)}" height="{_n(height)}" font-family="sans-serif" font-size="12" '
            f'role="img"><title>{escape(title)}</title>'
        )
        self._shapes: list[str] = []
        self.box(0, 0, width, height, "#ffffff")

    @property
    def text(self) -> str:
        return "\n".join([self._head, *self._shapes, "</svg>\n"])

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._shapes.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="2" '
            f'fill="{colour}"/>'
        )

    def line(
        self,
        points: Iterable[tuple[float, float]],
        colour: str = LINE,
        width: float = 1,
        dashes: str = "none",
    ) -> None:
        """Connect the points."""
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self._shapes.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{_n(width)}" '
            f'stroke-dasharray="{dashes}"/>'
        )

    def write(
        self, x: float, y: float, text: str, colour: str = INK, size: float = 12, anchor: str = ""
    ) -> None:
        """Put text on the line at ``y``; ``anchor`` is ``middle`` or ``end`` of it."""
        more = f' text-anchor="{anchor}"' if anchor else ""
        self._shapes.append(
            f'<text x="{_n(x)}" y="{_n(y)}" font-size="{_n(size)}" fill="{colour}"{more}>'
            f"{escape(text)}</text>"
        )


def _n(number: float) -> str:
    return f"{number:.1f}".removesuffix(".0")

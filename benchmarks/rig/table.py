"""One table of measurements: ours, a peer's, how they compare, and what was to be reached."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement of both. ``met`` is whether the goal was, where there is one."""

    what: str
    ours: float
    peer: float | None = None
    goal: str = ""
    met: bool | None = None

    def without_goal(self) -> Row:
        """The same measurement where the goal does not apply."""
        return Row(self.what, self.ours, self.peer)

    def __str__(self) -> str:
        ratio = f"{self.ours / self.peer:.3f}" if self.peer else ""
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        numbers = f"{_number(self.ours):>12} {_number(self.peer):>12} {ratio:>8}"
        return f"{self.what:52} {numbers}  {self.goal:16} {verdict}".rstrip()


def _number(value: float | None) -> str:
    """With three digits that matter, or all before the point."""
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@dataclass(slots=True)
class Table:
    """Rows, each printed as soon as it is there."""

    rows: list[Row] = field(default_factory=list)

    def begin(self, title: str, peer: str) -> None:
        """Print a heading."""
        print(f"\n{title:52} {'ours':>12} {peer:>12} {'ratio':>8}  goal", flush=True)

    def add(self, row: Row) -> None:
        """Print a row and keep it."""
        self.rows.append(row)
        print(row, flush=True)

    @property
    def missed(self) -> list[str]:
        """What did not reach its goal."""
        return [row.what for row in self.rows if row.met is False]

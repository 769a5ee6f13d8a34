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

    def __str__(self) -> str:
        peer = f"{self.peer:>12,.4g}" if self.peer is not None else f"{'':12}"
        ratio = f"{self.ours / self.peer:>8.3f}" if self.peer else f"{'':8}"
        verdict = {True: "met", False: "MISSED", None: ""}[self.met]
        return (
            f"{self.what:52} {self.ours:>12,.4g} {peer} {ratio}  {self.goal:24} {verdict}".rstrip()
        )


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

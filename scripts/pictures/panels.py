"""Draws panels of a dashboard: single values, lines over time, tables of labels."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scripts.pictures.svg import COLOURS, INK, LINE, PALE, Picture

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMN, _LINE, _GAP = 50.0, 26.0, 8.0
_COLUMNS = 24
_TOP = 40.0
_LEGEND_ROW = 15.0
_HIDDEN = {"__name__", "instance", "job"}


@dataclass(frozen=True)
class Series:
    """Points are times in seconds and values in the panel's unit."""

    name: str
    labels: dict[str, str]
    points: list[tuple[float, float]]

    @property
    def last(self) -> float:
        return self.points[-1][1]


@dataclass(frozen=True)
class Panel:
    """``place`` is column, line, width and height on the dashboard's grid."""

    kind: str
    title: str
    unit: str
    place: tuple[int, int, int, int]
    series: list[Series]


def draw(panels: Sequence[Panel], title: str) -> str:
    """An SVG of all of them.

    :raises ValueError: if a panel is of a kind that is not known
    """
    bottom = max(y + height for _, y, _, height in (panel.place for panel in panels))
    picture = Picture(_COLUMNS * _COLUMN, _TOP + bottom * _LINE + _GAP, title)
    picture.write(_GAP, 26, title, size=16)
    times = [time for panel in panels for series in panel.series for time, _ in series.points]
    span = (min(times), max(times)) if times else (0.0, 1.0)
    for panel in panels:
        _DRAWN[panel.kind](picture, panel, span) if panel.kind in _DRAWN else _refuse(panel)
    return picture.text


def shown(value: float, unit: str) -> str:
    """The value with its unit, in three digits."""
    if unit == "s":
        return f"{value:.3g} s" if value >= 1 or value == 0 else f"{value * 1000:.3g} ms"
    if unit == "bytes":
        return f"{value / 2**20:.3g} MiB"
    if unit == "percentunit":
        return f"{value:.1%}"
    per_second = {"ops": "/s", "pps": "/s"}.get(unit, "")
    return (f"{value:.0f}" if value == int(value) else f"{value:.3g}") + per_second


def _refuse(panel: Panel) -> None:
    raise ValueError(f"panel {panel.title!r}: cannot draw a {panel.kind!r}")


def _row(picture: Picture, panel: Panel, _: tuple[float, float]) -> None:
    x, y, _width, height = _frame(panel)
    picture.write(x, y + height - 6, panel.title, size=14)


def _stat(picture: Picture, panel: Panel, _: tuple[float, float]) -> None:
    x, y, width, height = _box(picture, panel)
    value = shown(panel.series[0].last, panel.unit) if panel.series else "no data"
    picture.write(x + width / 2, y + height / 2 + 20, value, COLOURS[1], 24, "middle")


def _table(picture: Picture, panel: Panel, _: tuple[float, float]) -> None:
    x, y, _width, _height = _box(picture, panel)
    y += 44
    for series in panel.series:
        for name, value in sorted(series.labels.items()):
            if name not in _HIDDEN:
                picture.write(x + 10, y, name, PALE)
                picture.write(x + 100, y, value)
                y += 18


def _timeseries(picture: Picture, panel: Panel, span: tuple[float, float]) -> None:
    x, y, width, height = _box(picture, panel)
    series = sorted(panel.series, key=lambda each: each.name)
    left, right, top = x + 58, x + width - 10, y + 32
    bottom = y + height - 26 - _LEGEND_ROW * ((len(series) + 1) // 2)
    highest = max((value for each in series for _, value in each.points), default=0.0) or 1.0
    begin, end = span
    for share in (0.0, 0.5, 1.0):
        height_of_line = bottom - (bottom - top) * share
        picture.line([(left, height_of_line), (right, height_of_line)], LINE)
        label = shown(highest * share, panel.unit)
        picture.write(left - 5, height_of_line + 4, label, PALE, 10, "end")
    picture.write(left, bottom + 13, "0 s", PALE, 10)
    picture.write(right, bottom + 13, f"{end - begin:.0f} s", PALE, 10, "end")
    for index, each in enumerate(series):
        colour = COLOURS[index % len(COLOURS)]
        picture.line(
            [
                (
                    left + (right - left) * (time - begin) / ((end - begin) or 1.0),
                    bottom - (bottom - top) * value / highest,
                )
                for time, value in each.points
                if not math.isnan(value)  # a share of nothing
            ],
            colour,
            1.5,
        )
        legend_x = left + (right - left) / 2 * (index % 2)
        legend_y = bottom + 28 + _LEGEND_ROW * (index // 2)
        picture.box(legend_x, legend_y - 8, 8, 8, colour)
        picture.write(legend_x + 12, legend_y, each.name, INK, 10)
    if not series:
        picture.write((left + right) / 2, (top + bottom) / 2, "no data", PALE, 12, "middle")


_DRAWN = {"row": _row, "stat": _stat, "table": _table, "timeseries": _timeseries}


def _frame(panel: Panel) -> tuple[float, float, float, float]:
    x, y, width, height = panel.place
    return (
        x * _COLUMN + _GAP / 2,
        _TOP + y * _LINE + _GAP / 2,
        width * _COLUMN - _GAP,
        height * _LINE - _GAP,
    )


def _box(picture: Picture, panel: Panel) -> tuple[float, float, float, float]:
    x, y, width, height = frame = _frame(panel)
    picture.line([(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)], LINE)
    picture.write(x + 10, y + 18, panel.title)
    return frame

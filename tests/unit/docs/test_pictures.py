"""What the pictures show is what was measured: bars and lines lie where the numbers say."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from scripts.pictures import trace
from scripts.pictures.panels import Panel, Series, draw, shown
from scripts.pictures.trace import EVENT, SYNC, Span

SVG = "{http://www.w3.org/2000/svg}"
MILLISECOND = 1_000_000


def sync(name: str, start: int, end: int, *links: str, changed: bool = True) -> Span:
    attributes = {
        "npc.changed": changed,
        "messaging.batch.message_count": 9,
        "reconciler.queue.wait": 0.004,
    }
    return Span(name, "", SYNC, start * MILLISECOND, end * MILLISECOND, links, attributes)


def part(own: str, parent: str, name: str, start: int, end: int) -> Span:
    return Span(own, parent, name, start * MILLISECOND, end * MILLISECOND)


SPANS = [
    part("e1", "", EVENT, 100, 100),
    part("e2", "", EVENT, 100, 100),
    part("e3", "", EVENT, 100, 100),
    sync("s1", 110, 150, "e1", "e2"),
    part("a", "s1", "apply", 120, 150),
    part("t", "a", "ipset", 130, 140),
    part("c", "s1", "compile", 110, 120),
    sync("s2", 160, 200, "e3", changed=False),
]


def boxes(text: str) -> list[dict[str, float]]:
    root = ET.fromstring(text)
    return [
        {name: float(box.attrib[name]) for name in ("x", "y", "width")}
        for box in root.iter(f"{SVG}rect")
    ]


def texts(text: str) -> list[str]:
    return ["".join(each.itertext()) for each in ET.fromstring(text).iter(f"{SVG}text")]


def test_bars_are_where_and_as_long_as_the_spans_say() -> None:
    _background, *found = boxes(trace.draw(SPANS))
    events, bars = found[:3], found[3:]
    assert len({box["x"] for box in events}) == 1
    first = bars[0]
    unit = first["width"] / 40  # of a millisecond
    starts = [(box["x"] - first["x"]) / unit for box in bars]
    lengths = [box["width"] / unit for box in bars]
    assert starts == pytest.approx([0, 0, 10, 20, 50], abs=0.1)
    assert lengths == pytest.approx([40, 10, 30, 10, 40], abs=0.1)


def test_rows_are_named_and_told_in_the_order_of_time() -> None:
    found = texts(trace.draw(SPANS))
    assert found[0] == "18 events, 2 syncs, 100 ms"
    names = [text for text in found if text in {EVENT, SYNC, "apply", "compile", "ipset"}]
    assert names == [EVENT, SYNC, "compile", "apply", "ipset", SYNC]
    assert "40.00 ms  9 events, 2 linked; waited 4.0 ms" in found


def test_every_link_is_a_line_to_its_sync() -> None:
    root = ET.fromstring(trace.draw(SPANS))
    dashed = [
        line.attrib["points"].split()
        for line in root.iter(f"{SVG}polyline")
        if line.attrib["stroke-dasharray"] != "none"
    ]
    bars = boxes(trace.draw(SPANS))
    ends = sorted(float(points[-1].partition(",")[0]) for points in dashed)
    assert ends == [bars[4]["x"], bars[4]["x"], bars[8]["x"]]


def test_only_syncs_that_changed_something_and_their_events_are_kept() -> None:
    kept = trace.of_the_last_syncs(SPANS)
    assert [span.id for span in kept] == ["s1", "c", "a", "t", "e1", "e2"]


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="there is no span 'process full-sync'"):
        trace.draw(SPANS[:3])


def lines(text: str) -> list[list[tuple[float, float]]]:
    root = ET.fromstring(text)
    return [
        [(float(x), float(y)) for x, y in (point.split(",") for point in each.split())]
        for each in (line.attrib["points"] for line in root.iter(f"{SVG}polyline"))
    ]


def test_lines_rise_as_the_values_do() -> None:
    rising = Series("a", {}, [(0.0, 0.0), (5.0, 1.0), (10.0, 4.0)])
    nothing_known = Series("b", {}, [(0.0, float("nan")), (10.0, 2.0)])
    panel = Panel("timeseries", "Memory", "bytes", (0, 0, 12, 8), [nothing_known, rising])
    text = draw([panel], "title")
    *_, a, b = lines(text)
    (x0, y0), (x1, y1), (x2, y2) = a
    assert (x1 - x0) / (x2 - x0) == pytest.approx(0.5, abs=0.01)
    assert (y0 - y1) / (y0 - y2) == pytest.approx(0.25, abs=0.01)
    [(x, y)] = b
    assert (x, y) == pytest.approx((x2, (y0 + y2) / 2), abs=0.1)
    assert {"Memory", "a", "b", "10 s"} <= set(texts(text))


def test_single_values_and_tables_show_what_is_last() -> None:
    stat = Panel("stat", "Lag", "s", (0, 0, 4, 4), [Series("", {}, [(0.0, 9.0), (1.0, 0.25)])])
    labels = {"__name__": "npc_backend_info", "backend": "restore"}
    table = Panel("table", "Backend", "none", (4, 0, 8, 8), [Series("", labels, [(0.0, 1.0)])])
    found = texts(draw([stat, table], "title"))
    assert {"250 ms", "backend", "restore"} <= set(found)
    assert "npc_backend_info" not in found


def test_an_empty_panel_says_so_and_an_unknown_one_is_refused() -> None:
    place = (0, 0, 4, 4)
    assert "no data" in texts(draw([Panel("timeseries", "t", "s", place, [])], ""))
    assert "no data" in texts(draw([Panel("stat", "t", "s", place, [])], ""))
    with pytest.raises(ValueError, match="panel 't': cannot draw a 'heatmap'"):
        draw([Panel("heatmap", "t", "s", place, [])], "")


@pytest.mark.parametrize(
    ("value", "unit", "expected"),
    [
        (0.0042, "s", "4.2 ms"),
        (1.5, "s", "1.5 s"),
        (3 * 2**20, "bytes", "3 MiB"),
        (0.125, "percentunit", "12.5%"),
        (2.0, "ops", "2/s"),
        (2.25, "none", "2.25"),
    ],
)
def test_values_have_their_unit(value: float, unit: str, expected: str) -> None:
    assert shown(value, unit) == expected

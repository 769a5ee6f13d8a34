"""Draws what the agent sends by OTLP while a burst of changes is put into force.

Every span of the syncs is a bar; the events that a sync links to are ticks above it. Run as
``scripts/draw-trace [FILE]``, as root.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npc.report import counted
from scripts.pictures import burst
from scripts.pictures.svg import COLOURS, INK, LINE, PALE, Picture
from tests.e2e.clusters import wait_until
from tests.telemetry.receiver import Receiver, receiver, values

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npc.lab.cluster import Cluster

PLACE = Path(__file__).parents[2] / "docs" / "images" / "trace.svg"
SYNC = "process full-sync"
EVENT = "send full-sync"

_OTLP_PORT = 4318
_FIRST_PODS, _MORE_PODS = 40, 20

_WIDTH, _NAMES, _NOTES = 1200.0, 200.0, 330.0
_TOP, _ROW, _BAR = 66.0, 22.0, 14.0


@dataclass(frozen=True, slots=True)
class Span:
    """Times are in nanoseconds since 1970; ``links`` are ids of other spans."""

    id: str
    parent: str
    name: str
    start: int
    end: int
    links: tuple[str, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def milliseconds(self) -> float:
        return (self.end - self.start) / 1e6


def main(arguments: Sequence[str]) -> None:
    """Run the agent, and write the picture to the place that is given."""
    place = Path(arguments[0]) if arguments else PLACE
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(draw(record()))


def record() -> list[Span]:
    """What a real agent sends of policies, and of pods that come while these are put in force."""
    with burst.node() as lab, receiver(listener=burst.listen(lab, _OTLP_PORT)) as collector:
        burst.create(lab, *map(burst.pod, range(_FIRST_PODS)))
        burst.restart(lab, OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
        known = {span.id for span in received(collector)}
        added = _queue(lab)["adds"]
        burst.create(lab, *map(burst.policy, range(burst.APPS)))
        wait_until(lambda: (queue := _queue(lab))["adds"] > added and not queue["queued"])
        more = range(_FIRST_PODS, _FIRST_PODS + _MORE_PODS)
        burst.create(lab, *map(burst.pod, more))
        lab.settle()
        lab.agents[burst.NODE].stop()  # sends what is left
        spans = received(collector)
    return of_the_last_syncs([span for span in spans if span.id not in known])


def _queue(lab: Cluster) -> dict[str, int]:
    """The numbers of the agent's queue now."""
    numbers: dict[str, int] = lab.agents[burst.NODE].get("/debug/queues")["full-sync"]
    return numbers


def received(collector: Receiver) -> list[Span]:
    """All spans that came, as ours."""
    return [
        Span(
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.name,
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            tuple(link.span_id.hex() for link in span.links),
            values(span.attributes),
        )
        for _, span in collector.spans()
    ]


def of_the_last_syncs(spans: Sequence[Span]) -> list[Span]:
    """The syncs that changed something, all below them, and the events that they link to."""
    changed = [span for span in spans if span.name == SYNC and span.attributes.get("npc.changed")]
    linked = {link for sync in changed for link in sync.links}
    rows = [row for sync in changed for row, _ in below(sync, spans)]
    return [*rows, *(span for span in spans if span.id in linked)]


def below(span: Span, spans: Sequence[Span], depth: int = 0) -> Iterator[tuple[Span, int]]:
    """The span and all its descendants with their depth, in the order in which they began."""
    yield span, depth
    children = (each for each in spans if each.parent == span.id)
    for child in sorted(children, key=lambda each: each.start):
        yield from below(child, spans, depth + 1)


def draw(spans: Sequence[Span]) -> str:
    """An SVG of the syncs and their events.

    :raises ValueError: if there is no sync
    """
    syncs = sorted((s for s in spans if s.name == SYNC), key=lambda span: span.start)
    if not syncs:
        raise ValueError(f"there is no span {SYNC!r} to draw")
    rows = [row for sync in syncs for row in below(sync, spans)]
    begin, end = min(s.start for s in spans), max(s.end for s in spans)
    scale = (_WIDTH - _NAMES - _NOTES) / (end - begin)

    def at(moment: int) -> float:
        return _NAMES + (moment - begin) * scale

    events = sum(int(sync.attributes.get("messaging.batch.message_count", 0)) for sync in syncs)
    title = f"{events} events, {len(syncs)} syncs, {(end - begin) / 1e6:.0f} ms"
    bottom = _TOP + _ROW * (len(rows) + 1)
    picture = Picture(_WIDTH, bottom + 30, title)
    picture.write(12, 24, title, size=16)
    _axis(picture, at, begin, end, bottom)

    lines = {row.id: _TOP + _ROW * (index + 1) for index, (row, _) in enumerate(rows)}
    picture.write(12, _TOP + _BAR - 3, EVENT)
    for event in (s for s in spans if s.name == EVENT):
        picture.box(at(event.start) - 1, _TOP, 2, _BAR, INK)
        for sync in (s for s in syncs if event.id in s.links):
            x, y = at(event.start), lines[sync.id] + _BAR / 2
            picture.line([(x, _TOP + _BAR), (x, y), (at(sync.start), y)], PALE, dashes="3 3")
    for span, depth in rows:
        y = lines[span.id]
        picture.write(12 + 14 * depth, y + _BAR - 3, span.name)
        colour = COLOURS[min(depth, 2)]
        picture.box(at(span.start), y, max(1.0, (span.end - span.start) * scale), _BAR, colour)
        told = f"{span.milliseconds:.2f} ms  {note(span)}"
        picture.write(at(span.end) + 6, y + _BAR - 3, told, PALE, 11)
    return picture.text


def note(span: Span) -> str:
    """What the span's attributes say, in a few words."""
    known = span.attributes
    if span.name == SYNC:
        events = known["messaging.batch.message_count"]
        wait = known["reconciler.queue.wait"] * 1000
        return f"{events} events, {len(span.links)} linked; waited {wait:.1f} ms"
    if "process.command_args" in known:
        arguments = " ".join(each.string_value for each in known["process.command_args"].values)
        taken = known["npc.tool.stdin_bytes"]
        return arguments.partition(" ")[2] + (f"; {taken} bytes" if taken else "")
    return ", ".join(
        counted(value, name.removeprefix("npc.").replace("_", " "))
        for name, value in known.items()
        if name.startswith("npc.") and value
    )


def _axis(picture: Picture, at: Any, begin: int, end: int, bottom: float) -> None:
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 1000) if (end - begin) / 1e6 / s <= 12)
    for millisecond in range(0, int((end - begin) / 1e6) + 1, step):
        x = at(begin + int(millisecond * 1e6))
        picture.line([(x, _TOP - 10), (x, bottom)], LINE)
        picture.write(x, _TOP - 14, f"{millisecond} ms", PALE, 11, "middle")


if __name__ == "__main__":
    main(sys.argv[1:])

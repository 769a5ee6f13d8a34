from __future__ import annotations

import io
import json
import logging
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider

from npc.logs import JsonFormatter, LogHandler, TextFormatter


@dataclass
class Log:
    """A logger tree of its own, whose time the test sets."""

    now: float = 0.0
    stream: io.StringIO = field(default_factory=io.StringIO)

    def __post_init__(self) -> None:
        self.handler = LogHandler(self.stream, now=lambda: self.now)
        self.handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        self.root = logging.RootLogger(logging.DEBUG)
        self.root.addHandler(self.handler)
        self._manager = logging.Manager(self.root)

    def __getitem__(self, name: str) -> logging.Logger:
        return self._manager.getLogger(name)

    @property
    def lines(self) -> list[str]:
        return self.stream.getvalue().splitlines()


@pytest.fixture
def log() -> Iterator[Log]:
    made = Log()
    yield made
    made.handler.close()


def _json(log: Log) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.lines]


def test_a_repeated_warning_is_written_once_a_minute_with_its_number(log: Log) -> None:
    for log.now in range(0, 130, 10):
        log["npc"].warning("no route to %s", "host")
    assert log.lines == [
        "WARNING npc: no route to host",
        "WARNING npc: repeated 5 times within 60 s: no route to host",
        "WARNING npc: no route to host",
        "WARNING npc: repeated 5 times within 60 s: no route to host",
        "WARNING npc: no route to host",
    ]


def test_what_was_repeated_is_told_when_anything_is_logged_after_the_minute(log: Log) -> None:
    log["npc"].error("broken")
    log["npc"].error("broken")
    log.now = 60
    log["other"].info("all well")
    assert log.lines == [
        "ERROR npc: broken",
        "ERROR npc: repeated once within 60 s: broken",
        "INFO other: all well",
    ]


def test_what_was_repeated_is_told_at_the_end(log: Log) -> None:
    for _ in range(4):
        log["npc"].error("broken")
    log.handler.close()
    assert log.lines == ["ERROR npc: broken", "ERROR npc: repeated 3 times within 60 s: broken"]


def test_our_warnings_about_several_objects_are_all_written(log: Log) -> None:
    for name in ("a", "b", "c"):
        log["npc.controller"].warning("%s", f"policy {name} is malformed")
    assert len(log.lines) == 3


def test_an_exporters_warnings_are_the_same_whatever_their_numbers(log: Log) -> None:
    exporter = log["opentelemetry.exporter.otlp.proto.http.trace_exporter"]
    for seconds in (1.02, 1.97, 4.4):
        exporter.warning("Transient error %s, retrying in %.2fs.", "Unavailable", seconds)
    exporter.error("Failed to export %s batch", "spans")
    assert len(log.lines) == 2


def test_what_was_done_is_written_every_time(log: Log) -> None:
    for _ in range(3):
        log["npc.controller"].info("full-sync: 1 chain written in 4 ms")
    assert len(log.lines) == 3


def test_a_flood_of_different_warnings_is_written_and_not_remembered(log: Log) -> None:
    for number in range(5000):
        log["npc"].warning("object %d", number)
        log["npc"].warning("object %d", number)
    assert len(log.handler._repeats._kinds) < 300
    log.handler.close()
    assert len(log.lines) == 10_000  # each once, and each "repeated once"


def test_json_lines_carry_time_level_logger_message_and_traceback(log: Log) -> None:
    log.handler.setFormatter(JsonFormatter())
    log["npc.agent"].error("two\nlines of %s", "text", exc_info=ValueError("bad\nvalue"))
    [line] = _json(log)
    assert line.pop("time").endswith("Z")
    assert "ValueError: bad\nvalue" in line.pop("exception")
    assert line == {"level": "error", "logger": "npc.agent", "message": "two\nlines of text"}


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_lines_name_the_span_that_they_fell_in(log: Log, formatter: logging.Formatter) -> None:
    log.handler.setFormatter(formatter)
    with TracerProvider(shutdown_on_exit=False).get_tracer("t").start_as_current_span("s") as span:
        log["npc"].info("inside")
        context = span.get_span_context()
    log["npc"].info("outside")
    inside, outside = log.lines
    assert f"{context.trace_id:032x}" in inside
    assert f"{context.span_id:016x}" in inside
    assert "trace_id" not in outside


def test_a_summary_names_no_span_since_it_is_of_several(log: Log) -> None:
    log.handler.setFormatter(JsonFormatter())
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("t")
    for _ in range(2):
        with tracer.start_as_current_span("s"):
            log["npc"].warning("odd")
    log.now = 61
    with tracer.start_as_current_span("s"):
        log["npc"].info("fine")
    assert [("trace_id" in line) for line in _json(log)] == [True, False, True]


def test_an_error_is_not_kept_alive_by_its_repeats(log: Log) -> None:
    class OddError(Exception):
        """One that can be referred to weakly."""

    error = OddError()
    gone = weakref.ref(error)
    log["npc"].error("failed", exc_info=error)
    del error
    assert gone() is None

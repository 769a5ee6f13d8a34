"""Log lines on stderr: as text for people or as JSON for machines, with the span that they fell in.

A warning or an error that comes again and again is written once a minute with the number of times.
Ours are the same if they read the same: the object that they name matters. Those of the libraries
that talk to a collector are the same if only their numbers and addresses differ.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from opentelemetry import trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")

_WINDOW = 60.0
_MOST_KINDS = 256
_TEMPLATED = ("opentelemetry", "urllib3")


def configure(level: str, format: str) -> None:  # noqa: A002 - what the option is called
    """Write the whole program's log to stderr.

    :param level: the least severe level that is written, one of ``LEVELS``
    :param format: one of ``FORMATS``
    """
    handler = LogHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class TextFormatter(logging.Formatter):
    """One readable line, and the traceback below it if there is one."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s%(span)s")

    def format(self, record: logging.LogRecord) -> str:
        record.span = "".join(f" {name}={value}" for name, value in _ids(record).items())
        return super().format(record)


class JsonFormatter(logging.Formatter):
    """One JSON object on one line; ``time`` is RFC 3339 in UTC."""

    def format(self, record: logging.LogRecord) -> str:
        made = datetime.fromtimestamp(record.created, UTC)
        fields = {
            "time": made.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_ids(record),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes what is new, and what was repeated as a number."""

    def __init__(self, stream: TextIO, *, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._repeats = Repeats()
        self._now = now

    def emit(self, record: logging.LogRecord) -> None:
        record.span_context = trace.get_current_span().get_span_context()
        for line in self._repeats.take(record, self._now()):
            super().emit(line)

    def close(self) -> None:
        self.acquire()
        try:
            for line in self._repeats.end():
                super().emit(line)
        finally:
            self.release()
        super().close()


@dataclass(slots=True)
class _Repeated:
    logger: str
    level: int
    message: str
    began: float
    times: int = 0

    def summary(self) -> logging.LogRecord:
        times = "once" if self.times == 1 else f"{self.times} times"
        text = f"repeated {times} within {_WINDOW:.0f} s: {self.message}"
        return logging.LogRecord(self.logger, self.level, __file__, 0, text, None, None)


class Repeats:
    """Which records are to be written. Times are in seconds; not safe for several threads."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, int, str], _Repeated] = {}

    def take(self, record: logging.LogRecord, now: float) -> Iterator[logging.LogRecord]:
        """What to write now that this one has come."""
        yield from self._expired(now)
        if record.levelno >= logging.WARNING:
            kind = _kind_of(record)
            if (known := self._kinds.get(kind)) is not None:
                known.times += 1
                return
            message = record.getMessage()
            self._kinds[kind] = _Repeated(record.name, record.levelno, message, now)
        yield record

    def end(self) -> Iterator[logging.LogRecord]:
        """What is still to be written when nothing more will come."""
        yield from self._expired(float("inf"))

    def _expired(self, now: float) -> Iterator[logging.LogRecord]:
        while self._kinds:
            kind, oldest = next(iter(self._kinds.items()))
            if now - oldest.began < _WINDOW and len(self._kinds) < _MOST_KINDS:
                return
            del self._kinds[kind]
            if oldest.times:
                yield oldest.summary()


def _kind_of(record: logging.LogRecord) -> tuple[str, int, str]:
    templated = record.name.partition(".")[0] in _TEMPLATED
    return record.name, record.levelno, str(record.msg) if templated else record.getMessage()


def _ids(record: logging.LogRecord) -> dict[str, str]:
    """Of the span that the record fell in, if it fell in one."""
    context: trace.SpanContext = vars(record).get("span_context", trace.INVALID_SPAN_CONTEXT)
    if not context.is_valid:
        return {}
    return {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
    }

"""The ``OTEL_*`` variables that say what is exported, where to, and how fast.

Whatever cannot be used is reported with the variable's name and what is done instead; no mistake
in them keeps the agent from enforcing. The times are in milliseconds, as OpenTelemetry specifies;
its SDK for Python takes ``OTEL_EXPORTER_OTLP_TIMEOUT`` for seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from opentelemetry.sdk.metrics import (
    AlwaysOffExemplarFilter,
    AlwaysOnExemplarFilter,
    TraceBasedExemplarFilter,
)
from opentelemetry.sdk.trace import SpanLimits, sampling

from npc.telemetry.spans import QueueLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.sdk.metrics import ExemplarFilter

_PROTOCOL = "http/protobuf"
_COMPRESSIONS = ("none", "gzip", "deflate")
_FILES = ("CERTIFICATE", "CLIENT_CERTIFICATE", "CLIENT_KEY")
_SAMPLERS: dict[str, Callable[[float], sampling.Sampler]] = {
    "always_on": lambda _: sampling.ALWAYS_ON,
    "always_off": lambda _: sampling.ALWAYS_OFF,
    "traceidratio": sampling.TraceIdRatioBased,
    "parentbased_always_on": lambda _: sampling.DEFAULT_ON,
    "parentbased_always_off": lambda _: sampling.DEFAULT_OFF,
    "parentbased_traceidratio": sampling.ParentBasedTraceIdRatio,
}
_EXEMPLARS: dict[str, Callable[[], ExemplarFilter]] = {
    "always_on": AlwaysOnExemplarFilter,
    "always_off": AlwaysOffExemplarFilter,
    "trace_based": TraceBasedExemplarFilter,
}

# A sync that writes ends six spans or more, of about 3 kB each: this holds some 680 syncs in 12 MB.
_QUEUE_SIZE = 4096

# Encoding a batch keeps the worker from running, so batches are small: 3 to 4 ms each.
_BATCH_SIZE = 128


@dataclass(frozen=True, slots=True)
class Otlp:
    """How one signal is sent to a collector.

    ``endpoint`` is the whole URL; ``timeout``: seconds for one batch with all its retries.
    """

    endpoint: str
    timeout: float
    compression: str


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment asks for; ``problems``: one sentence per mistake in it."""

    disabled: bool
    traces_otlp: Otlp | None
    traces_console: bool
    metrics_otlp: Otlp | None
    metrics_console: bool
    queue: QueueLimits
    sampler: sampling.Sampler
    span_limits: SpanLimits
    metric_interval: float
    metric_timeout: float
    exemplars: ExemplarFilter
    resource: Mapping[str, str]
    """What was said of us, by OpenTelemetry's attribute names."""
    problems: tuple[str, ...]


def read(environment: Mapping[str, str]) -> Settings:
    """Read and check the variables; an empty one counts as not set."""
    reader = _Reader(environment)
    traces = reader.exporters("TRACES", ("otlp", "console"))
    metrics = reader.exporters("METRICS", ("otlp", "console", "prometheus"))
    size = int(reader.number("OTEL_BSP_MAX_QUEUE_SIZE", _QUEUE_SIZE))
    batch = int(
        reader.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(_BATCH_SIZE, size), at_most=size)
    )
    return Settings(
        disabled=reader.flag("OTEL_SDK_DISABLED"),
        traces_otlp=reader.otlp("TRACES") if "otlp" in traces else None,
        traces_console="console" in traces,
        metrics_otlp=reader.otlp("METRICS") if "otlp" in metrics else None,
        metrics_console="console" in metrics,
        queue=QueueLimits(size, batch, reader.number("OTEL_BSP_SCHEDULE_DELAY", 5000) / 1000),
        sampler=reader.sampler(),
        span_limits=reader.span_limits(),
        metric_interval=reader.number("OTEL_METRIC_EXPORT_INTERVAL", 60_000) / 1000,
        metric_timeout=reader.number("OTEL_METRIC_EXPORT_TIMEOUT", 30_000) / 1000,
        exemplars=_EXEMPLARS[
            reader.choice("OTEL_METRICS_EXEMPLAR_FILTER", _EXEMPLARS, "trace_based")
        ](),
        resource=reader.resource(),
        problems=tuple(reader.problems),
    )


class _Reader:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self.problems: list[str] = []

    def exporters(self, signal: str, known: tuple[str, ...]) -> set[str]:
        """The exporters asked for by name, or OTLP if there is an endpoint to send to."""
        name = f"OTEL_{signal}_EXPORTER"
        asked = self._get(name)
        if asked is None:
            return {"otlp"} if self._otlp_variable(signal, "ENDPOINT") else set()
        found = {word.strip().lower() for word in asked.split(",")} - {""}
        if unknown := sorted(found - {*known, "none"}):
            self._report(
                name, f"{', '.join(unknown)} unknown (there is {', '.join(known)}, none); left out"
            )
        return found & set(known)

    def otlp(self, signal: str) -> Otlp | None:
        """How to send it; ``None``, and a problem reported, if it cannot be sent."""
        checks = (self._check_protocol, self._check_endpoint, self._check_files)
        wrong = [problem for check in checks for problem in check(signal)]
        for name, what in wrong:
            self._report(name, f"{what}; no {signal.lower()} are exported")
        if wrong:
            return None
        self._check_headers(signal)
        return Otlp(
            endpoint=self._endpoint(signal)[1],
            timeout=self.number(self._otlp_name(signal, "TIMEOUT"), 10_000, at_least=100) / 1000,
            compression=self.choice(self._otlp_name(signal, "COMPRESSION"), _COMPRESSIONS, "none"),
        )

    def flag(self, name: str) -> bool:
        value = (self._get(name) or "false").lower()
        if value not in {"true", "false"}:
            self._report(name, "neither true nor false; taken for false")
        return value == "true"

    def number(
        self, name: str, default: float, *, at_least: float = 1, at_most: float = float("inf")
    ) -> float:
        value = self._get(name)
        if value is None:
            return default
        try:
            found = float(value)
        except ValueError:
            found = float("nan")
        if not at_least <= found <= at_most or found == float("inf"):
            allowed = f"from {at_least:g}" + (f" to {at_most:g}" if at_most != float("inf") else "")
            self._report(name, f"not a number {allowed}; {default:g} is used")
            return default
        return found

    def choice(self, name: str, known: Iterable[str], default: str) -> str:
        value = self._get(name)
        found = default if value is None else value.lower()
        if found in known:
            return found
        self._report(name, f"unknown (there is {', '.join(known)}); {default} is used")
        return default

    def sampler(self) -> sampling.Sampler:
        name = self.choice("OTEL_TRACES_SAMPLER", _SAMPLERS, "parentbased_always_on")
        ratio = 1.0
        if name.endswith("traceidratio"):
            ratio = self.number("OTEL_TRACES_SAMPLER_ARG", 1, at_least=0, at_most=1)
        return _SAMPLERS[name](ratio)

    def span_limits(self) -> SpanLimits:
        try:
            return SpanLimits()
        except ValueError as error:
            self.problems.append(f"{error}; spans may have 128 attributes, events and links")
            return SpanLimits(128, 128, 128, 128, 128, 128, SpanLimits.UNSET, SpanLimits.UNSET)

    def resource(self) -> dict[str, str]:
        name = "OTEL_RESOURCE_ATTRIBUTES"
        pairs = [pair.partition("=") for pair in (self._get(name) or "").split(",") if pair.strip()]
        for key, equals, value in pairs:
            if not (key.strip() and equals):
                self._report(name, f"{key + equals + value!r} is not KEY=VALUE; left out")
        found = {k.strip(): unquote(v.strip()) for k, equals, v in pairs if k.strip() and equals}
        if service := self._get("OTEL_SERVICE_NAME"):
            found["service.name"] = service
        return found

    def _check_protocol(self, signal: str) -> list[tuple[str, str]]:
        name = self._otlp_name(signal, "PROTOCOL")
        if self._get(name) in {None, _PROTOCOL}:
            return []
        return [(name, f"only {_PROTOCOL} is spoken")]

    def _check_endpoint(self, signal: str) -> list[tuple[str, str]]:
        name, endpoint = self._endpoint(signal)
        try:
            url = urlsplit(endpoint)
            usable = url.scheme in {"http", "https"} and url.hostname and url.port != 0
        except ValueError:
            usable = False
        return [] if usable else [(name, "no URL like http://HOST:4318")]

    def _check_files(self, signal: str) -> list[tuple[str, str]]:
        found = []
        for what in _FILES:
            name = self._otlp_name(signal, what)
            path = self._get(name)
            try:
                if path is not None:
                    Path(path).read_bytes()
            except OSError as error:
                found.append((name, f"{error.strerror}"))
        return found

    def _check_headers(self, signal: str) -> None:
        """Headers may be secret, so none is shown."""
        name = self._otlp_name(signal, "HEADERS")
        pairs = [pair.partition("=") for pair in (self._get(name) or "").split(",") if pair.strip()]
        if not all(key.strip() and equals for key, equals, _ in pairs):
            self.problems.append(
                f"{name}: not KEY=VALUE,KEY=VALUE; what cannot be read is left out"
            )

    def _endpoint(self, signal: str) -> tuple[str, str]:
        """The variable that decides, and the URL."""
        own = f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"
        if (endpoint := self._get(own)) is not None:
            return own, endpoint
        name = "OTEL_EXPORTER_OTLP_ENDPOINT"
        base = self._get(name) or "http://localhost:4318"
        return name, f"{base.removesuffix('/')}/v1/{signal.lower()}"

    def _otlp_name(self, signal: str, what: str) -> str:
        """The signal's own variable if that is set, else the one for all signals."""
        own = f"OTEL_EXPORTER_OTLP_{signal}_{what}"
        return f"OTEL_EXPORTER_OTLP_{what}" if self._get(own) is None else own

    def _otlp_variable(self, signal: str, what: str) -> str | None:
        return self._get(self._otlp_name(signal, what))

    def _get(self, name: str) -> str | None:
        return self._environment.get(name, "").strip() or None

    def _report(self, name: str, what: str) -> None:
        self.problems.append(f"{name}={self._get(name)}: {what}")

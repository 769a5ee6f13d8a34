"""Traces and metrics, by the OpenTelemetry API alone.

Whether spans go anywhere is decided where a program is put together, by the SDK. Without that,
every span here costs a few microseconds and goes nowhere.
"""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

# What the API server reads. The propagators that OTEL_PROPAGATORS names are loaded with the module
# that knows them, and a wrong name there would end the program.
_PROPAGATOR = TraceContextTextMapPropagator()


def tracer() -> trace.Tracer:
    """The framework's tracer."""
    return trace.get_tracer("reconciler")


def trace_headers() -> dict[str, str]:
    """Headers that continue the current trace in another process; none unless it is sampled."""
    headers: dict[str, str] = {}
    if trace.get_current_span().get_span_context().trace_flags.sampled:
        _PROPAGATOR.inject(headers)
    return headers

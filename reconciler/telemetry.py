"""Traces, by the OpenTelemetry API alone.

Whether spans go anywhere is decided where a program is put together, by the SDK. Without that,
every span here costs a few microseconds and goes nowhere.
"""

from __future__ import annotations

from opentelemetry import trace


def tracer() -> trace.Tracer:
    """The framework's tracer."""
    return trace.get_tracer("reconciler")

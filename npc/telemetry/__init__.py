"""Where traces and metrics go: decided here, by the standard ``OTEL_*`` variables.

The libraries and the agent speak to OpenTelemetry's API, which forgets all it is told until a
program installs providers. ``start`` reads the environment (``settings``), makes the providers
(``assembly``) and installs them. Metrics can always be scraped from ``Telemetry.metrics_page``;
spans, and metrics that are pushed, need an exporter to be asked for, else no thread is started.

Telemetry gives way to enforcement: a span is queued or dropped, never waited for (``spans``), what
a collector refuses is counted and forgotten, and ``Telemetry.stop`` takes no longer than allowed.
"""

from __future__ import annotations

from npc.telemetry.assembly import Telemetry, start

__all__ = ["Telemetry", "start"]

"""The agent's own metrics and the phases of a sync as spans, by the OpenTelemetry API.

docs/metrics.md lists every name with labels and meaning. What a sync found is read from its report
when somebody asks, so nothing is out of date and no label is ever an object's name.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry import metrics, trace
from opentelemetry.metrics import Observation

from npc.compile import cache_statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, Meter
    from opentelemetry.trace import Span, Tracer

    from npc.report import SyncReport

    Read = Callable[[], Iterable[tuple[float, dict[str, str]]]]

DURATION_BUCKETS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
)
"""Upper bounds of the buckets of ``npc_sync_duration_seconds``."""


class Metrics:
    """What a sync counts with. Without an SDK, nothing is kept."""

    def __init__(self, meter: Meter | None = None, tracer: Tracer | None = None) -> None:
        meter = meter or metrics.get_meter("npc")
        self._meter = meter
        self._tracer = tracer or trace.get_tracer("npc")
        self._durations = meter.create_histogram(
            "npc_sync_duration",
            unit="s",
            description="Seconds that a sync and each of its phases took",
            explicit_bucket_boundaries_advisory=list(DURATION_BUCKETS),
        )
        self._syncs = meter.create_counter("npc_sync", description="Syncs, by how they ended")
        self._events = meter.create_counter(
            "npc_events", description="Events that enforcement notices"
        )
        self._repairs = meter.create_counter(
            "npc_drift_repairs", description="Chains, sets and dispatches that others had changed"
        )
        for result in ("changed", "unchanged", "failed"):
            self._syncs.add(0, {"result": result})
        self._repairs.add(0)

    def event(self, kind: str, event_type: str) -> None:
        """An object changed in a way that enforcement notices."""
        self._events.add(1, {"kind": kind, "type": event_type})

    def repaired(self, count: int) -> None:
        """So many things in the kernel were not as they had been written."""
        self._repairs.add(count)

    def synced(self, result: str, seconds: float) -> None:
        """A sync ended: ``changed``, ``unchanged`` or ``failed``."""
        self._syncs.add(1, {"result": result})
        self._durations.record(seconds, {"phase": "total"})

    @contextmanager
    def phase(self, name: str) -> Iterator[Span]:
        """A part of a sync, timed; its span is a child of the sync's."""
        started = time.perf_counter()
        try:
            with self._tracer.start_as_current_span(name) as span:
                yield span
        finally:
            self._durations.record(time.perf_counter() - started, {"phase": name})

    def observe(
        self,
        report: Callable[[], SyncReport],
        coalesced: Callable[[], int],
        silence: Callable[[], Mapping[str, float]],
    ) -> None:
        """Show, from now on, what these return when they are asked.

        :param coalesced: events whose sync was waiting already, since the start
        :param silence: by kind, seconds since the API server was last heard of
        """

        def counted(name: str, value: Callable[[SyncReport], float], description: str) -> None:
            self._gauge(name, lambda: ((value(report()), {}),), description)

        counted("npc_policies", lambda r: r.counts.policies, "NetworkPolicies of the cluster")
        counted("npc_local_pods", lambda r: r.counts.local_pods, "Pods of this node")
        counted("npc_rules", lambda r: r.counts.rules, "Rules of policies in force")
        counted("npc_sets", lambda r: r.counts.sets, "Address sets in force")
        counted("npc_set_entries", lambda r: r.counts.entries, "Entries of all address sets")
        counted(
            "npc_policy_errors", lambda r: r.counts.problems, "Fields that could not be understood"
        )
        self._gauge(
            "npc_isolated_pods",
            lambda: ((n, {"direction": d}) for d, n in report().counts.isolated.items()),
            "Pods of this node that a policy isolates",
        )
        self._gauge(
            "npc_last_success_timestamp",
            lambda: ((t, {}) for t in (report().last_success_timestamp,) if t is not None),
            "When the rules last were what the policies say",
            "s",
        )
        self._gauge(
            "npc_watch_lag",
            lambda: ((seconds, {"kind": kind}) for kind, seconds in silence().items()),
            "Seconds since the API server was last heard of; it speaks about once a minute",
            "s",
        )
        self._counter(
            "npc_denied_packets",
            lambda: ((n, {"direction": d}) for d, n in report().denied.items()),
            "Packets refused, as of the last sync that looked",
        )
        self._counter(
            "npc_coalesced_events",
            lambda: ((coalesced(), {}),),
            "Events whose sync was waiting already",
        )
        self._counter(
            "npc_cache_hits",
            lambda: ((hits, {"cache": name}) for name, (hits, _) in cache_statistics().items()),
            "Results that were remembered",
        )
        self._counter(
            "npc_cache_misses",
            lambda: ((misses, {"cache": n}) for n, (_, misses) in cache_statistics().items()),
            "Results that had to be computed",
        )

    def sync_period(self, seconds: float) -> None:
        """Show how often a sync is due though nothing changed."""
        self._gauge(
            "npc_sync_period",
            lambda: ((seconds, {}),),
            "How often a sync is due though nothing changed",
            "s",
        )

    def backend(self, **labels: str) -> None:
        """Show how rules are written."""
        self._gauge("npc_backend_info", lambda: ((1, labels),), "How rules are written")

    def _gauge(self, name: str, read: Read, description: str, unit: str = "") -> None:
        self._meter.create_observable_gauge(
            name, [_callback(read)], unit=unit, description=description
        )

    def _counter(self, name: str, read: Read, description: str) -> None:
        self._meter.create_observable_counter(name, [_callback(read)], description=description)


def _callback(read: Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    return lambda _: [Observation(value, labels) for value, labels in read()]

"""The framework's metrics, by an OpenTelemetry meter. Names, labels and buckets are Go's.

    controller_runtime_reconcile_total{controller,result}            counter
    controller_runtime_reconcile_errors_total{controller}            counter
    controller_runtime_terminal_reconcile_errors_total{controller}   counter
    controller_runtime_reconcile_panics_total{controller}            counter
    controller_runtime_reconcile_timeouts_total{controller}          counter
    controller_runtime_reconcile_time_seconds{controller}            histogram
    controller_runtime_max_concurrent_reconciles{controller}         gauge
    controller_runtime_active_workers{controller}                    gauge
    leader_election_master_status{name}                              gauge, 1 while leading
    workqueue_*{name}                                                see ``workqueue.metrics``

Where a program is put together: ``Instruments(meter_provider.get_meter("reconciler"))``, handed to
each controller; an election is shown by ``instruments.leader(name, lambda: elector.leads)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry.metrics import Observation

from reconciler.metrics import OpenTelemetryMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opentelemetry.metrics import CallbackOptions, Counter, Meter

TIME_BUCKETS = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8),
    *(0.9, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0),
    *(15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 60.0),
)
"""Upper bounds of the buckets of ``reconcile_time``, in seconds."""

RESULTS = ("success", "error", "requeue_after")

_PREFIX = "controller_runtime_"


class Instruments:
    """What all controllers of a program count with; make one."""

    def __init__(self, meter: Meter) -> None:
        self.queues = OpenTelemetryMetrics(meter)
        """The metrics provider of the controllers' queues."""

        def counter(name: str, description: str) -> Counter:
            return meter.create_counter(_PREFIX + name, description=description)

        self._total = counter("reconcile", "Reconciles, by how they ended")
        self._errors = counter("reconcile_errors", "Reconciles that failed")
        self._terminal = counter("terminal_reconcile_errors", "Failures that are not tried again")
        self._panics = counter("reconcile_panics", "Reconciles that ended the controller")
        self._timeouts = counter("reconcile_timeouts", "Reconciles cancelled for taking too long")
        self._time = meter.create_histogram(
            f"{_PREFIX}reconcile_time",
            unit="s",
            description="Seconds that a reconcile took",
            explicit_bucket_boundaries_advisory=list(TIME_BUCKETS),
        )
        self._workers = meter.create_up_down_counter(
            f"{_PREFIX}max_concurrent_reconciles", description="Workers of a controller"
        )
        self._active = meter.create_up_down_counter(
            f"{_PREFIX}active_workers", description="Workers that reconcile now"
        )
        self._leading: dict[str, Callable[[], bool]] = {}
        meter.create_observable_gauge(
            "leader_election_master_status",
            [self._observe_leading],
            description="Whether this process leads",
        )

    def controller(self, name: str, workers: int) -> ControllerInstruments:
        """Begin the series of a controller, with every counter at 0."""
        return ControllerInstruments(self, name, workers)

    def leader(self, name: str, leading: Callable[[], bool]) -> None:
        """Show, from now on, whether the election of that name is won."""
        self._leading[name] = leading

    def _observe_leading(self, _options: CallbackOptions) -> Iterator[Observation]:
        for name, leading in list(self._leading.items()):
            yield Observation(int(leading()), {"name": name})


class ControllerInstruments:
    """What one controller counts with."""

    def __init__(self, shared: Instruments, name: str, workers: int) -> None:
        self._shared = shared
        self._labels = {"controller": name}
        self._workers = workers
        for result in RESULTS:
            shared._total.add(0, {**self._labels, "result": result})
        for counter in (shared._errors, shared._terminal, shared._panics, shared._timeouts):
            counter.add(0, self._labels)
        shared._active.add(0, self._labels)

    def started(self) -> None:
        """The controller's workers are there."""
        self._shared._workers.add(self._workers, self._labels)

    def ended(self) -> None:
        """The controller's workers are gone."""
        self._shared._workers.add(-self._workers, self._labels)

    def active(self, change: int) -> None:
        """A worker begins (1) or ends (-1) a reconcile."""
        self._shared._active.add(change, self._labels)

    def reconciled(self, result: str, seconds: float, *, terminal: bool, timed_out: bool) -> None:
        """A reconcile ended; ``result`` is one of ``RESULTS``."""
        shared = self._shared
        shared._total.add(1, {**self._labels, "result": result})
        shared._time.record(seconds, self._labels)
        if result == "error":
            shared._errors.add(1, self._labels)
        if terminal:
            shared._terminal.add(1, self._labels)
        if timed_out:
            shared._timeouts.add(1, self._labels)

    def panicked(self) -> None:
        """A reconcile raised what no worker survives."""
        self._shared._panics.add(1, self._labels)

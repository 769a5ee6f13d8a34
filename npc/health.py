"""What probes and operators are told: is the agent alive, is it ready, how far has it come.

Alive means that its own loops go round. That the API server cannot be reached, or that the kernel
refuses, is not mended by a restart and says nothing here; it makes the agent not ready.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from npc.controller import KEY

if TYPE_CHECKING:
    from collections.abc import Callable

    from npc.controller import Caches, PolicySync
    from reconciler.controller import Controller
    from reconciler.health import HealthServer
    from reconciler.informer import Informer

STUCK_SECONDS = 600.0
"""How long a sync may run until the agent is held to be stuck; every tool has its own bound."""

FAILING_SECONDS = 60.0
"""How long syncs may fail, and be tried again, until the agent is not ready."""


class Ticker:
    """Makes every period's sync look at the kernel, and knows when it last did."""

    def __init__(
        self, period: float, recheck: Callable[[], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        """
        :param period: in seconds
        """
        self.period = period
        self._recheck = recheck
        self._now = now
        self._last = now()

    def tick(self) -> tuple[str]:
        """A period is over: the key of a sync that trusts nothing it remembers of the kernel."""
        self._last = self._now()
        self._recheck()
        return (KEY,)

    def check(self) -> str | None:
        """Whether periods still pass; what is wrong if not."""
        silent = self._now() - self._last
        if silent <= 2 * self.period + FAILING_SECONDS:
            return None
        return f"no tick for {silent:.0f} s, though the period is {self.period:g} s"


def add_checks(
    health: HealthServer,
    caches: Caches,
    controller: Controller[str],
    sync: PolicySync,
    ticker: Ticker,
) -> None:
    """Add the agent's checks and pages to its health server."""
    health.add_liveness_check("sync", lambda: check_running(sync))
    health.add_liveness_check("ticker", ticker.check)
    for informer in (caches.pods, caches.namespaces, caches.policies):
        health.add_check(str(informer.resource), _informer_check(informer))
    health.add_check("sync", lambda: check_sync(sync))
    health.add_queue(controller.queue)
    health.add_json("/debug/state", lambda: describe_state(sync, caches, lambda: controller.idle))


def check_running(sync: PolicySync, now: Callable[[], float] = time.monotonic) -> str | None:
    """Whether the worker gets on; what is wrong if not."""
    since = sync.running_since
    if since is None or now() - since < STUCK_SECONDS:
        return None
    return f"a sync has been running for {now() - since:.0f} s"


def check_sync(sync: PolicySync, now: Callable[[], float] = time.monotonic) -> str | None:
    """Whether the rules are in force; what is wrong if not. A failure is given a while to pass."""
    report = sync.report
    if report.last_success_seconds is None:
        return report.last_error or "nothing was applied yet"
    if report.failing_since is None or now() - report.failing_since < FAILING_SECONDS:
        return None
    return f"failed {report.failed_in_a_row} times in a row: {report.last_error}"


def _informer_check(informer: Informer[Any]) -> Callable[[], str | None]:
    def check() -> str | None:
        if informer.has_synced:
            return None
        return informer.last_error or "not listed yet"

    return check


def describe_state(sync: PolicySync, caches: Caches, idle: Callable[[], bool]) -> dict[str, Any]:
    """How far enforcement has come, for ``/debug/state``.

    ``handled`` is, by kind, the resourceVersion up to which every event has been taken in, and
    ``applied`` that up to which every event is in force. Where nothing
    waits, that is all that was handled: events that enforcement does not notice need no sync.
    """
    handled = caches.handled_versions()
    settled = idle()  # asked after `handled`: what was handled before has been queued by now
    report = sync.report
    in_force = settled and report.last_error is None and report.last_success_seconds is not None
    return {
        "handled": handled,
        "applied": handled if in_force else dict(report.versions),
        "idle": settled,
        "syncs": report.total,
        "failed_in_a_row": report.failed_in_a_row,
        "last_error": report.last_error,
    }

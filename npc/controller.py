"""Keeps the kernel's rules what the cluster's policies say.

Pods, namespaces and policies are watched. A change that enforcement would notice adds one constant
key, so any number of changes wait as one; one worker turns the whole cached state into rules. The
sync is a function of the three stores: nothing it computes outlives it except what was written to
the kernel, and every periodic sync reads even that back from the kernel and repairs what differs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import get_current_span

from npc.compile import DEFAULTS, Settings, compile
from npc.drift import drift
from npc.metrics import Metrics
from npc.plan import KernelState, make_plan, state_of
from npc.report import Counts, SyncReport, count, count_changes, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npc.api import Namespace, NetworkPolicy, Pod
    from npc.dataplane import Dataplane
    from npc.policy import Problem
    from npc.ruleset import Family, Ruleset
    from reconciler.event import Event
    from reconciler.informer import Informer

KEY = "full-sync"

# How many differences of the kernel from what was written are named in a line of the log.
_SHOWN = 5

log = logging.getLogger(__name__)


def pod_view(pod: Pod) -> object:
    """All that enforcement sees of a pod, or ``None`` for a pod that it does not see."""
    return (pod.labels, pod.node, pod.ips, pod.named_ports) if pod.enforceable else None


def namespace_view(namespace: Namespace) -> object:
    """All that enforcement sees of a namespace."""
    return namespace.labels


def policy_view(policy: NetworkPolicy) -> object:
    """All that enforcement sees of a policy."""
    return policy.spec


@dataclass(frozen=True, slots=True)
class Caches:
    """The informers whose stores a sync reads."""

    pods: Informer[Pod]
    namespaces: Informer[Namespace]
    policies: Informer[NetworkPolicy]

    def silence(self) -> dict[str, float]:
        """By kind, seconds since the API server was last heard of."""
        return {
            "pods": self.pods.silence,
            "namespaces": self.namespaces.silence,
            "networkpolicies": self.policies.silence,
        }

    def handled_versions(self) -> dict[str, str]:
        """By kind, the last resourceVersion whose event is stored and has reached the handlers."""
        return {
            "pods": self.pods.handled_resource_version,
            "namespaces": self.namespaces.handled_resource_version,
            "networkpolicies": self.policies.handled_resource_version,
        }


class PolicySync:
    """The worker's side: ``full_sync`` is the reconcile function, never run by two threads."""

    def __init__(
        self,
        caches: Caches,
        dataplane: Dataplane,
        *,
        node: str,
        families: Sequence[Family],
        settings: Settings = DEFAULTS,
        after: Callable[[Ruleset], None] = lambda _: None,
        metrics: Metrics | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``after`` is called with the rules of every sync that put them in force; it may raise."""
        self._caches = caches
        self._dataplane = dataplane
        self._node = node
        self._families = families
        self.settings = settings
        """What the operator decides, as the next sync is to see it."""
        self._after = after
        self._metrics = metrics or Metrics()
        self._now = now
        self._applied: KernelState | None = None
        self._written: KernelState = {}
        self._problems: frozenset[Problem] = frozenset()
        self._recheck = threading.Event()
        self._noticed: Counter[str] = Counter()
        self._noticing = threading.Lock()
        self.report = SyncReport()
        self.running_since: float | None = None
        """When the sync that runs now began, by the monotonic clock."""

    def handler(self, kind: str) -> Callable[[Event[Any]], tuple[str]]:
        """Make the handler of a kind's events: each needs a full sync."""

        def on_event(event: Event[Any]) -> tuple[str]:
            with self._noticing:
                self._noticed[kind] += 1
            self._metrics.event(kind, event.type.value.lower())
            return (KEY,)

        return on_event

    def recheck_kernel(self) -> None:
        """Make the next sync trust nothing it remembers of the kernel. Callable by any thread."""
        self._recheck.set()

    def full_sync(self, key: str) -> None:
        """Make the kernel enforce what the stores say.

        :raises DataplaneError: if the kernel refused; the previous rules or the new ones stand
        """
        started = self._now()
        self.running_since = started
        try:
            self._full_sync(key, started)
        finally:
            self.running_since = None

    def _full_sync(self, key: str, started: float) -> None:
        with self._noticing:
            why, self._noticed = self._noticed, Counter()
        versions = self._caches.handled_versions()
        try:
            counts, changes = self._sync()
        except Exception as error:
            ended = self._now()
            self.report = replace(
                self.report,
                total=self.report.total + 1,
                failed_in_a_row=self.report.failed_in_a_row + 1,
                last_error=str(error) or type(error).__name__,
                failing_since=ended
                if self.report.failing_since is None
                else self.report.failing_since,
            )
            with self._noticing:
                self._noticed += why  # the next try is made for the same reasons
            self._metrics.synced("failed", ended - started)
            raise
        ended = self._now()
        self.report = replace(
            self.report,
            total=self.report.total + 1,
            failed_in_a_row=0,
            last_error=None,
            failing_since=None,
            last_success_seconds=ended,
            last_success_timestamp=time.time(),
            versions=versions,
            counts=counts,
        )
        self._metrics.synced("changed" if changes else "unchanged", ended - started)
        if changes:
            what = describe(counts, changes, why)
            log.info("%s: %s; %.0f ms", key, what, (ended - started) * 1000)

    def _sync(self) -> tuple[Counts, dict[str, int]]:
        """Compile, plan and apply; what is in force now, and what had to change for it."""
        phase = self._metrics.phase
        with phase("snapshot") as span:
            pods = self._caches.pods.store.snapshot()
            namespaces = self._caches.namespaces.store.snapshot()
            policies = self._caches.policies.store.snapshot()
            span.set_attributes(
                {
                    "npc.pods": len(pods),
                    "npc.namespaces": len(namespaces),
                    "npc.policies": len(policies),
                }
            )
        with phase("compile") as span:
            compiled = compile(
                pods,
                namespaces,
                policies,
                node=self._node,
                families=self._families,
                settings=self.settings,
            )
            counts = count(compiled, len(policies))
            span.set_attributes(
                {
                    "npc.local_pods": counts.local_pods,
                    "npc.rules": counts.rules,
                    "npc.sets": counts.sets,
                    "npc.set_entries": counts.entries,
                    "npc.policy_errors": counts.problems,
                }
            )
        self._log_problems(compiled.problems)
        with phase("plan") as span:
            plan = make_plan(self._known_state(), compiled.ruleset)
            changes = count_changes(plan)
            attributes = {f"npc.{what.replace(' ', '_')}": n for what, n in changes.items()}
            span.set_attributes(attributes)
        get_current_span().set_attributes({"npc.changed": not plan.empty, **attributes})
        if not plan.empty:
            with phase("apply"):
                self._applied = None  # known again only when every step is through
                self._dataplane.apply(plan)
        self._applied = self._written = state_of(compiled.ruleset)
        self._after(compiled.ruleset)
        return counts, changes

    def _known_state(self) -> KernelState:
        """What the kernel holds: as remembered, or as it says itself."""
        if self._recheck.is_set():
            self._recheck.clear()
            self._applied = None
        if self._applied is not None:
            return self._applied
        found = self._dataplane.observe()
        denied = self._dataplane.denied_packets()
        self.report = replace(self.report, denied={d.value.lower(): n for d, n in denied.items()})
        if self.report.last_error is None:
            self._report_drift(drift(self._written, found))
        return found

    def _report_drift(self, differences: list[str]) -> None:
        if not differences:
            return
        self._metrics.repaired(len(differences))
        shown = "; ".join(differences[:_SHOWN])
        more = f"; and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        log.warning("another program changed our rules; repairing: %s%s", shown, more)

    def _log_problems(self, problems: Sequence[Problem]) -> None:
        """Say each problem once, not at every sync."""
        current = frozenset(problems)
        for problem in problems:
            if problem not in self._problems:
                log.warning("%s", problem)
        self._problems = current

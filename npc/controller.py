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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from npc.compile import DEFAULTS, Compiled, Settings, compile
from npc.plan import KernelState, Plan, make_plan, state_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npc.api import Namespace, NetworkPolicy, Pod
    from npc.dataplane import Dataplane
    from npc.policy import Problem
    from npc.ruleset import Family, Ruleset
    from reconciler.informer import Informer

KEY = "full-sync"

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

    def handled_versions(self) -> dict[str, str]:
        """By kind, the last resourceVersion whose event is stored and has reached the handlers."""
        return {
            "pods": self.pods.handled_resource_version,
            "namespaces": self.namespaces.handled_resource_version,
            "networkpolicies": self.policies.handled_resource_version,
        }


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What is known of the syncs so far; ``versions`` is what the last good one had seen."""

    total: int = 0
    failed_in_a_row: int = 0
    last_error: str | None = None
    last_success_seconds: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


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
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``after`` is called with the rules of every sync that put them in force; it may raise."""
        self._caches = caches
        self._dataplane = dataplane
        self._node = node
        self._families = families
        self._settings = settings
        self._after = after
        self._now = now
        self._applied: KernelState | None = None
        self._problems: frozenset[Problem] = frozenset()
        self._recheck = threading.Event()
        self.report = SyncReport()

    def recheck_kernel(self) -> None:
        """Make the next sync trust nothing it remembers of the kernel. Callable by any thread."""
        self._recheck.set()

    def full_sync(self, key: str) -> None:
        """Make the kernel enforce what the stores say.

        :raises DataplaneError: if the kernel refused; the previous rules or the new ones stand
        """
        started = self._now()
        versions = self._caches.handled_versions()
        try:
            compiled = self._compile()
            plan = self._apply(compiled)
            self._after(compiled.ruleset)
        except Exception as error:
            self.report = SyncReport(
                total=self.report.total + 1,
                failed_in_a_row=self.report.failed_in_a_row + 1,
                last_error=str(error),
                last_success_seconds=self.report.last_success_seconds,
                versions=self.report.versions,
            )
            raise
        ended = self._now()
        self.report = SyncReport(
            total=self.report.total + 1, last_success_seconds=ended, versions=versions
        )
        if not plan.empty:
            log.info("%s: %s in %.0f ms", key, _describe(compiled, plan), (ended - started) * 1000)

    def _compile(self) -> Compiled:
        compiled = compile(
            self._caches.pods.store.snapshot(),
            self._caches.namespaces.store.snapshot(),
            self._caches.policies.store.snapshot(),
            node=self._node,
            families=self._families,
            settings=self._settings,
        )
        self._log_problems(compiled.problems)
        return compiled

    def _apply(self, compiled: Compiled) -> Plan:
        if self._recheck.is_set():
            self._recheck.clear()
            self._applied = None
        state = self._dataplane.observe() if self._applied is None else self._applied
        plan = make_plan(state, compiled.ruleset)
        if not plan.empty:
            self._applied = None  # known again only when every step is through
            self._dataplane.apply(plan)
        self._applied = state_of(compiled.ruleset)
        return plan

    def _log_problems(self, problems: Sequence[Problem]) -> None:
        """Say each problem once, not at every sync."""
        current = frozenset(problems)
        for problem in problems:
            if problem not in self._problems:
                log.warning("%s", problem)
        self._problems = current


def _describe(compiled: Compiled, plan: Plan) -> str:
    counts: Counter[str] = Counter()
    for family in plan.families:
        counts["chains written"] += len(family.write_chains)
        counts["chains deleted"] += len(family.delete_chains)
        counts["sets created"] += len(family.create) + len(family.replace)
        counts["sets destroyed"] += len(family.destroy)
        counts["entries added"] += sum(len(change.entries) for change in family.add)
        counts["entries removed"] += sum(len(change.entries) for change in family.remove)
    changes = ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "dispatch rewritten"
    isolated = ", ".join(
        f"{n} isolated for {direction.value.lower()}" for direction, n in compiled.isolated.items()
    )
    return f"{compiled.local_pods} local pods ({isolated}); {changes}"


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

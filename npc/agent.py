"""Assembles the agent from its parts and runs it until a signal."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npc.api import decode_namespace, decode_pod, decode_policy
from npc.compile import Settings, compile
from npc.controller import (
    KEY,
    Caches,
    PolicySync,
    describe_state,
    namespace_view,
    pod_view,
    policy_view,
)
from npc.dataplane import DataplaneError
from npc.dataplane.choose import choose_families, open_dataplane
from npc.dataplane.conntrack import require_conntrack
from npc.dataplane.tools import run_tool
from npc.established import Terminator
from npc.plan import make_plan
from npc.telemetry import start
from reconciler.client import ConfigurationError, Resource, Transport, load
from reconciler.controller import Controller
from reconciler.handler import enqueue_key
from reconciler.health import HealthServer
from reconciler.informer import Informer
from reconciler.manager import Group, Manager
from reconciler.predicate import view_changed
from reconciler.source import Kind, Periodic
from workqueue import ItemExponentialFailureRateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npc.dataplane import Dataplane
    from npc.ruleset import Family
    from npc.telemetry import Telemetry

__all__ = ["ConfigurationError", "Options", "run"]

PODS = Resource("", "v1", "pods", "Pod")
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", namespaced=False)
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")

# One key stands for the whole node, so its failures must not push the next try far away.
_FIRST_RETRY = 0.5
_LAST_RETRY = 30.0

# Seconds that a stop may take at most: first the parts, then what telemetry is left. Together well
# below the 30 that Kubernetes leaves a pod.
_PARTS_STOP = 15.0
_TELEMETRY_STOP = 3.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line decides. ``sync_period`` is in seconds."""

    node: str
    kubeconfig: str | None
    backend: str
    families: str
    iptables_mode: str
    settings: Settings
    terminate_established: bool
    sync_period: float
    health_address: tuple[str, int]


def run(options: Options) -> int:
    """Enforce until a signal; the exit code.

    :raises ConfigurationError: if it is not known how to reach the API server, or where to listen
    :raises MissingToolError: if this machine cannot enforce
    """
    telemetry = start(options.node)  # first: what follows takes its tracers and meters from it
    try:
        return _enforce(options, telemetry)
    finally:
        telemetry.stop(_TELEMETRY_STOP)


def _enforce(options: Options, telemetry: Telemetry) -> int:
    client = load(options.kubeconfig)
    families = choose_families(options.families)
    dataplane = open_dataplane(options.backend, options.iptables_mode, families)
    if options.settings.guarded:
        _hold(dataplane, options, families)
    caches = _caches(client)
    sync = PolicySync(
        caches,
        dataplane,
        node=options.node,
        families=families,
        settings=options.settings,
        after=_terminator() if options.terminate_established else lambda _: None,
    )
    controller = _controller(caches, sync, options.sync_period)
    health = _health(options.health_address, caches, controller, sync)
    health.add_page("/metrics", telemetry.metrics_page)

    manager = Manager(stop_within=_PARTS_STOP)
    manager.add(Group.SERVERS, health)
    manager.add(Group.CACHES, caches.pods, caches.namespaces, caches.policies)
    manager.add(Group.CONTROLLERS, controller)
    log.info(
        "enforcing %s on node %s; API server %s; health on %s:%d",
        " and ".join(family.name.lower() for family in families),
        options.node,
        client.host,
        *health.address,
    )
    manager.run()
    log.info("stopped; the rules stay in place")
    return 0


def _hold(dataplane: Dataplane, options: Options, families: Sequence[Family]) -> None:
    """Hold every guarded address before anything is known, unless rules of ours are in force."""
    state = dataplane.observe()
    if any(found.chains or found.dispatch for found in state.values()):
        return
    nothing = compile([], [], [], node=options.node, families=families, settings=options.settings)
    dataplane.apply(make_plan(state, nothing.ruleset))
    log.info("the pod addresses of this node are held until the API server says whose they are")


def _terminator() -> Terminator:
    require_conntrack(run_tool)
    return Terminator()


def _caches(transport: Transport) -> Caches:
    return Caches(
        pods=Informer(transport, PODS, decode_pod),
        namespaces=Informer(transport, NAMESPACES, decode_namespace),
        policies=Informer(transport, POLICIES, decode_policy),
    )


def _controller(caches: Caches, sync: PolicySync, period: float) -> Controller[str]:
    def tick() -> tuple[str]:
        sync.recheck_kernel()
        return (KEY,)

    controller = Controller(
        "network-policy",
        sync.full_sync,
        limiter=ItemExponentialFailureRateLimiter(_FIRST_RETRY, _LAST_RETRY),
        plain_errors=(DataplaneError,),
    )
    controller.watch(Kind(caches.pods, enqueue_key(KEY), view_changed(pod_view)))
    controller.watch(Kind(caches.namespaces, enqueue_key(KEY), view_changed(namespace_view)))
    controller.watch(Kind(caches.policies, enqueue_key(KEY), view_changed(policy_view)))
    controller.watch(Periodic(period, tick))
    # A cluster without policies has no events that matter, yet what an earlier run left must go.
    controller.queue.add(KEY)
    return controller


def _health(
    address: tuple[str, int], caches: Caches, controller: Controller[str], sync: PolicySync
) -> HealthServer:
    try:
        health = HealthServer(address)
    except OSError as error:
        host, port = address
        raise ConfigurationError(f"--health-address {host}:{port}: {error.strerror}") from error
    for informer in (caches.pods, caches.namespaces, caches.policies):
        health.add_check(str(informer.resource), _check_informer(informer))
    health.add_check("sync", lambda: _check_sync(sync))
    health.add_json("/debug/state", lambda: describe_state(sync, caches, lambda: controller.idle))
    return health


def _check_informer(informer: Informer[Any]) -> Callable[[], str | None]:
    def check() -> str | None:
        if informer.has_synced:
            return None
        return informer.last_error or "not listed yet"

    return check


def _check_sync(sync: PolicySync) -> str | None:
    report = sync.report
    if report.last_error is not None:
        return f"failed {report.failed_in_a_row} times in a row: {report.last_error}"
    return None if report.last_success_seconds is not None else "nothing was applied yet"

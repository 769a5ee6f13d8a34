"""Assembles the agent from its parts and runs it until a signal."""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from opentelemetry.metrics import get_meter

from npc.api import decode_namespace, decode_pod, decode_policy
from npc.compile import Settings, compile
from npc.controller import (
    KEY,
    Caches,
    PolicySync,
    namespace_view,
    pod_view,
    policy_view,
)
from npc.dataplane import DataplaneError
from npc.dataplane.choose import choose_families, named_families, open_dataplane
from npc.dataplane.conntrack import require_conntrack
from npc.dataplane.tools import run_tool
from npc.established import Terminator
from npc.health import Ticker, add_checks
from npc.metrics import Metrics
from npc.node import NODES, NodeBlocks
from npc.plan import make_plan
from npc.telemetry import start
from reconciler.client import ConfigurationError, Resource, Transport, load
from reconciler.controller import Controller
from reconciler.health import HealthServer
from reconciler.informer import Informer
from reconciler.instruments import Instruments
from reconciler.manager import Group, Manager
from reconciler.predicate import view_changed
from reconciler.source import Kind, Periodic
from workqueue import SYSTEM_CLOCK, Clock, ItemExponentialFailureRateLimiter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import Tracer

    from npc.dataplane import Dataplane
    from npc.dataplane.others import SoleDataplane
    from npc.policy import Network
    from npc.ruleset import Family, Ruleset
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
    """What the command line decides. ``sync_period`` is in seconds.

    With ``strict_startup`` and no ``settings.guarded``, the blocks of the Node object are held.
    """

    node: str
    kubeconfig: str | None
    backend: str
    families: str
    iptables_mode: str
    settings: Settings
    strict_startup: bool
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
        _hold(dataplane, options.node, families, options.settings)
    caches = _caches(client)
    metrics = Metrics()
    sync = PolicySync(
        caches,
        dataplane,
        node=options.node,
        families=families,
        settings=options.settings,
        after=_after(dataplane, terminate=options.terminate_established),
        metrics=metrics,
    )
    ticker = Ticker(options.sync_period, sync.recheck_kernel)
    controller = _controller(caches, sync, ticker, Instruments(get_meter("reconciler")))
    metrics.observe(lambda: sync.report, lambda: controller.statistics().coalesced, caches.silence)
    metrics.sync_period(options.sync_period)
    metrics.backend(
        backend=dataplane.name,
        families=",".join(family.name.lower() for family in families),
        version=version("fullsync"),
    )
    health = _health(options.health_address)
    add_checks(health, caches, controller, sync, ticker)
    health.add_page("/metrics", telemetry.metrics_page)

    manager = Manager(stop_within=_PARTS_STOP)
    manager.add(Group.SERVERS, health)
    manager.add(Group.CACHES, caches.pods, caches.namespaces, caches.policies)
    manager.add(Group.CONTROLLERS, controller)
    if options.strict_startup and not options.settings.guarded:
        own = _node_blocks(client, dataplane, sync, controller, options, families)
        health.add_check(str(NODES), own.check)
        manager.add(Group.CACHES, own)
    if (monitor := dataplane.watch(lambda: _look(sync, controller))) is not None:
        manager.add(Group.CONTROLLERS, monitor)
    log.info(
        "enforcing %s on node %s; API server %s; health on %s:%d",
        " and ".join(family.name.lower() for family in families),
        options.node,
        client.host,
        *health.address,
    )
    gc.collect()
    gc.freeze()  # what is there by now stays: no collection within a sync need go through it again
    manager.run()
    log.info("stopped; the rules stay in place")
    return 0


def _look(sync: PolicySync, controller: Controller[str]) -> None:
    """Another program has changed our rules: compare them with what they should be, and mend."""
    sync.recheck_kernel()
    controller.queue.add(KEY)


def _health(address: tuple[str, int]) -> HealthServer:
    try:
        return HealthServer(address)
    except OSError as error:
        host, port = address
        raise ConfigurationError(f"--health-address {host}:{port}: {error.strerror}") from error


def _node_blocks(
    transport: Transport,
    dataplane: Dataplane,
    sync: PolicySync,
    controller: Controller[str],
    options: Options,
    families: Sequence[Family],
    clock: Clock = SYSTEM_CLOCK,
) -> NodeBlocks:
    """What finds the blocks to hold, and lets the controller wait for the answer."""

    def guard(blocks: tuple[Network, ...]) -> None:
        sync.settings = replace(options.settings, guarded=blocks)
        if own.has_synced:  # so syncs run, and write the rules
            controller.queue.add(KEY)
        else:
            _hold(dataplane, options.node, families, sync.settings)

    own = NodeBlocks(transport, options.node, named_families(options.families), guard, clock)
    controller.watch(own)
    return own


def _hold(dataplane: Dataplane, node: str, families: Sequence[Family], settings: Settings) -> None:
    """Hold every guarded address before anything is known, unless rules of ours are in force."""
    state = dataplane.observe()
    if any(found.chains or found.dispatch for found in state.values()):
        return
    nothing = compile([], [], [], node=node, families=families, settings=settings)
    dataplane.apply(make_plan(state, nothing.ruleset))
    log.info("the pod addresses of this node are held until the API server says whose they are")


def _after(dataplane: SoleDataplane, *, terminate: bool) -> Callable[[Ruleset], None]:
    """What follows when rules are in force, by each sync."""
    if terminate:
        require_conntrack(run_tool)
    end = Terminator() if terminate else None

    def follow(ruleset: Ruleset) -> None:
        dataplane.retire_others()
        if end:
            end(ruleset)

    return follow


def _caches(transport: Transport) -> Caches:
    return Caches(
        pods=Informer(transport, PODS, decode_pod),
        namespaces=Informer(transport, NAMESPACES, decode_namespace),
        policies=Informer(transport, POLICIES, decode_policy),
    )


def _controller(
    caches: Caches,
    sync: PolicySync,
    ticker: Ticker,
    instruments: Instruments | None = None,
    tracer: Tracer | None = None,
) -> Controller[str]:
    controller = Controller(
        "full-sync",
        sync.full_sync,
        limiter=ItemExponentialFailureRateLimiter(_FIRST_RETRY, _LAST_RETRY),
        plain_errors=(DataplaneError,),
        instruments=instruments,
        tracer=tracer,
    )
    pods, namespaces, policies = (
        sync.handler(kind) for kind in ("pods", "namespaces", "networkpolicies")
    )
    controller.watch(Kind(caches.pods, pods, view_changed(pod_view)))
    controller.watch(Kind(caches.namespaces, namespaces, view_changed(namespace_view)))
    controller.watch(Kind(caches.policies, policies, view_changed(policy_view)))
    controller.watch(Periodic(ticker.period, ticker.tick))
    # A cluster without policies has no events that matter, yet what an earlier run left must go.
    controller.queue.add(KEY)
    return controller

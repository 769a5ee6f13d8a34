"""What telemetry costs a sync, with a collector that is well and with one that is not.

A sync compiles 1,000 pods and 100 policies after a change of one pod, and plans; the kernel takes
its part in no time, so that telemetry's share looks as large as it can. Each run is a process of
its own in which one worker syncs with hardly a pause; the collector is another one. All variants
take turns. ``cpu``: what a sync costs its worker's thread; the time on the clock also holds
whatever else this machine was at; its p99 is the median of the rounds' own, and compared with that
of a collector that is well. What tracing alone costs, which is the same for a sync of any size, is
measured on syncs so small that it can be seen.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace
from opentelemetry.metrics import get_meter

from benchmarks.compile import APPS, cluster
from npc.controller import KEY, Caches, PolicySync
from npc.dataplane.choose import open_dataplane
from npc.metrics import Metrics
from npc.ruleset import Direction, Family
from npc.telemetry import start
from reconciler.controller import Controller, Outcome
from reconciler.event import Event, EventType
from reconciler.instruments import Instruments
from reconciler.stop import Stop
from tests.telemetry.receiver import Mode, Receiver

if TYPE_CHECKING:
    from npc.api import Pod
    from npc.dataplane import Dataplane
    from npc.plan import KernelState, Plan
    from reconciler.source import Add

FAMILIES = (Family.IPV4,)
PODS = 1_000
SYNCS = 600
ROUNDS = 5
WARM_UP = 20
FEW_PODS = 5
SMALL_SYNCS = 2_000
STOP = 3.0
PAUSE = 0.002
SIZES = (100, 1_000, 10_000)
FEW_SYNCS = 50
VARIANTS = ("off", *(mode.name.lower() for mode in Mode), "gone")


class Cache:
    """What a sync asks of an informer."""

    handled_resource_version = "1"
    resource = "benchmark"

    def __init__(self, objects: list[Any]) -> None:
        self.objects = objects

    @property
    def store(self) -> Cache:
        return self

    def snapshot(self) -> list[Any]:
        return self.objects


class Kernel:
    """Takes everything at once."""

    name = "none"

    def observe(self) -> KernelState:
        return {}

    def denied_packets(self) -> dict[Direction, int]:
        return {}

    def apply(self, plan: Plan) -> None:
        """Nothing to do."""

    def cleanup(self) -> None:
        """Nothing to do."""


class Events:
    """A source whose events are told to it."""

    name = "benchmark"
    has_synced = True
    add: Add[str]

    def start(self, add: Add[str], stop: Stop) -> None:
        self.add = add


def moved(pod: Pod) -> dict[str, str]:
    """The labels of another app."""
    return {**pod.labels, "app": f"app{(int(pod.labels['app'][3:]) + 7) % APPS}"}


def run(size: int, syncs: int, dataplane: Dataplane) -> dict[str, Any]:
    """Sync so often without a pause, and say how long each took and what became of its spans."""
    telemetry = start("node0")
    pods, namespaces, policies = cluster(size)
    caches = Caches(*(Cache(objects) for objects in (pods, namespaces, policies)))  # type: ignore[arg-type]
    sync = PolicySync(caches, dataplane, node="node0", families=FAMILIES, metrics=Metrics())
    events = Events()
    wall: list[float] = []
    cpu: list[float] = []
    stop = Stop()

    def next_sync(_: Outcome, seconds: float) -> None:
        wall.append(seconds * 1000)
        cpu.append(time.thread_time() * 1000)
        if len(wall) == WARM_UP + syncs:
            stop.set()
            return
        number = len(wall) % size
        time.sleep(PAUSE)
        old = pods[number]
        pods[number] = replace(old, labels=moved(old))
        events.add(KEY, Event(EventType.MODIFIED, old, pods[number]))

    controller = Controller(
        KEY,
        sync.full_sync,
        on_reconciled=next_sync,
        instruments=Instruments(get_meter("reconciler")),
    )
    controller.watch(events)
    controller.queue.add(KEY)
    gc.collect()
    gc.freeze()
    controller.run(stop)
    started = time.perf_counter()
    telemetry.stop(STOP)
    ended = time.perf_counter() - started
    found = telemetry.span_statistics().get("otlp")
    return {
        "wall": wall[WARM_UP:],
        "cpu": [b - a for a, b in zip(cpu[WARM_UP - 1 :], cpu[WARM_UP:], strict=False)],
        "stop": ended,
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "spans": [found.exported, found.failed, found.dropped] if found else [0, 0, 0],
    }


def serve(mode: str) -> None:
    """Be the collector until stdin ends; say the port first."""
    receiver = Receiver()
    if mode == "gone":
        receiver.close()
    else:
        receiver.mode = Mode[mode.upper()]
    print(receiver.url, flush=True)
    sys.stdin.read()
    os._exit(0)


def measure(
    variant: str, size: int = PODS, syncs: int = SYNCS, *, kernel: bool = False
) -> dict[str, Any]:
    """One run in a process of its own; ``kernel``: that really writes, in an empty network."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    me = [sys.executable, "-m", "benchmarks.telemetry"]
    collector = None
    if variant != "off":
        collector = subprocess.Popen(
            [*me, "serve", variant], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert collector.stdout is not None
        environment["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.stdout.readline().strip()
    try:
        found = subprocess.run(
            [*(("unshare", "--net") if kernel else ()), *me, "run", str(size), str(syncs)]
            + ["kernel"] * kernel,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    finally:
        if collector is not None:
            collector.communicate()
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def cost_of_tracing() -> float:
    """Of one sync, in milliseconds of its worker's thread."""
    cpu: dict[str, list[float]] = {"off": [], "ok": []}
    for _ in range(ROUNDS):
        for variant, found in cpu.items():
            found.append(statistics.median(measure(variant, FEW_PODS, SMALL_SYNCS)["cpu"]))
    return min(cpu["ok"]) - min(cpu["off"])


def main() -> None:
    found: dict[str, list[dict[str, Any]]] = {variant: [] for variant in VARIANTS}
    for _ in range(ROUNDS):
        for variant in VARIANTS:
            found[variant].append(measure(variant))
    print(
        "collector   cpu ms  +%     median ms  p99 ms  +%     stop s  rss MB"
        "  exported failed dropped"
    )
    base: dict[str, float] = {}
    for variant, runs in found.items():
        cpu = statistics.median([each for run in runs for each in run["cpu"]])
        wall = [each for run in runs for each in run["wall"]]
        p99 = statistics.median(statistics.quantiles(run["wall"], n=100)[98] for run in runs)
        base = base or {"cpu": cpu}
        if variant == "ok":
            base["p99"] = p99
        fault = f"{(p99 / base['p99'] - 1) * 100:>+6.1f}" if "p99" in base else "      "
        spans = [sum(counts) for counts in zip(*(run["spans"] for run in runs), strict=True)]
        print(
            f"{variant:<10} {cpu:>7.2f} {(cpu / base['cpu'] - 1) * 100:>+5.1f}"
            f" {statistics.median(wall):>13.2f} {p99:>7.2f} {fault}"
            f" {max(run['stop'] for run in runs):>8.2f} {max(run['rss'] for run in runs):>7.0f}"
            f"  {spans[0]:>8} {spans[1]:>6} {spans[2]:>7}"
        )
    print(f"{ROUNDS} rounds of {SYNCS} syncs for each")
    cost = cost_of_tracing()
    print(f"tracing one sync costs {cost * 1000:.0f} us; of a sync of so many pods that is")
    kernel = os.geteuid() == 0
    for size in SIZES:
        computed = statistics.median(measure("off", size, FEW_SYNCS)["cpu"])
        line = f"{size:>7,}  {cost / computed * 100:>5.2f} % of what it computes, {computed:.1f} ms"
        if kernel:
            whole = statistics.median(measure("off", size, FEW_SYNCS, kernel=True)["wall"])
            line += f"; {cost / whole * 100:.2f} % if it also writes to the kernel, {whole:.1f} ms"
        print(line)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", size, syncs]:
            print(json.dumps(run(int(size), int(syncs), Kernel())))
        case ["run", size, syncs, "kernel"]:
            real = open_dataplane("restore", "nft", FAMILIES)
            print(json.dumps(run(int(size), int(syncs), real)))
        case ["serve", mode]:
            serve(mode)
        case _:
            main()

"""What following a kind costs, beside the official client's ``SharedInformer``.

Both follow the same server in the same run, each in a process of its own, so that CPU time and
memory are its own. The start is measured against a real kube-apiserver too where there is one
(``KUBEBUILDER_ASSETS``); all else against the in-memory server, which fails on demand.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rig.child import Child
from rig.pods import pod
from rig.real_server import server_with_pods
from rig.table import Row, Table
from tests.envtest.processes import find_binaries

PODS = 10_000
GROWTH = (1_000, 10_000, 50_000)
BURST = 20_000
QUIET = 2.0
FAULT_SECONDS = 40.0
FIRST_GAP, LAST_GAP = 0.8, 30.0
"""Seconds: no gap between two refused watches is shorter than the first, and each doubles it."""

KB, MB = 1024, 1024**2
PEER = "SharedInf."


@dataclass(frozen=True)
class Setting:
    """The in-memory server, and where its kubeconfig is."""

    server: Child
    kubeconfig: Path
    table: Table

    def contestant(self, kind: str) -> Child:
        """A new informer of that kind."""
        return Child("rig.contestant", kind, str(self.kubeconfig))


# -- the start ---------------------------------------------------------------------------------


def start(table: Table, name: str, kubeconfig: Path, pods: int, size: float) -> None:
    """The time, CPU and memory of the first list, of all three."""
    found: dict[str, dict[str, float]] = {}
    for kind in ("slim", "unstructured", "official"):
        with Child("rig.contestant", kind, str(kubeconfig)) as contestant:
            found[kind] = contestant.call("sync", pods=pods)
    peer = found.pop("official")
    for kind, ours in found.items():
        table.begin(f"{pods:,} pods of {size / KB:.1f} KB, {kind}; {name}", PEER)
        rows = [
            Row(what, ours[key] / unit, peer[key] / unit, "at most 1/5", ours[key] <= peer[key] / 5)
            for what, key, unit in (
                ("start, CPU s", "cpu", 1),
                ("peak memory, MB", "peak", MB),
                ("steady memory, MB", "rss", MB),
            )
        ]
        each, theirs = ours["growth"] / pods, peer["growth"] / pods
        small = ("at most 1,024", each <= KB) if kind == "slim" else ()
        rows.append(Row("steady memory, bytes a pod", each, theirs, *small))
        table.add(Row("start, s", ours["seconds"], peer["seconds"]))
        for row in rows:
            table.add(row if pods == PODS else row.without_goal())


# -- events ------------------------------------------------------------------------------------


def burst(setting: Setting, pods: int) -> None:
    """Events that were written while the contestant was paused, taken in as fast as it can.

    So the writer's time is not counted; the server only sends what it has.
    """
    table = setting.table
    table.begin(f"{BURST:,} events of {pods:,} pods", PEER)
    cpu, seconds = {}, {}
    for kind in ("slim", "unstructured", "official"):
        with setting.contestant(kind) as contestant:
            contestant.call("sync", pods=pods)
            before = contestant.call("told_of", events=pods)
            contestant.pause()
            setting.server.call("burst", events=BURST)
            contestant.resume()
            started = time.perf_counter()
            cpu[kind] = contestant.call("told_of", events=pods + BURST) - before
            seconds[kind] = time.perf_counter() - started
    for kind in ("slim", "unstructured"):
        rate, theirs = BURST / cpu[kind], BURST / cpu["official"]
        met = rate >= 10_000 if kind == "slim" else None
        goal = "at least 10,000" if kind == "slim" else ""
        table.add(Row(f"events in a CPU second, {kind}", rate, theirs, goal, met))
        table.add(
            Row(f"events in a second, {kind}", BURST / seconds[kind], BURST / seconds["official"])
        )


# -- handlers that block -----------------------------------------------------------------------


def blocked(setting: Setting, pods: int, seconds: float) -> None:
    """How far the store falls behind while a handler blocks."""
    oldest = {}
    meta = pod(0)["metadata"]
    for kind in ("slim", "official"):
        with setting.contestant(kind) as contestant:
            contestant.call("sync", pods=pods)
            setting.server.send("tick", seconds=seconds + 1, rate=50)
            oldest[kind] = contestant.call(
                "lag", seconds=seconds, namespace=meta["namespace"], name=meta["name"]
            )
            setting.server.receive()
    setting.table.begin(f"a handler blocks for {seconds:g} s, 50 events/s", PEER)
    ours, theirs = oldest["slim"], oldest["official"]
    setting.table.add(Row("greatest lag of the store, s", ours, theirs, "less than 1", ours < 1))


# -- failing servers ---------------------------------------------------------------------------


def failing(setting: Setting, pods: int, name: str, code: int, *, in_stream: bool) -> None:
    """What reaches a server that fails every watch."""
    seen: dict[str, Any] = {}
    cpu = {}
    for kind in ("slim", "official"):
        setting.server.call("fail_watches", code=code, in_stream=in_stream)
        with setting.contestant(kind) as contestant:
            before = contestant.call("told_of", events=0)
            contestant.call("start")
            seen[kind] = setting.server.call("observe", seconds=FAULT_SECONDS)
            cpu[kind] = contestant.call("told_of", events=pods) - before
        setting.server.call("recover")
    ours, peer = seen["slim"], seen["official"]
    table = setting.table
    table.begin(f"{FAULT_SECONDS:g} s of {name}, {pods:,} pods", PEER)
    one = ours["connections"]
    table.add(Row("most connections at once", one, peer["connections"], "1", one == 1))
    watches = ours["watches"]
    table.add(
        Row(
            "watches begun",
            len(watches),
            len(peer["watches"]),
            "exponential gaps",
            exponential(watches),
        )
    )
    table.add(Row("lists", ours["lists"], peer["lists"]))
    table.add(Row("CPU s", cpu["slim"], cpu["official"]))
    gaps = ", ".join(f"{later - sooner:.1f}" for sooner, later in pairwise(watches))
    print(f"our gaps, s: {gaps}")


def exponential(times: list[float]) -> bool:
    """Whether each gap is at least twice the one before it could have been at the least."""
    least = FIRST_GAP
    for sooner, later in pairwise(times):
        if later - sooner < least * 0.95:  # the observer looks now and then
            return False
        least = min(2 * least, LAST_GAP)
    return len(times) > 1


# -- the end -----------------------------------------------------------------------------------


def stopping(setting: Setting, pods: int) -> None:
    """How long a stop takes while nothing happens."""
    seconds = {}
    for kind in ("slim", "official"):
        with setting.contestant(kind) as contestant:
            contestant.call("sync", pods=pods)
            time.sleep(QUIET)
            seconds[kind] = contestant.call("stop") * 1000
    setting.table.begin("a stop while the stream is quiet", PEER)
    setting.table.add(Row("until it has stopped, ms", seconds["slim"], seconds["official"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--block", type=float, default=9.0, metavar="SECONDS", help="for how long a handler blocks"
    )
    options = parser.parse_args()
    table = Table()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        binaries = find_binaries()
        if binaries is None:
            print("no kube-apiserver and etcd: the start is measured against the in-memory server")
        else:
            with server_with_pods(binaries, folder, PODS) as (real, size):
                start(table, "kube-apiserver", real, PODS, size)
        server = stack.enter_context(Child("rig.memory_server"))
        setting = Setting(server, folder / "memory.kubeconfig", table)
        server.call("start", kubeconfig=str(setting.kubeconfig), history=2 * BURST)
        size = server.call("fill", pods=GROWTH[0])
        stopping(setting, GROWTH[0])
        blocked(setting, GROWTH[0], options.block)
        failing(setting, GROWTH[0], "watches answered by 500", 500, in_stream=False)
        failing(setting, GROWTH[0], "watches answered by 410", 410, in_stream=False)
        failing(setting, GROWTH[0], "watches that end with 410", 410, in_stream=True)
        for pods in GROWTH:
            if pods > GROWTH[0]:
                size = server.call("fill", pods=pods)
            start(table, "in-memory server", setting.kubeconfig, pods, size)
            if pods == PODS:
                burst(setting, pods)
    print(f"\nmissed: {', '.join(table.missed) or 'none'}")


if __name__ == "__main__":
    main()

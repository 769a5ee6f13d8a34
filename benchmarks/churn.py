"""Minutes of churn in real time: a controller whose sync is slow, and two controls.

Cron jobs come and go and pods change all the time, and a sync takes longer than the time between
two changes. ``controller`` is the way of ``npc``: the handlers add one constant key, one worker
syncs. ``blocking`` is our informer with a handler that syncs, on a thread of its own. ``official``
is the official client's informer with such a handler: what is seen of the cluster grows old while
the handler waits for the sync. All three follow the same server at the same time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rig.child import Child
from rig.table import Row, Table

PODS = 1_000
UPDATES = 200.0
"""A second."""
JOBS = 6.0
"""A minute."""
SAMPLE = 5.0
"""Seconds."""
MB = 1024**2


@dataclass
class Contestant:
    """One of the three, and what was seen of it."""

    name: str
    child: Child
    minutes: list[float] = field(default_factory=list)
    rss: list[float] = field(default_factory=list)
    """In MB, at each of the minutes."""
    lags: list[float] = field(default_factory=list)
    """In seconds, the greatest since the sample before: of what was stored meanwhile, from its
    writing to its storing; and how much older than the server's last update the store's is."""
    behind: list[int] = field(default_factory=list)
    """Writes of the server that the store does not have."""
    syncs: int = 0
    pending: int = 0

    def sample(self, minute: float, version: int, written: float) -> None:
        """Look at it, when the server has just been at this version and time."""
        seen = self.child.call("sample")
        self.minutes.append(minute)
        self.rss.append(seen["rss"] / MB)
        self.lags.append(max(seen["delay"], written - seen["written"]))
        self.behind.append(max(0, version - seen["version"]))
        self.syncs = seen["syncs"]
        self.pending = seen["pending"]

    def slope(self, warm_up: float) -> float:
        """Growth of the memory after so many minutes, in MB an hour."""
        points = [
            (minute / 60, rss)
            for minute, rss in zip(self.minutes, self.rss, strict=True)
            if minute >= warm_up
        ]
        return statistics.linear_regression(*zip(*points, strict=True)).slope

    def __str__(self) -> str:
        recent = self.lags[-round(60 / SAMPLE) :]
        return (
            f"{max(recent):>8.2f} {self.behind[-1]:>7,} {self.pending:>7,}"
            f" {self.rss[-1]:>7.1f} {self.syncs:>6}"
        )


def watch(server: Child, contestants: list[Contestant], minutes: float) -> int:
    """Sample until the churn is over, and print a line each minute; the last version written."""
    columns = f"{'lag s':>8} {'behind':>7} {'pending':>7} {'RSS MB':>7} {'syncs':>6}"
    print("minute" + "".join(f"  | {c.name:^39}" for c in contestants))
    print("      " + f"  | {columns}" * len(contestants), flush=True)
    began = time.monotonic()
    printed = 0
    while (passed := time.monotonic() - began) < minutes * 60:
        time.sleep(SAMPLE - passed % SAMPLE)
        version, written = server.call("written")
        minute = (time.monotonic() - began) / 60
        for contestant in contestants:
            contestant.sample(minute, version, written)
        if int(minute) > printed:
            printed = int(minute)
            print(f"{printed:>6}" + "".join(f"  | {c}" for c in contestants), flush=True)
    return int(server.call("churned"))


def report(ours: Contestant, blocking: Contestant, peer: Contestant, warm_up: float) -> Table:
    """What was measured while the churn went on."""
    table = Table()
    table.begin("ours: the controller", "SharedInf.")
    slope = ours.slope(warm_up)
    row = Row(
        "memory slope after warm-up, MB/h", slope, peer.slope(warm_up), "less than 1", slope < 1
    )
    table.add(row)
    lag = max(ours.lags)
    table.add(Row("greatest lag of the store, s", lag, max(peer.lags), "less than 1", lag < 1))
    table.add(Row("writes behind at the end", ours.behind[-1], peer.behind[-1]))
    table.begin("ours: the handler that blocks", "SharedInf.")
    slope, lag = blocking.slope(warm_up), max(blocking.lags)
    table.add(Row("memory slope after warm-up, MB/h", slope, peer.slope(warm_up)))
    table.add(Row("greatest lag of the store, s", lag, max(peer.lags), "less than 1", lag < 1))
    table.add(
        Row(
            "events that wait for the handler, at the end",
            blocking.pending,
            peer.behind[-1],
            f"at most {PODS + 100:,}",
            blocking.pending <= PODS + 100,
        )
    )
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--reconcile-seconds", type=float, default=90.0)
    options = parser.parse_args()
    seconds: float = options.reconcile_seconds
    with ExitStack() as stack:
        kubeconfig = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "kubeconfig"
        server = stack.enter_context(Child("rig.memory_server"))
        server.call("start", kubeconfig=str(kubeconfig), history=20_000)
        server.call("fill", pods=PODS)
        contestants = []
        for name in ("controller", "blocking", "official"):
            child = Child("rig.churn_contestant", name, str(kubeconfig), str(PODS), str(seconds))
            contestants.append(Contestant(name, stack.enter_context(child)))
            child.call("start")
        print(
            f"{PODS:,} pods, {UPDATES:g} updates/s, {JOBS:g} jobs/min for {options.minutes:g} min;"
            f" a sync takes {seconds:g} s"
        )
        server.call("churn", seconds=options.minutes * 60, updates=UPDATES, jobs=JOBS)
        last = watch(server, contestants, options.minutes)
        controller, blocking, official = contestants
        table = report(controller, blocking, official, warm_up=options.minutes / 5)
        syncs = controller.child.call("settle", version=last, seconds=2 * seconds + 10)
    table.begin("ours: the controller's syncs", "")
    at_once, followed = syncs["at once"], syncs["followed"]
    table.add(Row("most at once", at_once, goal="1", met=at_once == 1))
    table.add(Row("that began after the last write", followed, goal="1", met=followed == 1))
    table.add(Row("in all", syncs["syncs"]))
    print(f"\nmissed: {', '.join(table.missed) or 'none'}")


if __name__ == "__main__":
    main()

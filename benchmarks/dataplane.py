"""What the backends cost: to write a node's rules, and for each packet that the rules judge.

Writing: a node whose pods are all isolated in both directions, ten of them to a chain; a chain has
five rules, of ten sets of peers. ``full`` writes everything into an empty kernel, ``one pod`` adds
a pod to its chains and to one set of peers, ``one rule`` changes the rules of one chain in each
direction, ``observe`` reads everything back. Milliseconds of processor time of this process, the
tools and the kernel on their behalf; what they wait for is not in it.

Packets: datagrams of one pod to another that no connection is remembered for, so that each is
judged; every pod of the node has a chain of its own, and theirs are the last. The time is that of
the whole way of a datagram through the node, from send to receive.

Of every figure the best of several: other work on this machine only ever adds time.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npc.plan import make_plan
from npc.ruleset import (
    AddressSet,
    Chain,
    Direction,
    Family,
    Ports,
    Protocol,
    Rule,
    Ruleset,
    SetKind,
    SetRef,
)
from tests.contract.dataplane.netns import Namespace
from tests.contract.dataplane.node import make_dataplane
from tests.contract.dataplane.samples import nothing, ruleset
from tests.e2e.dataplane.lan import Lan

if TYPE_CHECKING:
    from collections.abc import Callable

V4 = Family.IPV4
WRITERS = ("nft", "legacy", "nftables")
"""Libiptc has a benchmark of its own: the processor time of its worker is not seen here."""
SIZES = (100, 1_000, 5_000)
BOUND = (10, 100, 1_000, 5_000)
ROUNDS = 5
FLOOD_SECONDS = 2.0
BATCH = 10


def address(number: int) -> str:
    return f"10.1.{number >> 8}.{number & 255}"


def pods(count: int, *, port: int = 80) -> Ruleset:
    """A node of so many pods. The first chain allows ``port``."""
    peers = [
        AddressSet(f"NPC-PEERS{n}", SetKind.ADDRESS, frozenset(map(address, range(n, count, 10))))
        for n in range(10)
    ]
    bound = []
    for n in range(0, count, 10):
        for direction in Direction:
            rules = tuple(
                Rule(
                    SetRef(peers[(n + r) % 10].name, SetKind.ADDRESS),
                    Ports(Protocol.TCP, *2 * [port + r if n == 0 else 1000 + n + r]),
                    "namespace/policy",
                )
                for r in range(5)
            )
            members = [address(pod) for pod in range(n, min(n + 10, count))]
            bound.append((Chain(f"NPC-{direction.value[0]}{n}", direction, rules), members))
    return ruleset(V4, peers, bound)


@dataclass
class Cost:
    full: float
    pod: float
    rule: float
    observe: float


def writing(variant: str, size: int) -> Cost:
    full, observe = [], []
    for _ in range(ROUNDS):
        with contextlib.closing(Namespace()) as own, own:
            dataplane = make_dataplane(variant, V4)
            plan = make_plan(dataplane.observe(), pods(size))
            full.append(timed(lambda: dataplane.apply(plan)))  # noqa: B023
            observe.append(timed(dataplane.observe))
    small: dict[str, list[float]] = {"pod": [], "rule": []}
    with contextlib.closing(Namespace()) as own, own:
        dataplane = make_dataplane(variant, V4)
        base = pods(size - 1)
        dataplane.apply(make_plan(dataplane.observe(), base))
        for _ in range(2 * ROUNDS):
            for what, other in (("pod", pods(size)), ("rule", pods(size - 1, port=8080))):
                plan = make_plan(dataplane.observe(), other)
                small[what].append(timed(lambda: dataplane.apply(plan)))  # noqa: B023
                dataplane.apply(make_plan(dataplane.observe(), base))
    return Cost(*map(min, (full, small["pod"], small["rule"], observe)))


def timed(action: Callable[[], object]) -> float:
    started = processor_seconds()
    action()
    return (processor_seconds() - started) * 1000


def processor_seconds() -> float:
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def judging(variant: str, bound: int) -> float:
    """Microseconds for each datagram."""
    with contextlib.ExitStack() as stack:
        lan = Lan(variant, V4, stack)
        if bound:
            lan.enforce(own_chains(lan, bound))
        else:
            lan.enforce(nothing(V4))
        # Without it, all but the first datagram would pass as part of a connection.
        lan.node.run(
            *("nft", "add table ip bench; add chain ip bench c"),
            *("{ type filter hook prerouting priority raw; }; add rule ip bench c notrack",),
        )
        server, client = lan.b.receive(53), lan.a.socket(socket.SOCK_DGRAM)
        client.connect(server.getsockname())
        return flood(client, server)


def own_chains(lan: Lan, bound: int) -> Ruleset:
    everyone = [address(n) for n in range(bound - 2)] + [lan.a.address, lan.b.address]
    allow = Rule(None, Ports(Protocol.UDP, 53, 53), "namespace/policy")
    return ruleset(
        V4,
        [],
        [
            (Chain(f"NPC-{d.value[0]}{n:05}", d, (allow,)), [pod])
            for d in Direction
            for n, pod in enumerate(everyone)
        ],
    )


def flood(client: socket.socket, server: socket.socket) -> float:
    """Microseconds for each datagram of the fastest batch."""
    best = float("inf")
    until = time.perf_counter() + FLOOD_SECONDS
    while time.perf_counter() < until:
        started = time.perf_counter()
        for _ in range(BATCH):
            client.send(b"?")
        for _ in range(BATCH):
            server.recv(1)
        best = min(best, time.perf_counter() - started)
    return best / BATCH * 1e6


def main() -> None:
    if os.geteuid():
        sys.exit("needs root: it makes network namespaces")
    with tempfile.TemporaryDirectory() as directory:
        os.environ["XTABLES_LOCKFILE"] = f"{directory}/xtables.lock"
        columns = ("full ms", "one pod", "one rule", "observe")
        print(f"{'backend':10} {'pods':>6}", *(f"{name:>9}" for name in columns))
        for size in SIZES:
            for variant in WRITERS:
                cost = writing(variant, size)
                print(
                    f"{variant:10} {size:>6} {cost.full:>9.1f} {cost.pod:>9.1f} {cost.rule:>9.1f} "
                    f"{cost.observe:>9.1f}",
                    flush=True,
                )
        print(f"\n{'backend':10} {'bound':>6} {'us/packet':>10}")
        for bound in (0, *BOUND):
            for variant in WRITERS:
                print(f"{variant:10} {bound:>6} {judging(variant, bound):>10.2f}", flush=True)


if __name__ == "__main__":
    main()

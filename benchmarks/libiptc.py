"""How long the rules of legacy iptables take by iptables-restore and by libiptc; needs root.

All pods are on this node and isolated by the policies of ``compile.py``. ``all`` writes everything
into an empty table, ``chain`` one chain that lost a rule, ``pod`` what a pod that is gone changes
in the dispatch and the denial. Milliseconds of processor time, since one thing happens after the
other and other load does not change it; the best of some rounds. The sets are there already, and
the worker runs, though it has seen none of the rules.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from compile import cluster

from npc.compile import compile
from npc.dataplane.libiptc import LibiptcDataplane
from npc.dataplane.restore import RestoreDataplane, written_chains
from npc.plan import FamilyState, Plan, make_plan, state_of
from npc.ruleset import Direction, Family, FamilyRules, Ruleset

if TYPE_CHECKING:
    from collections.abc import Callable

CLONE_NEWNET = 0x40000000
ROUNDS = 5
FAMILY = Family.IPV4


def rules_for(pods: int) -> FamilyRules:
    all_pods, namespaces, policies = cluster(pods)
    local = [msgspec.structs.replace(pod, node="node0") for pod in all_pods]
    compiled = compile(local, namespaces, policies, node="node0", families=(FAMILY,))
    return compiled.ruleset.families[FAMILY]


def without_a_rule(rules: FamilyRules) -> FamilyRules:
    chain = max(rules.chains.values(), key=lambda chain: len(chain.rules))
    shorter = replace(chain, rules=chain.rules[1:])
    return replace(rules, chains={**rules.chains, chain.name: shorter})


def without_a_pod(rules: FamilyRules) -> FamilyRules:
    name = rules.dispatch.isolated[Direction.INGRESS]
    members = rules.sets[name]
    fewer = replace(members, entries=members.entries - {min(members.entries)})
    return replace(rules, sets={**rules.sets, name: fewer})


def timed(dataplane: RestoreDataplane, before: FamilyState, after: FamilyRules) -> float:
    """Milliseconds for the rules of a step from one state to another."""
    (plan,) = make_plan({FAMILY: before}, Ruleset({FAMILY: after})).families
    rules_alone = replace(plan, create=(), replace=(), add=(), remove=(), destroy=())
    started = processor_time()
    dataplane.apply(Plan((rules_alone,)))
    return (processor_time() - started) * 1000


def processor_time() -> float:
    """Seconds of this process, of the tools that it ran, and of the worker."""
    tools = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in children())
    return time.process_time() + tools.ru_utime + tools.ru_stime + running / 1e9


def children() -> list[str]:
    files = Path("/proc/self/task").glob("*/children")
    return [pid for file in files for pid in file.read_text().split()]


def measure(
    opened: Callable[[], RestoreDataplane], rules: FamilyRules
) -> tuple[RestoreDataplane, list[float]]:
    whole = state_of(Ruleset({FAMILY: rules}))[FAMILY]
    (plan,) = make_plan({}, Ruleset({FAMILY: rules})).families
    sets_alone = Plan((replace(plan, write_chains=(), write_dispatch=False),))
    first, chain, pod = [], [], []
    for _ in range(ROUNDS):
        dataplane = opened()
        dataplane.cleanup()
        dataplane.apply(sets_alone)
        first.append(timed(dataplane, FamilyState(sets=rules.sets), rules))
        chain.append(timed(dataplane, whole, without_a_rule(rules)))
        pod.append(timed(dataplane, whole, without_a_pod(rules)))
    return dataplane, [min(times) for times in (first, chain, pod)]


def worker_memory() -> int:
    """RSS of the libiptc worker in MB, the only child that stays."""
    (child,) = children()
    status = Path(f"/proc/{child}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) // 1024


def main() -> None:
    if ctypes.CDLL(None).unshare(CLONE_NEWNET):
        sys.exit("needs root")
    os.environ["XTABLES_LOCKFILE"] = f"{tempfile.mkdtemp()}/xtables.lock"
    ways: dict[str, Callable[[], RestoreDataplane]] = {
        "restore": lambda: RestoreDataplane.open("legacy", [FAMILY]),
        "libiptc": lambda: LibiptcDataplane.open("legacy", [FAMILY]),
    }
    for name, opened in ways.items():
        started = time.perf_counter()
        opened()
        print(f"open {name} {(time.perf_counter() - started) * 1000:.0f} ms")
    print(" pods  rules     way     all   chain     pod")
    for pods in (100, 1_000, 5_000):
        rules = rules_for(pods)
        (plan,) = make_plan({}, Ruleset({FAMILY: rules})).families
        count = sum(map(len, written_chains(plan).values()))
        for name, opened in ways.items():
            dataplane, (all_, chain, pod) = measure(opened, rules)
            print(f"{pods:>5} {count:>6} {name} {all_:>7.1f} {chain:>7.1f} {pod:>7.1f}")
        print(f"worker's RSS {worker_memory()} MB")
        dataplane.cleanup()


if __name__ == "__main__":
    main()

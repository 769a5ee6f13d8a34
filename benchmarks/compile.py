"""How long a sync's pure half takes, and how that grows with the cluster.

Pods are spread over nodes of a hundred pods and namespaces of a hundred; each namespace has ten
policies: a default deny, some that select by label in both directions, one with a block and named
ports. ``cold`` has empty caches, as after a start; ``warm`` is every later sync.
"""

from __future__ import annotations

import resource
import statistics
import time

from npc import compile as compile_module
from npc.api import NamedPort, Namespace, NetworkPolicy, Pod
from npc.compile import compile
from npc.plan import make_plan, state_of
from npc.ruleset import Family

APPS = 20
ROUNDS = 5


def cluster(size: int) -> tuple[list[Pod], list[Namespace], list[NetworkPolicy]]:
    pods, namespaces, policies = [], [], []
    for number in range(size):
        namespace = f"ns{number % max(size // 100, 1)}"
        pods.append(
            Pod(
                namespace=namespace,
                name=f"pod{number}",
                uid=f"uid{number}",
                resource_version="1",
                labels={"app": f"app{number % APPS}", "tier": "web" if number % 3 else "db"},
                node=f"node{number // 100}",
                phase="Running",
                host_network=False,
                ips=(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}",),
                named_ports=(NamedPort("http", "TCP", 8000 + number % 5),),
            )
        )
    for n in range(max(size // 100, 1)):
        name = f"ns{n}"
        namespaces.append(Namespace(name, name, "1", {"team": f"team{n % 10}"}))
        policies += [
            NetworkPolicy(name, f"p{p}", f"{name}-{p}", "1", {}, spec(p)) for p in range(10)
        ]
    return pods, namespaces, policies


def spec(number: int) -> object:
    app = {"matchLabels": {"app": f"app{number}"}}
    if number == 0:
        return {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    if number == 9:
        block = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
        return {"podSelector": app, "egress": [{"to": [block], "ports": [{"port": "http"}]}]}
    return {
        "podSelector": app,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [
            {
                "from": [
                    {"podSelector": {"matchLabels": {"tier": "web"}}},
                    {"namespaceSelector": {"matchLabels": {"team": f"team{number}"}}},
                ],
                "ports": [{"port": "http"}, {"port": 9000, "endPort": 9010}],
            }
        ],
        "egress": [
            {"to": [{"namespaceSelector": {}, "podSelector": app}], "ports": [{"port": 80}]}
        ],
    }


def timed(snapshot: tuple[list[Pod], list[Namespace], list[NetworkPolicy]]) -> float:
    started = time.perf_counter()
    compile(*snapshot, node="node0", families=(Family.IPV4,))
    return (time.perf_counter() - started) * 1000


def main() -> None:
    print("   pods  policies  cold ms  warm ms  plan ms  us/pod")
    for size in (100, 1_000, 10_000, 50_000):
        snapshot = cluster(size)
        compile_module._parse_version.cache_clear()
        compile_module._address.cache_clear()
        cold = timed(snapshot)
        warm = statistics.median(timed(snapshot) for _ in range(ROUNDS))
        ruleset = compile(*snapshot, node="node0", families=(Family.IPV4,)).ruleset
        started = time.perf_counter()
        make_plan(state_of(ruleset), ruleset)
        plan = (time.perf_counter() - started) * 1000
        print(
            f"{size:>7} {len(snapshot[2]):>9} {cold:>8.1f} {warm:>8.1f} {plan:>8.2f}"
            f" {warm * 1000 / size:>7.1f}"
        )
    print(f"peak RSS {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB")


if __name__ == "__main__":
    main()

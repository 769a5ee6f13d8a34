"""What the end-to-end tests share: a cluster of two pods, and questions to it."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from npc.lab.agents import Enforcement
from npc.lab.cluster import Cluster, cluster
from npc.lab.runs import Run
from npc.lab.traffic import Probe, Verdict
from npc.ruleset import Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PORTS = (80, 81)


@contextmanager
def small_cluster(mode: str, *options: str) -> Iterator[Cluster]:
    """One node, ``client`` and ``server`` in the namespace ``x``, and nothing applied.

    ``options`` are more of the agent's.
    """
    enforcement = Enforcement(mode=mode)
    with Run() as run, cluster(run, ["node-1"], enforcement=enforcement, options=options) as lab:
        lab.apply({"kind": "Namespace", "metadata": {"name": "x"}})
        for name in ("client", "server"):
            lab.apply(
                {
                    "kind": "Pod",
                    "metadata": {"namespace": "x", "name": name, "labels": {"app": name}},
                }
            )
        lab.serve((port, Protocol.TCP) for port in PORTS)
        lab.settle()
        yield lab


def policy(*ports: int, name: str = "p") -> dict[str, Any]:
    """Lets everybody reach the server on these ports, and on no others."""
    return {
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "x", "name": name},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": port} for port in ports]}] if ports else [],
        },
    }


def reached(lab: Cluster) -> set[int]:
    """The ports of the server on which the client reaches it."""
    client, server = lab.host("x/client"), lab.host("x/server")
    outcomes = lab.traffic.probe(
        Probe(client, server.addresses[0], port, Protocol.TCP) for port in PORTS
    )
    assert all(outcome.verdict is not Verdict.ERROR for outcome in outcomes), outcomes
    return {
        port
        for port, outcome in zip(PORTS, outcomes, strict=True)
        if outcome.verdict is Verdict.ALLOW
    }


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Ask again and again until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not become so in time"
        time.sleep(0.01)

"""What a newcomer sees first, and the same cluster to play with."""

from __future__ import annotations

import signal
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from npc.lab.agents import AgentError, Enforcement
from npc.lab.cluster import Cluster, cluster
from npc.lab.runs import Run
from npc.lab.traffic import Probe, Verdict
from npc.ruleset import Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npc.ruleset import Family

PORT = 80

_NAMESPACES = {"shop": "customer-facing", "ops": "trusted", "guest": "untrusted"}
_PODS = [
    ("shop", "web", "node-1"),
    ("shop", "api", "node-2"),
    ("ops", "monitor", "node-1"),
    ("guest", "visitor", "node-2"),
]
_OUTSIDE = ("client", ("203.0.113.7", "2001:db8::7"))

_DENY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "default-deny", "namespace": "shop"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}
_ALLOW = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "api-from-web-and-ops", "namespace": "shop"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "api"}},
        "ingress": [
            {
                "from": [
                    {"podSelector": {"matchLabels": {"app": "web"}}},
                    {"namespaceSelector": {"matchLabels": {"zone": "trusted"}}},
                ],
                "ports": [{"protocol": "TCP", "port": PORT}],
            }
        ],
    },
}


@dataclass(frozen=True)
class Reach:
    """Who could reach whom at one moment: verdicts by the names of both ends."""

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    verdicts: dict[tuple[str, str], Verdict]


def demo(enforcement: Enforcement) -> int:
    """Show a policy that closes a namespace, and one that opens a way; the exit code."""
    console = _console()
    with Run() as run:
        title = "[bold]NetworkPolicy at work: real agents, real packets[/]"
        console.print(Rule(title, align="left"))
        console.print("Making a cluster out of network namespaces ...", style="dim")
        started = time.monotonic()
        with cluster(run, ["node-1", "node-2"], enforcement=enforcement) as lab:
            _furnish(lab)
            lab.settle()
            seconds = time.monotonic() - started
            console.print(
                f"Two nodes, each with its agent, and {len(_PODS)} pods are up"
                f" after {seconds:.1f} s."
            )
            _print_inventory(console, lab)

            console.print(Rule("[bold]1. No policies[/]: everyone reaches everyone", align="left"))
            open_ = _reach(lab)
            _print_reach(console, open_, None)

            closed = _apply(
                console, lab, "2. A default deny closes the namespace [b]shop[/]", _DENY, open_
            )
            _apply(
                console,
                lab,
                "3. A second policy opens the API to the web pods and to [b]trusted[/] namespaces",
                _ALLOW,
                closed,
            )
            console.print()
            console.print(
                "The node always reaches its own pods, as probes must. `npc lab up` shows the"
                " rules.",
                style="dim",
            )
    console.print(
        "Everything is removed again. Next: [b]npc lab up[/] to play, docs/lab.md to read."
    )
    return 0


def up(enforcement: Enforcement, nodes: int, families: Sequence[Family]) -> int:
    """Keep the demo's cluster running until a signal; the exit code."""
    console = _console()
    with Run() as run:
        names = [f"node-{n}" for n in range(1, nodes + 1)]
        with cluster(run, names, enforcement=enforcement, families=families) as lab:
            _furnish(lab)
            config = run.directory / "kubeconfig"
            config.write_text(lab.api.kubeconfig())
            with lab.kubelet.following(config):
                lab.settle()
                _print_inventory(console, lab)
                _print_usage(console, run, lab, enforcement)
                _wait(console, lab)
    console.print("Everything is removed again.")
    return 0


def _console() -> Console:
    # Piped output is as wide as a plain terminal, so that tables stay whole.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def _furnish(lab: Cluster) -> None:
    for name, zone in _NAMESPACES.items():
        lab.apply({"kind": "Namespace", "metadata": {"name": name, "labels": {"zone": zone}}})
    nodes = list(lab.topology.nodes)
    for namespace, name, node in _PODS:
        lab.apply(
            {
                "kind": "Pod",
                "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
                "spec": {
                    "nodeName": node if node in nodes else nodes[0],
                    "containers": [{"ports": [{"containerPort": PORT}]}],
                },
            }
        )
    lab.add_outside(*_OUTSIDE)
    lab.serve([(PORT, Protocol.TCP)])


def _apply(
    console: Console, lab: Cluster, title: str, policy: dict[str, Any], before: Reach
) -> Reach:
    """Apply a policy, say how long it took to be in force, and show what changed."""
    console.print()
    console.print(Rule(f"[bold]{title}[/]", align="left"))
    text = yaml.safe_dump(policy, sort_keys=False).strip()
    console.print(Padding(Syntax(text, "yaml", background_color="default"), (0, 0, 0, 2)))
    lab.apply(policy)
    milliseconds = lab.settle() * 1000
    console.print(f"In force on every node [b]{milliseconds:.0f} ms[/] after it was applied.")
    after = _reach(lab)
    _print_reach(console, after, before)
    return after


def _reach(lab: Cluster) -> Reach:
    pods = tuple(f"{namespace}/{name}" for namespace, name in lab.kubelet.pods)
    outside = tuple(f"outside/{name}" for name in lab.topology.outside)
    sources = (*pods, *outside, *(f"node/{name}" for name in lab.topology.nodes))
    targets = (*pods, *outside)
    pairs = [(source, target) for source in sources for target in targets]
    outcomes = lab.traffic.probe(
        Probe(lab.host(source), lab.host(target).addresses[0], PORT, Protocol.TCP)
        for source, target in pairs
    )
    verdicts = {pair: outcome.verdict for pair, outcome in zip(pairs, outcomes, strict=True)}
    return Reach(sources, targets, verdicts)


_MARKS = {
    Verdict.ALLOW: ("✓", "green"),
    Verdict.DENY: ("✗", "red"),
    Verdict.ERROR: ("?", "bold yellow"),
}


def _print_reach(console: Console, reach: Reach, before: Reach | None) -> None:
    table = Table(title=None, header_style="bold", pad_edge=False, padding=(0, 1))
    table.add_column(f"TCP {PORT}: from \\ to", no_wrap=True)
    for target in reach.targets:
        table.add_column(target, justify="center", no_wrap=True)
    for source in reach.sources:
        row = []
        for target in reach.targets:
            verdict = reach.verdicts[source, target]
            mark, style = _MARKS[verdict]
            changed = before is not None and before.verdicts.get((source, target)) is not verdict
            row.append(
                Text(f"[{mark}]", style=f"bold reverse {style}")
                if changed
                else Text(mark, style=style)
            )
        table.add_row(source, *row)
    console.print(table)
    legend = "✓ reached   ✗ refused"
    if before is not None:
        count = sum(before.verdicts.get(pair) is not v for pair, v in reach.verdicts.items())
        legend += f"   [ ] changed by this step: {count} of {len(reach.verdicts)}"
    console.print(Text(legend, style="dim"))


def _print_inventory(console: Console, lab: Cluster) -> None:
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 2))
    for column in ("node", "pod", "namespace labels", "address", "network namespace"):
        table.add_column(column, no_wrap=True)
    pods = lab.kubelet.pods
    for key in sorted(pods, key=lambda key: (pods[key].node, key)):
        pod = pods[key]
        labels = lab.api.get("namespaces", key[0])["metadata"]["labels"]
        table.add_row(
            pod.node,
            "/".join(key),
            f"zone={labels['zone']}" if "zone" in labels else "",
            " ".join(pod.host.addresses),
            pod.host.namespace,
        )
    console.print(Padding(table, (0, 0, 1, 2)))


def _print_usage(console: Console, run: Run, lab: Cluster, enforcement: Enforcement) -> None:
    pod, *_, other = (pod.host for pod in lab.kubelet.pods.values())
    node = next(iter(lab.topology.nodes.values()))
    rules = f"iptables-{enforcement.mode} -S | grep NPC"
    if enforcement.backend == "nftables":
        rules = "nft list table inet npc"
    console.print(
        f"""[b]The cluster is up.[/] In another terminal, as root:

  export KUBECONFIG={run.directory}/kubeconfig
  kubectl get pods -A -o wide
  kubectl apply -f my-policy.yaml          # policies, and pods too: they get a network
  kubectl label pod -n guest visitor app=web --overwrite
  ip netns exec {pod.namespace} bash       # a shell inside a pod
    exec 3<>/dev/tcp/{other.addresses[0]}/{PORT} && echo hello >&3 && head -1 <&3
  ip netns exec {node.namespace} {rules}

Every pod echoes what it is sent on TCP {PORT}.
The agents' logs are {run.directory}/agent-*.log.""",
        soft_wrap=True,
    )


def _wait(console: Console, lab: Cluster) -> None:
    """Until a signal; each line on standard input shows who reaches whom now."""
    stopped = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: stopped.set())
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    if not sys.stdin.isatty():
        console.print("Ctrl-C or SIGTERM ends it.")
        stopped.wait()
        return
    console.print("[b]Enter[/] shows who reaches whom now; [b]Ctrl-C[/] ends it.")

    def show() -> None:
        before = None
        for _ in sys.stdin:
            try:
                lab.settle()
            except AgentError as error:
                console.print(Text(str(error), style="red"))
                continue
            now = _reach(lab)
            _print_reach(console, now, before)
            before = now
        stopped.set()

    threading.Thread(target=show, daemon=True).start()
    stopped.wait()

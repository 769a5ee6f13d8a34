"""What the real agent promises, held against a real kernel: one node, two pods, real packets."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from npc.lab import netns
from tests.e2e.clusters import PORTS, policy, reached, small_cluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npc.lab.cluster import Cluster

pytestmark = pytest.mark.netns


@pytest.fixture(params=["nft", "legacy"])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def lab(mode: str) -> Iterator[Cluster]:
    with small_cluster(mode) as made:
        yield made


class Gate:
    """Stands before the tool that writes rules: while it is shut, a sync goes on and on."""

    def __init__(self, directory: Path, mode: str) -> None:
        self._shut = directory / "shut"
        self._entered = directory / "entered"
        tool = f"iptables-{mode}-restore"
        shim = directory / tool
        shim.write_text(
            f"#!/bin/sh\necho >> {self._entered}\n"
            f"while [ -e {self._shut} ]; do sleep 0.01; done\n"
            f'PATH="${{PATH#{directory}:}}" exec {tool} "$@"\n'
        )
        shim.chmod(0o755)
        self.path = f"{directory}:{os.environ['PATH']}"

    def shut(self) -> None:
        self._shut.touch()

    def open(self) -> None:
        self._shut.unlink()

    @property
    def entered(self) -> int:
        """How often somebody came to the gate."""
        return len(self._entered.read_text().splitlines()) if self._entered.exists() else 0


@pytest.fixture
def gate(lab: Cluster, mode: str, tmp_path: Path) -> Gate:
    """A gate that the agent's writes go through."""
    made = Gate(tmp_path, mode)
    agent = lab.agents["node-1"]
    agent.stop()
    agent.environment["PATH"] = made.path
    agent.start()
    lab.settle()
    return made


def _syncs(lab: Cluster) -> int:
    return int(lab.agents["node-1"].get("/debug/state")["syncs"])


def _seen(lab: Cluster, version: int) -> bool:
    return int(lab.agents["node-1"].get("/debug/state")["handled"]["networkpolicies"]) >= version


def test_a_hundred_changes_during_a_sync_cost_exactly_one_more(lab: Cluster, gate: Gate) -> None:
    before, entered = _syncs(lab), gate.entered
    gate.shut()
    lab.apply(policy(80))
    wait_until(lambda: gate.entered > entered)
    for number in range(100):
        lab.apply(policy(1000 + number))
    lab.apply(policy(81))
    last = lab.api.resource_version
    # The watch goes on though the sync does not: handlers wait for nothing.
    wait_until(lambda: _seen(lab, last))
    assert _syncs(lab) == before
    gate.open()
    lab.settle()
    assert _syncs(lab) == before + 2
    assert reached(lab) == {81}


def test_a_stop_wins_over_queued_changes(lab: Cluster, gate: Gate) -> None:
    agent = lab.agents["node-1"]
    entered = gate.entered
    gate.shut()
    lab.apply(policy(80))
    wait_until(lambda: gate.entered > entered)
    lab.apply(policy(81))
    version = lab.api.resource_version
    wait_until(lambda: _seen(lab, version))
    during = gate.entered
    agent.ask_to_stop()
    wait_until(lambda: "stopping" in agent.log.read_text())
    gate.open()
    assert agent.stop() == 0
    assert gate.entered == during
    assert reached(lab) == {80}  # what was being written was written whole, and stays


def test_a_killed_agent_leaves_the_old_rules_or_the_new_and_a_restart_converges(
    lab: Cluster,
) -> None:
    agent = lab.agents["node-1"]
    chance = random.Random(4)
    old: set[int] = {80}
    lab.apply(policy(80))
    lab.settle()
    for new in ({81}, {80}, set[int](), {81}, {80}):
        lab.apply(policy(*new))
        # A sync takes some tens of milliseconds, so these moments fall before, within and after.
        subprocess.run(["sleep", str(chance.uniform(0, 0.05))], check=True)
        agent.kill()
        assert reached(lab) in (old, new)
        agent.start()
        lab.settle()
        assert reached(lab) == new
        old = new


def test_without_the_api_server_the_rules_stay_and_its_return_is_noticed(lab: Cluster) -> None:
    agent = lab.agents["node-1"]
    lab.apply(policy(80))
    lab.settle()
    lab.stop_control_plane()
    assert reached(lab) == {80}
    agent.stop()
    agent.start()  # and now it has never seen the API server
    wait_until(lambda: agent.get("/debug/state") is not None)
    assert reached(lab) == {80}
    lab.start_control_plane()
    lab.apply(policy(81))
    lab.settle()
    assert reached(lab) == {81}


def test_what_others_did_to_the_rules_is_repaired_by_the_next_periodic_sync(
    lab: Cluster, mode: str
) -> None:
    agent = lab.agents["node-1"]
    lab.apply(policy(80))
    lab.settle()
    agent.stop()
    agent.options = ["--sync-period", "1s"]
    agent.start()
    lab.settle()
    node = lab.topology.nodes["node-1"].namespace
    iptables = ["ip", "netns", "exec", node, f"iptables-{mode}", "-w", "5"]
    subprocess.run([*iptables, "-F"], check=True)
    subprocess.run([*iptables, "-A", "INPUT", "-s", "192.0.2.1", "-j", "ACCEPT"], check=True)
    wait_until(lambda: reached(lab) == {80})
    rules = subprocess.run([*iptables, "-S"], check=True, capture_output=True, text=True).stdout
    assert "192.0.2.1" in rules


def test_a_policy_that_makes_no_sense_closes_its_pods_and_harms_no_other(lab: Cluster) -> None:
    lab.api.create(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"namespace": "x", "name": "senseless"},
            "spec": {
                "podSelector": {"matchLabels": {"app": "server"}},
                "ingress": [{"ports": [{"port": 80, "protocol": "CARRIER-PIGEON"}]}],
            },
        },
        validate=False,
    )
    lab.settle()
    assert reached(lab) == set()
    assert "x/senseless" in lab.agents["node-1"].log.read_text()
    lab.apply(policy(81))
    lab.settle()
    assert reached(lab) == {81}


def test_five_thousand_policies_of_one_namespace_are_enforced_and_forgotten(lab: Cluster) -> None:
    names = [f"p{number}" for number in range(5000)]
    for number, name in enumerate(names):
        lab.apply(policy(10_000 + number, name=name))
    lab.apply(policy(80, name="last"))
    lab.settle()
    assert reached(lab) == {80}
    lab.delete("NetworkPolicy", "x", "last")
    lab.settle()
    assert reached(lab) == set()
    for name in names:
        lab.api.delete("networkpolicies", name, "x")
    lab.settle()
    assert reached(lab) == set(PORTS)


def test_the_node_reaches_its_pods_from_every_address_of_its_own(lab: Cluster) -> None:
    node, server = lab.topology.nodes["node-1"], lab.host("x/server")
    netns.ip(["addr add 192.0.2.9/32 dev lo"], node.namespace)
    lab.apply(policy())
    lab.settle()
    assert reached(lab) == set()

    def connect() -> None:
        target = (server.addresses[0], PORTS[0])
        socket.create_connection(target, timeout=10, source_address=("192.0.2.9", 0)).close()

    netns.inside(node.namespace, connect)


IPTABLES = ["--backend", "restore", "--iptables-mode"]
LIBIPTC = ["--backend", "libiptc", "--iptables-mode", "legacy"]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([*IPTABLES, "nft"], [*IPTABLES, "legacy"]),
        ([*IPTABLES, "legacy"], ["--backend", "nftables"]),
        (["--backend", "nftables"], [*IPTABLES, "nft"]),
        ([*IPTABLES, "nft", "--families", "dual"], [*IPTABLES, "nft"]),
        ([*IPTABLES, "nft"], LIBIPTC),
        (LIBIPTC, ["--backend", "nftables"]),
    ],
    ids=[
        "other mode",
        "to nftables",
        "from nftables",
        "fewer families",
        "to libiptc",
        "from libiptc",
    ],
)
def test_an_agent_that_enforces_otherwise_leaves_nothing_of_the_old_way(
    before: list[str], after: list[str]
) -> None:
    with small_cluster("nft", *before) as lab:
        agent = lab.agents["node-1"]
        lab.apply(policy(80))
        lab.settle()
        agent.stop()
        old = _rules_of_ours(lab)
        agent.options = after
        agent.start()
        lab.settle()
        assert reached(lab) == {80}
        new = _rules_of_ours(lab)
        assert new != old
        lab.apply(policy(81))
        lab.settle()
        assert reached(lab) == {81}
        agent.stop()
        node = lab.topology.nodes["node-1"].namespace
        subprocess.run(["ip", "netns", "exec", node, *CLEANUP], check=True)
        assert _rules_of_ours(lab) == set()
        agent.start()
        lab.settle()
        assert _rules_of_ours(lab) == new


def test_what_another_program_takes_out_of_our_table_is_back_at_once() -> None:
    with small_cluster("nft", "--backend", "nftables", "--sync-period", "1h") as lab:
        lab.apply(policy(80))
        lab.settle()
        inside = ["ip", "netns", "exec", lab.topology.nodes["node-1"].namespace]
        ruleset = [*inside, "nft", "list", "table", "inet", "npc"]
        before = subprocess.run(ruleset, check=True, capture_output=True).stdout
        subprocess.run([*inside, "nft", "flush", "ruleset"], check=True)
        for _ in range(1000):
            shown = subprocess.run(ruleset, check=False, capture_output=True).stdout
            if len(shown) == len(before):
                break
            threading.Event().wait(0.01)
        assert reached(lab) == {80}
        assert "another program changed our rules" in lab.agents["node-1"].log.read_text()


CLEANUP = [sys.executable, "-m", "npc", "cleanup"]


def _rules_of_ours(lab: Cluster) -> set[str]:
    """Where rules of ours are: by the tool that shows them."""
    node = lab.topology.nodes["node-1"].namespace
    places = {
        "nft table": (["nft", "list", "tables"], "table inet npc"),
        "sets of IPv6": (["ipset", "list", "-n"], "NPC-6-INGRESS"),
        "sets of IPv4": (["ipset", "list", "-n"], "NPC-4-INGRESS"),
    }
    for version in ("iptables", "ip6tables"):
        for mode in ("nft", "legacy"):
            places[f"{version}-{mode}"] = ([f"{version}-{mode}-save"], "NPC-FORWARD")
    found = set()
    for place, (command, mark) in places.items():
        argv = ["ip", "netns", "exec", node, *command]
        shown = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
        if mark in shown:
            found.add(place)
    return found


def test_cleanup_removes_all_that_is_ours_and_nothing_else(lab: Cluster, mode: str) -> None:
    lab.apply(policy(80))
    lab.settle()
    agent = lab.agents["node-1"]
    agent.stop()
    node = lab.topology.nodes["node-1"].namespace
    inside = ["ip", "netns", "exec", node]
    subprocess.run(
        [*inside, f"iptables-{mode}", "-w", "5", "-A", "INPUT", "-s", "192.0.2.1", "-j", "ACCEPT"],
        check=True,
    )
    subprocess.run([*inside, "ipset", "create", "others", "hash:ip"], check=True)
    subprocess.run([*inside, sys.executable, "-m", "npc", "cleanup"], check=True)
    for command in ([f"iptables-{mode}-save"], ["ipset", "save"]):
        left = subprocess.run([*inside, *command], check=True, capture_output=True, text=True)
        assert "NPC-" not in left.stdout
        assert ("192.0.2.1" in left.stdout) or ("others" in left.stdout)
    assert reached(lab) == {80, 81}

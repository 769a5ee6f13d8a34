"""What the operator's options promise, where a scenario cannot show it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from npc.lab import netns
from npc.lab.traffic import Probe, Verdict
from npc.ruleset import Protocol
from reconciler.testing import Refuse
from tests.e2e.clusters import PORTS, policy, reached, small_cluster, wait_until
from tests.e2e.nflog import NflogListener

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npc.lab.cluster import Cluster
    from npc.lab.topology import Host

pytestmark = pytest.mark.netns

STRICT = {
    "of the options": ("--strict-startup", "--pod-cidr", "10.244.1.0/24"),
    "of the Node object": ("--strict-startup",),
}

BACKENDS = {
    "nft": ("--backend", "restore", "--iptables-mode", "nft"),
    "legacy": ("--backend", "restore", "--iptables-mode", "legacy"),
    "nftables": ("--backend", "nftables"),
    "libiptc": ("--backend", "libiptc", "--iptables-mode", "legacy"),
}


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return BACKENDS[request.param]


@pytest.fixture
def strict(request: pytest.FixtureRequest, backend: tuple[str, ...]) -> Iterator[Cluster]:
    with small_cluster("nft", *backend, *request.param) as made:
        yield made


def blocks_from(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("strict", [STRICT[n] for n in names], ids=names, indirect=True)


any_blocks, given_blocks, found_blocks = (
    blocks_from(*STRICT),
    blocks_from("of the options"),
    blocks_from("of the Node object"),
)


def reaches(lab: Cluster, source: Host, target: Host, patience: float = 1.0) -> bool:
    probe = Probe(source, target.addresses[0], PORTS[0], Protocol.TCP, patience)
    verdict = lab.traffic.probe([probe])[0].verdict
    assert verdict is not Verdict.ERROR
    return verdict is Verdict.ALLOW


def end_without_rules(lab: Cluster) -> None:
    """Stop the agent of a node that then is as one that has just started."""
    lab.agents["node-1"].stop()
    inside = ["ip", "netns", "exec", lab.topology.nodes["node-1"].namespace]
    subprocess.run([*inside, sys.executable, "-m", "npc", "cleanup"], check=True)
    assert reached(lab) == set(PORTS)


def readiness(lab: Cluster) -> tuple[int, str]:
    """The status and the text of the agent's answer to its readiness probe."""

    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", 20245, timeout=5)
        with contextlib.closing(connection):
            connection.request("GET", "/readyz?verbose")
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    return netns.inside(lab.topology.nodes["node-1"].namespace, ask)


@any_blocks
def test_an_address_that_nobody_is_known_to_have_is_held_until_it_is_known(strict: Cluster) -> None:
    lab = strict
    client, node = lab.host("x/client"), lab.topology.nodes["node-1"]
    unknown = lab.topology.add_pod("x", "unknown", "node-1", ("10.244.1.77",))
    lab.traffic.serve(unknown, lab.kubelet.ports)
    assert not reaches(lab, client, unknown)
    assert not reaches(lab, unknown, client)
    assert not reaches(lab, unknown, node)
    assert reaches(lab, node, unknown, 10)  # the kubelet's probes
    assert reached(lab) == set(PORTS)  # known pods are open
    lab.topology.remove(unknown)
    lab.apply(
        {
            "kind": "Pod",
            "metadata": {"namespace": "x", "name": "known"},
            "status": {"podIPs": [{"ip": "10.244.1.77"}]},
        }
    )
    lab.settle()
    assert reaches(lab, client, lab.host("x/known"), 10)
    assert reaches(lab, lab.host("x/known"), client, 10)


@given_blocks
def test_everything_is_held_from_the_start_until_the_api_server_answers(strict: Cluster) -> None:
    lab, agent = strict, strict.agents["node-1"]
    node = lab.topology.nodes["node-1"]
    end_without_rules(lab)
    lab.stop_control_plane()
    agent.start()
    wait_until(lambda: agent.get("/debug/state") is not None)
    assert reached(lab) == set()
    assert reaches(lab, node, lab.host("x/server"), 10)
    lab.start_control_plane()
    lab.settle()
    assert reached(lab) == set(PORTS)


@found_blocks
def test_everything_is_held_from_the_first_answer_until_pods_are_known(strict: Cluster) -> None:
    lab, agent = strict, strict.agents["node-1"]
    end_without_rules(lab)
    lab.api.faults.add(Refuse(503), resource="pods", times=None)
    said = agent.log.read_text()
    agent.start()
    wait_until(lambda: "are held until" in agent.log.read_text().removeprefix(said))
    assert reached(lab) == set()
    assert reaches(lab, lab.topology.nodes["node-1"], lab.host("x/server"), 10)
    lab.api.faults.clear()
    lab.settle()
    assert reached(lab) == set(PORTS)


@found_blocks
def test_who_may_not_read_the_node_enforces_policies_and_is_not_ready(strict: Cluster) -> None:
    lab, agent = strict, strict.agents["node-1"]
    lab.apply(policy(80))
    end_without_rules(lab)
    lab.api.faults.add(Refuse(403), resource="nodes", times=None)
    agent.start()
    lab.settle()
    assert reached(lab) == {80}
    status, checks = readiness(lab)
    assert status == 503
    [failing] = [line for line in checks.splitlines() if line.startswith("[-]")]
    assert failing.startswith("[-]nodes failed: 403 Forbidden")
    assert "--strict-startup needs the right to list nodes" in failing
    unknown = lab.topology.add_pod("x", "unknown", "node-1", ("10.244.1.77",))
    lab.traffic.serve(unknown, lab.kubelet.ports)
    assert reaches(lab, lab.host("x/client"), unknown, 10)
    lab.api.faults.clear()
    wait_until(lambda: readiness(lab)[0] == 200)
    wait_until(lambda: not reaches(lab, lab.host("x/client"), unknown))
    assert reached(lab) == {80}


@any_blocks
def test_a_restart_without_the_api_server_holds_nothing_that_was_known(strict: Cluster) -> None:
    lab, agent = strict, strict.agents["node-1"]
    agent.stop()
    lab.stop_control_plane()
    agent.start()
    wait_until(lambda: agent.get("/debug/state") is not None)
    assert reached(lab) == set(PORTS)


def test_denied_packets_are_logged_with_their_direction_a_few_a_minute(
    backend: tuple[str, ...],
) -> None:
    with small_cluster("nft", *backend, "--log-denied") as lab:
        egress = policy(name="out")
        egress["spec"] |= {"podSelector": {"matchLabels": {"app": "client"}}}
        egress["spec"] |= {"policyTypes": ["Egress"]}
        lab.apply(policy())
        lab.settle()
        with NflogListener(lab.topology.nodes["node-1"].namespace, group=100) as listener:
            for _ in range(15):
                assert reached(lab) == set()
            assert set(listener.prefixes(10)) == {"npc: denied ingress"}
            lab.apply(egress)
            lab.settle()
            assert reached(lab) == set()
            assert listener.prefixes(2) == ["npc: denied egress"] * 2


def test_a_server_that_keeps_sending_does_not_keep_its_connection(backend: tuple[str, ...]) -> None:
    with small_cluster("nft", *backend, "--terminate-established") as lab:
        client, server = lab.host("x/client"), lab.host("x/server")
        address = (server.addresses[0], 4000)
        listening = netns.inside(server.namespace, lambda: socket.create_server(address))
        connection = netns.inside(
            client.namespace, lambda: socket.create_connection(address, timeout=20)
        )
        sending, _ = listening.accept()
        with listening, connection, sending:
            ended = threading.Event()
            received = 0

            def send() -> None:
                try:
                    while True:
                        sending.sendall(b"x" * 65_536)
                except OSError:
                    ended.set()

            def receive() -> None:
                nonlocal received
                try:
                    while data := connection.recv(65_536):
                        received += len(data)
                except OSError:
                    pass

            threads = [threading.Thread(target=part) for part in (send, receive)]
            for thread in threads:
                thread.start()
            wait_until(lambda: received > 0)
            lab.apply(policy(80))
            lab.settle()
            assert ended.wait(20)
            for thread in threads:
                thread.join(20)
                assert not thread.is_alive()

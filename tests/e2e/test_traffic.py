"""Servers and probes between two hosts, with nothing to stop them."""

from __future__ import annotations

import gc
import socket
import subprocess
from typing import TYPE_CHECKING

import pytest

from npc.lab import netns
from npc.lab.runs import Run
from npc.lab.topology import Topology
from npc.lab.traffic import Outcome, Probe, Traffic, Verdict
from npc.ruleset import Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npc.lab.topology import Host

pytestmark = pytest.mark.netns

PORT = 80
SHORT = 0.3
"""Seconds, for what is to be denied; whatever is to be allowed may take long."""


@pytest.fixture
def topology() -> Iterator[Topology]:
    with Run() as run:
        made = Topology(run.prefix)
        made.build(["node-1", "node-2"])
        yield made


@pytest.fixture
def hosts(topology: Topology) -> dict[str, Host]:
    return {
        "near": topology.add_pod("x", "near", "node-1", ("10.244.1.10", "fd00:10:244:1::10")),
        "far": topology.add_pod("x", "far", "node-2", ("10.244.2.10", "fd00:10:244:2::10")),
        "outside": topology.add_outside("o", ("203.0.113.7", "2001:db8::7")),
        **topology.nodes,
    }


def ask(
    traffic: Traffic,
    source: Host,
    target: Host,
    protocol: Protocol,
    *,
    version: int = 4,
    patience: float = 10.0,
) -> Outcome:
    address = target.address(version)
    assert address is not None
    return traffic.probe([Probe(source, address, PORT, protocol, patience)])[0]


def denied(traffic: Traffic, source: Host, target: Host, protocol: Protocol) -> bool:
    return ask(traffic, source, target, protocol, patience=SHORT).verdict is Verdict.DENY


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.value)
def test_everybody_reaches_everybody(
    hosts: dict[str, Host], protocol: Protocol, version: int
) -> None:
    with Traffic() as traffic:
        for host in hosts.values():
            traffic.serve(host, [(PORT, protocol)])
        pairs = [(source, target) for source in hosts for target in hosts]
        verdicts = {
            (source, target): ask(
                traffic, hosts[source], hosts[target], protocol, version=version
            ).verdict
            for source, target in pairs
        }
    assert set(verdicts.values()) == {Verdict.ALLOW}, verdicts


@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.value)
def test_where_nobody_listens_a_probe_is_denied(hosts: dict[str, Host], protocol: Protocol) -> None:
    with Traffic() as traffic:
        assert denied(traffic, hosts["near"], hosts["far"], protocol)
        traffic.serve(hosts["far"], [(PORT, protocol)])
        assert ask(traffic, hosts["near"], hosts["far"], protocol).verdict is Verdict.ALLOW
        traffic.stop_serving(hosts["far"])
        assert denied(traffic, hosts["near"], hosts["far"], protocol)


@pytest.mark.parametrize("target", ["REJECT", "DROP"])
@pytest.mark.parametrize("protocol", list(Protocol), ids=lambda protocol: protocol.value)
def test_what_a_node_refuses_or_swallows_is_denied(
    hosts: dict[str, Host], protocol: Protocol, target: str
) -> None:
    rule = ["iptables-nft", "-A", "FORWARD", "-p", protocol.value.lower(), "-j", target]
    subprocess.run(["ip", "netns", "exec", hosts["node-2"].namespace, *rule], check=True)
    with Traffic() as traffic:
        traffic.serve(hosts["far"], [(PORT, protocol)])
        assert denied(traffic, hosts["near"], hosts["far"], protocol)


def test_a_host_without_a_way_is_the_labs_error_and_no_denial(hosts: dict[str, Host]) -> None:
    netns.ip(["route flush table main", "route flush table local"], hosts["near"].namespace)
    with Traffic() as traffic:
        outcome = ask(traffic, hosts["near"], hosts["far"], Protocol.TCP)
    assert (outcome.verdict, outcome.detail) == (Verdict.ERROR, "Network is unreachable")


def test_an_address_belongs_to_whom_it_was_given_last(
    topology: Topology, hosts: dict[str, Host]
) -> None:
    heir = topology.add_pod("x", "heir", "node-2", hosts["far"].addresses)
    with Traffic() as traffic:
        traffic.serve(heir, [(PORT, Protocol.TCP)])
        assert ask(traffic, hosts["near"], heir, Protocol.TCP).verdict is Verdict.ALLOW
        topology.remove(hosts["far"])
        assert ask(traffic, hosts["near"], heir, Protocol.TCP).verdict is Verdict.ALLOW


def test_an_end_in_the_middle_of_a_connection_leaves_nothing_open(hosts: dict[str, Host]) -> None:
    near, far = hosts["near"], hosts["far"]
    address = far.address(4)

    def connect() -> socket.socket:
        return socket.create_connection((address, PORT), timeout=10)

    with Traffic() as traffic:
        traffic.serve(far, [(PORT, Protocol.TCP)])
        connection = netns.inside(near.namespace, connect)
        connection.sendall(b"hello")
        assert connection.recv(5) == b"hello"
    assert connection.recv(5) == b""
    connection.close()
    gc.collect()  # what was left open would be a warning now, and so an error

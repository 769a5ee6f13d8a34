"""Enforcement never pauses: not while the agent starts anew, changes its layout or its backend."""

from __future__ import annotations

import contextlib
import itertools
import re
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

from npc.lab import netns
from npc.lab.agents import Enforcement
from npc.lab.cluster import Cluster, cluster
from npc.lab.runs import Run
from tests.e2e.clusters import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.netns

RATE = 1_000
"""Datagrams a second, from each of two pods."""

BACKENDS = {
    "restore-nft": ("--backend", "restore", "--iptables-mode", "nft"),
    "restore-legacy": ("--backend", "restore", "--iptables-mode", "legacy"),
    "nftables": ("--backend", "nftables"),
    "libiptc": ("--backend", "libiptc", "--iptables-mode", "legacy"),
}
# From each backend to each other one, once.
ROUTE = (
    *("restore-nft", "restore-legacy", "restore-nft", "nftables", "restore-legacy", "nftables"),
    *("restore-nft", "libiptc", "nftables", "libiptc", "restore-legacy", "libiptc", "restore-nft"),
)

# What another version could be: chains and sets of the same meaning with other names.
RENAMED = """
import sys, npc.compile as c
name, fixed = c._name, c._FamilyCompiler._fixed_name
c._name = lambda label, *identity: name(label, "renamed", *identity)
c._FamilyCompiler._fixed_name = lambda self, what: fixed(self, what + "-2")
from npc.cli import main
sys.exit(main())
"""

POLICY = {
    "kind": "NetworkPolicy",
    "metadata": {"namespace": "x", "name": "p"},
    "spec": {
        "podSelector": {"matchLabels": {"app": "server"}},
        "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "friend"}}}]}],
    },
}
_PORT = 5000
_RECEIVE_BUFFER = 33  # SO_RCVBUFFORCE
_BUFFER = 64 << 20


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One node; of ``server``, ``friend`` and ``stranger``, only the friend reaches the server."""
    options = getattr(request, "param", ())
    with Run() as run, cluster(run, ["node-1"], enforcement=Enforcement(), options=options) as made:
        made.apply({"kind": "Namespace", "metadata": {"name": "x"}})
        for name in ("server", "friend", "stranger"):
            labels = {"app": name}
            meta = {"namespace": "x", "name": name, "labels": labels}
            made.apply({"kind": "Pod", "metadata": meta})
        made.apply(POLICY)
        made.settle()
        yield made


class Stream:
    """Datagrams to the server, numbered, each the first of a connection as far as rules know.

    Nobody answers them, so connection tracking never calls them established.
    """

    def __init__(self, lab: Cluster, stack: ExitStack) -> None:
        server = lab.host("x/server")
        self._target = (server.addresses[0], _PORT)
        self._receiver = self._socket(server.namespace, stack)
        self._receiver.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER, _BUFFER)
        self._receiver.bind(self._target)
        self._senders = {}
        self._names = {}
        for name in ("friend", "stranger"):
            host = lab.host(f"x/{name}")
            self._senders[name] = self._socket(host.namespace, stack)
            self._names[host.addresses[0]] = name
        self._stop = threading.Event()
        self.sent = 0

    def _socket(self, namespace: str, stack: ExitStack) -> socket.socket:
        kind = socket.SOCK_DGRAM
        return stack.enter_context(netns.socket_in(namespace, socket.AF_INET, kind))

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Within the block, and a moment before and after it, datagrams are under way."""
        thread = threading.Thread(target=self._send)
        thread.start()
        try:
            self._wait_for(self.sent + RATE // 4)
            yield
            self._wait_for(self.sent + RATE // 4)
        finally:
            self._stop.set()
            thread.join()

    def _wait_for(self, number: int) -> None:
        deadline = time.monotonic() + 30
        while self.sent < number:
            assert time.monotonic() < deadline, "datagrams are not sent"
            time.sleep(0.01)

    def _send(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            for sender in self._senders.values():
                sender.sendto(struct.pack("!I", self.sent), self._target)
            self.sent += 1
            due += 1 / RATE
            time.sleep(max(0, due - time.monotonic()))

    def arrived(self) -> dict[str, set[int]]:
        """By sender, the numbers of what came."""
        found: dict[str, set[int]] = {name: set() for name in self._senders}
        with contextlib.suppress(BlockingIOError):
            while True:
                datagram, (address, _) = self._receiver.recvfrom(64)
                found[self._names[address]].add(*struct.unpack("!I", datagram))
        return found


@contextmanager
def uninterrupted(lab: Cluster, what: str) -> Iterator[None]:
    """Within the block the friend's datagrams arrive, and none of the stranger's."""
    with ExitStack() as stack:
        stream = Stream(lab, stack)
        with stream.flowing():
            yield
        arrived = stream.arrived()
        lost = stream.sent - len(arrived["friend"])
        print(f"{what}: of {stream.sent} allowed datagrams {lost} were lost")
        assert not arrived["stranger"], f"{len(arrived['stranger'])} of the stranger's arrived"
        assert not lost, f"{lost} were lost"


def restart(lab: Cluster, *, kill: bool = False) -> None:
    agent = lab.agents["node-1"]
    if kill:
        agent.kill()
    else:
        agent.stop()
    agent.start()
    lab.settle()


def rules(lab: Cluster) -> dict[str, set[str]]:
    """By place where rules can be, the names in what is ours there."""
    commands = {
        "restore-nft": ("iptables-nft-save", "NPC-"),
        "restore-legacy": ("iptables-legacy-save", "NPC-"),
        "nftables": ("nft list ruleset", "table inet npc"),
    }
    found = {}
    for place, (command, mark) in commands.items():
        text = on_node(lab, *command.split())
        if mark in text:
            found[place] = set(re.findall(r"NPC-[\w-]+", text))
    return found


def on_node(lab: Cluster, *command: str) -> str:
    inside = ["ip", "netns", "exec", lab.topology.nodes["node-1"].namespace]
    done = subprocess.run([*inside, *command], capture_output=True, check=True, text=True)
    return done.stdout


@pytest.mark.parametrize("lab", BACKENDS.values(), ids=BACKENDS, indirect=True)
def test_a_new_start_and_other_names_for_everything_interrupt_nothing(lab: Cluster) -> None:
    agent = lab.agents["node-1"]
    with uninterrupted(lab, "a stop and a start"):
        restart(lab)
    with uninterrupted(lab, "a kill and a start"):
        restart(lab, kill=True)
    agent.options += ["--deny-action", "drop", "--exempt-cidr", "192.0.2.0/24"]
    with uninterrupted(lab, "other options"):
        restart(lab)
    [before] = rules(lab).values()
    agent.program[1:] = ["-c", RENAMED]
    with uninterrupted(lab, "other names"):
        restart(lab)
    [after] = rules(lab).values()
    assert any(len(name) > 20 for name in after - before)
    assert all(len(name) < 20 for name in after & before)


@pytest.mark.timeout(300)
def test_another_backend_takes_over_without_an_open_moment(lab: Cluster) -> None:
    agent = lab.agents["node-1"]
    for before, after in itertools.pairwise(ROUTE):
        agent.options = [*BACKENDS[after]]
        with uninterrupted(lab, f"from {before} to {after}"):
            restart(lab)
        assert rules(lab).keys() == {"restore-legacy" if after == "libiptc" else after}


@pytest.mark.parametrize("lab", [("--strict-startup", "--pod-cidr", "10.99.0.0/24")], indirect=True)
def test_addresses_that_are_held_first_are_no_reason_to_open_others(lab: Cluster) -> None:
    agent = lab.agents["node-1"]
    agent.stop()
    lab.stop_control_plane()
    agent.options += BACKENDS["nftables"]
    with uninterrupted(lab, "held, then enforced"):
        agent.start()
        wait_until(lambda: agent.get("/debug/state") is not None)
        lab.start_control_plane()
        lab.settle()
    assert rules(lab).keys() == {"nftables"}


def test_an_open_moment_is_noticed(lab: Cluster) -> None:
    agent = lab.agents["node-1"]

    def unprotected() -> None:
        with uninterrupted(lab, "without rules"):
            agent.stop()
            on_node(lab, sys.executable, "-m", "npc", "cleanup")
            agent.start()
            lab.settle()

    with pytest.raises(AssertionError, match="of the stranger's arrived"):
        unprotected()


def test_a_closed_moment_is_noticed(lab: Cluster) -> None:
    def closed() -> None:
        with uninterrupted(lab, "nobody is let in"):
            lab.apply({**POLICY, "spec": {"podSelector": {}}})
            lab.settle()
            lab.apply(POLICY)
            lab.settle()

    with pytest.raises(AssertionError, match="were lost"):
        closed()

"""A node with two pods on it, for real packets; the smallest network that shows every path."""

from __future__ import annotations

import select
import socket as sockets
import struct
from typing import TYPE_CHECKING

from npc.dataplane.mode import tool
from npc.dataplane.tools import run_tool
from npc.plan import make_plan
from npc.ruleset import Family
from tests.contract.dataplane.netns import Namespace, ip
from tests.contract.dataplane.node import VARIANTS, make_dataplane
from tests.contract.dataplane.samples import address

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Mapping

    from npc.ruleset import Direction, Ruleset

WAIT = 5.0
"""Seconds for an answer; every probe is answered, so only a failing test waits this long."""

_AF = {Family.IPV4: sockets.AF_INET, Family.IPV6: sockets.AF_INET6}
_NODE = 254


class RefusedError(Exception):
    """The packet was answered by a refusal."""


class Host:
    """A namespace with an address, and the sockets that listen there."""

    def __init__(self, family: Family, number: int, stack: contextlib.ExitStack) -> None:
        self.family = family
        self.address = address(family, number)
        self._stack = stack
        self.namespace = Namespace()
        stack.callback(self.namespace.close)

    def socket(self, kind: sockets.SocketKind) -> sockets.socket:
        """A socket of this host, closed at the end of the test."""
        with self.namespace:
            made = self._stack.enter_context(sockets.socket(_AF[self.family], kind))
        made.settimeout(WAIT)
        return made

    def listen(self, port: int, at: str = "") -> sockets.socket:
        server = self.socket(sockets.SOCK_STREAM)
        server.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        server.bind((at or self.address, port))
        server.listen()
        return server

    def receive(self, port: int) -> sockets.socket:
        server = self.socket(sockets.SOCK_DGRAM)
        server.bind((self.address, port))
        return server

    def connect(self, target: Host | str, port: int) -> sockets.socket:
        """Open a TCP connection.

        :raises RefusedError: if it was refused
        """
        client = self.socket(sockets.SOCK_STREAM)
        try:
            client.connect((target if isinstance(target, str) else target.address, port))
        except ConnectionRefusedError:
            raise RefusedError from None
        return client

    def ask(self, server: sockets.socket, size: int = 1) -> None:
        """Send a UDP datagram to a socket of another host and see its answer.

        :raises RefusedError: if an ICMP error came instead
        """
        client = self.socket(sockets.SOCK_DGRAM)
        client.connect(server.getsockname()[:2])
        client.send(b"?" * size)
        ready, _, _ = select.select([client, server], [], [], WAIT)
        if server in ready:
            question, sender = server.recvfrom(1 << 16)
            assert len(question) == size
            server.sendto(b"!", sender)
        try:
            assert client.recv(1) == b"!"
        except ConnectionRefusedError:
            raise RefusedError from None

    def run(self, *argv: str) -> str:
        with self.namespace:
            return run_tool(argv)


class Lan:
    """The node, and pods ``a`` and ``b`` behind it, routed or on one bridge."""

    def __init__(
        self, variant: str, family: Family, stack: contextlib.ExitStack, *, bridged: bool = False
    ) -> None:
        self.variant, self.mode, self.family = variant, VARIANTS[variant], family
        self.node, self.a, self.b = (Host(family, n, stack) for n in (_NODE, 1, 2))
        length = 32 if family is Family.IPV4 else 128
        if bridged:
            length = 24 if family is Family.IPV4 else 64
        nodad = "" if family is Family.IPV4 else " nodad"
        gateway = self.node.address
        for host in (self.node, self.a, self.b):
            with host.namespace:
                # Without it, IPv6 waits a second or two before it may use an address.
                _sysctl("net/ipv6/conf/all/accept_dad", 0)
                _sysctl("net/ipv6/conf/default/accept_dad", 0)
        with self.node.namespace:
            if bridged:
                ip(
                    "link add br0 type bridge",
                    "link set br0 up",
                    f"addr add {gateway}/{length} dev br0{nodad}",
                )
            for name, pod in (("pod-a", self.a), ("pod-b", self.b)):
                ip(
                    f"link add {name} type veth peer name eth0 netns {pod.namespace.path}",
                    f"link set {name} up",
                )
                if bridged:
                    # Hairpin: a pod may be behind its own service, as bridge CNI plugins set it up.
                    ip(
                        f"link set {name} master br0",
                        f"link set {name} type bridge_slave hairpin on",
                    )
                else:
                    ip(
                        f"addr add {gateway}/{length} dev {name}{nodad}",
                        f"route add {pod.address} dev {name}",
                    )
            _sysctl("net/ipv4/ip_forward", 1)
            _sysctl("net/ipv6/conf/all/forwarding", 1)
            _sysctl("net/ipv4/icmp_ratelimit", 0)
            _sysctl("net/ipv6/icmp/ratelimit", 0)
        for pod in (self.a, self.b):
            with pod.namespace:
                ip(
                    f"addr add {pod.address}/{length} dev eth0{nodad}",
                    "link set eth0 up",
                    *([] if bridged else [f"route add {gateway} dev eth0"]),
                    f"route add default via {gateway}",
                )
        self.dataplane = make_dataplane(variant, [family])

    def enforce(self, desired: Ruleset) -> None:
        """One sync on the node."""
        with self.node.namespace:
            self.dataplane.apply(make_plan(self.dataplane.observe(), desired))
            assert make_plan(self.dataplane.observe(), desired).empty

    def denied(self) -> Mapping[Direction, int]:
        """How many packets the node has refused."""
        with self.node.namespace:
            return self.dataplane.denied_packets()

    def iptables(self, rule: str) -> None:
        """What another program does on the node."""
        name = tool(self.mode, self.family)
        self.node.run(name, "-w", "5", *rule.split())

    def block(self, host: Host) -> str:
        """The block that holds that host alone."""
        return f"{host.address}/{32 if self.family is Family.IPV4 else 128}"


def send(via: Host, source: Host, target: Host, protocol: int, segment: bytes) -> None:
    """Send an IPv4 packet from ``via``, with another's source address if need be."""
    addresses = sockets.inet_aton(source.address) + sockets.inet_aton(target.address)
    start = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, protocol, 0)
    with via.namespace:
        raw = sockets.socket(sockets.AF_INET, sockets.SOCK_RAW, sockets.IPPROTO_RAW)
    with raw:
        raw.sendto(start + addresses + segment, (target.address, 0))


def datagram(port: int) -> bytes:
    """A UDP datagram of one byte, without a checksum."""
    return struct.pack("!HHHH", 40000, port, 9, 0) + b"?"


def acknowledgement(source: Host, target: Host, port: int) -> bytes:
    """A TCP segment of a connection that nobody has seen begin."""
    parts = struct.pack("!HHIIBBHHH", 40000, port, 1, 1, 5 << 4, 0x10, 512, 0, 0)
    pseudo = sockets.inet_aton(source.address) + sockets.inet_aton(target.address)
    pseudo += struct.pack("!HH", sockets.IPPROTO_TCP, len(parts))
    total = sum(struct.unpack(f"!{len(pseudo + parts) // 2}H", pseudo + parts))
    checksum = ~(total + (total >> 16)) & 0xFFFF
    return parts[:16] + struct.pack("!H", checksum) + parts[18:]


def is_reset_of(segment: bytes, packet: bytes) -> bool:
    """Whether an IPv4 packet is the reset that answers a TCP segment."""
    answer = packet[20:]
    return bool(answer[13] & 0x04) and answer[2:4] == segment[:2]


def _sysctl(name: str, value: int) -> None:
    # By a child: /proc/sys shows the namespace of the process that opens it, not of this thread's.
    run_tool(["sh", "-c", f"echo {value} >/proc/sys/{name}"])

"""A node, and a world around it whose hosts are nothing but frames on its links.

The node has one link for each pod that it may have, and one to everything else. On the other end of
each link nobody lives: packets are sent there as frames, with any source address, and whatever the
node lets pass, or answers, is read from there. So every packet that the node judges is seen to
arrive, to be answered by a refusal, or to vanish, and nothing needs time to find that out.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from itertools import product
from typing import TYPE_CHECKING

from npc.dataplane.tools import run_tool
from npc.ruleset import Family
from tests.contract.dataplane.netns import Namespace, ip
from tests.e2e.fuzz import frames
from tests.property.npc.strategies import OUTSIDE

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from tests.property.npc.reference import Packet

PODS = range(1, 7)
NODE = {Family.IPV4: "192.0.2.1", Family.IPV6: "2001:db8:1::1"}
"""The node's own addresses, which only receive."""

_UPLINK = "uplink"
_LINKS = {**{number: f"pod{number}" for number in PODS}, 0: _UPLINK}
_HOST_MAC, _NODE_MAC = bytes.fromhex("020000000001"), bytes.fromhex("020000000002")
_BROADCAST = b"\xff" * 6
_LENGTH = {Family.IPV4: 32, Family.IPV6: 128}
_AF = {Family.IPV4: socket.AF_INET, Family.IPV6: socket.AF_INET6}

_SETTINGS = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/send_redirects": "0",
    "net/ipv4/conf/default/send_redirects": "0",
    "net/ipv4/icmp_ratemask": "0",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv6/conf/all/accept_dad": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/icmp/ratemask": "",
}
_RECEIVE_BUFFER = 33  # SO_RCVBUFFORCE
_SOL_PACKET = 263
_ALL = 3  # ETH_P_ALL
_IGNORE_OUTGOING = 23  # PACKET_IGNORE_OUTGOING
_STATISTICS = 6  # PACKET_STATISTICS
_BUFFER = 64 << 20
_WAIT = 10.0


def pod_address(family: Family, number: int) -> str:
    """Where the pod of that number is, if it is."""
    return f"10.0.0.{number}" if family is Family.IPV4 else f"fd00::{number}"


class World:
    """The node and all that it is linked with; ``with world.node`` is on the node."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.node, self._outside = Namespace(), Namespace()
        for namespace in (self.node, self._outside):
            stack.callback(namespace.close)
        with self._outside:
            _set({"net/ipv6/conf/all/disable_ipv6": "1", "net/ipv6/conf/default/disable_ipv6": "1"})
        with self.node:
            _set(_SETTINGS)
            ip(*self._links())
            self._taken = {
                (family, number): _raw_socket(_AF[family], number, stack)
                for family, number in product(Family, frames.PROTOCOLS)
            }
        with self._outside:
            ip(*(f"link set w{number} up" for number in _LINKS))
            self._wire = _packet_socket(_ALL, stack)
            self._ends = {number: _packet_socket(0, stack) for number in _LINKS}
            for number, end in self._ends.items():
                end.bind((f"w{number}", 0))
        self._source_port = 20_000
        self._behind: dict[str, int] = {}
        self.place(())

    def _links(self) -> Iterator[str]:
        yield from (f"addr add {NODE[f]}/{_LENGTH[f]} dev lo" for f in Family)
        for number, name in _LINKS.items():
            yield (
                f"link add {name} address {_NODE_MAC.hex(':')} type veth"
                f" peer name w{number} address {_HOST_MAC.hex(':')} netns {self._outside.path}"
            )
            yield f"link set {name} up"
        for family in Family:
            for address in OUTSIDE[family.value]:
                yield from _reached_by(address, _UPLINK)

    def place(self, local: Collection[int]) -> None:
        """Put these pods behind links of their own, and all others behind the one to elsewhere."""
        self._behind = {}
        commands: list[str] = []
        for family in Family:
            for number in PODS:
                link = number if number in local else 0
                address = pod_address(family, number)
                self._behind[address] = link
                commands += _reached_by(address, _LINKS[link])
        with self.node:
            ip(*commands)

    def addresses(self, family: Family) -> list[str]:
        """Every address that packets come from."""
        return [*(pod_address(family, n) for n in PODS), *OUTSIDE[family.value]]

    def probe(self, packets: Iterable[Packet]) -> dict[Packet, set[type[frames.Seen]]]:
        """Send all packets at once, and say what was seen of each.

        Each call sends from a port of its own, so that no connection is a known one.
        """
        self._source_port += 1
        with self.node:
            run_tool(["conntrack", "-F"])
        found: dict[Packet, set[type[frames.Seen]]] = {packet: set() for packet in packets}
        with _one_cpu():
            for packet in found:
                version = frames.ETHERTYPE[Family.IPV6 if ":" in packet.source else Family.IPV4]
                content = frames.first_packet(packet, self._source_port)
                end = self._ends[self._behind.get(packet.source, 0)]
                end.send(frames.ethernet(_NODE_MAC, _HOST_MAC, version, content))
            # The node sees this last, and what it did with the others is here before its answer.
            request = frames.arp_request(_HOST_MAC, NODE[Family.IPV4])
            self._ends[0].send(frames.ethernet(_BROADCAST, _HOST_MAC, frames.ARP, request))
            seen = [*self._arrived(), *self._received()]
        for one in seen:
            if one.source_port == self._source_port:
                found[one.packet].add(type(one))
        return found

    def _arrived(self) -> Iterator[frames.Seen]:
        """What came out of the node's links until the answer to the last request."""
        while True:
            ready, _, _ = select.select([self._wire], [], [], _WAIT)
            assert ready, "the node does not answer"
            frame = self._wire.recv(4096)
            kind = int.from_bytes(frame[12:14])
            if frames.is_arp_answer(frame):
                break
            if kind in frames.ETHERTYPE.values() and (one := frames.read(frame[14:])):
                yield one
        statistics = self._wire.getsockopt(_SOL_PACKET, _STATISTICS, 8)
        assert struct.unpack("II", statistics)[1] == 0, "frames were lost"

    def _received(self) -> Iterator[frames.Seen]:
        """What the node took for itself."""
        for (family, number), sock in self._taken.items():
            while True:
                try:
                    content, sender = sock.recvfrom(4096)
                except BlockingIOError:
                    break
                if family is Family.IPV6:
                    content = frames.ipv6(sender[0], NODE[family], number, content)
                if one := frames.read(content):
                    yield one


@contextlib.contextmanager
def _one_cpu() -> Iterator[None]:
    """What one CPU is given to do for the network it does in that order."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(before)[os.getpid() % len(before)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _reached_by(address: str, link: str) -> list[str]:
    return [
        f"route replace {address} dev {link}",
        f"neigh replace {address} lladdr {_HOST_MAC.hex(':')} dev {link} nud permanent",
    ]


def _raw_socket(family: int, number: int, stack: contextlib.ExitStack) -> socket.socket:
    made = stack.enter_context(socket.socket(family, socket.SOCK_RAW, number))
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER, _BUFFER)
    return made


def _packet_socket(kind: int, stack: contextlib.ExitStack) -> socket.socket:
    made = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(kind)))
    if kind:
        made.setsockopt(_SOL_PACKET, _IGNORE_OUTGOING, 1)
        made.setsockopt(socket.SOL_SOCKET, _RECEIVE_BUFFER, _BUFFER)
    return made


def _set(settings: Mapping[str, str]) -> None:
    # By a child: /proc/sys shows the namespace of the process that opens it, not of this thread's.
    script = "\n".join(f"echo {value} >/proc/sys/{name}" for name, value in settings.items())
    run_tool(["sh", "-ec", script])

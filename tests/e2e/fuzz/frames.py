"""Ethernet frames: the first packet of a connection, made and recognised, and what refuses it."""

from __future__ import annotations

import ipaddress
import socket
import struct
from dataclasses import dataclass
from functools import lru_cache

from npc.lab import sctp
from npc.ruleset import Family
from tests.property.npc.reference import Packet

ARP, IPV4, IPV6 = 0x0806, 0x0800, 0x86DD
ETHERTYPE = {Family.IPV4: IPV4, Family.IPV6: IPV6}

_NUMBERS = {"TCP": socket.IPPROTO_TCP, "UDP": socket.IPPROTO_UDP, "SCTP": sctp.PROTOCOL}
PROTOCOLS = {number: name for name, number in _NUMBERS.items()}

_SYN, _RESET = 0x02, 0x04
# For each family: ICMP's protocol number, and the type and code of "port unreachable".
_UNREACHABLE = {
    4: (socket.IPPROTO_ICMP, 3, 3),
    6: (socket.IPPROTO_ICMPV6, 1, 4),
}
_ICMP_HEADER = 8


@dataclass(frozen=True)
class Seen:
    """A packet, and by which source port it is told from others like it."""

    packet: Packet
    source_port: int


@dataclass(frozen=True)
class Arrival(Seen):
    """The packet itself."""


@dataclass(frozen=True)
class Reset(Seen):
    """The TCP reset that answers it."""


@dataclass(frozen=True)
class Unreachable(Seen):
    """The ICMP error that answers it."""


@lru_cache(maxsize=256)
def packed(address: str) -> bytes:
    """The address as packets have it."""
    return ipaddress.ip_address(address).packed


@lru_cache(maxsize=256)
def _text(address: bytes) -> str:
    return str(ipaddress.ip_address(address))


def ethernet(destination: bytes, source: bytes, kind: int, content: bytes) -> bytes:
    """A frame; addresses of 6 bytes."""
    return destination + source + kind.to_bytes(2) + content


def arp_request(asking: bytes, wanted: str) -> bytes:
    """Asks for the link address of ``wanted``, on behalf of no address."""
    return struct.pack("!HHBBH", 1, IPV4, 6, 4, 1) + asking + bytes(4) + bytes(6) + packed(wanted)


def is_arp_answer(frame: bytes) -> bool:
    """Whether a frame answers an ``arp_request``."""
    return frame[12:14] == ARP.to_bytes(2) and frame[20:22] == b"\x00\x02"


def first_packet(packet: Packet, source_port: int) -> bytes:
    """A TCP SYN, a UDP datagram or an SCTP INIT, with its IP header."""
    source, destination = packed(packet.source), packed(packet.destination)
    number = _NUMBERS[packet.protocol]
    if packet.protocol == "SCTP":
        segment = sctp.init_packet(source_port, packet.port, 1)
    else:
        if packet.protocol == "TCP":
            segment = struct.pack(
                "!HHIIBBHHH", source_port, packet.port, 1, 0, 5 << 4, _SYN, 1024, 0, 0
            )
            place = 16
        else:
            segment = struct.pack("!HHHH", source_port, packet.port, 8, 0)
            place = 6
        pseudo = source + destination + struct.pack("!II", len(segment), number)
        checksum = _checksum(pseudo + segment)
        segment = segment[:place] + checksum.to_bytes(2) + segment[place + 2 :]
    if len(source) == 16:
        return ipv6(packet.source, packet.destination, number, segment)
    header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 0, 0, 64, number, 0)
    checksum = _checksum(header + source + destination)
    return header[:10] + checksum.to_bytes(2) + source + destination + segment


def ipv6(source: str, destination: str, number: int, content: bytes) -> bytes:
    """An IPv6 packet of that protocol."""
    header = struct.pack("!IHBB", 6 << 28, len(content), number, 64)
    return header + packed(source) + packed(destination) + content


def _checksum(data: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total >> 16) + (total & 0xFFFF)
    return ~(total + (total >> 16)) & 0xFFFF


def read(packet: bytes) -> Seen | None:
    """What a packet with its IP header is; ``None`` for one that is no concern of ours."""
    found = _split(packet)
    if found is None:
        return None
    source, destination, number, content = found
    if number in PROTOCOLS:
        here, there = struct.unpack_from("!HH", content)
        name = PROTOCOLS[number]
        if name == "TCP" and content[13] & _RESET:
            return Reset(Packet(destination, source, name, here), there)
        return Arrival(Packet(source, destination, name, there), here)
    version = packet[0] >> 4
    if (number, *content[:2]) == _UNREACHABLE[version]:
        refused = read(content[_ICMP_HEADER:])
        if isinstance(refused, Arrival) and refused.packet.source == destination:
            return Unreachable(refused.packet, refused.source_port)
    return None


def _split(packet: bytes) -> tuple[str, str, int, bytes] | None:
    """Source, destination, protocol number and what follows the IP header."""
    match packet[0] >> 4:
        case 4:
            size = (packet[0] & 0x0F) * 4
            return _text(packet[12:16]), _text(packet[16:20]), packet[9], packet[size:]
        case 6:
            return _text(packet[8:24]), _text(packet[24:40]), packet[6], packet[40:]
    return None

"""The one SCTP packet that the lab makes and recognises."""

from __future__ import annotations

import struct

from npc.lab import sctp


def test_the_checksum_is_castagnolis() -> None:
    assert sctp.crc32c(b"123456789") == 0xE3069283


def test_an_init_is_read_back() -> None:
    packet = sctp.init_packet(20_000, 90, 0xDEADBEEF)
    assert sctp.read_init(packet) == (90, 0xDEADBEEF)


def test_the_checksum_stands_least_significant_byte_first_over_the_packet_without_it() -> None:
    packet = sctp.init_packet(20_000, 90, 7)
    (stored,) = struct.unpack_from("<I", packet, 8)
    assert stored == sctp.crc32c(packet[:8] + bytes(4) + packet[12:])


def test_whatever_else_is_no_init() -> None:
    packet = sctp.init_packet(20_000, 90, 7)
    assert sctp.read_init(packet[:-1]) is None
    assert sctp.read_init(packet[:12] + b"\x06" + packet[13:]) is None

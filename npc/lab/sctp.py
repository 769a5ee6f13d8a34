"""Just enough SCTP to ask whether an association could begin: an INIT packet, made and recognised.

Many kernels have no SCTP sockets, yet their netfilter judges SCTP packets all the same. So the
probe sends an INIT by a raw socket and the listener looks for it with another; where the kernel
does speak SCTP this works as well.
"""

from __future__ import annotations

import struct

PROTOCOL = 132

_INIT = 1
_HEADER = struct.Struct("!HHII")
_CHUNK = struct.Struct("!BBHIIHHI")


def init_packet(source_port: int, port: int, tag: int) -> bytes:
    """An INIT without its IP header; ``tag`` is what the listener knows it by."""
    chunk = _CHUNK.pack(_INIT, 0, _CHUNK.size, tag, 65_535, 1, 1, 1)
    checksum = crc32c(_HEADER.pack(source_port, port, 0, 0) + chunk)
    # The checksum stands least significant byte first, unlike everything else.
    swapped = int.from_bytes(checksum.to_bytes(4, "little"), "big")
    return _HEADER.pack(source_port, port, 0, swapped) + chunk


def read_init(packet: bytes) -> tuple[int, int] | None:
    """Destination port and tag of an INIT without its IP header, or ``None`` for anything else."""
    if len(packet) < _HEADER.size + _CHUNK.size:
        return None
    _, port, _, _ = _HEADER.unpack_from(packet)
    kind, _, _, tag, *_ = _CHUNK.unpack_from(packet, _HEADER.size)
    return (port, tag) if kind == _INIT else None


def _table() -> list[int]:
    table = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ 0x82F63B78 if value & 1 else value >> 1
        table.append(value)
    return table


_CRC = _table()


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum."""
    value = 0xFFFFFFFF
    for byte in data:
        value = _CRC[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF

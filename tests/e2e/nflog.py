"""Listens to what the kernel logs for a group, as ulogd and tcpdump do."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from npc.lab import netns

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

_NETFILTER = 12
_REQUEST_ACK = 0x1 | 0x4
_CONFIG = 4 << 8 | 1
_PACKET = 4 << 8 | 0
_COMMAND = 1
_BIND = 1
_PREFIX = 10


class NflogListener:
    """The prefixes of the packets logged in a namespace. Use it as a context manager."""

    def __init__(self, namespace: str, group: int) -> None:
        def connect() -> socket.socket:
            return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER)

        self._socket = netns.inside(namespace, connect)
        self._socket.settimeout(10)
        command = struct.pack("=HHB3x", 5, _COMMAND, _BIND)
        # The address family of netfilter's header is unspecified, its number big-endian.
        message = struct.pack("=BB", 0, 0) + struct.pack("!H", group) + command
        header = struct.pack("=IHHII", 16 + len(message), _CONFIG, _REQUEST_ACK, 1, 0)
        self._socket.send(header + message)
        answer = self._socket.recv(4096)
        error = struct.unpack_from("=i", answer, 16)[0]
        assert error == 0, f"the kernel lets nobody listen: {error}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def prefixes(self, count: int) -> list[str]:
        """The prefixes of the next so many packets."""
        found: list[str] = []
        while len(found) < count:
            found += _prefixes(self._socket.recv(1 << 16))
        return found


def _prefixes(data: bytes) -> Iterator[str]:
    while data:
        length, kind = struct.unpack_from("=IH", data)
        if kind == _PACKET:
            yield from (text for key, text in _attributes(data[20:length]) if key == _PREFIX)
        data = data[(length + 3) & ~3 :]


def _attributes(data: bytes) -> Iterator[tuple[int, str]]:
    while data:
        length, key = struct.unpack_from("=HH", data)
        yield key & 0x7FFF, data[4:length].rstrip(b"\0").decode(errors="replace")
        data = data[(length + 3) & ~3 :]

"""Hears from the kernel when another program changes our table, so that it is mended at once.

The kernel tells whoever listens what each transaction changed, and then the number of the ruleset's
new generation. Our own transactions are known by their numbers: where one of ours lies between two
readings that differ by one, the later number is ours. Where other programs were busy at the same
moment that cannot be told, and our own change is looked at like one of theirs.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import struct
import threading
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING

from npc.dataplane import DataplaneError
from npc.dataplane.nft.layout import TABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reconciler.stop import Stop

# linux/netlink.h, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
_NETLINK_NETFILTER = 12
_GROUP = 1 << (7 - 1)  # NFNLGRP_NFTABLES
_NFTABLES = 10 << 8
_NEWGEN, _GETGEN = _NFTABLES | 15, _NFTABLES | 16
_REQUEST = 1
_HEADER = struct.Struct("=IHHII")
_FAMILY = struct.Struct("=BBH")
_ATTRIBUTE = struct.Struct("=HH")
_KIND = 0x3FFF
_FIRST = 1  # NFTA_GEN_ID, and in all other messages the name of the table

_INET = b"\x01"
_NAME = TABLE.removeprefix("inet ").encode()

_BUFFER = 1 << 16
_ROOM = 1 << 22
_REMEMBERED = 1024

log = logging.getLogger(__name__)


class Generations:
    """Knows which of the ruleset's generations are ours."""

    def __init__(self) -> None:
        self._writing = threading.Lock()
        self._own: deque[int] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Within the block, one transaction of ours is written."""
        with self._writing:
            before = _generation()
            yield
            after = _generation()
            if before is not None and after == (before + 1) % 2**32:
                self._own.append(after)

    def is_own(self, number: int) -> bool:
        """Whether that generation came by a transaction of ours."""
        with self._writing:
            return number in self._own


class Monitor:
    """Calls ``changed`` when another program has changed our table. For one thread."""

    name = "nftables monitor"

    def __init__(self, generations: Generations, changed: Callable[[], None]) -> None:
        """
        :raises DataplaneError: if the kernel does not let us listen
        """
        self._generations = generations
        self._changed = changed
        self._touched = False
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
            self._socket.bind((0, _GROUP))
        except OSError as error:
            raise DataplaneError(f"cannot listen for changes of nftables: {error}") from error

    def run(self, stop: Stop) -> None:
        """Listen until asked to stop."""
        ended, end = socket.socketpair()
        with self._socket, ended, end, stop.calling(end.close):
            while not stop:
                ready, _, _ = select.select([self._socket, ended], [], [])
                if self._socket in ready and not stop:
                    self._receive()

    def _receive(self) -> None:
        try:
            data = self._socket.recv(_BUFFER)
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            log.debug("changes of nftables were missed; looking")
            self._changed()
            return
        for kind, body in _messages(data):
            if kind == _NEWGEN:
                touched, self._touched = self._touched, False
                if touched and not self._generations.is_own(_number(body)):
                    self._changed()
            elif kind & 0xFF00 == _NFTABLES and _is_ours(body):
                self._touched = True


def _generation() -> int | None:
    """The number of the ruleset's generation, or ``None`` if the kernel does not say."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as asked:
        asked.settimeout(1)
        size = _HEADER.size + _FAMILY.size
        try:
            asked.send(_HEADER.pack(size, _GETGEN, _REQUEST, 1, 0) + _FAMILY.pack(0, 0, 0))
            found = [body for kind, body in _messages(asked.recv(_BUFFER)) if kind == _NEWGEN]
        except OSError:
            return None
    return _number(found[0]) if found else None


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Each message's type, and what follows its headers but for the family."""
    while len(data) >= _HEADER.size:
        length, kind, *_ = _HEADER.unpack_from(data)
        if length < _HEADER.size:
            return
        yield kind, data[_HEADER.size : length]
        data = data[(length + 3) & ~3 :]


def _first(body: bytes) -> bytes:
    """The first attribute of all: the number of a generation, the name of a table."""
    rest = body[_FAMILY.size :]
    while len(rest) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(rest)
        if kind & _KIND == _FIRST:
            return rest[_ATTRIBUTE.size : length]
        rest = rest[max(_ATTRIBUTE.size, (length + 3) & ~3) :]
    return b""


def _number(body: bytes) -> int:
    return int.from_bytes(_first(body), "big")


def _is_ours(body: bytes) -> bool:
    return body[:1] == _INET and _first(body).rstrip(b"\0") == _NAME

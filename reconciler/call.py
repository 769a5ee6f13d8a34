"""One request under way, which any thread may abort, whatever it waits for.

The official client's connection pool waits for a server without a way to be interrupted. The socket
is the way: each connection tells its socket to the call that runs on its thread, and whoever aborts
the call shuts that socket down, so that the waiting thread finds the connection ended. Only the
wait for a new connection is beyond reach; it is short.
"""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection

if TYPE_CHECKING:
    from collections.abc import Iterator


class Call:
    """A request, from before it is sent until its answer has been read."""

    _running = threading.local()

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._aborted = False

    @contextmanager
    def current(self) -> Iterator[None]:
        """Within the block, connections of this thread serve this call."""
        self._running.call = self
        try:
            yield
        finally:
            self._running.call = None

    @classmethod
    def served_by(cls, connected: socket.socket | None) -> None:
        """Note the socket that this thread's call goes over."""
        call: Call | None = getattr(cls._running, "call", None)
        if call is not None and connected is not None:
            with call._lock:
                call._socket = connected
                if call._aborted:
                    call._shut_down()

    def allow_silence(self, seconds: float) -> None:
        """Break the connection only if nothing arrives for that long."""
        with self._lock:
            if self._socket is not None:
                self._socket.settimeout(seconds)

    def end(self) -> None:
        """The connection is no longer ours."""
        with self._lock:
            self._socket = None

    @property
    def aborted(self) -> bool:
        """Whether the call was aborted, by this end."""
        return self._aborted

    def abort(self) -> None:
        """Make whoever waits for the server find that the connection has ended."""
        with self._lock:
            self._aborted = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self._socket is not None:
            # Not an SSLSocket's own `shutdown`, which takes TLS away from a reader's socket. The
            # peer may have gone already.
            with suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


class _Connection(HTTPConnection):
    def connect(self) -> None:
        super().connect()
        Call.served_by(self.sock)

    def request(self, *args: Any, **kwargs: Any) -> None:
        Call.served_by(self.sock)
        super().request(*args, **kwargs)


class _TLSConnection(HTTPSConnection):
    def connect(self) -> None:
        super().connect()
        Call.served_by(self.sock)

    def request(self, *args: Any, **kwargs: Any) -> None:
        Call.served_by(self.sock)
        super().request(*args, **kwargs)


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TLSPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TLSConnection


POOLS = {"http": _Pool, "https": _TLSPool}
"""For a pool manager: connections that tell their sockets, by scheme."""

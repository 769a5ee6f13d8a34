"""Real servers and real probes, all in one event loop.

A server answers with what it was sent and nothing else, on every port that a scenario asks about,
so that only enforcement can be why an answer fails to come. A probe is *allowed* if its payload
comes back, *denied* if it is refused or nothing comes back in time. Whatever else happens is an
error of the lab's, never a verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import ipaddress
import itertools
import os
import secrets
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from npc.lab import netns, sctp
from npc.ruleset import Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from concurrent.futures import Future
    from typing import Self

    from npc.lab.topology import Host

R = TypeVar("R")


class _Echo(NamedTuple):
    """The protocol number of ICMP, and the type of its echo request."""

    protocol: int
    echo: int


SILENCE = 1.0
"""Seconds without an answer after which a probe counts as denied, where no other bound is given."""

SMALL = 16
"""Bytes of payload that a probe carries, where no other number is given."""

_RESEND = 0.25
# Once a connection stands the packets do pass; a busy machine may take its time to echo.
_ECHO_PATIENCE = 20.0
# Every datagram probe comes from a port of its own: connection tracking remembers a flow for
# minutes and lets what looks like more of it pass, whatever the policies say by now.
_SOURCE_PORTS = range(20_000, 60_000)
_REFUSED = {errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EACCES, errno.ECONNRESET, errno.EPERM}
_FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
_ICMP = {
    4: _Echo(socket.IPPROTO_ICMP, 8),
    6: _Echo(socket.IPPROTO_ICMPV6, 128),
}
_ANY = {4: "0.0.0.0", 6: "::"}  # noqa: S104 - inside the pod's own namespace


class Icmp(enum.Enum):
    """The protocol of echo requests, of either family; it has no ports."""

    ICMP = "ICMP"


ICMP = Icmp.ICMP
Wire = Protocol | Icmp
"""What a probe can be sent by."""


class Verdict(enum.Enum):
    """What became of a probe."""

    ALLOW = "allow"
    DENY = "deny"
    ERROR = "error"


@dataclass(frozen=True)
class Outcome:
    """A probe's verdict, how long it took, and for an error what went wrong.

    ``silent`` says that no answer of any kind came. ``held`` is the connection that was asked for,
    which the caller closes.
    """

    verdict: Verdict
    milliseconds: float
    detail: str = ""
    silent: bool = False
    held: socket.socket | None = None


@dataclass(frozen=True)
class Probe:
    """From a host's namespace to an address and port.

    ``patience`` is how many seconds of silence mean that it is denied. Whoever expects it to be
    allowed can afford many, so that a busy machine makes no false denial. ``port`` is 0 for ICMP.
    With ``hold`` an allowed probe leaves its connection open, and one with ``over`` uses it.
    """

    source: Host
    address: str
    port: int
    protocol: Wire
    patience: float = SILENCE
    size: int = SMALL
    hold: bool = False
    over: socket.socket | None = None

    @property
    def version(self) -> int:
        """The IP version of the address."""
        return ipaddress.ip_address(self.address).version


class Traffic:
    """Servers and probes; owns a thread that runs the loop. Use it as a context manager."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="traffic", daemon=True)
        self._servers: dict[tuple[str, int, Protocol], list[_Server]] = {}
        self._inits: dict[int, asyncio.Future[None]] = {}
        self._source_ports = itertools.cycle(_SOURCE_PORTS)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for key in list(self._servers):
            self._close(key)
        self._call(self._cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def serve(self, host: Host, ports: Iterable[tuple[int, Protocol]]) -> None:
        """Answer on these ports in a host's namespace; those that it answers on already stay."""
        for port, protocol in ports:
            key = (host.namespace, port, protocol)
            if key not in self._servers:
                versions = [v for v in (4, 6) if host.address(v) is not None]
                self._servers[key] = [
                    self._call(self._serve(host.namespace, port, protocol, version))
                    for version in versions
                ]

    def stop_serving(self, host: Host) -> None:
        """Close every server in a host's namespace."""
        for key in [key for key in self._servers if key[0] == host.namespace]:
            self._close(key)

    def probe(self, probes: Iterable[Probe]) -> list[Outcome]:
        """Send all probes at once, and say what became of each, in their order."""

        async def all_of_them() -> list[Outcome]:
            return await asyncio.gather(*(self._probe(probe) for probe in probes))

        return self._call(all_of_them())

    def _call(self, coroutine: Coroutine[object, object, R]) -> R:
        future: Future[R] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0)  # lets what they closed be closed

    def _close(self, key: tuple[str, int, Protocol]) -> None:
        for server in self._servers.pop(key):
            self._loop.call_soon_threadsafe(server.close)

    # -- servers -------------------------------------------------------------------------------

    async def _serve(self, namespace: str, port: int, protocol: Protocol, version: int) -> _Server:
        family, here = _FAMILIES[version], _ANY[version]
        if protocol is Protocol.SCTP:
            raw = netns.socket_in(namespace, family, socket.SOCK_RAW, sctp.PROTOCOL)
            self._loop.add_reader(raw, self._saw_sctp, raw, port, version)
            return _RawServer(self._loop, raw)
        kind = socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM
        sock = netns.socket_in(namespace, family, kind)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if version == 6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((here, port))
        if protocol is Protocol.TCP:
            return await asyncio.start_server(_echo_stream, sock=sock)
        transport, _ = await self._loop.create_datagram_endpoint(_EchoDatagrams, sock=sock)
        return transport

    def _saw_sctp(self, raw: socket.socket, port: int, version: int) -> None:
        with contextlib.suppress(BlockingIOError):
            packet = raw.recv(65_536)
            header = (packet[0] & 0x0F) * 4 if version == 4 else 0
            found = sctp.read_init(packet[header:])
            if found is not None and found[0] == port:
                waiting = self._inits.get(found[1])
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)

    # -- probes --------------------------------------------------------------------------------

    async def _probe(self, probe: Probe) -> Outcome:
        started = time.monotonic()
        send = {
            Protocol.TCP: self._probe_tcp,
            Protocol.UDP: self._probe_udp,
            Protocol.SCTP: self._probe_sctp,
            ICMP: self._probe_icmp,
        }[probe.protocol]
        silent = False
        sock = probe.over or self._socket(probe)
        try:
            verdict, detail = await send(probe, sock), ""
        except TimeoutError:
            verdict, detail, silent = Verdict.DENY, "silence", True
        except OSError as error:
            verdict = Verdict.DENY if error.errno in _REFUSED else Verdict.ERROR
            detail = os.strerror(error.errno or 0)
        held = sock if probe.hold and verdict is Verdict.ALLOW else None
        if held is None and probe.over is None:
            sock.close()
        return Outcome(verdict, (time.monotonic() - started) * 1000, detail, silent, held)

    def _socket(self, probe: Probe) -> socket.socket:
        kind, protocol = {
            Protocol.TCP: (socket.SOCK_STREAM, 0),
            Protocol.UDP: (socket.SOCK_DGRAM, 0),
            Protocol.SCTP: (socket.SOCK_RAW, sctp.PROTOCOL),
            ICMP: (socket.SOCK_DGRAM, _ICMP[probe.version].protocol),
        }[probe.protocol]
        family = _FAMILIES[probe.version]
        return netns.socket_in(probe.source.namespace, family, kind, protocol)

    async def _probe_tcp(self, probe: Probe, sock: socket.socket) -> Verdict:
        payload = secrets.token_bytes(probe.size)
        patience = _ECHO_PATIENCE
        if probe.over is None:
            async with asyncio.timeout(probe.patience):
                await self._loop.sock_connect(sock, (probe.address, probe.port))
        else:
            patience = probe.patience
        async with asyncio.timeout(patience):
            await self._loop.sock_sendall(sock, payload)
            answer = b""
            while len(answer) < len(payload):
                part = await self._loop.sock_recv(sock, len(payload))
                if not part:
                    break
                answer += part
        return Verdict.ALLOW if answer == payload else Verdict.ERROR

    async def _probe_udp(self, probe: Probe, sock: socket.socket) -> Verdict:
        if probe.over is None:
            sock.bind((_ANY[probe.version], next(self._source_ports)))
            # Connected, so that an ICMP error reaches us.
            await self._loop.sock_connect(sock, (probe.address, probe.port))
        payload = secrets.token_bytes(probe.size)
        return await self._until_echoed(probe, sock, payload, lambda answer: answer == payload)

    async def _probe_icmp(self, probe: Probe, sock: socket.socket) -> Verdict:
        sock.connect((probe.address, 0))  # waits for nothing
        payload = secrets.token_bytes(probe.size)
        # The kernel fills in checksum and identifier, and answers a request by itself.
        request = struct.pack("!BBHHH", _ICMP[probe.version].echo, 0, 0, 0, 1) + payload
        return await self._until_echoed(probe, sock, request, lambda answer: payload in answer)

    async def _until_echoed(
        self, probe: Probe, sock: socket.socket, payload: bytes, echoes: Callable[[bytes], bool]
    ) -> Verdict:
        """Send again and again until something comes back that echoes it."""
        async with asyncio.timeout(probe.patience):
            while True:
                try:
                    await self._loop.sock_sendall(sock, payload)
                    async with asyncio.timeout(_RESEND):
                        if echoes(await self._loop.sock_recv(sock, 65_536)):
                            return Verdict.ALLOW
                except OSError as error:
                    # A router said "too big"; the kernel makes smaller fragments from now on.
                    if not isinstance(error, TimeoutError) and error.errno != errno.EMSGSIZE:
                        raise

    async def _probe_sctp(self, probe: Probe, sock: socket.socket) -> Verdict:
        tag = secrets.randbits(32) | 1
        seen = self._inits[tag] = self._loop.create_future()
        packet = sctp.init_packet(next(self._source_ports), probe.port, tag)
        try:
            async with asyncio.timeout(probe.patience):
                while True:
                    await self._loop.sock_sendto(sock, packet, (probe.address, 0))
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_RESEND):
                            await asyncio.shield(seen)
                            return Verdict.ALLOW
        finally:
            del self._inits[tag]
            seen.cancel()


class _RawServer:
    def __init__(self, loop: asyncio.AbstractEventLoop, raw: socket.socket) -> None:
        self._loop = loop
        self._raw = raw

    def close(self) -> None:
        self._loop.remove_reader(self._raw)
        self._raw.close()


_Server = asyncio.Server | asyncio.DatagramTransport | _RawServer


async def _echo_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(4096):
            writer.write(data)
            await writer.drain()
    except (OSError, asyncio.CancelledError):
        pass  # the other end has what it wanted, or the lab ends
    finally:
        writer.close()


class _EchoDatagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data, addr)

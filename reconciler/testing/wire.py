"""HTTP/1.1 on asyncio streams: as much of it as Kubernetes clients use.

One handler answers every request with a `Response`, whose body is bytes or, for a watch, an async
iterator that is sent chunk by chunk. A connection is kept open between requests. When the client
goes away in the middle of a stream, the stream is cancelled at once. `Line` bends the last bytes:
it can cut the connection or slow it down (fault injection).
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

_HEAD_LIMIT: Final = 64 * 1024
_BODY_LIMIT: Final = 16 * 1024 * 1024
_IDLE_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request, read whole."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes

    def flag(self, name: str) -> bool:
        """Whether a query parameter is true as Kubernetes reads it."""
        return self.query.get(name, "").lower() in ("1", "t", "true")


@dataclass(frozen=True, slots=True)
class Line:
    """What happens to the bytes of the body on their way. `cut_after`: bytes; then the connection
    is reset.
    """

    cut_after: int | None = None
    bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Response:
    """One answer."""

    code: int
    body: bytes | AsyncIterator[bytes]
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    line: Line = field(default_factory=Line)


class HangUp(Exception):  # noqa: N818 - not an error: the wish to close without an answer
    """Raised by the handler to close the connection without an answer."""


class _BadRequest(Exception):  # noqa: N818
    """The bytes are no HTTP request that this server takes."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Connections:
    """All connections of one server; lives in one event loop."""

    def __init__(self, handler: Callable[[Request], Awaitable[Response]]) -> None:
        self._handler = handler
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a new connection in a task of its own (a callback for `asyncio.start_server`)."""
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __len__(self) -> int:
        return len(self._writers)

    def reset(self) -> None:
        """Drop every connection at once, as a crash of the server would."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """Drop every connection and wait until their tasks have ended."""
        self.reset()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(
                ConnectionError, asyncio.IncompleteReadError, TimeoutError, HangUp
            ):
                while await self._one(reader, writer):
                    pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection may be used again."""
        try:
            request = await asyncio.wait_for(_read(reader, writer), _IDLE_SECONDS)
        except _BadRequest as error:
            await _send(
                writer, Response(error.code, f"{error}\n".encode(), "text/plain"), close=True
            )
            return False
        if request is None:
            return False
        response = await self._handler(request)
        close = request.headers.get("connection", "").lower() == "close"
        if isinstance(response.body, bytes):
            await _send(writer, response, close=close)
            return not close and response.line.cut_after is None
        return await _stream(reader, writer, response) and not close


async def _read(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return None
    except asyncio.LimitOverrunError:
        raise _BadRequest(431, "request header too large") from None
    first, *lines = head.decode("latin-1").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3:
        raise _BadRequest(400, "malformed request line")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    if headers.get("expect", "").lower() == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    url = urlsplit(parts[1])
    body = await _read_body(reader, headers)
    query = dict(reversed(parse_qsl(url.query, keep_blank_values=True)))
    return Request(parts[0], unquote(url.path), query, headers, body)


async def _read_body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" in headers.get("transfer-encoding", "").lower():
        chunks: list[bytes] = []
        total = 0
        while True:
            size = _number((await reader.readline()).split(b";")[0], 16)
            total += size
            if total > _BODY_LIMIT:
                raise _BadRequest(413, "request body too large")
            chunk = await reader.readexactly(size + 2)
            if not size:
                return b"".join(chunks)
            chunks.append(chunk[:-2])
    length = _number(headers.get("content-length", "0").encode(), 10)
    if length > _BODY_LIMIT:
        raise _BadRequest(413, "request body too large")
    return await reader.readexactly(length)


def _number(text: bytes, base: int) -> int:
    try:
        value = int(text.strip(), base)
    except ValueError:
        raise _BadRequest(400, "malformed length") from None
    if value < 0:
        raise _BadRequest(400, "malformed length")
    return value


def _head(response: Response, *more: str) -> bytes:
    try:
        phrase = HTTPStatus(response.code).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {response.code} {phrase}", f"Content-Type: {response.content_type}", *more]
    lines += [f"{name}: {value}" for name, value in response.headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def _send(writer: asyncio.StreamWriter, response: Response, *, close: bool) -> None:
    body = response.body
    assert isinstance(body, bytes)
    more = ["Connection: close"] if close else []
    writer.write(_head(response, f"Content-Length: {len(body)}", *more))
    pipe = _Pipe(writer, response.line)
    await pipe.write(body)


async def _stream(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, response: Response
) -> bool:
    """Send a chunked body; whether it was sent to its end. Stops when the client closes."""
    writer.write(_head(response, "Transfer-Encoding: chunked"))
    pump = asyncio.ensure_future(_pump(writer, response))
    gone = asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait((pump, gone), return_when=asyncio.FIRST_COMPLETED)
        if not pump.done():
            return False
        pump.result()
        return not gone.done()
    finally:
        for task in (pump, gone):
            task.cancel()
        await asyncio.gather(pump, gone, return_exceptions=True)


async def _pump(writer: asyncio.StreamWriter, response: Response) -> None:
    chunks = response.body
    assert not isinstance(chunks, bytes)
    await writer.drain()
    pipe = _Pipe(writer, response.line)
    async for chunk in chunks:
        await pipe.write(chunk, chunked=True)
    writer.write(b"0\r\n\r\n")
    await writer.drain()


class _Pipe:
    """The body on its way out, with what `Line` does to it."""

    def __init__(self, writer: asyncio.StreamWriter, line: Line) -> None:
        self._writer = writer
        self._line = line
        self._sent = 0

    async def write(self, data: bytes, *, chunked: bool = False) -> None:
        """Send `data` as one chunk or as it is. Raises `HangUp` once the line is cut."""
        if self._line == Line():
            self._put(data, chunked)
            await self._writer.drain()
            return
        room = len(data) if self._line.cut_after is None else self._line.cut_after - self._sent
        cut = room < len(data)
        data = data[: max(0, room)]
        self._sent += len(data)
        step = (
            int(self._line.bytes_per_second / 10) or 1
            if self._line.bytes_per_second
            else len(data) or 1
        )
        for at in range(0, len(data), step):
            self._put(data[at : at + step], chunked)
            await self._writer.drain()
            if self._line.bytes_per_second:
                await asyncio.sleep(step / self._line.bytes_per_second)
        if cut:
            raise HangUp

    def _put(self, data: bytes, chunked: bool) -> None:
        if chunked:
            self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._writer.write(data)


HEAD_LIMIT: Final = _HEAD_LIMIT
"""The `limit` to give to `asyncio.start_server`: the longest request head."""

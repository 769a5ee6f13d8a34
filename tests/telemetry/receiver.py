"""An OTLP/HTTP receiver that a test holds in its hands: it answers as told, and keeps what came."""

from __future__ import annotations

import enum
import gzip
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span

_UNZIP: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    "gzip": gzip.decompress,
    "deflate": zlib.decompress,
}


class Mode(enum.Enum):
    """How the receiver answers."""

    OK = enum.auto()
    SLOW = enum.auto()
    """Takes ``Receiver.slowness`` seconds for every answer."""
    BUSY = enum.auto()
    """503 with ``Retry-After: 1``."""
    HANG = enum.auto()
    """Reads and says nothing until the receiver ends."""


@dataclass(frozen=True)
class Received:
    """One span, or the points of one metric, and who sent it."""

    resource: Mapping[str, Any]
    scope: str
    item: Any


class Receiver:
    """Listens until closed; ``spans`` and ``metrics`` hold what was accepted."""

    def __init__(self, listener: socket.socket | None = None) -> None:
        self.mode = Mode.OK
        self.slowness = 0.2
        self.requests = 0
        self.headers: list[Mapping[str, str]] = []
        self._spans: list[Received] = []
        self._metrics: list[Received] = []
        self._changed = threading.Condition()
        self._ended = threading.Event()
        self._server = _Server(listener or socket.create_server(("127.0.0.1", 0)), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def url(self) -> str:
        """What OTEL_EXPORTER_OTLP_ENDPOINT is to be."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Answer nobody any more; from now on the port is closed."""
        self._ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def spans(self) -> list[tuple[Received, Span]]:
        with self._changed:
            return [(each, each.item) for each in self._spans]

    def metrics(self) -> dict[str, tuple[Received, Metric]]:
        """The newest of each, by name."""
        with self._changed:
            return {each.item.name: (each, each.item) for each in self._metrics}

    def wait(self, condition: Callable[[], object], patience: float = 20.0) -> None:
        """Wait for an arrival that makes the condition true."""
        with self._changed:
            assert self._changed.wait_for(condition, patience), f"{self.requests} requests came"

    def take(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bytes]:
        """Status and body of the answer to what was posted."""
        with self._changed:
            self.requests += 1
            self.headers.append(headers)
            mode = self.mode
            self._changed.notify_all()
        if mode is Mode.BUSY:
            return 503, b""
        if mode is Mode.HANG or (mode is Mode.SLOW and self._ended.wait(self.slowness)):
            self._ended.wait()
            return 503, b""
        return 200, self._accept(path, _UNZIP[headers.get("Content-Encoding", "")](body))

    def _accept(self, path: str, body: bytes) -> bytes:
        answer: ExportTraceServiceResponse | ExportMetricsServiceResponse
        with self._changed:
            if path == "/v1/traces":
                traces = ExportTraceServiceRequest.FromString(body)
                for resource_spans in traces.resource_spans:
                    attributes = values(resource_spans.resource.attributes)
                    for scope_spans in resource_spans.scope_spans:
                        for span in scope_spans.spans:
                            self._spans.append(Received(attributes, scope_spans.scope.name, span))
                answer = ExportTraceServiceResponse()
            else:
                assert path == "/v1/metrics", path
                metrics = ExportMetricsServiceRequest.FromString(body)
                for resource_metrics in metrics.resource_metrics:
                    attributes = values(resource_metrics.resource.attributes)
                    for scope_metrics in resource_metrics.scope_metrics:
                        for metric in scope_metrics.metrics:
                            self._metrics.append(
                                Received(attributes, scope_metrics.scope.name, metric)
                            )
                answer = ExportMetricsServiceResponse()
            self._changed.notify_all()
        return bytes(answer.SerializeToString())


def values(attributes: Any) -> dict[str, Any]:
    """Attributes as a dictionary."""
    pairs: Iterator[KeyValue] = iter(attributes)
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return None if kind is None else getattr(value, kind)


@contextmanager
def receiver(mode: Mode = Mode.OK, listener: socket.socket | None = None) -> Iterator[Receiver]:
    made = Receiver(listener)
    made.mode = mode
    try:
        yield made
    finally:
        made.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listener: socket.socket, receiver: Receiver) -> None:
        super().__init__(listener.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_port = listener.getsockname()[1]
        self.receiver = receiver

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: whoever sent this has given up waiting."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status, answer = self.server.receiver.take(self.path, dict(self.headers), body)
        self.send_response(status)
        if status == 503:
            self.send_header("Retry-After", "1")
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

"""One HTTP server for what operators and probes ask of a program.

/healthz           200 if the process lives
/readyz            200 if every check passes, else 503; ``?verbose`` names each
/debug/threads     the stack of every thread, as text
whatever else the program adds, as JSON
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import traceback
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

    from reconciler.stop import Stop


class HealthServer:
    """Listens from the moment it is made, so that a port in use is noticed at the start."""

    name = "health server"

    def __init__(self, address: tuple[str, int]) -> None:
        """
        :raises OSError: if the address cannot be listened on
        """
        self._checks: dict[str, Callable[[], str | None]] = {}
        self._documents: dict[str, Callable[[], Any]] = {}
        self._server = _Server(address, self._answer)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one, also where 0 was asked for."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def add_check(self, name: str, check: Callable[[], str | None]) -> None:
        """Be ready only if ``check`` answers ``None``; anything else says what is missing."""
        self._checks[name] = check

    def add_json(self, path: str, document: Callable[[], Any]) -> None:
        """Serve what ``document`` returns at ``path``."""
        self._documents[path] = document

    def run(self, stop: Stop) -> None:
        """Serve until asked to stop."""
        with self._server:
            thread = threading.Thread(
                target=self._server.serve_forever, name=self.name, daemon=True
            )
            thread.start()
            stop.wait()
            self._server.shutdown()
            thread.join()

    def _answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, str, str]:
        """Status, content type and body."""
        if path == "/healthz":
            return 200, _TEXT, "ok\n"
        if path == "/readyz":
            return self._readiness(verbose="verbose" in query)
        if path == "/debug/threads":
            return 200, _TEXT, _stacks()
        if path in self._documents:
            return 200, "application/json", json.dumps(self._documents[path]()) + "\n"
        return 404, _TEXT, f"there is no {path}\n"

    def _readiness(self, *, verbose: bool) -> tuple[int, str, str]:
        answers = {name: check() for name, check in self._checks.items()}
        ready = all(answer is None for answer in answers.values())
        lines = [
            f"[-]{name} failed: {answer}" if answer else f"[+]{name} ok"
            for name, answer in answers.items()
            if answer or verbose
        ]
        lines.append("ready" if ready else "not ready")
        return 200 if ready else 503, _TEXT, "\n".join(lines) + "\n"


_TEXT = "text/plain; charset=utf-8"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        address: tuple[str, int],
        answer: Callable[[str, dict[str, list[str]]], tuple[int, str, str]],
    ) -> None:
        self.answer = answer
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _RequestHandler)


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 10
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        status, content_type, text = self.server.answer(
            url.path, parse_qs(url.query, keep_blank_values=True)
        )
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Say nothing: probes come every few seconds."""


def _stacks() -> str:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"{names.get(ident, '?')} ({ident})\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )

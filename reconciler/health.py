"""One HTTP server for what operators and probes ask of a program.

/readyz            200 if every check passes, else 503; ``?verbose`` names each, ``?exclude=NAME``
                   leaves one out, and ``/readyz/NAME`` asks for one alone
/healthz           the same for the checks of whether the program has to be started anew
/debug/threads     the stack of every thread, as text
/debug/queues      what is queued, in hand and waiting, as JSON
/debug/memory      which lines of code hold the most memory, as text, if tracemalloc is on
whatever else the program adds
"""

from __future__ import annotations

import json
import logging
import socket
import sys
import threading
import traceback
import tracemalloc
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reconciler.stop import Stop
    from workqueue import Queue

    Check = Callable[[], str | None]

_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
_MEMORY_LINES = 30
_VERDICTS = {"/healthz": ("ok", "not ok"), "/readyz": ("ready", "not ready")}

_log = logging.getLogger(__name__)


class HealthServer:
    """Listens from the moment it is made, so that a port in use is noticed at the start."""

    name = "health server"

    def __init__(self, address: tuple[str, int]) -> None:
        """
        :raises OSError: if the address cannot be listened on
        """
        self._checks: dict[str, dict[str, Check]] = {"/healthz": {}, "/readyz": {}}
        self._pages: dict[str, Callable[[], tuple[str, str]]] = {
            "/debug/threads": lambda: (_TEXT, _stacks()),
            "/debug/memory": lambda: (_TEXT, _memory()),
        }
        self._queues: dict[str, Queue[Any]] = {}
        self.add_json("/debug/queues", self._describe_queues)
        self._server = _Server(address, self._answer)

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens; the port is the real one, also where 0 was asked for."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def add_check(self, name: str, check: Check) -> None:
        """Be ready only if ``check`` answers ``None``; anything else says what is missing.

        A check that raises fails, and its error is the answer.
        """
        self._checks["/readyz"][name] = check

    def add_liveness_check(self, name: str, check: Check) -> None:
        """Be alive only if ``check`` answers ``None``; anything else says what is stuck.

        Whoever asks will kill the program, so this is for what nothing but that can mend.
        """
        self._checks["/healthz"][name] = check

    def add_json(self, path: str, document: Callable[[], Any]) -> None:
        """Serve what ``document`` returns at ``path``."""
        self.add_page(path, lambda: (_JSON, json.dumps(document()) + "\n"))

    def add_page(self, path: str, page: Callable[[], tuple[str, str]]) -> None:
        """Serve what ``page`` returns at ``path``: the content type and the text."""
        self._pages[path] = page

    def add_queue(self, queue: Queue[Any]) -> None:
        """Show this queue at ``/debug/queues``, by its name."""
        self._queues[queue.name] = queue

    def run(self, stop: Stop) -> None:
        """Serve until asked to stop."""
        with self._server:
            thread = threading.Thread(
                target=self._server.serve_forever, args=(_POLL,), name=self.name, daemon=True
            )
            thread.start()
            stop.wait()
            self._server.shutdown()
            thread.join()

    def _answer(self, path: str, query: dict[str, list[str]]) -> tuple[int, str, str]:
        """Status, content type and body."""
        root, _, name = path[1:].partition("/")
        checks = self._checks.get(f"/{root}")
        if checks is not None and (not name or name in checks):
            asked = {name} if name else checks.keys() - query.get("exclude", [])
            verdicts = _VERDICTS[f"/{root}"]
            return _ask({n: checks[n] for n in checks if n in asked}, verdicts, **query)
        page = self._pages.get(path)
        if page is None:
            return 404, _TEXT, f"there is no {path}\n"
        try:
            return 200, *page()
        except Exception as error:  # noqa: BLE001 - a page's fault is the asker's answer
            _log.exception("%s failed", path)
            return 500, _TEXT, f"{path} failed: {error}\n"

    def _describe_queues(self) -> dict[str, Any]:
        return {name: asdict(queue.statistics()) for name, queue in self._queues.items()}


def _ask(
    checks: Mapping[str, Check], verdicts: tuple[str, str], verbose: object = None, **_: object
) -> tuple[int, str, str]:
    answers = {name: _answer_of(check) for name, check in checks.items()}
    passed = all(answer is None for answer in answers.values())
    lines = [
        f"[-]{name} failed: {answer}" if answer else f"[+]{name} ok"
        for name, answer in answers.items()
        if answer or verbose is not None
    ]
    lines.append(verdicts[0] if passed else verdicts[1])
    return 200 if passed else 503, _TEXT, "\n".join(lines) + "\n"


def _answer_of(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a check that cannot be made has not passed
        return f"{type(error).__name__}: {error}"


# How long a stop may take to be noticed, in seconds; the standard library's server polls.
_POLL = 0.1


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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say little: that somebody hung up in the middle of an answer is no fault of ours."""
        _log.debug("an answer to %s failed", client_address, exc_info=True)


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


def _memory() -> str:
    if not tracemalloc.is_tracing():
        return "tracemalloc is off; start the program with PYTHONTRACEMALLOC=1\n"
    now, peak = tracemalloc.get_traced_memory()
    lines = tracemalloc.take_snapshot().statistics("lineno")[:_MEMORY_LINES]
    return "\n".join([f"{now} bytes now, {peak} at most", *map(str, lines), ""])

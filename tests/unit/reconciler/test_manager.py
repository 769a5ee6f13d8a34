"""Order of start and stop, signals, bounds, and the health server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconciler.health import HealthServer
from reconciler.manager import Group, Manager
from reconciler.stop import Stop
from tests.unit.reconciler.scripted import PATIENCE
from workqueue import Queue


class Part:
    def __init__(self, name: str, log: list[str], then: BaseException | None = None) -> None:
        self.name = name
        self._log = log
        self._then = then
        self.started = threading.Event()

    def run(self, stop: Stop) -> None:
        self._log.append(f"+{self.name}")
        self.started.set()
        if self._then is not None:
            raise self._then
        stop.wait()
        self._log.append(f"-{self.name}")


class Stuck:
    name = "stuck"

    def __init__(self) -> None:
        self.release = threading.Event()

    def run(self, stop: Stop) -> None:
        self.release.wait(PATIENCE)


def test_it_says_that_it_needs_the_main_thread_and_starts_nothing() -> None:
    log: list[str] = []
    manager = Manager()
    manager.add(Group.SERVERS, Part("server", log))
    refused: list[RuntimeError] = []

    def run() -> None:
        try:
            manager.run()
        except RuntimeError as error:
            refused.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert [str(error) for error in refused] == [
        "a manager takes signals, so its run needs the main thread"
    ]
    assert log == []


def test_parts_stop_in_the_opposite_order() -> None:
    log: list[str] = []
    manager = Manager()
    last = Part("controller", log)
    manager.add(Group.CONTROLLERS, last)
    manager.add(Group.SERVERS, Part("server", log))
    manager.add(Group.CACHES, Part("cache", log))

    def stop_when_up() -> None:
        assert last.started.wait(PATIENCE)
        manager.stop()

    threading.Thread(target=stop_when_up).start()
    manager.run()
    assert sorted(log[:3]) == ["+cache", "+controller", "+server"]
    assert log[3:] == ["-controller", "-cache", "-server"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    def ours(*_: object) -> None:
        """Not ignored, as SIGHUP is where nohup started the tests."""

    part = Part("part", [])
    manager = Manager()
    manager.add(Group.CACHES, part)

    def send() -> None:
        assert part.started.wait(PATIENCE)
        os.kill(os.getpid(), number)

    before = signal.signal(number, ours)
    try:
        threading.Thread(target=send).start()
        manager.run()
        assert signal.getsignal(number) is ours
    finally:
        signal.signal(number, before)


def test_who_started_the_program_under_nohup_wants_it_to_go_on() -> None:
    part = Part("part", [])
    manager = Manager()
    manager.add(Group.CACHES, part)
    seen: list[object] = []

    def look_then_stop() -> None:
        assert part.started.wait(PATIENCE)
        seen.append(signal.getsignal(signal.SIGHUP))
        manager.stop()

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        threading.Thread(target=look_then_stop).start()
        manager.run()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_IGN]


def test_a_part_that_fails_stops_the_program_with_its_error() -> None:
    log: list[str] = []
    manager = Manager()
    manager.add(Group.CACHES, Part("good", log), Part("bad", log, ValueError("port in use")))
    with pytest.raises(ValueError, match="port in use"):
        manager.run()
    assert "-good" in log


def test_a_part_that_does_not_end_is_named_with_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stuck, log = Stuck(), list[str]()
    manager = Manager(stop_within=0.05)
    manager.add(Group.CONTROLLERS, stuck)
    manager.add(Group.CACHES, Part("cache", log))
    manager.stop()
    manager.run()
    stuck.release.set()
    assert "stuck did not end within 0.05 s" in caplog.text
    assert "self.release.wait" in caplog.text


def test_a_part_may_be_added_while_the_others_run() -> None:
    log: list[str] = []
    manager = Manager()
    first, late = Part("first", log), Part("late", log)
    manager.add(Group.CONTROLLERS, first)

    def add_then_stop() -> None:
        assert first.started.wait(PATIENCE)
        manager.add(Group.CACHES, late)
        assert late.started.wait(PATIENCE)
        manager.stop()

    thread = threading.Thread(target=add_then_stop)
    thread.start()
    manager.run()
    thread.join(PATIENCE)
    assert log == ["+first", "+late", "-first", "-late"]
    with pytest.raises(RuntimeError, match="is stopping"):
        manager.add(Group.CACHES, Part("too late", log))


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        """
import threading
from reconciler.manager import Group, Manager

class Stuck:
    name = "stuck"
    def run(self, stop):
        print("up", flush=True)
        stop.wait()
        print("stopping", flush=True)
        threading.Event().wait()

manager = Manager(stop_within=60)
manager.add(Group.CACHES, Stuck())
manager.run()
"""
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "up\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "stopping\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 128 + signal.SIGINT
        finally:
            process.kill()


@contextmanager
def serving(health: HealthServer) -> Iterator[None]:
    stop = Stop()
    thread = threading.Thread(target=health.run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def ask(health: HealthServer, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(*health.address, timeout=PATIENCE)
    connection.request("GET", path)
    response = connection.getresponse()
    body = response.read().decode()
    connection.close()
    return response.status, body


def test_health_says_what_is_missing() -> None:
    health = HealthServer(("127.0.0.1", 0))
    problem: list[str | None] = ["not listed yet"]
    health.add_check("pods", lambda: problem[0])
    health.add_check("sync", lambda: None)
    health.add_json("/debug/state", lambda: {"idle": True})
    with serving(health):
        assert ask(health, "/healthz") == (200, "ok\n")
        assert ask(health, "/readyz") == (503, "[-]pods failed: not listed yet\nnot ready\n")
        problem[0] = None
        assert ask(health, "/readyz") == (200, "ready\n")
        assert ask(health, "/readyz?verbose") == (200, "[+]pods ok\n[+]sync ok\nready\n")
        code, body = ask(health, "/debug/state")
        assert (code, json.loads(body)) == (200, {"idle": True})
        assert ask(health, "/nothing")[0] == 404
        code, body = ask(health, "/debug/threads")
        assert code == 200
        assert "health server" in body


def test_checks_can_be_asked_for_or_left_out_by_name() -> None:
    health = HealthServer(("127.0.0.1", 0))
    health.add_check("pods", lambda: "not listed yet")
    health.add_check("sync", lambda: None)
    with serving(health):
        assert ask(health, "/readyz/sync") == (200, "ready\n")
        assert ask(health, "/readyz/pods")[0] == 503
        assert ask(health, "/readyz/other")[0] == 404
        assert ask(health, "/readyz?exclude=pods&verbose") == (200, "[+]sync ok\nready\n")


def test_a_check_or_page_that_fails_says_so(caplog: pytest.LogCaptureFixture) -> None:
    health = HealthServer(("127.0.0.1", 0))
    health.add_check("broken", lambda: str(1 // 0))
    health.add_json("/debug/broken", lambda: 1 // 0)
    with serving(health):
        code, body = ask(health, "/readyz")
        assert (code, body) == (
            503,
            "[-]broken failed: ZeroDivisionError: integer division or modulo by zero\nnot ready\n",
        )
        code, body = ask(health, "/debug/broken")
        assert (code, body) == (
            500,
            "/debug/broken failed: integer division or modulo by zero\n",
        )
    assert "/debug/broken failed" in caplog.text


def test_queues_and_pages_are_shown() -> None:
    health = HealthServer(("127.0.0.1", 0))
    queue: Queue[str] = Queue("orders")
    queue.add("k")
    health.add_queue(queue)
    health.add_page("/metrics", lambda: ("text/plain; version=0.0.4", "up 1\n"))
    with serving(health):
        code, body = ask(health, "/debug/queues")
        assert code == 200
        assert json.loads(body)["orders"]["queued"] == 1
        assert ask(health, "/metrics") == (200, "up 1\n")


def test_memory_is_shown_by_line_where_it_is_traced() -> None:
    health = HealthServer(("127.0.0.1", 0))
    with serving(health):
        assert "PYTHONTRACEMALLOC=1" in ask(health, "/debug/memory")[1]
        tracemalloc.start()
        try:
            body = ask(health, "/debug/memory")[1]
        finally:
            tracemalloc.stop()
        assert "bytes now" in body
        assert ".py:" in body


def test_somebody_who_hangs_up_is_no_noise(capsys: pytest.CaptureFixture[str]) -> None:
    health = HealthServer(("127.0.0.1", 0))
    health.add_page("/big", lambda: ("text/plain", "x" * 10_000_000))
    with serving(health):
        with socket.create_connection(health.address) as connection:
            connection.sendall(b"GET /big HTTP/1.1\r\n\r\n")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.recv(10)
        assert ask(health, "/healthz")[0] == 200
        while [t for t in threading.enumerate() if "process_request_thread" in t.name]:
            threading.Event().wait(0.001)
    assert capsys.readouterr().err == ""


def test_a_port_in_use_is_noticed_at_once() -> None:
    first = HealthServer(("127.0.0.1", 0))
    with serving(first), pytest.raises(OSError, match="in use"):
        HealthServer(first.address)


def test_a_stop_that_was_asked_for_before_ends_the_run() -> None:
    stop = Stop()
    stop.set()
    HealthServer(("127.0.0.1", 0)).run(stop)


def test_stop_calls_back_once_also_when_it_came_before() -> None:
    calls: list[str] = []
    stop = Stop()
    with stop.calling(lambda: calls.append("within")):
        stop.set()
        stop.set()
    with stop.calling(lambda: calls.append("after")):
        pass
    assert calls == ["within", "after"]
    left = Stop()
    with left.calling(lambda: calls.append("never")):
        pass
    left.set()
    assert calls == ["within", "after"]


def test_a_callback_that_fails_keeps_nobody_from_stopping(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    stop = Stop()

    def broken() -> None:
        raise ValueError("no")

    with stop.calling(broken), stop.calling(lambda: calls.append("told")), stop.child() as child:
        stop.set()
        assert child
    assert calls == ["told"]
    assert "failed when it was told to stop" in caplog.text


def test_a_childs_stop_is_its_own() -> None:
    stop = Stop()
    with stop.child() as child:
        child.set()
        assert not stop

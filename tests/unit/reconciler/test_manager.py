"""Order of start and stop, signals, bounds, and the health server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from reconciler.health import HealthServer
from reconciler.manager import Group, Manager
from reconciler.stop import Stop
from tests.unit.reconciler.scripted import PATIENCE


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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_and_the_handlers_are_put_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    part = Part("part", [])
    manager = Manager()
    manager.add(Group.CACHES, part)

    def send() -> None:
        assert part.started.wait(PATIENCE)
        os.kill(os.getpid(), number)

    threading.Thread(target=send).start()
    manager.run()
    assert signal.getsignal(number) == before


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

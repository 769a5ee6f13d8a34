"""The real receivers of telemetry as child processes: an OpenTelemetry Collector, a Prometheus."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_BUILD = Path(__file__).parent / "otelcol" / "build"
_SHIPPED = Path(__file__).parents[2] / "deploy" / "otel" / "collector.yaml"
_READY_WITHIN = 30.0
_DIE_WITH_US = ("setpriv", "--pdeathsig", "KILL")

_PROMETHEUS = """\
global: {{scrape_interval: 1s}}
scrape_configs:
- job_name: npc
  static_configs: [{{targets: ["{target}"], labels: {labels}}}]
"""


def find_collector() -> Path | None:
    """The collector's binary, if it has been built."""
    found = subprocess.run([_BUILD, "--find"], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()) if found.stdout.strip() else None


class Collector:
    """Takes OTLP on ``port`` and passes it on to ``forward``, a base URL, as we ship it.

    Other than that: it listens here, batches for less long, and serves no metrics of its own.
    """

    def __init__(self, binary: Path, directory: Path, forward: str, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._directory = directory
        self._environment = os.environ | {"OTLP_UPSTREAM": forward}
        changes = (
            f"receivers::otlp::protocols::http::endpoint: 127.0.0.1:{port}",
            "processors::batch::timeout: 10ms",
            "service::telemetry::metrics::level: none",
        )
        configs = [str(_SHIPPED), *(f"yaml:{change}" for change in changes)]
        self._command = [*_DIE_WITH_US, str(binary)]
        self._command += [word for config in configs for word in ("--config", config)]
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        with (self._directory / "collector.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )
        _wait_until_ready(self._process, self._port, "/", self._directory / "collector.log")

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def collector(binary: Path, directory: Path, forward: str) -> Iterator[Collector]:
    """One that runs."""
    made = Collector(binary, directory, forward, free_port())
    try:
        made.start()
        yield made
    finally:
        made.kill()


class Prometheus:
    """Scrapes one target every second."""

    def __init__(self, url: str) -> None:
        self._url = url

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series now."""
        found = self._get("query", query=expression)
        return [(each["metric"], float(each["value"][1])) for each in found]

    def query_range(
        self, expression: str, start: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels, and times with values, of each series; times are in seconds since 1970."""
        found = self._get("query_range", query=expression, start=start, end=end, step=step)
        return [
            (each["metric"], [(time, float(value)) for time, value in each["values"]])
            for each in found
        ]

    def _get(self, what: str, **parameters: Any) -> list[dict[str, Any]]:
        query = urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(f"{self._url}/api/v1/{what}?{query}", timeout=10) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return result

    def wait_for(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """What the query finds as soon as it finds something."""
        deadline = time.monotonic() + _READY_WITHIN
        while not (found := self.query(expression)):
            assert time.monotonic() < deadline, f"{expression} finds nothing"
            time.sleep(0.05)
        return found


@contextmanager
def prometheus(target: str, directory: Path, **labels: str) -> Iterator[Prometheus]:
    """One that runs, and gives the target these labels; ``prometheus`` must be on PATH."""
    port = free_port()
    config = directory / "prometheus.yaml"
    config.write_text(_PROMETHEUS.format(target=target, labels=json.dumps(labels)))
    log = directory / "prometheus.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *_DIE_WITH_US,
                "prometheus",
                f"--config.file={config}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=output,
            stderr=output,
        )
    try:
        _wait_until_ready(process, port, "/-/ready", log)
        yield Prometheus(f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


def has_prometheus() -> bool:
    return shutil.which("prometheus") is not None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    """Wait until it answers there, if only that there is nothing."""
    deadline = time.monotonic() + _READY_WITHIN
    while _status(port, path) not in {200, 404}:
        waiting = process.poll() is None and time.monotonic() < deadline
        assert waiting, log.read_text(errors="replace")[-2000:]
        time.sleep(0.02)


def _status(port: int, path: str) -> int | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()

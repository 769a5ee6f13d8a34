from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.telemetry.processes import Collector, collector, find_collector
from tests.telemetry.receiver import Receiver, receiver


@pytest.fixture
def behind() -> Iterator[Receiver]:
    """Where the collector passes everything on to."""
    with receiver() as made:
        yield made


@pytest.fixture
def real_collector(behind: Receiver, tmp_path: Path) -> Iterator[Collector]:
    binary = find_collector()
    if binary is None:
        pytest.skip("no OpenTelemetry Collector; tests/telemetry/otelcol/build makes one, with Go")
    with collector(binary, tmp_path, behind.url) as made:
        yield made

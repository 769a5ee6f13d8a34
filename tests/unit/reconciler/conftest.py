"""An API server of the test's own, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.client import Client, load
from reconciler.testing import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as running:
        yield running


@pytest.fixture
def client(server: ApiServer, tmp_path: Path) -> Client:
    path = tmp_path / "kubeconfig"
    path.write_text(server.kubeconfig())
    return load(str(path))

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.testing import ApiServer
from tests.conformance.apiserver.client import Api


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """A running server."""
    with ApiServer() as running:
        yield running


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    """A client of it."""
    return Api(server.url, tmp_path / "kubeconfig")

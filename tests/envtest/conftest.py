from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.envtest.processes import RealServer, find_binaries, real_server


@pytest.fixture(scope="session")
def real_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """A real kube-apiserver; one for all tests of a worker."""
    binaries: Path | None = find_binaries()
    if binaries is None:
        pytest.skip(
            "no kube-apiserver and etcd: set KUBEBUILDER_ASSETS to a folder with both, or let "
            "tests/envtest/binaries/build make one"
        )
    with real_server(binaries, tmp_path_factory.mktemp("envtest")) as server:
        yield server

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from reconciler.testing import ApiServer
from tests.envtest.api import Api
from tests.envtest.processes import NOBODY, RealServer, find_binaries, real_server


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


@pytest.fixture(params=["memory", "real"])
def api(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Api]:
    if request.param == "real":
        real = request.getfixturevalue("real_api")
        with urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_certs=str(real.ca)) as pool:
            yield Api(real.url, real.kubeconfig(), pool, real.kubeconfig(NOBODY))
        return
    server = ApiServer()
    server.start()
    try:
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        with urllib3.PoolManager() as pool:
            yield Api(server.url, kubeconfig, pool, memory=server)
    finally:
        server.stop()


@pytest.fixture
def namespace(api: Api) -> str:
    name = f"test-{uuid.uuid4().hex[:8]}"
    api.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    return name

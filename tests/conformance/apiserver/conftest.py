"""Every test here runs twice: against the in-memory server, and against a real one if there is any.

What the real one does is right by definition; so the tests prove the in-memory one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.testing import ApiServer
from tests.conformance.apiserver.client import Api
from tests.envtest.processes import ADMIN, find_binaries, real_server


@pytest.fixture(scope="session", params=["memory", "real"])
def api(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server; one for all tests of a worker."""
    directory = tmp_path_factory.mktemp(f"apiserver-{request.param}-{os.getpid()}")
    if request.param == "memory":
        with ApiServer() as server:
            kubeconfig = directory / "kubeconfig"
            kubeconfig.write_text(server.kubeconfig())
            yield Api(server.url, kubeconfig)
        return
    binaries: Path | None = find_binaries()
    if binaries is None:
        pytest.skip("no kube-apiserver and etcd in KUBEBUILDER_ASSETS or on the PATH")
    with real_server(binaries, directory) as real:
        yield Api(real.url, real.kubeconfig(), ADMIN, real.ca)


@pytest.fixture
def ns(api: Api) -> str:
    """A fresh namespace."""
    name = f"t-{uuid.uuid4().hex[:12]}"
    api.create(
        "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    )
    return name

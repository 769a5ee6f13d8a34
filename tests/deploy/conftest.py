from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import urllib3

from tests.deploy.manifests import Manifest
from tests.envtest.conftest import real_api
from tests.envtest.processes import ADMIN, RealServer

__all__ = ["real_api"]


@dataclass(frozen=True)
class Cluster:
    """A real API server, asked as its admin or as somebody whom the admin impersonates."""

    server: RealServer
    pool: urllib3.PoolManager

    def request(
        self, method: str, path: str, body: Any = None, *, user: str | None = None
    ) -> tuple[int, Any]:
        """The status, and the answer if it is a JSON document, which that of a watch is not."""
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
        if method == "PATCH":
            headers["Content-Type"] = "application/apply-patch+yaml"
        if user is not None:
            headers["Impersonate-User"] = user
        response = self.pool.request(
            method,
            f"{self.server.url}{path}",
            body=None if body is None else json.dumps(body),
            headers=headers,
            retries=False,
        )
        document = "watch=" not in path and "json" in response.headers["Content-Type"]
        return response.status, json.loads(response.data) if document else None

    def apply(self, manifest: Manifest, *, dry_run: bool) -> None:
        """Server-side apply, as strict as the server can be.

        :raises AssertionError: if the server refuses; its reason is in the message
        """
        query = "fieldManager=test&force=true&fieldValidation=Strict"
        status, answer = self.request(
            "PATCH",
            f"{self._path(manifest)}?{query}{'&dryRun=All' if dry_run else ''}",
            manifest,
        )
        name = f"{manifest['kind']} {manifest['metadata']['name']}"
        assert status in (200, 201), f"{name}: {answer.get('message', answer)}"

    def _path(self, manifest: Manifest) -> str:
        version = manifest["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        _, answer = self.request("GET", root)
        [resource] = [
            resource
            for resource in answer["resources"]
            if resource["kind"] == manifest["kind"] and "/" not in resource["name"]
        ]
        metadata = manifest["metadata"]
        place = f"{root}/namespaces/{metadata['namespace']}" if resource["namespaced"] else root
        return f"{place}/{resource['name']}/{metadata['name']}"


@pytest.fixture(scope="session")
def cluster(real_api: RealServer) -> Iterator[Cluster]:
    with urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_certs=str(real_api.ca)) as pool:
        yield Cluster(real_api, pool)

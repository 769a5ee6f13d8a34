"""An API server under test, and plain HTTP to it that goes past the code under test."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
import yaml

from reconciler.testing import ApiServer, Resource
from tests.envtest.processes import ADMIN

PATIENCE = 20.0
"""Seconds until what must happen is said not to."""


@dataclass
class Api:
    """A server, by plain HTTP, and the kubeconfig of somebody who may do everything."""

    url: str
    kubeconfig: Path
    pool: urllib3.PoolManager
    nobody: Path | None = None
    memory: ApiServer | None = None
    """The server itself, if it is the in-memory one."""

    def request(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        response = self.pool.request(
            method,
            f"{self.url}{path}",
            body=None if body is None else json.dumps(body),
            headers={
                "Authorization": f"Bearer {ADMIN}",
                "Content-Type": "application/json",
                **headers,
            },
            retries=False,
        )
        answer = json.loads(response.data)
        assert response.status < 300, answer
        return answer

    def patch(self, path: str, body: Any) -> Any:
        return self.request("PATCH", path, body, **{"Content-Type": "application/merge-patch+json"})

    def define(self, manifest: Path) -> None:
        """Have a custom resource. Also before it is served, it may be watched."""
        definition = yaml.safe_load(manifest.read_text())
        if self.memory is None:
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            name = definition["metadata"]["name"]
            self.request(
                "PATCH",
                f"{path}/{name}?fieldManager=tests",
                definition,
                **{"Content-Type": "application/apply-patch+yaml"},
            )
            return
        spec, version = definition["spec"], definition["spec"]["versions"][0]
        names = spec["names"]
        resource = Resource(
            spec["group"], version["name"], names["plural"], names["kind"], status=True
        )
        self.memory.add_resource(resource)

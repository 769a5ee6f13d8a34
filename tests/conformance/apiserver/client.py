"""A plain HTTP client for the conformance tests: it shows answers as they are, refusals too."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]

POLICIES = "/apis/networking.k8s.io/v1/namespaces/{ns}/networkpolicies"
PODS = "/api/v1/namespaces/{ns}/pods"
CONFIG_MAPS = "/api/v1/namespaces/{ns}/configmaps"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases"

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    """Code and decoded body of one response."""

    code: int
    body: Any
    headers: dict[str, str]

    @property
    def meta(self) -> Object:
        found: Object = self.body["metadata"]
        return found

    @property
    def causes(self) -> set[tuple[str, str, str]]:
        """Reason, field and message of each cause of a refusal."""
        details = self.body.get("details") or {}
        return {
            (cause["reason"], cause["field"], cause["message"])
            for cause in details.get("causes", [])
        }


class Events:
    """The lines of a watch. Reading waits at most the client's timeout."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response

    def next(self) -> Object:
        """The next event. Fails at the end of the stream."""
        event: Object = json.loads(self._response.readline())
        return event

    def take(self, count: int) -> list[tuple[str, str]]:
        """Type and name of the next events."""
        events = [self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]

    def text(self) -> bytes:
        """All bytes until the stream ends or breaks off."""
        try:
            return self._response.read()
        except http.client.IncompleteRead as broken:
            return broken.partial

    def rest(self) -> list[Object]:
        """All events until the server ends the stream."""
        return [json.loads(line) for line in self._response]


@dataclass(frozen=True)
class Api:
    """One server, as one user."""

    url: str
    kubeconfig: Path
    token: str = "testing"
    ca: Path | None = None
    timeout: float = 20.0

    def _connect(self) -> http.client.HTTPConnection:
        where = urlsplit(self.url)
        assert where.hostname
        if where.scheme == "http":
            return http.client.HTTPConnection(where.hostname, where.port, timeout=self.timeout)
        context = ssl.create_default_context(cafile=self.ca)
        context.check_hostname = False
        return http.client.HTTPSConnection(
            where.hostname, where.port, timeout=self.timeout, context=context
        )

    def _send(
        self,
        connection: http.client.HTTPConnection,
        method: str,
        path: str,
        body: Any,
        kind: str,
        accept: str,
        query: dict[str, Any],
    ) -> http.client.HTTPResponse:
        text = {key: str(value) for key, value in query.items() if value is not None}
        headers = {
            "Authorization": f"Bearer {self.token}",
            "Accept": accept,
            "User-Agent": "conformance/1",
        }
        if body is not None:
            headers["Content-Type"] = kind
        target = f"{path}?{urlencode(text)}" if text else path
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        return connection.getresponse()

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        accept: str = "application/json",
        **query: Any,
    ) -> Answer:
        """One request. A trailing underscore in a parameter's name is dropped (`continue_`)."""
        parameters = {key.rstrip("_"): value for key, value in query.items()}
        connection = self._connect()
        try:
            response = self._send(connection, method, path, body, kind, accept, parameters)
            text = response.read()
            headers = {name.lower(): value for name, value in response.getheaders()}
        finally:
            connection.close()
        try:
            decoded = json.loads(text)
        except ValueError:
            decoded = text.decode()
        return Answer(response.status, decoded, headers)

    def get(self, path: str, **query: Any) -> Answer:
        return self.call("GET", path, **query)

    def create(self, path: str, obj: Object, **query: Any) -> Answer:
        """Create, which must succeed."""
        answer = self.call("POST", path, obj, **query)
        assert answer.code == 201, answer.body
        return answer

    def patch(self, path: str, body: Any, kind: str = MERGE, **query: Any) -> Answer:
        return self.call("PATCH", path, body, kind=kind, **query)

    @contextmanager
    def watch(self, path: str, accept: str = "application/json", **query: Any) -> Iterator[Events]:
        """An open watch, which must be granted."""
        connection = self._connect()
        try:
            query = {"watch": "true", **query}
            response = self._send(connection, "GET", path, None, "", accept, query)
            assert response.status == 200, response.read()
            yield Events(response)
        finally:
            if connection.sock is not None:
                connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()


def policy(name: str = "policy", **spec: Any) -> Object:
    """A NetworkPolicy; by default of all pods."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name},
        "spec": {"podSelector": {}, **spec},
    }


def config_map(name: str = "settings", labels: Object | None = None, **data: str) -> Object:
    """A ConfigMap."""
    meta: Object = {"name": name}
    if labels:
        meta["labels"] = labels
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def pod(name: str = "web", labels: Object | None = None, **spec: Any) -> Object:
    """A Pod with one container."""
    container = {
        "name": "main",
        "image": "registry.invalid/app:1",
        "ports": [{"containerPort": 80}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {"app": name}},
        "spec": {"containers": [container], **spec},
    }

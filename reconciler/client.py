"""The way to the API server: bytes in, bytes out.

The official client knows how operators say where the server is and who they are: kubeconfig,
service account, tokens that are refreshed, client certificates, proxies. We take that and its
connection pool, and leave its models: decoding is the caller's.

This is the only module that imports ``kubernetes``.
"""

from __future__ import annotations

import os
import re
import socket
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, urlencode

import kubernetes.client
import kubernetes.config
import msgspec
import urllib3
import yaml
from urllib3.exceptions import HTTPError

from reconciler.call import POOLS, Call
from reconciler.telemetry import trace_headers
from reconciler.wire import Status, decode_status

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from reconciler.stop import Stop

CONNECT_TIMEOUT = 10.0
ANSWER_TIMEOUT = 60.0
"""Seconds until the server must have begun to answer, and that an answer may pause."""
WATCH_GRACE = 30.0
"""Seconds that a watch may be silent beyond the time after which the server ends it."""

_CHUNK = 64 * 1024
# A peer that vanished without a word is noticed after about 30 + 9 * 15 seconds.
_KEEPALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 9),
]


class ConfigurationError(Exception):
    """It is not known how to reach the API server; the message says which file lacks what."""


class TransportError(Exception):
    """The API server could not be reached, or the connection broke."""


class ApiError(TransportError):
    """The API server refused. ``reason`` and ``message`` are its own words."""

    def __init__(
        self,
        status: int,
        reason: str,
        message: str,
        retry_after: float | None = None,
        *,
        causes: tuple[str, ...] = (),
        name: str = "",
    ) -> None:
        """
        :param retry_after: seconds to leave the server alone, where it said so
        :param causes: the reasons among the status' details
        :param name: the object that the refusal is about, where the server said so
        """
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message
        self.retry_after = retry_after
        self.causes = causes
        self.name = name

    @property
    def not_found(self) -> bool:
        """Whether there is no such object. Not so where the server does not know the kind."""
        return self.status == 404 and bool(self.name)

    @property
    def already_exists(self) -> bool:
        """Whether there is an object of that name, which was to be created."""
        return self.reason == "AlreadyExists"

    @property
    def conflict(self) -> bool:
        """Whether the object was changed meanwhile, or another manager owns a field of it."""
        return self.reason == "Conflict"

    @property
    def expired(self) -> bool:
        """Whether the server no longer has the resourceVersion that was asked for."""
        return self.status == 410

    @property
    def version_too_large(self) -> bool:
        """Whether the server does not have the resourceVersion that was asked for yet."""
        return "ResourceVersionTooLarge" in self.causes or (
            self.status == 504 and "Too large resource version" in self.message
        )


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object, by where the API serves it. ``group`` is empty for the core group."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = field(default=True)

    @property
    def api_version(self) -> str:
        """``v1``, or ``networking.k8s.io/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None = None) -> str:
        """The path of the collection: of one namespace, or of all."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        return f"{root}{scope}/{self.plural}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Stream(Protocol):
    """The lines of a watch as they arrive."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield one event's JSON at a time, until the server ends the watch or ``close`` is called.

        :raises TransportError: if the connection breaks
        """
        ...

    def close(self) -> None:
        """End the iteration, from any thread, at once."""
        ...


class Transport(Protocol):
    """What a reflector needs of an API server. Query parameters are the API's own.

    A request to stop ends both calls at once, with a ``TransportError`` if they had not answered.
    """

    def list(
        self, resource: Resource, namespace: str | None, query: Mapping[str, str], stop: Stop
    ) -> bytes:
        """Get one page of a collection, as JSON.

        :raises TransportError: if it cannot be had
        """
        ...

    def watch(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        timeout: float,
        stop: Stop,
    ) -> Stream:
        """Start a watch that the server ends after ``timeout`` seconds.

        :raises TransportError: if it cannot be started
        """
        ...


class Client:
    """The transport over the official client's connection pool. Usable by many threads."""

    def __init__(self, api: Any) -> None:
        self._api = api
        self._pool = api.rest_client.pool_manager
        self._pool.connection_pool_kw["socket_options"] = _KEEPALIVE
        self._pool.pool_classes_by_scheme = POOLS
        self.host: str = api.configuration.host

    def list(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        stop: Stop | None = None,
    ) -> bytes:
        """Get one page of a collection, as JSON."""
        return self.request("GET", resource.path(namespace), query, stop=stop)

    def watch(
        self,
        resource: Resource,
        namespace: str | None,
        query: Mapping[str, str],
        timeout: float,
        stop: Stop | None = None,
    ) -> Stream:
        """Start a watch that the server ends after ``timeout`` seconds."""
        query = {**query, "watch": "true", "timeoutSeconds": str(int(timeout))}
        call = Call()
        with _aborting(call, stop):
            response = self._send(call, "GET", resource.path(namespace), query)
        call.allow_silence(timeout + WATCH_GRACE)
        return _Stream(self.host, call, response)

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        content_type: str = "application/json",
        stop: Stop | None = None,
        timeout: float = ANSWER_TIMEOUT,
    ) -> bytes:
        """Send any request and return the whole answer.

        :param content_type: of the body; of a patch, this says which of the API's kinds it is
        :param stop: ends the request at once
        :param timeout: seconds that connecting may take, and that the server may be silent
        :raises ApiError: if the API server refused
        :raises TransportError: if it could not be reached
        """
        call = Call()
        with _aborting(call, stop):
            response = self._send(call, method, path, query or {}, body, content_type, timeout)
            try:
                data: bytes = response.read(decode_content=True)
            except (HTTPError, OSError) as error:
                response.close()
                raise TransportError(f"{self.host}: {_reason(error)}") from error
            finally:
                call.end()
        response.release_conn()
        return data

    def _send(
        self,
        call: Call,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: bytes | None = None,
        content_type: str = "application/json",
        timeout: float = ANSWER_TIMEOUT,
    ) -> urllib3.HTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": "fullsync", **trace_headers()}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            with call.current():
                # Reads the service account's token again when it is due.
                self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, None)
                response: urllib3.HTTPResponse = self._pool.request(
                    method,
                    f"{self.host}{path}?{urlencode(query)}" if query else f"{self.host}{path}",
                    body=body,
                    headers=headers,
                    preload_content=False,
                    retries=False,
                    timeout=urllib3.Timeout(connect=min(CONNECT_TIMEOUT, timeout), read=timeout),
                )
        except (HTTPError, OSError, ValueError) as error:
            call.end()
            raise TransportError(f"{self.host}: {_reason(error)}") from error
        if not 200 <= response.status < 300:
            try:
                raise _refusal(response)
            finally:
                call.end()
        return response


def _aborting(call: Call, stop: Stop | None) -> AbstractContextManager[None]:
    return nullcontext() if stop is None else stop.calling(call.abort)


class _Stream:
    """Lines out of a response's pieces; an event may span many pieces, and a piece many events."""

    def __init__(self, host: str, call: Call, response: urllib3.HTTPResponse) -> None:
        self._host = host
        self._call = call
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            for piece in self._pieces():
                *lines, rest = (rest + piece).split(b"\n")
                for line in lines:
                    if self._call.aborted:
                        return
                    if line:
                        yield line
        except (HTTPError, OSError, ValueError) as error:
            # An aborted call surfaces as whatever the reader was doing.
            if not self._call.aborted:
                raise TransportError(f"{self._host}: {_reason(error)}") from error
        finally:
            self._call.end()
            self._response.close()

    def _pieces(self) -> Iterable[bytes]:
        """What has arrived, as soon as it has."""
        if self._response.chunked:
            return self._response.stream(_CHUNK, decode_content=True)
        return iter(lambda: self._response.read1(_CHUNK, decode_content=True), b"")

    def close(self) -> None:
        self._call.abort()


def _refusal(response: urllib3.HTTPResponse) -> ApiError:
    try:
        body = response.read(decode_content=True)
    except (HTTPError, OSError):
        body = b""
    finally:
        response.close()
    retry_after = response.headers.get("Retry-After", "")
    try:
        status = decode_status(body)
    except msgspec.DecodeError:
        status = Status(message=body[:200].decode(errors="replace").strip())
    return ApiError(
        response.status,
        status.reason or response.reason or "",
        status.message or "no message",
        float(retry_after) if retry_after.isdigit() else status.retry_after,
        causes=status.causes,
        name=status.name,
    )


def _reason(error: Exception) -> str:
    """The innermost reason, without the library's wrapping."""
    inner = getattr(error, "reason", None) or error
    if len(inner.args) > 1 and isinstance(inner.args[1], Exception):
        inner = inner.args[1]
    # urllib3 begins with the connection's repr, which says no more than the host does.
    text = re.sub(r"^(<.*?>|\w+\(.*?\)): ", "", str(inner))
    return text or type(inner).__name__


def load(kubeconfig: str | None = None, *, context: str | None = None) -> Client:
    """Make a client from a kubeconfig file, or from the pod's service account where none is given.

    :param kubeconfig: a file, or several with ``os.pathsep`` between them, as in ``$KUBECONFIG``:
        one that is missing is passed over, and of what two define the first holds; an empty name,
        as of a variable that is set to nothing, is none
    :param context: the kubeconfig's context; its current one by default
    :raises ConfigurationError: if the file or the service account is missing or unusable
    """
    kubeconfig = kubeconfig or None
    configuration = kubernetes.client.Configuration()
    try:
        if kubeconfig is None:
            kubernetes.config.load_incluster_config(configuration)
        else:
            found = _read_kubeconfig(kubeconfig)
            current = (each["current-context"] for each in found if each.get("current-context"))
            kubernetes.config.load_kube_config(
                kubeconfig, context or next(current, None), configuration, persist_config=False
            )
    except kubernetes.config.ConfigException as error:
        raise ConfigurationError(_unusable(kubeconfig, str(error))) from error
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        # What the official client raises for a mapping that is no kubeconfig.
        raise ConfigurationError(_unusable(kubeconfig, f"{error}")) from error
    return Client(kubernetes.client.ApiClient(configuration))


def _read_kubeconfig(kubeconfig: str) -> list[dict[str, Any]]:
    """What its files say, each a mapping."""
    paths = [path for path in kubeconfig.split(os.pathsep) if path]
    there = [path for path in paths if Path(path).expanduser().exists()]
    return [_read_mapping(path) for path in there or paths]


def _read_mapping(path: str) -> dict[str, Any]:
    try:
        text = Path(path).expanduser().read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(_unusable(path, reason)) from error
    if not text.strip():
        raise ConfigurationError(_unusable(path, "is empty"))
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigurationError(_unusable(path, f"is not YAML: {error}")) from error
    if not isinstance(found, dict):
        raise ConfigurationError(_unusable(path, "is YAML, but not a mapping"))
    return found


def _unusable(kubeconfig: str | None, reason: str) -> str:
    if kubeconfig is None:
        return (
            f"no kubeconfig was given, and there is no service account to use instead ({reason}); "
            "outside a pod, name a kubeconfig file"
        )
    return f"kubeconfig {kubeconfig}: {reason}"

"""How the client is configured, what it says when it cannot, and how it behaves on the wire."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from reconciler.call import Call
from reconciler.client import (
    ApiError,
    Client,
    ConfigurationError,
    Resource,
    TransportError,
    load,
)
from reconciler.stop import Stop
from reconciler.testing import ApiServer, Refuse, Stall
from tests.unit.reconciler.scripted import PATIENCE

PODS = Resource("", "v1", "pods", "Pod")
POLICIES = Resource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
NODES = Resource("", "v1", "nodes", "Node", namespaced=False)


def test_paths() -> None:
    assert PODS.path() == "/api/v1/pods"
    assert PODS.path("x") == "/api/v1/namespaces/x/pods"
    assert PODS.path("x/y") == "/api/v1/namespaces/x%2Fy/pods"
    assert POLICIES.path("x") == "/apis/networking.k8s.io/v1/namespaces/x/networkpolicies"
    assert NODES.path("x") == "/api/v1/nodes"
    assert (str(PODS), str(POLICIES)) == ("pods", "networkpolicies.networking.k8s.io")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No such file or directory"),
        ("", "is empty"),
        ("just words", "not a mapping"),
        ("a: [", "is not YAML: .*\n.*expected the node content"),
        ("apiVersion: v1\nkind: Config\n", "current-context"),
        ("current-context: a\ncontexts: []\n", "Expected object with name a"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, text: str | None, reason: str
) -> None:
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=reason) as error:
        load(str(path))
    assert str(error.value).startswith(f"kubeconfig {path}: ")


def test_several_kubeconfigs_are_read_as_one_and_the_first_to_say_something_holds(
    tmp_path: Path,
) -> None:
    one, two, three = (tmp_path / name for name in ("one", "two", "three"))
    one.write_text(
        "current-context: ours\ncontexts: [{name: ours, context: {cluster: c, user: u}}]"
    )
    two.write_text('clusters: [{name: c, cluster: {server: "http://127.0.0.1:1"}}]')
    three.write_text(
        "users: [{name: u, user: {token: secret}}]\n"
        'clusters: [{name: c, cluster: {server: "http://127.0.0.1:3"}}]\n'
        "current-context: other\n"
    )
    names = [str(one), "", str(tmp_path / "missing"), str(two), str(three)]
    assert load(os.pathsep.join(names)).host == "http://127.0.0.1:1"


def test_of_several_kubeconfigs_the_one_at_fault_is_named(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("current-context: a")
    bad.write_text("[]")
    with pytest.raises(ConfigurationError, match=f"kubeconfig {bad}: is YAML, but not a mapping"):
        load(f"{good}{os.pathsep}{bad}")
    bad.unlink()
    good.unlink()
    with pytest.raises(ConfigurationError, match=f"kubeconfig {good}: No such file"):
        load(f"{good}{os.pathsep}{bad}")


@pytest.mark.parametrize("kubeconfig", [None, ""])
def test_without_a_service_account_the_message_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, kubeconfig: str | None
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigurationError, match="name a kubeconfig file"):
        load(kubeconfig)


def _kubeconfig(tmp_path: Path, url: str) -> str:
    path = tmp_path / "config"
    path.write_text(
        f"""\
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: secret}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""
    )
    return str(path)


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    client = load(_kubeconfig(tmp_path, url))
    with pytest.raises(TransportError, match=f"^{url}: Failed to establish .* refused$"):
        client.list(PODS, None, {})


def test_a_refusal_carries_the_servers_words_and_its_wish_to_be_left_alone(tmp_path: Path) -> None:
    with ApiServer() as server:
        client = load(_kubeconfig(tmp_path, server.url))
        server.faults.add(Refuse(429, retry_after=7))
        with pytest.raises(ApiError, match="429 TooManyRequests") as error:
            client.list(PODS, None, {})
        assert error.value.status == 429
        assert error.value.retry_after == 7


def test_closing_ends_a_quiet_watch_from_another_thread_at_once(tmp_path: Path) -> None:
    with ApiServer() as server:
        client = load(_kubeconfig(tmp_path, server.url))
        stream = client.watch(PODS, None, {"resourceVersion": str(server.resource_version)}, 600)
        lines: list[bytes] = []
        thread = threading.Thread(target=lambda: lines.extend(stream))
        thread.start()
        stream.close()
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert not lines


def test_a_watch_hands_out_whole_lines_however_they_arrive(tmp_path: Path) -> None:
    """One event in three pieces, then two events in one piece."""
    pieces = [b'{"a"', b": 1", b"}\n", b'{"b": 2}\n{"c": 3}\n']

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            for piece in pieces:
                connection.sendall(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            connection.sendall(b"0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = load(_kubeconfig(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}"))
        assert list(client.watch(PODS, None, {}, 300)) == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}']
        thread.join(PATIENCE)


def test_a_connection_that_breaks_in_the_middle_is_an_error(tmp_path: Path) -> None:
    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"a"')

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = load(_kubeconfig(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(TransportError):
            list(client.watch(PODS, None, {}, 300))
        thread.join(PATIENCE)


def test_the_bearer_token_is_sent(tmp_path: Path) -> None:
    request: list[bytes] = []

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            request.append(connection.recv(4096))
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = load(_kubeconfig(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}"))
        assert client.list(PODS, "x", {"limit": "5"}) == b"{}"
        thread.join(PATIENCE)
    assert request[0].startswith(b"GET /api/v1/namespaces/x/pods?limit=5 HTTP/1.1\r\n")
    assert b"authorization: bearer secret" in request[0].lower()


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_stop_ends_a_request_that_is_not_answered(
    server: ApiServer, client: Client, verb: str
) -> None:
    """A server that took the request and then died without a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        client.host = f"http://127.0.0.1:{silent.getsockname()[1]}"
        stop = Stop()
        errors: list[TransportError] = []

        def call() -> None:
            try:
                if verb == "list":
                    client.list(PODS, None, {}, stop)
                else:
                    client.watch(PODS, None, {}, 600, stop)
            except TransportError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        taken, _ = silent.accept()
        with taken:
            taken.recv(4096)
            assert thread.is_alive()
            stop.set()
            thread.join(PATIENCE)
        assert not thread.is_alive()
        assert len(errors) == 1


def test_a_stop_that_came_before_ends_a_request_at_once(server: ApiServer, client: Client) -> None:
    stop = Stop()
    stop.set()
    server.faults.add(Stall())
    with pytest.raises(TransportError):
        client.list(PODS, None, {}, stop)


def test_a_stop_does_not_touch_a_connection_that_serves_others_by_now(
    server: ApiServer, client: Client
) -> None:
    stop = Stop()
    for _ in range(2):
        client.list(PODS, None, {}, stop)
    stream = client.watch(PODS, None, {"resourceVersion": str(server.resource_version)}, 600)
    stop.set()
    server.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}}, validate=False)
    assert b'"ADDED"' in next(iter(stream))
    stream.close()


def test_a_call_that_has_ended_lets_its_socket_be() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        call = Call()
        with call.current():
            Call.served_by(ours)
        call.end()
        call.abort()
        ours.sendall(b"still open")
        assert theirs.recv(100) == b"still open"

        late = Call()
        late.abort()
        with late.current():
            Call.served_by(ours)
        with pytest.raises(BrokenPipeError):
            ours.sendall(b"closed")


def test_closing_a_stream_that_has_ended_or_never_began_is_harmless(
    server: ApiServer, client: Client
) -> None:
    query = {"resourceVersion": str(server.resource_version)}
    closed = client.watch(PODS, None, query, 600)
    closed.close()
    assert list(closed) == []
    closed.close()


def test_a_watch_without_chunks_is_read_as_it_arrives(tmp_path: Path) -> None:
    """As a proxy that speaks HTTP/1.0 passes it on."""
    second = threading.Event()

    def serve(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b'HTTP/1.0 200 OK\r\n\r\n{"a": 1}\n')
            assert second.wait(PATIENCE)
            connection.sendall(b'{"b": 2}\n')

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,))
        thread.start()
        client = load(_kubeconfig(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}"))
        lines = iter(client.watch(PODS, None, {}, 300))
        assert next(lines) == b'{"a": 1}'
        second.set()
        assert list(lines) == [b'{"b": 2}']
        thread.join(PATIENCE)


def test_a_version_that_is_to_come_is_told_from_a_timeout(
    server: ApiServer, client: Client
) -> None:
    later = {"resourceVersion": str(server.resource_version + 1000), "timeoutSeconds": "1"}
    with pytest.raises(ApiError) as error:
        client.list(PODS, None, {**later, "resourceVersionMatch": "NotOlderThan"})
    assert error.value.version_too_large
    assert not ApiError(504, "Timeout", "slow").version_too_large


def test_objects_can_be_written(server: ApiServer, client: Client) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}}'
    client.request("POST", path, body=body)
    patch = b'{"data": {"a": "1"}}'
    client.request("PATCH", f"{path}/c", body=patch, content_type="application/merge-patch+json")
    assert server.get("configmaps", "c", "default")["data"] == {"a": "1"}
    client.request("DELETE", f"{path}/c", {"propagationPolicy": "Background"})
    with pytest.raises(ApiError, match="404 NotFound"):
        client.request("GET", f"{path}/c")

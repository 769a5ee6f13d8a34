"""Edges of the parts that HTTP clients rarely reach."""

from __future__ import annotations

import copy
import http.client
import socket
from urllib.parse import urlsplit

import pytest

from reconciler.testing import ApiServer, protobuf, schema
from reconciler.testing.managed import from_fields, to_fields
from reconciler.testing.patch import strategic
from reconciler.testing.selectors import parse_labels
from reconciler.testing.tables import age, selector_text, view
from tests.conformance.apiserver.client import CONFIG_MAPS, Api, Object, config_map


def test_strategic_order_and_retained_keys() -> None:
    """What `kubectl apply` sends when elements of a list come, go and move."""
    node = schema.Struct({"items": schema.Items(schema.OPEN, merge_key="name"), "how": schema.OPEN})
    target = {"items": [{"name": "a", "x": 1}, {"name": "b"}], "how": {"old": 1, "kept": 2}}
    before = copy.deepcopy(target)
    patch = {
        "$setElementOrder/items": [{"name": "c"}, {"name": "a"}],
        "items": [{"name": "c"}, {"name": "b", "$patch": "delete"}, {"name": "a", "y": 2}],
        "how": {"$retainKeys": ["kept", "new"], "new": 3},
    }
    assert strategic(target, patch, node) == {
        "items": [{"name": "c"}, {"name": "a", "x": 1, "y": 2}],
        "how": {"kept": 2, "new": 3},
    }
    assert target == before


def test_fields_there_and_back() -> None:
    paths = {
        ("f:spec", "f:a"),
        ("f:spec", 'k:{"name":"x"}', "."),
        ("f:spec", 'k:{"name":"x"}', "f:image"),
        ("f:metadata", "f:finalizers", 'v:"a/b"'),
    }
    assert from_fields(to_fields(paths)) == paths


@pytest.mark.parametrize(
    ("text", "labels", "wanted"),
    [
        ("a notin (b)", {}, True),
        ("a in (b, c)", {"a": "c"}, True),
        ("a!=b,c", {"a": "x", "c": ""}, True),
        ("a>5", {"a": "x"}, False),
        ("a>5", {}, False),
        ("example.com/a=b", {"example.com/a": "b"}, True),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
    ],
)
def test_requirements(text: str, labels: dict[str, str], wanted: bool) -> None:
    assert all(requirement.matches(labels) for requirement in parse_labels(text)) is wanted


def test_selectors_in_tables() -> None:
    expressions = [
        {"key": "a", "operator": "In", "values": ["b", "c"]},
        {"key": "d", "operator": "NotIn", "values": ["e"]},
        {"key": "f", "operator": "DoesNotExist"},
    ]
    assert selector_text({"matchExpressions": expressions}) == "a in (b,c),d notin (e),!f"
    assert selector_text({}) == "<none>"
    assert selector_text("nonsense") == "<error>"


def test_ages() -> None:
    assert age({"metadata": {}}) == "<unknown>"
    assert age({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}}).endswith("d")


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("application/json", ""),
        ("*/*", ""),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", "Table"),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", ""),
        ("application/json,application/json;as=Table;v=v1;g=meta.k8s.io", ""),
        (
            "application/json; as=PartialObjectMetadata; v=v1; g=meta.k8s.io",
            "PartialObjectMetadata",
        ),
    ],
)
def test_forms(accept: str, form: str) -> None:
    assert view(accept).form == form


# --- protobuf


def field(number: int, value: bytes | int) -> bytes:
    """One protobuf field."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    return bytes([number << 3 | 2, len(value)]) + value


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    meta = field(1, api_version.encode()) + field(2, kind.encode())
    return b"k8s\x00" + field(1, meta) + field(2, raw)


def test_protobuf() -> None:
    owner = field(3, b"me") + field(4, b"u") + field(6, 1)
    labels = field(1, b"a") + field(2, b"b")
    created = field(1, 60)
    meta = field(1, b"x") + field(2, b"") + field(7, 0) + field(8, created) + field(11, labels)
    meta += field(13, owner) + field(14, b"f/1") + field(14, b"f/2")
    blob = field(1, b"k") + field(2, b"\xff")
    raw = field(1, meta) + field(2, labels) + field(3, blob) + field(4, 1)
    wanted: Object = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "x",
            "creationTimestamp": "1970-01-01T00:01:00Z",
            "labels": {"a": "b"},
            "ownerReferences": [{"name": "me", "uid": "u", "controller": True}],
            "finalizers": ["f/1", "f/2"],
        },
        "data": {"a": "b"},
        "binaryData": {"k": "/w=="},
        "immutable": True,
    }
    assert protobuf.decode(envelope("v1", "ConfigMap", raw)) == wanted


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"k8s\x00\xff",
        envelope("v1", "ConfigMap", b"\x0a\x7f"),
        envelope("v1", "ConfigMap", b"\x0d1234"),
        envelope("v1", "ConfigMap", field(1, 5)),
        envelope("v1", "ConfigMap", field(1, field(1, b"\xff"))),
    ],
)
def test_malformed_protobuf(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"malformed|magic|decode"):
        protobuf.decode(body)


def test_protobuf_of_other_kinds() -> None:
    with pytest.raises(protobuf.UnknownKind):
        protobuf.decode(envelope("v1", "Pod", b""))


# --- HTTP


def raw_exchange(server: ApiServer, data: bytes) -> bytes:
    """What the server answers to these bytes until it closes."""
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=10) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET /version HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"GET /version HTTP/1.1\r\nContent-Length: many\r\n\r\n", b"400"),
        (b"POST /x HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", b"413"),
        (b"GET /version HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_malformed_requests(server: ApiServer, data: bytes, status: bytes) -> None:
    try:
        answer = raw_exchange(server, data)
    except ConnectionError:
        pytest.skip("the reset overtook the answer")
    assert answer.split(b" ")[1] == status


def test_half_a_request_harms_nobody(server: ApiServer, api: Api) -> None:
    assert raw_exchange(server, b"GET /version HT") == b""
    assert api.get("/version").code == 200


def test_connections_are_kept(server: ApiServer) -> None:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.netloc, timeout=10)
    for _ in range(3):
        connection.request("GET", "/version")
        assert connection.getresponse().read()
    assert server.statistics().connections == 1
    # A watch that ended leaves the connection usable too.
    connection.request("GET", "/api/v1/pods?watch=true&timeoutSeconds=1")
    assert connection.getresponse().read() == b""
    connection.request("GET", "/version", headers={"Connection": "close"})
    response = connection.getresponse()
    response.read()
    assert response.getheader("Connection") == "close"
    connection.close()


def test_chunked_bodies(server: ApiServer) -> None:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(where.netloc, timeout=10)
    body = b'{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"chunky"}}'
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked"}
    path = CONFIG_MAPS.format(ns="default")
    connection.request(
        "POST", path, iter([body[:10], body[10:]]), headers=headers, encode_chunked=True
    )
    assert connection.getresponse().status == 201
    connection.close()
    assert server.get("cm", "chunky")


def test_yaml_bodies(server: ApiServer, api: Api) -> None:
    where = urlsplit(api.url)
    connection = http.client.HTTPConnection(where.netloc, timeout=10)
    text = """\
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: leader}
spec: {renewTime: 2024-01-01T00:00:00.000000Z}
"""
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    connection.request("POST", path, text, headers={"Content-Type": "application/yaml"})
    assert connection.getresponse().status == 201
    connection.close()
    assert server.get("leases", "leader")["spec"]["renewTime"] == "2024-01-01T00:00:00.000000Z"


@pytest.mark.parametrize("kind", ["application/cbor", "text/plain"])
def test_other_bodies(api: Api, kind: str) -> None:
    answer = api.call("POST", CONFIG_MAPS.format(ns="default"), config_map(), kind=kind)
    assert (answer.code, answer.body["reason"]) == (415, "UnsupportedMediaType")


@pytest.mark.parametrize("body", [[], "text", 5, None])
def test_bodies_that_are_no_objects(api: Api, body: object) -> None:
    path = CONFIG_MAPS.format(ns="default")
    assert api.call("POST", path, body).code == 400

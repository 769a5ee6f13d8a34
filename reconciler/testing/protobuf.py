"""The few protobuf messages that `kubectl` insists on sending.

`kubectl create namespace` and `kubectl create configmap` encode their body as protobuf and do not
fall back to JSON. A body is the magic `k8s\\0` and a `runtime.Unknown`: type, and the object's own
bytes. The tables below name the fields of the messages that are understood; a kind without a table
is refused, as a real server refuses an unknown media type. Answers are always JSON: clients that
send protobuf accept it.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any, Final

from reconciler.testing.objects import Object, timestamp

if TYPE_CHECKING:
    from collections.abc import Iterator

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
_MAGIC: Final = b"k8s\x00"

Fields = dict[int, tuple[str, Any]]
"""Field number to name and type: a type name, a message (another table), or `[type]` for a repeated
field.
"""

_OWNER: Final[Fields] = {
    1: ("kind", "string"),
    3: ("name", "string"),
    4: ("uid", "string"),
    5: ("apiVersion", "string"),
    6: ("controller", "bool"),
    7: ("blockOwnerDeletion", "bool"),
}
_META: Final[Fields] = {
    1: ("name", "string"),
    2: ("generateName", "string"),
    3: ("namespace", "string"),
    5: ("uid", "string"),
    6: ("resourceVersion", "string"),
    8: ("creationTimestamp", "time"),
    11: ("labels", "strings"),
    12: ("annotations", "strings"),
    13: ("ownerReferences", [_OWNER]),
    14: ("finalizers", ["string"]),
}
_KINDS: Final[dict[tuple[str, str], Fields]] = {
    ("v1", "Namespace"): {
        1: ("metadata", _META),
        2: ("spec", {1: ("finalizers", ["string"])}),
        3: ("status", {1: ("phase", "string")}),
    },
    ("v1", "ConfigMap"): {
        1: ("metadata", _META),
        2: ("data", "strings"),
        3: ("binaryData", "blobs"),
        4: ("immutable", "bool"),
    },
    ("v1", "DeleteOptions"): {
        1: ("gracePeriodSeconds", "int"),
        2: ("preconditions", {1: ("uid", "string"), 2: ("resourceVersion", "string")}),
        4: ("propagationPolicy", "string"),
        5: ("dryRun", ["string"]),
    },
}


class UnknownKind(Exception):  # noqa: N818 - the caller answers 415
    """There is no table for this kind."""


def decode(body: bytes) -> Object:
    """The object of a request body. Raises `UnknownKind`; `ValueError` if it is malformed."""
    if not body.startswith(_MAGIC):
        raise ValueError("the body does not begin with the protobuf magic")
    try:
        envelope = _message(body[len(_MAGIC) :], {1: ("type", _TYPE), 2: ("raw", "bytes")})
        meta = envelope.get("type", {})
        api_version, kind = meta.get("apiVersion", ""), meta.get("kind", "")
        fields = _KINDS.get(("v1" if kind == "DeleteOptions" else api_version, kind))
        if fields is None:
            raise UnknownKind(f"{api_version} {kind}")
        obj = _message(envelope.get("raw", b""), fields)
    except (IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"malformed protobuf: {error}") from None
    return {"apiVersion": api_version, "kind": kind, **obj}


_TYPE: Final[Fields] = {1: ("apiVersion", "string"), 2: ("kind", "string")}


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: an int, or bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        if key & 7 == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
        elif key & 7 == 2:
            length, at = _varint(data, at)
            if at + length > len(data):
                raise IndexError("truncated")
            yield key >> 3, data[at : at + length]
            at += length
        else:
            raise ValueError(f"malformed protobuf: wire type {key & 7}")


def _message(data: bytes, fields: Fields) -> Object:
    """A message as JSON would spell it: zero values are left out."""
    result: Object = {}
    for number, raw in _fields(data):
        if number not in fields:
            continue
        name, kind = fields[number]
        if isinstance(kind, list):
            result.setdefault(name, []).append(_value(raw, kind[0]))
        elif kind in ("strings", "blobs"):
            entry = _message(raw, {1: ("key", "string"), 2: ("value", "bytes")})
            value = entry.get("value", b"")
            text = value.decode() if kind == "strings" else base64.b64encode(value).decode()
            result.setdefault(name, {})[entry.get("key", "")] = text
        elif (value := _value(raw, kind)) not in ("", 0, b"", {}, False, None):
            result[name] = value
    return result


def _value(raw: Any, kind: Any) -> Any:
    if isinstance(kind, dict):
        return _message(raw, kind)
    match kind:
        case "string":
            return raw.decode()
        case "bool":
            return bool(raw)
        case "time":
            seconds = _message(raw, {1: ("seconds", "int")}).get("seconds")
            return timestamp(seconds) if seconds and seconds < 1 << 62 else None
        case _:
            return raw

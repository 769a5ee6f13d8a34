"""What the built-in objects look like: the little of OpenAPI that a server acts upon.

A schema is a tree of four node kinds: `Struct` (named fields), `Mapping` (free keys), `Items` (a
list) and `Scalar`. Three things read it:

- decoding: a value of the wrong type is refused, an unknown field of a closed struct is dropped or,
  when the client asked for strict validation, refused;
- patching: `Items.merge_key` says by which field a strategic merge patch pairs the elements of a
  list;
- server-side apply: `Items.keys` says by which fields list elements have an identity; without it a
  list is atomic.

Closed structs spell out every field of the real type (NetworkPolicy, Lease, ConfigMap, metadata).
Open structs name only the fields that need care (Pod, Node) and let every other one through as it
is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Scalar:
    """A leaf. `types` are the Python types JSON may decode to; `go` is the type that error messages
    name.
    """

    types: tuple[type, ...]
    go: str


@dataclass(frozen=True, slots=True)
class Anything:
    """A value nobody looks into."""


@dataclass(frozen=True, slots=True)
class Struct:
    """An object with known fields. `open`: other fields are allowed. `atomic`: server-side apply
    owns it whole.
    """

    fields: dict[str, Node] = field(default_factory=dict)
    open: bool = False
    atomic: bool = False


@dataclass(frozen=True, slots=True)
class Mapping:
    """An object with free keys."""

    value: Node


@dataclass(frozen=True, slots=True)
class Items:
    """A list. `merge_key`: strategic merge patch. `keys`: server-side apply. `unique`: a set of
    scalars.
    """

    item: Node
    merge_key: str = ""
    keys: tuple[str, ...] = ()
    unique: bool = False


Node = Scalar | Anything | Struct | Mapping | Items

ANY: Final = Anything()
STRING: Final = Scalar((str,), "string")
INTEGER: Final = Scalar((int,), "int32")
BOOLEAN: Final = Scalar((bool,), "bool")
INT_OR_STRING: Final = Scalar((int, str), "IntOrString")
STRINGS: Final = Items(STRING)
STRING_MAP: Final = Mapping(STRING)
OPEN: Final = Struct(open=True)


def _named(item: Node, key: str = "name", *more: str) -> Items:
    return Items(item, merge_key=key, keys=(key, *more))


METADATA: Final = Struct(
    {
        "name": STRING,
        "generateName": STRING,
        "namespace": STRING,
        "selfLink": STRING,
        "uid": STRING,
        "resourceVersion": STRING,
        "generation": INTEGER,
        "creationTimestamp": STRING,
        "deletionTimestamp": STRING,
        "deletionGracePeriodSeconds": INTEGER,
        "labels": STRING_MAP,
        "annotations": STRING_MAP,
        "ownerReferences": _named(
            Struct(
                {
                    "apiVersion": STRING,
                    "kind": STRING,
                    "name": STRING,
                    "uid": STRING,
                    "controller": BOOLEAN,
                    "blockOwnerDeletion": BOOLEAN,
                }
            ),
            "uid",
        ),
        "finalizers": Items(STRING, merge_key="", unique=True),
        "managedFields": Items(ANY),
    }
)

_LABEL_SELECTOR: Final = Struct(
    {
        "matchLabels": STRING_MAP,
        "matchExpressions": Items(Struct({"key": STRING, "operator": STRING, "values": STRINGS})),
    },
    atomic=True,
)
_PORTS: Final = Items(Struct({"protocol": STRING, "port": INT_OR_STRING, "endPort": INTEGER}))
_PEERS: Final = Items(
    Struct(
        {
            "podSelector": _LABEL_SELECTOR,
            "namespaceSelector": _LABEL_SELECTOR,
            "ipBlock": Struct({"cidr": STRING, "except": STRINGS}),
        }
    )
)


def _object(**fields: Node) -> Struct:
    return Struct({"apiVersion": STRING, "kind": STRING, "metadata": METADATA, **fields})


NETWORK_POLICY: Final = _object(
    spec=Struct(
        {
            "podSelector": _LABEL_SELECTOR,
            "policyTypes": STRINGS,
            "ingress": Items(Struct({"from": _PEERS, "ports": _PORTS})),
            "egress": Items(Struct({"to": _PEERS, "ports": _PORTS})),
        }
    )
)

_CONTAINERS: Final = _named(
    Struct(
        {
            "name": STRING,
            "image": STRING,
            "ports": Items(
                Struct(
                    {
                        "name": STRING,
                        "containerPort": INTEGER,
                        "hostPort": INTEGER,
                        "protocol": STRING,
                    },
                    open=True,
                ),
                merge_key="containerPort",
                keys=("containerPort", "protocol"),
            ),
            "env": _named(Struct({"name": STRING}, open=True)),
            "volumeMounts": _named(Struct({"mountPath": STRING}, open=True), "mountPath"),
            "volumeDevices": _named(Struct({"devicePath": STRING}, open=True), "devicePath"),
        },
        open=True,
    )
)
_CONDITIONS: Final = _named(Struct({"type": STRING, "status": STRING}, open=True), "type")

POD: Final = _object(
    spec=Struct(
        {
            "nodeName": STRING,
            "hostNetwork": BOOLEAN,
            "nodeSelector": STRING_MAP,
            "containers": _CONTAINERS,
            "initContainers": _CONTAINERS,
            "ephemeralContainers": _CONTAINERS,
            "volumes": _named(Struct({"name": STRING}, open=True)),
            "imagePullSecrets": _named(Struct({"name": STRING}, open=True)),
            "hostAliases": _named(Struct({"ip": STRING}, open=True), "ip"),
            "tolerations": Items(OPEN),
        },
        open=True,
    ),
    status=Struct(
        {
            "phase": STRING,
            "podIP": STRING,
            "hostIP": STRING,
            "podIPs": _named(Struct({"ip": STRING}), "ip"),
            "hostIPs": Items(Struct({"ip": STRING})),
            "conditions": _CONDITIONS,
        },
        open=True,
    ),
)

NODE: Final = _object(
    spec=Struct(
        {"taints": Items(OPEN), "podCIDR": STRING, "podCIDRs": Items(STRING, unique=True)},
        open=True,
    ),
    status=Struct(
        {
            "addresses": _named(Struct({"type": STRING, "address": STRING}), "type"),
            "conditions": _CONDITIONS,
        },
        open=True,
    ),
)

NAMESPACE: Final = _object(
    spec=Struct({"finalizers": STRINGS}),
    status=Struct({"phase": STRING, "conditions": _CONDITIONS}),
)

CONFIG_MAP: Final = _object(data=STRING_MAP, binaryData=STRING_MAP, immutable=BOOLEAN)

LEASE: Final = _object(
    spec=Struct(
        {
            "holderIdentity": STRING,
            "leaseDurationSeconds": INTEGER,
            "acquireTime": STRING,
            "renewTime": STRING,
            "leaseTransitions": INTEGER,
            "strategy": STRING,
            "preferredHolder": STRING,
        }
    )
)

CUSTOM: Final = Struct({"apiVersion": STRING, "kind": STRING, "metadata": METADATA}, open=True)


@dataclass(slots=True)
class Decoded:
    """What `decode` found: the first type error (fatal), every unknown field, any null."""

    type_error: str = ""
    nulls: bool = False
    unknown: list[str] = field(default_factory=list)


_JSON_NAMES = {
    str: "string",
    int: "number",
    float: "number",
    bool: "bool",
    list: "array",
    dict: "object",
}


def decode(value: Any, node: Node, found: Decoded, path: str = "") -> Any:
    """`value` without unknown fields and nulls; complaints are added to `found`. Go: strict and lax
    JSON decoding.
    """
    match node:
        case Struct():
            return _decode_struct(value, node, found, path)
        case Mapping():
            if not isinstance(value, dict):
                return _mismatch(value, "map[string]string", found, path)
            return {
                key: decode(item, node.value, found, f"{path}.{key}") for key, item in value.items()
            }
        case Items():
            if not isinstance(value, list):
                return _mismatch(value, "[]", found, path)
            return [
                decode(item, node.item, found, f"{path}[{at}]") for at, item in enumerate(value)
            ]
        case Scalar():
            if value is None:
                found.nulls = True
                return node.types[0]()
            if isinstance(value, bool) and bool not in node.types:
                return _mismatch(value, node.go, found, path)
            return (
                value if isinstance(value, node.types) else _mismatch(value, node.go, found, path)
            )
        case Anything():
            return value


def _decode_struct(value: Any, node: Struct, found: Decoded, path: str) -> Any:
    if not isinstance(value, dict):
        return _mismatch(value, "struct", found, path)
    kept = {}
    for key, item in value.items():
        child = f"{path}.{key}" if path else key
        known = node.fields.get(key)
        if known is not None:
            if item is None:
                found.nulls = True
            else:
                kept[key] = decode(item, known, found, child)
        elif node.open:
            kept[key] = item
        else:
            found.unknown.append(child)
    return kept


def _mismatch(value: Any, wanted: str, found: Decoded, path: str) -> Any:
    if not found.type_error:
        got = _JSON_NAMES.get(type(value), "null")
        found.type_error = (
            f"json: cannot unmarshal {got} into Go struct field .{path} of type {wanted}"
        )
    return value

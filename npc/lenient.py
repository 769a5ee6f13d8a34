"""Reads an object of which some fields have the wrong type: those that have not, count.

An object that is ignored is an open pod, or a policy that nobody enforces. So each field is judged
by itself: ``null`` is as good as absent, as it is for the API server; where text is due, anything
else is taken as its JSON text; what remains is left out, and said. This takes many times longer
than to decode a good object, so it is for those alone that the decoder refused.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

S = TypeVar("S", bound=msgspec.Struct)

_ABSENT = object()
_SHOWN = 60

_NAMES: dict[type[inspect.Type], str] = {
    inspect.StructType: "an object",
    inspect.DictType: "an object",
    inspect.ListType: "a list",
    inspect.IntType: "a whole number",
    inspect.BoolType: "true or false",
}


class Fault(msgspec.Struct, frozen=True, gc=False):
    """A field of the wrong type: its path, such as ``spec.hostNetwork``, and what was done."""

    field: str
    message: str


def read(raw: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[S]) -> tuple[S, tuple[Fault, ...]]:
    """Read what can be read of an object that the decoder refused, and say what cannot.

    :raises msgspec.DecodeError: if it is not JSON, no object, or has no metadata
    """
    faults: list[Fault] = []
    value = _read(msgspec.json.decode(raw), inspect.type_info(decoder.type), "", faults)
    return msgspec.convert(value, decoder.type), tuple(faults)


def _read(value: Any, kind: inspect.Type, path: str, faults: list[Fault]) -> Any:
    """The part of a value that ``kind`` has room for, or ``_ABSENT``."""
    match kind:
        case inspect.UnionType():
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
            return _read(value, kind, path, faults)
        case inspect.AnyType():
            return value
        case _ if value is None:
            return _ABSENT
        case inspect.StructType() if isinstance(value, dict):
            names = {one.encode_name: one.type for one in kind.fields}
            return _read_items({k: v for k, v in value.items() if k in names}, names, path, faults)
        case inspect.DictType() if isinstance(value, dict):
            return _read_items(value, dict.fromkeys(value, kind.value_type), path, faults)
        case inspect.ListType() if isinstance(value, list):
            items = [
                _read(item, kind.item_type, f"{path}[{i}]", faults) for i, item in enumerate(value)
            ]
            return [item for item in items if item is not _ABSENT]
        case inspect.StrType():
            if not isinstance(value, str):
                value = msgspec.json.encode(value).decode()
                faults.append(Fault(path, f"{_short(value)} is not text; taken as if it were"))
            return value
        case inspect.BoolType() if isinstance(value, bool):
            return value
        case inspect.IntType() if isinstance(value, int) and not isinstance(value, bool):
            return value
    text = _short(msgspec.json.encode(value).decode())
    faults.append(Fault(path, f"{text} is not {_NAMES[type(kind)]}; left out"))
    return _ABSENT


def _read_items(
    value: dict[str, Any], kinds: dict[str, inspect.Type], path: str, faults: list[Fault]
) -> dict[str, Any]:
    found = {
        name: _read(item, kinds[name], f"{path}.{name}".lstrip("."), faults)
        for name, item in value.items()
    }
    return {name: item for name, item in found.items() if item is not _ABSENT}


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."

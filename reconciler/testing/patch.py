"""The three client-driven patches: JSON patch (RFC 6902), JSON merge patch (RFC 7386), strategic
merge patch.

Each function returns a new object and leaves its arguments alone. Server-side apply is in
`managed.py`.
"""

from __future__ import annotations

from typing import Any

from reconciler.testing import schema
from reconciler.testing.errors import ApiError, bad_request
from reconciler.testing.objects import Object, clone


def merge(target: Any, patch: Any) -> Any:
    """JSON merge patch: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return clone(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


# --- JSON patch


def json_patch(target: Object, operations: Any) -> Any:
    """JSON patch. Raises `ApiError`: 400 if it is malformed, 422 if it does not fit the object."""
    if not isinstance(operations, list):
        raise bad_request("json: cannot unmarshal object into Go value of type jsonpatch.Patch")
    result = clone(target)
    for operation in operations:
        if not isinstance(operation, dict):
            raise bad_request("json: cannot unmarshal into Go value of type jsonpatch.Operation")
        try:
            result = _operate(result, operation)
        except (LookupError, TypeError, ValueError) as error:
            raise _unprocessable(f"{error}") from None
    return result


def _unprocessable(message: str) -> ApiError:
    return ApiError(
        422, f"the server rejected our request due to an error in our request: {message}"
    )


def _operate(document: Any, operation: Object) -> Any:
    kind = operation.get("op")
    path = _pointer(operation.get("path"))
    match kind:
        case "add":
            return _set(document, path, clone(operation["value"]), insert=True)
        case "replace":
            _get(document, path)
            return _set(document, path, clone(operation["value"]), insert=False)
        case "remove":
            return _remove(document, path)
        case "move":
            source = _pointer(operation.get("from"))
            value = _get(document, source)
            return _set(_remove(document, source), path, value, insert=True)
        case "copy":
            value = clone(_get(document, _pointer(operation.get("from"))))
            return _set(document, path, value, insert=True)
        case "test":
            try:
                found = _get(document, path)
            except LookupError:
                found = None
            if found != operation.get("value"):
                raise ValueError(f"testing value {operation.get('path')} failed")
            return document
        case _:
            raise ValueError(f"Unexpected kind: {kind}")


def _pointer(path: Any) -> list[str]:
    if not isinstance(path, str) or (path and not path.startswith("/")):
        raise ValueError(f"invalid path {path!r}")
    return [part.replace("~1", "/").replace("~0", "~") for part in path.split("/")[1:]]


def _index(items: list[Any], part: str, *, end: bool) -> int:
    at = len(items) if part == "-" and end else int(part)
    if not 0 <= at < len(items) + int(end):
        raise LookupError(f"index {part} is out of bounds")
    return at


def _missing(path: list[str]) -> LookupError:
    return LookupError(f"path /{'/'.join(path)} does not exist: missing value")


def _get(document: Any, path: list[str]) -> Any:
    for part in path:
        if isinstance(document, dict):
            if part not in document:
                raise _missing(path)
            document = document[part]
        elif isinstance(document, list):
            document = document[_index(document, part, end=False)]
        else:
            raise _missing(path)
    return document


def _set(document: Any, path: list[str], value: Any, *, insert: bool) -> Any:
    if not path:
        return value
    parent = _get(document, path[:-1])
    if isinstance(parent, list):
        at = _index(parent, path[-1], end=insert)
        if insert:
            parent.insert(at, value)
        else:
            parent[at] = value
    elif isinstance(parent, dict):
        parent[path[-1]] = value
    else:
        raise _missing(path)
    return document


def _remove(document: Any, path: list[str]) -> Any:
    if not path:
        raise ValueError("the whole document cannot be removed")
    parent = _get(document, path[:-1])
    _get(document, path)
    if isinstance(parent, list):
        del parent[_index(parent, path[-1], end=False)]
    else:
        del parent[path[-1]]
    return document


# --- strategic merge patch

_ORDER = "$setElementOrder/"
_DELETE = "$deleteFromPrimitiveList/"


def strategic(target: Object, patch: Any, node: schema.Node) -> Object:
    """Strategic merge patch of an object described by `node`. Raises `ApiError` 400 if it is
    malformed.

    Go: `strategicpatch.StrategicMergeMapPatch`, with `$patch`, `$retainKeys`, `$setElementOrder`,
    `$deleteFromPrimitiveList`.
    """
    if not isinstance(patch, dict):
        raise bad_request("json: cannot unmarshal into Go value of type map[string]interface {}")
    match patch.get("$patch"):
        case None | "merge":
            result = dict(target)
        case "replace":
            return {key: clone(value) for key, value in patch.items() if key != "$patch"}
        case "delete":
            return {}
        case other:
            raise bad_request(f"unrecognized $patch directive: {other}")
    retain = patch.get("$retainKeys")
    if isinstance(retain, list):
        result = {key: value for key, value in result.items() if key in retain}
    for key, value in patch.items():
        if key.startswith(_DELETE):
            name = key.removeprefix(_DELETE)
            result[name] = [item for item in result.get(name) or [] if item not in value]
        elif not key.startswith("$"):
            _merge_field(result, key, value, _child(node, key))
    for key, value in patch.items():
        if key.startswith(_ORDER):
            name = key.removeprefix(_ORDER)
            if result.get(name):
                result[name] = _reorder(result[name], value, _child(node, name))
    return result


def _child(node: schema.Node, key: str) -> schema.Node:
    if isinstance(node, schema.Struct):
        return node.fields.get(key, schema.ANY)
    if isinstance(node, schema.Mapping):
        return node.value
    return schema.ANY


def _merge_field(result: Object, key: str, value: Any, node: schema.Node) -> None:
    if value is None:
        result.pop(key, None)
    elif isinstance(value, dict):
        old = result.get(key)
        result[key] = strategic(old if isinstance(old, dict) else {}, value, node)
    elif isinstance(value, list) and isinstance(node, schema.Items) and node.merge_key:
        result[key] = _merge_items(result.get(key) or [], value, node)
    elif isinstance(value, list) and isinstance(node, schema.Items) and node.unique:
        old = list(result.get(key) or [])
        result[key] = old + [item for item in value if item not in old]
    else:
        result[key] = clone(value)


def _merge_items(old: list[Any], patch: list[Any], node: schema.Items) -> list[Any]:
    name = node.merge_key
    replace = any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch)
    items = [] if replace else list(old)
    for item in patch:
        if not isinstance(item, dict):
            raise bad_request(f"map: {patch} does not contain declared merge key: {name}")
        if item.get("$patch") == "replace":
            continue
        if name not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {name}")
        place = next((at for at, entry in enumerate(items) if entry.get(name) == item[name]), None)
        if item.get("$patch") == "delete":
            items = [entry for entry in items if entry.get(name) != item[name]]
        elif place is None:
            items.append(strategic({}, item, node.item))
        else:
            items[place] = strategic(items[place], item, node.item)
    return items


def _reorder(items: list[Any], order: list[Any], node: schema.Node) -> list[Any]:
    """The items that `order` names, in its order; each other one keeps its place."""
    name = node.merge_key if isinstance(node, schema.Items) else ""

    def identity(item: Any) -> Any:
        return item.get(name) if name and isinstance(item, dict) else item

    wanted = [identity(item) for item in order]
    named = sorted(
        (item for item in items if identity(item) in wanted),
        key=lambda item: wanted.index(identity(item)),
    )
    for at, item in enumerate(items):
        if identity(item) not in wanted:
            named.insert(min(at, len(named)), item)
    return named

"""Server-side apply: who owns which field, and what an applied configuration does to an object.

A field is a path, a tuple of `FieldsV1` elements: `f:spec`, `k:{"name":"app"}` (a list element by
its keys), `v:"x"` (an element of a set), `.` (the element itself). A manager owns a set of paths.
Applying merges the configuration into the object, refuses to change what somebody else owns unless
forced, and removes what the manager owned and no longer mentions.

Ownership is tracked from an object's first server-side apply on; the fields it has by then belong
to `before-first-apply`, as in Kubernetes for objects from before that feature. (The real server
also tracks plain updates from the start.)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from reconciler.testing import schema
from reconciler.testing.errors import ApiError, bad_request
from reconciler.testing.objects import Object, clone

if TYPE_CHECKING:
    from collections.abc import Iterator

Path = tuple[str, ...]

_IDENTITY: Final = ("name", "namespace", "generateName")
_SERVER_SIDE: Final = (
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "selfLink",
)
_ITSELF: Final = "."


@dataclass(slots=True)
class Owner:
    """One entry of `metadata.managedFields`."""

    manager: str
    operation: str
    api_version: str
    subresource: str = ""
    time: str = ""
    fields: set[Path] = field(default_factory=set)


def without_noise(obj: Object) -> Object:
    """`obj` without resourceVersion and the times in managedFields: equal means that a write
    changed nothing.
    """
    meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    if "managedFields" in meta:
        meta["managedFields"] = [
            {key: value for key, value in entry.items() if key != "time"}
            if isinstance(entry, dict)
            else entry
            for entry in meta["managedFields"]
        ]
    return {**obj, "metadata": meta}


# --- field sets


def _child(node: schema.Node, key: str) -> schema.Node:
    if isinstance(node, schema.Struct):
        return node.fields.get(key, schema.ANY)
    return node.value if isinstance(node, schema.Mapping) else schema.ANY


def _element(item: Any, node: schema.Items) -> str:
    """How a list element is named in a path."""
    if node.unique or not isinstance(item, dict):
        return "v:" + json.dumps(item)
    found = {key: item.get(key, "TCP" if key == "protocol" else None) for key in node.keys}
    return "k:" + json.dumps({key: found[key] for key in sorted(found)}, separators=(",", ":"))


def leaves(value: Any, node: schema.Node, at: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every field that can have an owner, with its value."""
    if isinstance(value, dict) and value and not (isinstance(node, schema.Struct) and node.atomic):
        for key, item in value.items():
            yield from leaves(item, _child(node, key), (*at, f"f:{key}"))
    elif isinstance(value, list) and isinstance(node, schema.Items) and (node.keys or node.unique):
        for item in value:
            path = (*at, _element(item, node))
            if node.unique:
                yield path, item
            else:
                yield (*path, _ITSELF), True
                yield from leaves(item, node.item, path)
    else:
        yield at, value


def _owned(config: Object, node: schema.Node) -> dict[Path, Any]:
    meta = {
        key: value
        for key, value in config["metadata"].items()
        if key not in (*_IDENTITY, *_SERVER_SIDE)
    }
    body = {
        key: value for key, value in config.items() if key not in ("apiVersion", "kind", "metadata")
    }
    if meta:
        body["metadata"] = meta
    return dict(leaves(body, node)) if body else {}


def to_fields(paths: set[Path]) -> Object:
    """Paths as a `FieldsV1` object."""
    tree: Object = {}
    for path in sorted(paths):
        place = tree
        for part in path:
            place = place.setdefault(part, {})
    return tree


def from_fields(tree: Any, at: Path = ()) -> set[Path]:
    """The paths of a `FieldsV1` object."""
    paths: set[Path] = set()
    for part, below in (tree or {}).items():
        path = (*at, part)
        if below:
            paths |= from_fields(below, path)
        else:
            paths.add(path)
    return paths


def _read(obj: Object) -> list[Owner]:
    return [
        Owner(
            entry.get("manager", ""),
            entry.get("operation", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
            entry.get("time", ""),
            from_fields(entry.get("fieldsV1")),
        )
        for entry in obj["metadata"].get("managedFields") or []
    ]


def _write(obj: Object, owners: list[Owner]) -> None:
    entries = []
    for owner in owners:
        if not owner.fields:
            continue
        entry = {
            "manager": owner.manager,
            "operation": owner.operation,
            "apiVersion": owner.api_version,
            "time": owner.time,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_fields(owner.fields),
        }
        if owner.subresource:
            entry["subresource"] = owner.subresource
        entries.append(entry)
    if entries:
        obj["metadata"]["managedFields"] = entries
    else:
        obj["metadata"].pop("managedFields", None)


def record_update(
    obj: Object, old: Object, manager: str, subresource: str, node: schema.Node, now: str
) -> None:
    """Give the fields that a plain update changed to `manager`; nobody else keeps them."""
    before, after = _owned(old, node), _owned(obj, node)
    owners = _read(obj)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    for owner in owners:
        owner.fields = {path for path in owner.fields if path in after and path not in changed}
    if changed:
        mine = next(
            (
                owner
                for owner in owners
                if (owner.manager, owner.operation, owner.subresource)
                == (manager, "Update", subresource)
            ),
            None,
        )
        if mine is None:
            mine = Owner(manager, "Update", obj["apiVersion"], subresource)
            owners.append(mine)
        mine.fields |= changed
        mine.time = now
    _write(obj, owners)


# --- apply


def apply(
    live: Object | None,
    config: Any,
    manager: str,
    node: schema.Node,
    *,
    force: bool,
    now: str,
    subresource: str = "",
) -> Object:
    """The object after `manager` applied `config`. Raises `ApiError`: 400, 409 with one cause per
    conflict.
    """
    if not isinstance(config, dict) or not isinstance(config.get("metadata", {}), dict):
        raise bad_request("the applied configuration is not an object")
    config = clone(config)
    meta = config.setdefault("metadata", {})
    if meta.get("managedFields"):
        raise bad_request("metadata.managedFields must be nil")
    version = meta.pop("resourceVersion", "")
    wanted = _owned(config, node)
    if live is None:
        _write(
            config,
            [Owner(manager, "Apply", config.get("apiVersion", ""), subresource, now, set(wanted))],
        )
        created: Object = config
        return created
    owners = _read(live)
    if not owners:
        owners = [
            Owner(
                "before-first-apply", "Update", live["apiVersion"], "", now, set(_owned(live, node))
            )
        ]
    mine = next(
        (
            owner
            for owner in owners
            if (owner.manager, owner.operation, owner.subresource)
            == (manager, "Apply", subresource)
        ),
        None,
    )
    others = [owner for owner in owners if owner is not mine]
    _settle_conflicts(wanted, _owned(live, node), others, force=force)
    result: Object = _merge(
        live,
        {key: value for key, value in config.items() if key not in ("apiVersion", "kind")},
        node,
    )
    if mine is not None:
        kept = set(wanted).union(*(owner.fields for owner in others))
        # Whole list elements first: once its keys are gone, an element cannot be found any more.
        for path in sorted(mine.fields - kept, key=lambda path: path[-1] != _ITSELF):
            if path[-1] != _ITSELF or not any(
                other[: len(path) - 1] == path[:-1] for other in kept
            ):
                _drop(result, path, node)
    else:
        mine = Owner(manager, "Apply", config.get("apiVersion", ""), subresource)
        owners.append(mine)
    if mine.fields != set(wanted):
        mine.fields, mine.time = set(wanted), now
    _write(result, owners)
    if version:
        result["metadata"]["resourceVersion"] = version
    return result


def _settle_conflicts(
    wanted: dict[Path, Any], live: dict[Path, Any], others: list[Owner], *, force: bool
) -> None:
    conflicts = [
        (owner, path)
        for owner in others
        for path in sorted(owner.fields)
        if path in wanted and path in live and live[path] != wanted[path]
    ]
    if not conflicts:
        return
    if force:
        for owner, path in conflicts:
            owner.fields.discard(path)
        return
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {_who(owner)}",
            "field": _spell(path),
        }
        for owner, path in conflicts
    ]
    if len(causes) == 1:
        text = f"1 conflict: {causes[0]['message']}: {causes[0]['field']}"
    else:
        fields: dict[str, str] = {}
        for owner, path in conflicts:
            fields[_who(owner)] = fields.get(_who(owner), "") + f"\n- {_spell(path)}"
        whom = "\n".join(f"conflicts with {who}:{paths}" for who, paths in fields.items())
        text = f"{len(causes)} conflicts: {whom}"
    raise ApiError(409, f"Apply failed with {text}", details={"causes": causes})


def _who(owner: Owner) -> str:
    """An owner as conflicts name it. Go: `printManager`."""
    text = f'"{owner.manager}"'
    if owner.subresource:
        text += f' with subresource "{owner.subresource}"'
    if owner.operation == "Update":
        text += f" using {owner.api_version}"
        if owner.time:
            text += f" at {owner.time}"
    return text


def _spell(path: Path) -> str:
    """A path as conflicts print it: `.spec.containers[name="app"].image`."""
    text = ""
    for part in path:
        kind, _, rest = part.partition(":")
        if kind == "f":
            text += f".{rest}"
        elif kind == "k":
            keys = json.loads(rest)
            text += (
                "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in keys.items()) + "]"
            )
        elif kind == "v":
            text += f"[={rest}]"
    return text


def _merge(live: Any, config: Any, node: schema.Node) -> Any:
    if (
        isinstance(config, dict)
        and isinstance(live, dict)
        and not (isinstance(node, schema.Struct) and node.atomic)
    ):
        result = clone(live)
        for key, value in config.items():
            result[key] = _merge(result.get(key), value, _child(node, key))
        return result
    if isinstance(config, list) and isinstance(live, list) and isinstance(node, schema.Items):
        if node.unique:
            return [*live, *(item for item in config if item not in live)]
        if node.keys:
            result = clone(live)
            places = {_element(item, node): at for at, item in enumerate(result)}
            for item in config:
                at = places.get(_element(item, node))
                if at is None:
                    result.append(clone(item))
                else:
                    result[at] = _merge(result[at], item, node.item)
            return result
    return clone(config)


def _drop(value: Any, path: Path, node: schema.Node) -> None:
    """Remove the field at `path`, and every object that this leaves empty."""
    part, rest = path[0], path[1:]
    if isinstance(value, dict) and part.startswith("f:"):
        key = part[2:]
        if key not in value:
            return
        if rest:
            _drop(value[key], rest, _child(node, key))
        if not rest or value[key] in ({}, []):
            del value[key]
    elif isinstance(value, list) and isinstance(node, schema.Items):
        at = next((at for at, item in enumerate(value) if _element(item, node) == part), None)
        if at is None:
            return
        if rest in ((), (_ITSELF,)):
            del value[at]
        else:
            _drop(value[at], rest, node.item)

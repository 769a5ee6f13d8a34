"""What `kubectl get` prints: the Table form of objects (server-side printing), and their metadata
alone.

A client asks for a form in its `Accept` header. `View` turns objects into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reconciler.testing.objects import Object
    from reconciler.testing.registry import Resource

META_V1: Final = "meta.k8s.io/v1"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its head, the value of a cell, and whether only `-o wide` shows it."""

    name: str
    cell: Callable[[Object], Any]
    wide: bool = False
    type: str = "string"

    def show(self, obj: Object) -> Any:
        """The cell for `obj`; an object that was let in unchecked must not spoil the table."""
        try:
            return self.cell(obj)
        except (AttributeError, TypeError, ValueError):
            return "<invalid>"


def _at(*path: str, default: Any = "<none>") -> Callable[[Object], Any]:
    def cell(obj: Object) -> Any:
        value: Any = obj
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return default if value in (None, "") else value

    return cell


def age(obj: Object) -> str:
    """How old the object is, as `kubectl` abbreviates it. Go: `duration.HumanDuration`."""
    created = obj["metadata"].get("creationTimestamp")
    if not created:
        return "<unknown>"
    then = datetime.fromisoformat(created)
    seconds = max(0, int((datetime.now(UTC) - then).total_seconds()))
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if seconds < 120:
        return f"{seconds}s"
    if minutes < 10:
        return f"{minutes}m{seconds % 60}s" if seconds % 60 else f"{minutes}m"
    if minutes < 180:
        return f"{minutes}m"
    if hours < 48:
        return f"{hours}h"
    return f"{days}d"


def _pod_status(obj: Object) -> str:
    if "deletionTimestamp" in obj["metadata"]:
        return "Terminating"
    return str(_at("status", "phase", default="Unknown")(obj))


def _pod_ready(obj: Object) -> str:
    containers = (obj.get("spec") or {}).get("containers") or []
    states = (obj.get("status") or {}).get("containerStatuses") or []
    ready = sum(1 for state in states if state.get("ready"))
    return f"{ready}/{len(containers)}"


def _restarts(obj: Object) -> str:
    states = (obj.get("status") or {}).get("containerStatuses") or []
    return str(sum(state.get("restartCount", 0) for state in states))


def _node_status(obj: Object) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or []
    ready = next(
        (item.get("status") for item in conditions if item.get("type") == "Ready"), "Unknown"
    )
    text = {"True": "Ready", "False": "NotReady"}.get(str(ready), "Unknown")
    cordoned = (obj.get("spec") or {}).get("unschedulable")
    return f"{text},SchedulingDisabled" if cordoned else text


def _node_roles(obj: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    roles = [
        key.removeprefix(prefix)
        for key in obj["metadata"].get("labels") or {}
        if key.startswith(prefix)
    ]
    return ",".join(sorted(roles)) or "<none>"


def _node_address(kind: str) -> Callable[[Object], str]:
    def cell(obj: Object) -> str:
        addresses = (obj.get("status") or {}).get("addresses") or []
        return next(
            (item.get("address", "") for item in addresses if item.get("type") == kind), "<none>"
        )

    return cell


def selector_text(selector: Any) -> str:
    """A label selector in one line. Go: `metav1.FormatLabelSelector`."""
    if not isinstance(selector, dict):
        return "<error>"
    terms = [f"{key}={value}" for key, value in sorted((selector.get("matchLabels") or {}).items())]
    for item in selector.get("matchExpressions") or []:
        key, operator = item.get("key"), item.get("operator")
        values = ",".join(item.get("values") or [])
        terms.append(
            {
                "In": f"{key} in ({values})",
                "NotIn": f"{key} notin ({values})",
                "Exists": f"{key}",
                "DoesNotExist": f"!{key}",
            }.get(operator, "<error>")
        )
    return ",".join(terms) or "<none>"


_NAME: Final = Column("Name", _at("metadata", "name"))
_AGE: Final = Column("Age", age)
_COLUMNS: Final[dict[tuple[str, str], tuple[Column, ...]]] = {
    ("", "pods"): (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _restarts),
        _AGE,
        Column("IP", _at("status", "podIP"), wide=True),
        Column("Node", _at("spec", "nodeName"), wide=True),
    ),
    ("", "namespaces"): (_NAME, Column("Status", _at("status", "phase")), _AGE),
    ("", "nodes"): (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _at("status", "nodeInfo", "kubeletVersion", default="")),
        Column("Internal-IP", _node_address("InternalIP"), wide=True),
    ),
    ("", "configmaps"): (
        _NAME,
        Column(
            "Data",
            lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {}),
            type="integer",
        ),
        _AGE,
    ),
    ("networking.k8s.io", "networkpolicies"): (
        _NAME,
        Column(
            "Pod-Selector",
            lambda obj: selector_text((obj.get("spec") or {}).get("podSelector", {})),
        ),
        _AGE,
    ),
    ("coordination.k8s.io", "leases"): (
        _NAME,
        Column("Holder", _at("spec", "holderIdentity", default="")),
        _AGE,
    ),
}


def _partial(obj: Object) -> Object:
    return {"kind": "PartialObjectMetadata", "apiVersion": META_V1, "metadata": obj["metadata"]}


@dataclass(frozen=True, slots=True)
class View:
    """The form a client asked for: empty (as they are), `Table`, `PartialObjectMetadata`."""

    form: str
    include: str = ""
    """For tables: `Object`, `Metadata` (when empty) or `None`: what each row carries beside its
    cells.
    """

    @property
    def plain(self) -> bool:
        """Whether objects go out as they are."""
        return not self.form

    def one(self, resource: Resource, obj: Object) -> Object:
        """The form of a single object."""
        match self.form:
            case "Table":
                return self._table(
                    resource, [obj], {"resourceVersion": obj["metadata"].get("resourceVersion", "")}
                )
            case "PartialObjectMetadata":
                return _partial(obj)
            case _:
                return obj

    def many(self, resource: Resource, objects: Iterable[Object], meta: Object) -> Object:
        """The form of a list with the list metadata `meta`; not for the plain form."""
        if self.form == "Table":
            return self._table(resource, objects, meta)
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": META_V1,
            "metadata": meta,
            "items": [_partial(obj) for obj in objects],
        }

    def _table(self, resource: Resource, objects: Iterable[Object], meta: Object) -> Object:
        columns = _COLUMNS.get(resource.key, (_NAME, _AGE))
        rows = []
        for obj in objects:
            row: Object = {"cells": [column.show(obj) for column in columns]}
            if self.include != "None":
                row["object"] = obj if self.include == "Object" else _partial(obj)
            rows.append(row)
        return {
            "kind": "Table",
            "apiVersion": META_V1,
            "metadata": meta,
            "columnDefinitions": [
                {
                    "name": column.name,
                    "type": column.type,
                    "format": "name" if column is _NAME else "",
                    "description": "",
                    "priority": int(column.wide),
                }
                for column in columns
            ],
            "rows": rows,
        }


def view(accept: str, include: str = "") -> View:
    """The view that an `Accept` header prefers; `include` is the `includeObject` parameter."""
    for part in accept.split(","):
        options = dict(item.strip().split("=", 1) for item in part.split(";")[1:] if "=" in item)
        wanted = options.get("as", "")
        if wanted == "Table" and options.get("v", "v1") == "v1":
            return View("Table", include)
        if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return View("PartialObjectMetadata")
        if not wanted and part.split(";")[0].strip() in ("application/json", "*/*"):
            break
    return View("")

"""What a request says: its verb, its options, its body.

Whatever cannot be understood is refused with an `ApiError` of 4xx.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from reconciler.testing import errors, protobuf
from reconciler.testing.objects import encode
from reconciler.testing.selectors import Selector, parse_fields, parse_labels
from reconciler.testing.tables import View, view
from reconciler.testing.writes import Options

if TYPE_CHECKING:
    from collections.abc import Callable

    from reconciler.testing.registry import Registry, Resource
    from reconciler.testing.wire import Request

_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a URL points at."""

    resource: Resource
    namespace: str
    name: str
    subresource: str


def target_of(request: Request, registry: Registry) -> Target | None:
    """The resource behind the path; None if the path is of no resource. Raises `ApiError` 404."""
    parts = request.path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    namespace = ""
    if (
        rest[0] == "namespaces"
        and len(rest) > 2
        and (group or rest[2] not in ("status", "finalize"))
    ):
        namespace, rest = rest[1], rest[2:]
    resource = registry.at(group, version, rest[0])
    name = rest[1] if len(rest) > 1 else ""
    subresource = rest[2] if len(rest) > 2 else ""
    if len(rest) > 3 or (subresource and not (subresource == "status" and resource.status)):
        raise errors.no_such_path()
    if resource.namespaced != bool(namespace) and (namespace or name):
        raise errors.no_such_path()
    return Target(resource, namespace, name, subresource)


def selector_of(request: Request, target: Target) -> Selector:
    """Label and field selector. Raises `ApiError` 400."""
    resource = target.resource
    kind = f"{resource.api_version}, Kind={resource.kind}"
    terms = parse_fields(request.query.get("fieldSelector", ""), resource.fields, kind)
    return Selector(parse_labels(request.query.get("labelSelector", "")), terms)


def verbs_of(request: Request, target: Target) -> tuple[str, ...]:
    """What the request is, from the general to the specific. Raises `ApiError` 405."""
    if request.method == "GET":
        if target.name:
            return ("get",)
        if request.flag("watch"):
            return ("watch", "watchlist") if request.flag("sendInitialEvents") else ("watch",)
        return ("list", "continue") if request.query.get("continue") else ("list",)
    verb = _VERBS.get(request.method)
    if verb == "delete" and not target.name:
        return ("deletecollection",)
    if verb is None or (verb == "create") == bool(target.name):
        raise errors.not_allowed()
    if target.subresource and verb not in ("update", "patch"):
        raise errors.not_allowed()
    if verb == "create" and target.resource.namespaced and not target.namespace:
        raise errors.not_allowed()
    return (verb,)


def options_of(request: Request, *, applied: bool = False, dry_run: bool = False) -> Options:
    """How the client wants its write to be taken."""
    agent = request.headers.get("user-agent", "").split("/")[0]
    return Options(
        strict=request.query.get("fieldValidation") == "Strict",
        dry_run=dry_run or request.query.get("dryRun") == "All",
        manager=request.query.get("fieldManager") or agent or "unknown",
        applied=applied,
    )


def view_of(request: Request) -> View:
    """The form that the client wants objects in."""
    return view(request.headers.get("accept", ""), request.query.get("includeObject", ""))


def whole_number(request: Request, name: str) -> int:
    """A numeric parameter; 0 when absent. Raises `ApiError` 400."""
    text = request.query.get(name, "") or "0"
    if not text.isdecimal():
        raise errors.bad_request(f'{name}: Invalid value: "{text}": must be a number')
    return int(text)


def version_of(request: Request) -> str:
    """`resourceVersion`: empty, or decimal. Raises `ApiError` 400."""
    text = request.query.get("resourceVersion", "")
    if text and not text.isdecimal():
        raise errors.bad_request(f'resourceVersion: Invalid value: "{text}": must be a number')
    return text


class _JsonTypes(yaml.SafeLoader):
    """YAML with the types of JSON: what looks like a time stays a string."""


_JsonTypes.yaml_implicit_resolvers = {
    first: [entry for entry in resolvers if entry[0] != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def _read_yaml(text: bytes) -> Any:
    return yaml.load(text, Loader=_JsonTypes)  # noqa: S506 - a SafeLoader


def body_of(request: Request, *, anything: bool = False) -> Any:
    """The decoded body: JSON, or YAML if it says so. Raises `ApiError`: 400, 415."""
    kind = request.headers.get("content-type", "application/json").split(";")[0].strip()
    if kind.endswith("yaml"):
        decode: Callable[[bytes], Any] = _read_yaml
    elif kind.endswith("json") or kind in ("*/*", ""):
        decode = json.loads
    elif kind == protobuf.MEDIA_TYPE:
        decode = protobuf.decode
    else:
        raise errors.unknown_format(("application/json", "application/yaml"), kind)
    try:
        body = decode(request.body)
    except protobuf.UnknownKind as error:
        raise errors.unknown_format(("application/json", "application/yaml"), f"{error}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise errors.bad_request(f"couldn't parse the request body: {error}") from None
    if not anything and not isinstance(body, dict):
        raise errors.bad_request("the request body is not an object")
    return body


def write_token(version: int, path: str) -> str:
    """A continue token: go on after `path` in the state of `version`."""
    return base64.urlsafe_b64encode(
        encode({"v": "meta.k8s.io/v1", "rv": version, "start": path})
    ).decode()


def read_token(token: str) -> tuple[int, str]:
    """Version and path of a continue token. Raises `ApiError` 400."""
    try:
        fields = json.loads(base64.urlsafe_b64decode(token))
        return int(fields["rv"]), str(fields["start"])
    except (binascii.Error, ValueError, LookupError, TypeError):
        raise errors.bad_request("continue key is not valid") from None

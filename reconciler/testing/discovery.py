"""How clients find out what the server offers: API groups, resources, version, OpenAPI.

Discovery comes in two forms: the old one, a document per group version, and the aggregated one, two
documents for all. The OpenAPI documents describe only what clients act upon: that patches and
writes understand `fieldValidation`, so that `kubectl` leaves the checking of manifests to the
server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reconciler.testing.objects import Object
    from reconciler.testing.registry import Registry, Resource

VERSION: Final[Object] = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.0+fullsync",
    "gitCommit": "",
    "gitTreeState": "",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}
AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_VERBS: Final = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_STATUS_VERBS: Final = ["get", "patch", "update"]


def wants_aggregated(accept: str) -> bool:
    """Whether the client understands aggregated discovery."""
    return "as=APIGroupDiscoveryList" in accept and "v=v2;" in accept.replace(" ", "") + ";"


def _of_group(registry: Registry, group: str) -> list[Resource]:
    return [resource for resource in registry if resource.group == group]


def _groups(registry: Registry) -> dict[str, list[str]]:
    """Named groups and their versions."""
    groups: dict[str, list[str]] = {}
    for resource in registry:
        versions = groups.setdefault(resource.group, [])
        if resource.version not in versions:
            versions.append(resource.version)
    return groups


def aggregated(registry: Registry, *, core: bool) -> Object:
    """`APIGroupDiscoveryList`: of the core group (`/api`) or of all named groups (`/apis`)."""
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": "apidiscovery.k8s.io/v2",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": group} if group else {},
                "versions": [
                    {
                        "version": version,
                        "freshness": "Current",
                        "resources": [
                            _discovered(resource)
                            for resource in _of_group(registry, group)
                            if resource.version == version
                        ],
                    }
                    for version in versions
                ],
            }
            for group, versions in _groups(registry).items()
            if (group == "") == core
        ],
    }


def _kind(resource: Resource) -> Object:
    return {"group": resource.group, "version": resource.version, "kind": resource.kind}


def _discovered(resource: Resource) -> Object:
    scope = "Namespaced" if resource.namespaced else "Cluster"
    found: Object = {
        "resource": resource.plural,
        "responseKind": _kind(resource),
        "scope": scope,
        "singularResource": resource.singular,
        "verbs": _VERBS,
        "shortNames": list(resource.short_names),
        "categories": list(resource.categories),
    }
    if resource.status:
        found["subresources"] = [
            {"subresource": "status", "responseKind": _kind(resource), "verbs": _STATUS_VERBS}
        ]
    return found


def api_versions() -> Object:
    """The old form of `/api`."""
    return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}


def group_list(registry: Registry) -> Object:
    """The old form of `/apis`."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [
            _group(group, versions) for group, versions in _groups(registry).items() if group
        ],
    }


def _group(group: str, versions: Iterable[str]) -> Object:
    entries = [{"groupVersion": f"{group}/{version}", "version": version} for version in versions]
    return {"name": group, "versions": entries, "preferredVersion": entries[0]}


def one_group(registry: Registry, group: str) -> Object | None:
    """`/apis/GROUP`, or None if there is no such group."""
    versions = _groups(registry).get(group)
    if not group or not versions:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(group, versions)}


def resource_list(registry: Registry, group: str, version: str) -> Object | None:
    """`/api/v1` or `/apis/GROUP/VERSION` in the old form, or None."""
    resources = [item for item in _of_group(registry, group) if item.version == version]
    if not resources:
        return None
    entries: list[Object] = []
    for resource in resources:
        entry = {
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": _VERBS,
            "shortNames": list(resource.short_names),
            "categories": list(resource.categories),
        }
        entries.append(entry)
        if resource.status:
            entries.append(
                {
                    "name": f"{resource.plural}/status",
                    "singularName": "",
                    "namespaced": resource.namespaced,
                    "kind": resource.kind,
                    "verbs": _STATUS_VERBS,
                }
            )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": resources[0].api_version,
        "resources": entries,
    }


# --- OpenAPI


def _prefix(group: str, version: str) -> str:
    return f"apis/{group}/{version}" if group else f"api/{version}"


def openapi_index(registry: Registry) -> Object:
    """`/openapi/v3`."""
    return {
        "paths": {
            _prefix(group, version): {"serverRelativeURL": f"/openapi/v3/{_prefix(group, version)}"}
            for group, versions in _groups(registry).items()
            for version in versions
        }
    }


def openapi(registry: Registry, prefix: str) -> Object | None:
    """`/openapi/v3/PREFIX`, or None."""
    resources = [item for item in registry if _prefix(item.group, item.version) == prefix]
    if not resources:
        return None
    paths: Object = {}
    schemas: Object = {}
    for resource in resources:
        scope = "/namespaces/{namespace}" if resource.namespaced else ""
        base = f"/{prefix}{scope}/{resource.plural}"
        kind = [_kind(resource)]
        paths[base] = {"post": _operation("post", kind)}
        paths[f"{base}/{{name}}"] = {
            verb: _operation(verb, kind) for verb in ("get", "put", "patch", "delete")
        }
        schemas[f"{resource.group or 'core'}.{resource.version}.{resource.kind}"] = {
            "type": "object",
            "x-kubernetes-group-version-kind": kind,
        }
    return {
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": VERSION["gitVersion"]},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def _operation(verb: str, kind: list[Object]) -> Any:
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string"}}
        for name in ("dryRun", "fieldManager", "fieldValidation")
        if verb in ("post", "put", "patch")
    ]
    return {
        "x-kubernetes-action": verb,
        "x-kubernetes-group-version-kind": kind[0],
        "parameters": parameters,
        "responses": {"200": {"description": "OK"}},
    }

"""Which resources exist: the built-in ones, and what a caller registers.

A `Resource` says everything that differs between kinds: names, scope, subresource, schema,
defaults, validation. The rest of the server is the same code for all.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reconciler.testing import defaults, schema, validation
from reconciler.testing.errors import no_such_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from reconciler.testing.errors import FieldError
    from reconciler.testing.objects import Object

_COMMON_FIELDS = ("metadata.name", "metadata.namespace")


@dataclass(frozen=True, slots=True)
class Resource:
    """One kind of object and its REST name.

    A custom resource needs `group`, `version`, `plural` and `kind`; `status=True` gives it a status
    subresource.
    """

    group: str
    """Empty for the core group."""
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    status: bool = False
    """Whether `/status` exists; then writes to the object leave `status` alone, and the other way
    round.
    """
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    fields: tuple[str, ...] = _COMMON_FIELDS
    """The field selectors that the resource supports."""
    generation: bool = True
    """Whether `metadata.generation` counts changes outside `metadata` and `status`."""
    builtin: bool = False
    """Built-in kinds take strategic merge patches; custom ones refuse them (415)."""
    schema: schema.Struct = schema.CUSTOM
    set_defaults: Callable[[Object], None] | None = None
    validate: Callable[[Object, Object | None], list[FieldError]] | None = None
    reset_status: Object | None = field(default=None, hash=False)
    """What `status` becomes when a client creates the object; None keeps what the client sent."""

    @property
    def api_version(self) -> str:
        """`v1`, or `networking.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def singular(self) -> str:
        """The kind in lower case."""
        return self.kind.lower()

    @property
    def key(self) -> tuple[str, str]:
        """Group and plural: what storage is filed under."""
        return self.group, self.plural

    def initial_status(self) -> Object | None:
        """A fresh copy of `reset_status`."""
        return None if self.reset_status is None else {**self.reset_status}


BUILTIN: tuple[Resource, ...] = (
    Resource(
        "",
        "v1",
        "configmaps",
        "ConfigMap",
        short_names=("cm",),
        generation=False,
        builtin=True,
        schema=schema.CONFIG_MAP,
        validate=validation.config_map,
    ),
    Resource(
        "",
        "v1",
        "namespaces",
        "Namespace",
        namespaced=False,
        status=True,
        short_names=("ns",),
        fields=("metadata.name", "status.phase"),
        generation=False,
        builtin=True,
        schema=schema.NAMESPACE,
        set_defaults=defaults.namespace,
        reset_status={"phase": "Active"},
    ),
    Resource(
        "",
        "v1",
        "nodes",
        "Node",
        namespaced=False,
        status=True,
        short_names=("no",),
        fields=("metadata.name", "spec.unschedulable"),
        generation=False,
        builtin=True,
        schema=schema.NODE,
        set_defaults=defaults.node,
    ),
    Resource(
        "",
        "v1",
        "pods",
        "Pod",
        status=True,
        short_names=("po",),
        categories=("all",),
        fields=(
            *_COMMON_FIELDS,
            "spec.nodeName",
            "spec.restartPolicy",
            "status.phase",
            "status.podIP",
        ),
        builtin=True,
        schema=schema.POD,
        set_defaults=defaults.pod,
        validate=validation.pod,
        reset_status={"phase": "Pending", "qosClass": "BestEffort"},
    ),
    Resource(
        "networking.k8s.io",
        "v1",
        "networkpolicies",
        "NetworkPolicy",
        short_names=("netpol",),
        builtin=True,
        schema=schema.NETWORK_POLICY,
        set_defaults=defaults.network_policy,
        validate=validation.network_policy,
    ),
    Resource(
        "coordination.k8s.io",
        "v1",
        "leases",
        "Lease",
        generation=False,
        builtin=True,
        schema=schema.LEASE,
        set_defaults=defaults.lease,
        validate=validation.lease,
    ),
)


class Registry:
    """The resources of one server. Registering happens at set-up; reading is lock-free."""

    def __init__(self) -> None:
        self._by_key = {resource.key: resource for resource in BUILTIN}

    def add(self, resource: Resource) -> None:
        """Register a custom resource. Raises `ValueError` if the name is taken."""
        if resource.key in self._by_key:
            raise ValueError(f"{resource.plural} of group {resource.group!r} is registered already")
        self._by_key = {**self._by_key, resource.key: resource}

    def __iter__(self) -> Iterator[Resource]:
        return iter(sorted(self._by_key.values(), key=lambda resource: resource.key))

    def at(self, group: str, version: str, plural: str) -> Resource:
        """The resource behind a URL. Raises `ApiError` 404."""
        resource = self._by_key.get((group, plural))
        if resource is None or resource.version != version:
            raise no_such_path()
        return resource

    def named(self, name: str) -> Resource:
        """By plural, `plural.group`, kind or short name. Raises `LookupError`."""
        wanted = name.lower()
        for resource in self:
            names = {resource.plural, resource.singular, *resource.short_names}
            if wanted in names or wanted == f"{resource.plural}.{resource.group}":
                return resource
        raise LookupError(f"no resource is called {name!r}")

    def of(self, obj: Object) -> Resource:
        """By `apiVersion` and `kind`. Raises `LookupError`."""
        for resource in self:
            if (obj.get("apiVersion"), obj.get("kind")) == (resource.api_version, resource.kind):
                return resource
        raise LookupError(
            f"no resource has apiVersion {obj.get('apiVersion')!r} and kind {obj.get('kind')!r}"
            "; ApiServer.add_resource registers a custom one"
        )

"""What create, update and delete mean: metadata, generation, concurrency, finalizers, the life of a
namespace.

Each verb reads, decides and commits under the storage's lock, so no write is ever lost between two
clients. Go: `registry/generic/registry.Store` and the strategies of the built-in kinds.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from reconciler.testing import errors, managed, validation
from reconciler.testing.objects import Object, clone, timestamp
from reconciler.testing.schema import Decoded, decode
from reconciler.testing.storage import ADDED, DELETED, MODIFIED, Storage, Stored

if TYPE_CHECKING:
    from collections.abc import Callable

    from reconciler.testing.registry import Registry, Resource

SYSTEM_NAMESPACES: Final = ("default", "kube-node-lease", "kube-public", "kube-system")
_PERMANENT: Final = ("default", "kube-public", "kube-system")
_SUFFIX: Final = "bcdfghjklmnpqrstvwxz2456789"
_NAMESPACES: Final = ("", "namespaces")


@dataclass(frozen=True, slots=True)
class Options:
    """How a write is to be taken."""

    trusted: bool = False
    """The caller is the test, not a client: `status` is kept as given, and what older servers let
    in is let in.
    """
    validate: bool = True
    """False lets malformed objects in."""
    strict: bool = False
    """Unknown fields are an error (`fieldValidation=Strict`) instead of being dropped."""
    dry_run: bool = False
    applied: bool = False
    """A server-side apply: the object comes with its `managedFields`."""
    manager: str = "testing"
    """Who owns the changed fields of an object under server-side apply."""


_PLAIN: Final = Options()


def path_of(namespace: str, name: str) -> str:
    """Where storage files an object."""
    return f"{namespace}/{name}" if namespace else name


class Writes:
    """The write verbs over one storage."""

    def __init__(self, storage: Storage, registry: Registry, clock: Callable[[], float]) -> None:
        self._storage = storage
        self._registry = registry
        self._clock = clock

    def _now(self) -> str:
        return timestamp(self._clock())

    def get(self, resource: Resource, namespace: str, name: str) -> Stored:
        """The object. Raises `ApiError` 404."""
        stored = self._storage.get(resource.key, path_of(namespace, name))
        if stored is None:
            raise errors.not_found(resource.plural, resource.group, name)
        return stored

    # --- create

    def create(
        self, resource: Resource, namespace: str, obj: Any, options: Options = _PLAIN
    ) -> Stored:
        """Add `obj`. Raises `ApiError`: 400, 403, 404 (namespace), 409, 422."""
        obj = _decoded(resource, obj, options)
        meta = obj["metadata"]
        _place(resource, namespace, "", meta)
        if meta.get("resourceVersion") and not options.trusted:
            message = "resourceVersion should not be set on objects to be created"
            raise errors.ApiError(500, message)
        if meta.get("generateName") and not meta.get("name"):
            meta["name"] = meta["generateName"] + "".join(random.choices(_SUFFIX, k=5))  # noqa: S311
        for field in (
            "resourceVersion",
            "selfLink",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "generation",
        ):
            meta.pop(field, None)
        if not options.applied:
            meta.pop("managedFields", None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = self._now()
        if resource.generation:
            meta["generation"] = 1
        if resource.status and not options.trusted:
            status = resource.initial_status()
            if status is not None:
                obj["status"] = status
            elif not resource.builtin:
                obj.pop("status", None)
        _complete(resource, obj, None, options)
        with self._storage.lock:
            if options.validate:
                self._admit(resource, meta)
            path = path_of(meta.get("namespace", ""), meta["name"])
            if self._storage.get(resource.key, path) is not None:
                raise errors.already_exists(resource.plural, resource.group, meta["name"])
            return self._commit(resource, ADDED, path, obj, options)

    def _admit(self, resource: Resource, meta: Object) -> None:
        """A namespaced object needs a living namespace. Go: the NamespaceLifecycle admission
        plugin.
        """
        if not resource.namespaced:
            return
        namespace = meta["namespace"]
        home = self._storage.get(_NAMESPACES, namespace)
        if home is None:
            raise errors.not_found("namespaces", "", namespace)
        if "deletionTimestamp" in home.obj["metadata"]:
            why = (
                f"unable to create new content in namespace {namespace} because it is being "
                "terminated"
            )
            raise errors.forbidden(resource.plural, resource.group, meta["name"], why)

    # --- update

    def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        change: Callable[[Object], Any],
        *,
        subresource: str = "",
        options: Options = _PLAIN,
    ) -> Stored:
        """Replace the object by what `change` makes of it (it gets a copy). Raises `ApiError`: 400,
        404, 409, 422.

        A result that changes nothing writes nothing: no event, same resourceVersion.
        """
        with self._storage.lock:
            old = self.get(resource, namespace, name)
            obj = _decoded(resource, change(clone(old.obj)), options)
            _place(resource, namespace, name, obj["metadata"])
            _check_identity(resource, obj["metadata"], old.obj["metadata"], options)
            _keep_what_is_not_theirs(resource, obj, old.obj, subresource, options)
            _complete(resource, obj, old.obj, options)
            if managed.without_noise(obj) == managed.without_noise(old.obj):
                return old
            if resource.generation and _desired(obj) != _desired(old.obj):
                obj["metadata"]["generation"] = old.obj["metadata"].get("generation", 0) + 1
            if not options.applied and old.obj["metadata"].get("managedFields"):
                managed.record_update(
                    obj, old.obj, options.manager, subresource, resource.schema, self._now()
                )
            meta = obj["metadata"]
            if (
                "deletionTimestamp" in meta
                and not meta.get("finalizers")
                and resource.key != _NAMESPACES
            ):
                return self._remove(resource, old.path, obj, options)
            return self._commit(resource, MODIFIED, old.path, obj, options)

    # --- delete

    def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        options: Options = _PLAIN,
    ) -> tuple[Stored, bool]:
        """Delete at once, or mark it if it has finalizers; the last state, and whether it is gone.

        `uid` and `version` are preconditions. Grace periods are ignored. Raises `ApiError`: 403,
        404, 409.
        """
        with self._storage.lock:
            old = self.get(resource, namespace, name)
            meta = old.obj["metadata"]
            for wanted, field, label in (
                (uid, "uid", "UID"),
                (version, "resourceVersion", "ResourceVersion"),
            ):
                if wanted and wanted != meta[field]:
                    why = (
                        f"Precondition failed: {label} in precondition: {wanted}, {label} in "
                        f"object meta: {meta[field]}"
                    )
                    raise errors.conflict(resource.plural, resource.group, name, why)
            if resource.key == _NAMESPACES:
                return self._delete_namespace(old, resource, options)
            if not meta.get("finalizers"):
                return self._remove(resource, old.path, clone(old.obj), options), True
            return self._mark(resource, old, options), False

    def _mark(self, resource: Resource, old: Stored, options: Options) -> Stored:
        if "deletionTimestamp" in old.obj["metadata"]:
            return old
        obj = clone(old.obj)
        meta = obj["metadata"]
        meta["deletionTimestamp"] = self._now()
        meta["deletionGracePeriodSeconds"] = 0
        if resource.generation:
            meta["generation"] = meta.get("generation", 0) + 1
        return self._commit(resource, MODIFIED, old.path, obj, options)

    def _delete_namespace(
        self, old: Stored, resource: Resource, options: Options
    ) -> tuple[Stored, bool]:
        """Mark it Terminating, delete what is in it, and let it go once it is empty."""
        if old.path in _PERMANENT:
            raise errors.forbidden("namespaces", "", old.path, "this namespace may not be deleted")
        if options.dry_run:
            return old, False
        if "deletionTimestamp" not in old.obj["metadata"]:
            obj = clone(old.obj)
            obj["metadata"]["deletionTimestamp"] = self._now()
            obj["status"] = (obj.get("status") or {}) | {"phase": "Terminating"}
            old = self._commit(resource, MODIFIED, old.path, obj, options)
        for content in self._registry:
            if content.namespaced:
                for stored in self._storage.snapshot(content.key)[1]:
                    if stored.path.startswith(f"{old.path}/"):
                        self.delete(content, old.path, stored.obj["metadata"]["name"])
        self._release_namespace(old.path)
        left = self._storage.get(_NAMESPACES, old.path)
        return left or old, left is None

    def _release_namespace(self, name: str) -> None:
        """Remove a terminating namespace if nothing is left in it."""
        home = self._storage.get(_NAMESPACES, name)
        if (
            home is None
            or "deletionTimestamp" not in home.obj["metadata"]
            or home.obj["metadata"].get("finalizers")
        ):
            return
        for content in self._registry:
            if content.namespaced and any(
                stored.path.startswith(f"{name}/")
                for stored in self._storage.snapshot(content.key)[1]
            ):
                return
        self._storage.commit(_NAMESPACES, DELETED, name, clone(home.obj))

    def _remove(self, resource: Resource, path: str, obj: Object, options: Options) -> Stored:
        stored = self._commit(resource, DELETED, path, obj, options)
        namespace = obj["metadata"].get("namespace", "")
        home = self._storage.get(_NAMESPACES, namespace) if namespace else None
        if home is not None and "deletionTimestamp" in home.obj["metadata"]:
            self._release_namespace(namespace)
        return stored

    def _commit(
        self, resource: Resource, kind: str, path: str, obj: Object, options: Options
    ) -> Stored:
        if options.dry_run:
            return Stored(path, 0, obj, b"")
        return self._storage.commit(resource.key, kind, path, obj)


# --- the steps of a write


def _decoded(resource: Resource, obj: Any, options: Options) -> Object:
    """A copy of `obj` in the shape of its schema. Raises `ApiError` 400."""
    if not isinstance(obj, dict):
        raise errors.bad_request("the request body is not a JSON object")
    if resource.builtin:
        # Typed clients leave out what the URL says already.
        named = {"apiVersion": resource.api_version, "kind": resource.kind}
        obj = {**named, **{key: value for key, value in obj.items() if value or key not in named}}
    if (obj.get("apiVersion"), obj.get("kind")) != (resource.api_version, resource.kind):
        raise errors.bad_request(
            f"the API version in the data ({obj.get('apiVersion')}, kind {obj.get('kind')}) "
            "does not match the "
            f"expected API version ({resource.api_version}, kind {resource.kind})"
        )
    found = Decoded()
    shaped = decode(obj, resource.schema, found)
    if not options.validate:
        shaped = obj
    elif found.type_error:
        raise errors.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: "
            f"{found.type_error}"
        )
    elif found.unknown and options.strict:
        fields = ", ".join(f'unknown field "{field}"' for field in found.unknown)
        raise errors.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a '
            f"{resource.kind}: "
            f"strict decoding error: {fields}"
        )
    shaped = clone(shaped)
    if not isinstance(shaped.get("metadata"), dict):
        shaped["metadata"] = {}
    return dict(shaped)


def _place(resource: Resource, namespace: str, name: str, meta: Object) -> None:
    """Make namespace and name agree with the URL. Raises `ApiError` 400."""
    if resource.namespaced:
        if meta.get("namespace") and namespace and meta["namespace"] != namespace:
            raise errors.bad_request(
                "the namespace of the provided object does not match the namespace sent on the "
                "request"
            )
        meta["namespace"] = namespace or meta.get("namespace") or "default"
    elif not meta.get("namespace"):
        meta.pop("namespace", None)
    if name:
        if meta.get("name") and meta["name"] != name:
            raise errors.bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL "
                f"({name})"
            )
        meta["name"] = name


def _check_identity(resource: Resource, meta: Object, old: Object, options: Options) -> None:
    """Optimistic concurrency and uid. Raises `ApiError`: 409, 422."""
    version = meta.get("resourceVersion", "")
    if version and version != old["resourceVersion"]:
        raise errors.stale(resource.plural, resource.group, old["name"])
    if not version and not resource.builtin and not options.trusted:
        complaint = errors.invalid_value(
            "metadata.resourceVersion", 0, "must be specified for an update"
        )
        raise errors.invalid(resource.kind, resource.group, old["name"], [complaint])
    if meta.get("uid") and meta["uid"] != old["uid"]:
        why = (
            f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
            f"{old['uid']}"
        )
        raise errors.conflict(resource.plural, resource.group, old["name"], why)


def _keep_what_is_not_theirs(
    resource: Resource, obj: Object, old: Object, subresource: str, options: Options
) -> None:
    """Put back the fields that this kind of write may not change."""
    meta = obj["metadata"]
    if subresource == "status":
        status = obj.get("status")
        kept = clone(old)
        if resource.builtin:
            kept["metadata"] = meta
        obj.clear()
        obj.update(kept)
        obj.pop("status", None)
        if status is not None:
            obj["status"] = status
        meta = obj["metadata"]
    elif resource.status and not (options.trusted and "status" in obj):
        obj.pop("status", None)
        if "status" in old:
            obj["status"] = clone(old["status"])
    for field in (
        "uid",
        "resourceVersion",
        "creationTimestamp",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ):
        meta.pop(field, None)
        if field in old["metadata"]:
            meta[field] = old["metadata"][field]
    if "managedFields" not in meta and "managedFields" in old["metadata"]:
        meta["managedFields"] = clone(old["metadata"]["managedFields"])


def _well_shaped(resource: Resource, obj: Object | None) -> bool:
    """Whether every field has its type; false of what was let in unchecked."""
    found = Decoded()
    if obj is not None:
        decode(obj, resource.schema, found)
    return not (found.type_error or found.nulls)


def _complete(resource: Resource, obj: Object, old: Object | None, options: Options) -> None:
    """Set defaults, then validate. Raises `ApiError` 422."""
    if resource.set_defaults is not None and _well_shaped(resource, obj):
        resource.set_defaults(obj)
    if not options.validate:
        for field in ("name", "namespace") if resource.namespaced else ("name",):
            if not (obj["metadata"].get(field) and isinstance(obj["metadata"][field], str)):
                raise errors.bad_request(f"metadata.{field} must be a string, even unvalidated")
        return
    rule = validation.name_rule(resource.plural)
    complaints = validation.metadata(obj, namespaced=resource.namespaced, name_rule=rule)
    if resource.validate is not None:
        complaints += resource.validate(obj, old if _well_shaped(resource, old) else None)
    if old is not None and "deletionTimestamp" in old["metadata"]:
        held = set(old["metadata"].get("finalizers") or ())
        new = [item for item in obj["metadata"].get("finalizers") or () if item not in held]
        if new:
            why = (
                "no new finalizers can be added if the object is being deleted, found new "
                "finalizers "
                f"[]string{{{', '.join(map(errors.show, new))}}}"
            )
            complaints.append(errors.forbidden_field("metadata.finalizers", why))
    if options.trusted:
        complaints = [complaint for complaint in complaints if not complaint.recent]
    if complaints:
        name = obj["metadata"].get("name", "")
        raise errors.invalid(resource.kind, resource.group, name, complaints)


def _desired(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}

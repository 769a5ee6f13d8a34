"""Reading and writing one kind of object on the server itself.

An informer answers from what it has seen; this asks, and this writes. What is written is plain
JSON, not a struct that knows only some of the fields: an update of such a one would delete the
others. Whatever the server refuses is an ``ApiError``.

The counterpart of controller-runtime's ``client.Client``, bound to one kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from reconciler.client import ApiError
from reconciler.meta import Meta, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reconciler.client import Client, Resource

T = TypeVar("T", bound=Meta)

_MERGE_PATCH = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML


class Writer(Generic[T]):
    """Changes objects, or one subresource of them. ``apiVersion`` and ``kind`` may be left out."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Callable[[msgspec.Raw], T],
        manager: str,
        subresource: str = "",
    ) -> None:
        """Made by ``Objects``."""
        self.resource = resource
        self._client = client
        self._decode = decode
        self._manager = manager
        self._suffix = f"/{subresource}" if subresource else ""

    def update(self, obj: Mapping[str, Any]) -> T:
        """Replace the whole object; what the server made of it.

        With a ``resourceVersion``, as an object that was read has one, only if it is still that.

        :raises ApiError: ``conflict`` if the object was changed meanwhile
        """
        return self._write("PUT", self._path(_key_of(obj)), self._typed(obj))

    def patch(self, key: Request, change: Mapping[str, Any]) -> T:
        """Merge ``change`` into the object: ``None`` removes a field, a list replaces a list.

        A ``resourceVersion`` in its metadata makes it fail if the object is no longer at that.

        :raises ApiError: ``conflict`` in that case
        """
        return self._write("PATCH", self._path(key), change, content_type=_MERGE_PATCH)

    def apply(self, obj: Mapping[str, Any], *, force: bool = True) -> T:
        """Have these fields be so (server-side apply), creating the object if it is not there.

        Fields that an earlier apply of the same manager set and that are left out now are removed;
        those of others stay. Changes nothing, and causes no event, if all is so already.

        :param force: take fields that another manager owns and holds differently
        :raises ApiError: ``conflict`` if there are such fields and they are not to be taken
        """
        forced = {"force": "true"} if force else {}
        return self._write("PATCH", self._path(_key_of(obj)), self._typed(obj), forced, _APPLY)

    def _write(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any],
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> T:
        answer = self._client.request(
            method,
            path,
            {**(query or {}), "fieldManager": self._manager},
            msgspec.json.encode(body),
            content_type=content_type,
        )
        return self._decode(msgspec.Raw(answer))

    def _typed(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        return {"apiVersion": self.resource.api_version, "kind": self.resource.kind, **obj}

    def _path(self, key: Request) -> str:
        if not key.name:
            raise ValueError(f"{self.resource}: an object without a name")
        return f"{self._collection(key)}/{quote(key.name, safe='')}{self._suffix}"

    def _collection(self, key: Request) -> str:
        if self.resource.namespaced and not key.namespace:
            raise ValueError(f"{self.resource}: {key.name or 'an object'} without a namespace")
        return self.resource.path(key.namespace)


class Objects(Writer[T]):
    """One kind of object. Usable by many threads; every call waits for the server.

    :raises ValueError: from every method, if a namespace or a name is missing
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decode: Callable[[msgspec.Raw], T],
        *,
        manager: str,
    ) -> None:
        """
        :param decode: makes an object of its JSON, as for an informer
        :param manager: who is noted as the owner of the fields that are written
        """
        super().__init__(client, resource, decode, manager)
        self.status: Writer[T] = Writer(client, resource, decode, manager, "status")
        """Changes the status alone, where the kind keeps it as a subresource."""

    def get(self, key: Request) -> T | None:
        """The object as it is now, or ``None`` if there is none of that name.

        :raises ApiError: also if the server does not know the kind
        """
        try:
            answer = self._client.request("GET", self._path(key))
        except ApiError as error:
            if not error.not_found:
                raise
            return None
        return self._decode(msgspec.Raw(answer))

    def create(self, obj: Mapping[str, Any]) -> T:
        """Create an object; what the server made of it.

        :raises ApiError: ``already_exists`` if there is one of that name
        """
        return self._write("POST", self._collection(_key_of(obj)), self._typed(obj))

    def delete(self, key: Request, *, uid: str = "") -> bool:
        """Have no object of that name; whether there was one. Finalizers may keep it for a while.

        :param uid: delete only this one, and not one that was created later by the same name
        :raises ApiError: ``conflict`` if it is another
        """
        options = msgspec.json.encode({"preconditions": {"uid": uid}}) if uid else None
        try:
            self._client.request("DELETE", self._path(key), body=options)
        except ApiError as error:
            if not error.not_found:
                raise
            return False
        return True


def controller_reference(owner: Meta, resource: Resource) -> dict[str, Any]:
    """An entry for ``ownerReferences``: ``owner``, of that kind, controls the object.

    Objects go when their controller goes, and ``reconciler.handler.enqueue_owner`` finds it. An
    owner that has a namespace can own only objects of that namespace.
    """
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _key_of(obj: Mapping[str, Any]) -> Request:
    metadata = obj.get("metadata") or {}
    return Request(metadata.get("namespace") or "", metadata.get("name") or "")

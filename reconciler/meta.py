"""What the framework needs to know of any object, and two ways to have objects.

``Unstructured`` is any object as plain JSON. ``Typed`` is the base of an author's own types, which
name the fields that their controller reads; the decoder skips all others. Any other type will do
that has the properties of ``Meta``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self


class Meta(Protocol):
    """An object's identity and version."""

    @property
    def namespace(self) -> str:
        """Empty for an object that belongs to no namespace."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def uid(self) -> str: ...

    @property
    def resource_version(self) -> str:
        """Opaque: equal or not equal, nothing else."""
        ...

    @property
    def labels(self) -> Mapping[str, str]: ...


class FullMeta(Meta, Protocol):
    """The rest of an object's metadata, which only some handlers and predicates need."""

    @property
    def annotations(self) -> Mapping[str, str]: ...

    @property
    def generation(self) -> int:
        """Counts changes of the spec, for the kinds that do; else 0."""
        ...

    @property
    def owner_references(self) -> Sequence[OwnerReference]: ...


class OwnerReference(msgspec.Struct, rename="camel", frozen=True):
    """Who owns an object. At most one owner is its controller."""

    api_version: str
    kind: str
    name: str
    uid: str = ""
    controller: bool | None = None

    @property
    def group(self) -> str:
        """Empty for the core group."""
        return self.api_version.rpartition("/")[0]


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """The key of an object: what most controllers put into their queue."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def key_of(obj: Meta) -> Request:
    """The object's key."""
    return Request(obj.namespace, obj.name)


class ObjectMeta(msgspec.Struct, rename="camel", frozen=True):
    """The ``metadata`` of a typed object, as far as controllers read it."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[OwnerReference, ...] | None = None
    deletion_timestamp: str | None = None
    finalizers: tuple[str, ...] | None = None


class Typed(msgspec.Struct, rename="camel", frozen=True):
    """Base of an author's own types. A field ``ready_replicas`` is ``readyReplicas`` in the JSON.

    Give each field a default that may be absent, and the type ``X | None`` where it may be null.
    """

    metadata: ObjectMeta

    @classmethod
    def decode(cls, raw: bytes | msgspec.Raw) -> Self:
        """Decode an object's JSON.

        :raises msgspec.DecodeError: if a field that is named here is missing or of another type
        """
        return msgspec.json.decode(raw, type=cls)

    @property
    def namespace(self) -> str:
        return self.metadata.namespace

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def uid(self) -> str:
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        return self.metadata.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self.metadata.annotations or {}

    @property
    def generation(self) -> int:
        return self.metadata.generation

    @property
    def owner_references(self) -> Sequence[OwnerReference]:
        return self.metadata.owner_references or ()


class _Head(msgspec.Struct, frozen=True):
    metadata: ObjectMeta


_decode_head = msgspec.json.Decoder(_Head).decode


class Unstructured:
    """Any object as plain JSON, for kinds that have no type of their own. Not to be changed.

    What came from the server is kept as the bytes that it came in until ``data`` is read.
    """

    __slots__ = ("_data", "_meta")

    def __init__(self, data: dict[str, Any]) -> None:
        """
        :raises msgspec.ValidationError: if it has no metadata, or not of the API's types
        """
        self._meta = msgspec.convert(data, _Head).metadata
        self._data: dict[str, Any] | bytes = data

    @classmethod
    def decode(cls, raw: bytes | msgspec.Raw) -> Unstructured:
        """Decode an object's JSON.

        :raises msgspec.DecodeError: if it is not a JSON object with metadata of the API's types
        """
        found = cls.__new__(cls)
        found._meta = _decode_head(raw).metadata
        found._data = bytes(raw)  # not a view, which would keep the whole page
        return found

    @property
    def data(self) -> dict[str, Any]:
        """The whole object."""
        if isinstance(self._data, bytes):
            self._data = msgspec.json.decode(self._data, type=dict[str, Any])
        return self._data

    @property
    def metadata(self) -> dict[str, Any]:
        """The object's ``metadata``."""
        found: dict[str, Any] = self.data["metadata"]
        return found

    @property
    def namespace(self) -> str:
        return self._meta.namespace

    @property
    def name(self) -> str:
        return self._meta.name

    @property
    def uid(self) -> str:
        return self._meta.uid

    @property
    def resource_version(self) -> str:
        return self._meta.resource_version

    @property
    def labels(self) -> Mapping[str, str]:
        return self._meta.labels or {}

    @property
    def annotations(self) -> Mapping[str, str]:
        return self._meta.annotations or {}

    @property
    def generation(self) -> int:
        return self._meta.generation

    @property
    def owner_references(self) -> Sequence[OwnerReference]:
        return self._meta.owner_references or ()

    def __repr__(self) -> str:
        return f"Unstructured({self.data.get('kind')} {key_of(self)}@{self.resource_version})"

"""What the framework needs to know of any object, and an object for those who define no type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping


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


class Unstructured:
    """Any object as plain JSON, for kinds that have no type of their own. Not to be changed."""

    __slots__ = ("data",)

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @classmethod
    def decode(cls, raw: bytes | msgspec.Raw) -> Unstructured:
        """Decode an object's JSON.

        :raises msgspec.DecodeError: if it is not a JSON object with metadata
        """
        data = msgspec.json.decode(raw, type=dict[str, Any])
        if not isinstance(data.get("metadata"), dict):
            raise msgspec.ValidationError("Object missing required field `metadata`")
        return cls(data)

    @property
    def metadata(self) -> dict[str, Any]:
        """The object's ``metadata``."""
        found: dict[str, Any] = self.data["metadata"]
        return found

    @property
    def namespace(self) -> str:
        return str(self.metadata.get("namespace") or "")

    @property
    def name(self) -> str:
        return str(self.metadata.get("name") or "")

    @property
    def uid(self) -> str:
        return str(self.metadata.get("uid") or "")

    @property
    def resource_version(self) -> str:
        return str(self.metadata.get("resourceVersion") or "")

    @property
    def labels(self) -> Mapping[str, str]:
        return self.metadata.get("labels") or {}

    def __repr__(self) -> str:
        return f"Unstructured({self.data.get('kind')} {key_of(self)}@{self.resource_version})"

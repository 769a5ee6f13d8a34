"""The parts of the API's JSON that following a kind needs; objects stay raw for the caller."""

from __future__ import annotations

import msgspec

INITIAL_EVENTS_END = "k8s.io/initial-events-end"


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class Page(msgspec.Struct):
    """One page of a list."""

    metadata: _ListMeta = msgspec.field(default_factory=_ListMeta)
    items: list[msgspec.Raw] | None = None


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: msgspec.Raw


class _Cause(msgspec.Struct):
    reason: str | None = None


class _Details(msgspec.Struct, rename="camel"):
    name: str = ""
    causes: list[_Cause] | None = None
    retry_after_seconds: int | None = None


class Status(msgspec.Struct):
    """What the server says instead of an answer."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: _Details | None = None

    @property
    def name(self) -> str:
        """The object that this is about, where the server says so."""
        return self.details.name if self.details else ""

    @property
    def causes(self) -> tuple[str, ...]:
        """The reasons among the details."""
        found = self.details.causes if self.details else None
        return tuple(cause.reason or "" for cause in found or ())

    @property
    def retry_after(self) -> float | None:
        """Seconds to leave the server alone, where it said so."""
        return (self.details.retry_after_seconds if self.details else None) or None


class _ObjectMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    annotations: dict[str, str] | None = None


class _Object(msgspec.Struct):
    metadata: _ObjectMeta


class _VersionMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct):
    metadata: _VersionMeta


class _IdentityMeta(msgspec.Struct):
    name: str
    namespace: str = ""


class _Identity(msgspec.Struct):
    metadata: _IdentityMeta


decode_page = msgspec.json.Decoder(Page).decode
decode_event = msgspec.json.Decoder(Event).decode
decode_status = msgspec.json.Decoder(Status).decode
_decode_object = msgspec.json.Decoder(_Object).decode
_decode_versioned = msgspec.json.Decoder(_Versioned).decode
_decode_identity = msgspec.json.Decoder(_Identity).decode


def version_of(obj: msgspec.Raw) -> str:
    """The object's resourceVersion, or nothing."""
    return _decode_versioned(obj).metadata.resource_version


def ends_initial_events(bookmark: msgspec.Raw) -> bool:
    """Whether this bookmark says that all objects that there were have been sent."""
    annotations = _decode_object(bookmark).metadata.annotations or {}
    return annotations.get(INITIAL_EVENTS_END) == "true"


def identity_of(obj: msgspec.Raw) -> tuple[str, str]:
    """The object's namespace and name, whatever else is wrong with it.

    :raises msgspec.DecodeError: if it has no name
    """
    meta = _decode_identity(obj).metadata
    return meta.namespace, meta.name

"""Errors, as an API server words them.

Every refusal is one `ApiError`. It knows its HTTP code and renders the `Status` object that clients
read: the sentence in `message` is what `kubectl` prints after "Error from server", `reason` is what
programs branch on. The functions below build the refusals that exist; nothing else in the package
spells out a code.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_REASONS = {
    400: "BadRequest",
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    406: "NotAcceptable",
    409: "Conflict",
    410: "Expired",
    413: "RequestEntityTooLarge",
    415: "UnsupportedMediaType",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


class ApiError(Exception):
    """A refusal: HTTP `code`, machine-readable `reason`, the sentence `message`, optional
    `details`.

    `retry_after` (seconds) is sent as a `Retry-After` header. Go: `errors.StatusError`.
    """

    def __init__(
        self,
        code: int,
        message: str,
        *,
        reason: str = "",
        details: dict[str, Any] | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason or _REASONS.get(code, "")
        self.details = details
        self.retry_after = retry_after

    def status(self) -> dict[str, Any]:
        """The `Status` object that is sent to the client."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        details = dict(self.details or {})
        if self.retry_after is not None:
            details["retryAfterSeconds"] = self.retry_after
        if details:
            body["details"] = details
        return body


@dataclass(frozen=True, slots=True)
class FieldError:
    """One complaint about one field. Go: `field.Error`."""

    reason: str
    """`FieldValueInvalid`, `FieldValueRequired`, `FieldValueForbidden`, `FieldValueNotSupported`...
    """
    path: str
    """The field, as `spec.ingress[0].from[1]`."""
    message: str
    """The complaint without the path."""
    recent: bool = False
    """Older API servers let this pass, so that their clusters hold such objects."""

    def __str__(self) -> str:
        return f"{self.path}: {self.message}"


def show(value: Any) -> str:
    """`value` as Go's validation messages quote it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def invalid_value(path: str, value: Any, why: str) -> FieldError:
    """`field.Invalid`."""
    return FieldError("FieldValueInvalid", path, f"Invalid value: {show(value)}: {why}")


def required(path: str, why: str = "") -> FieldError:
    """`field.Required`."""
    return FieldError("FieldValueRequired", path, "Required value" + (f": {why}" if why else ""))


def forbidden_field(path: str, why: str) -> FieldError:
    """`field.Forbidden`."""
    return FieldError("FieldValueForbidden", path, f"Forbidden: {why}")


def not_supported(path: str, value: Any, allowed: Sequence[str]) -> FieldError:
    """`field.NotSupported`."""
    choices = ", ".join(show(choice) for choice in allowed)
    return FieldError(
        "FieldValueNotSupported",
        path,
        f"Unsupported value: {show(value)}: supported values: {choices}",
    )


def qualified(resource: str, group: str) -> str:
    """`pods`, or `networkpolicies.networking.k8s.io`."""
    return f"{resource}.{group}" if group else resource


def _details(resource: str, group: str, name: str) -> dict[str, Any]:
    details: dict[str, Any] = {"name": name, "kind": resource}
    if group:
        details["group"] = group
    return details


def not_found(resource: str, group: str, name: str) -> ApiError:
    """404: the object does not exist."""
    message = f'{qualified(resource, group)} "{name}" not found'
    return ApiError(404, message, details=_details(resource, group, name))


def no_such_path() -> ApiError:
    """404: no such resource."""
    return ApiError(404, "the server could not find the requested resource", details={})


def already_exists(resource: str, group: str, name: str) -> ApiError:
    """409 on create."""
    message = f'{qualified(resource, group)} "{name}" already exists'
    return ApiError(409, message, reason="AlreadyExists", details=_details(resource, group, name))


def conflict(resource: str, group: str, name: str, why: str) -> ApiError:
    """409 on update, patch or delete."""
    message = f'Operation cannot be fulfilled on {qualified(resource, group)} "{name}": {why}'
    return ApiError(409, message, details=_details(resource, group, name))


def stale(resource: str, group: str, name: str) -> ApiError:
    """409: the caller's resourceVersion is not the current one."""
    why = (
        "the object has been modified; please apply your changes to the latest version and try "
        "again"
    )
    return conflict(resource, group, name, why)


def invalid(kind: str, group: str, name: str, errors: Sequence[FieldError]) -> ApiError:
    """422 with one cause per field."""
    sentences = list(dict.fromkeys(str(error) for error in errors))
    text = sentences[0] if len(sentences) == 1 else f"[{', '.join(sentences)}]"
    details = _details(kind, group, name)
    details["causes"] = [
        {"reason": error.reason, "message": error.message, "field": error.path} for error in errors
    ]
    return ApiError(422, f'{qualified(kind, group)} "{name}" is invalid: {text}', details=details)


def bad_request(message: str) -> ApiError:
    """400."""
    return ApiError(400, message)


def forbidden(resource: str, group: str, name: str, why: str) -> ApiError:
    """403 by admission."""
    message = f'{qualified(resource, group)} "{name}" is forbidden: {why}'
    return ApiError(403, message, details=_details(resource, group, name))


def not_allowed() -> ApiError:
    """405."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, message, details={})


def unknown_format(accepted: Sequence[str], got: str) -> ApiError:
    """415."""
    message = (
        "the body of the request was in an unknown format - accepted media types include: "
        f"{', '.join(accepted)} (got {got})"
    )
    return ApiError(415, message)


def expired_watch(asked: int, oldest: int) -> ApiError:
    """410: the watch would have to begin before the oldest event that is still remembered."""
    return ApiError(410, f"too old resource version: {asked} ({oldest})")


def expired_list() -> ApiError:
    """410: the list would need a state that is no longer known."""
    return ApiError(
        410,
        "The resourceVersion for the provided list is too old.",
    )


def expired_continue() -> ApiError:
    """410: the continue token refers to a state that is no longer known."""
    return ApiError(
        410,
        "The provided continue parameter is too old to display a consistent list result. You "
        "can start a new "
        "list without the continue parameter.",
    )


def too_large(asked: int, current: int) -> ApiError:
    """504: the client has seen a later state than this server."""
    return ApiError(
        504,
        f"Timeout: Too large resource version: {asked}, current: {current}",
        details={
            "causes": [
                {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
            ],
            "retryAfterSeconds": 1,
        },
    )

"""Faults on demand: what real API servers, proxies and networks do to their clients.

A fault is an effect and the requests that it falls on. `Faults.add` arms one; each matching request
uses it up by one until `times` is reached. Several armed faults may hit the same request and act
together. `docs/testing-server.md` shows each.

Requests are matched by what they are, one request being several things at once: `get`, `list`,
`watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, `discovery`; besides, `continue`
(a list that continues a page) and `watchlist` (a watch with `sendInitialEvents=true`).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reconciler.testing import errors

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with an HTTP error. Without a `message`, the one a real server gives for this `code`.

    `retry_after` (seconds) adds the `Retry-After` header.
    """

    code: int
    message: str = ""
    retry_after: int | None = None

    def error(self) -> errors.ApiError:
        """The error to send."""
        message = self.message or _MESSAGES.get(self.code, "injected fault")
        return errors.ApiError(self.code, message, retry_after=self.retry_after)


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close the connection without an answer."""


@dataclass(frozen=True, slots=True)
class Stall:
    """Take the request and never answer: a peer that died without a word. Of a watch, the head
    still arrives.
    """


@dataclass(frozen=True, slots=True)
class Cut:
    """Close the connection after `after` bytes of the body, most likely in mid-line."""

    after: int


@dataclass(frozen=True, slots=True)
class Slow:
    """Send the body at `rate` bytes per second."""

    rate: float


@dataclass(frozen=True, slots=True)
class EndWatch:
    """End a watch after `events` events, with an ERROR event of `code`; 0 ends it without one, as a
    timeout does.
    """

    code: int = 410
    events: int = 0

    def error(self) -> errors.ApiError:
        """The error to send in the ERROR event."""
        return Refuse(self.code).error()


@dataclass(frozen=True, slots=True)
class NoBookmarks:
    """Send no bookmark, not even the one that ends the initial events."""


@dataclass(frozen=True, slots=True)
class DuplicateInitial:
    """Send every initial event of a watch twice."""


@dataclass(frozen=True, slots=True)
class ShuffleInitial:
    """Send the initial events of a watch in another order, chosen by `seed`."""

    seed: int = 0


Effect = (
    Refuse
    | HangUp
    | Stall
    | Cut
    | Slow
    | EndWatch
    | NoBookmarks
    | DuplicateInitial
    | ShuffleInitial
)

_MESSAGES = {
    401: "Unauthorized",
    403: "forbidden: not allowed by the access rules",
    404: "the server could not find the requested resource",
    410: "The resourceVersion for the provided watch is too old.",
    429: "The apiserver is busy, please try again later",
    500: "Internal error occurred: injected fault",
    503: "the server is currently unable to handle the request",
    504: "Timeout: request did not complete within the allotted timeout",
}


@dataclass(slots=True)
class Fault:
    """An armed fault."""

    effect: Effect
    verb: str
    """What the request must be; empty: any."""
    resource: str
    """The plural it must be about; empty: any."""
    times: int | None
    """How many requests it hits; None: all."""
    skip: int
    """How many matching requests it lets pass first."""
    hits: int = field(default=0)
    """How many requests it has hit."""

    @property
    def spent(self) -> bool:
        """Whether it has hit all the requests it was meant for."""
        return self.times is not None and self.hits >= self.times


class Faults:
    """The armed faults of one server. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Fault] = []

    def add(
        self,
        effect: Effect,
        *,
        verb: str = "",
        resource: str = "",
        times: int | None = 1,
        skip: int = 0,
    ) -> Fault:
        """Arm a fault; the returned object counts its hits."""
        fault = Fault(effect, verb, resource, times, skip)
        with self._lock:
            self._armed.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """Disarm one fault; nothing happens if it is not armed."""
        with self._lock:
            self._armed = [other for other in self._armed if other is not fault]

    def clear(self) -> None:
        """Disarm all."""
        with self._lock:
            self._armed.clear()

    def take(self, verbs: Collection[str], resource: str) -> list[Effect]:
        """The effects on one request, used up by it."""
        effects = []
        with self._lock:
            for fault in self._armed:
                if (fault.verb and fault.verb not in verbs) or fault.spent:
                    continue
                if fault.resource and fault.resource != resource:
                    continue
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.hits += 1
                effects.append(fault.effect)
        return effects

"""One of several replicas works; the others wait to take over.

A Lease object says who leads. Whoever finds it free, or not renewed for its duration, writes its
own name into it; the API server lets only one of them. The leader renews it, and stops leading when
it could not for so long that others might take over soon. How old a lease is, is judged by when we
saw it change, never by the times written in it, so clocks need not agree.

Ported from client-go's ``leaderelection`` with its numbers. As there, a paused process may believe
for a moment that it leads when another does already: what is led must be safe to repeat.
"""

from __future__ import annotations

import json
import logging
import random
import socket
import threading
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from reconciler.client import ApiError, Resource, TransportError
from reconciler.stop import Stop
from workqueue import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reconciler.manager import Runnable

LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease")

_JITTER = 1.2
_SHORTEST_TIMEOUT = 0.1

_log = logging.getLogger(__name__)


class LeadershipLostError(Exception):
    """The lease could not be renewed in time; another replica may lead now."""


class Requester(Protocol):
    """What leader election needs of the API server; ``reconciler.client.Client`` is one."""

    def request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        *,
        stop: Stop | None = None,
        timeout: float = ...,
    ) -> bytes:
        """Send a request and return the answer.

        :raises TransportError: if it fails
        """
        ...


def _own_identity() -> str:
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True)
class LeaseConfig:
    """Which lease, who we are, and how patient everybody is. Seconds throughout.

    ``duration`` is how long the others wait for a leader that no longer renews; ``renew_deadline``
    how long the leader goes on without having renewed; ``retry_period`` how often each tries.
    """

    namespace: str
    name: str
    identity: str = field(default_factory=_own_identity)
    duration: int = 15
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        """
        :raises ValueError: if a leader could go on for longer than the others wait for it
        """
        if not self.duration > self.renew_deadline > self.retry_period * _JITTER > 0:
            raise ValueError(
                "a lease needs duration > renew_deadline > 1.2 * retry_period > 0, not "
                f"{self.duration}, {self.renew_deadline}, {self.retry_period}"
            )


class Elector:
    """Takes and keeps a lease. Used by one thread; ``leads`` may be read by any."""

    def __init__(
        self,
        requester: Requester,
        config: LeaseConfig,
        *,
        clock: Clock = SYSTEM_CLOCK,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        rng: random.Random | None = None,
    ) -> None:
        self.config = config
        self._requester = requester
        self.clock = clock
        self._wall = wall
        self._rng = rng or random.Random()  # noqa: S311 - spreads load, hides nothing
        self._collection = LEASES.path(config.namespace)
        self._path = f"{self._collection}/{config.name}"
        self._lease: dict[str, Any] | None = None
        self._seen: dict[str, Any] | None = None
        self._seen_at = 0.0
        self.leads = False
        """Whether this replica leads."""

    def acquire(self, stop: Stop) -> bool:
        """Wait until this replica leads; false if asked to stop before."""
        holder = None
        while not stop:
            if self._try(stop, self.clock.now() + self.config.renew_deadline):
                _log.info("leading: %s holds lease %s", self.config.identity, self._path)
                self.leads = True
                return True
            if (other := self._holder()) != holder:
                holder = other
                _log.info("lease %s is held by %s", self._path, holder or "nobody")
            stop.wait(self.config.retry_period * (1 + _JITTER * self._rng.random()))
        return False

    def keep(self, stop: Stop) -> None:
        """Renew the lease until asked to stop.

        :raises LeadershipLostError: if it could not be renewed in time
        """
        renewed = self.clock.now()
        while not stop.wait(self.config.retry_period):
            deadline = renewed + self.config.renew_deadline
            tried = self.clock.now()
            if tried < deadline and self._try(stop, deadline):
                # From before the request: the others count from when they see its effect.
                renewed = tried
            elif not stop and (self._taken() or self.clock.now() >= deadline):
                self.leads = False
                raise LeadershipLostError(
                    f"lease {self._path} is lost: "
                    + (f"{self._holder()} holds it" if self._taken() else "it was not renewed")
                )

    def release(self) -> None:
        """Let another replica take over at once, if this one leads."""
        if not self.leads:
            return
        self.leads = False
        spec = self._spec(transitions=self._transitions())
        freed = {**spec, "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            self._write(freed, None, self.clock.now() + self.config.renew_deadline)
        except TransportError as error:
            _log.warning("lease %s could not be released: %s", self._path, error)

    # -- one try -------------------------------------------------------------------------------

    def _try(self, stop: Stop, until: float) -> bool:
        """Take or renew the lease; whether that went well. Takes no longer than ``until``."""
        try:
            return self._take(stop, until)
        except ApiError as error:
            if error.status == 409:
                return False  # another was faster
            _log.warning("lease %s: %s", self._path, error)
        except (TransportError, ValueError) as error:
            if not stop:
                _log.warning("lease %s: %s", self._path, error)
        return False

    def _take(self, stop: Stop, until: float) -> bool:
        try:
            answer = self._request("GET", self._path, None, stop, until)
        except ApiError as error:
            if error.status != 404:
                raise
            self._lease = None
            self._write(self._spec(transitions=0), stop, until)
            return True
        self._note(answer)
        if self._taken():
            return False
        mine = self._holder() == self.config.identity
        self._write(self._spec(transitions=self._transitions() + (not mine)), stop, until)
        return True

    def _note(self, answer: bytes) -> None:
        """Remember the lease, and when it last changed as far as we could see."""
        lease = json.loads(answer)
        if not isinstance(lease, dict) or not isinstance(lease.get("spec") or {}, dict):
            raise ValueError("the answer is no lease")  # noqa: TRY004 - it is text that is wrong
        self._lease = lease
        spec = lease.get("spec") or {}
        if spec != self._seen:
            self._seen, self._seen_at = spec, self.clock.now()

    def _taken(self) -> bool:
        """Whether somebody else holds the lease, and may still be alive."""
        if self._holder() in {"", self.config.identity}:
            return False
        duration = (self._seen or {}).get("leaseDurationSeconds") or 0
        return self._seen_at + float(duration) > self.clock.now()

    def _holder(self) -> str:
        return (self._seen or {}).get("holderIdentity") or ""

    def _transitions(self) -> int:
        return (self._seen or {}).get("leaseTransitions") or 0

    def _spec(self, *, transitions: int) -> dict[str, Any]:
        now = self._wall().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        mine = self._holder() == self.config.identity
        return {
            "holderIdentity": self.config.identity,
            "leaseDurationSeconds": self.config.duration,
            "acquireTime": (self._seen or {}).get("acquireTime") or now if mine else now,
            "renewTime": now,
            "leaseTransitions": transitions,
        }

    def _write(self, spec: dict[str, Any], stop: Stop | None, until: float) -> None:
        """Write the lease if it is still as we saw it.

        :raises ApiError: with status 409 if it is not
        """
        if self._lease is None:
            meta = {"namespace": self.config.namespace, "name": self.config.name}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            answer = self._request("POST", self._collection, {**lease, "spec": spec}, stop, until)
        else:
            answer = self._request("PUT", self._path, {**self._lease, "spec": spec}, stop, until)
        self._note(answer)

    def _request(self, method: str, path: str, body: Any, stop: Stop | None, until: float) -> bytes:
        # Connecting and answering may each take that long.
        timeout = max(_SHORTEST_TIMEOUT, (until - self.clock.now()) / 2)
        return self._requester.request(
            method,
            path,
            body=None if body is None else json.dumps(body).encode(),
            stop=stop,
            timeout=timeout,
        )


class Leading:
    """Runs parts of the program while this replica leads. Itself a part, for the manager.

    The lease is released once the parts have ended. When it is lost, they are asked to stop, and
    the program ends without waiting for them.
    """

    def __init__(self, elector: Elector, *parts: Runnable) -> None:
        self.name = f"leader election {elector.config.namespace}/{elector.config.name}"
        self._elector = elector
        self._parts = parts
        self._error: BaseException | None = None

    def run(self, stop: Stop) -> None:
        """Wait to lead, then run the parts until asked to stop.

        :raises LeadershipLostError: if another replica may lead now
        :raises BaseException: what a part raised
        """
        if not self._elector.acquire(stop):
            return
        with stop.child() as parts_stop:
            keeper_stop = Stop(self._elector.clock)
            threads = [self._start(part, parts_stop) for part in self._parts]
            keeper = threading.Thread(
                target=self._keep, args=(keeper_stop, parts_stop), name=self.name, daemon=True
            )
            keeper.start()
            parts_stop.wait()
            if not isinstance(self._error, LeadershipLostError):
                for thread in threads:
                    thread.join()
            keeper_stop.set()
            keeper.join()
        self._elector.release()
        if self._error is not None:
            raise self._error

    def _keep(self, stop: Stop, parts_stop: Stop) -> None:
        """Renew also while the parts end, so that no other begins meanwhile."""
        try:
            self._elector.keep(stop)
        except BaseException as error:  # noqa: BLE001 - raised again by ``run``
            self._error = self._error or error
            parts_stop.set()

    def _start(self, part: Runnable, stop: Stop) -> threading.Thread:
        def run() -> None:
            try:
                part.run(stop)
            except BaseException as error:  # noqa: BLE001 - raised again by ``run``
                _log.error("%s failed: %s", part.name, error)
                self._error = self._error or error
                stop.set()

        thread = threading.Thread(target=run, name=part.name, daemon=True)
        thread.start()
        return thread

"""Keys in, reconciles out: N workers over one rate-limited queue.

Sources add keys and never wait. A worker takes a key, calls ``reconcile``, and by what that returns
or raises the key is done, comes back later, or comes back later and later:

    ================================  ==============================================
    outcome                           what becomes of the key
    ================================  ==============================================
    returns ``None`` or ``Result()``  forgotten: its failures count from zero again
    ``Result(requeue_after=s)``       forgotten, and added again after ``s`` seconds
    raises ``TerminalError``          logged; not tried again before the next event
    raises anything else              logged; added again, rate-limited
    ================================  ==============================================

A stop wins over whatever is queued: no reconcile starts after it, the running ones end, and the
workers are joined. Ported from controller-runtime's ``Controller``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from workqueue import SYSTEM_CLOCK, Clock, RateLimiter, RateLimitingQueue, ShutDown

if TYPE_CHECKING:
    from collections.abc import Callable

    from reconciler.source import Source
    from reconciler.stop import Stop

K = TypeVar("K", bound=Hashable)

_SYNC_POLL = 0.05

_log = logging.getLogger(__name__)


class TerminalError(Exception):
    """Trying again will not help: the key waits for the next event."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile ended well. ``requeue_after``: seconds until the key is added again."""

    requeue_after: float | None = None


class Controller(Generic[K]):
    """``run`` it once, in a thread of its own."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Result | None],
        *,
        workers: int = 1,
        limiter: RateLimiter[K] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        :param reconcile: called with a key, never by two workers at once for the same one
        :param limiter: how long failing keys wait; client-go's default where none is given
        :raises ValueError: if there is no worker
        """
        if workers < 1:
            raise ValueError(f"a controller needs at least one worker, not {workers}")
        self.name = f"controller {name}"
        self.queue: RateLimitingQueue[K] = RateLimitingQueue(limiter, name, clock=clock)
        self._reconcile = reconcile
        self._workers = workers
        self._sources: list[Source[K]] = []

    def watch(self, source: Source[K]) -> None:
        """Take keys from this source too; before ``run``."""
        self._sources.append(source)

    @property
    def has_synced(self) -> bool:
        """Whether every source has added all that there was at the start."""
        return all(source.has_synced for source in self._sources)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, being reconciled, or waiting to be tried again."""
        return self.queue.idle

    def run(self, stop: Stop) -> None:
        """Start the sources, wait until they have synced, and reconcile until asked to stop."""
        threads = [source.start(self.queue.add, stop) for source in self._sources]
        with stop.calling(self.queue.shut_down):
            while not self.has_synced and not stop.wait(_SYNC_POLL):
                pass
            workers = [
                threading.Thread(
                    target=self._work, args=(stop,), name=f"{self.name} worker {i}", daemon=True
                )
                for i in range(self._workers)
            ]
            for worker in workers:
                worker.start()
            stop.wait()
        for thread in [*workers, *threads]:
            if thread is not None:
                thread.join()

    def _work(self, stop: Stop) -> None:
        while not stop:
            try:
                with self.queue.lease() as key:
                    if not stop:
                        self._reconcile_one(key)
            except ShutDown:
                return

    def _reconcile_one(self, key: K) -> None:
        try:
            result = self._reconcile(key)
        except TerminalError as error:
            _log.error("%s: %s: %s; not tried again before it changes", self.name, key, error)
        except Exception as error:  # noqa: BLE001 - whatever it was, the key is tried again
            self.queue.add_rate_limited(key)
            failures = self.queue.num_requeues(key)
            _log.error("%s: %s failed (%d in a row): %s", self.name, key, failures, error)
            _log.debug("%s: %s", self.name, key, exc_info=True)
        else:
            self.queue.forget(key)
            if result is not None and result.requeue_after is not None:
                self.queue.add_after(key, result.requeue_after)

"""Keys in, reconciles out: N workers over one rate-limited queue.

Sources add keys and never wait. A worker takes a key, calls ``reconcile``, and by what that returns
or raises the key is done, comes back later, or comes back later and later:

    ================================  ==============================================
    outcome                           what becomes of the key
    ================================  ==============================================
    returns ``None`` or ``Result()``  forgotten: its failures count from zero again
    ``Result(requeue_after=s)``       forgotten, and added again after ``s`` seconds
    raises ``TerminalError``          forgotten; not tried again before the next event
    raises any other ``Exception``    logged; added again, rate-limited
    ================================  ==============================================

``reconcile`` may be a coroutine function; see ``reconciler.loop``.

A stop wins over whatever is queued: no reconcile starts after it, the running ones end, and the
workers are joined. Ported from controller-runtime's ``Controller``, which does not forget the key
of a terminal error; here its next failure starts from the shortest wait.
"""

from __future__ import annotations

import enum
import inspect
import logging
import threading
from collections import Counter
from collections.abc import Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from opentelemetry.trace import SpanKind, StatusCode

from reconciler.loop import Loop
from reconciler.telemetry import tracer
from workqueue import SYSTEM_CLOCK, Clock, RateLimiter, RateLimitingQueue, ShutDown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from opentelemetry.trace import Span

    from reconciler.source import Source
    from reconciler.stop import Stop

K = TypeVar("K", bound=Hashable)

_SYNC_POLL = 0.05

_log = logging.getLogger(__name__)


class TerminalError(Exception):
    """Trying again will not help: the key waits for the next event."""


class SyncTimeoutError(Exception):
    """The sources did not bring all that there was in time; the message names them."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile ended well. ``requeue_after``: seconds until the key is added again."""

    requeue_after: float | None = None


class Outcome(enum.Enum):
    """How a reconcile ended; the values are controller-runtime's metric labels but for the last."""

    SUCCESS = "success"
    REQUEUE_AFTER = "requeue_after"
    ERROR = "error"
    TERMINAL_ERROR = "terminal_error"


@dataclass(frozen=True, slots=True)
class ControllerStatistics:
    """A controller at one moment."""

    workers: int
    active: int
    """Workers that reconcile now."""
    outcomes: Mapping[Outcome, int]
    """How many reconciles ended so, since the start."""


class Controller(Generic[K]):
    """``run`` it once, in a thread of its own."""

    def __init__(
        self,
        name: str,
        reconcile: Callable[[K], Result | None] | Callable[[K], Awaitable[Result | None]],
        *,
        workers: int = 1,
        limiter: RateLimiter[K] | None = None,
        sync_timeout: float | None = None,
        reconcile_timeout: float | None = None,
        plain_errors: tuple[type[Exception], ...] = (),
        on_reconciled: Callable[[Outcome, float], None] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """
        :param reconcile: called with a key, never by two workers at once for the same one
        :param limiter: how long failing keys wait; client-go's default where none is given
        :param sync_timeout: seconds for the sources to bring all that there is; the default waits
            as long as it takes, since an API server that is down is not mended by leaving
        :param reconcile_timeout: seconds after which a coroutine is cancelled, which is an error
        :param plain_errors: errors whose message says all; others are logged with their traceback,
            the first time in a row
        :param on_reconciled: told how each reconcile ended and how many seconds it took
        :raises ValueError: if there is no worker, or a timeout for what cannot be interrupted
        """
        if workers < 1:
            raise ValueError(f"a controller needs at least one worker, not {workers}")
        self._coroutines = _gives_coroutines(reconcile)
        if reconcile_timeout is not None and not self._coroutines:
            raise ValueError("only a coroutine function can have a reconcile_timeout")
        self.name = f"controller {name}"
        self.queue: RateLimitingQueue[K] = RateLimitingQueue(limiter, name, clock=clock)
        self._reconcile = reconcile
        self._workers = workers
        self._sync_timeout = sync_timeout
        self._reconcile_timeout = reconcile_timeout
        self._plain_errors = plain_errors
        self._on_reconciled = on_reconciled
        self._clock = clock
        self._sources: list[Source[K]] = []
        self._started = False
        self._failure: BaseException | None = None
        self._counting = threading.Lock()
        self._active = 0
        self._outcomes: Counter[Outcome] = Counter()
        self._tracer = tracer()

    def watch(self, source: Source[K]) -> None:
        """Take keys from this source too.

        :raises RuntimeError: if the controller runs already
        """
        if self._started:
            raise RuntimeError(f"{self.name} runs already")
        self._sources.append(source)

    @property
    def has_synced(self) -> bool:
        """Whether every source has added all that there was at the start."""
        return all(source.has_synced for source in self._sources)

    @property
    def idle(self) -> bool:
        """Whether nothing is queued, being reconciled, or waiting to be tried again."""
        return self.queue.idle

    def statistics(self) -> ControllerStatistics:
        """Count workers and outcomes, at one moment."""
        with self._counting:
            outcomes = {outcome: self._outcomes[outcome] for outcome in Outcome}
            return ControllerStatistics(self._workers, self._active, outcomes)

    def run(self, stop: Stop) -> None:
        """Start the sources, wait until they have synced, and reconcile until asked to stop.

        :raises SyncTimeoutError: if a source has not synced in time
        :raises RuntimeError: if it ran before
        :raises BaseException: what a reconcile raised that is no ``Exception``
        """
        if self._started:
            raise RuntimeError(f"{self.name} runs once")
        self._started = True
        loop = Loop(f"{self.name} loop") if self._coroutines else None
        threads: list[threading.Thread | None] = []
        with (
            loop or nullcontext(),
            stop.child() as halt,
            halt.calling(self.queue.shut_down),
        ):
            try:
                for source in self._sources:
                    threads.append(source.start(self.queue.add, halt))  # noqa: PERF401 - joins those
                self._wait_for_sources(halt)
                for number in range(self._workers):
                    thread = threading.Thread(
                        target=self._work,
                        args=(halt, loop),
                        name=f"{self.name} worker {number}",
                        daemon=True,
                    )
                    threads.append(thread)
                    thread.start()
                halt.wait()
            finally:
                halt.set()
                for started in threads:
                    if started is not None:
                        started.join()
        if self._failure is not None:
            raise self._failure

    def _wait_for_sources(self, halt: Stop) -> None:
        started = self._clock.now()
        while not self.has_synced and not halt.wait(_SYNC_POLL):
            waited = self._clock.now() - started
            if self._sync_timeout is not None and waited >= self._sync_timeout:
                missing = ", ".join(s.name for s in self._sources if not s.has_synced)
                raise SyncTimeoutError(
                    f"{self.name}: not synced within {self._sync_timeout:g} s: {missing}"
                )

    def _work(self, halt: Stop, loop: Loop | None) -> None:
        while not halt:
            try:
                with self.queue.lease() as key:
                    if not halt:
                        self._reconcile_one(key, loop)
            except ShutDown:
                return
            except BaseException as error:  # noqa: BLE001 - raised again by ``run``
                self._failure = self._failure or error
                halt.set()

    def _reconcile_one(self, key: K, loop: Loop | None) -> None:
        with self._counting:
            self._active += 1
        started = self._clock.now()
        outcome = Outcome.ERROR
        try:
            with self._tracer.start_as_current_span(
                f"process {self.queue.name}",
                kind=SpanKind.CONSUMER,
                attributes={"reconciler.key": str(key)},
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                outcome = self._settle(key, loop, span)
        finally:
            with self._counting:
                self._active -= 1
                self._outcomes[outcome] += 1
        if self._on_reconciled is not None:
            self._on_reconciled(outcome, self._clock.now() - started)

    def _settle(self, key: K, loop: Loop | None, span: Span) -> Outcome:
        """Reconcile, and do with the key what the module's table says."""
        try:
            result = self._call(key, loop)
        except TerminalError as error:
            self.queue.forget(key)
            _log.error("%s: %s: %s; not tried again before it changes", self.name, key, error)
            _mark_failed(span, error)
            return Outcome.TERMINAL_ERROR
        except Exception as error:  # noqa: BLE001 - whatever it was, the key is tried again
            self.queue.add_rate_limited(key)
            self._log_failure(key, error)
            _mark_failed(span, error)
            return Outcome.ERROR
        self.queue.forget(key)
        if result is None or result.requeue_after is None:
            return Outcome.SUCCESS
        self.queue.add_after(key, result.requeue_after)
        return Outcome.REQUEUE_AFTER

    def _call(self, key: K, loop: Loop | None) -> Result | None:
        returned = self._reconcile(key)
        if loop is None:
            return cast("Result | None", returned)
        return loop.run(cast("Awaitable[Result | None]", returned), self._reconcile_timeout)

    def _log_failure(self, key: K, error: Exception) -> None:
        failures = self.queue.num_requeues(key)
        plain = failures > 1 or isinstance(error, self._plain_errors)
        # An error without a message, like TimeoutError(), is still one.
        what = str(error) or type(error).__name__
        _log.error(
            "%s: %s failed (%d in a row): %s",
            self.name,
            key,
            failures,
            what,
            exc_info=None if plain else error,
        )


def _gives_coroutines(function: Callable[..., object]) -> bool:
    called = type(function).__call__
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _mark_failed(span: Span, error: Exception) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(StatusCode.ERROR, str(error))

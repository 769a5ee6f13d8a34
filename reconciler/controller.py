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

A key that comes back keeps the priority with which it was handed out, unless the result gives it
another. Events that only say what was there anyway (the objects of the start, a resync) add their
keys at ``LOW_PRIORITY``, behind what has changed.

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
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from reconciler.loop import Loop, OutOfTimeError
from reconciler.meta import key_of
from reconciler.tracing import TracedQueue, mark_failed
from workqueue import SYSTEM_CLOCK, Clock, PriorityQueue, RateLimiter, ShutDown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from opentelemetry.trace import Tracer

    from reconciler.event import Event
    from reconciler.instruments import Instruments
    from reconciler.source import Add, Source
    from reconciler.stop import Stop

K = TypeVar("K", bound=Hashable)

_SYNC_POLL = 0.05

_log = logging.getLogger(__name__)


LOW_PRIORITY = -100
"""Of keys that are due only because of a start or a resync; all others begin at 0."""


class TerminalError(Exception):
    """Trying again will not help: the key waits for the next event."""


class SyncTimeoutError(Exception):
    """The sources did not bring all that there was in time; the message names them."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a reconcile ended well.

    ``requeue_after``: seconds until the key is added again. ``priority``: with which priority;
    higher numbers are handed out first, and without one the key keeps that which it had.
    """

    requeue_after: float | None = None
    priority: int | None = None


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
    events: int
    """How many keys the sources have added."""
    coalesced: int
    """How many of those were waiting already."""
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
        instruments: Instruments | None = None,
        tracer: Tracer | None = None,
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
        :param instruments: what to count with; its series need a name that no other controller has
        :param tracer: of the spans, one for each reconcile; that of the SDK where none is given
        :raises ValueError: if there is no worker, or a timeout for what cannot be interrupted
        """
        if workers < 1:
            raise ValueError(f"a controller needs at least one worker, not {workers}")
        self._coroutines = _gives_coroutines(reconcile)
        if reconcile_timeout is not None and not self._coroutines:
            raise ValueError("only a coroutine function can have a reconcile_timeout")
        self.name = f"controller {name}"
        metrics = instruments.queues if instruments else None
        self.queue: PriorityQueue[K] = PriorityQueue(limiter, name, clock=clock, metrics=metrics)
        self._traced = TracedQueue(self.queue, clock=clock, tracer=tracer)
        self._instruments = instruments.controller(name, workers) if instruments else None
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
        added = self._traced.statistics()
        with self._counting:
            outcomes = {outcome: self._outcomes[outcome] for outcome in Outcome}
            return ControllerStatistics(
                self._workers, self._active, added.events, added.coalesced, outcomes
            )

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
                    threads.append(source.start(self._add_from(source), halt))  # noqa: PERF401 - joins
                self._wait_for_sources(halt)
                if self._instruments:
                    self._instruments.started()
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
                self._drop_queued()
                if self._instruments:
                    self._instruments.ended()
        if self._failure is not None:
            raise self._failure

    def _add_from(self, source: Source[K]) -> Add[K]:
        def add(key: K, event: Event[Any] | None = None) -> None:
            attributes, priority = {"reconciler.source": source.name}, 0
            if event is not None:
                attributes["reconciler.event.type"] = event.type.value
                attributes["reconciler.event.object"] = str(key_of(event.obj))
                if event.initial or event.old is event.new:
                    priority = LOW_PRIORITY
            self._traced.add(
                key, attributes, lambda key: self.queue.add_with(key, priority=priority)
            )

        return add

    def _drop_queued(self) -> None:
        """Take what no worker has taken, so that the queue's series end."""
        with suppress(ShutDown):
            while True:
                self.queue.done(self.queue.get())

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
                key, priority = self.queue.get_with_priority()
            except ShutDown:
                return
            try:
                if not halt:
                    self._reconcile_one(key, priority, loop)
            except BaseException as error:  # noqa: BLE001 - raised again by ``run``
                if self._instruments:
                    self._instruments.panicked()
                self._failure = self._failure or error
                halt.set()
            finally:
                self.queue.done(key)

    def _reconcile_one(self, key: K, priority: int, loop: Loop | None) -> None:
        self._count_active(1)
        started = self._clock.now()
        outcome, error = Outcome.ERROR, None
        try:
            with self._traced.span(key) as span:
                outcome, error = self._settle(key, priority, loop)
                if error is not None:
                    mark_failed(span, error)
        finally:
            self._count_active(-1)
            with self._counting:
                self._outcomes[outcome] += 1
        seconds = self._clock.now() - started
        if self._instruments:
            terminal = outcome is Outcome.TERMINAL_ERROR
            self._instruments.reconciled(
                Outcome.ERROR.value if terminal else outcome.value,
                seconds,
                terminal=terminal,
                timed_out=isinstance(error, OutOfTimeError),
            )
        if self._on_reconciled is not None:
            self._on_reconciled(outcome, seconds)

    def _count_active(self, change: int) -> None:
        with self._counting:
            self._active += change
        if self._instruments:
            self._instruments.active(change)

    def _settle(self, key: K, priority: int, loop: Loop | None) -> tuple[Outcome, Exception | None]:
        """Reconcile, and do with the key what the module's table says."""
        try:
            result = self._call(key, loop)
        except TerminalError as error:
            self.queue.forget(key)
            _log.error("%s: %s: %s; not tried again before it changes", self.name, key, error)
            return Outcome.TERMINAL_ERROR, error
        except Exception as error:  # noqa: BLE001 - whatever it was, the key is tried again
            self.queue.add_with(key, priority=priority, rate_limited=True)
            self._log_failure(key, error)
            return Outcome.ERROR, error
        self.queue.forget(key)
        if result is None or result.requeue_after is None:
            return Outcome.SUCCESS, None
        priority = priority if result.priority is None else result.priority
        self.queue.add_with(key, priority=priority, after=result.requeue_after)
        return Outcome.REQUEUE_AFTER, None

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

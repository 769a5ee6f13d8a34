"""Writers to the in-memory server: pods that change all the time, and cron jobs' pods."""

from __future__ import annotations

import heapq
import threading
import time
from itertools import count
from typing import TYPE_CHECKING, Any

from rig.pods import pod

if TYPE_CHECKING:
    from collections.abc import Callable

    from reconciler.testing import ApiServer

_NAMESPACE = "default"
_FIRST_JOB = 1_000_000
_PENDING, _RUNS, _KEPT = 1.0, 20.0, 15.0
"""Seconds for which a job's pod waits, runs, and stays when it has completed."""


class Churn:
    """Changes pods and runs jobs for some seconds, in a thread of its own.

    Each change of a pod writes the time (``time.monotonic``) into its label ``written``.
    """

    def __init__(
        self,
        server: ApiServer,
        names: list[tuple[str, str]],
        *,
        seconds: float,
        updates: float,
        jobs: float,
    ) -> None:
        """
        :param updates: of pods, a second
        :param jobs: begun, a minute
        """
        self._server = server
        self._names = names
        self._end = time.monotonic() + seconds
        self._due: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = count()
        self._updates = self._jobs = 0
        self._update_every, self._job_every = 1 / updates, 60 / jobs
        self.written = 0.0
        """When the last update was written."""
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        now = time.monotonic()
        self._at(now, self._update)
        self._at(now, self._begin_job)
        while self._due and self._due[0][0] < self._end:
            at, _, step = heapq.heappop(self._due)
            time.sleep(max(0.0, at - time.monotonic()))
            step(at)
        self._update(self._end)  # so that the last write is one that must be noticed

    def _at(self, when: float, step: Callable[[float], None]) -> None:
        heapq.heappush(self._due, (when, next(self._order), step))

    def _update(self, at: float) -> None:
        namespace, name = self._names[self._updates % len(self._names)]
        self._updates += 1
        now = time.monotonic()
        self._patch(namespace, name, {"metadata": {"labels": {"written": f"{now:.3f}"}}})
        self.written = now
        self._at(at + self._update_every, self._update)

    def _begin_job(self, at: float) -> None:
        obj = pod(_FIRST_JOB + self._jobs)
        self._jobs += 1
        status = obj["status"]
        obj["metadata"]["namespace"] = _NAMESPACE
        obj["spec"]["restartPolicy"] = "Never"
        obj["status"] = {"phase": "Pending"}
        name = obj["metadata"]["name"]
        self._server.create(obj)
        ends = at + _PENDING + _RUNS
        self._at(at + _PENDING, lambda _: self._patch(_NAMESPACE, name, {"status": status}))
        finished = {"status": {"phase": "Succeeded"}}
        self._at(ends, lambda _: self._patch(_NAMESPACE, name, finished))
        self._at(ends + _KEPT, lambda _: self._server.delete("pods", name, _NAMESPACE))
        self._at(at + self._job_every, self._begin_job)

    def _patch(self, namespace: str, name: str, change: dict[str, Any]) -> None:
        self._server.patch("pods", name, change, namespace)

"""The in-memory API server as a child: pods, writers, and what its clients ask of it."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path

from reconciler.testing import ApiServer, EndWatch, Refuse
from rig.child import serve
from rig.churn import Churn
from rig.pods import namespaces, pod

_SAMPLE = 0.002

_server: ApiServer
_churn: Churn
_pods: list[tuple[str, str]] = []


def start(kubeconfig: str, history: int) -> None:
    """Serve, remember so many events, and write a kubeconfig to that path."""
    global _server
    _server = ApiServer(history=history).start()
    Path(kubeconfig).write_text(_server.kubeconfig())


def fill(pods: int) -> float:
    """Have so many pods, which is not fewer than before; the mean of the new ones' bytes."""
    for name in namespaces(pods)[len(namespaces(len(_pods))) :]:
        _server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    size = 0
    new = range(len(_pods), pods)
    for number in new:
        obj = _server.create(pod(number), validate=False)
        _pods.append((obj["metadata"]["namespace"], obj["metadata"]["name"]))
        size += len(json.dumps(obj, separators=(",", ":")))
    return size / len(new)


def burst(events: int) -> None:
    """Modify pods, one after another, so many times in all."""
    for number in range(events):
        namespace, name = _pods[number % len(_pods)]
        change = {"metadata": {"annotations": {"burst": f"{time.monotonic()}"}}}
        _server.patch("pods", name, change, namespace, validate=False)


def tick(seconds: float, rate: float) -> None:
    """For so long, so often a second, write the time into the first pod's label ``written``."""
    namespace, name = _pods[0]
    end = time.monotonic() + seconds
    while (now := time.monotonic()) < end:
        change = {"metadata": {"labels": {"written": f"{now:.3f}"}}}
        _server.patch("pods", name, change, namespace)
        time.sleep(1 / rate)


def fail_watches(code: int, in_stream: bool) -> None:
    """Fail every watch, by an answer or by an event of a watch that was accepted."""
    _server.faults.add(EndWatch(code) if in_stream else Refuse(code), verb="watch", times=None)


def recover() -> None:
    """Fail no more."""
    _server.faults.clear()


def observe(seconds: float) -> dict[str, object]:
    """What is asked about pods in so many seconds: when each watch began, and how many lists.

    ``connections`` is the most that were open at once.
    """
    began = time.monotonic()
    watches: list[float] = []
    lists = connections = 0
    seen = len(_server.requests(resource="pods"))
    while (now := time.monotonic() - began) < seconds:
        connections = max(connections, _server.statistics().connections)
        asked = _server.requests(resource="pods")
        for record in asked[seen:]:
            if record.verb.startswith("watch"):
                watches.append(now)
            else:
                lists += 1
        seen = len(asked)
        time.sleep(_SAMPLE)
    return {"watches": watches, "lists": lists, "connections": connections}


def churn(seconds: float, updates: float, jobs: float) -> None:
    """Begin to change pods, ``updates`` a second, and to run jobs, ``jobs`` a minute."""
    global _churn
    _churn = Churn(_server, _pods, seconds=seconds, updates=updates, jobs=jobs)
    _churn.thread.start()


def written() -> tuple[int, float]:
    """The version of the last write, and when the churn last updated a pod."""
    return _server.resource_version, _churn.written


def churned() -> int:
    """Wait until the churn is over; the version of its last write."""
    _churn.thread.join()
    return _server.resource_version


if __name__ == "__main__":
    gc.disable()  # it holds millions of objects: a collection would stop the server for a second
    serve(start, fill, burst, tick, fail_watches, recover, observe, churn, written, churned)

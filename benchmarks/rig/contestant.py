"""An informer as a child: ``slim``, ``unstructured`` or the official client's, ``official``.

Each imports only what it needs, so that its memory is what a program with such an informer has.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

from rig.child import serve, usage

if TYPE_CHECKING:
    from collections.abc import Callable


class Informer(Protocol):
    """An informer of all pods; ``handler`` is told of every event."""

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def add_slow_handler(self, handler: Callable[[object], None]) -> None:
        """Tell it too, in the way that the informer has for handlers that block."""
        ...

    def labels(self, namespace: str, name: str) -> dict[str, str]:
        """The labels that a pod has in the store."""
        ...


class Ours:
    """``reconciler.informer.Informer``."""

    def __init__(self, kubeconfig: str, handler: Callable[[object], None], *, slim: bool) -> None:
        from npc.api import decode_pod
        from reconciler.client import Resource, load
        from reconciler.informer import Informer
        from reconciler.meta import Unstructured
        from reconciler.stop import Stop

        client = load(kubeconfig)
        client.list(Resource("", "v1", "namespaces", "Namespace", namespaced=False), None, {})
        self._stop = Stop()
        decode: Any = decode_pod if slim else Unstructured.decode
        self._informer: Informer[Any] = Informer(client, Resource("", "v1", "pods", "Pod"), decode)
        self._informer.add_handler(handler)
        self._thread = threading.Thread(target=self._informer.run, args=(self._stop,))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def add_slow_handler(self, handler: Callable[[object], None]) -> None:
        self._informer.add_handler(handler, blocking=True)

    def labels(self, namespace: str, name: str) -> dict[str, str]:
        found = self._informer.store.get(namespace, name)
        return dict(found.labels) if found else {}


class Official:
    """``kubernetes.informer.SharedInformer``."""

    def __init__(self, kubeconfig: str, handler: Callable[[object], None]) -> None:
        import kubernetes
        import kubernetes.informer

        library: Any = kubernetes  # hardly typed
        library.config.load_kube_config(kubeconfig)
        api = library.client.CoreV1Api()
        api.list_namespace()
        self._informer = library.informer.SharedInformer(api.list_pod_for_all_namespaces)
        self.start = self._informer.start
        self.stop = self._informer.stop
        self.add_slow_handler(handler)

    def add_slow_handler(self, handler: Callable[[object], None]) -> None:
        for event in ("ADDED", "MODIFIED", "DELETED"):
            self._informer.add_event_handler(event, handler)

    def labels(self, namespace: str, name: str) -> dict[str, str]:
        found = self._informer.cache.get_by_key(f"{namespace}/{name}")
        return dict(found.metadata.labels) if found else {}


class Counter:
    """What the informer has told."""

    def __init__(self) -> None:
        self.events = 0
        self._target = 0
        self._reached = threading.Event()

    def __call__(self, _event: object) -> None:
        self.events += 1
        if self.events == self._target:
            self._reached.set()

    def wait(self, target: int) -> None:
        """Until so many events have been told in all."""
        self._target = target
        if self.events < target:
            self._reached.wait()
        self._reached.clear()


def main(kind: str, kubeconfig: str) -> None:
    # Faults are injected on purpose: what is logged of them is counted, not shown.
    logging.basicConfig(handlers=[logging.NullHandler()])
    told = Counter()
    informer: Informer
    if kind == "official":
        informer = Official(kubeconfig, told)
    else:
        informer = Ours(kubeconfig, told, slim=kind == "slim")
    gc.collect()

    def start() -> None:
        """Begin to follow the server."""
        informer.start()

    def sync(pods: int) -> dict[str, float]:
        """Start, and wait until so many pods are stored and told; memory is in bytes."""
        before, started = usage(), time.perf_counter()
        informer.start()
        told.wait(pods)
        seconds = time.perf_counter() - started
        time.sleep(1)  # until what was needed for the start has been given back
        after = usage()
        return {
            "seconds": seconds,
            "cpu": after["cpu"] - before["cpu"],
            "peak": after["peak"],
            "rss": after["rss"],
            "growth": after["rss"] - before["rss"],
        }

    def told_of(events: int) -> float:
        """Wait until so many events have been told since the start; CPU seconds so far."""
        told.wait(events)
        return usage()["cpu"]

    def lag(seconds: float, namespace: str, name: str) -> float:
        """Block a handler for so long; the oldest that the pod's label ``written`` gets, in
        seconds.
        """
        blocked = threading.Event()

        def block(_event: object) -> None:
            if not blocked.is_set():
                blocked.set()
                time.sleep(seconds)

        informer.add_slow_handler(block)
        blocked.wait()
        oldest = 0.0
        end = time.monotonic() + seconds
        while (now := time.monotonic()) < end:
            written = informer.labels(namespace, name).get("written")
            if written is not None:
                oldest = max(oldest, now - float(written))
            time.sleep(0.01)
        return oldest

    def stop() -> float:
        """Seconds until it has stopped."""
        started = time.perf_counter()
        informer.stop()
        return time.perf_counter() - started

    serve(start, sync, told_of, lag, stop)


if __name__ == "__main__":
    main(*sys.argv[1:])

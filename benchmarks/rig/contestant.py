"""An informer as a child: ``ours``, ``ours-unstructured`` or the official client's, ``official``.

Each imports only what it needs, so that its memory is what a program with such an informer has.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Any, Protocol

from rig.child import serve, usage


class Counter:
    """What the handlers were told, by number."""

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


class Contestant(Protocol):
    """An informer of all pods."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


class Ours:
    """``reconciler.informer.Informer``."""

    def __init__(self, kubeconfig: str, *, slim: bool, handler: Counter) -> None:
        from npc.api import decode_pod
        from reconciler.client import Resource, load
        from reconciler.informer import Informer
        from reconciler.meta import Unstructured
        from reconciler.stop import Stop

        client = load(kubeconfig)
        client.list(Resource("", "v1", "namespaces", "Namespace", namespaced=False), None, {})
        self._stop = Stop()
        decode: Any = decode_pod if slim else Unstructured.decode
        self.informer: Informer[Any] = Informer(client, Resource("", "v1", "pods", "Pod"), decode)
        self.informer.add_handler(handler)
        self._thread = threading.Thread(target=self.informer.run, args=(self._stop,))

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Official:
    """``kubernetes.informer.SharedInformer``."""

    def __init__(self, kubeconfig: str, *, handler: Counter) -> None:
        from kubernetes import client, config
        from kubernetes.informer import ADDED, DELETED, MODIFIED, SharedInformer

        config.load_kube_config(kubeconfig)
        api = client.CoreV1Api()
        api.list_namespace()
        self.informer = SharedInformer(api.list_pod_for_all_namespaces)
        for event in (ADDED, MODIFIED, DELETED):
            self.informer.add_event_handler(event, handler)

    def start(self) -> None:
        self.informer.start()

    def stop(self) -> None:
        self.informer.stop()


def main(kind: str, kubeconfig: str) -> None:
    counter = Counter()
    contestant: Contestant = (
        Official(kubeconfig, handler=counter)
        if kind == "official"
        else Ours(kubeconfig, slim=kind == "ours", handler=counter)
    )

    def sync(pods: int) -> dict[str, Any]:
        """Start, and wait until so many pods are stored and told."""
        before, started = usage(), time.perf_counter()
        contestant.start()
        counter.wait(pods)
        seconds = time.perf_counter() - started
        time.sleep(1)  # until what was needed for the start has been given back
        after = usage()
        return {
            "seconds": seconds,
            "cpu": after["cpu"] - before["cpu"],
            "peak": after["peak"],
            "peak growth": after["peak"] - before["rss"],
            "rss": after["rss"],
            "growth": after["rss"] - before["rss"],
        }

    def stop() -> float:
        """Seconds until it has stopped."""
        started = time.perf_counter()
        contestant.stop()
        return time.perf_counter() - started

    serve(sync, stop)


if __name__ == "__main__":
    main(*sys.argv[1:])

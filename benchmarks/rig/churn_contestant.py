"""A program with a slow sync as a child: ``controller``, ``blocking`` or ``official``."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from rig.child import serve, usage

if TYPE_CHECKING:
    from collections.abc import Callable


class Progress:
    """How far the store is, and the syncs. ``version`` is the server's, here a number."""

    def __init__(self, sync_seconds: float) -> None:
        self.version = 0
        self.written = 0.0
        """When the newest change in the store was written, by ``time.monotonic``."""
        self.delay = 0.0
        """From a change's writing to its storing, the greatest since it was last asked for."""
        self.syncs: list[int] = []
        """Of each sync that has ended, the version that the store had when it began."""
        self.most_at_once = 0
        self.synced = threading.Event()
        self._seconds = sync_seconds
        self._running = 0
        self._lock = threading.Lock()

    def stored(self, version: str, labels: dict[str, str] | None) -> None:
        """A change is in the store."""
        self.version = max(self.version, int(version))
        written = float((labels or {}).get("written", 0))
        if written > self.written:
            self.written = written
            self.delay = max(self.delay, time.monotonic() - written)

    def sync(self) -> None:
        """What takes so long."""
        with self._lock:
            self._running += 1
            self.most_at_once = max(self.most_at_once, self._running)
            version = self.version
        time.sleep(self._seconds)
        with self._lock:
            self._running -= 1
            self.syncs.append(version)
        self.synced.set()


def controller(kubeconfig: str, progress: Progress) -> Callable[[], int]:
    """The way of ``npc``: any change adds one constant key, one worker syncs."""
    from npc.controller import KEY, pod_view
    from reconciler.controller import Controller
    from reconciler.handler import enqueue_key
    from reconciler.predicate import view_changed
    from reconciler.source import Kind

    informer = _informer(kubeconfig, progress)

    def reconcile(_key: str) -> None:
        informer.store.snapshot()
        progress.sync()

    syncing: Controller[str] = Controller("churn", reconcile)
    syncing.watch(Kind(informer, enqueue_key(KEY), view_changed(pod_view)))
    _run(informer.run)
    _run(syncing.run)
    informer.wait_synced()
    return lambda: len(syncing.queue)


def blocking(kubeconfig: str, progress: Progress) -> Callable[[], int]:
    """A handler that syncs, registered as one that blocks."""
    informer = _informer(kubeconfig, progress)
    _run(informer.run)
    informer.wait_synced()

    def handle(event: Any) -> None:
        if not event.initial:
            progress.sync()

    registration = informer.add_handler(handle, blocking=True)
    return lambda: registration.pending


def official(kubeconfig: str, pods: int, progress: Progress) -> Callable[[], int]:
    """The official client's informer with a handler that syncs."""
    import kubernetes
    import kubernetes.informer

    library: Any = kubernetes
    library.config.load_kube_config(kubeconfig)
    api = library.client.CoreV1Api()
    informer = library.informer.SharedInformer(api.list_pod_for_all_namespaces)
    told = 0
    listed = threading.Event()

    def handle(pod: Any) -> None:
        nonlocal told
        told += 1
        progress.stored(pod.metadata.resource_version, pod.metadata.labels)
        if told == pods:
            listed.set()
        elif told > pods:
            progress.sync()

    for event in ("ADDED", "MODIFIED", "DELETED"):
        informer.add_event_handler(event, handle)
    informer.start()
    listed.wait()
    return lambda: 0


def _informer(kubeconfig: str, progress: Progress) -> Any:
    from npc.api import Pod, decode_pod
    from reconciler.client import Resource, load
    from reconciler.informer import Informer

    informer: Informer[Pod] = Informer(
        load(kubeconfig), Resource("", "v1", "pods", "Pod"), decode_pod
    )
    informer.add_handler(
        lambda event: progress.stored(event.obj.resource_version, event.obj.labels)
    )
    return informer


def _run(target: Callable[[Any], None]) -> None:
    from reconciler.stop import Stop

    threading.Thread(target=target, args=(Stop(),), daemon=True).start()


def main(kind: str, kubeconfig: str, pods: str, sync_seconds: str) -> None:
    logging.basicConfig(handlers=[logging.NullHandler()])
    progress = Progress(float(sync_seconds))
    pending: Callable[[], int]

    def start() -> None:
        """Follow the server; return when all pods are there."""
        nonlocal pending
        if kind == "official":
            pending = official(kubeconfig, int(pods), progress)
        else:
            pending = {"controller": controller, "blocking": blocking}[kind](kubeconfig, progress)

    def sample() -> dict[str, float]:
        """What is true now; ``delay`` is the greatest since the sample before."""
        delay, progress.delay = progress.delay, 0.0
        return {
            "rss": usage()["rss"],
            "delay": delay,
            "written": progress.written,
            "version": progress.version,
            "syncs": len(progress.syncs),
            "pending": pending(),
        }

    def settle(version: int, seconds: float) -> dict[str, int]:
        """Wait for a sync that began with this version in the store, for so long at most."""
        end = time.monotonic() + seconds
        while not any(seen >= version for seen in progress.syncs) and time.monotonic() < end:
            progress.synced.clear()
            progress.synced.wait(1)
        followed = sum(seen >= version for seen in progress.syncs)
        return {
            "at once": progress.most_at_once,
            "followed": followed,
            "syncs": len(progress.syncs),
        }

    serve(start, sample, settle)


if __name__ == "__main__":
    main(*sys.argv[1:])

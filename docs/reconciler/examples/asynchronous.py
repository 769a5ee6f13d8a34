"""Asks the URLs of each Probe from time to time, all at once, and writes the answers in its status.

kubectl apply -f probe-crd.yaml
kubectl apply -f - <<< '{"apiVersion": "example.com/v1", "kind": "Probe",
                         "metadata": {"name": "web"}, "spec": {"urls": ["http://10.1.0.7/"]}}'
"""

from __future__ import annotations

import asyncio
import logging
import os
from urllib.parse import urlsplit

import msgspec

from reconciler.client import Client, Resource, TransportError, load
from reconciler.controller import Controller, Result
from reconciler.handler import enqueue_object
from reconciler.informer import Informer
from reconciler.manager import Group, Manager
from reconciler.meta import Request, Typed
from reconciler.objects import Objects
from reconciler.predicate import generation_changed
from reconciler.source import Kind

PROBES = Resource("example.com", "v1", "probes", "Probe")


class ProbeSpec(msgspec.Struct, rename="camel", frozen=True):
    """What to ask, and after how many seconds again."""

    urls: tuple[str, ...]
    period_seconds: float = 30.0


class Probe(Typed, frozen=True):
    """The part of a Probe that we read."""

    spec: ProbeSpec


async def ask(url: str) -> str:
    """The first line of the answer, or why there is none."""
    try:
        where = urlsplit(url)
        async with asyncio.timeout(5):
            reader, writer = await asyncio.open_connection(where.hostname, where.port or 80)
            try:
                writer.write(f"GET {where.path or '/'} HTTP/1.0\r\n\r\n".encode())
                return (await reader.readline()).decode(errors="replace").strip()
            finally:
                writer.close()
    except (OSError, ValueError) as error:  # a TimeoutError is an OSError
        return str(error) or "no answer in time"


def assemble(client: Client) -> Manager:
    """The whole program, ready to run."""
    probes = Objects(client, PROBES, Probe.decode, manager="probes")
    informer = Informer(client, PROBES, Probe.decode)

    async def reconcile(key: Request) -> Result | None:
        probe = informer.store.find(key)
        if probe is None:
            return None
        answers = await asyncio.gather(*map(ask, probe.spec.urls))
        status = {"answers": dict(zip(probe.spec.urls, answers, strict=True))}
        # The client waits for the server, which only a thread may do.
        await asyncio.to_thread(probes.status.patch, key, {"status": status})
        return Result(requeue_after=probe.spec.period_seconds)

    controller = Controller(
        "probes", reconcile, workers=16, reconcile_timeout=60, plain_errors=(TransportError,)
    )
    controller.watch(Kind(informer, enqueue_object, generation_changed))

    manager = Manager()
    manager.add(Group.CACHES, informer)
    manager.add(Group.CONTROLLERS, controller)
    return manager


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    assemble(load(os.environ.get("KUBECONFIG"))).run()

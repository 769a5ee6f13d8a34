"""Keeps a checksum of a ConfigMap's content in an annotation, for each that asks for it by a label.

kubectl label configmap settings example.com/checksum=wanted
"""

from __future__ import annotations

import hashlib
import json
import logging
import os

from reconciler.client import Client, Resource, TransportError, load
from reconciler.controller import Controller
from reconciler.handler import enqueue_object
from reconciler.informer import Informer
from reconciler.manager import Group, Manager
from reconciler.meta import Request, Unstructured
from reconciler.objects import Objects
from reconciler.source import Kind

CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
SELECTOR = "example.com/checksum=wanted"
ANNOTATION = "example.com/checksum"


def checksum(config_map: Unstructured) -> str:
    """The same for the same content, whatever the order of its keys."""
    content = [config_map.data.get(field) for field in ("data", "binaryData")]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def assemble(client: Client) -> Manager:
    """The whole program, ready to run."""
    config_maps = Objects(client, CONFIG_MAPS, Unstructured.decode, manager="checksum")
    informer = Informer(client, CONFIG_MAPS, Unstructured.decode, label_selector=SELECTOR)

    def reconcile(key: Request) -> None:
        config_map = informer.store.find(key)
        if config_map is None:
            return  # deleted, or no longer wanted
        wanted = checksum(config_map)
        if config_map.annotations.get(ANNOTATION) != wanted:
            config_maps.patch(key, {"metadata": {"annotations": {ANNOTATION: wanted}}})

    controller = Controller("checksum", reconcile, workers=2, plain_errors=(TransportError,))
    controller.watch(Kind(informer, enqueue_object))

    manager = Manager()
    manager.add(Group.CACHES, informer)
    manager.add(Group.CONTROLLERS, controller)
    return manager


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    assemble(load(os.environ.get("KUBECONFIG"))).run()

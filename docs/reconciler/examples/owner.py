"""Gives each Website a ConfigMap with its page, and writes into its status where that is.

kubectl apply -f website-crd.yaml
kubectl apply -f - <<< '{"apiVersion": "example.com/v1", "kind": "Website",
                         "metadata": {"name": "home"}, "spec": {"title": "Welcome"}}'
"""

from __future__ import annotations

import html
import logging
import os
from typing import Any

from reconciler.client import ApiError, Client, Resource, TransportError, load
from reconciler.controller import Controller, Result
from reconciler.handler import enqueue_object, enqueue_owner
from reconciler.informer import Informer
from reconciler.manager import Group, Manager
from reconciler.meta import Request, Unstructured
from reconciler.objects import Objects, controller_reference
from reconciler.predicate import generation_changed
from reconciler.source import Kind

WEBSITES = Resource("example.com", "v1", "websites", "Website")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")
MANAGED = {"app.kubernetes.io/managed-by": "websites"}


def page_of(website: Unstructured) -> dict[str, Any]:
    """The ConfigMap that a Website owns. The cluster deletes it together with the Website."""
    title = html.escape(website.data["spec"]["title"])
    return {
        "metadata": {
            "namespace": website.namespace,
            "name": f"{website.name}-page",
            "labels": MANAGED,
            "ownerReferences": [controller_reference(website, WEBSITES)],
        },
        "data": {"index.html": f"<!doctype html><title>{title}</title><h1>{title}</h1>\n"},
    }


class WebsiteReconciler:
    """Makes a Website's page as it should be, and says so in its status."""

    def __init__(self, client: Client) -> None:
        self.informer = Informer(client, WEBSITES, Unstructured.decode)
        self._websites = Objects(client, WEBSITES, Unstructured.decode, manager="websites")
        self._pages = Objects(client, CONFIG_MAPS, Unstructured.decode, manager="websites")

    def __call__(self, key: Request) -> Result | None:
        website = self.informer.store.find(key)
        if website is None or "deletionTimestamp" in website.metadata:
            return None
        page = self._pages.apply(page_of(website))
        status = {"page": page.name, "observedGeneration": website.generation}
        if website.data.get("status") == status:
            return None
        try:
            self._websites.status.update({**website.data, "status": status})
        except ApiError as error:
            if not error.conflict:
                raise
            return Result(requeue_after=0.1)  # ours is out of date; the new one is under way
        return None


def assemble(client: Client) -> Manager:
    """The whole program, ready to run."""
    reconcile = WebsiteReconciler(client)
    selector = ",".join(f"{key}={value}" for key, value in MANAGED.items())
    pages = Informer(client, CONFIG_MAPS, Unstructured.decode, label_selector=selector)

    controller = Controller("websites", reconcile, workers=2, plain_errors=(TransportError,))
    controller.watch(Kind(reconcile.informer, enqueue_object, generation_changed))
    controller.watch(Kind(pages, enqueue_owner(WEBSITES)))

    manager = Manager()
    manager.add(Group.CACHES, reconcile.informer, pages)
    manager.add(Group.CONTROLLERS, controller)
    return manager


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    assemble(load(os.environ.get("KUBECONFIG"))).run()

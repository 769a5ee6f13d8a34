"""Test support: an in-memory Kubernetes API over real HTTP.

    from reconciler.testing import ApiServer

    with ApiServer() as server:
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        ...  # point kubectl, the official client or a reconciler at server.url

`Resource` registers custom resources; the other names are faults to inject through `server.faults`.
See `docs/testing-server.md`.
"""

from reconciler.testing.errors import ApiError
from reconciler.testing.faults import (
    Cut,
    DuplicateInitial,
    EndWatch,
    Fault,
    Faults,
    HangUp,
    NoBookmarks,
    Refuse,
    ShuffleInitial,
    Slow,
    Stall,
)
from reconciler.testing.objects import Object
from reconciler.testing.registry import Resource
from reconciler.testing.router import Record
from reconciler.testing.server import ApiServer, Statistics

__all__ = [
    "ApiError",
    "ApiServer",
    "Cut",
    "DuplicateInitial",
    "EndWatch",
    "Fault",
    "Faults",
    "HangUp",
    "NoBookmarks",
    "Object",
    "Record",
    "Refuse",
    "Resource",
    "ShuffleInitial",
    "Slow",
    "Stall",
    "Statistics",
]

"""The in-memory API server as a child, with pods in it."""

from __future__ import annotations

import json
from typing import Any

from reconciler.testing import ApiServer
from rig.child import serve
from rig.pods import namespaces, pod

_server = ApiServer(history=200_000)
_pods: list[dict[str, Any]] = []


def start(kubeconfig: str) -> None:
    """Serve, and write a kubeconfig to that path."""
    from pathlib import Path

    _server.start()
    Path(kubeconfig).write_text(_server.kubeconfig())


def fill(pods: int) -> float:
    """Have so many pods, which is not fewer than before; the mean of their bytes of JSON."""
    for name in namespaces(pods)[len(namespaces(len(_pods))) :]:
        _server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    _pods.extend(_server.create(pod(number), validate=False) for number in range(len(_pods), pods))
    return sum(len(json.dumps(obj, separators=(",", ":"))) for obj in _pods) / len(_pods)


if __name__ == "__main__":
    serve(start, fill)

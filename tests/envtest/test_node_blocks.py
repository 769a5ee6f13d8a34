"""The blocks of a Node object, as API servers tell them to the agent."""

from __future__ import annotations

import ipaddress
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from npc.node import NodeBlocks
from npc.policy import Network
from npc.ruleset import Family
from reconciler.client import load
from reconciler.stop import Stop
from tests.envtest.api import PATIENCE, Api
from tests.envtest.processes import NOBODY

NODES = "/api/v1/nodes"


@contextmanager
def asking(kubeconfig: Path, name: str) -> Iterator[tuple[NodeBlocks, list[tuple[Network, ...]]]]:
    found: list[tuple[Network, ...]] = []
    blocks = NodeBlocks(load(str(kubeconfig)), name, tuple(Family), found.append)
    stop = Stop()
    thread = threading.Thread(target=blocks.run, args=(stop,))
    thread.start()
    try:
        yield blocks, found
    finally:
        stop.set()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def wait_for_answer(blocks: NodeBlocks) -> str:
    """What is missing, by the first answer; nothing if that names the blocks."""
    deadline = time.monotonic() + PATIENCE
    while not blocks.has_synced or blocks.check() == "not asked yet":
        assert time.monotonic() < deadline
        threading.Event().wait(0.005)
    return blocks.check() or ""


def test_the_blocks_of_this_node_among_others_are_found_once_it_has_them(api: Api) -> None:
    name, other = f"n-{uuid.uuid4().hex[:8]}", f"m-{uuid.uuid4().hex[:8]}"
    theirs: dict[str, Any] = {"podCIDR": "10.0.9.0/24", "podCIDRs": ["10.0.9.0/24"]}
    api.request("POST", NODES, {"metadata": {"name": other}, "spec": theirs})
    with asking(api.kubeconfig, name) as (blocks, found):
        assert wait_for_answer(blocks).startswith(f"there is no node {name}")
        ours = {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24", "fd00:1::/64"]}
        api.request("POST", NODES, {"metadata": {"name": name}})
        api.patch(f"{NODES}/{name}", {"spec": ours})  # as the controller manager gives them
        deadline = time.monotonic() + PATIENCE
        while blocks.check() is not None:
            assert time.monotonic() < deadline
            threading.Event().wait(0.005)
    assert found == [(ipaddress.ip_network("10.0.1.0/24"), ipaddress.ip_network("fd00:1::/64"))]


def test_blocks_that_are_there_are_found_at_once(api: Api) -> None:
    name = f"n-{uuid.uuid4().hex[:8]}"
    ours = {"podCIDR": "10.0.1.0/24", "podCIDRs": ["10.0.1.0/24", "fd00:1::/64"]}
    api.request("POST", NODES, {"metadata": {"name": name}, "spec": ours})
    with asking(api.kubeconfig, name) as (blocks, found):
        assert wait_for_answer(blocks) == ""
        assert len(found) == 1


def test_who_may_not_list_nodes_is_told_so(real_api: Any) -> None:
    with asking(real_api.kubeconfig(NOBODY), "n") as (blocks, _):
        missing = wait_for_answer(blocks)
    assert missing.startswith('403 Forbidden: nodes "n" is forbidden')
    assert "--strict-startup needs the right to list nodes" in missing

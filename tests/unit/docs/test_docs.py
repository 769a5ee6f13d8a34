"""What the documents show runs, and what they link to is there."""

from __future__ import annotations

import http.client
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.client import Client, load
from reconciler.health import HealthServer
from reconciler.manager import Group, Manager
from reconciler.meta import Request
from reconciler.stop import Stop
from reconciler.testing import ApiServer

ROOT = Path(__file__).parents[3]
PATIENCE = 20.0
DOCUMENTS = sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("*.md")])

_LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
_EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    broken = [
        link
        for link in _LINK.findall(document.read_text())
        if not (document.parent / link).exists()
    ]
    assert broken == []


def test_the_queues_example_runs() -> None:
    page = ROOT / "docs" / "queue" / "python.md"
    example = _EXAMPLE.findall(page.read_text())[0]
    done = subprocess.run(
        [sys.executable, "-c", example], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "'web': 3" in done.stdout
    assert "'api': 2" in done.stdout


@pytest.mark.parametrize("page", ["deploy.md", "troubleshooting.md"])
def test_the_question_whether_an_agent_is_ready_is_answered_also_if_it_is_not(page: str) -> None:
    [question] = re.findall(r'python -c \\\n  "(.*?)"', (ROOT / "docs" / page).read_text())
    health = HealthServer(("127.0.0.1", 0))
    health.add_check("sync", lambda: "nothing was applied yet")
    stop = Stop()
    serving = threading.Thread(target=health.run, args=(stop,))
    serving.start()
    program = question.replace("20245", str(health.address[1])).replace("$1", "/readyz?verbose")
    try:
        answer = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
        )
    finally:
        stop.set()
        serving.join()
    assert "[-]sync failed: nothing was applied yet" in answer.stdout, answer.stderr


# -- the guide to the framework ----------------------------------------------------------------

GUIDE = sorted((ROOT / "docs" / "reconciler").glob("*.md"))
EXAMPLES = sorted((ROOT / "docs" / "reconciler" / "examples").glob("*.py"))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """Of a server with a pod, which the guide's pages speak of."""
    with ApiServer() as server:
        server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
        labels = {"app": "web", "tier": "front"}
        pod = {"apiVersion": "v1", "kind": "Pod", "spec": {"containers": [{"name": "main"}]}}
        pod["metadata"] = {"namespace": "shop", "name": "web-1", "labels": labels}
        server.create(pod, validate=False)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.kubeconfig())
        yield load(str(kubeconfig))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_guide_shows_each_example_as_it_is(example: Path) -> None:
    text = example.read_text()
    assert len(text.splitlines()) < 100
    assert sum(_EXAMPLE.findall(page.read_text()).count(text) for page in GUIDE) == 1


@pytest.mark.parametrize("page", GUIDE, ids=lambda path: path.name)
def test_what_a_page_of_the_guide_shows_runs_in_one_go(page: Path, client: Client) -> None:
    examples = {example.read_text() for example in EXAMPLES}
    shown = [text for text in _EXAMPLE.findall(page.read_text()) if text not in examples]
    assert shown
    printed: queue.Queue[tuple[object, ...]] = queue.Queue()
    names: dict[str, Any] = {"client": client, "print": lambda *words: printed.put(words)}
    for text in shown:
        exec(compile(text, str(page), "exec", dont_inherit=True), names)
    if page.name == "manager.md":
        witness = Witness(names["manager"], names["health"], printed)
        names["manager"].add(Group.SERVERS, witness)
        names["manager"].run()
        assert (witness.printed, witness.status) == ((Request("shop", "web-1"),), 200)


class Witness:
    """A part of the page's program, which ends it when it has done its work."""

    name = "witness"

    def __init__(self, manager: Manager, health: HealthServer, printed: queue.Queue[Any]) -> None:
        self._manager = manager
        self._health = health
        self._printed = printed
        self.printed: object = None
        self.status = 0

    def run(self, _stop: Stop) -> None:
        self.printed = self._printed.get(timeout=PATIENCE)
        connection = http.client.HTTPConnection(*self._health.address, timeout=PATIENCE)
        connection.request("GET", "/readyz")
        self.status = connection.getresponse().status
        connection.close()
        self._manager.stop()

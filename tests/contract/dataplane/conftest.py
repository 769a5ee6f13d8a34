"""A node of its own for every test: a network namespace, in one mode, for one family."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from npc.dataplane.mode import Mode
from npc.ruleset import Family
from tests.contract.dataplane.netns import Namespace
from tests.contract.dataplane.node import Node, Wrapped

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Namespace]:
    """A private network; the xtables lock is a file, so it has to be private as well."""
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))
    own = Namespace()
    with contextlib.closing(own), own:
        yield own


@pytest.fixture(params=list(Mode), ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


@pytest.fixture(params=list(Family), ids=lambda family: f"v{family.value}")
def family(request: pytest.FixtureRequest) -> Family:
    value: Family = request.param
    return value


@pytest.fixture
def node(namespace: Namespace, mode: Mode, family: Family) -> Node:
    return Node(mode, family)


@pytest.fixture
def node4(namespace: Namespace, mode: Mode) -> Node:
    """For what does not depend on the family."""
    return Node(mode, Family.IPV4)


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wrapped:
    return Wrapped(tmp_path / "bin", monkeypatch)

"""A node of its own for every test: a network namespace, with one dataplane, for one family."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from npc.ruleset import Family
from tests.contract.dataplane.netns import Namespace
from tests.contract.dataplane.node import VARIANTS, Node, Wrapped, make_node

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


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """The name of a dataplane."""
    value: str = request.param
    return value


@pytest.fixture(params=list(Family), ids=lambda family: f"v{family.value}")
def family(request: pytest.FixtureRequest) -> Family:
    value: Family = request.param
    return value


@pytest.fixture
def node(namespace: Namespace, variant: str, family: Family) -> Node:
    return make_node(variant, family)


@pytest.fixture
def node4(namespace: Namespace, variant: str) -> Node:
    """For what does not depend on the family."""
    return make_node(variant, Family.IPV4)


@pytest.fixture
def wrapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wrapped:
    return Wrapped(tmp_path / "bin", monkeypatch)

"""The network of each test, with each dataplane, for each family, routed and bridged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from npc.ruleset import Family
from tests.contract.dataplane.node import VARIANTS
from tests.e2e.dataplane.lan import Lan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def private_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The xtables lock is a file, so no namespace makes it private."""
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))


@pytest.fixture(params=VARIANTS)
def variant(request: pytest.FixtureRequest) -> str:
    """The name of a dataplane."""
    value: str = request.param
    return value


@pytest.fixture(params=list(Family), ids=lambda family: f"v{family.value}")
def family(request: pytest.FixtureRequest) -> Family:
    value: Family = request.param
    return value


@pytest.fixture(params=["routed", "bridged"])
def lan(variant: str, family: Family, request: pytest.FixtureRequest) -> Iterator[Lan]:
    with contextlib.ExitStack() as stack:
        yield Lan(variant, family, stack, bridged=request.param == "bridged")


@pytest.fixture
def routed(variant: str, family: Family) -> Iterator[Lan]:
    with contextlib.ExitStack() as stack:
        yield Lan(variant, family, stack)


@pytest.fixture
def lan4(variant: str) -> Iterator[Lan]:
    """For what is the same in both families."""
    with contextlib.ExitStack() as stack:
        yield Lan(variant, Family.IPV4, stack)

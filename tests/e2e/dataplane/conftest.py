"""The network of each test, in each mode, for each family, routed and bridged."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from npc.dataplane.mode import Mode
from npc.ruleset import Family
from tests.e2e.dataplane.lan import Lan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def private_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The xtables lock is a file, so no namespace makes it private."""
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))


@pytest.fixture(params=list(Mode), ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> Mode:
    value: Mode = request.param
    return value


@pytest.fixture(params=list(Family), ids=lambda family: f"v{family.value}")
def family(request: pytest.FixtureRequest) -> Family:
    value: Family = request.param
    return value


@pytest.fixture(params=["routed", "bridged"])
def lan(mode: Mode, family: Family, request: pytest.FixtureRequest) -> Iterator[Lan]:
    with contextlib.ExitStack() as stack:
        yield Lan(mode, family, stack, bridged=request.param == "bridged")


@pytest.fixture
def routed(mode: Mode, family: Family) -> Iterator[Lan]:
    with contextlib.ExitStack() as stack:
        yield Lan(mode, family, stack)


@pytest.fixture
def lan4(mode: Mode) -> Iterator[Lan]:
    """For what is the same in both families."""
    with contextlib.ExitStack() as stack:
        yield Lan(mode, Family.IPV4, stack)

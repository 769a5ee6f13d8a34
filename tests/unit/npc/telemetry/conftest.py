from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Protocol

import pytest

from npc.telemetry.assembly import Telemetry
from tests.telemetry.installed import installed
from tests.telemetry.receiver import Receiver, receiver


class Start(Protocol):
    def __call__(self, **environment: str) -> Telemetry: ...


@pytest.fixture
def collector() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts telemetry by an environment; it is the program's until the test ends."""
    with ExitStack() as stack:
        yield lambda **environment: stack.enter_context(installed(**environment))

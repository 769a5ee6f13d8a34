from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.workqueue.fronts import Asyncio, Threaded
from workqueue.testing import FakeClock


@pytest.fixture(params=[Threaded, Asyncio], ids=["threaded", "asyncio"])
def front(request: pytest.FixtureRequest) -> Iterator[Threaded | Asyncio]:
    made: Threaded | Asyncio = request.param()
    yield made
    made.close()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()

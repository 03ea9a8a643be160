from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.testing import FakeClock, run_terminal
from tests.contracts.ways import WAYS, Way
from tests.contracts.whole import run_whole


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def terminal(crashes: list[Any]) -> AsyncIterator[Terminal]:
    """A terminal in memory that also listens, with a real clock."""
    async with run_whole(port=0) as running:
        yield running


@pytest.fixture
async def timed(crashes: list[Any], clock: FakeClock) -> AsyncIterator[Terminal]:
    """A terminal whose time passes by ``clock.advance``."""
    async with run_terminal(port=0, clock=clock) as running:
        yield running


@pytest.fixture
async def bus(terminal: Terminal, way: Way) -> AsyncIterator[Any]:
    async with way.connect(terminal) as connected:
        yield connected

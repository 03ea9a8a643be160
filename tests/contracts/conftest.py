from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from landbridge.broker.server import Terminal
from landbridge.broker.topic import Topic
from landbridge.testing import FakeClock, run_terminal
from landbridge.testing.cluster import Nodes, run_nodes
from tests.contracts.ways import WAYS, Way


@pytest.fixture(params=WAYS, ids=lambda way: way.name)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


class Whole:
    """A node for clients; tests that look inside see the topics of all nodes."""

    def __init__(self, nodes: Nodes, node: str) -> None:
        self._terminal = nodes[node]
        self.broker = WholeBroker(nodes, node)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._terminal, name)


class WholeBroker:
    def __init__(self, nodes: Nodes, node: str) -> None:
        self._nodes, self._broker = nodes, nodes[node].broker

    @property
    def topics(self) -> ChainMap[str, Topic]:
        return ChainMap(*(terminal.broker.topics for terminal in self._nodes.terminals.values()))

    def topic(self, name: str) -> Topic:
        return self.topics[name]

    def group(self, topic: str, name: str) -> Any:
        return self.topics[topic].groups[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


@pytest.fixture
async def terminal(crashes: list[Any]) -> AsyncIterator[Terminal]:
    """A terminal in memory that also listens, with a real clock."""
    if os.environ.get("LANDBRIDGE_TEST_NODES"):
        async with run_nodes(("a", "b", "c", "d"), owners=("a", "b", "c")) as nodes:
            await nodes["d"].listen("127.0.0.1", 0)
            yield cast(Any, Whole(nodes, "d"))
        return
    async with run_terminal(port=0) as running:
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

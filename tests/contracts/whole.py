"""A terminal of several nodes in the place of one: clients are at a node that owns nothing, and tests that
look inside see the topics of all nodes. With LANDBRIDGE_TEST_NODES set, the contract suites run on that."""

from __future__ import annotations

import os
from collections import ChainMap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

from landbridge.broker.broker import Broker
from landbridge.broker.server import Terminal
from landbridge.broker.topic import Topic
from landbridge.testing import run_terminal
from landbridge.testing.cluster import Nodes, run_nodes

BY_NODES = bool(os.environ.get("LANDBRIDGE_TEST_NODES"))


class Whole:
    """One node for clients."""

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

    @property
    def table(self) -> WholeTable:
        return WholeTable(self.topics, self._broker)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._broker, name)


class WholeTable:
    def __init__(self, topics: Mapping[str, Topic], broker: Broker) -> None:
        self._topics, self._table = topics, broker.table

    def topic(self, name: str) -> Topic:
        return self._topics[name]

    def group(self, topic: str, name: str) -> Any:
        return self._topics[topic].groups[name]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)


@asynccontextmanager
async def run_whole(port: int | None = None, **options: Any) -> AsyncIterator[Terminal]:
    """A terminal, or several nodes where that is asked for. Tests that restart one, or set its clock, get
    one."""
    if not BY_NODES or set(options) - {"limits"}:
        async with run_terminal(port=port, **options) as running:
            yield running
        return
    async with run_nodes(("a", "b", "c", "d"), owners=("a", "b", "c"), **options) as nodes:
        if port is not None:
            await nodes["d"].listen("127.0.0.1", port)
        yield cast(Terminal, Whole(nodes, "d"))

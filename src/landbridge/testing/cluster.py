"""Several nodes of one terminal in this process, for tests: their store is in memory, and the table of nodes
is what the test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from landbridge.broker.cluster import Cluster
from landbridge.broker.legs import Dial
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.errors import TerminalUnreachable
from landbridge.stores.memory import MemoryHandle, MemoryStore
from landbridge.transport.memory import join

#: Moments of the table: the nodes are alive all the time.
NOW, FOREVER = 1, 1 << 60


class Nodes:
    """The nodes of one terminal."""

    def __init__(self, units: int = 8) -> None:
        self.engine = MemoryStore(units=units)
        self.owners: dict[int, str] = {}
        self.terminals: dict[str, Terminal] = {}
        #: Nodes that nobody can dial.
        self.unreachable: set[str] = set()

    def __getitem__(self, node: str) -> Terminal:
        return self.terminals[node]

    async def add(self, node: str, limits: Limits | None = None, **options: Any) -> Terminal:
        """A node that owns nothing."""
        terminal = Terminal(MemoryHandle(self.engine), limits=limits, **options)
        await terminal.open_shared(Cluster(terminal, node, self._dial))
        self.terminals[node] = terminal
        self.tell()
        return terminal

    def _dial(self, record: NodeRecord) -> Dial:
        async def dial(factory: Callable[[], asyncio.Protocol]) -> Any:
            terminal = self.terminals.get(record.id)
            if terminal is None or terminal.closing or record.id in self.unreachable:
                raise TerminalUnreachable(f"nobody answers at {record.id}")
            protocol = factory()
            return join(protocol, terminal.attach()), protocol

        return dial

    @property
    def table(self) -> ClusterTable:
        records = tuple(
            NodeRecord(
                name=node, id=node, started_at=NOW, expires_at=FOREVER, topics=len(terminal.broker.topics)
            )
            for node, terminal in self.terminals.items()
        )
        return ClusterTable(now=NOW, nodes=records, owners=dict(self.owners), units=self.engine.units)

    def tell(self) -> None:
        """All nodes learn the table."""
        for terminal in self.terminals.values():
            if terminal.cluster is not None and not terminal.closing:
                terminal.cluster.follow(self.table)

    async def take(self, node: str, *units: int) -> None:
        terminal = self.terminals[node]
        for unit in units:
            # As a node does that finds its lease over: what it knew of the unit may be old.
            await terminal.give_up(unit, fenced=True)
            self.owners[unit] = node
            await terminal.take(unit)
        self.tell()

    async def move(self, unit: int, to: str) -> None:
        """In good order: the owner gives it up, and then the other one takes it."""
        before = self.owners.pop(unit, None)
        if before is not None:
            await self.terminals[before].give_up(unit)
        self.tell()
        await self.take(to, unit)

    async def usurp(self, unit: int, to: str) -> None:
        """Without a word to the owner, as after a pause that outlasts its lease."""
        await self.take(to, unit)

    async def settled(self) -> None:
        """Wait until every node knows the terminal's key."""
        for terminal in self.terminals.values():
            assert terminal.mirror is not None
            await terminal.mirror.refresh()
            await terminal.is_ready.wait()

    async def close(self) -> None:
        for terminal in self.terminals.values():
            if not terminal.closing:
                assert terminal.cluster is not None
                terminal.cluster.last_words = 0
                await terminal.close()


@asynccontextmanager
async def run_nodes(
    names: Sequence[str] = ("a", "b", "c"),
    *,
    units: int = 8,
    owners: Sequence[str] | None = None,
    limits: Limits | None = None,
    **options: Any,
) -> AsyncIterator[Nodes]:
    """Nodes that own the units in turns. ``owners``: only these own any."""
    nodes = Nodes(units)
    try:
        for name in names:
            await nodes.add(name, limits, **options)
        owning = owners or names
        for unit in range(units):
            await nodes.take(owning[unit % len(owning)], unit)
        await nodes.settled()
        yield nodes
    finally:
        await nodes.close()

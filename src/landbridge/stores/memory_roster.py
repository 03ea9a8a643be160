"""The table of nodes in memory, for nodes that are in one process: for tests, and as the plainest form of
what the other drivers do."""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec.structs import replace

from landbridge.core.cluster.roster import REMEMBERED
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.core.time import SECOND
from landbridge.errors import NameTaken, UnknownNode


def name_taken(record: NodeRecord, holder: str) -> NameTaken:
    """A live node has the name. ``holder``: where it is."""
    return NameTaken(
        f"the node {record.name} runs already, at {holder or 'another place'}",
        hint="stop it first, or give this one another name: --node NAME; after a crash, the name is free "
        "when its lease is over",
    )


def unknown_node(name: str) -> UnknownNode:
    return UnknownNode(f"no node is called {name}")


def table_of(
    now: int, nodes: Collection[NodeRecord], owners: dict[int, str], drained: Collection[str], units: int
) -> ClusterTable:
    """The table, of what a server keeps."""
    shown = (replace(node, draining=node.draining or node.name in drained) for node in nodes)
    return ClusterTable(
        now=now,
        nodes=tuple(sorted(shown, key=lambda node: (node.started_at, node.id))),
        owners=owners,
        units=units,
    )


class MemoryRoster:
    """``clock``: microseconds, what the server's clock is to the other drivers."""

    def __init__(self, units: int, clock: Callable[[], int]) -> None:
        self.units = units
        self._clock = clock
        self._nodes: dict[str, NodeRecord] = {}
        self._lives: dict[str, int] = {}  #: microseconds
        self._owners: dict[int, str] = {}
        self._drained: set[str] = set()

    async def beat(
        self,
        record: NodeRecord,
        life: float,
        take: Collection[int] = (),
        release: Collection[int] = (),
    ) -> ClusterTable:
        now = self._clock()
        self._tidy(now)
        for other in list(self._nodes.values()):
            if other.name == record.name and other.id != record.id:
                if other.expires_at > now:
                    raise name_taken(record, other.url)
                self._forget(other.id)
        known = self._nodes.get(record.id)
        self._lives[record.id] = round(life * SECOND)
        self._nodes[record.id] = replace(
            record,
            started_at=known.started_at if known else now,
            expires_at=now + self._lives[record.id],
        )
        for unit in release:
            if self._owners.get(unit) == record.id:
                del self._owners[unit]
        for unit in take:
            owner = self._nodes.get(self._owners.get(unit, ""))
            if owner is None or owner.expires_at <= now:
                self._owners[unit] = record.id
        return self._table(now)

    async def leave(self, id: str) -> ClusterTable:
        now = self._clock()
        self._tidy(now)
        self._forget(id)
        return self._table(now)

    async def read(self) -> ClusterTable:
        now = self._clock()
        self._tidy(now)
        return self._table(now)

    async def drain(self, name: str, draining: bool) -> ClusterTable:
        now = self._clock()
        self._tidy(now)
        if not draining:
            self._drained.discard(name)
        elif all(node.name != name for node in self._nodes.values()):
            raise unknown_node(name)
        else:
            self._drained.add(name)
        return self._table(now)

    async def close(self) -> None: ...

    def _tidy(self, now: int) -> None:
        """Cut leases that a clock which was set back has made longer, and forget who is long gone."""
        for node in list(self._nodes.values()):
            longest = now + self._lives[node.id]
            if node.expires_at > longest:
                self._nodes[node.id] = replace(node, expires_at=longest)
            elif node.expires_at < now - REMEMBERED * SECOND:
                self._forget(node.id)

    def _forget(self, id: str) -> None:
        self._nodes.pop(id, None)
        self._lives.pop(id, None)
        self._owners = {unit: owner for unit, owner in self._owners.items() if owner != id}

    def _table(self, now: int) -> ClusterTable:
        return table_of(now, self._nodes.values(), dict(self._owners), self._drained, self.units)

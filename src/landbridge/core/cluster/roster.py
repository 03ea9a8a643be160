"""The port to the server that keeps the table of nodes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from landbridge.core.cluster.table import ClusterTable, NodeRecord

#: Seconds after which a node that isn't heard of counts as gone.
LIFE = 3.0
#: Seconds that a node which is gone stays in the table.
REMEMBERED = 86_400.0


class Roster(Protocol):
    """What a driver offers. Each method is one atomic step in the server, by the server's clock. What it
    says of owners is a hint that decides who claims a unit: it need not survive a failover of the server.

    Where there is no answer, a method raises an error of landbridge.errors; it may have happened then, and
    may be asked for again."""

    async def beat(
        self,
        record: NodeRecord,
        life: float,
        take: Collection[int] = (),
        release: Collection[int] = (),
    ) -> ClusterTable:
        """I am alive, for ``life`` seconds more. First gives up the units of ``release`` that are mine,
        then takes those of ``take`` that no live node has. Answers the table after it.

        ``started_at`` and ``expires_at`` of the record are set by the server. A record of the same name
        whose node is gone is replaced. NameTaken: a live node of another id has this name; nothing was
        changed then.

        A node whose lease seems to end later than its life allows (the server's clock was set back) has it
        cut to its life."""

    async def leave(self, id: str) -> ClusterTable:
        """The process ends: its record goes, and its units are free."""

    async def read(self) -> ClusterTable: ...

    async def drain(self, name: str, draining: bool) -> ClusterTable:
        """Whether the node of this name should give its units up and take none; it stays so when its
        process is started again. UnknownNode: there is none of that name, and ``draining`` is asked for."""

    async def close(self) -> None:
        """Disconnect. The next question connects again."""

"""The heart of a node: it tells the table of nodes that this process is alive, and knows what the others
have told."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

import structlog
from msgspec.structs import replace

from landbridge.core.cluster.placement import Moves, moves
from landbridge.core.cluster.roster import Roster
from landbridge.core.cluster.table import ClusterTable, NodeRecord
from landbridge.core.cluster.tenure import Tenure
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest, BusError, NameTaken

log = structlog.get_logger("landbridge.node")
#: Seconds between two looks at the table while nothing has to be renewed, as a part of a lease's life.
LOOKED_AT = 1 / 12
#: Seconds that the first beat and the last one may take.
BEGIN_WITHIN, LEAVE_WITHIN = 20.0, 2.0
#: Seconds for which a node waits for the lease of a process that had its name, and between two looks.
ENTER_WITHIN, ENTER_AGAIN = 10.0, 0.2


def new_id() -> str:
    """Of a node, for one start of its process."""
    return os.urandom(12).hex()


class Heart:
    """Beats from ``begin`` to ``end``. ``on_beat`` is called after each answer with the units that this
    node should give up; what it should take, it has taken in the table. It gives units up in the table by
    ``release``."""

    def __init__(self, roster: Roster, record: NodeRecord, life: float) -> None:
        self.record = replace(record, life=life)
        self.tenure = Tenure(life)
        self.table = ClusterTable(now=0, units=0)
        #: Why the table can't be reached; empty while it can.
        self.trouble = ""
        self.on_beat: Callable[[], None] = lambda: None
        #: How many topics this node has, for the others.
        self.topics: Callable[[], int] = lambda: 0
        self._roster = roster
        self._task: asyncio.Task[None] | None = None
        self._soon = asyncio.Event()
        #: How often the lease was over before it was renewed: others may have had the units meanwhile.
        self.lapses = 0
        #: Units that this node has given up, which the table doesn't know yet.
        self._released: set[int] = set()

    @property
    def plan(self) -> Moves:
        """What this node should do by the table that it knows."""
        return moves(self.table, self.record.id, self.table.is_together)

    @property
    def owned(self) -> frozenset[int]:
        """The units that this node has in the table, as long as its lease lasts by its own clock."""
        if self.tenure.is_over(self._now()):
            return frozenset()
        return frozenset(self.table.owned(self.record.id)) - self._released

    @property
    def _may_take(self) -> bool:
        """A node that can't be reached yet leaves units to those that can."""
        return bool(self.record.url) or not any(node.url for node in self.table.candidates)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    async def begin(self) -> None:
        """The first beat. NameTaken, BadRequest where this process can't be a node of that terminal."""
        async with asyncio.timeout(BEGIN_WITHIN):
            self.table = await self._roster.read()
            self._check_alike()
            await self._enter()
            try:
                self._check_alike()  # another one may have come at the same moment
            except BadRequest:
                await self._roster.leave(self.record.id)
                raise
        self._task = asyncio.get_running_loop().create_task(self._beat())

    def _check_alike(self) -> None:
        """BadRequest where a live node that was there before has another name of the terminal, or another
        life."""
        mine = self.record
        for other in self.table.live:
            if other.id == mine.id:
                return  # those that have come later are refused themselves
            if other.name == mine.name:
                continue  # the process before this one
            if other.terminal != mine.terminal:
                raise BadRequest(
                    f"the node {other.name} is of the terminal {other.terminal}, and this one of "
                    f"{mine.terminal}",
                    hint="give all nodes of a terminal the same --name, or this one a store of its own",
                )
            if other.life not in (0.0, mine.life):
                raise BadRequest(
                    f"the node {other.name} counts as gone after {other.life:g} s, and this one after "
                    f"{mine.life:g} s",
                    hint="give all nodes of a terminal the same --node-life; to change it, stop all of them "
                    "first",
                )

    async def _enter(self) -> None:
        """Beat until the name is this process's. A process of the name that was killed a moment ago is gone
        when its lease is over; one that renews its lease lives."""
        seen: int | None = None
        until = self._now() + ENTER_WITHIN
        while True:
            asked_at = self._now()
            try:
                self.table = await self._roster.beat(self.record, self.tenure.life)
            except NameTaken:
                holder = (await self._roster.read()).named(self.record.name)
                if holder is None:
                    continue
                if (seen is not None and holder.expires_at > seen) or self._now() > until:
                    raise
                seen = holder.expires_at
                await asyncio.sleep(ENTER_AGAIN)
            else:
                self.tenure.renewed(asked_at)
                return

    def say(self, record: NodeRecord) -> None:
        """Tell the others something else from now on."""
        self.record = record
        self._soon.set()

    def release(self, units: frozenset[int]) -> None:
        """This node has given units up: others may take them."""
        if units:
            self._released |= units
            self._soon.set()

    async def drain(self, name: str, draining: bool) -> ClusterTable:
        """Whether a node should have no units."""
        async with asyncio.timeout(self.tenure.life):
            self.table = await self._roster.drain(name, draining)
        self._soon.set()
        return self.table

    async def look(self) -> ClusterTable:
        """The table as it is now. What this node goes by is what its beats tell."""
        async with asyncio.timeout(self.tenure.life):
            return await self._roster.read()

    def hurry(self) -> None:
        """Ask at once."""
        self._soon.set()

    async def end(self) -> None:
        """Leave the table, if it can be reached."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            try:
                async with asyncio.timeout(LEAVE_WITHIN):
                    await self._roster.leave(self.record.id)
            except (BusError, TimeoutError) as error:
                log.warning("did not leave the table of nodes", node=self.record.name, why=str(error))
        self.tenure.ended()
        await self._roster.close()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        beaten_at = self._now()
        while True:
            try:
                async with asyncio.timeout(self.tenure.life * LOOKED_AT):
                    await self._soon.wait()
            except TimeoutError:
                pass
            is_due = self._soon.is_set() or loop.time() - beaten_at >= self.tenure.pause
            self._soon.clear()
            try:
                async with asyncio.timeout(self.tenure.life):
                    if not is_due:
                        self.table = await self._roster.read()
                        is_due = self._may_take and bool(self.plan.take)
                    if is_due:
                        beaten_at = await self._renew()
            except (BusError, TimeoutError) as error:
                self._failed(str(error) or "no answer")
            else:
                self._answered()
            try:
                self.on_beat()
            except Exception as crash:  # the heart must not stop for it
                log.error("crash", what="after a beat", exc_info=crash)

    async def _renew(self) -> float:
        asked_at = self._now()
        self.lapses += self.tenure.is_over(asked_at)
        released = sorted(self._released)
        take = self.plan.take if self._may_take else ()
        record = replace(self.record, topics=self.topics())
        table = await self._roster.beat(record, self.tenure.life, take, released)
        self._released -= set(released)
        self.table = table
        # What another node has taken meanwhile is gone: the table says so.
        self.tenure.renewed(asked_at)
        return asked_at

    def _answered(self) -> None:
        if self.trouble:
            log.info("the table of nodes answers again", node=self.record.name)
        self.trouble = ""

    def _failed(self, why: str) -> None:
        if not self.trouble:
            log.warning("the table of nodes can't be reached", node=self.record.name, why=why)
        self.trouble = why

    def addresses(self) -> list[str]:
        """The bus ports of the live nodes: of those first that take units, in the order of their names."""
        nodes = sorted(self.table.live, key=lambda node: (node.draining, node.name))
        return [node.url for node in nodes if node.url]

    def seconds_left(self, node: NodeRecord) -> float:
        """Until the lease of a node is over, by the server's clock; negative afterwards."""
        return (node.expires_at - self.table.now) / SECOND

    def drained(self, draining: bool) -> None:
        """This process is about to end, or is not after all."""
        self.say(replace(self.record, draining=draining))

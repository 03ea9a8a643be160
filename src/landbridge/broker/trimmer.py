"""Retention at work: looks at a topic when something of it may have become removable, and trims its log."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Collection, Coroutine
from typing import Any, Protocol

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.topic import Topic
from landbridge.core.log.retention import trim_point
from landbridge.core.log.store import Bounds, Store, Trim
from landbridge.core.time import SECOND
from landbridge.errors import BusError

#: Microseconds until another look at a topic whose oldest batch is too old, but not settled by every group.
LOOK = 60 * SECOND
#: Microseconds over which the first looks after a start are spread, so that many topics cause no burst.
SPREAD = 600 * SECOND
#: Bytes looked through per step when a topic is too large.
STEP = 16 << 20


class Keeper(Protocol):
    """What the trimmer asks of the broker."""

    store: Store
    clock: Callable[[], int]
    topics: dict[str, Topic]

    def report(self, topic: str, error: BusError) -> None: ...


class Trimmer:
    def __init__(self, broker: Keeper) -> None:
        self._broker = broker
        #: (when to look, topic's name), the earliest first; a topic's ``trim_at`` says which entry counts.
        self._planned: list[tuple[int, str]] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, topics: Collection[Topic]) -> None:
        """After a start nobody knows how old the oldest batches are: look at each topic once."""
        now = self._broker.clock()
        for index, topic in enumerate(topics):
            self.plan(topic, at=now + SECOND + index * SPREAD // len(topics))

    def plan(self, topic: Topic, *, soon: bool = False, at: int | None = None) -> None:
        """Look at a topic again: soon if something was settled or it is too large, else when its oldest batch
        comes of age. ``at`` says when that is; where nothing is planned yet, the oldest is the newest."""
        log, retention = topic.log, topic.spec.retention
        if log.first == log.end or topic.deleted:
            return
        soon = soon or (retention.max_bytes is not None and log.bytes > retention.max_bytes)
        if not soon and retention.max_age is None:
            return
        now = self._broker.clock()
        if soon:
            at = now + SECOND
        elif at is None:
            at = now + int((retention.max_age or 0) * SECOND)
        if topic.trim_at is None or at < topic.trim_at - SECOND:
            topic.trim_at = at
            heapq.heappush(self._planned, (at, topic.name))
            if len(self._planned) > 2 * len(self._broker.topics) + 64:
                self._tidy()

    def _tidy(self) -> None:
        """Drop the plans of topics that were deleted or planned anew since."""
        topics = self._broker.topics
        self._planned = [
            (at, name)
            for at, name in self._planned
            if (topic := topics.get(name)) is not None and topic.trim_at == at
        ]
        heapq.heapify(self._planned)

    def tick(self) -> None:
        now = self._broker.clock()
        while self._planned and self._planned[0][0] <= now:
            due, name = heapq.heappop(self._planned)
            topic = self._broker.topics.get(name)
            if topic is not None and topic.trim_at == due:
                topic.trim_at = None
                self.run(self._look(topic))

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look(self, topic: Topic) -> None:
        try:
            while await self.trim(topic):
                pass
        except BusError as error:
            self._broker.report(topic.name, error)
        if not topic.deleted:
            self.plan(topic, at=await self._next_look(topic))

    async def _next_look(self, topic: Topic) -> int | None:
        """When the oldest batch that is left comes of age."""
        log, max_age = topic.log, topic.spec.retention.max_age
        if max_age is None or log.first == log.end:
            return None
        broker = self._broker
        try:
            oldest = await broker.store.read(log.number, log.first, 1)
        except BusError:
            return broker.clock() + LOOK  # a damaged batch: told when somebody reads it
        time = oldest[0].time if oldest else broker.clock()
        return max(broker.clock() + min(LOOK, int(max_age * SECOND)), time + int(max_age * SECOND))

    async def trim(self, topic: Topic) -> bool:
        """Remove what the topic's retention lets go of. Was there anything?"""
        broker, log, retention = self._broker, topic.log, topic.spec.retention
        aged_to = sized_to = log.first
        if retention.max_age is not None:
            oldest = broker.clock() - int(retention.max_age * SECOND)
            aged_to = await broker.store.seek_time(log.number, oldest)
        if retention.max_bytes is not None and log.bytes > retention.max_bytes:
            excess = log.bytes - retention.max_bytes
            sized_to = await self._sized_to(log.number, log.first, excess)
        point = trim_point(
            retention,
            settled_to=topic.settled_to(),
            first=log.first,
            end=log.end,
            aged_to=aged_to,
            sized_to=sized_to,
        )
        if point <= log.first or topic.deleted:
            return False
        # Whole batches only: the one that holds the point stays.
        found = await log.read(point)
        first = point if found is None else min(point, found[0])
        if first <= log.first or topic.deleted:
            return False

        def work(commit: BrokerCommit) -> None:
            commit.writes.append(Trim(log.number, first))
            topic.keys.trim(commit, first)
            commit.on_stored.append(lambda: self._trimmed(topic, first, commit.trimmed))

        await topic.writer.put(work)
        return True

    def _trimmed(self, topic: Topic, first: int, bounds: Bounds) -> None:
        """The trim is on disk."""
        if topic.deleted:
            return
        topic.log.trim(bounds[topic.log.number])
        for group in list(topic.groups.values()):
            if group.delivery.cursor.floor < first:
                group.catch_up().trimmed(first)
                group.changed()
                group.pump()  # who held what is gone has room now

    async def _sized_to(self, log: int, first: int, excess: int) -> int:
        """The offset below which ``excess`` bytes stand, read from the front; a step at a time."""
        for stored in await self._broker.store.read(log, first, min(excess, STEP)):
            if excess <= 0:
                break
            excess -= len(stored.data)
            first = stored.end
        return first

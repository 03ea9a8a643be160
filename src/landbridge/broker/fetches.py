"""The bulk reads of one connection, one at a time and only while the peer takes what it was sent: whatever it
asks for, it can't make the terminal hold more than one answer for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from landbridge.broker.broker import Broker
from landbridge.broker.rule_topics import demand_read
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BusError, LimitReached
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import MAX_HEAD

#: Reads that may wait for their turn.
MOST_WAITING = 64
#: Batches in one answer: what is said of each stands in the head, which has a limit of its own.
MOST_BATCHES = 8192


class Asker(Protocol):
    """The connection that the reads are for."""

    broker: Broker
    writable: bool

    @property
    def scopes(self) -> Scopes: ...

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None: ...
    def refuse(self, request: int, error: BusError) -> None: ...
    def close(self, error: BusError) -> None: ...
    def log_crash(self, what: str, error: BaseException) -> None: ...


class Fetches:
    def __init__(self, connection: Asker) -> None:
        self._connection = connection
        self._waiting: deque[frames.Fetch] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, frame: frames.Fetch) -> None:
        connection = self._connection
        demand_read(connection.broker.topics, connection.scopes, frame.topic)
        connection.broker.table.topic(frame.topic)
        if len(self._waiting) >= MOST_WAITING:
            raise LimitReached(f"{len(self._waiting)} fetches wait already, as many as may")
        self._waiting.append(frame)
        self.resume()

    def resume(self) -> None:
        if self._task is None and self._waiting and self._connection.writable:
            self._task = asyncio.ensure_future(self._work())
            self._task.add_done_callback(self._worked)

    async def _work(self) -> None:
        connection = self._connection
        while self._waiting and connection.writable:
            frame = self._waiting.popleft()
            try:
                await self._answer(frame)
            except BusError as error:
                connection.refuse(frame.request, error)
            # A log in memory is read without waiting for anything; others want their turn too.
            await asyncio.sleep(0)

    async def _answer(self, frame: frames.Fetch) -> None:
        connection = self._connection
        # Meanwhile the topic may have been deleted, or the token replaced by one that may less.
        demand_read(connection.broker.topics, connection.scopes, frame.topic)
        topic = connection.broker.table.topic(frame.topic)
        log = topic.log
        most = connection.broker.limits.max_frame
        found = await topic.reader_for(None).fetch(
            frame.offset, min(frame.max_bytes, max(most - MAX_HEAD, most // 2))
        )
        rows, tail = [], []
        for first, batch in found[:MOST_BATCHES]:
            data = batch.encode()
            origin = "" if batch.origin is None else batch.origin.terminal
            rows.append((first, len(batch), len(data), origin))
            tail.append(data)
        connection.send(frames.Fetched(frame.request, log.first, log.end, rows, topic.log_id), *tail)

    def _worked(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled():
            return
        if (crash := task.exception()) is not None:
            self._connection.log_crash("a fetch", crash)
            self._connection.close(BusError(f"the terminal failed: {type(crash).__name__}"))
        else:
            self.resume()

    def close(self) -> None:
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()

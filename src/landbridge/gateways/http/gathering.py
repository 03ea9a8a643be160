"""Messages of single requests that come in the same turn of the loop share a batch, and so a commit."""

from __future__ import annotations

import asyncio
from typing import Unpack

from landbridge.client.bus import Bus, Receipt
from landbridge.client.publisher import CUT_BYTES, CUT_MESSAGES, MessageOptions, Rows
from landbridge.errors import BusError


class MessageGathering:
    """The messages of one session for one topic. It takes itself out of ``others`` when it is sent."""

    def __init__(self, bus: Bus, topic: str, others: dict[str, MessageGathering]) -> None:
        self._bus = bus
        self._topic = topic
        self._others = others
        self._rows = Rows()
        self._waiting: list[asyncio.Future[Receipt]] = []
        #: A batch has to fit into a frame.
        self._most = min(CUT_BYTES, bus.max_batch // 4)
        self._sending: asyncio.Task[None] | None = None

    def put(self, payload: bytes, **options: Unpack[MessageOptions]) -> asyncio.Future[Receipt]:
        """Add a message without an id of its own. The future has its receipt when it is stored."""
        self._bus.checked(payload)
        loop = asyncio.get_running_loop()
        self._rows.add(payload, **options)
        done: asyncio.Future[Receipt] = loop.create_future()
        self._waiting.append(done)
        if len(self._waiting) == 1:
            loop.call_soon(self._cut)
        elif self._rows.size >= self._most or len(self._waiting) >= CUT_MESSAGES:
            self._cut()
        return done

    def _cut(self) -> None:
        if self._sending is None:
            if self._others.get(self._topic) is self:
                del self._others[self._topic]
            self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            stored = await self._bus.publish_batch(self._topic, self._rows)
        except BusError as error:
            for done in self._waiting:
                if not done.done():
                    done.set_exception(error)
            return
        for index, done in enumerate(self._waiting):
            if not done.done():
                done.set_result(Receipt(f"{stored.id}-{index}", place(stored.first, index)))


def place(first: int, index: int) -> int:
    """The offset of a message in a batch that begins at ``first``; -1 where that is not known any more."""
    return first + index if first >= 0 else -1

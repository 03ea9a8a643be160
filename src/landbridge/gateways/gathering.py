"""Messages of single requests that come in the same turn of the loop share a batch, and so a commit."""

from __future__ import annotations

import asyncio
from typing import Unpack

from landbridge.client.bus import Bus, Receipt
from landbridge.client.publisher import CUT_BYTES, CUT_MESSAGES, MessageOptions, Rows
from landbridge.errors import BusError, InvalidMessage


class MessageGathering:
    """The messages of one session for one topic. It takes itself out of ``others`` when it is sent."""

    def __init__(self, bus: Bus, topic: str, others: dict[str, MessageGathering]) -> None:
        self._bus = bus
        self._topic = topic
        self._others = others
        self._rows = Rows()
        #: The messages in it, for the case that one of them is refused.
        self._messages: list[tuple[bytes, MessageOptions]] = []
        self._waiting: list[asyncio.Future[Receipt]] = []
        #: A batch has to fit into a frame.
        self._most = min(CUT_BYTES, bus.max_batch // 4)
        self._sending: asyncio.Task[None] | None = None

    def put(self, payload: bytes, **options: Unpack[MessageOptions]) -> asyncio.Future[Receipt]:
        """Add a message without an id of its own. The future has its receipt when it is stored."""
        self._bus.checked(payload)
        loop = asyncio.get_running_loop()
        self._rows.add(payload, **options)
        self._messages.append((payload, options))
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
        except InvalidMessage as error:
            if len(self._waiting) == 1:
                if not self._waiting[0].done():
                    self._waiting[0].set_exception(error)
                return
            # The messages are of different requests: what is wrong with one of them must not refuse the
            # others.
            await asyncio.gather(*map(self._send_alone, self._messages, self._waiting))
            return
        except BusError as error:
            for done in self._waiting:
                if not done.done():
                    done.set_exception(error)
            return
        for index, done in enumerate(self._waiting):
            if not done.done():
                done.set_result(Receipt(f"{stored.id}-{index}", place(stored.first, index)))

    async def _send_alone(self, message: tuple[bytes, MessageOptions], done: asyncio.Future[Receipt]) -> None:
        payload, options = message
        try:
            receipt = await self._bus.publish(self._topic, payload, **options)
        except BusError as error:
            if not done.done():
                done.set_exception(error)
        else:
            if not done.done():
                done.set_result(receipt)


def place(first: int, index: int) -> int:
    """The offset of a message in a batch that begins at ``first``; -1 where that is not known any more."""
    return first + index if first >= 0 else -1

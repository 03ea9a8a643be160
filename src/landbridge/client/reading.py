"""Reading: what a subscription to one topic and one to many have in common."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Self

from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.replies import RequestMessage
from landbridge.core.pauses import PauseNote
from landbridge.errors import Disconnected


class Reading:
    """A stream of messages. Iterate it, or its ``batches()``, or ask with ``poll()``."""

    #: The topic, or the names and patterns of several.
    topic: str
    group: str | None
    #: The group settles on delivery.
    at_most_once: bool
    #: Seconds without progress after which messages are another consumer's.
    ack_within: float

    def __init__(self) -> None:
        #: Who gets requests to the topic, where the subscription answers them; None: they come among the
        #: messages.
        self.on_request: Callable[[RequestMessage], None] | None = None
        #: Of one topic: why nothing comes, where an operator has paused the group, its topic or this service.
        #: None: nothing is paused.
        self.paused: PauseNote | None = None
        #: Called with the same when it changes.
        self.on_paused: Callable[[PauseNote | None], None] | None = None
        #: For a gateway, before it is opened: bytes that may be here and unsettled; 0: as many as the
        #: terminal allows.
        self.prefetch_bytes = 0
        #: What ``poll`` has not returned yet of a batch.
        self._polled: Iterator[Message] = iter(())

    async def open(self) -> Self:
        """Subscribe now rather than at the first message."""
        raise NotImplementedError

    async def close(self) -> None:
        """Send the acks, give back what was not settled, and end the subscription."""
        raise NotImplementedError

    async def next_batch(self) -> DeliveredBatch | None:
        """The next batch; None when the subscription was closed."""
        raise NotImplementedError

    def messages_of(self, batch: DeliveredBatch) -> Iterator[Message]:
        """The messages of a batch. They end early if the connection is lost: the rest is delivered again."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Wait until every ack so far is on disk."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        await self.open()
        try:
            while (batch := await self.next_batch()) is not None:
                for message in self.messages_of(batch):
                    yield message
        finally:
            await self.close()

    async def batches(self) -> AsyncIterator[DeliveredBatch]:
        """Iterate over batches, as they were delivered."""
        await self.open()
        try:
            while (batch := await self.next_batch()) is not None:
                yield batch
        finally:
            await self.close()

    async def poll(self, timeout: float | None = None) -> Message | None:
        """The next message; None if none has come within ``timeout`` seconds (None: wait for ever).

        Unlike the end of an iteration, a poll that returns None leaves the subscription open. Use either
        ``poll`` or ``poll_batch``, and close the subscription in the end, or use it with ``async with``."""
        while True:
            message = next(self._polled, None)
            if message is not None:
                return message
            batch = await self.poll_batch(timeout)
            if batch is None:
                return None
            self._polled = self.messages_of(batch)

    async def poll_batch(self, timeout: float | None = None) -> DeliveredBatch | None:
        """The next batch; None if none has come within ``timeout`` seconds (None: wait for ever)."""
        await self.open()
        try:
            async with asyncio.timeout(timeout):
                batch = await self.next_batch()
        except TimeoutError:
            return None
        if batch is None:
            raise Disconnected("the subscription was closed")
        return batch

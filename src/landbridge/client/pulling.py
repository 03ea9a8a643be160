"""A subscription by pull: messages come when they are asked for, and never more than were asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from landbridge.client.line import TerminalLine
from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.subscription import Subscription
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame

#: Messages that may be held and not settled.
MOST_HELD = 100_000
#: Seconds that a pull without a wait takes at most: the terminal may have to read its disk.
READ_WITHIN = 0.1
#: Messages that crossed with the end of their pull are kept for the next one for this part of ack_within.
KEPT_FOR = 0.5


class PullSubscription(Subscription):
    """A consumer of a group that asks for its messages, made by ``bus.pull_from(…)``."""

    def __init__(
        self,
        bus: TerminalLine,
        number: int,
        topic: str,
        group: str,
        prefetch: int = MOST_HELD,
        start: Any = None,
    ) -> None:
        super().__init__(bus, number, topic, group, prefetch, start)
        #: Messages that were delivered and not pulled yet, each with the moment of the loop when it came.
        self._here: deque[tuple[float, Message]] = deque()
        #: How many messages the pull under way asks for; 0: there is none.
        self._asked = 0
        #: Held by the pull under way. Others wait behind it, in the order in which they asked.
        self._turn = asyncio.Lock()

    def _subscribe(self, request: int) -> Frame:
        return frames.Subscribe(
            request, self.number, self.topic, self.group, self.prefetch, self._start, by_pull=True
        )

    def _on_subscribed(self, frame: frames.Subscribed) -> None:
        super()._on_subscribed(frame)
        self._ask_for(self._asked)  # the connection is new, and the terminal knows of no pull

    def disconnected(self) -> None:
        """The connection was lost, and with it every lease."""
        super().disconnected()
        if not self.at_most_once:
            self._here.clear()

    def _ask_for(self, messages: int) -> None:
        self._asked = messages
        if self._bus.wire is not None:
            self._bus.wire.send(frames.Pull(self.number, messages))

    async def pull(self, most: int, wait: float = 0.0) -> list[Message]:
        """Return up to ``most`` messages as soon as there is one; none after ``wait`` seconds without any."""
        end = asyncio.get_running_loop().time() + max(wait, READ_WITHIN)
        try:
            async with asyncio.timeout_at(end), self._turn:
                self._drop_stale()
                if not self._here:
                    await self._next(most)
        except TimeoutError:
            pass
        return [self._here.popleft()[1] for _ in range(min(most, len(self._here)))]

    async def _next(self, most: int) -> None:
        """Ask for messages, and wait for the first delivery."""
        self._ask_for(most)
        try:
            batch = await self.next_batch()
            if batch is not None:
                self._keep(batch)
                await asyncio.sleep(0)  # what was handed out in the same turn is on its way
        finally:
            self._ask_for(0)
            self._keep_all()

    def _keep_all(self) -> None:
        while (batch := self.take_batch()) is not None:  # which gives the credit of at-most-once back
            self._keep(batch)

    def _keep(self, batch: DeliveredBatch) -> None:
        now = asyncio.get_running_loop().time()
        self._here.extend((now, message) for message in batch.messages())

    def _drop_stale(self) -> None:
        """Forget messages whose leases end soon. The terminal will deliver them again."""
        self._keep_all()
        oldest = asyncio.get_running_loop().time() - self.ack_within * KEPT_FOR
        while self._here and not self.at_most_once and self._here[0][0] < oldest:
            self._here.popleft()

    @property
    def is_over(self) -> bool:
        """Has the subscription ended, or has the terminal ended it?"""
        return self._closed or self._error is not None

    @property
    def is_pulled(self) -> bool:
        """Does somebody wait for messages?"""
        return self._turn.locked()

"""The batches that a bus has published to a topic and that are not answered yet, in order.

Batches are numbered per topic. After a reconnect everything unanswered is sent again, and the terminal's
ledger makes it once. A batch that is refused for good is taken out, and its number is never used again: it
may have been stored after all, and another batch of that number would be taken for its repeat. A batch that
is refused for now (a full backlog, a full disk) is tried again until the bus's patience is over.

The ledger forgets a producer that was silent for so long that the topic has none of its messages any more.
What such a producer sends for the first time is sent again as another producer's; what it repeats is refused.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from landbridge.client.line import TerminalLine
from landbridge.errors import BusError, Disconnected, SequenceGap, ShuttingDown, TooLarge, TooOld
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame

#: Called with the answer for a stored batch, or with the error.
Then: TypeAlias = Callable[["frames.Stored | BusError"], None]
#: Batches of a topic that may be unanswered. The terminal's ledger remembers the offsets of as many.
MOST_UNANSWERED = 64


@dataclass(slots=True, eq=False)
class SentBatch:
    """A batch without an answer."""

    #: Its number in the topic's ledger.
    sequence: int
    data: bytes
    then: Then
    #: The number of the connection on which it was first sent; 0: it was not.
    sent_on: int = 0
    #: Was it sent on several connections? Then it may be stored although there was no answer.
    repeated: bool = False
    #: When to stop trying, in the loop's time, set at the first refusal; 0 = it was not refused yet.
    give_up_at: float = 0.0


class Outbox:
    """The unanswered batches of one topic."""

    def __init__(self, bus: TerminalLine, topic: str) -> None:
        self._bus = bus
        self.topic = topic
        #: The id under which the topic's ledger knows this outbox, and the next number there.
        self._producer = os.urandom(16) if bus.has_forgotten else bus.producer
        #: When that producer was born, by the terminal's clock. None: with the bus. 0: the ledger is to
        #: remember it for ever.
        self._born: int | None = bus.time_there() if bus.has_forgotten else None
        #: Was nothing stored since the ledger had forgotten the producer before?
        self._anew = False
        self._next = 1
        #: The number of the last batch that is stored for certain; 0: none.
        self._stored = 0
        #: Oldest first.
        self._batches: deque[SentBatch] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._delay = 0.0
        #: Grows whenever everything is sent anew, so that answers to the earlier sending are ignored.
        self._sending = 0

    @property
    def full(self) -> bool:
        """Must a publisher wait before it sends more?"""
        return len(self._batches) >= MOST_UNANSWERED or self._bus.unanswered >= self._bus.window

    @property
    def empty(self) -> bool:
        """Is everything answered?"""
        return not self._batches

    def put(self, data: bytes, then: Then) -> None:
        """Send a batch, again and again until it is answered."""
        if self._bus.closed is not None:
            then(self._bus.closed)
            return
        if len(data) > self._bus.max_batch:
            then(TooLarge(f"a batch of {len(data)} bytes, the terminal takes {self._bus.max_batch}"))
            return
        batch = SentBatch(self._next, data, then)
        self._next += 1
        self._batches.append(batch)
        self._bus.use(self)
        self._bus.unanswered += len(data)
        if self._retry is None:
            self._send(batch, self._batches[-2].sequence if len(self._batches) > 1 else self._stored)

    def _send(self, batch: SentBatch, after: int) -> None:
        """``after``: the number of the batch before it that was not given up."""
        wire = self._bus.wire
        if wire is None or not wire.open:
            return
        connections = self._bus.connections
        if not batch.sent_on:
            batch.sent_on = connections
        elif batch.sent_on != connections:
            batch.repeated = True
        born = self._bus.born if self._born is None else self._born
        request = wire.request(partial(self._answered, batch, self._sending))
        wire.send(
            frames.Publish(request, self.topic, self._producer, batch.sequence, after, born), batch.data
        )

    def send_all(self) -> None:
        """Send everything again, in order: on a new connection, or after a refusal."""
        self._sending += 1
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        after = self._stored
        for batch in self._batches:
            self._send(batch, after)
            after = batch.sequence

    def _answered(self, batch: SentBatch, sending: int, result: Frame | BusError) -> None:
        """``sending``: the one that this answers."""
        if sending != self._sending:
            return
        if isinstance(result, frames.Stored):
            self._delay = 0.0
            self._anew = False
            # Answers come in order: the terminal stores in order and refuses what follows a refusal.
            assert self._batches[0] is batch
            self._stored = batch.sequence
            self._forget(batch)
            batch.then(result)
        elif isinstance(result, Disconnected | ShuttingDown):
            return  # send_all follows on the next connection
        elif isinstance(result, SequenceGap):
            # The one before was refused, and its answer, which came first, has caused everything to be
            # sent again. Unless there is none before: then the topic was deleted and made anew.
            if batch is self._batches[0]:
                self._begin_anew()
        elif isinstance(result, TooOld):
            self._forgotten(result)
        elif isinstance(result, BusError):
            self._refused(batch, result)

    def _forgotten(self, error: TooOld) -> None:
        """The topic's ledger no longer knows this producer. What was sent on an earlier connection may be
        stored."""
        refused = [batch for batch in self._batches if batch.repeated]
        for batch in refused:
            self._forget(batch)
        # Twice in a row: the terminal's clock was set back, and every birth would be too early.
        self._born = 0 if self._anew else self._bus.time_there()
        self._anew = True
        self._begin_anew()
        for batch in refused:
            batch.then(error)

    def _begin_anew(self) -> None:
        """The topic's ledger doesn't know the batches that were answered. So none of the unanswered ones is
        stored there either, and all can be sent as the first batches of another producer."""
        self._producer = os.urandom(16)
        self._stored = 0
        for number, batch in enumerate(self._batches, 1):
            batch.sequence = number
        self._next = len(self._batches) + 1
        self.send_all()

    def _forget(self, batch: SentBatch) -> None:
        if self._batches[0] is batch:
            self._batches.popleft()
        else:
            self._batches.remove(batch)
        self._bus.unanswered -= len(batch.data)
        self._bus.room_made()

    def _refused(self, batch: SentBatch, error: BusError) -> None:
        loop = asyncio.get_running_loop()
        if error.retriable:
            for waiting in self._batches:  # those behind wait as well
                waiting.give_up_at = waiting.give_up_at or loop.time() + self._bus.patience
            if loop.time() < batch.give_up_at:
                self._sending += 1  # the answers to those behind it no longer matter
                self._delay = min(2.0, max(0.05, self._delay * 2))
                self._retry = loop.call_later(self._delay * random.uniform(0.5, 1.0), self.send_all)
                return
        self._forget(batch)
        self.send_all()
        batch.then(error)

    def fail(self, error: BusError) -> None:
        """The bus is closed for good: nothing more will be answered."""
        if self._retry is not None:
            self._retry.cancel()
        self._sending += 1
        batches, self._batches = self._batches, deque()
        for batch in batches:
            self._bus.unanswered -= len(batch.data)
            batch.then(error)

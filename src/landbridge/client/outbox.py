"""What a bus has published to a topic and has no answer for yet, in order.

Batches are numbered per topic. After a reconnect everything unanswered is sent again, and the terminal's
ledger makes it once. A batch that is refused for good is taken out and those behind it move up; one that is
refused for now (a full backlog, a full disk) is tried again until the bus's patience is over.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from landbridge.errors import BusError, Disconnected, SequenceGap, ShuttingDown, TooLarge
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame

if TYPE_CHECKING:
    from landbridge.client.bus import Bus

#: Called with the first offset of a stored batch, or with why it wasn't.
Then: TypeAlias = Callable[["int | BusError"], None]
#: Batches of a topic that may be unanswered: what the terminal's ledger remembers the offsets of.
MOST_UNANSWERED = 64


class Parcel:
    __slots__ = ("count", "data", "give_up_at", "sequence", "then")

    def __init__(self, sequence: int, data: bytes, count: int, give_up_at: float, then: Then) -> None:
        self.sequence = sequence
        self.data = data
        self.count = count
        #: When to stop trying, in the loop's time, counted from the first refusal; 0 = none yet.
        self.give_up_at = give_up_at
        self.then = then


class Outbox:
    def __init__(self, bus: Bus, topic: str) -> None:
        self._bus = bus
        self.topic = topic
        #: Under which the topic's ledger knows what is sent here, and the next number there.
        self._producer = bus.producer
        self._next = 1
        #: Unanswered, oldest first.
        self._parcels: deque[Parcel] = deque()
        self._retry: asyncio.TimerHandle | None = None
        self._delay = 0.0
        #: Grows whenever everything is sent anew, so that answers to the earlier sending are ignored.
        self._sending = 0

    @property
    def full(self) -> bool:
        return len(self._parcels) >= MOST_UNANSWERED or self._bus.unanswered >= self._bus.window

    @property
    def empty(self) -> bool:
        return not self._parcels

    def put(self, data: bytes, count: int, then: Then) -> None:
        if self._bus.closed is not None:
            then(self._bus.closed)
            return
        if len(data) > self._bus.max_batch:
            then(TooLarge(f"a batch of {len(data)} bytes, the terminal takes {self._bus.max_batch}"))
            return
        parcel = Parcel(self._next, data, count, 0.0, then)
        self._next += 1
        self._parcels.append(parcel)
        self._bus.unanswered += len(data)
        if self._retry is None:
            self._send(parcel)

    def _send(self, parcel: Parcel) -> None:
        link = self._bus.link
        if link is None or not link.open:
            return
        sending = self._sending

        def answer(result: Frame | BusError) -> None:
            if sending == self._sending:
                self._answered(parcel, result)

        request = link.request(answer)
        link.send(frames.Publish(request, self.topic, self._producer, parcel.sequence), parcel.data)

    def send_all(self) -> None:
        """On a new connection, or after a refusal: everything again, in order."""
        self._sending += 1
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        for parcel in self._parcels:
            self._send(parcel)

    def _answered(self, parcel: Parcel, result: Frame | BusError) -> None:
        if isinstance(result, frames.Stored):
            self._delay = 0.0
            # Answers come in order: the terminal stores in order and refuses what follows a refusal.
            assert self._parcels[0] is parcel
            self._drop_head()
            parcel.then(result.first)
        elif isinstance(result, Disconnected | ShuttingDown):
            return  # send_all follows on the next connection
        elif isinstance(result, SequenceGap):
            # The one before was refused, and its answer, which came first, has caused everything to be
            # sent again. Unless there is none before: then the topic was deleted and made anew.
            if parcel is self._parcels[0]:
                self._begin_anew()
        elif isinstance(result, BusError):
            self._refused(parcel, result)

    def _begin_anew(self) -> None:
        """The topic's ledger doesn't have what we have answers for. So nothing of what we hold is stored in
        it either, and may be sent as another producer's first batches."""
        self._producer = os.urandom(16)
        for number, parcel in enumerate(self._parcels, 1):
            parcel.sequence = number
        self._next = len(self._parcels) + 1
        self.send_all()

    def _drop_head(self) -> None:
        parcel = self._parcels.popleft()
        self._bus.unanswered -= len(parcel.data)
        self._bus.room_made()

    def _refused(self, parcel: Parcel, error: BusError) -> None:
        loop = asyncio.get_running_loop()
        if error.retriable:
            for waiting in self._parcels:  # those behind wait as well
                waiting.give_up_at = waiting.give_up_at or loop.time() + self._bus.patience
            if loop.time() < parcel.give_up_at:
                self._sending += 1  # the answers to those behind it no longer matter
                self._delay = min(2.0, max(0.05, self._delay * 2))
                self._retry = loop.call_later(self._delay * random.uniform(0.5, 1.0), self.send_all)
                return
        self._parcels.remove(parcel)
        self._bus.unanswered -= len(parcel.data)
        for behind in self._parcels:
            if behind.sequence > parcel.sequence:
                behind.sequence -= 1
        self._next -= 1
        self._bus.room_made()
        self.send_all()
        parcel.then(error)

    def fail(self, error: BusError) -> None:
        """The bus is closed or cut off for good: nothing more will be answered."""
        if self._retry is not None:
            self._retry.cancel()
        self._sending += 1
        parcels, self._parcels = self._parcels, deque()
        for parcel in parcels:
            self._bus.unanswered -= len(parcel.data)
            parcel.then(error)

"""What a subscriber gets: messages one by one, or batches of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec

from landbridge.client.payload import decode
from landbridge.core.log.batch import Batch, HeaderValue
from landbridge.protocol import frames

if TYPE_CHECKING:
    from landbridge.client.subscription import Subscription


class Message(msgspec.Struct, gc=False, frozen=True):
    """One message. Settle it with ``ack``, ``requeue`` or ``bury``."""

    payload: bytes
    #: Its place in its batch, in delivery order.
    position: int
    batch: DeliveredBatch

    def json(self, type: Any = Any) -> Any:
        """The payload as JSON, checked against a type where one is given."""
        return decode(self.payload, type)

    def text(self) -> str:
        return self.payload.decode()

    @property
    def topic(self) -> str:
        return self.batch.subscription.topic

    @property
    def offset(self) -> int:
        return self.batch.offsets[self.position]

    @property
    def id(self) -> str:
        return self.batch.columns.id_of(self.batch.index(self.position))

    @property
    def key(self) -> str | None:
        raw = self.batch.columns.key(self.batch.index(self.position))
        return raw.decode(errors="replace") if raw else None

    @property
    def headers(self) -> dict[str, HeaderValue]:
        return self.batch.columns.headers(self.batch.index(self.position))

    @property
    def time(self) -> int:
        """When it was published, microseconds since 1970."""
        return self.batch.columns.time_of(self.batch.index(self.position))

    @property
    def priority(self) -> int:
        priorities = self.batch.columns.priorities()
        return 0 if priorities is None else priorities[self.batch.index(self.position)]

    @property
    def attempt(self) -> int:
        """1 for the first; counts the tries that were this message's own."""
        return self.batch.attempts.get(self.offset, 1)

    def ack(self, *, wait: bool | None = None) -> asyncio.Future[None]:
        """Settle it. Awaiting returns at once; with ``wait=True``, and for queues, it returns when the ack is
        on disk and raises LeaseLost if the message was no longer ours."""
        batch = self.batch
        subscription = batch.subscription
        if subscription.waits if wait is None else wait and not subscription.at_most_once:
            return batch.settle([self.position], "ack")
        if self.position == batch.acked:
            batch.acked += 1
        else:
            batch.acked_apart.append(self.position)
        if not batch.listed:
            subscription.list_acks(batch)
        return subscription.ready

    def requeue(self, after: float | None = None, *, cause: str = "") -> asyncio.Future[None]:
        """Give it back, to be delivered again after some seconds (by default the group's backoff)."""
        return self.batch.settle([self.position], "requeue", after=after, cause=cause)

    def bury(self, cause: str = "") -> asyncio.Future[None]:
        """Give it up: it goes to the dead-letter topic, with the cause."""
        return self.batch.settle([self.position], "bury", cause=cause)

    def extend(self) -> asyncio.Future[None]:
        """Still working on it: start ``ack_within`` anew."""
        return self.batch.settle([self.position], "extend")


class DeliveredBatch:
    """A run of messages that were delivered together; the columns at hand."""

    def __init__(self, subscription: Subscription, frame: frames.Deliver, columns: Batch) -> None:
        self.subscription = subscription
        self.lease = frame.lease
        self.runs = frame.runs
        self.newest_first = frame.newest_first
        self.attempts = frame.attempts
        self.columns = columns
        #: Acked: positions below this, and single ones beyond it. What of it was sent: ``_sent``.
        self.acked = 0
        self.acked_apart: list[int] = []
        self._sent = 0
        #: Settled in another way: out of order, one by one while somebody waited, or in a transaction.
        self._settled_apart: set[int] = set()
        #: It stands in the subscription's list of batches with acks to send.
        self.listed = False

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def payloads(self) -> list[bytes]:
        payloads = self.columns.payloads()
        return payloads[::-1] if self.newest_first else payloads

    @cached_property
    def offsets(self) -> range | list[int]:
        if len(self.runs) == 1:
            first, end = self.runs[0]
            return range(end - 1, first - 1, -1) if self.newest_first else range(first, end)
        offsets = [offset for first, end in self.runs for offset in range(first, end)]
        return offsets[::-1] if self.newest_first else offsets

    @property
    def keys(self) -> list[bytes]:
        """b"" where a message has none."""
        keys = self.columns.keys() or [b""] * len(self)
        return keys[::-1] if self.newest_first else keys

    @property
    def headers(self) -> list[dict[str, HeaderValue]]:
        return [self.columns.headers(self.index(position)) for position in range(len(self))]

    @property
    def topic(self) -> str:
        return self.subscription.topic

    def index(self, position: int) -> int:
        return len(self.columns) - 1 - position if self.newest_first else position

    def messages(self) -> Iterator[Message]:
        return map(Message, self.payloads, range(len(self)), repeat(self))

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def ack(self, *, wait: bool | None = None) -> asyncio.Future[None]:
        """Settle all of it that isn't settled yet."""
        subscription = self.subscription
        if subscription.waits if wait is None else wait and not subscription.at_most_once:
            subscription.flush_acks()
            begin = self._sent
            self.acked = self._sent = len(self)
            settlement = frames.Settlement(self.lease, self._runs_between(begin, len(self)))
            return subscription.settle(settlement, failed=partial(self._not_acked, begin))
        self.acked = len(self)
        if not self.listed:
            subscription.list_acks(self)
        return subscription.ready

    def _not_acked(self, begin: int) -> None:
        self.acked = self._sent = begin

    def requeue(self, after: float | None = None, *, cause: str = "") -> asyncio.Future[None]:
        return self.settle(range(len(self)), "requeue", after=after, cause=cause)

    def bury(self, cause: str = "") -> asyncio.Future[None]:
        return self.settle(range(len(self)), "bury", cause=cause)

    def extend(self) -> asyncio.Future[None]:
        return self.settle(range(len(self)), "extend")

    # -- for the subscription ----------------------------------------------------------------------

    def runs_of(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        offsets = self.offsets
        if isinstance(offsets, range) and isinstance(positions, range):
            if not positions:
                return []
            ends = offsets[positions[0]], offsets[positions[-1]]
            return [(min(ends), max(ends) + 1)]
        runs: list[tuple[int, int]] = []
        for offset in sorted(offsets[position] for position in positions):
            if runs and runs[-1][1] == offset:
                runs[-1] = (runs[-1][0], offset + 1)
            else:
                runs.append((offset, offset + 1))
        return runs

    def take_acks(self) -> list[tuple[int, int]]:
        """The offsets acked since the last call."""
        self.listed = False
        apart = self.acked_apart
        runs: list[tuple[int, int]] = []
        if self._sent < self.acked:
            runs += self._runs_between(self._sent, self.acked)
            self._sent = self.acked
        if apart:
            runs += self.runs_of(apart)
            self._settled_apart.update(apart)
            self.acked_apart = []
        return runs

    def _runs_between(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The offsets of these positions, without those that were settled apart."""
        positions = range(begin, end)
        apart = self._settled_apart
        return self.runs_of([p for p in positions if p not in apart] if apart else positions)

    def settled_before(self, position: int) -> bool:
        """Has this consumer told the terminal what becomes of it?"""
        return position < self._sent or position in self._settled_apart

    def note_settled(self, positions: Iterable[int]) -> None:
        self._settled_apart.update(positions)

    def settle(
        self, positions: Sequence[int], verb: str, *, after: float | None = None, cause: str = ""
    ) -> asyncio.Future[None]:
        settlement = frames.Settlement(self.lease, self.runs_of(positions), verb, after, cause[:1024])
        if verb == "extend":
            return self.subscription.settle(settlement)
        self.subscription.flush_acks()
        again = any(map(self.settled_before, positions))
        done = self.subscription.settle(settlement, again=again, failed=partial(self._not_settled, positions))
        self.note_settled(positions)
        return done

    def _not_settled(self, positions: Iterable[int]) -> None:
        self._settled_apart.difference_update(positions)

"""What a subscription delivers: messages one by one, or batches of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from typing import Any, Protocol

import msgspec

from landbridge.client.payload import check_headers, decode, encode, failure_of
from landbridge.core.log.batch import Batch, Headers, HeaderValue
from landbridge.core.replies import REPLY_TO
from landbridge.errors import ServiceFailed
from landbridge.protocol import frames


class Settling(Protocol):
    """The subscription, as far as its batches need it. See ``landbridge.client.subscription``."""

    topic: str
    waits: bool
    at_most_once: bool
    ready: asyncio.Future[None]
    number: int

    def list_acks(self, batch: DeliveredBatch) -> None:
        """Send the batch's acks soon."""

    def flush_acks(self) -> None:
        """Send the listed acks now."""

    def settle(
        self, settlement: frames.Settlement, *, again: bool = False, failed: Callable[[], None] | None = None
    ) -> asyncio.Future[None]:
        """Send a settlement, and wait for the disk."""
        raise NotImplementedError

    def reply(
        self,
        batch: DeliveredBatch,
        position: int,
        payload: bytes,
        headers: dict[str, HeaderValue],
        failure: frames.Failure | None,
    ) -> asyncio.Future[None]:
        """Send a reply to a message, which settles it."""
        raise NotImplementedError


class Message(msgspec.Struct, gc=False, frozen=True):
    """One message. Settle it with ``ack``, ``requeue`` or ``bury``."""

    payload: bytes
    #: Its place in its batch, in delivery order.
    position: int
    batch: DeliveredBatch

    def json(self, type: Any = Any) -> Any:
        """The payload decoded from JSON, and checked against a type if one is given."""
        return decode(self.payload, type)

    def text(self) -> str:
        """The payload as text, from UTF-8."""
        return self.payload.decode()

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        return self.batch.subscription.topic

    @property
    def offset(self) -> int:
        """Its place in the topic's log."""
        return self.batch.offsets[self.position]

    @property
    def id(self) -> str:
        """Its id, which is the same at every terminal."""
        return self.batch.columns.id_of(self.batch.index(self.position))

    @property
    def key(self) -> str | None:
        """Its key; None if it has none."""
        raw = self.batch.columns.key(self.batch.index(self.position))
        return raw.decode(errors="replace") if raw else None

    @property
    def headers(self) -> dict[str, HeaderValue]:
        """Its headers."""
        return self.batch.columns.headers(self.batch.index(self.position))

    @property
    def time(self) -> int:
        """When it was published, in microseconds since 1970."""
        return self.batch.columns.time_of(self.batch.index(self.position))

    @property
    def priority(self) -> int:
        """0 to 9, where 9 goes first."""
        priorities = self.batch.columns.priorities()
        return 0 if priorities is None else priorities[self.batch.index(self.position)]

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1. Prefetched neighbours of a failed message don't count."""
        return self.batch.attempts.get(self.offset, 1)

    @property
    def wants_reply(self) -> bool:
        """Somebody waits for a reply: a durable request, or an event with an outcome."""
        return REPLY_TO in self.headers

    def reply(self, value: Any, *, headers: Headers | None = None) -> asyncio.Future[None]:
        """Send the reply to a message that wants one: bytes, text, or what JSON can say. The reply is stored
        and the message acked in one commit."""
        batch = self.batch
        return batch.subscription.reply(batch, self.position, encode(value), check_headers(headers), None)

    def fail(self, error: BaseException | str, *, headers: Headers | None = None) -> asyncio.Future[None]:
        """Reply that it failed, and settle it: an exception (ServiceFailed names a code and a status), or a
        text."""
        raised = ServiceFailed(error) if isinstance(error, str) else error
        batch, failure = self.batch, failure_of(raised)
        return batch.subscription.reply(batch, self.position, b"", check_headers(headers), failure)

    def ack(self, *, wait: bool | None = None) -> asyncio.Future[None]:
        """Settle the message. Awaiting returns at once; with ``wait=True``, and for queues, it returns when
        the ack is on disk, and raises LeaseLost if the message was no longer this consumer's."""
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
        """Give the message back, to be delivered again after some seconds; by default the group's backoff."""
        return self.batch.settle([self.position], "requeue", after=after, cause=cause)

    def bury(self, cause: str = "") -> asyncio.Future[None]:
        """Give the message up: it goes to the dead-letter topic, with the cause."""
        return self.batch.settle([self.position], "bury", cause=cause)

    def extend(self) -> asyncio.Future[None]:
        """Ask for more time: ``ack_within`` starts anew."""
        return self.batch.settle([self.position], "extend")


class DeliveredBatch:
    """Messages that were delivered together, with their columns at hand."""

    def __init__(self, subscription: Settling, frame: frames.Deliver, columns: Batch) -> None:
        self.subscription = subscription
        self.lease = frame.lease
        self.runs = frame.runs
        self.newest_first = frame.newest_first
        self.attempts = frame.attempts
        self.columns = columns
        #: Acked are the positions below ``acked``, and single ones beyond it. Acks were sent for those below
        #: ``_sent``.
        self.acked = 0
        self.acked_apart: list[int] = []
        self._sent = 0
        #: Positions that were settled in another way: out of order, with a wait, or in a transaction.
        self._settled_apart: set[int] = set()
        #: The batch is in the subscription's list of batches with acks to send.
        self.listed = False

    def __len__(self) -> int:
        return len(self.columns)

    @cached_property
    def payloads(self) -> list[bytes]:
        """The payloads, in the order of delivery."""
        payloads = self.columns.payloads()
        return payloads[::-1] if self.newest_first else payloads

    @cached_property
    def offsets(self) -> range | list[int]:
        """The offsets, in the order of delivery."""
        if len(self.runs) == 1:
            first, end = self.runs[0]
            return range(end - 1, first - 1, -1) if self.newest_first else range(first, end)
        offsets = [offset for first, end in self.runs for offset in range(first, end)]
        return offsets[::-1] if self.newest_first else offsets

    @property
    def keys(self) -> list[bytes]:
        """The keys, in the order of delivery; b"" for a message without one."""
        keys = self.columns.keys() or [b""] * len(self)
        return keys[::-1] if self.newest_first else keys

    @property
    def headers(self) -> list[dict[str, HeaderValue]]:
        """The headers, in the order of delivery."""
        return [self.columns.headers(self.index(position)) for position in range(len(self))]

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        return self.subscription.topic

    def index(self, position: int) -> int:
        """Where the message at a position of delivery stands in the columns."""
        return len(self.columns) - 1 - position if self.newest_first else position

    def messages(self) -> Iterator[Message]:
        """The messages one by one, in the order of delivery."""
        return map(Message, self.payloads, range(len(self)), repeat(self))

    def __iter__(self) -> Iterator[Message]:
        return self.messages()

    def ack(self, *, wait: bool | None = None) -> asyncio.Future[None]:
        """Settle all messages that are not settled yet. See ``Message.ack``."""
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
        """Give all messages back, to be delivered again after some seconds."""
        return self.settle(range(len(self)), "requeue", after=after, cause=cause)

    def bury(self, cause: str = "") -> asyncio.Future[None]:
        """Give all messages up: they go to the dead-letter topic, with the cause."""
        return self.settle(range(len(self)), "bury", cause=cause)

    def extend(self) -> asyncio.Future[None]:
        """Ask for more time: ``ack_within`` starts anew."""
        return self.settle(range(len(self)), "extend")

    # -- for the subscription ----------------------------------------------------------------------

    def runs_of(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """The offsets of these positions, as runs of (first, end)."""
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
        """The offsets that were acked since the last call."""
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
        """Has this consumer told the terminal how the message is settled?"""
        return position < self._sent or position in self._settled_apart

    def note_settled(self, positions: Iterable[int]) -> None:
        """These positions were settled elsewhere, for example in a transaction."""
        self._settled_apart.update(positions)

    def settle(
        self, positions: Sequence[int], verb: str, *, after: float | None = None, cause: str = ""
    ) -> asyncio.Future[None]:
        """Settle these positions by a verb: requeue, bury or extend."""
        settlement = frames.Settlement(self.lease, self.runs_of(positions), verb, after, cause[:1024])
        if verb == "extend":
            return self.subscription.settle(settlement)
        self.subscription.flush_acks()
        again = any(map(self.settled_before, positions))
        done = self.subscription.settle(settlement, again=again, failed=partial(self.unsettled, positions))
        self.note_settled(positions)
        return done

    def unsettled(self, positions: Iterable[int]) -> None:
        """The terminal has not settled these after all."""
        self._settled_apart.difference_update(positions)

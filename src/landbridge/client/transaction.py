"""A transaction: publishes and acks that happen together or not at all.

It is gathered here and sent in one frame at the end of the block. If the connection is lost before the
answer, it is sent again, and the ledger makes it once. If a message's lease is lost, nothing of it happens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.payload import encode
from landbridge.client.publisher import Rows
from landbridge.core.log.batch import Headers
from landbridge.errors import BadRequest, TooLarge
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame

if TYPE_CHECKING:
    from types import TracebackType

    from landbridge.client.bus import Bus


class Transaction:
    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        #: Topic and messages of each batch, in order; and of each topic the one that may still grow.
        self._batches: list[tuple[str, Rows]] = []
        self._growing: dict[str, Rows] = {}
        self._acks: list[tuple[int, int, list[tuple[int, int]]]] = []
        #: What those acks settle, for the batches to know.
        self._settles: list[tuple[DeliveredBatch, range]] = []
        self._ended = False

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | bytes | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        id: str | None = None,
        deliver_at: Any = None,
        expires_at: Any = None,
    ) -> None:
        self._check()
        data = self._bus.checked(encode(payload))
        rows = self._growing.get(topic)
        if rows is None:
            rows = Rows()
        rows.add(data, key, priority, headers, id, deliver_at, expires_at)
        if topic not in self._growing:  # what could not be added leaves nothing behind
            self._growing[topic] = rows
            self._batches.append((topic, rows))

    async def publish_rows(self, topic: str, rows: Rows) -> None:
        """As a batch of their own. Groups that take one key alone pass over batches of other keys at no cost
        per message."""
        self._check()
        for payload in rows.payloads:
            self._bus.checked(payload)
        self._growing.pop(topic, None)
        self._batches.append((topic, rows))

    async def ack(self, message: Message | DeliveredBatch) -> None:
        self._check()
        if isinstance(message, Message):
            batch, positions = message.batch, range(message.position, message.position + 1)
        else:
            batch, positions = message, range(len(message))
        if not batch.lease:
            raise BadRequest("this group settles on delivery", hint="subscribe with a group name")
        self._acks.append((batch.subscription.number, batch.lease, batch.runs_of(positions)))
        self._settles.append((batch, positions))

    def _check(self) -> None:
        if self._ended:
            raise BadRequest("the transaction has ended")

    async def commit(self) -> None:
        self._check()
        self._ended = True
        if not self._batches and not self._acks:
            return
        batches = [(topic, rows.build(self._bus.new_id())) for topic, rows in self._batches]
        publishes = [(topic, len(data)) for topic, data in batches]
        tails = [data for _, data in batches]

        if sum(map(len, tails)) > self._bus.max_batch:
            raise TooLarge(
                f"a transaction of {sum(map(len, tails))} bytes, the terminal takes {self._bus.max_batch}"
            )

        def make(request: int) -> Frame:
            floor = self._bus.oldest_transaction
            return frames.Transact(request, self._bus.producer, number, floor, publishes, self._acks)

        number = self._bus.begin_transaction()
        try:
            await self._bus.call_on_link(make, *tails)
        finally:
            self._bus.end_transaction(number)
        for batch, positions in self._settles:
            batch.note_settled(positions)

    async def __aenter__(self) -> Transaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.commit()
        self._ended = True

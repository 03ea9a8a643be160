"""A transaction: publishes, acks and documents that happen together or not at all.

A transaction is gathered here and sent in one frame at the end of the block. If the connection is lost
before the answer, the transaction is sent again, and the ledger sees to it that it happens once. If a
message's lease is lost, nothing of the transaction happens.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Unpack

import msgspec

from landbridge.client.line import TerminalLine
from landbridge.client.message import DeliveredBatch, Message
from landbridge.client.payload import encode
from landbridge.client.publisher import MessageOptions, Rows
from landbridge.core.log.keys import check_key
from landbridge.core.names import CONTENT_TOPIC
from landbridge.errors import BadRequest, TooLarge
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame


class Transaction:
    """Made by ``bus.transaction()``; leaving its block commits, unless the block raises."""

    def __init__(self, bus: TerminalLine, idempotency_key: str | None = None) -> None:
        self._bus = bus
        self._key = "" if idempotency_key is None else check_key(idempotency_key)
        #: Once it is committed: it had happened before, as another transaction with the same key.
        self.repeated = False
        #: Once it is committed: topic and first offset of each batch that it has published, -1 where that is
        #: not known any more.
        self.offsets: list[tuple[str, int]] = []
        #: Topic and messages of each batch, in order; and by topic the batch that may still grow.
        self._batches: list[tuple[str, Rows]] = []
        self._growing: dict[str, Rows] = {}
        self._acks: list[tuple[int, int, list[tuple[int, int]]]] = []
        #: The positions that those acks settle, by batch.
        self._settles: list[tuple[DeliveredBatch, range]] = []
        self._documents: list[frames.DocumentEdit] = []
        self._ended = False
        #: Once it is committed, and was no repeat: the id of each of these batches, which begins the ids of
        #: its messages.
        self.batch_ids: list[str] = []

    async def publish(self, topic: str | None, payload: Any, **options: Unpack[MessageOptions]) -> None:
        """Add a message, which is stored if the transaction is committed. None: rules say who gets it."""
        self._check()
        topic = CONTENT_TOPIC if topic is None else topic
        data = self._bus.checked(encode(payload))
        rows = self._growing.get(topic)
        if rows is None:
            rows = Rows()
        rows.add(data, **options)
        if topic not in self._growing:  # only now: a message that can't be added leaves no empty batch
            self._growing[topic] = rows
            self._batches.append((topic, rows))

    async def publish_rows(self, topic: str, rows: Rows) -> None:
        """Add messages as a batch of their own. Groups that take one key alone pass over batches of other
        keys at no cost per message."""
        self._check()
        for payload in rows.payloads:
            self._bus.checked(payload)
        self._growing.pop(topic, None)
        self._batches.append((topic, rows))

    async def ack(self, message: Message | DeliveredBatch) -> None:
        """Add an ack, which settles a message or a batch if the transaction is committed."""
        self._check()
        if isinstance(message, Message):
            batch, positions = message.batch, range(message.position, message.position + 1)
        else:
            batch, positions = message, range(len(message))
        if not batch.lease:
            raise BadRequest("this group settles on delivery", hint="subscribe with a group name")
        self._acks.append((batch.subscription.number, batch.lease, batch.runs_of(positions)))
        self._settles.append((batch, positions))

    async def create_document(self, collection: str, key: str, value: Any, *, topic: str = "") -> None:
        """Add a new document. ``topic``: the topic that it lives with, that of the messages acked here."""
        self._edit(collection, key, value, topic, "")

    async def update_document(
        self, collection: str, key: str, value: Any, *, version: str, topic: str = ""
    ) -> None:
        """Add another value for a document that has this version."""
        if not version:
            raise BadRequest("an update names the version that it replaces", hint="read the document first")
        self._edit(collection, key, value, topic, version)

    async def delete_document(
        self, collection: str, key: str, *, version: str | None = None, topic: str = ""
    ) -> None:
        """Add the deletion of a document that has this version; None: any version."""
        self._check()
        self._documents.append(frames.DocumentEdit(collection, topic, key, None, version))

    def _edit(self, collection: str, key: str, value: Any, topic: str, expect: str) -> None:
        self._check()
        data = msgspec.msgpack.encode(msgspec.to_builtins(value))
        self._documents.append(frames.DocumentEdit(collection, topic, key, data, expect))

    def _check(self) -> None:
        if self._ended:
            raise BadRequest("the transaction has ended")

    async def commit(self) -> None:
        """Do it all, or nothing: LeaseLost if a message was no longer this consumer's, DocumentChanged or
        DocumentExists if a document had another version."""
        self._check()
        self._ended = True
        if not (self._batches or self._acks or self._documents):
            return
        if self._key:
            await self._bus.check_feature("keys", "idempotency keys")
        ids = [self._bus.new_id() for _ in self._batches]
        self.batch_ids = [id.hex() for id in ids]
        batches = [(topic, rows.build(id)) for id, (topic, rows) in zip(ids, self._batches, strict=True)]
        publishes = [(topic, len(data)) for topic, data in batches]
        tails = [data for _, data in batches]

        if sum(map(len, tails)) > self._bus.max_batch:
            raise TooLarge(
                f"a transaction of {sum(map(len, tails))} bytes, the terminal takes {self._bus.max_batch}"
            )

        def make(request: int) -> Frame:
            floor = self._bus.oldest_transaction
            producer = self._bus.producer
            return frames.Transact(
                request, producer, number, floor, publishes, self._acks, self._documents, begun, self._key
            )

        number, begun = self._bus.begin_transaction(), self._bus.time_there()
        try:
            # With a key it may be repeated, so a refusal for now (backlog or disk full) is waited out.
            ask = self._bus.ask_patiently if self._key else self._bus.ask
            answer = (await ask(make, *tails)).result
        finally:
            self._bus.end_transaction(number)
        if self._key:
            self.repeated, answer = answer["repeated"], answer["firsts"]
        firsts = answer or [-1] * len(publishes)  # none for one that was repeated after a lost answer
        self.offsets = [(topic, first) for (topic, _), first in zip(publishes, firsts, strict=True)]
        if not self.repeated:  # else its acks have not happened: the messages are still the consumer's
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

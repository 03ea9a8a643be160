"""Transactions: publishes, acks and documents of a client, all or nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import NamedTuple, Protocol

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.committing import Committing
from landbridge.broker.consuming import Consuming
from landbridge.broker.distant import DistantTopic
from landbridge.broker.documents import Documents, Edit, check_place, check_value
from landbridge.broker.group import Consumer, Group
from landbridge.broker.middleware import Outcome, accepted, run_all
from landbridge.broker.publishing import Publishing
from landbridge.broker.reservations import Reservations, TransactionAttempt, TransactionAttempts
from landbridge.broker.surroundings import AckingClient, Client
from landbridge.broker.topic import Topic
from landbridge.broker.topic_table import TopicTable
from landbridge.broker.totals import Totals
from landbridge.broker.transaction_ledger import TransactionLedger
from landbridge.broker.units import Units
from landbridge.core.log import keys, ledger
from landbridge.core.log.batch import Batch
from landbridge.core.log.keys import KeyEntry
from landbridge.core.log.ranges import Range, count
from landbridge.errors import BadFrame, BadRequest, BusError, LeaseLost, LimitReached, TooOld
from landbridge.protocol import frames
from landbridge.stores.writer import Answered, NotLoaded, Writer

#: Publishes, runs of acks and documents of one transaction: all of them are in one turn of the loop.
MOST_IN_TRANSACTION = 1_200
#: So many of them are as much work for a commit as a publish.
PARTS_PER_WORK = 4


class TransactionOutputs(NamedTuple):
    """What a transaction has stored: the offsets of its outputs, those in other units later."""

    firsts: list[int | asyncio.Future[int]]
    repeated: bool = False


class TransactionOutcome(NamedTuple):
    """What became of a transaction."""

    firsts: list[int]  #: offset of each output's first message; -1 where it is no longer known
    repeated: bool  #: it had happened before, as another request with the same key


class TransactionKey(NamedTuple):
    """The idempotency key of a transaction."""

    key: str
    name: bytes
    body: bytes
    topic: Topic  #: the one that remembers the key, and the transaction's batch for it
    batch: Batch
    place: int  #: which of the outputs that is

    def known(self, publishing: Publishing, commit: BrokerCommit) -> TransactionOutputs | None:
        """What the first transaction with the key has stored; None where there was none."""
        entry = publishing.known_key(commit, self.topic, self.key, self.name, self.body)
        if entry is None:
            return None
        firsts: list[int | asyncio.Future[int]] = list(entry.outputs or (entry.first,))
        outputs = TransactionOutputs(firsts, entry.batch != self.batch.id)
        if self.name not in commit.keys.get(self.topic.keys.number, {}):
            raise Answered(outputs)
        return outputs

    def remember(self, commit: BrokerCommit, firsts: list[int | asyncio.Future[int]]) -> None:
        outputs = tuple(first if isinstance(first, int) else -1 for first in firsts)
        entry = KeyEntry(outputs[self.place], self.body, self.batch.id, outputs)
        self.topic.keys.remember(
            commit, {self.name: entry}, max(entry.first, commit.end_of(self.topic.log) - 1)
        )


class AskedTransaction(NamedTuple):
    """A transaction that a client asks for, checked, on its way to its commit."""

    connection: Client
    frame: frames.Transact
    #: The outputs as they came, and what the middleware of their topics makes of each.
    publishes: list[tuple[Topic | DistantTopic, Batch]]
    outcomes: list[Outcome]
    once: TransactionKey | None
    edits: list[Edit]
    #: Acks that are in its commit, and those of messages that are reserved before.
    acks: list[tuple[int, int, list[Range]]]
    apart: list[frames.ApartAck]
    #: None where nothing is reserved.
    attempt: TransactionAttempt | None

    @property
    def has_middleware(self) -> bool:
        return any(topic.chain is not None for topic, _ in self.publishes)

    async def apply_middleware(self) -> None:
        """Take the outputs through the middleware of their topics."""
        if self.has_middleware:
            chains = [(topic.chain, batch) for topic, batch in self.publishes]
            self.outcomes[:] = await run_all(chains, self.connection)


async def all_of(outputs: asyncio.Future[TransactionOutputs]) -> TransactionOutcome:
    """What became of a transaction, once the outputs in other units have their offsets."""
    found = await outputs
    firsts = [first if isinstance(first, int) else await first for first in found.firsts]
    return TransactionOutcome(firsts, found.repeated)


def by_lease(acks: list[tuple[int, int, list[Range]]]) -> list[tuple[int, int, list[Range]]]:
    """The acks of a transaction, each lease once."""
    runs: dict[tuple[int, int], list[Range]] = {}
    for subscription, lease, each in acks:
        runs.setdefault((subscription, lease), []).extend(each)
    return [(*of, each) for of, each in runs.items()]


class TransactingHost(Protocol):
    """What is asked of the broker."""

    totals: Totals
    documents: Documents
    units: Units
    committing: Committing
    ledger: TransactionLedger
    table: TopicTable
    publishing: Publishing
    consuming: Consuming
    reservations: Reservations
    attempts: TransactionAttempts


class Transacting:
    def __init__(self, broker: TransactingHost) -> None:
        self._broker, self._units = broker, broker.units
        self._dropping: set[asyncio.Task[None]] = set()

    def read_transaction(
        self, connection: Client, frame: frames.Transact, tail: memoryview
    ) -> list[tuple[Topic | DistantTopic, Batch]]:
        """The outputs of a stranger's transaction, checked."""
        if frame.parts > MOST_IN_TRANSACTION:
            raise LimitReached(
                f"a transaction of {frame.parts} publishes, acks and documents, allowed are "
                f"{MOST_IN_TRANSACTION}",
                hint="ack whole batches, publish to a topic in one batch, or make several transactions",
            )
        publishes: list[tuple[Topic | DistantTopic, Batch]] = []
        at = 0
        for name, size in frame.publishes:
            if at + size > len(tail):
                raise BadFrame(f"a transaction whose batches go beyond its {len(tail)} bytes")
            topic = self._broker.publishing.output(connection, name)
            publishes.append((topic, self._broker.publishing.read_batch(name, tail[at : at + size])))
            at += size
        if at != len(tail):
            raise BadFrame(f"a transaction with {len(tail) - at} bytes too many")
        return publishes

    def transact(
        self, connection: Client, frame: frames.Transact, publishes: list[tuple[Topic | DistantTopic, Batch]]
    ) -> asyncio.Future[TransactionOutcome]:
        """Publishes and acks, all or nothing. The future has the outputs' offsets; none for a transaction
        that happened before, unless it has a key."""
        writer = self._home_of(connection, frame, publishes)
        ledger.check_producer(frame.producer)
        once = self._once(connection, frame, publishes) if frame.key else None
        edits = self._edits(connection, frame, writer.unit)
        acks, apart = self._apart(connection, frame, writer.unit)
        attempt = TransactionAttempt(writer.unit, frame.producer, frame.number) if apart else None
        outcomes: list[Outcome] = [batch for _, batch in publishes]
        asked = AskedTransaction(connection, frame, publishes, outcomes, once, edits, acks, apart, attempt)
        if attempt is not None:
            return asyncio.ensure_future(self._with_reservations(writer, asked, attempt))
        if asked.has_middleware:
            return asyncio.ensure_future(self._after_middleware(writer, asked))
        return asyncio.ensure_future(all_of(writer.put(partial(self._form, asked))))

    def _edits(self, connection: Client, frame: frames.Transact, home: int) -> list[Edit]:
        """What a transaction writes into documents, checked: all of them are in its own unit."""
        edits = [
            Edit(check_place(edit.collection, edit.topic, edit.key), edit.value, edit.expect)
            for edit in frame.documents
        ]
        for edit in edits:
            connection.scopes.demand("documents", edit.place.collection)
            if edit.value is not None:
                check_value(edit.value)
                if edit.expect is None:
                    raise BadRequest("a document is written by the version that it has", hint="version=…")
            if self._broker.documents.unit_of(edit.place.topic) != home:
                raise BadRequest(
                    f"the document {edit.place.collection}/{edit.place.key} lives apart from the transaction",
                    hint="let it live with the topic whose messages are acked: topic=…",
                )
        return edits

    def _form(self, asked: AskedTransaction, commit: BrokerCommit) -> TransactionOutputs:
        """Write a transaction into a commit, unless it has happened."""
        connection, frame, once = asked.connection, asked.frame, asked.once
        commit.work += frame.parts // PARTS_PER_WORK
        happened = self._broker.ledger.of(commit, frame.producer)
        if once is not None and (known := once.known(self._broker.publishing, commit)) is not None:
            return known
        if happened.known(frame.number):
            self._broker.totals.repeated += 1
            if frame.producer in commit.transactions:
                return TransactionOutputs([])
            raise Answered(TransactionOutputs([]))
        if not happened.stored and 0 < frame.begun <= self._broker.ledger.forgotten(commit.unit):
            raise _forgotten()
        outputs = self._check_outputs(asked, commit)
        self._broker.documents.check(commit, asked.edits)  # before the acks: it may have to read, or refuse
        if asked.attempt is not None and not self._broker.attempts.is_latest(asked.attempt):
            raise LeaseLost("the messages of the transaction are no longer reserved for it")
        self.ack_all(commit, connection, asked.acks)
        if asked.attempt is not None:
            asked.attempt.join(commit, self._units.handovers[commit.unit])
        self._broker.documents.write(commit, asked.edits, connection.subject)
        commit.transactions[frame.producer] = happened.after(
            frame.number, frame.floor, commit.now if frame.begun else 0
        )
        firsts = [
            self._broker.committing.append(commit, topic, batch, connection.subject)
            for topic, batch in outputs
        ]
        if once is not None:
            once.remember(commit, firsts)
        return TransactionOutputs(firsts)

    def _check_outputs(
        self, asked: AskedTransaction, commit: BrokerCommit
    ) -> list[tuple[Topic | DistantTopic, Batch]]:
        """The outputs of a transaction as its topics' middleware has let them through."""
        if asked.publishes:
            commit.need_room()
        outputs = [
            (topic, accepted(outcome))
            for (topic, _), outcome in zip(asked.publishes, asked.outcomes, strict=True)
        ]
        for topic, _ in asked.publishes:
            if isinstance(topic, DistantTopic):
                continue  # its owner has looked at it
            if topic.deleted:  # or its unit has moved meanwhile: then the client comes again
                self._broker.table.topic(topic.name)
                raise self._units.not_owner(topic.writer.unit)
            topic.claim_for(asked.connection, asked.frame.producer)
            topic.check_backlog()
            if topic.spec.ids == "unique" and topic.writer.unit == commit.unit:
                topic.keys.check_ids(commit, *(batch for other, batch in outputs if other is topic))
        return outputs

    async def _after_middleware(
        self, writer: Writer[BrokerCommit], asked: AskedTransaction
    ) -> TransactionOutcome:
        if self._broker.ledger.remembers(writer.unit, asked.frame.producer, asked.frame.number):
            # Nobody looks at the outputs, unless the ledger has forgotten it when the commit is formed.
            asked.outcomes[:] = [_forgotten()] * len(asked.outcomes)
        else:
            await asked.apply_middleware()
        return await all_of(writer.put(partial(self._form, asked)))

    def _apart(
        self, connection: Client, frame: frames.Transact, home: int
    ) -> tuple[list[tuple[int, int, list[Range]]], list[frames.ApartAck]]:
        """The acks of a transaction that are in its commit, and those of messages that are reserved before:
        what another node may have, now or before it is over. One process that owns all units needs no
        reservations."""
        if self._units.elsewhere is None and not frame.apart:
            return frame.acks, []
        acks, apart = [], list(frame.apart)
        for ack in frame.acks:
            number, lease, runs = ack
            consumer = connection.consumers.get(number)
            if consumer is None or consumer.group.topic.writer.unit == home:
                acks.append(ack)
            else:
                group = consumer.group
                apart.append(frames.ApartAck(group.topic.name, group.name, number, lease, runs))
        return acks, apart

    async def _with_reservations(
        self, writer: Writer[BrokerCommit], asked: AskedTransaction, attempt: TransactionAttempt
    ) -> TransactionOutcome:
        """Unless it has happened: what comes before its commit, and then the commit."""
        try:
            if await writer.put(partial(self._begin, attempt, asked.once)) is False:
                await asked.apply_middleware()
                await self._reserve(attempt, asked.connection.subject, asked.apart)
            return await all_of(writer.put(partial(self._form, asked)))
        finally:
            self._broker.attempts.end(attempt)
            if not attempt.is_formed:  # else the commit may be on disk, whatever became of it here
                for unit in attempt.units:
                    task = asyncio.get_running_loop().create_task(self._drop(unit, attempt.token))
                    self._dropping.add(task)
                    task.add_done_callback(self._dropping.discard)

    def _begin(self, attempt: TransactionAttempt, once: TransactionKey | None, commit: BrokerCommit) -> bool:
        """Has the transaction happened? Where it hasn't, the attempt begins."""
        happened = self._broker.ledger.of(commit, attempt.producer)
        if once is not None and once.known(self._broker.publishing, commit) is not None:
            return True
        if not happened.known(attempt.number):
            self._broker.attempts.begin(attempt)
            return False
        return True

    async def _reserve(self, attempt: TransactionAttempt, subject: str, apart: list[frames.ApartAck]) -> None:
        """Reserve the messages in all units, or raise why that can't be."""
        parts: dict[int, list[frames.ApartAck]] = {}
        for ack in apart:
            parts.setdefault(await self._unit_of(ack.topic), []).append(ack)
        attempt.units = list(parts)
        ends = await asyncio.gather(
            *(self._reserve_in(unit, attempt, subject, acks) for unit, acks in parts.items()),
            return_exceptions=True,
        )
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _unit_of(self, topic: str) -> int:
        if self._units.elsewhere is None or self._units.has(topic):
            return self._units.unit_of(topic)
        return await self._units.elsewhere.find_unit(topic)

    async def _reserve_in(
        self, unit: int, attempt: TransactionAttempt, subject: str, acks: list[frames.ApartAck]
    ) -> None:
        elsewhere = self._units.elsewhere
        if elsewhere is None or self._units.owns(unit):
            await self._broker.reservations.reserve(unit, attempt.token, attempt.unit, subject, acks)
        else:
            await elsewhere.reserve(unit, attempt.token, attempt.unit, subject, acks)

    async def _drop(self, unit: int, token: bytes) -> None:
        elsewhere = self._units.elsewhere
        with suppress(BusError):  # then the unit's owner asks what has become of the transaction
            if elsewhere is None or self._units.owns(unit):
                await self._broker.reservations.drop(unit, token)
            else:
                await elsewhere.drop(unit, token)

    async def close(self) -> None:
        """What is still to be dropped is dropped later."""
        for task in list(self._dropping):
            task.cancel()
        await asyncio.gather(*self._dropping, return_exceptions=True)

    def _once(
        self, connection: Client, frame: frames.Transact, publishes: list[tuple[Topic | DistantTopic, Batch]]
    ) -> TransactionKey:
        """The key of a transaction. It belongs to the first topic, by name, that the transaction publishes
        to."""
        name = keys.key_name(connection.subject, keys.check_key(frame.key))
        body = keys.body_hash(*((topic.name, batch) for topic, batch in publishes))
        place = min(range(len(publishes)), key=lambda n: publishes[n][0].name)
        topic, batch = publishes[place]
        if isinstance(topic, DistantTopic):
            raise self._units.not_owner(topic.unit)
        return TransactionKey(frame.key, name, body, topic, batch, place)

    def _home_of(
        self, connection: Client, frame: frames.Transact, publishes: list[tuple[Topic | DistantTopic, Batch]]
    ) -> Writer[BrokerCommit]:
        """The unit in which a transaction happens: with a key that of the key's topic; else that of its first
        ack, or of its first document, or of its first output."""
        if frame.key:
            if not publishes:
                raise BadRequest("a transaction with a key publishes something", hint="leave the key away")
            return self._units.writers[min(publishes, key=lambda each: each[0].name)[0].unit]
        for subscription, _, _ in frame.acks:
            if (consumer := connection.consumers.get(subscription)) is not None:
                return consumer.group.topic.writer
        if frame.apart:
            return self._units.writer_for(frame.apart[0].topic)
        if frame.documents:
            return self._units.writers[self._broker.documents.unit_of(frame.documents[0].topic)]
        return self._units.writers[publishes[0][0].unit if publishes else 0]

    def ack_all(
        self, commit: BrokerCommit, connection: AckingClient, acks: list[tuple[int, int, list[Range]]]
    ) -> None:
        """Every lease must still be held, entirely; then all are acked in this commit."""
        held_by = []
        groups: dict[Group, None] = {}
        for subscription, lease, runs in by_lease(acks):
            consumer = connection.consumers.get(subscription)
            if consumer is None or not consumer.group.delivery.holds(lease, consumer.number, runs):
                raise LeaseLost("a message of the transaction is no longer this consumer's to settle")
            if consumer.group.topic.writer.unit != commit.unit and not consumer.group.stored:
                # After a crash the handover has to find the group.
                raise NotLoaded(partial(self._store_group, consumer.group))
            held_by.append((consumer, lease, runs))
        for consumer, lease, runs in held_by:
            group = consumer.group
            if group.topic.writer.unit == commit.unit:
                held = self._ack(commit.now, consumer, lease, runs)
                commit.on_failed.append(partial(group.unsettle, held))
            else:
                # Not settled before the commit is on disk: the other unit might write it down earlier.
                published = group.delivery.published(lease)
                held = group.delivery.set_aside(commit.now, lease, consumer.number, runs)
                settle = partial(self._settle_aside, commit.now, consumer, held, published)
                self._units.handovers[commit.unit].add_ack(commit, group, held, settle)
                commit.on_failed.append(partial(group.put_back, held))
            groups[group] = None
        for group in groups:
            if group.topic.writer.unit == commit.unit:
                group.save(commit)
            commit.on_stored.append(group.pump)

    def _ack(self, now: int, consumer: Consumer, lease: int, runs: list[Range]) -> list[Range]:
        group = consumer.group
        published = group.delivery.published(lease)
        held = group.delivery.ack(now, lease, consumer.number, runs)
        self._broker.consuming.settled(now, group, consumer, "ack", "", count(held), held, published)
        return held

    async def _store_group(self, group: Group) -> None:
        await group.topic.writer.put(group.save)

    def _settle_aside(self, now: int, consumer: Consumer, held: list[Range], published: int) -> None:
        settled = consumer.group.delivery.settle_aside(held)
        self._broker.consuming.settled(
            now, consumer.group, consumer, "ack", "", count(settled), settled, published
        )


def _forgotten() -> TooOld:
    return TooOld("it is no longer known whether this transaction has happened")

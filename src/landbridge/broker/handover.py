"""From one unit of the store to another: batches that a commit in one unit owes to a topic in another.

A commit is atomic within one unit. Where it has to append to a topic of another unit (an output of a
transaction, a dead letter), the batch is written into the commit as a document, a handover. When the commit
is on disk, the batch is appended in the other unit, together with a ledger entry that says so, and then the
document is deleted. A crash at any point repeats a step that the ledger knows: the batch is appended exactly
once. It can be read a moment later than what was committed with it: the two are not isolated from each other.

Acks of a transaction work the same way where one process owns all units. Those in the transaction's own unit
are in its commit; those of groups in other units are written into it as handovers and settled when it is on
disk. Where a terminal has several nodes, the messages are reserved in their own unit before
(``reservations.py``), and the commit says that the reservation is to be kept.

Where the store has one unit, none of this ever happens.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.group import Group
from landbridge.broker.topic import Topic
from landbridge.core.log import record
from landbridge.core.log.batch import Batch
from landbridge.core.log.ledger import Entry
from landbridge.core.log.ranges import Range
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.errors import BusError
from landbridge.stores.writer import Writer

KIND = "handover"
#: Seconds after which an append that failed is tried again.
AGAIN_AFTER = 1.0


class AppendDocument(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A batch that is to be appended."""

    topic: str
    subject: str  #: in whose name it is published; empty for the terminal itself
    batch: bytes  #: a record (core/log/record.py)


class AckDocument(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Messages that are to be settled."""

    log: int
    group: str
    runs: list[Range]


class KeepDocument(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """A reservation that is to be kept (``reservations.py``)."""

    unit: int
    token: bytes


_encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AppendDocument | AckDocument | KeepDocument).decode


def read(stored: tuple[str, bytes]) -> AppendDocument | AckDocument | KeepDocument:
    """A handover by its key and value; fails where either is damaged."""
    key, raw = stored
    int(key)
    found: AppendDocument | AckDocument | KeepDocument = decode(raw)
    if isinstance(found, AppendDocument):
        record.unwrap(found.batch)
    return found


class _Owed(NamedTuple):
    number: int
    topic: str
    subject: str
    batch: Batch
    done: asyncio.Future[int]  #: the offset that the batch got


class OtherNodes(Protocol):
    """What it asks of the other nodes."""

    async def append(self, topic: str, producer: bytes, number: int, subject: str, batch: Batch) -> int: ...
    async def settle(self, log: int, group: str) -> None: ...
    async def keep(self, unit: int, token: bytes) -> None: ...


class OtherUnits(Protocol):
    """What a handover has to know of where things live."""

    @property
    def elsewhere(self) -> OtherNodes | None:
        """The other nodes of this terminal; None where there are none."""

    def has(self, topic: str) -> bool:
        """Does a topic live in a unit that this process owns?"""

    def has_log(self, log: int) -> bool:
        """The same for a log, by its number."""

    def owns(self, unit: int) -> bool:
        """The same for a unit."""


class Topics(Protocol):
    """Where a handover finds what it is for."""

    def topic_for(self, name: str, *, create: bool = False) -> Topic: ...
    def group_of(self, log: int, name: str) -> Group | None: ...


class TellsPublished(Protocol):
    """What is told of batches that are on disk."""

    def published(self, subject: str, topic: Topic, batch: Batch, first: int) -> None: ...


class KeepsReservations(Protocol):
    """What settles the messages that are reserved for a transaction."""

    async def keep(self, unit: int, token: bytes) -> None: ...


class HandoverHost(Protocol):
    """What a handover asks of the broker."""

    @property
    def units(self) -> OtherUnits: ...

    @property
    def table(self) -> Topics: ...

    @property
    def publishing(self) -> TellsPublished: ...

    @property
    def reservations(self) -> KeepsReservations: ...

    def report(self, topic: str, error: BusError) -> None:
        """Tell the status log of an error."""


class Handovers:
    """The handovers that one unit owes, in the order in which they were committed."""

    def __init__(self, broker: HandoverHost, writer: Writer[BrokerCommit], epoch: int) -> None:
        self._broker, self._units, self._topics = broker, broker.units, broker.table
        self._writer = writer
        # Numbers grow for ever: the epoch is on disk and grows with every start. The ledger of the other unit
        # remembers the last number that it has seen.
        self._next = epoch << 32
        self._owed: asyncio.Queue[_Owed] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._settling: set[asyncio.Task[None]] = set()
        #: Token → how many reservations may not be kept yet of a transaction that has happened here.
        self._keeping: Counter[bytes] = Counter()
        #: Why nothing is handed over any more.
        self._closed: BusError | None = None
        #: What will have the offsets of those that are owed.
        self._waited_for: dict[asyncio.Future[int], None] = {}

    def load(self, documents: list[tuple[str, bytes]]) -> None:
        """Go on with what was committed before this start. Acks among it are in the groups' cursors already:
        they only have to be written before they are forgotten."""
        for key, raw in documents:
            found = decode(raw)
            if isinstance(found, AppendDocument):
                batch = record.unwrap(found.batch)
                self._put(_Owed(int(key), found.topic, found.subject, batch, _future()))
            elif isinstance(found, KeepDocument):
                self._keep_soon(int(key), found)
            elif not self._units.has_log(found.log):
                self._run(self._settle_elsewhere(int(key), found))
            elif (group := self._topics.group_of(found.log, found.group)) is None:
                self._writer.tell(_forget(int(key)))
            else:
                self._settle(int(key), group)

    def add(self, commit: BrokerCommit, topic: str, batch: Batch, subject: str = "") -> asyncio.Future[int]:
        """Write it into a commit of this unit. The future has the offset that the batch gets in its topic."""
        owed = _Owed(self._next, topic, subject, batch, _future())
        self._next += 1
        data = bytes(record.wrap(batch))
        document = AppendDocument(topic, subject, data)
        commit.writes.append(PutDocument(KIND, _key(owed.number), _encode(document)))
        commit.size += len(data)
        commit.on_stored.append(lambda: self._put(owed))
        commit.on_failed.append(owed.done.cancel)
        return owed.done

    def add_untold(self, commit: BrokerCommit, topic: str, batch: Batch) -> None:
        """The same where nobody wants to know the offset."""
        self.add(commit, topic, batch).add_done_callback(lambda _: None)

    def add_ack(
        self, commit: BrokerCommit, group: Group, runs: list[Range], settle: Callable[[], None]
    ) -> None:
        """Write into a commit of this unit that a group of another one has settled messages. ``settle`` does
        so in memory; it is called when the commit is on disk."""
        number = self._next
        self._next += 1
        document = AckDocument(group.topic.log.number, group.name, runs)
        commit.writes.append(PutDocument(KIND, _key(number), _encode(document)))
        commit.on_stored.append(settle)
        commit.on_stored.append(lambda: self._settle(number, group))

    def add_reservation(self, commit: BrokerCommit, unit: int, token: bytes) -> None:
        """Write into a commit of this unit that the transaction has happened for which messages of another
        unit are reserved. They are settled there once the commit is on disk."""
        number = self._next
        self._next += 1
        document = KeepDocument(unit, token)
        commit.writes.append(PutDocument(KIND, _key(number), _encode(document)))
        commit.reservations.add(token)
        commit.on_stored.append(lambda: self._keep_soon(number, document))

    def owes(self, token: bytes) -> bool:
        """Has the transaction happened here, whose reservations have this token?"""
        return token in self._keeping

    def _keep_soon(self, number: int, document: KeepDocument) -> None:
        self._keeping[document.token] += 1
        self._run(self._keep(number, document))

    async def _keep(self, number: int, document: KeepDocument) -> None:
        while True:
            try:
                others = self._units.elsewhere
                if others is None or self._units.owns(document.unit):
                    await self._broker.reservations.keep(document.unit, document.token)
                else:
                    await others.keep(document.unit, document.token)
            except BusError as error:
                self._broker.report("", error)
                await asyncio.sleep(AGAIN_AFTER)
            else:
                self._keeping[document.token] -= 1
                self._keeping += Counter()  # what is at nothing is no longer there
                self._writer.tell(_forget(number))
                return

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _settle(self, number: int, group: Group) -> None:
        """Write a group's cursor, which has the acks, then forget the handover."""
        saved = group.topic.writer.put(group.save)
        saved.add_done_callback(partial(self._on_settled, number))

    def _on_settled(self, number: int, saved: asyncio.Future[None]) -> None:
        # Where it failed, the cursor is written later, and the handover is forgotten after the next start.
        if not saved.cancelled() and saved.exception() is None:
            self._writer.tell(_forget(number))

    async def _settle_elsewhere(self, number: int, found: AckDocument) -> None:
        """The group is at another node: its owner has the acks in the cursor, and writes that down."""
        while True:
            try:
                if (group := self._topics.group_of(found.log, found.group)) is not None:
                    await group.topic.writer.put(group.save)
                elif (others := self._units.elsewhere) is not None and not self._units.has_log(found.log):
                    await others.settle(found.log, found.group)
            except BusError as error:
                self._broker.report("", error)
                await asyncio.sleep(AGAIN_AFTER)
            else:
                self._writer.tell(_forget(number))
                return

    def _put(self, owed: _Owed) -> None:
        if self._closed is not None:
            _give_up(owed.done, self._closed)
            return
        self._owed.put_nowait(owed)
        self._waited_for[owed.done] = None
        owed.done.add_done_callback(self._told)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._deliver_all())

    def _told(self, done: asyncio.Future[int]) -> None:
        self._waited_for.pop(done, None)

    async def _deliver_all(self) -> None:
        while True:
            owed = await self._owed.get()
            first = await self._deliver(owed)
            while first is None:
                await asyncio.sleep(AGAIN_AFTER)
                first = await self._deliver(owed)
            self._writer.tell(_forget(owed.number))
            if not owed.done.done():
                owed.done.set_result(first)

    async def _deliver(self, owed: _Owed) -> int | None:
        """Append it once. Returns its offset, or None where it has to be tried again."""
        producer = f"handover/{self._writer.unit}".encode()
        try:
            others = self._units.elsewhere
            if others is not None and not self._units.has(owed.topic):
                return await others.append(owed.topic, producer, owed.number, owed.subject, owed.batch)
            return await append_once(
                self._broker, owed.topic, producer, owed.number, owed.subject, owed.batch
            )
        except BusError as error:
            self._broker.report(owed.topic, error)
            return None

    async def close(self, why: BusError | None = None) -> None:
        """Stop. What is still owed is on disk, and is handed over after the next start. ``why``: what those
        get who wait for it, where this process goes on without the unit."""
        self._closed = why
        tasks = [*self._settling, *([] if self._task is None else [self._task])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if why is not None:
            for done in list(self._waited_for):
                _give_up(done, why)


def _give_up(done: asyncio.Future[int], why: BusError) -> None:
    if not done.done():
        done.set_exception(why)
        done.exception()  # perhaps nobody waits


async def append_once(
    broker: HandoverHost, name: str, producer: bytes, number: int, subject: str, batch: Batch
) -> int:
    """Append a batch to a topic that lives here, unless its ledger knows this number of the producer. Returns
    the offset of its first message; -1 where that isn't known any more."""
    topic = broker.table.topic_for(name, create=True)

    def work(commit: BrokerCommit) -> tuple[int, Batch | None]:
        entry = commit.entry(topic.log, producer)
        if number <= entry.last:
            return entry.firsts[-1] if number == entry.last else -1, None
        if subject and topic.spec.ids == "unique":
            topic.keys.check_ids(commit, batch)
        topic.save(commit)
        stored: Batch | None = batch
        if subject:
            stored, first = topic.store(commit, batch)
        else:
            first = commit.append(topic.log, batch)
        commit.remember(topic.log, producer, Entry(number, (first,)))
        return first, stored

    first, stored = await topic.writer.put(work)
    if stored is not None and subject:
        broker.publishing.published(subject, topic, stored, first)
    return first


def _key(number: int) -> str:
    return f"{number:020}"


def _future() -> asyncio.Future[int]:
    return asyncio.get_running_loop().create_future()


def _forget(number: int) -> Callable[[BrokerCommit], None]:
    return lambda commit: commit.writes.append(DeleteDocument(KIND, _key(number)))

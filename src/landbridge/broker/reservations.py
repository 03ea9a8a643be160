"""Reservations: messages that a transaction acks and whose unit is not the one where the transaction happens.

A transaction happens in one unit, its home. What it acks in another unit may be at another node, and that
unit may change its owner at any moment. So these messages are reserved first: a commit of their own unit says
for which transaction they are set aside, and nobody gets them, whoever owns the unit, until it is known
whether that transaction has happened. Its commit names the reservations (``handover.py``). Each of them is
then kept: the messages are settled, and the reservation is gone in the same commit. A reservation whose
transaction has not happened, and can't happen any more, is dropped: the messages are handed out again.

Whoever owns the messages' unit asks the owner of the home what has become of a transaction that takes long
(``decide``). The answer "no" is given after a commit of the home, so a node that was replaced can't give it.
A transaction that is under way is known in the memory of the home's owner alone (``TransactionAttempts``):
another owner doesn't know it, and never commits it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.consuming import Consuming
from landbridge.broker.group import Consumer, Group
from landbridge.broker.handover import Handovers
from landbridge.broker.topic_table import TopicTable
from landbridge.broker.units import Units
from landbridge.core.log.ranges import Range, count
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.core.time import SECOND
from landbridge.errors import BusError, LeaseLost
from landbridge.protocol.frames import ApartAck
from landbridge.stores.writer import Answered, Commit, adding

#: The kind of the documents, by the transaction's token.
KIND = "reservation"
#: Microseconds after which the home is asked what has become of a transaction, and between two questions.
ASK_AFTER, ASK_AGAIN = 5 * SECOND, SECOND


class ReservedRuns(msgspec.Struct, frozen=True, array_like=True):
    log: int
    group: str
    runs: list[Range]


class ReservationDocument(msgspec.Struct, frozen=True, array_like=True):
    home: int  #: the unit in which the transaction happens, or not
    parts: list[ReservedRuns]


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(ReservationDocument).decode


class HeldRuns(NamedTuple):
    """What is set aside of a group."""

    group: Group
    runs: list[Range]
    #: Who has acked it, and when it was published; nobody where that was before this process had the unit.
    consumer: Consumer | None = None
    published: int = 0


class Reservation:
    """What is set aside in one unit for one transaction."""

    def __init__(self, unit: int, token: bytes, home: int, held: list[HeldRuns], ask_at: int) -> None:
        self.unit, self.token, self.home, self.held = unit, token, home, held
        #: The transaction has happened.
        self.is_kept = False
        #: The last commit that deletes its document.
        self.ends_in: BrokerCommit | None = None
        #: When the home is asked, and whether it is being asked.
        self.ask_at, self.is_asked = ask_at, False


def _written(found: Reservation) -> PutDocument:
    parts = [ReservedRuns(each.group.topic.log.number, each.group.name, each.runs) for each in found.held]
    return PutDocument(KIND, found.token.hex(), encode(ReservationDocument(found.home, parts)))


def _concerns(found: Reservation, group: Group) -> bool:
    return any(each.group is group for each in found.held)


def _without(found: Reservation, group: Group) -> list[HeldRuns]:
    return [each for each in found.held if each.group is not group]


class ReservationHost(Protocol):
    """What is asked of the broker."""

    clock: Callable[[], int]
    units: Units
    table: TopicTable
    consuming: Consuming
    attempts: TransactionAttempts

    def report(self, topic: str, error: BusError) -> None: ...


class Reservations:
    """Those in the units that this process owns."""

    def __init__(self, broker: ReservationHost) -> None:
        self._broker, self._units = broker, broker.units
        self._open: dict[tuple[int, bytes], Reservation] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    # -- what the home asks ------------------------------------------------------------------------

    async def reserve(
        self, unit: int, token: bytes, home: int, subject: str, acks: Sequence[ApartAck]
    ) -> None:
        """Set messages aside that consumers of this subject hold. LeaseLost where they don't hold all of
        them."""
        self._check(unit)
        await self._units.writers[unit].put(partial(self._reserve, unit, token, home, subject, acks))

    def _reserve(
        self, unit: int, token: bytes, home: int, subject: str, acks: Sequence[ApartAck], commit: BrokerCommit
    ) -> None:
        runs_of: dict[tuple[Group, Consumer, int], list[Range]] = {}
        for ack in acks:
            consumer = self._holder(unit, subject, ack)
            runs_of.setdefault((consumer.group, consumer, ack.lease), []).extend(ack.runs)
        for (group, consumer, lease), runs in runs_of.items():
            if not group.delivery.holds(lease, consumer.number, runs):
                raise LeaseLost("a message of the transaction is no longer this consumer's to settle")
        found = []
        for (group, consumer, lease), runs in runs_of.items():
            published = group.delivery.published(lease)
            held = group.delivery.set_aside(commit.now, lease, consumer.number, runs)
            found.append(HeldRuns(group, held, consumer, published))
            commit.on_failed.append(partial(group.put_back, held))
            if not group.stored:
                group.save(commit)  # after a crash the reservation has to find it
            commit.on_stored.append(group.pump)
        made = self._open[unit, token] = Reservation(unit, token, home, found, commit.now + ASK_AFTER)
        commit.on_failed.append(partial(self._end, made))
        commit.writes.append(_written(made))

    def _holder(self, unit: int, subject: str, ack: ApartAck) -> Consumer:
        """The consumer that holds a lease. A lease has one number in its group for ever."""
        topic = self._broker.table.topic(ack.topic)
        if ack.group:
            found = topic.groups.get(ack.group)
        else:
            found = next(iter(topic.groups.values()), None) if topic.spec.has_one_group else None
        if found is not None and topic.writer.unit == unit and not (topic.deleted or found.deleted):
            for consumer in found.consumers.values():
                is_asked = (
                    consumer.subscription == ack.subscription and consumer.connection.subject == subject
                )
                if is_asked and found.delivery.holds(ack.lease, consumer.number, ack.runs):
                    return consumer
        raise LeaseLost("a message of the transaction is no longer this consumer's to settle")

    async def keep(self, unit: int, token: bytes) -> None:
        """The transaction has happened: settle what is reserved for it. Nothing where that is done."""
        self._check(unit)
        found = self._open.get((unit, token))
        if found is None:
            # A commit all the same: it fails where another node owns the unit, and has the reservation.
            await self._units.writers[unit].put(adding([DeleteDocument(KIND, token.hex())]))
            return
        found.is_kept = True
        now = self._broker.clock()
        for group, runs, consumer, published in found.held:
            settled = group.delivery.settle_aside(runs)
            if settled and consumer is not None:
                self._broker.consuming.settled(
                    now, group, consumer, "ack", "", count(settled), settled, published
                )
            if settled:
                group.changed()
        await self._units.writers[unit].put(partial(self._kept, found))

    def _kept(self, found: Reservation, commit: BrokerCommit) -> None:
        for held in found.held:
            if not (held.group.deleted or held.group.topic.deleted):
                held.group.save(commit)
        self._delete(found, commit)
        commit.on_stored.append(partial(self._end, found))

    async def drop(self, unit: int, token: bytes) -> None:
        """The transaction hasn't happened and never will: hand out again what is reserved for it."""
        self._check(unit)
        found = self._open.get((unit, token))
        if found is not None and not found.is_kept:
            await self._units.writers[unit].put(partial(self._dropped, found))

    def _dropped(self, found: Reservation, commit: BrokerCommit) -> None:
        self._delete(found, commit)
        commit.on_stored.append(partial(self._put_back, found))

    def _put_back(self, found: Reservation) -> None:
        if self._end(found) and not found.is_kept:
            for group, runs, _, _ in found.held:
                group.delivery.put_back(runs)
                group.pump()

    def _end(self, found: Reservation) -> bool:
        """It is over. False where it isn't here any more: the unit may have been away and come back since."""
        is_here = self._open.get((found.unit, found.token)) is found
        if is_here:
            del self._open[found.unit, found.token]
        return is_here

    def _delete(self, found: Reservation, commit: BrokerCommit) -> None:
        found.ends_in = commit
        commit.writes.append(DeleteDocument(KIND, found.token.hex()))

    def let_go(self, group: Group) -> None:
        """The group begins elsewhere: what was set aside of it is handed out again, whatever becomes of the
        transactions. The documents say so in the commit that has the group's new cursor."""
        touched = [found for found in self._open.values() if _concerns(found, group)]
        for found in touched:
            found.held = _without(found, group)
        if touched:
            group.owe_entry(lambda commit: self._rewrite(touched, commit))

    def leave_out(self, group: Group, commit: BrokerCommit) -> None:
        """The group is deleted in this commit: nothing is reserved of another one of its name."""
        for found in [found for found in self._open.values() if _concerns(found, group)]:
            before, found.held = found.held, _without(found, group)
            commit.on_failed.append(partial(setattr, found, "held", before))
            self._rewrite([found], commit)

    def _rewrite(self, touched: list[Reservation], commit: Commit) -> None:
        for found in touched:
            if self._open.get((found.unit, found.token)) is found and found.ends_in is not commit:
                commit.writes.append(_written(found))

    def _check(self, unit: int) -> None:
        if not self._units.owns(unit):
            raise self._units.not_owner(unit)

    # -- what the home is asked --------------------------------------------------------------------

    def tick(self) -> None:
        """Once a second: ask what has become of transactions that take long."""
        now = self._broker.clock()
        for found in list(self._open.values()):
            if not found.is_asked and found.ask_at - now <= 0 and self._units.owns(found.unit):
                found.is_asked = True
                task = asyncio.get_running_loop().create_task(self._follow(found))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _follow(self, found: Reservation) -> None:
        try:
            happened = await self._decided(found)
            if happened is not None:
                await (self.keep if happened else self.drop)(found.unit, found.token)
        except BusError as error:
            if self._units.owns(found.unit):
                self._broker.report("", error)
        finally:
            found.ask_at, found.is_asked = self._broker.clock() + ASK_AGAIN, False

    async def _decided(self, found: Reservation) -> bool | None:
        elsewhere = self._units.elsewhere
        if elsewhere is None or self._units.owns(found.home):
            return await self._broker.attempts.decide(found.home, found.token)
        return await elsewhere.decide(found.home, found.token)

    # -- the life of a unit ------------------------------------------------------------------------

    def load(self, unit: int, token: bytes, document: ReservationDocument) -> None:
        """This was reserved when another process had the unit, or before a restart."""
        held = []
        for part in document.parts:
            if (group := self._broker.table.group_of(part.log, part.group)) is not None:
                held.append(HeldRuns(group, group.delivery.keep_aside(part.runs)))
        self._open[unit, token] = Reservation(unit, token, document.home, held, 0)

    def forget(self, unit: int) -> None:
        """The unit isn't here any more."""
        for key in [key for key in self._open if key[0] == unit]:
            del self._open[key]

    async def close(self) -> None:
        """What is open stays so, and is loaded by whoever owns its unit next."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class TransactionAttempt:
    """A transaction under way that has reservations."""

    def __init__(self, unit: int, producer: bytes, number: int) -> None:
        self.unit, self.producer, self.number = unit, producer, number
        self.token = os.urandom(16)
        #: Where messages are reserved for it, or are about to be.
        self.units: list[int] = []
        #: It has been in a commit.
        self.is_formed = False

    def join(self, commit: BrokerCommit, handovers: Handovers) -> None:
        """It is in this commit: what is reserved for it is to be kept."""
        self.is_formed = True
        for unit in self.units:
            handovers.add_reservation(commit, unit, self.token)


class AttemptHost(Protocol):
    """What is asked of the broker."""

    units: Units


class TransactionAttempts:
    """Transactions under way that have reservations, in the units that this process owns. A transaction may
    come again while the first attempt is under way: only the latest may happen."""

    def __init__(self, broker: AttemptHost) -> None:
        self._units = broker.units
        #: (unit, producer, number) → the latest.
        self._latest: dict[tuple[int, bytes, int], TransactionAttempt] = {}

    def begin(self, attempt: TransactionAttempt) -> None:
        """One before it of the same transaction can't happen any more."""
        self._latest[attempt.unit, attempt.producer, attempt.number] = attempt

    def is_latest(self, attempt: TransactionAttempt) -> bool:
        return self._latest.get((attempt.unit, attempt.producer, attempt.number)) is attempt

    def end(self, attempt: TransactionAttempt) -> None:
        """It has happened, or never will."""
        if self.is_latest(attempt):
            del self._latest[attempt.unit, attempt.producer, attempt.number]

    def forget(self, unit: int) -> None:
        """The unit isn't here any more: none of its transactions happens."""
        for key in [key for key in self._latest if key[0] == unit]:
            del self._latest[key]

    async def decide(self, home: int, token: bytes) -> bool | None:
        """Has the transaction happened? None while it is under way. Once the answer is no, it can't happen
        any more: the commit that comes before the answer is refused where another node owns the unit."""
        if not self._units.owns(home):
            raise self._units.not_owner(home)
        decided: bool | None = await self._units.writers[home].put(partial(self._decide, token))
        return decided

    def _decide(self, token: bytes, commit: BrokerCommit) -> bool | None:
        if token in commit.reservations or self._units.handovers[commit.unit].owes(token):
            return True
        if any(attempt.token == token for attempt in self._latest.values()):
            raise Answered(None)
        commit.writes.append(DeleteDocument(KIND, f"no/{token.hex()}"))
        return False

"""The life of a unit in this process: it is claimed and loaded, and in the end given up, or another node has
claimed it."""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

import msgspec

from landbridge.broker import handover
from landbridge.broker.commit import SETTINGS, START
from landbridge.broker.committing import Committing
from landbridge.broker.consuming import Consuming
from landbridge.broker.damage import Damage
from landbridge.broker.documents import Documents
from landbridge.broker.handover import KIND as HANDOVER
from landbridge.broker.handover import Handovers
from landbridge.broker.limits import Limits
from landbridge.broker.middleware import Middleware
from landbridge.broker.pauses import Pauses
from landbridge.broker.publishing import Publishing
from landbridge.broker.reservations import Reservations, TransactionAttempts
from landbridge.broker.rule_topics import unit_of
from landbridge.broker.set_limits import SetLimits
from landbridge.broker.surroundings import Elsewhere
from landbridge.broker.topic import Topic
from landbridge.broker.topic_changes import TopicChanges
from landbridge.broker.topic_table import TopicTable
from landbridge.broker.transaction_ledger import TransactionLedger
from landbridge.broker.trimmer import Trimmer
from landbridge.broker.unit_loading import LATE_START, LoadingHost, UnitLoader
from landbridge.broker.units import Units
from landbridge.core import status
from landbridge.core.log.ranges import Range
from landbridge.core.log.store import PutDocument, Store, Write
from landbridge.core.status import StatusLog
from landbridge.errors import BusError, StoreCorrupt
from landbridge.stores.writer import Writer
from landbridge.transport.outgoing import gathering

T = TypeVar("T")
Item = TypeVar("Item")
#: The key of the setting that says which life of the store this is.
INCARNATION = "incarnation"
#: Units that are claimed or loaded at the same time.
UNITS_AT_ONCE = 8


class UnitHost(LoadingHost, Protocol):
    """What is asked of the broker."""

    store: Store
    limits: Limits
    status: StatusLog
    damage: Damage
    damaged: dict[str, StoreCorrupt]
    topics: dict[str, Topic]
    topic_changes: TopicChanges
    documents: Documents
    units: Units
    table: TopicTable
    committing: Committing
    consuming: Consuming
    ledger: TransactionLedger
    attempts: TransactionAttempts
    middleware: Middleware
    trimmer: Trimmer
    set_limits: SetLimits
    pauses: Pauses

    publishing: Publishing
    reservations: Reservations

    async def write(self, writes: Iterable[Write], *, unit: int = 0) -> None: ...
    def report(self, topic: str, error: BusError) -> None: ...


class UnitLife:
    def __init__(self, broker: UnitHost) -> None:
        self._broker, self._units = broker, broker.units
        self._loader = UnitLoader(broker)
        #: Number of this start of the terminal; with it, lease numbers are never given twice.
        self.start = 0
        #: Which life of the store this is: random, made with the store, and another one after a restore. What
        #: was counted in another life (offsets, log numbers) says nothing about this one.
        self.incarnation = ""
        #: Called in a node with a unit that it has owned, when another node has claimed it.
        self.on_fenced: Callable[[int], None] = lambda unit: None

    async def open(self) -> None:
        """Claim every unit, load what is stored, and begin a new start."""
        broker, units = self._broker, range(self._units.number)
        settings = dict(await broker.store.documents(0, SETTINGS))
        owed = [await self._claim(unit) for unit in units]
        self._load_settings(settings)
        self.start = max(self.start, *[await self._started(unit) + 1 for unit in units])
        broker.documents.start = self.start
        with _without_collection():
            for unit in units:
                broker.consuming.begin_leases(unit, self.start)
                await self._loader.load(unit, _acks_in(owed))
        for unit in units:
            await broker.pauses.open(unit)
        for handovers, documents in zip(self._units.handovers, owed, strict=True):
            handovers.load(documents)
        await broker.write(
            [
                PutDocument(SETTINGS, START, str(self.start).encode()),
                PutDocument(SETTINGS, INCARNATION, self.incarnation.encode()),
            ]
        )
        broker.trimmer.begin(broker.topics.values())

    def open_shared(self, elsewhere: Elsewhere) -> None:
        """Begin as a node that owns no unit yet: see ``take``."""
        self._units.elsewhere = elsewhere
        # Of several nodes that run at the same time each has a number of its own.
        self.start = self._broker.documents.start = int.from_bytes(os.urandom(6), "big")

    # -- taking ---------------------------------------------------------------------------------

    async def take(self, units: Iterable[int], then: Callable[[int], Awaitable[None]]) -> None:
        """Own units from now on: claim them, so that whoever owned them is fenced, and load them, several at
        a time. ``then`` is awaited for each when it is loaded. Where one fails, the others are owned all the
        same, and its error is raised in the end."""
        new = [unit for unit in units if unit not in self._units.writers]
        if not new:
            return
        self._units.loading.update(new)
        try:
            claims = dict(zip(new, await _each(self._claim, new), strict=True))
            owed = {unit: found for unit, found in claims.items() if not isinstance(found, BaseException)}
            settings = dict(await self._broker.store.documents(0, SETTINGS))
            # What transactions of any unit have settled in these, and their cursors may not know yet. Read
            # after all of them were claimed: their owners before settle nothing there any more.
            others = await _each(self._owed_by, range(self._units.number))
            acks = _acks_in([_returned(found) for found in others])

            async def load(unit: int) -> None:
                await self._load(unit, owed[unit], settings, acks)
                self._units.loading.discard(unit)
                await then(unit)

            loads = await _each(load, owed)
        finally:
            for unit in self._units.loading.intersection(new):
                if unit in self._units.handovers:
                    await self._units.handovers[unit].close(self._units.not_owner(unit))
                self._drop(unit)
                self._units.loading.discard(unit)
        for end in (*claims.values(), *loads):
            _returned(end)

    async def _claim(self, unit: int) -> list[tuple[str, bytes]]:
        """Become the owner of a unit. Returns the handovers that it owes to others."""
        broker, elsewhere = self._broker, self._units.elsewhere
        epoch = await broker.store.claim(unit)
        broker.documents.claimed(unit, epoch)
        writer = Writer(
            broker.store,
            unit,
            epoch,
            begin=partial(broker.committing.begin, unit),
            finish=broker.committing.finish,
            apply=broker.committing.apply,
            most_bytes=broker.limits.commit,
            around=gathering,
            fenced=None if elsewhere is None else partial(self._was_fenced, unit),
            check=None if elsewhere is None else partial(elsewhere.check_owned, unit),
        )
        self._units.writers[unit] = writer
        self._units.handovers[unit] = Handovers(broker, writer, epoch)
        return await self._owed_by(unit)

    async def _owed_by(self, unit: int) -> list[tuple[str, bytes]]:
        """The handovers that a unit owes to others."""
        return self._whole(await self._broker.store.documents(unit, HANDOVER))

    def _whole(self, owed: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """The handovers that can be read."""
        lost = "what a transaction has sent from one part of the store to another is lost"
        readable = []
        for key, raw in owed:
            found = self._broker.damage.decode(f"the handover {key}", handover.read, (key, raw), None, lost)
            if found is not None:
                readable.append((key, raw))
        return readable

    async def _load(
        self,
        unit: int,
        owed: list[tuple[str, bytes]],
        settings: dict[str, bytes],
        acks: dict[tuple[int, str], list[Range]],
    ) -> None:
        """``settings``: the terminal's; ``acks``: what transactions have settled in any unit."""
        broker = self._broker
        if unit == 0:
            start, broker.documents.start = self.start, self.start
            self._load_settings(settings)
            self.start = broker.documents.start = start
        home = broker.damage.decode("the number of the last start", int, settings.get(START, b"0"), 0, "")
        begun = max(home, await self._started(unit)) + 1
        broker.consuming.begin_leases(unit, begun)
        with _without_collection():
            await self._loader.load(unit, acks)
        await self._broker.pauses.open(unit)
        writes = [PutDocument(SETTINGS, START, str(begun).encode())]
        if unit == 0:
            writes.append(PutDocument(SETTINGS, INCARNATION, self.incarnation.encode()))
        await self._broker.write(writes, unit=unit)
        self._units.handovers[unit].load(owed)
        self._broker.trimmer.begin(self._units.topics_in(unit))
        self._begin_anew()

    async def _started(self, unit: int) -> int:
        """The greatest number that lease numbers of a unit's groups have begun with."""
        found = dict(await self._broker.store.documents(unit, SETTINGS)).get(START, b"0")
        return self._broker.damage.decode("the number of the last start", int, found, 0, "")

    # -- giving up ------------------------------------------------------------------------------

    async def give_up(self, unit: int, *, fenced: bool = False) -> None:
        """Own a unit no longer: what was accepted is stored, and then nothing is written any more. The
        connections that consume there are ended; their clients come back to the new owner. ``fenced``:
        another node owns it already, so nothing is written at all."""
        writer = self._units.writers.pop(unit)
        handovers = self._units.handovers.pop(unit)
        if writer is None or handovers is None:
            return
        why = self._units.not_owner(unit)
        if fenced:
            writer.stop(why)
        gone = self._units.topics_in(unit)
        try:
            self._end_consumers(gone, why)
            await handovers.close(why)
            if not fenced:
                writer.poke()
                await writer.drain()
            for topic in gone:
                for group in list(topic.groups.values()):
                    group.close()
            if not fenced:
                await writer.close(why)
        except BaseException:  # whoever waits has no time left
            writer.stop(why)
            raise
        finally:
            self._drop(unit)

    def _was_fenced(self, unit: int) -> BusError:
        """Another node has claimed the unit."""
        why = self._units.not_owner(unit)
        asyncio.get_running_loop().call_soon(self.on_fenced, unit)
        return why

    def _end_consumers(self, gone: list[Topic], why: BusError) -> None:
        for topic in gone:
            for group in list(topic.groups.values()):  # one that its consumers alone have goes with the last
                for consumer in list(group.consumers.values()):
                    consumer.connection.move_on(why)
                    group.leave(consumer, counted=False)

    def _drop(self, unit: int) -> None:
        """Forget what was loaded of a unit."""
        broker, why = self._broker, self._units.not_owner(unit)
        self._units.writers.pop(unit)
        self._units.handovers.pop(unit)
        broker.documents.released(unit)
        for topic in self._units.topics_in(unit):
            self._end_consumers([topic], why)
            topic.deleted = True
            broker.table.remove(topic)
            for group in list(topic.groups.values()):
                group.close()
                group.end_watchers(why)
        broker.reservations.forget(unit)
        broker.attempts.forget(unit)
        broker.committing.drop(unit)
        broker.ledger.drop(unit)
        for name in [name for name in broker.damaged if unit_of(name, self._units.number) == unit]:
            del broker.damaged[name]
        broker.pauses.forget(unit)
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Whoever follows changes of topics or documents here lists them again: some have come or gone with
        a unit, not by a change."""
        self.start = int.from_bytes(os.urandom(6), "big")
        self._broker.documents.begin_anew(self.start)
        self._broker.topic_changes.forget()

    # -- settings -------------------------------------------------------------------------------

    def follow(self, settings: Mapping[str, bytes]) -> None:
        """Go by the settings that another node has written."""
        raw = settings.get("status")
        self._broker.status.levels = status.Levels() if raw is None else _decode_levels(raw)
        self._broker.set_limits.load(settings)
        self.incarnation = settings.get(INCARNATION, b"").decode(errors="replace") or self.incarnation

    def _load_settings(self, settings: dict[str, bytes]) -> None:
        decode = self._broker.damage.decode
        # Where it is damaged: above every number that it can have had.
        beyond = LATE_START + self._broker.documents.epoch
        started = decode("the number of the last start", int, settings.get(START, b"0"), beyond, "")
        self.start = self._broker.documents.start = started + 1
        if "status" in settings:
            self._broker.status.levels = decode(
                "the levels of the status log", _decode_levels, settings["status"], status.Levels(),
                "set them again with 'landbridge status level'",
            )  # fmt: skip
        self._broker.set_limits.load(settings)
        known = decode("the store's incarnation", bytes.decode, settings.get(INCARNATION, b""), "", "")
        self.incarnation = known or new_incarnation()


def _decode_levels(raw: bytes) -> status.Levels:
    return msgspec.json.decode(raw, type=status.Levels)


def new_incarnation() -> str:
    """An incarnation that no store has had."""
    return os.urandom(8).hex()


@contextmanager
def _without_collection() -> Iterator[None]:
    """What is loaded stays: the garbage collector would look through it again and again as it grows, which
    takes longer than the loading."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


async def _each(work: Callable[[Item], Awaitable[T]], items: Iterable[Item]) -> list[T | BaseException]:
    """What the work has answered for each, or raised."""
    room = asyncio.Semaphore(UNITS_AT_ONCE)

    async def one(item: Item) -> T:
        async with room:
            return await work(item)

    return await asyncio.gather(*map(one, items), return_exceptions=True)


def _returned(end: T | BaseException) -> T:
    if isinstance(end, BaseException):
        raise end
    return end


def _acks_in(owed: list[list[tuple[str, bytes]]]) -> dict[tuple[int, str], list[Range]]:
    """(log, group) → what the handovers among these documents say it has settled."""
    found: dict[tuple[int, str], list[Range]] = {}
    for _, raw in chain.from_iterable(owed):
        document = handover.decode(raw)
        if isinstance(document, handover.AckDocument):
            found.setdefault((document.log, document.group), []).extend(document.runs)
    return found

"""The broker: the topics of one terminal and all that happens to them. It owns the logs: it gives the
offsets, forms the commits and makes what is stored visible.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import msgspec

from landbridge.broker import group as groups
from landbridge.broker import handover
from landbridge.broker import topic as topics
from landbridge.broker.authority import TokenBearer
from landbridge.broker.changes import Changes
from landbridge.broker.clock import Clock
from landbridge.broker.commit import HISTORY, SETTINGS, START, BrokerCommit, note_change
from landbridge.broker.damage import Damage, decoded
from landbridge.broker.distant import DistantTopic
from landbridge.broker.documents import Documents, Edit, check_place, check_value
from landbridge.broker.event_types import types_of
from landbridge.broker.figures import GatewayFigure
from landbridge.broker.group import Consumer, Enter, Group
from landbridge.broker.handover import KIND as HANDOVER
from landbridge.broker.handover import Handovers
from landbridge.broker.keys import PublishOutcome, TopicKeys
from landbridge.broker.limits import Limits
from landbridge.broker.log import Cache, Log
from landbridge.broker.middleware import (
    Middleware,
    Outcome,
    PublishingSubject,
    WaitingBatch,
    accepted,
    run_all,
    through,
)
from landbridge.broker.owned import OwnedUnits
from landbridge.broker.pauses import Pauses
from landbridge.broker.requests import Requests, check_headers
from landbridge.broker.room import DiskRoom
from landbridge.broker.rule_topics import demand_read, home_of, unit_of, views_stages
from landbridge.broker.set_limits import SetLimits
from landbridge.broker.shares import Shares
from landbridge.broker.surroundings import AckingClient, Client, Crossing, Elsewhere
from landbridge.broker.topic import Topic
from landbridge.broker.topic_changes import TopicChanges
from landbridge.broker.transactions import (
    TransactionKey,
    TransactionOutcome,
    TransactionOutputs,
    all_of,
    by_lease,
)
from landbridge.broker.trimmer import Trimmer
from landbridge.core import audit, changes, faults, replies, status
from landbridge.core.delivery.delivery import Handout
from landbridge.core.log import keys, ledger
from landbridge.core.log.batch import Batch, Column, build, encode_headers
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.keys import KeyEntry
from landbridge.core.log.ledger import Entry, Transactions
from landbridge.core.log.ranges import Range, count, normalise
from landbridge.core.log.retention import Retention
from landbridge.core.log.store import (
    LEDGER_ONLY,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    Store,
    Trim,
    Write,
    keys_of,
)
from landbridge.core.middleware.event_types import EventType
from landbridge.core.middleware.spec import level_of
from landbridge.core.names import CONTENT_DEAD, CONTENT_TOPIC, is_reserved, is_rule_topic
from landbridge.core.shipping.confirmed import Confirmed
from landbridge.core.shipping.history import decode as decode_history
from landbridge.core.status import StatusLog
from landbridge.core.time import SECOND, uuid7
from landbridge.core.topic import GroupSpec, TopicSpec, new_group, topic_spec
from landbridge.core.wording import did_you_mean
from landbridge.errors import (
    BadFrame,
    BadRequest,
    BusError,
    Forbidden,
    LeaseLost,
    LimitReached,
    NotOwner,
    QueueTaken,
    StoreCorrupt,
    TooLarge,
    TooOld,
    UnknownGroup,
    UnknownTopic,
)
from landbridge.protocol import frames
from landbridge.stores.writer import Answered, NotLoaded, Writer, adding
from landbridge.transport.outgoing import gathering

T = TypeVar("T")
Item = TypeVar("Item")
EMPTY = LogBounds(0, 0, 0, 0)
#: The key of the setting that says which life of the store this is.
INCARNATION = "incarnation"
#: The setting of each unit that numbers its next log, where a log was deleted.
NEXT_LOG = "next-log"
#: Microseconds between two looks for clients whose last transaction was long ago, and before the first one.
TRIM_TRANSACTIONS_EVERY, TRIM_TRANSACTIONS_AFTER = 3600 * SECOND, 60 * SECOND
#: Units that are claimed or loaded at the same time.
UNITS_AT_ONCE = 8
#: Seconds that a moved cursor may wait for a commit to go along with.
CHANGED_WITHIN = 0.005
#: Microseconds between two looks at how far behind the groups are.
LAGS_EVERY = 60 * SECOND
#: Publishes, runs of acks and documents of one transaction: all of them are in one turn of the loop.
MOST_IN_TRANSACTION = 1_200
#: So many of them are as much work for a commit as a publish.
PARTS_PER_WORK = 4
#: Producers whose transactions are kept in memory.
PRODUCERS = 10_000
_LEASES_PER_START = 1 << 40
#: More than any terminal has been started, or has deleted topics.
LATE_START = 1_000_000
#: The terminal's own topics that are made when they are first written, and what they keep.
OWN = {
    status.TOPIC: Retention(max_age=7 * 86400.0, max_bytes=256 << 20, discard="any"),
    audit.TOPIC: audit.KEEP,
    changes.TOPIC: Retention(max_age=7 * 86400.0, max_bytes=16 << 20, discard="any"),
    faults.TOPIC: Retention(max_age=7 * 86400.0, max_bytes=256 << 20, discard="any"),
    replies.TOPIC: Retention(max_age=replies.KEEP, max_bytes=1 << 30, discard="any"),
    replies.CALLBACKS: Retention(max_age=7 * 86400.0, max_bytes=1 << 30, discard="any"),
    CONTENT_TOPIC: Retention(),
    CONTENT_DEAD: Retention(),
}
GIVE_UP_TOPIC = "restore a backup, or give its messages up with 'landbridge topic delete NAME --force'"


class Totals(msgspec.Struct):
    """Since the start, for metrics."""

    published: int = 0
    published_bytes: int = 0
    repeated: int = 0
    delivered: int = 0
    delivered_bytes: int = 0
    acked: int = 0
    requeued: int = 0
    buried: int = 0
    refused: int = 0
    #: Operations that a token's scopes did not allow.
    forbidden: int = 0
    requests: int = 0
    replies: int = 0
    late_replies: int = 0
    reports: int = 0
    reports_dropped: int = 0
    #: Batches of the terminal's own that could not be brought to another node.
    untold: int = 0


class Broker:
    def __init__(
        self,
        store: Store,
        limits: Limits,
        *,
        name: str,
        clock: Clock | None = None,
        auto_create: bool = True,
    ) -> None:
        #: The terminal's name, which is a part of the identity of its logs.
        self.name = name
        self.store = store
        #: The object changes while the terminal runs: see ``set_limits``.
        self.limits = msgspec.structs.replace(limits)
        self.clock: Callable[[], int] = clock or Clock()
        self.auto_create = auto_create
        self.topics: dict[str, Topic] = {}
        self.topic_changes = TopicChanges()
        self.totals = Totals()
        #: What else the metrics have: figures of gateways in this process.
        self.figures: list[Callable[[], Iterable[GatewayFigure]]] = []
        self.status = StatusLog()
        #: What observers are told.
        self._changes = Changes(self, lambda: store.is_low)
        self.damage = Damage(self.status, lambda: self.clock())
        #: Topics whose document is damaged: name → why nobody can use them. Their messages are kept.
        self.damaged: dict[str, StoreCorrupt] = {}
        self.cache = Cache(limits.cache)
        #: Number of this start of the terminal; with it, lease numbers are never given twice.
        self.start = 0
        #: Which life of the store this is: random, made with the store, and another one after a restore. What
        #: was counted in another life (offsets, log numbers) says nothing about this one.
        self.incarnation = ""
        self.documents = Documents(store, self.unit_of, self._note_damaged)
        #: The writer of each unit, and what each unit owes to the others.
        self.writers: OwnedUnits[Writer[BrokerCommit]] = OwnedUnits(self.not_owner)
        self.handovers: OwnedUnits[Handovers] = OwnedUnits(self.not_owner)
        #: The other nodes of this terminal; None where it has no nodes, and owns all units.
        self.elsewhere: Elsewhere | None = None
        #: Units that are being loaded: this process has claimed them, and doesn't know yet what is in them.
        self._loading: set[int] = set()
        #: Called in a node with a unit that it has owned, when another node has claimed it.
        self.on_fenced: Callable[[int], None] = lambda unit: None
        #: Unit → the lease numbers of its groups begin with this number.
        self._lease_starts: dict[int, int] = {}
        #: Per unit: the next log gets this number times the number of units, plus the unit. Number 0 is the
        #: log that has no batches, only the ledger of transactions.
        self._next_log = [1] * store.units
        self._by_log: dict[Log, Topic] = {}
        self._next_consumer = 1
        #: Per unit: groups whose cursor goes into the next commit.
        self._changed: list[dict[Group, None]] = [{} for _ in range(store.units)]
        self._changed_timers: list[asyncio.TimerHandle | None] = [None] * store.units
        #: Topics with groups that have not looked at what came of other keys than theirs.
        self._sorted: dict[Topic, None] = {}
        self.trimmer = Trimmer(self)
        self.room = DiskRoom(self, self.trimmer.run)
        self.middleware = Middleware(self, self.cache)
        self.shares = Shares(self.limits)
        self.figures += [self.middleware.figures, self.shares.figures]
        #: Requests and replies that are not written to disk.
        self.requests = Requests(self.limits, self.totals, self.clock)
        #: Limits that an operator has set.
        self.set_limits = SetLimits(self)
        self.set_limits.on_change.append(lambda: self.cache.resize(self.limits.cache))
        #: What an operator has paused.
        self.pauses = Pauses(self)
        #: The other terminals of this customer; None where this one stands alone.
        self.crossing: Crossing | None = None
        self._ticker: asyncio.TimerHandle | None = None
        #: When the lags were last looked at for the status log.
        self._lags_at = self.clock()
        self._stamp = 0
        #: What is known of producers' transactions, per unit; the rest is read when they come.
        self._transactions: OrderedDict[tuple[int, bytes], Transactions] = OrderedDict()
        #: The number of this run of the terminal, which other terminals know; 0: it is linked to none.
        self.run = 0
        #: Unit → of transactions that were begun up to here it may be forgotten that they have happened.
        self._forgotten: dict[int, int] = {}
        #: When the ledgers of transactions are trimmed next, microseconds.
        self._trim_transactions_at = 0

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Claim every unit, load what is stored, and begin a new start."""
        for finding in self.store.findings:
            self.damage.note(finding)
        settings = dict(await self.store.documents(0, SETTINGS))
        owed = [await self._claim(unit) for unit in range(self.store.units)]
        self._load_settings(settings)
        self.start = max(self.start, *[await self._started(unit) + 1 for unit in range(self.store.units)])
        self.documents.start = self.start
        self._lease_starts = dict.fromkeys(range(self.store.units), self.start)
        with _without_collection():
            for unit in range(self.store.units):
                await self._open_unit(unit, _acks_in(owed))
        for unit in range(self.store.units):
            await self.pauses.open(unit)
        for handovers, documents in zip(self.handovers, owed, strict=True):
            handovers.load(documents)
        await self.write(
            [
                PutDocument(SETTINGS, START, str(self.start).encode()),
                PutDocument(SETTINGS, INCARNATION, self.incarnation.encode()),
            ]
        )
        self.trimmer.begin(self.topics.values())
        self._tick()

    async def open_shared(self, elsewhere: Elsewhere) -> None:
        """Begin as a node that owns no unit yet: see ``take``."""
        for finding in self.store.findings:
            self.damage.note(finding)
        self.elsewhere = elsewhere
        # Of several nodes that run at the same time each has a number of its own.
        self.start = self.documents.start = int.from_bytes(os.urandom(6), "big")
        self._tick()

    @property
    def owned(self) -> frozenset[int]:
        """The units that this process owns."""
        return self.writers.units - self._loading

    def owns(self, unit: int) -> bool:
        """Does this process own a unit?"""
        return unit in self.writers and unit not in self._loading

    def not_owner(self, unit: int) -> NotOwner:
        """The error for what lives in a unit that this process doesn't own."""
        owner = "" if self.elsewhere is None else self.elsewhere.owner_of(unit)
        where = f"the node {owner} has it" if owner else "no node has it at the moment"
        return NotOwner(f"unit {unit} of the terminal is not at this node: {where}")

    async def take(self, units: Iterable[int], then: Callable[[int], Awaitable[None]]) -> None:
        """Own units from now on: claim them, so that whoever owned them is fenced, and load them, several at
        a time. ``then`` is awaited for each when it is loaded. Where one fails, the others are owned all the
        same, and its error is raised in the end."""
        new = [unit for unit in units if unit not in self.writers]
        if not new:
            return
        self._loading.update(new)
        try:
            claims = dict(zip(new, await _each(self._claim, new), strict=True))
            owed = {unit: found for unit, found in claims.items() if not isinstance(found, BaseException)}
            settings = dict(await self.store.documents(0, SETTINGS))
            # What transactions of any unit have settled in these, and their cursors may not know yet. Read
            # after all of them were claimed: their owners before settle nothing there any more.
            others = await _each(self._owed_by, range(self.store.units))
            acks = _acks_in([_returned(found) for found in others])

            async def load(unit: int) -> None:
                await self._load_unit(unit, owed[unit], settings, acks)
                self._loading.discard(unit)
                await then(unit)

            loads = await _each(load, owed)
        finally:
            for unit in self._loading.intersection(new):
                if unit in self.handovers:
                    await self.handovers[unit].close(self.not_owner(unit))
                self._drop(unit)
                self._loading.discard(unit)
        for end in (*claims.values(), *loads):
            _returned(end)

    async def _load_unit(
        self,
        unit: int,
        owed: list[tuple[str, bytes]],
        settings: dict[str, bytes],
        acks: dict[tuple[int, str], list[Range]],
    ) -> None:
        """``settings``: the terminal's; ``acks``: what transactions have settled in any unit."""
        if unit == 0:
            start, self.documents.start = self.start, self.start
            self._load_settings(settings)
            self.start = self.documents.start = start
        home = self.damage.decode("the number of the last start", int, settings.get(START, b"0"), 0, "")
        begun = self._lease_starts[unit] = max(home, await self._started(unit)) + 1
        with _without_collection():
            await self._open_unit(unit, acks)
        await self.pauses.open(unit)
        writes = [PutDocument(SETTINGS, START, str(begun).encode())]
        if unit == 0:
            writes.append(PutDocument(SETTINGS, INCARNATION, self.incarnation.encode()))
        await self.write(writes, unit=unit)
        self.handovers[unit].load(owed)
        self.trimmer.begin(self._topics_in(unit))
        self._begin_anew()

    async def _started(self, unit: int) -> int:
        """The greatest number that lease numbers of a unit's groups have begun with."""
        found = dict(await self.store.documents(unit, SETTINGS)).get(START, b"0")
        return self.damage.decode("the number of the last start", int, found, 0, "")

    def _topics_in(self, unit: int) -> list[Topic]:
        return [topic for topic in self.topics.values() if topic.writer.unit == unit]

    def _begin_anew(self) -> None:
        """Whoever follows changes of topics or documents here lists them again: some have come or gone with
        a unit, not by a change."""
        self.start = int.from_bytes(os.urandom(6), "big")
        self.documents.begin_anew(self.start)
        self.topic_changes.forget()

    async def give_up(self, unit: int, *, fenced: bool = False) -> None:
        """Own a unit no longer: what was accepted is stored, and then nothing is written any more. The
        connections that consume there are ended; their clients come back to the new owner. ``fenced``:
        another node owns it already, so nothing is written at all."""
        writer = self.writers.pop(unit)
        handovers = self.handovers.pop(unit)
        if writer is None or handovers is None:
            return
        why = self.not_owner(unit)
        if fenced:
            writer.stop(why)
        gone = self._topics_in(unit)
        try:
            self._end_consumers(gone, why)
            await handovers.close(why)
            if not fenced:
                # What commits of other units settle here is in the cursors before another node reads them.
                losing = [group for topic in gone for group in topic.groups.values()]
                await asyncio.gather(*(end for group in losing for end in group.undecided))
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

    def _end_consumers(self, gone: list[Topic], why: BusError) -> None:
        for topic in gone:
            for group in list(topic.groups.values()):  # one that its consumers alone have goes with the last
                for consumer in list(group.consumers.values()):
                    consumer.connection.move_on(why)
                    group.leave(consumer, counted=False)

    def _drop(self, unit: int) -> None:
        """Forget what was loaded of a unit."""
        self.writers.pop(unit)
        self.handovers.pop(unit)
        self.documents.released(unit)
        for topic in self._topics_in(unit):
            self._end_consumers([topic], self.not_owner(unit))
            del self.topics[topic.name]
            self._by_log.pop(topic.log, None)
            self._sorted.pop(topic, None)
            topic.deleted = True
            topic.log.forget()
            self.middleware.forget(topic.name)
            for group in list(topic.groups.values()):
                group.close()
                group.end_watchers(self.not_owner(unit))
        timer, self._changed_timers[unit] = self._changed_timers[unit], None
        if timer is not None:
            timer.cancel()
        self._changed[unit].clear()
        for key in [key for key in self._transactions if key[0] == unit]:
            del self._transactions[key]
        for name in [name for name in self.damaged if unit_of(name, self.store.units) == unit]:
            del self.damaged[name]
        self.pauses.forget(unit)
        self._begin_anew()

    def follow(self, settings: Mapping[str, bytes]) -> None:
        """Go by the settings that another node has written."""
        raw = settings.get("status")
        self.status.levels = status.Levels() if raw is None else _decode_levels(raw)
        self.set_limits.load(settings)
        self.incarnation = settings.get(INCARNATION, b"").decode(errors="replace") or self.incarnation

    def _load_settings(self, settings: dict[str, bytes]) -> None:
        decode = self.damage.decode
        # Where it is damaged: above every number that it can have had.
        beyond = LATE_START + self.documents.epoch
        started = decode("the number of the last start", int, settings.get(START, b"0"), beyond, "")
        self.start = self.documents.start = started + 1
        if "status" in settings:
            self.status.levels = decode(
                "the levels of the status log", _decode_levels, settings["status"], status.Levels(),
                "set them again with 'landbridge status level'",
            )  # fmt: skip
        self.set_limits.load(settings)
        known = decode("the store's incarnation", bytes.decode, settings.get(INCARNATION, b""), "", "")
        self.incarnation = known or new_incarnation()

    async def _claim(self, unit: int) -> list[tuple[str, bytes]]:
        """Become the owner of a unit. Returns the handovers that it owes to others."""
        store = self.store
        epoch = await store.claim(unit)
        self.documents.claimed(unit, epoch)
        writer = Writer(
            store,
            unit,
            epoch,
            begin=lambda: BrokerCommit(self.clock(), unit, self.run),
            finish=self._finish,
            apply=self._apply,
            most_bytes=self.limits.commit,
            around=gathering,
            fenced=None if self.elsewhere is None else partial(self._was_fenced, unit),
            check=None if self.elsewhere is None else partial(self.elsewhere.check_owned, unit),
        )
        self.writers[unit] = writer
        self.handovers[unit] = Handovers(self, writer, epoch)
        return await self._owed_by(unit)

    async def _owed_by(self, unit: int) -> list[tuple[str, bytes]]:
        """The handovers that a unit owes to others."""
        return self._whole(await self.store.documents(unit, HANDOVER))

    def _was_fenced(self, unit: int) -> BusError:
        """Another node has claimed the unit."""
        why = self.not_owner(unit)
        asyncio.get_running_loop().call_soon(self.on_fenced, unit)
        return why

    def _whole(self, owed: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        """The handovers that can be read."""
        lost = "what a transaction has sent from one part of the store to another is lost"
        readable = []
        for key, raw in owed:
            found = self.damage.decode(f"the handover {key}", handover.read, (key, raw), None, lost)
            if found is not None:
                readable.append((key, raw))
        return readable

    async def _open_unit(self, unit: int, acks: dict[tuple[int, str], list[Range]]) -> None:
        """Load a unit's topics and groups. ``acks``: what transactions in other units have settled, and the
        cursors may not know yet."""
        store = self.store
        bounds = await store.logs(unit)
        self._stamp = max([self._stamp, *(each.forgotten for each in bounds.values())])
        self._forgotten[unit] = bounds.get(unit, EMPTY).forgotten
        by_number: dict[int, Topic] = {}
        for name, raw in await store.documents(unit, topics.KIND):
            try:
                found = decoded(f"what is stored of the topic {name}", topics.decode, raw, GIVE_UP_TOPIC)
            except StoreCorrupt as error:
                self.damaged[name] = error
                self.damage.note(str(error), error.hint, topic=name)
                continue
            by_number[found.log] = self._add_topic(
                found.spec,
                found.log,
                bounds.get(found.log, EMPTY),
                found.created_at,
                stored=True,
                key_bounds=bounds.get(keys_of(found.log, store.units)),
                known_as=found.known_as,
            )
        for key, raw in await store.documents(unit, HISTORY):
            if (topic := by_number.get(_number(key))) is not None:
                what = f"the history of the topic {topic.name}"
                topic.log.history = self.damage.decode(what, decode_history, raw, [], "", topic=topic.name)
        used = max([0, *by_number, *(number for number in bounds if number < LEDGER_ONLY)])
        stored = dict(await store.documents(unit, SETTINGS)).get(NEXT_LOG, b"1")
        # Where it is damaged: above the numbers of logs that were deleted.
        beyond = used // store.units + LATE_START
        next_log = self.damage.decode("the number of the next log", int, stored, beyond, "")
        self._next_log[unit] = max(used // store.units + 1, next_log)
        slots: dict[str, list[tuple[int, bytes]]] = {}
        for key, value in await store.documents(unit, groups.CURSOR):
            owner, _, slot = key.rpartition("/")
            slots.setdefault(owner, []).append((_number(slot), value))
        confirmed = dict(await store.documents(unit, groups.CONFIRMED))
        for key, raw in await store.documents(unit, groups.KIND):
            number, _, name = key.partition("/")
            topic = by_number.get(_number(number))
            if topic is not None:
                runs = normalise(acks.get((topic.log.number, name), ()))
                self._open_group(topic, name, raw, slots.get(key), confirmed.get(key), runs)

    def _open_group(
        self,
        topic: Topic,
        name: str,
        raw: bytes,
        slots: list[tuple[int, bytes]] | None,
        confirmed: bytes | None,
        acks: list[Range],
    ) -> None:
        """``raw``, ``slots``, ``confirmed``: what is stored of the group, of its cursor, and of what has
        arrived elsewhere. A group whose options or cursor can't be read stops until somebody moves it."""
        damaged: StoreCorrupt | None = None
        spec, cursor = GroupSpec(topic=topic.name, name=name), Cursor(topic.log.first)
        where = f"group {name} of the topic {topic.name}"
        seek = f"'landbridge group seek {topic.name} {name} --to earliest' (or an offset, a time, 'latest')"
        try:
            spec = decoded(
                f"the options of the {where}", groups.decode, raw, f"it goes on without after {seek}"
            )
        except StoreCorrupt as error:
            damaged = error
        try:
            if slots is not None:
                cursor = decoded(f"the cursor of the {where}", Cursor.restore, slots, f"move it with {seek}")
        except StoreCorrupt as error:
            damaged, cursor.slots = error, max(slot for slot, _ in slots or [(0, b"")]) + 1
        cursor.settle(acks)
        group = Group(self, topic, spec, cursor, durable=True, stored=damaged is None)
        # A crash may have come between a trim and the cursor that knew of it.
        group.delivery.trimmed(topic.log.first)
        if confirmed is not None:
            what = f"what has arrived elsewhere of the {where}"
            group.confirmed = self.damage.decode(what, Confirmed.decode, confirmed, Confirmed(), "")
        if damaged is not None:
            group.damaged = damaged
            self.damage.note(str(damaged), damaged.hint, topic=topic.name, group=name)
        topic.groups[name] = group

    def stamp(self) -> int:
        """The clock, for producers to be born at: later than the birth of each one that was forgotten, also
        if somebody has set the clock back."""
        self._stamp = max(self.clock(), self._stamp + 1)
        return self._stamp

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        self.requests.close()
        await self.trimmer.close()
        await self.middleware.close()
        for handovers in self.handovers:
            await handovers.close()
        self.write_status()
        self._changes.write()
        # What has come is written before the groups are closed, for a closed group writes nothing.
        for writer in self.writers:
            writer.poke()
        await self.drain()
        for topic in self.topics.values():
            for group in topic.groups.values():
                group.close()
        for writer in self.writers:
            await writer.close()

    async def drain(self) -> None:
        """Wait until all that is queued is written."""
        for writer in self.writers:
            await writer.drain()

    async def begin_run(self, run: int) -> None:
        """This is the number of the terminal's run, as other terminals know it. Logs that were added to since
        the start say so on disk."""
        self.run = run
        for writer in self.writers:

            def work(commit: BrokerCommit) -> None:
                for topic in self.topics.values():
                    if topic.writer.unit == commit.unit and topic.log.end > topic.log.began:
                        commit.note_run(topic.log)

            await writer.put(work)

    @property
    def commits(self) -> int:
        """Commits to the store since the start."""
        return sum(writer.commits for writer in self.writers)

    @property
    def commit_seconds(self) -> float:
        """What the commits have taken since the start, together."""
        return sum(writer.commit_seconds for writer in self.writers)

    async def write(self, writes: Iterable[Write], *, unit: int = 0) -> None:
        """Commit these to a unit, with whatever cursors of it have changed, and wait."""
        await self.writers[unit].put(adding(writes))

    def writer_for(self, topic: str) -> Writer[BrokerCommit]:
        """The writer of the unit that a topic lives in, or would live in."""
        return self.writers[self.unit_of(topic)]

    def unit_of(self, topic: str) -> int:
        """The unit that a topic lives in, or would live in."""
        return unit_of(home_of(self.topics, topic), self.store.units)

    def has(self, topic: str) -> bool:
        """Does the topic live in a unit that this process owns, or would it?"""
        found = self.topics.get(topic)
        unit = self.unit_of(topic) if found is None else found.writer.unit
        return self.owns(unit)

    def has_log(self, log: int) -> bool:
        """Does this process own the unit of a log?"""
        return self.owns(log % self.store.units)

    def check_has(self, topic: str) -> None:
        """NotOwner where it doesn't."""
        if not self.has(topic):
            raise self.not_owner(self.unit_of(topic))

    def append(
        self, commit: BrokerCommit, topic: str | Topic | DistantTopic, batch: Batch, subject: str = ""
    ) -> int | asyncio.Future[int]:
        """Append a batch to any topic, made where there is none, within a commit that may be of another unit.
        Returns its offset, or a future of it where it goes into another unit once the commit is on disk.
        ``subject``: in whose name it is published; empty for the terminal itself. StoreFull where there is no
        room."""
        commit.need_room()
        if isinstance(topic, DistantTopic) or (isinstance(topic, str) and not self.has(topic)):
            name = topic if isinstance(topic, str) else topic.name
            return self.handovers[commit.unit].add(commit, name, batch, subject)
        found = self.topic_for(topic, create=True) if isinstance(topic, str) else topic
        if found.writer.unit != commit.unit:
            return self.handovers[commit.unit].add(commit, found.name, batch, subject)
        if not subject:
            found.save(commit)
            return commit.append(found.log, batch)
        if found.spec.ids == "unique":
            found.keys.check_ids(commit, batch)
        found.save(commit)
        rest, first = found.store(commit, batch)
        if rest is not None:
            commit.on_stored.append(partial(self.published, subject, found, rest, first))
        return first

    def group_of(self, log: int, name: str) -> Group | None:
        """The group of a log, by the log's number."""
        topics = (topic for topic in self.topics.values() if topic.log.number == log)
        return next((topic.groups[name] for topic in topics if name in topic.groups), None)

    def report(self, topic: str, error: BusError) -> None:
        """Tell the status log of an error that nobody waits for."""
        self.status.note(self.clock(), "error", topic=topic, cause=error.code, detail=str(error))

    def first_lease(self, topic: groups.Home) -> int:
        """Where the lease numbers of a topic's group begin."""
        return self._lease_starts[topic.writer.unit] * _LEASES_PER_START

    def new_id(self) -> bytes:
        return uuid7(self.clock(), os.urandom(10))

    # -- topics and groups -------------------------------------------------------------------------

    def _add_topic(
        self,
        spec: TopicSpec,
        number: int,
        bounds: LogBounds,
        created_at: int,
        *,
        stored: bool,
        key_bounds: LogBounds | None = None,
        known_as: int = 0,
    ) -> Topic:
        """``key_bounds``: the bounds of the log of its keys, where it has used any."""
        log = Log(number, bounds, self.store, self.cache)
        writer = self.writers[number % self.store.units]
        known = TopicKeys(number, key_bounds, self.store, self.limits.keys_kept)
        life = {"created_at": created_at, "known_as": known_as}
        topic = Topic(spec, log, writer, terminal=self.name, **life, stored=stored, keys=known)
        self.topics[spec.name] = self._by_log[log] = topic
        self.topic_changes.note(spec.name)
        self.follow_middleware(topic)
        return topic

    def follow_middleware(self, topic: Topic) -> None:
        """Go by the middleware that the topic's options name now."""
        stages = topic.spec.middleware
        topic.chain = self.middleware.chain_for(topic.name, stages)
        topic.log.pack_level = level_of(stages)
        had_views = topic.views is not None
        before_delivery = views_stages(self.topics, topic.spec)
        topic.views = self.middleware.views_for(topic.name, topic.log, before_delivery)
        if had_views or topic.views is not None:
            for other in list(self.topics.values()):
                if other.spec.rule is not None and other.spec.rule.source == topic.name:
                    self.follow_middleware(other)

    def topic(self, name: str) -> Topic:
        found = self.topics.get(name)
        if found is not None and found.writer.unit not in self._loading:
            return found
        if name in self.damaged:
            raise self.damaged[name]
        self.check_has(name)
        raise UnknownTopic(f"there is no topic {name[:200]!r}")

    def topic_for(
        self, name: str, *, create: bool = False, who: str = "", enter: Enter | None = None
    ) -> Topic:
        """The topic, made on the spot where that is allowed, or if it must be. ``who``: for whom. ``enter``:
        writes the entry of the audit log where it is made by an operation."""
        found = self.topics.get(name)
        if found is not None and found.writer.unit not in self._loading:
            return found
        self.check_has(name)
        if name in OWN:
            return self.create_topic(TopicSpec(name=name, retention=OWN[name]))
        if is_reserved(name) or is_rule_topic(name) or not (self.auto_create or create):
            raise UnknownTopic(f"there is no topic {name[:200]!r}")
        spec = topic_spec({"name": name, "max_backlog": self.limits.max_backlog})
        return self.create_topic(spec, who, enter)

    def create_topic(self, spec: TopicSpec, who: str = "", enter: Enter | None = None) -> Topic:
        """In memory; the commit that first speaks of it writes it down. ``enter``: writes the entry of the
        audit log in that commit."""
        if spec.name in self.damaged:
            raise self.damaged[spec.name]
        given = len(self.topics) - sum(name in self.topics for name in OWN)
        if given >= self.limits.max_topics and spec.name not in OWN:
            raise LimitReached(f"there are {given} topics, as many as max_topics allows")
        if is_rule_topic(spec.name) and spec.rule is None:
            raise BadRequest(f"{spec.name} is a name for the topic of a rule", hint="choose another name")
        unit = self.unit_of(spec.name if spec.rule is None else spec.rule.source)
        number = self._next_log[unit] * self.store.units + unit
        self._next_log[unit] += 1
        topic = self._add_topic(spec, number, EMPTY, self.clock(), stored=False)
        topic.enter_in_audit = enter
        topic.on_made = partial(self.observe, "topic", spec.name, "created", who, after=spec)
        if self.crossing is not None:
            self.crossing.topic_made(topic)
        return topic

    def group(self, topic: str, name: str) -> Group:
        groups = self.topic(topic).groups
        if name not in groups:
            hint = did_you_mean(name[:200], groups, "see 'landbridge group list'")
            raise UnknownGroup(f"the topic {topic} has no group {name[:200]!r}", hint=hint)
        return groups[name]

    def check_group_name(self, name: str) -> None:
        """BadRequest for a name that the terminal alone gives."""
        if is_reserved(name) or name.startswith("ephemeral-"):
            raise BadRequest("names that start with '$' or 'ephemeral-' are given by the terminal")

    def create_group(
        self,
        topic: Topic,
        spec: GroupSpec,
        floor: int,
        *,
        durable: bool = True,
        who: str = "",
        enter: Enter | None = None,
    ) -> Group:
        """In memory; the commit that first speaks of it writes it down. ``floor``: the offset that it begins
        with. ``who``: for whom it is made. ``enter``: writes the entry of the audit log in that commit."""
        if len(topic.groups) >= self.limits.max_groups:
            raise LimitReached(
                f"the topic {topic.name} has {len(topic.groups)} groups, as many as max_groups allows"
            )
        if topic.spec.has_one_group and topic.groups:
            other = next(iter(topic.groups))
            hint = f"subscribe without a group, or with {other!r}: its consumers share the messages"
            raise QueueTaken(
                f"the queue {topic.name} has a group already: {other}",
                hint=hint if topic.spec.kind == "work" else None,
            )
        if spec.dead_letter is None and (dead := self.topics.get(spec.dead_topic)) is not None:
            dead.check_producer("")
        cursor = Cursor(floor)
        group = Group(self, topic, spec, cursor, durable=durable, stored=False)
        if durable and not is_reserved(spec.name):
            group.on_made = partial(self.observe_group, group, "created", who, after=spec)
        if enter is not None:
            group.owe_entry(enter)
        topic.groups[spec.name] = group
        group.changed()
        return group

    async def position(self, topic: Topic, start: int | str | None) -> int:
        """The offset that "earliest", "latest" or a time (microseconds) stands for; None is "earliest"."""
        if isinstance(start, int):
            found = await self.store.seek_time(topic.log.number, start)
            return max(topic.log.first, min(topic.log.end, found))
        return _edge(topic, start or "earliest")

    async def delete_topic(self, topic: Topic, who: str = "", enter: Enter | None = None) -> None:
        def work(commit: BrokerCommit) -> None:
            if topic.deleted:
                return
            topic.deleted = True
            if enter is not None:
                enter(commit)
            commit.writes += [DeleteDocument(topics.KIND, topic.name), DropLog(topic.log.number)]
            topic.keys.drop(commit)
            if topic.pause is not None:
                commit.writes.append(DeleteDocument(groups.PAUSE, topic.pause_key))
            commit.writes.append(DeleteDocument(HISTORY, str(topic.log.number)))
            # Nothing else on disk would say that the number of the last log was used.
            next_log = str(self._next_log[commit.unit]).encode()
            commit.writes.append(PutDocument(SETTINGS, NEXT_LOG, next_log))
            for group in topic.groups.values():
                commit.writes += group.documents_to_delete()
            commit.on_stored.append(forget)
            commit.on_failed.append(keep)

        def forget() -> None:
            del self.topics[topic.name]
            del self._by_log[topic.log]
            for group in list(topic.groups.values()):
                self._end_group(group, UnknownTopic(f"the topic {topic.name} was deleted"))
            topic.log.forget()
            self.middleware.forget(topic.name)
            self.observe("topic", topic.name, "deleted", who)
            self.topic_changes.note(topic.name)

        def keep() -> None:
            topic.deleted = False
            self.topic_changes.note(topic.name)
            # Whatever left the topic alone meanwhile, because it was about to go, looks at it again.
            self.trimmer.plan(topic, soon=True)
            for group in topic.groups.values():
                group.changed()
                group.pump()

        await topic.writer.put(work)

    def _note_damaged(self, topic: str, error: StoreCorrupt) -> None:
        self.damage.note(str(error), error.hint, topic=topic)

    async def give_up_topic(self, name: str, enter: Enter) -> None:
        """Delete what is stored of a topic whose document is damaged. Which log was its can't be read; but
        with the last such topic go all logs that are no topic's."""
        unit = unit_of(name, self.store.units)
        others = [
            other for other in self.damaged if other != name and unit_of(other, self.store.units) == unit
        ]
        known = {topic.log.number for topic in self.topics.values()} | set(range(self.store.units))
        known |= {topic.keys.number for topic in self.topics.values()}
        writes: list[Write] = [DeleteDocument(topics.KIND, name)]
        if not others:
            writes += [DropLog(number) for number in await self.store.logs(unit) if number not in known]

        def work(commit: BrokerCommit) -> None:
            commit.writes += writes
            # Before the entry: it may be the audit log itself that begins anew with it.
            if (error := self.damaged.pop(name, None)) is not None:
                commit.on_failed.append(partial(self.damaged.__setitem__, name, error))
            enter(commit)

        await self.writers[unit].put(work)

    async def delete_group(self, group: Group, who: str = "", enter: Enter | None = None) -> None:
        def work(commit: BrokerCommit) -> None:
            if group.deleted:
                return
            group.deleted = True
            if enter is not None:
                enter(commit)
            commit.writes += group.documents_to_delete()
            commit.on_stored.append(forget)
            commit.on_failed.append(keep)

        def forget() -> None:
            self._drop_group(group, UnknownGroup(f"the group {group.name} was deleted"))
            self.observe_group(group, "deleted", who)

        def keep() -> None:
            group.deleted = False
            group.changed()
            group.pump()

        await group.topic.writer.put(work)

    def _drop_group(self, group: Group, why: BusError) -> None:
        topic = self.topics[group.topic.name]
        topic.groups.pop(group.name, None)
        self._changed[topic.writer.unit].pop(group, None)
        self._end_group(group, why)
        self.trimmer.plan(topic, soon=True)

    def _end_group(self, group: Group, why: BusError) -> None:
        group.close()
        for consumer in list(group.consumers.values()):
            consumer.connection.lose(consumer, why)

    # -- publishing --------------------------------------------------------------------------------

    async def types_of(self, topic: str) -> dict[str, EventType]:
        """The event types that a topic lists."""
        return await types_of(self.documents, topic)

    def chain_ended(self, topic: str) -> None:
        """The topic's middleware has nothing more to do."""
        if (found := self.topics.get(topic)) is not None:
            self.follow_middleware(found)

    def log_crash(self, what: str, error: BaseException) -> None:
        """Tell whoever runs the terminal of a bug."""
        asyncio.get_running_loop().call_exception_handler({"message": f"{what} crashed", "exception": error})

    def read_batch(self, topic: str, data: memoryview) -> Batch:
        """A stranger's batch for a topic, checked."""
        batch = Batch.decode(data)
        batch.validate()
        batch.check_moments()
        if batch.has(Column.HEADERS) and _REPLY_TO in bytes(batch.span(Column.HEADERS)[1]):
            _check_no_event(batch)
        self.check_size(topic, batch)
        return batch

    def check_size(self, topic: str, batch: Batch) -> None:
        """TooLarge for a batch that is larger than what clients may publish."""
        if (
            batch.size > self.limits.max_payload  # mostly it isn't, and nobody has to look at each
            and batch.largest_payload() > self.limits.max_payload
        ):
            raise TooLarge(
                f"a payload of {batch.largest_payload()} bytes, allowed are {self.limits.max_payload}",
                hint="send it in parts, or raise the limit max_payload",
            )
        if batch.size > self.limits.max_frame:
            raise TooLarge(f"a batch of {batch.size} bytes, allowed are {self.limits.max_frame}")
        if self.crossing is not None:
            self.crossing.check_size(topic, batch)

    def check_target(self, caller: TokenBearer, name: str) -> None:
        """May the caller have messages written to a topic? Everything asks here by which somebody's messages
        get into a topic: publishes, transactions, stages, and whatever writes later on somebody's behalf, as
        a group does with its dead letters."""
        if is_reserved(name) and name != CONTENT_TOPIC:
            raise Forbidden(f"{name} is written by the terminal alone", hint="")
        if is_rule_topic(name):
            raise Forbidden(f"{name} is filled by a rule alone", hint="publish to the rule's source")
        caller.scopes.demand("publish", name)
        if (found := self.topics.get(name)) is not None:
            found.check_producer(caller.subject)

    def has_middleware(self, topic: str) -> bool:
        """Do messages of the topic go through any stage?"""
        found = self.topics.get(topic)
        return found is not None and (found.chain is not None or found.views is not None)

    async def after_middleware(
        self, publisher: PublishingSubject, frame: frames.SendRequest, payload: bytes
    ) -> tuple[frames.SendRequest, bytes]:
        """A request that isn't stored, and its payload, as the middleware of its topic lets it through."""
        topic = self.topics.get(frame.topic)
        if topic is None or (topic.chain is None and topic.views is None):
            return frame, payload
        check_headers(frame.headers)
        headers, keys = [encode_headers(frame.headers)], [frame.key]
        batch = Batch.decode(
            build([payload], id=self.new_id(), time=self.clock(), keys=keys, headers=headers)
        )
        return await through(topic.chain, topic.views, publisher, frame, batch)

    def check_publish(self, connection: TokenBearer, name: str) -> Topic:
        self.check_target(connection, name)
        return self.topic_for(name, who=connection.subject)

    async def kind_elsewhere(self, caller: TokenBearer, name: str) -> str:
        """What ``check_target`` can't see here of a topic that another node owns: its owner is asked, and
        raises. Returns the kind of such a topic; empty for one of this node's, or one that isn't there."""
        if self.elsewhere is None or self.has(name):
            return ""
        return await self.elsewhere.look_at(name, caller.subject)

    def output(self, connection: TokenBearer, name: str) -> Topic | DistantTopic:
        """The topic of an output, which may be at another node: its owner checks the rest then."""
        if self.elsewhere is None or self.has(name):
            return self.check_publish(connection, name)
        self.check_target(connection, name)
        return DistantTopic(name, self.unit_of(name), self.elsewhere)

    def publish(
        self,
        connection: Client,
        frame: frames.Publish,
        tail: memoryview,
        then: Callable[[int | PublishOutcome | BusError], None],
    ) -> None:
        """Store a batch. ``then`` gets the offset of its first message once it is on disk; a PublishOutcome
        where the topic's ids are unique. Misuse, BadFrame and LimitReached are raised at once."""
        topic = self.check_publish(connection, frame.topic)
        ledger.check_producer(frame.producer)
        batch = self.read_batch(frame.topic, tail)
        form: Callable[..., Any] = self._publish if topic.spec.ids == "any" else self._publish_unique
        if topic.chain is None:
            topic.writer.hand_in(partial(form, connection, topic, batch, frame), then)
            return

        def is_known() -> bool:
            return topic.log.entry(frame.producer).known(frame.sequence)

        def hand_in(outcome: Outcome) -> None:
            topic.writer.hand_in(partial(form, connection, topic, outcome, frame), then)

        topic.chain.put(WaitingBatch(batch, connection, is_known, hand_in))

    def _publish_unique(
        self, connection: Client, topic: Topic, outcome: Outcome, frame: frames.Publish, commit: BrokerCommit
    ) -> PublishOutcome:
        """The same where a message whose id is known is not stored again."""
        if isinstance(outcome, Batch):
            topic.keys.check_ids(commit, outcome)
        following = self._following(connection, topic, frame, commit)
        if isinstance(following, int):
            return PublishOutcome(following, False)
        batch = accepted(outcome)
        topic.save(commit)
        rest, first = topic.store(commit, batch)
        self.totals.repeated += rest is None
        # Where nothing is appended, the producer is remembered as long as if something were.
        last = None if rest is not None else commit.end_of(topic.log)
        born = min(frame.born, commit.now)
        commit.remember(topic.log, frame.producer, following.at(first), born, last)
        if rest is not None:
            commit.on_stored.append(partial(self.published, connection.subject, topic, rest, first))
        return PublishOutcome(first, rest is None)

    def _publish(
        self, connection: Client, topic: Topic, outcome: Outcome, frame: frames.Publish, commit: BrokerCommit
    ) -> int:
        following = self._following(connection, topic, frame, commit)
        if isinstance(following, int):
            return following
        batch = accepted(outcome)
        topic.save(commit)
        first = commit.append(topic.log, batch)
        # At most now: what is later would be the birth of all producers that are forgotten, for ever.
        commit.remember(topic.log, frame.producer, following.at(first), min(frame.born, commit.now))
        commit.on_stored.append(partial(self.published, connection.subject, topic, batch, first))
        return first

    def _following(
        self, connection: Client, topic: Topic, frame: frames.Publish, commit: BrokerCommit
    ) -> Entry | int:
        """The producer's entry after its next batch; or, where the batch is stored in this very commit
        already, its offset. Every reason to refuse the batch is raised here."""
        sequence, producer = frame.sequence, frame.producer
        entry = commit.entry(topic.log, producer)
        if entry.known(sequence):
            self.totals.repeated += 1
            stored = topic.log.entry(producer)
            if stored.known(sequence):
                # The answer to it was lost. Answer again, whatever becomes of this commit.
                raise Answered(stored.first_of(sequence))
            return entry.first_of(sequence)
        if not entry.last and 0 < frame.born <= topic.log.forgotten:
            raise TooOld(f"what this producer has stored in {topic.name} is no longer known")
        topic.claim_for(connection, producer)
        topic.check_backlog()
        commit.need_room()
        after = sequence - 1 if frame.after is None else frame.after
        return entry.stored(sequence, after, -1)  # raises SequenceGap before anything is written

    def publish_once(
        self,
        connection: Client,
        frame: frames.PublishOnce,
        tail: memoryview,
        then: Callable[[PublishOutcome | BusError], None],
    ) -> None:
        """Store a batch unless its key is known; then the first one's outcome is answered again. Misuse,
        BadFrame and LimitReached are raised at once."""
        topic = self.check_publish(connection, frame.topic)
        ledger.check_producer(frame.producer)
        name = keys.key_name(connection.subject, keys.check_key(frame.key))
        batch = self.read_batch(frame.topic, tail)
        body = keys.body_hash((topic.name, batch))

        def hand_in(outcome: Outcome) -> None:
            work = partial(self._publish_once, connection, topic, batch, outcome, frame, name, body)
            topic.writer.hand_in(work, then)

        if topic.chain is not None:
            topic.chain.put(WaitingBatch(batch, connection, partial(topic.keys.has, name), hand_in))
        elif topic.keys.is_known(name):
            hand_in(batch)
        else:
            read = asyncio.ensure_future(topic.keys.load(name))
            read.add_done_callback(lambda _: hand_in(batch))

    def _publish_once(
        self,
        connection: Client,
        topic: Topic,
        published: Batch,
        outcome: Outcome,
        frame: frames.PublishOnce,
        name: bytes,
        body: bytes,
        commit: BrokerCommit,
    ) -> PublishOutcome:
        """``published``: the batch before the topic's middleware."""
        entry = self.known_key(commit, topic, frame.key, name, body)
        if entry is not None:
            again = PublishOutcome(entry.first, entry.batch != published.id, entry.batch)
            if name not in commit.keys.get(topic.keys.number, {}):
                raise Answered(again)
            return again
        batch = accepted(outcome)
        if topic.spec.ids == "unique":
            topic.keys.check_ids(commit, batch)
        topic.claim_for(connection, frame.producer)
        topic.check_backlog()
        commit.need_room()
        topic.save(commit)
        rest, first = topic.store(commit, batch)
        last = first if rest is not None else commit.end_of(topic.log)
        topic.keys.remember(commit, {name: KeyEntry(first, body, batch.id)}, last)
        if rest is not None:
            commit.on_stored.append(partial(self.published, connection.subject, topic, rest, first))
        return PublishOutcome(first, rest is None, batch.id)

    def known_key(
        self, commit: BrokerCommit, topic: Topic, key: str, name: bytes, body: bytes
    ) -> KeyEntry | None:
        """The entry of a key, None for a new one. KeyReused for another body, TooOld where the key may have
        been forgotten."""
        entry = topic.keys.entry(commit, name)
        if entry is None:
            keys.check_age(key, commit.now, topic.keys.forgotten, topic.name)
        else:
            entry.check(key, body)
            self.totals.repeated += 1
        return entry

    def published(self, subject: str, topic: Topic, batch: Batch, first: int) -> None:
        """A batch of this subject is on disk."""
        messages = len(batch)
        totals = self.totals
        totals.published += messages
        totals.published_bytes += batch.size
        self.status.count(
            self.clock(),
            "publish",
            subject,
            topic.name,
            messages=messages,
            size=batch.size,
            offsets=((first, first + messages),),
        )

    def forget_transactions(self, producer: bytes) -> None:
        """A client left in good order, with every answer in hand: it will never repeat a transaction. Bytes
        that an earlier connection has sent may still come."""
        for unit in self.owned:
            found = self._transactions.pop((unit, producer), None)
            if found is not None and found.stored:
                self.writers[unit].tell(adding([found.left(unit, producer, self.clock())]))

    async def trim_transactions(self) -> None:
        """Forget the producers whose last transaction was long ago."""
        before = self.clock() - ledger.KEEP_TRANSACTIONS
        for writer in self.writers:

            def work(commit: BrokerCommit) -> None:
                commit.writes.append(Trim(commit.unit, before))
                commit.on_stored.append(lambda: self._trimmed_transactions(commit))

            with suppress(NotOwner):  # its new owner trims them
                await writer.put(work)

    def _trimmed_transactions(self, commit: BrokerCommit) -> None:
        forgotten = self._forgotten[commit.unit] = commit.trimmed[commit.unit].forgotten
        self._stamp = max(self._stamp, forgotten)
        before = self.clock() - ledger.KEEP_TRANSACTIONS
        for key, found in list(self._transactions.items()):
            if key[0] == commit.unit and 0 < found.last < before:
                del self._transactions[key]

    def _transactions_of(self, commit: BrokerCommit, producer: bytes) -> Transactions:
        found = commit.transactions.get(producer) or self._transactions.get((commit.unit, producer))
        if found is None:
            raise NotLoaded(partial(self._load_transactions, commit.unit, producer))
        return found

    async def _load_transactions(self, unit: int, producer: bytes) -> None:
        raw = await self.store.ledger(unit, producer)
        what = "the ledger's entry of a client's transactions"
        found = ledger.NO_TRANSACTIONS if raw is None else decoded(what, ledger.decode_transactions, raw)
        self._learn_transactions(unit, producer, found)

    def _learn_transactions(self, unit: int, producer: bytes, transactions: Transactions) -> None:
        self._transactions[unit, producer] = transactions
        if len(self._transactions) > PRODUCERS:
            self._transactions.popitem(last=False)

    def transact(
        self, connection: Client, frame: frames.Transact, publishes: list[tuple[Topic | DistantTopic, Batch]]
    ) -> asyncio.Future[TransactionOutcome]:
        """Publishes and acks, all or nothing. The future has the outputs' offsets; none for a transaction
        that happened before, unless it has a key."""
        writer = self._home_of(connection, frame, publishes)
        ledger.check_producer(frame.producer)
        outcomes: list[Outcome] = [batch for _, batch in publishes]
        once = self._once(connection, frame, publishes) if frame.key else None
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
            if self.documents.unit_of(edit.place.topic) != writer.unit:
                raise BadRequest(
                    f"the document {edit.place.collection}/{edit.place.key} lives apart from the transaction",
                    hint="let it live with the topic whose messages are acked: topic=…",
                )

        def work(commit: BrokerCommit) -> TransactionOutputs:
            commit.work += frame.parts // PARTS_PER_WORK
            happened = self._transactions_of(commit, frame.producer)
            if once is not None and (known := once.known(self, commit)) is not None:
                return known
            if happened.known(frame.number):
                self.totals.repeated += 1
                if frame.producer in commit.transactions:
                    return TransactionOutputs([])
                raise Answered(TransactionOutputs([]))
            if not happened.stored and 0 < frame.begun <= self._forgotten.get(commit.unit, 0):
                raise TooOld("it is no longer known whether this transaction has happened")
            if publishes:
                commit.need_room()
            accepting = [
                (topic, accepted(each)) for (topic, _), each in zip(publishes, outcomes, strict=True)
            ]
            for topic, _ in publishes:
                if isinstance(topic, DistantTopic):
                    continue  # its owner has looked at it
                if topic.deleted:
                    raise UnknownTopic(f"the topic {topic.name} was deleted")
                topic.claim_for(connection, frame.producer)
                topic.check_backlog()
                if topic.spec.ids == "unique" and topic.writer.unit == commit.unit:
                    topic.keys.check_ids(commit, *(batch for other, batch in accepting if other is topic))
            self.documents.check(commit, edits)  # before the acks: it may have to read, or refuse
            self.ack_all(commit, connection, frame.acks)
            self.documents.write(commit, edits, connection.subject)
            commit.transactions[frame.producer] = happened.after(
                frame.number, frame.floor, commit.now if frame.begun else 0
            )
            firsts = [self.append(commit, topic, batch, connection.subject) for topic, batch in accepting]
            if once is not None:
                once.remember(commit, firsts)
            return TransactionOutputs(firsts)

        if all(topic.chain is None for topic, _ in publishes):
            return asyncio.ensure_future(all_of(writer.put(work)))

        async def middleware_first() -> TransactionOutcome:
            happened = self._transactions.get((writer.unit, frame.producer))
            if happened is not None and happened.known(frame.number):
                # Nobody looks at them, unless the ledger has forgotten it when the commit is formed.
                forgotten = TooOld("it is no longer known whether this transaction has happened")
                outcomes[:] = [forgotten] * len(outcomes)
            else:
                outcomes[:] = await run_all([(topic.chain, batch) for topic, batch in publishes], connection)
            return await all_of(writer.put(work))

        return asyncio.ensure_future(middleware_first())

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
            raise self.not_owner(topic.unit)
        return TransactionKey(frame.key, name, body, topic, batch, place)

    def _home_of(
        self, connection: Client, frame: frames.Transact, publishes: list[tuple[Topic | DistantTopic, Batch]]
    ) -> Writer[BrokerCommit]:
        """The unit in which a transaction happens: with a key that of the key's topic; else that of its first
        ack, or of its first document, or of its first output."""
        if frame.key:
            if not publishes:
                raise BadRequest("a transaction with a key publishes something", hint="leave the key away")
            return self.writers[min(publishes, key=lambda each: each[0].name)[0].unit]
        for subscription, _, _ in frame.acks:
            if (consumer := connection.consumers.get(subscription)) is not None:
                return consumer.group.topic.writer
        if frame.documents:
            return self.writers[self.documents.unit_of(frame.documents[0].topic)]
        return self.writers[publishes[0][0].unit if publishes else 0]

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
            topic = self.output(connection, name)
            publishes.append((topic, self.read_batch(name, tail[at : at + size])))
            at += size
        if at != len(tail):
            raise BadFrame(f"a transaction with {len(tail) - at} bytes too many")
        return publishes

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
                self.handovers[commit.unit].add_ack(commit, group, held, settle)
                commit.on_failed.append(partial(group.put_back, held))
                group.decided_by(commit)
            groups[group] = None
        for group in groups:
            if group.topic.writer.unit == commit.unit:
                group.save(commit)
            commit.on_stored.append(group.pump)

    def _ack(self, now: int, consumer: Consumer, lease: int, runs: list[Range]) -> list[Range]:
        group = consumer.group
        published = group.delivery.published(lease)
        held = group.delivery.ack(now, lease, consumer.number, runs)
        self.settled(now, group, consumer, "ack", "", count(held), held, published)
        return held

    async def _store_group(self, group: Group) -> None:
        await group.topic.writer.put(group.save)

    def _settle_aside(self, now: int, consumer: Consumer, held: list[Range], published: int) -> None:
        settled = consumer.group.delivery.settle_aside(held)
        self.settled(now, consumer.group, consumer, "ack", "", count(settled), settled, published)

    # -- subscribing -------------------------------------------------------------------------------

    def subscribe(self, connection: Client, frame: frames.Subscribe, floor: int | None = None) -> Consumer:
        """``floor``: the offset that ``frame.start`` stands for where it is a time (``position``)."""
        demand_read(self.topics, connection.scopes, frame.topic)
        topic = self.topic_for(frame.topic, who=connection.subject)
        if topic.deleted:
            raise UnknownTopic(f"there is no topic {frame.topic!r}")
        name = frame.group
        durable = name is not None
        if name is not None:
            self.check_group_name(name)
        if topic.spec.has_one_group:
            # A queue has one group; who names none means that one.
            name = name or next(iter(topic.groups), "workers" if topic.spec.kind == "work" else "queue")
            durable = True
        number = self.new_consumer()
        if name is None:
            name = f"ephemeral-{self.start}-{number}"
        group = topic.groups.get(name)
        if group is None:
            spec = new_group(topic.spec, name)
            if floor is None:
                assert not isinstance(frame.start, int), "a time is looked up before"
                floor = _edge(topic, frame.start or ("earliest" if durable else "latest"))
            group = self.create_group(topic, spec, floor, durable=durable, who=connection.subject)
        if group.damaged is not None:
            raise group.damaged
        if self.crossing is not None:
            self.crossing.check_subscribe(group)
        if topic.spec.kind == "queue" and group.own_consumers:
            other = group.own_consumers[0].connection
            raise QueueTaken(f"the queue {topic.name} has a consumer already: {other.who}")
        consumer = Consumer(
            number,
            connection,
            frame.subscription,
            min(frame.prefetch, topic.spec.prefetch) if topic.spec.kind == "work" else frame.prefetch,
            group,
            prefetch_bytes=min(frame.prefetch_bytes or (1 << 62), self.limits.prefetch_bytes),
            by_pull=frame.by_pull,
            hears_pauses=connection.hears_pauses,
        )
        group.join(consumer)
        if frame.answers:
            self.requests.join(consumer)
        return consumer

    def consumers_changed(self, group: Group) -> None:
        if self.crossing is not None:
            self.crossing.consumers_changed(group)

    def new_consumer(self) -> int:
        """A number for a consumer, never used again in this terminal's life."""
        number = self._next_consumer
        self._next_consumer += 1
        return number

    def unsubscribe(self, consumer: Consumer, *, counted: bool) -> None:
        group = consumer.group
        group.leave(consumer, counted=counted)
        self.requests.leave(consumer)
        self.pauses.leave(consumer)
        if not group.durable and not group.consumers and not group.deleted:
            self._drop_group(group, UnknownGroup("its subscriber is gone"))

    def delivered(
        self, now: int, group: Group, consumer: Consumer, messages: int, size: int, handouts: list[Handout]
    ) -> None:
        self.totals.delivered += messages
        self.totals.delivered_bytes += size
        self.status.count(
            now,
            "deliver",
            consumer.connection.subject,
            group.topic.name,
            group.name,
            messages=messages,
            size=size,
            offsets=[run for handout in handouts for run in handout.ranges],
            published=[(handout.batch.time, len(handout.batch)) for handout in handouts],
        )

    def settled(
        self,
        now: int,
        group: Group,
        consumer: Consumer,
        verb: str,
        cause: str,
        messages: int,
        runs: list[Range],
        published: int,
    ) -> None:
        if verb == "ack":
            self.totals.acked += messages
        elif verb == "requeue":
            self.totals.requeued += messages
        elif verb == "bury":
            self.totals.buried += messages
            return  # told when it is done
        self.status.count(
            now,
            verb,
            consumer.connection.subject,
            group.topic.name,
            group.name,
            cause,
            messages=messages,
            offsets=runs,
            published=((published, messages),) if verb == "ack" else (),
        )
        if group.topic.spec.retention.settled and not group.topic.deleted:
            self.trimmer.plan(self.topics[group.topic.name], soon=True)

    # -- commits -----------------------------------------------------------------------------------

    async def until_settled(self, group: Group, offset: int) -> None:
        """Wait until a group has settled a message, and until that is on disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group.watchers[done] = offset
        group.tell_watchers()
        try:
            await done
        finally:
            group.watchers.pop(done, None)
        await self.write([], unit=group.topic.writer.unit)

    def moved(self, group: Group) -> None:
        """The group's cursor moved; it goes into the next commit of its unit. Nobody waits for it, so it
        doesn't cause a commit at once: at a low rate, acks then share the fsync of the next publish."""
        if self.crossing is not None:
            self.crossing.settled(group)
        if group.deleted or not group.durable:
            return
        unit = group.topic.writer.unit
        self._changed[unit][group] = None
        if self._changed_timers[unit] is None:
            loop = asyncio.get_running_loop()
            self._changed_timers[unit] = loop.call_later(CHANGED_WITHIN, group.topic.writer.poke)

    def _finish(self, commit: BrokerCommit) -> None:
        changed, self._changed[commit.unit] = self._changed[commit.unit], {}
        timer, self._changed_timers[commit.unit] = self._changed_timers[commit.unit], None
        if timer is not None:
            timer.cancel()
        for group in changed:
            group.save(commit)
        if self.elsewhere is not None and note_change(commit):
            commit.on_stored.append(self.elsewhere.announce)

    def _apply(self, commit: BrokerCommit) -> None:
        """A commit is on disk: make it visible."""
        for (log, producer), entry in commit.entries.items():
            log.learn(producer, entry)
        for producer, transactions in commit.transactions.items():
            self._learn_transactions(commit.unit, producer, transactions)
        for log, batches in commit.appended.items():
            topic = self._by_log.get(log)
            if topic is None:
                continue  # deleted meanwhile
            for first, batch in batches:
                log.extend(first, batch, commit.now)
            for group in topic.grown(batches):
                group.pump()
            self.trimmer.plan(topic)
            if topic.key_runs.size:
                self._sorted[topic] = None

    # -- time --------------------------------------------------------------------------------------

    def _tick(self) -> None:
        """Once a second: write the status log, follow the wall clock, trim."""
        self._ticker = asyncio.get_running_loop().call_later(1.0, self._tick)
        if isinstance(self.clock, Clock) and (jump := self.clock.resync()):
            self.status.note(self.clock(), "clock", detail=f"set by {jump / SECOND:+.1f} s")
            for topic in self.topics.values():
                for group in topic.groups.values():
                    group.shift(jump)
        sorted_by_key, self._sorted = self._sorted, {}
        for topic in sorted_by_key:
            topic.catch_up()
        if self.clock() - self._lags_at >= LAGS_EVERY:
            self.note_lags()
        self.room.tick()
        self.write_status()
        self._changes.write()
        self.trimmer.tick()
        self._look_at_transactions()

    def _look_at_transactions(self) -> None:
        now = self.clock()
        if not self._trim_transactions_at:
            self._trim_transactions_at = now + TRIM_TRANSACTIONS_AFTER
        elif not 0 < self._trim_transactions_at - now <= TRIM_TRANSACTIONS_EVERY:
            self._trim_transactions_at = now + TRIM_TRANSACTIONS_EVERY
            self.trimmer.run(self.trim_transactions())

    def time_passed(self) -> None:
        """The clock was moved by hand: leases, delays, retention and the status log look at it now."""
        for topic in list(self.topics.values()):
            for group in list(topic.groups.values()):
                group.shift(0)
        self.write_status()
        self.trimmer.tick()
        self.requests.time_passed()

    def note_lags(self) -> None:
        """Tell the status log how far behind the groups are, those where that has changed since."""
        now = self._lags_at = self.clock()
        for topic in self.topics.values():
            for group in topic.groups.values():
                lag = group.delivery.cursor.lag(topic.log.end)
                if group.durable and lag != group.lag_told:
                    group.lag_told = lag
                    self.status.note(now, "lag", topic=topic.name, group=group.name, messages=lag)

    def write_status(self) -> None:
        """Put what has gathered into the topic ``$status``. Where there is no room, it goes on gathering."""
        if not self.status or self.store.is_low:
            return
        now = self.clock()
        events = self.status.take(now)
        self.tell(status.TOPIC, self._status_batch(events))
        if target := self.status.levels.topic:
            # Not what concerns the target itself: reading the copy must not make more of it.
            others = [event for event in events if event.topic != target]
            if others:
                self._copy_status(target, self._status_batch(others))

    def tell(self, name: str, batch: Batch) -> None:
        """Append a batch to a topic of the terminal's own. Nobody waits for it."""
        if self.elsewhere is not None and not self.has(name):
            self.elsewhere.tell(name, batch)
            return
        topic = self.topic_for(name)
        topic.writer.tell(lambda commit: self.append(commit, topic, batch))

    def _status_batch(self, events: list[status.Event]) -> Batch:
        payloads = [status.encode(event) for event in events]
        return Batch.decode(build(payloads, id=self.new_id(), time=self.clock()))

    def _copy_status(self, target: str, batch: Batch) -> None:
        """Write the status log to the topic of the user's choice too. Where its backlog is full, or it can't
        be made, that is told in ``$status``, and this part is missing in the copy."""

        def work(commit: BrokerCommit) -> None:
            topic.check_backlog()
            self.append(commit, topic, batch)

        def then(result: BusError | None) -> None:
            if isinstance(result, BusError):
                self.report(target, result)

        try:
            if self.elsewhere is not None and not self.has(target):
                self.elsewhere.tell(target, batch)
                return
            topic = self.status_copy(target)
        except BusError as error:
            self.report(target, error)
        else:
            topic.writer.hand_in(work, then)

    def status_copy(self, target: str) -> Topic:
        """The topic that the status log goes to as well, made with the retention of ``$status`` where there
        is none. BadRequest for a queue, which has one producer."""
        topic = self.topics.get(target)
        if topic is None:
            topic = self.create_topic(TopicSpec(name=target, retention=OWN[status.TOPIC]))
        if topic.spec.kind == "queue":
            raise BadRequest(f"{target} is a queue, which has one producer", hint="use a stream")
        return topic

    async def set_levels(self, levels: status.Levels, who: str, enter: Enter) -> None:
        before = self.status.levels

        def work(commit: BrokerCommit) -> None:
            commit.writes.append(PutDocument(SETTINGS, "status", msgspec.json.encode(levels)))
            enter(commit)

        await self.writers[0].put(work)
        self.status.levels = levels
        self.observe("status", "levels", "updated", who, before, levels)

    # -- observers ---------------------------------------------------------------------------------

    def observe(
        self, what: str, name: str, change: str, who: str = "", before: object = None, after: object = None
    ) -> None:
        """Tell observers of a change that is on disk, as an event of the topic ``$bus``. ``what``: "topic",
        "group", "service", … ``change``: "created", "updated", "deleted", … ``who``: the subject that has
        asked for it. ``before`` and ``after``: structs or JSON values; of an update, the difference is
        told."""
        self._changes.note(what, name, change, who, before, after)

    def observe_group(
        self, group: Group, change: str, who: str, before: object = None, after: object = None
    ) -> None:
        """The same for a change of a group."""
        if group.durable and not is_reserved(group.name):
            self.observe("group", f"{group.topic.name}/{group.name}", change, who, before, after)


def _decode_levels(raw: bytes) -> status.Levels:
    return msgspec.json.decode(raw, type=status.Levels)


def _number(key: str) -> int:
    """The number in a document's key; -1 where nobody wrote that key."""
    return int(key) if key.isdecimal() else -1


def new_incarnation() -> str:
    """An incarnation that no store has had."""
    return os.urandom(8).hex()


def _edge(topic: Topic, start: str) -> int:
    """The offset of the oldest message, or the one behind the newest."""
    if start not in ("earliest", "latest"):
        raise BadRequest(f"start {start[:60]!r}", hint="'earliest', 'latest' or a time")
    return topic.log.first if start == "earliest" else topic.log.end


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


_REPLY_TO = replies.REPLY_TO.encode()


def _check_no_event(batch: Batch) -> None:
    """BadRequest where a message names an event that a reply to it would end: the event may be another's."""
    if any(replies.REPLY_TO in batch.headers(index) for index in range(len(batch))):
        raise BadRequest(
            f"the header {replies.REPLY_TO} is the bus's own",
            hint="trigger an event; whoever passes on a message leaves out its headers that begin with lb-",
        )

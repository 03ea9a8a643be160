"""The broker: the topics of one terminal and all that happens to them. It owns the logs: it gives the
offsets, forms the commits and makes what is stored visible.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Protocol

import msgspec

from landbridge.broker import group as groups
from landbridge.broker import topic as topics
from landbridge.broker.clock import Clock
from landbridge.broker.commit import TRANSACTIONS, Commit, Committer, Work
from landbridge.broker.group import Consumer, Group
from landbridge.broker.limits import Limits
from landbridge.broker.log import Cache, Log
from landbridge.broker.topic import Topic
from landbridge.broker.trimmer import Trimmer
from landbridge.core import status
from landbridge.core.delivery.delivery import SECOND, Handout
from landbridge.core.log import ledger
from landbridge.core.log.batch import Batch, build
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.ledger import Transactions
from landbridge.core.log.ranges import Range, count
from landbridge.core.log.retention import Retention
from landbridge.core.log.store import (
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    Store,
    Write,
)
from landbridge.core.log.topic import GroupSpec, TopicSpec, group_spec, topic_spec
from landbridge.core.status import StatusLog
from landbridge.core.wording import did_you_mean
from landbridge.errors import (
    BadFrame,
    BadRequest,
    BusError,
    Forbidden,
    LeaseLost,
    LimitReached,
    Misuse,
    QueueTaken,
    TooLarge,
    UnknownGroup,
    UnknownTopic,
)
from landbridge.protocol import frames

if TYPE_CHECKING:
    from landbridge.broker.connection import Connection
    from landbridge.protocol.session import Session

EMPTY = LogBounds(0, 0, 0, 0)
SETTINGS = "settings"
#: Seconds that a moved cursor may wait for a commit to go along with.
CHANGED_WITHIN = 0.005
#: Microseconds between two looks at how far behind the groups are.
LAGS_EVERY = 60 * SECOND
#: Producers whose transactions are kept in memory.
PRODUCERS = 10_000
_LEASES_PER_START = 1 << 40


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


class Crossing(Protocol):
    """What the broker asks of the part that links this terminal to others (``landbridge.crossing``)."""

    def topic_made(self, topic: Topic) -> None:
        """A topic was made here: do groups elsewhere want its messages?"""

    def check_subscribe(self, group: Group) -> None:
        """Raise Misuse where this terminal may not have consumers of the group."""

    def consumers_changed(self, group: Group) -> None: ...

    def settled(self, group: Group) -> None:
        """The group has settled messages."""

    def accept(self, transport: asyncio.Transport, session: Session, frame: frames.Join) -> None:
        """Another terminal has dialled in: the connection is a link from here on."""

    def groups_of(self, topic: str) -> list[str] | None:
        """The groups that a topic has at all terminals; None where the registry has no such topic, or isn't
        known yet."""

    async def close(self) -> None: ...


class Broker:
    def __init__(
        self, store: Store, limits: Limits, *, clock: Clock | None = None, auto_create: bool = True
    ) -> None:
        self.store = store
        self.limits = limits
        self.clock: Callable[[], int] = clock or Clock()
        self.auto_create = auto_create
        self.topics: dict[str, Topic] = {}
        self.totals = Totals()
        self.status = StatusLog()
        self.cache = Cache(limits.cache)
        self.reader = ThreadPoolExecutor(1, "landbridge-reader")
        #: Number of this start of the terminal; with it, lease numbers are never given twice.
        self.start = 0
        self._next_log = 1
        self._next_consumer = 1
        self._changed: dict[Group, None] = {}
        #: Topics with groups that have not looked at what came of other keys than theirs.
        self._sorted: dict[Topic, None] = {}
        self._changed_timer: asyncio.TimerHandle | None = None
        self.trimmer = Trimmer(self)
        #: The other terminals of this customer; None where this one stands alone.
        self.crossing: Crossing | None = None
        self._ticker: asyncio.TimerHandle | None = None
        #: When the lags were last looked at for the status log.
        self._lags_at = self.clock()
        #: What is known of producers' transactions; the rest is read when they come.
        self._transactions: OrderedDict[bytes, Transactions] = OrderedDict()

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load what is stored, and begin a new start."""
        store = self.store
        settings = dict(store.documents(SETTINGS))
        self.start = int(settings.get("start", b"0")) + 1
        if "status" in settings:
            self.status.levels = msgspec.json.decode(settings["status"], type=status.Levels)
        bounds = store.logs()
        for name, raw in store.documents(topics.KIND):
            document = topics.decode(raw)
            self.topics[name] = self._topic(
                document.spec, document.log, bounds.get(document.log, EMPTY), document.created_at, True
            )
            self._next_log = max(self._next_log, document.log + 1)
        self._next_log = max([self._next_log, *(number + 1 for number in bounds)])
        self._load_groups()
        self.committer = Committer(
            store, clock=self.clock, most_bytes=self.limits.commit, finish=self._finish, applied=self._applied
        )
        await self.write([PutDocument(SETTINGS, "start", str(self.start).encode())])
        self.trimmer.begin(self.topics.values())
        self._tick()

    def _load_groups(self) -> None:
        by_log = {topic.log.number: topic for topic in self.topics.values()}
        slots: dict[str, list[tuple[int, bytes]]] = {}
        for key, value in self.store.documents(groups.CURSOR):
            owner, _, slot = key.rpartition("/")
            slots.setdefault(owner, []).append((int(slot), value))
        for key, raw in self.store.documents(groups.KIND):
            topic = by_log.get(int(key.partition("/")[0]))
            if topic is None:
                continue
            spec = groups.decode(raw)
            cursor = Cursor.restore(slots.get(key, ())) if key in slots else Cursor(topic.log.first)
            topic.groups[spec.name] = Group(self, topic, spec, cursor, durable=True, stored=True)

    async def close(self) -> None:
        if self._ticker is not None:
            self._ticker.cancel()
        await self.trimmer.close()
        self.write_status()
        # What has come is written before the groups are closed, for a closed group writes nothing.
        self.committer.poke()
        await self.committer.drain()
        for topic in self.topics.values():
            for group in topic.groups.values():
                group.close()
        await self.committer.close()
        self.reader.shutdown()

    async def perform(self, work: Work) -> None:
        """Put work into the next commit and wait until it is on disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def with_answer(commit: Commit) -> None:
            work(commit)
            commit.after.append(partial(_resolve, done))

        self.committer.put(with_answer, partial(_reject, done))
        await done

    async def write(self, writes: Iterable[Write], after: Callable[[], None] | None = None) -> None:
        """Commit these, and whatever cursors have changed, and wait."""

        def work(commit: Commit) -> None:
            commit.writes.extend(writes)
            if after is not None:
                commit.after.append(after)

        await self.perform(work)

    @property
    def first_lease(self) -> int:
        return self.start * _LEASES_PER_START

    @staticmethod
    def _uuid7(now: int) -> bytes:
        value = (now // 1000) << 80 | 7 << 76 | int.from_bytes(os.urandom(10), "big") & ~(0xF << 76)
        return (value & ~(3 << 62) | 2 << 62).to_bytes(16, "big")

    def new_id(self) -> bytes:
        return self._uuid7(self.clock())

    # -- topics and groups -------------------------------------------------------------------------

    def _topic(self, spec: TopicSpec, log: int, bounds: LogBounds, created_at: int, stored: bool) -> Topic:
        return Topic(
            spec,
            Log(log, bounds, self.store, self.cache, self.reader),
            self.store,
            created_at=created_at,
            stored=stored,
        )

    def topic(self, name: str) -> Topic:
        try:
            return self.topics[name]
        except KeyError:
            raise UnknownTopic(f"there is no topic {name[:200]!r}") from None

    def topic_for(self, name: str, *, create: bool = False) -> Topic:
        """The topic, made on the spot where that is allowed, or if it must be."""
        found = self.topics.get(name)
        if found is not None:
            return found
        if name == status.TOPIC:
            return self._status_topic()
        if name.startswith("$") or not (self.auto_create or create):
            raise UnknownTopic(f"there is no topic {name[:200]!r}")
        return self.create_topic(topic_spec({"name": name, "max_backlog": self.limits.max_backlog}))

    def create_topic(self, spec: TopicSpec) -> Topic:
        """In memory; the commit that first speaks of it writes it down."""
        given = len(self.topics) - (status.TOPIC in self.topics)
        if given >= self.limits.max_topics and spec.name != status.TOPIC:
            raise LimitReached(f"there are {given} topics, as many as max_topics allows")
        topic = self._topic(spec, self._next_log, EMPTY, self.clock(), False)
        self._next_log += 1
        self.topics[spec.name] = topic
        if self.crossing is not None:
            self.crossing.topic_made(topic)
        return topic

    def group(self, topic: str, name: str) -> Group:
        groups = self.topic(topic).groups
        if name not in groups:
            hint = did_you_mean(name[:200], groups)
            raise UnknownGroup(f"the topic {topic} has no group {name[:200]!r}", hint=hint)
        return groups[name]

    def create_group(
        self, topic: Topic, spec: GroupSpec, start: int | str | None, *, durable: bool = True
    ) -> Group:
        if len(topic.groups) >= self.limits.max_groups:
            raise LimitReached(
                f"the topic {topic.name} has {len(topic.groups)} groups, as many as max_groups allows"
            )
        if topic.spec.kind == "queue" and topic.groups:
            raise QueueTaken(f"the queue {topic.name} has a group already: {next(iter(topic.groups))}")
        if start is None:
            start = "earliest" if durable else "latest"
        cursor = Cursor(self.position(topic, start))
        group = Group(self, topic, spec, cursor, durable=durable, stored=False)
        topic.groups[spec.name] = group
        group.changed()
        return group

    def position(self, topic: Topic, start: int | str) -> int:
        """The offset that "earliest", "latest" or a time (microseconds) stands for."""
        if start == "earliest":
            return topic.log.first
        if start == "latest":
            return topic.log.end
        if isinstance(start, str):
            raise BadRequest(f"start {start[:60]!r}", hint="'earliest', 'latest' or a time")
        return max(topic.log.first, min(topic.log.end, self.store.seek_time(topic.log.number, start)))

    async def delete_topic(self, topic: Topic) -> None:
        del self.topics[topic.name]
        topic.deleted = True
        for group in list(topic.groups.values()):
            self._end_group(group, UnknownTopic(f"the topic {topic.name} was deleted"))
        topic.log.forget()
        writes: list[Write] = [DeleteDocument(topics.KIND, topic.name), DropLog(topic.log.number)]
        writes += self._group_documents(topic, list(topic.groups))
        await self.write(writes)

    async def delete_group(self, group: Group) -> None:
        self._drop_group(group, UnknownGroup(f"the group {group.name} was deleted"))
        await self.write(self._group_documents(group.topic, [group.name]))

    def _drop_group(self, group: Group, why: BusError) -> None:
        group.topic.groups.pop(group.name, None)
        self._changed.pop(group, None)
        self._end_group(group, why)
        self.trimmer.plan(group.topic, soon=True)

    def _end_group(self, group: Group, why: BusError) -> None:
        group.close()
        for consumer in list(group.consumers.values()):
            consumer.connection.lose(consumer, why)

    def _group_documents(self, topic: Topic, names: list[str]) -> list[Write]:
        writes: list[Write] = []
        for name in names:
            key = f"{topic.log.number}/{name}"
            writes.append(DeleteDocument(groups.KIND, key))
            slots = self.store.documents(groups.CURSOR, key + "/")
            writes += [DeleteDocument(groups.CURSOR, slot) for slot, _ in slots]
        return writes

    # -- publishing --------------------------------------------------------------------------------

    def read_batch(self, data: memoryview) -> Batch:
        """A stranger's batch, checked."""
        batch = Batch.decode(data)
        batch.validate()
        if (
            batch.payload_bytes() > self.limits.max_payload
            and batch.largest_payload() > self.limits.max_payload
        ):
            raise TooLarge(
                f"a payload of {batch.largest_payload()} bytes, allowed are {self.limits.max_payload}",
                hint="send it in parts, or raise the limit max_payload",
            )
        return batch

    def check_publish(self, connection: Connection, name: str, producer: bytes) -> Topic:
        if name.startswith("$"):
            raise Forbidden(f"{name} is written by the terminal alone", hint="")
        connection.scopes.demand("publish", name)
        topic = self.topic_for(name)
        if topic.spec.kind == "queue":
            topic.claim_for(connection, producer)
        connection.published_to.add(topic)
        return topic

    def publish(
        self,
        connection: Connection,
        frame: frames.Publish,
        tail: memoryview,
        stored: Callable[[int], None],
        refuse: Callable[[BusError], None],
    ) -> None:
        try:
            topic = self.check_publish(connection, frame.topic, frame.producer)
            batch = self.read_batch(tail)
        except (Misuse, BadFrame) as error:
            refuse(error)
            return
        except LimitReached as error:
            refuse(error)
            return
        sequence, producer = frame.sequence, frame.producer

        def work(commit: Commit) -> None:
            entry = commit.entry(topic, producer)
            if entry.known(sequence):
                # Stored before: the answer to it was lost. Answer again.
                self.totals.repeated += 1
                commit.after.append(partial(stored, entry.first_of(sequence)))
                return
            topic.check_backlog()
            following = entry.stored(sequence, -1)  # raises SequenceGap before anything is written
            topic.save(commit)
            first = commit.append(topic, batch)
            commit.remember(topic, producer, following.at(first))
            commit.after.append(partial(self._published, connection, topic, batch, first, stored))

        self.committer.put(work, refuse)

    def _published(
        self, connection: Connection, topic: Topic, batch: Batch, first: int, stored: Callable[[int], None]
    ) -> None:
        self.published(connection.subject, topic, batch, first)
        stored(first)

    def published(self, subject: str, topic: Topic, batch: Batch, first: int) -> None:
        """A batch of this subject is on disk."""
        messages = len(batch)
        self.totals.published += messages
        self.totals.published_bytes += batch.size
        self.status.count(
            self.clock(),
            "publish",
            subject,
            topic.name,
            messages=messages,
            size=batch.size,
            offsets=((first, first + messages),),
        )

    def forget_producer(self, producer: bytes, published_to: Iterable[Topic]) -> None:
        """A client left in good order, with every answer in hand: it will never repeat a batch."""
        known = [topic for topic in published_to if topic.forget(producer) and not topic.deleted]
        writes = [PutLedger(topic.log.number, producer, None) for topic in known]
        if self._transactions.pop(producer, None) is not None:
            writes.append(PutLedger(TRANSACTIONS, producer, None))
        if writes:
            self.committer.put(lambda commit: commit.writes.extend(writes))

    def _transactions_of(self, commit: Commit, producer: bytes) -> Transactions:
        found = commit.transactions.get(producer) or self._transactions.get(producer)
        if found is None:
            raw = self.store.ledger(TRANSACTIONS, producer)
            found = ledger.decode_transactions(raw) if raw is not None else ledger.NO_TRANSACTIONS
        return found

    def transact(
        self,
        connection: Connection,
        frame: frames.Transact,
        tail: memoryview,
        done: Callable[[list[int]], None],
        refuse: Callable[[BusError], None],
    ) -> None:
        """Publishes and acks, all or nothing."""
        publishes: list[tuple[Topic, Batch]] = []
        try:
            at = 0
            for name, size in frame.publishes:
                if at + size > len(tail):
                    raise BadFrame(f"a transaction whose batches go beyond its {len(tail)} bytes")
                topic = self.check_publish(connection, name, frame.producer)
                publishes.append((topic, self.read_batch(tail[at : at + size])))
                at += size
            if at != len(tail):
                raise BadFrame(f"a transaction with {len(tail) - at} bytes too many")
        except (Misuse, BadFrame, LimitReached) as error:
            refuse(error)
            return

        def work(commit: Commit) -> None:
            happened = self._transactions_of(commit, frame.producer)
            if happened.known(frame.number):
                self.totals.repeated += 1
                commit.after.append(partial(done, []))
                return
            for topic, _ in publishes:
                topic.check_backlog()
                topic.save(commit)
            self._ack_all(commit, connection, frame.acks)
            commit.transactions[frame.producer] = happened.after(frame.number, frame.floor)
            firsts = [commit.append(topic, batch) for topic, batch in publishes]
            for (topic, batch), first in zip(publishes, firsts, strict=True):
                commit.after.append(partial(self._published, connection, topic, batch, first, lambda _: None))
            commit.after.append(partial(done, firsts))

        self.committer.put(work, refuse)

    def _ack_all(
        self, commit: Commit, connection: Connection, acks: list[tuple[int, int, list[Range]]]
    ) -> None:
        """Every lease must still be held, entirely; then all are acked in this commit."""
        held_by = []
        for subscription, lease, runs in acks:
            consumer = connection.consumers.get(subscription)
            if consumer is None or not consumer.group.delivery.holds(lease, consumer.number, runs):
                raise LeaseLost("a message of the transaction is no longer this consumer's to settle")
            held_by.append((consumer, lease, runs))
        for consumer, lease, runs in held_by:
            group = consumer.group
            published = group.delivery.published(lease)
            held = group.delivery.ack(commit.now, lease, consumer.number, runs)
            self.settled(commit.now, group, consumer, "ack", "", count(held), held, published)
            commit.undo.append(partial(unsettle, group, held))
            group.save(commit)
            commit.after.append(group.pump)

    # -- subscribing -------------------------------------------------------------------------------

    def subscribe(self, connection: Connection, frame: frames.Subscribe) -> Consumer:
        connection.scopes.demand("subscribe", frame.topic)
        topic = self.topic_for(frame.topic)
        if topic.deleted:
            raise UnknownTopic(f"there is no topic {frame.topic!r}")
        name = frame.group
        durable = name is not None
        if topic.spec.kind == "queue":
            # A queue has one group; who names none means that one.
            name = name or next(iter(topic.groups), "queue")
            durable = True
        number = self.new_consumer()
        if name is None:
            name = f"ephemeral-{self.start}-{number}"
        group = topic.groups.get(name)
        if group is None:
            spec = group_spec({"topic": topic.name, "name": name})
            group = self.create_group(topic, spec, frame.start, durable=durable)
        if self.crossing is not None:
            self.crossing.check_subscribe(group)
        if topic.spec.kind == "queue" and group.own_consumers:
            other = group.own_consumers[0].connection
            raise QueueTaken(f"the queue {topic.name} has a consumer already: {other.who}")
        consumer = Consumer(
            number,
            connection,
            frame.subscription,
            frame.prefetch,
            group,
            prefetch_bytes=self.limits.prefetch_bytes,
        )
        group.join(consumer)
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
        if group.topic.spec.retention.settled:
            self.trimmer.plan(group.topic, soon=True)

    # -- commits -----------------------------------------------------------------------------------

    async def until_settled(self, group: Group, offset: int) -> None:
        """Wait until a group has settled a message, and until that is on disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group.watchers.append((offset, done))
        group.tell_watchers()
        try:
            await done
        finally:
            if (offset, done) in group.watchers:
                group.watchers.remove((offset, done))
        await self.write([])

    def changed(self, group: Group) -> None:
        """Its cursor goes into the next commit. Nobody waits for it, so it doesn't cause one at once: at a
        low rate, acks then share the fsync of the next publish."""
        self._changed[group] = None
        if self._changed_timer is None:
            loop = asyncio.get_running_loop()
            self._changed_timer = loop.call_later(CHANGED_WITHIN, self.committer.poke)

    def _finish(self, commit: Commit) -> None:
        changed, self._changed = self._changed, {}
        if self._changed_timer is not None:
            self._changed_timer.cancel()
            self._changed_timer = None
        for group in changed:
            group.save(commit)

    def _applied(self, commit: Commit) -> None:
        for (topic, producer), entry in commit.entries.items():
            topic.learn(producer, entry)
        for producer, transactions in commit.transactions.items():
            self._transactions[producer] = transactions
            if len(self._transactions) > PRODUCERS:
                self._transactions.popitem(last=False)
        for topic, batches in commit.appended.items():
            if topic.deleted:
                continue
            for first, batch in batches:
                topic.log.extend(first, batch, batch.size, commit.now)
            self.trimmer.plan(topic)
            for group in topic.grown(batches):
                group.pump()
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
        self.write_status()
        self.trimmer.tick()

    def time_passed(self) -> None:
        """The clock was moved by hand: leases, delays, retention and the status log look at it now."""
        for topic in list(self.topics.values()):
            for group in list(topic.groups.values()):
                group.shift(0)
        self.write_status()
        self.trimmer.tick()

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
        """Put what has gathered into the topic ``$status``."""
        if not self.status:
            return
        now = self.clock()
        payloads = self.status.drain(now)
        batch = Batch.decode(build(payloads, id=self.new_id(), time=now))
        topic = self.topic_for(status.TOPIC)

        def work(commit: Commit) -> None:
            topic.save(commit)
            commit.append(topic, batch)

        self.committer.put(work)

    def _status_topic(self) -> Topic:
        retention = Retention(max_age=7 * 86400.0, max_bytes=256 << 20, discard="any")
        return self.create_topic(TopicSpec(name=status.TOPIC, retention=retention))

    async def set_levels(self, levels: status.Levels) -> None:
        await self.write([PutDocument(SETTINGS, "status", msgspec.json.encode(levels))])
        self.status.levels = levels


def _resolve(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _reject(done: asyncio.Future[None], error: BusError) -> None:
    if not done.done():
        done.set_exception(error)


def unsettle(group: Group, runs: list[Range], error: BusError) -> None:
    """The commit that was to settle these failed."""
    group.unsettle(runs)

"""The topics of a terminal and their groups: found, made, and deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from landbridge.broker import group as groups
from landbridge.broker import topic as topics
from landbridge.broker.commit import HISTORY, SETTINGS, BrokerCommit
from landbridge.broker.committing import Committing
from landbridge.broker.group import Enter, Group
from landbridge.broker.keys import TopicKeys
from landbridge.broker.limits import Limits
from landbridge.broker.log import Cache, Log
from landbridge.broker.middleware import Middleware
from landbridge.broker.rule_topics import unit_of, views_stages
from landbridge.broker.surroundings import Crossing
from landbridge.broker.topic import Topic
from landbridge.broker.topic_changes import TopicChanges
from landbridge.broker.trimmer import Trimmer
from landbridge.broker.units import Units
from landbridge.core import audit, changes, faults, replies, status
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.retention import Retention
from landbridge.core.log.store import DeleteDocument, DropLog, LogBounds, PutDocument, Store, Write
from landbridge.core.middleware.spec import level_of
from landbridge.core.names import CONTENT_DEAD, CONTENT_TOPIC, is_reserved, is_rule_topic
from landbridge.core.topic import GroupSpec, TopicSpec, topic_spec
from landbridge.core.wording import did_you_mean
from landbridge.errors import (
    BadRequest,
    BusError,
    LimitReached,
    QueueTaken,
    StoreCorrupt,
    UnknownGroup,
    UnknownTopic,
)

EMPTY = LogBounds(0, 0, 0, 0)
#: The setting of each unit that numbers its next log, where a log was deleted.
NEXT_LOG = "next-log"
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


class LeavesGroupsOut(Protocol):
    """What sets messages of groups aside."""

    def leave_out(self, group: Group, commit: BrokerCommit) -> None:
        """The group is deleted in this commit."""


class TopicHost(Protocol):
    """What is asked of the broker."""

    name: str
    store: Store
    limits: Limits
    clock: Callable[[], int]
    auto_create: bool
    topics: dict[str, Topic]
    topic_changes: TopicChanges
    damaged: dict[str, StoreCorrupt]
    cache: Cache
    units: Units
    trimmer: Trimmer
    middleware: Middleware
    committing: Committing
    crossing: Crossing | None

    @property
    def consuming(self) -> groups.Hub: ...

    @property
    def reservations(self) -> LeavesGroupsOut: ...

    def observe(
        self, what: str, name: str, change: str, who: str = "", before: object = None, after: object = None
    ) -> None: ...

    def observe_group(
        self, group: Group, change: str, who: str, before: object = None, after: object = None
    ) -> None: ...


class TopicTable:
    def __init__(self, broker: TopicHost) -> None:
        self._broker, self._units, self._topics = broker, broker.units, broker.topics
        #: Per unit: the next log gets this number times the number of units, plus the unit. Number 0 is the
        #: log that has no batches, only the ledger of transactions.
        self._next_log = [1] * self._units.number

    def number_from(self, unit: int, next_log: int) -> None:
        """The next log of a unit gets at least this number."""
        self._next_log[unit] = next_log

    # -- topics ---------------------------------------------------------------------------------

    def topic(self, name: str) -> Topic:
        """UnknownTopic where there is none, NotOwner where another node has it."""
        found = self._topics.get(name)
        if found is not None and found.writer.unit not in self._units.loading:
            return found
        if name in self._broker.damaged:
            raise self._broker.damaged[name]
        self._units.check_has(name)
        raise UnknownTopic(f"there is no topic {name[:200]!r}")

    def topic_for(
        self, name: str, *, create: bool = False, who: str = "", enter: Enter | None = None
    ) -> Topic:
        """The topic, made on the spot where that is allowed, or if it must be. ``who``: for whom. ``enter``:
        writes the entry of the audit log where it is made by an operation."""
        found = self._topics.get(name)
        if found is not None and found.writer.unit not in self._units.loading:
            return found
        self._units.check_has(name)
        if name in OWN:
            return self.create_topic(TopicSpec(name=name, retention=OWN[name]))
        if is_reserved(name) or is_rule_topic(name) or not (self._broker.auto_create or create):
            raise UnknownTopic(f"there is no topic {name[:200]!r}")
        spec = topic_spec({"name": name, "max_backlog": self._broker.limits.max_backlog})
        return self.create_topic(spec, who, enter)

    def create_topic(self, spec: TopicSpec, who: str = "", enter: Enter | None = None) -> Topic:
        """In memory; the commit that first speaks of it writes it down. ``enter``: writes the entry of the
        audit log in that commit."""
        if spec.name in self._broker.damaged:
            raise self._broker.damaged[spec.name]
        elsewhere = self._units.elsewhere
        given = len(self._topics) - sum(name in self._topics for name in OWN)
        given += 0 if elsewhere is None else elsewhere.topics()
        if given >= self._broker.limits.max_topics and spec.name not in OWN:
            raise LimitReached(f"there are {given} topics, as many as max_topics allows")
        if is_rule_topic(spec.name) and spec.rule is None:
            raise BadRequest(f"{spec.name} is a name for the topic of a rule", hint="choose another name")
        unit = self._units.unit_of(spec.name if spec.rule is None else spec.rule.source)
        number = self._next_log[unit] * self._units.number + unit
        self._next_log[unit] += 1
        topic = self.add(spec, number, EMPTY, self._broker.clock(), stored=False)
        topic.enter_in_audit = enter
        topic.on_made = partial(self._broker.observe, "topic", spec.name, "created", who, after=spec)
        if self._broker.crossing is not None:
            self._broker.crossing.topic_made(topic)
        return topic

    def add(
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
        """A topic with a log of this number. ``key_bounds``: the bounds of the log of its keys, where it
        has used any."""
        log = Log(number, bounds, self._broker.store, self._broker.cache)
        writer = self._units.writers[number % self._units.number]
        known = TopicKeys(number, key_bounds, self._broker.store, self._broker.limits.keys_kept)
        life = {"created_at": created_at, "known_as": known_as}
        topic = Topic(spec, log, writer, terminal=self._broker.name, **life, stored=stored, keys=known)
        self._topics[spec.name] = topic
        self._broker.committing.add(topic)
        self._broker.topic_changes.note(spec.name)
        self.follow_middleware(topic)
        return topic

    def remove(self, topic: Topic) -> None:
        """The topic was deleted, or its unit is at another node now."""
        del self._topics[topic.name]
        self._broker.committing.remove(topic)
        topic.log.forget()
        self._broker.middleware.forget(topic.name)

    def follow_middleware(self, topic: Topic) -> None:
        """Go by the middleware that the topic's options name now."""
        stages = topic.spec.middleware
        topic.chain = self._broker.middleware.chain_for(topic.name, stages)
        topic.log.pack_level = level_of(stages)
        had_views = topic.views is not None
        before_delivery = views_stages(self._topics, topic.spec)
        topic.views = self._broker.middleware.views_for(topic.name, topic.log, before_delivery)
        if had_views or topic.views is not None:
            for other in list(self._topics.values()):
                if other.spec.rule is not None and other.spec.rule.source == topic.name:
                    self.follow_middleware(other)

    async def position(self, topic: Topic, start: int | str | None) -> int:
        """The offset that "earliest", "latest" or a time (microseconds) stands for; None is "earliest"."""
        if isinstance(start, int):
            found = await self._broker.store.seek_time(topic.log.number, start)
            return max(topic.log.first, min(topic.log.end, found))
        return edge_of(topic, start or "earliest")

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
            self.remove(topic)
            for group in list(topic.groups.values()):
                self._end_group(group, UnknownTopic(f"the topic {topic.name} was deleted"))
            self._broker.observe("topic", topic.name, "deleted", who)
            self._broker.topic_changes.note(topic.name)

        def keep() -> None:
            topic.deleted = False
            self._broker.topic_changes.note(topic.name)
            # Whatever left the topic alone meanwhile, because it was about to go, looks at it again.
            self._broker.trimmer.plan(topic, soon=True)
            for group in topic.groups.values():
                group.changed()
                group.pump()

        await topic.writer.put(work)

    async def give_up_topic(self, name: str, enter: Enter) -> None:
        """Delete what is stored of a topic whose document is damaged. Which log was its can't be read; but
        with the last such topic go all logs that are no topic's."""
        unit = unit_of(name, self._units.number)
        others = [
            other
            for other in self._broker.damaged
            if other != name and unit_of(other, self._units.number) == unit
        ]
        known = {topic.log.number for topic in self._topics.values()} | set(range(self._units.number))
        known |= {topic.keys.number for topic in self._topics.values()}
        writes: list[Write] = [DeleteDocument(topics.KIND, name)]
        if not others:
            writes += [
                DropLog(number) for number in await self._broker.store.logs(unit) if number not in known
            ]

        def work(commit: BrokerCommit) -> None:
            commit.writes += writes
            # Before the entry: it may be the audit log itself that begins anew with it.
            if (error := self._broker.damaged.pop(name, None)) is not None:
                commit.on_failed.append(partial(self._broker.damaged.__setitem__, name, error))
            enter(commit)

        await self._units.writers[unit].put(work)

    # -- groups ---------------------------------------------------------------------------------

    def group(self, topic: str, name: str) -> Group:
        """UnknownGroup where there is none."""
        groups = self.topic(topic).groups
        if name not in groups:
            hint = did_you_mean(name[:200], groups, "see 'landbridge group list'")
            raise UnknownGroup(f"the topic {topic} has no group {name[:200]!r}", hint=hint)
        return groups[name]

    def group_of(self, log: int, name: str) -> Group | None:
        """The group of a log, by the log's number."""
        topics = (topic for topic in self._topics.values() if topic.log.number == log)
        return next((topic.groups[name] for topic in topics if name in topic.groups), None)

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
        if len(topic.groups) >= self._broker.limits.max_groups:
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
        if spec.dead_letter is None and (dead := self._topics.get(spec.dead_topic)) is not None:
            dead.check_producer("")
        cursor = Cursor(floor)
        group = Group(self._broker.consuming, topic, spec, cursor, durable=durable, stored=False)
        if durable and not is_reserved(spec.name):
            group.on_made = partial(self._broker.observe_group, group, "created", who, after=spec)
        if enter is not None:
            group.owe_entry(enter)
        topic.groups[spec.name] = group
        group.changed()
        return group

    async def delete_group(self, group: Group, who: str = "", enter: Enter | None = None) -> None:
        def work(commit: BrokerCommit) -> None:
            if group.deleted:
                return
            group.deleted = True
            if enter is not None:
                enter(commit)
            commit.writes += group.documents_to_delete()
            self._broker.reservations.leave_out(group, commit)
            commit.on_stored.append(forget)
            commit.on_failed.append(keep)

        def forget() -> None:
            self.drop_group(group, UnknownGroup(f"the group {group.name} was deleted"))
            self._broker.observe_group(group, "deleted", who)

        def keep() -> None:
            group.deleted = False
            group.changed()
            group.pump()

        await group.topic.writer.put(work)

    def drop_group(self, group: Group, why: BusError) -> None:
        """Nothing of the group is on disk any more."""
        topic = self._topics[group.topic.name]
        topic.groups.pop(group.name, None)
        self._broker.committing.leave_out(group)
        self._end_group(group, why)
        self._broker.trimmer.plan(topic, soon=True)

    def _end_group(self, group: Group, why: BusError) -> None:
        group.close()
        for consumer in list(group.consumers.values()):
            consumer.connection.lose(consumer, why)


def edge_of(topic: Topic, start: str) -> int:
    """The offset of the oldest message, or the one behind the newest."""
    if start not in ("earliest", "latest"):
        raise BadRequest(f"start {start[:60]!r}", hint="'earliest', 'latest' or a time")
    return topic.log.first if start == "earliest" else topic.log.end

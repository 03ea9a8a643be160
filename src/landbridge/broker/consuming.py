"""Consuming: who subscribes to which group, and what is told of deliveries and of what is settled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from landbridge.broker.committing import Committing
from landbridge.broker.group import Consumer, Group, Home
from landbridge.broker.limits import Limits
from landbridge.broker.pauses import Pauses
from landbridge.broker.requests import Requests
from landbridge.broker.rule_topics import demand_read
from landbridge.broker.surroundings import Client, Crossing
from landbridge.broker.topic import Topic
from landbridge.broker.topic_table import TopicTable, edge_of
from landbridge.broker.totals import Totals
from landbridge.broker.trimmer import Trimmer
from landbridge.broker.units import Units
from landbridge.core.delivery.delivery import Handout
from landbridge.core.log.ranges import Range
from landbridge.core.log.store import Write
from landbridge.core.status import StatusLog
from landbridge.core.topic import new_group
from landbridge.errors import QueueTaken, UnknownGroup, UnknownTopic
from landbridge.protocol import frames

#: Lease numbers of one start of the terminal, or of one owner of a unit.
LEASES_PER_START = 1 << 40


class CountsStarts(Protocol):
    """What knows the number of this start."""

    start: int


class ConsumingHost(Protocol):
    """What is asked of the broker."""

    limits: Limits
    clock: Callable[[], int]
    totals: Totals
    status: StatusLog
    topics: dict[str, Topic]
    units: Units
    table: TopicTable
    committing: Committing
    trimmer: Trimmer
    requests: Requests
    pauses: Pauses
    crossing: Crossing | None

    @property
    def life(self) -> CountsStarts: ...

    def new_id(self) -> bytes: ...
    async def write(self, writes: Iterable[Write], *, unit: int = 0) -> None: ...


class Consuming:
    """What groups ask of the broker (``groups.Hub``), too."""

    def __init__(self, broker: ConsumingHost) -> None:
        self._broker, self._topics = broker, broker.topics
        self._totals, self._status = broker.totals, broker.status
        self._next_consumer = 1
        #: Unit → the lease numbers of its groups begin with this number.
        self._lease_starts: dict[int, int] = {}
        # What groups ask for and other parts have.
        self.clock, self.status, self.new_id = broker.clock, broker.status, broker.new_id
        self.moved, self.append = broker.committing.moved, broker.committing.append

    def begin_leases(self, unit: int, start: int) -> None:
        """No lease of a unit's groups has had a number as great as those that ``start`` begins."""
        self._lease_starts[unit] = start

    def first_lease(self, topic: Home) -> int:
        """Where the lease numbers of a topic's group begin."""
        return self._lease_starts[topic.writer.unit] * LEASES_PER_START

    def subscribe(self, connection: Client, frame: frames.Subscribe, floor: int | None = None) -> Consumer:
        """``floor``: the offset that ``frame.start`` stands for where it is a time (``position``)."""
        demand_read(self._topics, connection.scopes, frame.topic)
        topic = self.topic_of(frame, connection.subject)
        if topic.deleted:
            raise UnknownTopic(f"there is no topic {frame.topic!r}")
        name = frame.group
        durable = name is not None
        if name is not None:
            self._broker.table.check_group_name(name)
        if topic.spec.has_one_group:
            # A queue has one group; who names none means that one.
            name = name or next(iter(topic.groups), "workers" if topic.spec.kind == "work" else "queue")
            durable = True
        if frame.must_exist and name is not None:
            self._broker.table.group(frame.topic, name)
        number = self.new_consumer()
        if name is None:
            name = f"ephemeral-{self._broker.life.start}-{number}"
        group = topic.groups.get(name)
        if group is None:
            spec = new_group(topic.spec, name)
            if floor is None:
                assert not isinstance(frame.start, int), "a time is looked up before"
                floor = edge_of(topic, frame.start or ("earliest" if durable else "latest"))
            group = self._broker.table.create_group(
                topic, spec, floor, durable=durable, who=connection.subject
            )
        if group.damaged is not None:
            raise group.damaged
        if self._broker.crossing is not None:
            self._broker.crossing.check_subscribe(group)
        if topic.spec.kind == "queue" and group.own_consumers:
            other = group.own_consumers[0].connection
            raise QueueTaken(f"the queue {topic.name} has a consumer already: {other.who}")
        consumer = Consumer(
            number,
            connection,
            frame.subscription,
            min(frame.prefetch, topic.spec.prefetch) if topic.spec.kind == "work" else frame.prefetch,
            group,
            prefetch_bytes=min(frame.prefetch_bytes or (1 << 62), self._broker.limits.prefetch_bytes),
            by_pull=frame.by_pull,
            hears_pauses=connection.hears_pauses,
        )
        group.join(consumer)
        if frame.answers:
            self._broker.requests.join(consumer)
        return consumer

    def topic_of(self, frame: frames.Subscribe, who: str) -> Topic:
        """The topic, made where that is allowed and wanted."""
        if frame.must_exist:
            return self._broker.table.topic(frame.topic)
        return self._broker.table.topic_for(frame.topic, who=who)

    def new_consumer(self) -> int:
        """A number for a consumer, never used again in this terminal's life."""
        number = self._next_consumer
        self._next_consumer += 1
        return number

    def unsubscribe(self, consumer: Consumer, *, counted: bool) -> None:
        group = consumer.group
        group.leave(consumer, counted=counted)
        self._broker.requests.leave(consumer)
        self._broker.pauses.leave(consumer)
        if not group.durable and not group.consumers and not group.deleted:
            self._broker.table.drop_group(group, UnknownGroup("its subscriber is gone"))

    def consumers_changed(self, group: Group) -> None:
        if self._broker.crossing is not None:
            self._broker.crossing.consumers_changed(group)

    def delivered(
        self, now: int, group: Group, consumer: Consumer, messages: int, size: int, handouts: list[Handout]
    ) -> None:
        self._totals.delivered += messages
        self._totals.delivered_bytes += size
        self._status.count(
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
            self._totals.acked += messages
        elif verb == "requeue":
            self._totals.requeued += messages
        elif verb == "bury":
            self._totals.buried += messages
            return  # told when it is done
        self._status.count(
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
            self._broker.trimmer.plan(self._topics[group.topic.name], soon=True)

    async def until_settled(self, group: Group, offset: int) -> None:
        """Wait until a group has settled a message, and until that is on disk."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        group.watchers[done] = offset
        group.tell_watchers()
        try:
            await done
        finally:
            group.watchers.pop(done, None)
        await self._broker.write([], unit=group.topic.writer.unit)

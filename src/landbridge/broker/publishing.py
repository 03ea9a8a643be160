"""Publishing: which batches of strangers are taken, and for which topics; what is stored of them, once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from landbridge.broker.authority import TokenBearer
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.distant import DistantTopic
from landbridge.broker.documents import Documents
from landbridge.broker.event_types import types_of
from landbridge.broker.keys import PublishOutcome
from landbridge.broker.limits import Limits
from landbridge.broker.middleware import Outcome, PublishingSubject, WaitingBatch, accepted, through
from landbridge.broker.requests import check_headers
from landbridge.broker.surroundings import Client, Crossing
from landbridge.broker.topic import Topic
from landbridge.broker.topic_table import TopicTable
from landbridge.broker.totals import Totals
from landbridge.broker.units import Units
from landbridge.core import replies
from landbridge.core.log import keys, ledger
from landbridge.core.log.batch import Batch, Column, build, encode_headers
from landbridge.core.log.keys import KeyEntry
from landbridge.core.log.ledger import Entry
from landbridge.core.middleware.event_types import EventType
from landbridge.core.names import CONTENT_TOPIC, is_reserved, is_rule_topic
from landbridge.core.status import StatusLog
from landbridge.errors import BadRequest, BusError, Forbidden, TooLarge, TooOld
from landbridge.protocol import frames
from landbridge.stores.writer import Answered

_REPLY_TO = replies.REPLY_TO.encode()


class PublishingHost(Protocol):
    """What is asked of the broker."""

    limits: Limits
    clock: Callable[[], int]
    totals: Totals
    status: StatusLog
    topics: dict[str, Topic]
    documents: Documents
    units: Units
    table: TopicTable
    crossing: Crossing | None

    def new_id(self) -> bytes: ...


class Publishing:
    def __init__(self, broker: PublishingHost) -> None:
        self._broker, self._units, self._topics = broker, broker.units, broker.topics
        self._totals, self._status = broker.totals, broker.status
        self._table, self._clock = broker.table, broker.clock
        #: The object changes while the terminal runs.
        self.limits = broker.limits

    # -- checks ---------------------------------------------------------------------------------

    def check_target(self, caller: TokenBearer, name: str) -> None:
        """May the caller have messages written to a topic? Everything asks here by which somebody's messages
        get into a topic: publishes, transactions, stages, and whatever writes later on somebody's behalf, as
        a group does with its dead letters."""
        if is_reserved(name) and name != CONTENT_TOPIC:
            raise Forbidden(f"{name} is written by the terminal alone", hint="")
        if is_rule_topic(name):
            raise Forbidden(f"{name} is filled by a rule alone", hint="publish to the rule's source")
        caller.scopes.demand("publish", name)
        if (found := self._topics.get(name)) is not None:
            found.check_producer(caller.subject)

    def _check_publish(self, connection: TokenBearer, name: str) -> Topic:
        """The topic of a publish, made on the spot where that is allowed."""
        self.check_target(connection, name)
        return self._table.topic_for(name, who=connection.subject)

    def output(self, connection: TokenBearer, name: str) -> Topic | DistantTopic:
        """The topic of an output, which may be at another node: its owner checks the rest then."""
        if self._units.elsewhere is None or self._units.has(name):
            return self._check_publish(connection, name)
        self.check_target(connection, name)
        return DistantTopic(name, self._units.unit_of(name), self._units.elsewhere)

    async def kind_elsewhere(self, caller: TokenBearer, name: str) -> str:
        """What ``check_target`` can't see here of a topic that another node owns: its owner is asked, and
        raises. Returns the kind of such a topic; empty for one of this node's, or one that isn't there."""
        if self._units.elsewhere is None or self._units.has(name):
            return ""
        return await self._units.elsewhere.look_at(name, caller.subject)

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
        limits = self.limits
        if (
            batch.size > limits.max_payload  # mostly it isn't, and nobody has to look at each
            and batch.largest_payload() > limits.max_payload
        ):
            raise TooLarge(
                f"a payload of {batch.largest_payload()} bytes, allowed are {limits.max_payload}",
                hint="send it in parts, or raise the limit max_payload",
            )
        if batch.size > limits.max_frame:
            raise TooLarge(f"a batch of {batch.size} bytes, allowed are {limits.max_frame}")
        if self._broker.crossing is not None:
            self._broker.crossing.check_size(topic, batch)

    # -- batches --------------------------------------------------------------------------------

    def publish(
        self,
        connection: Client,
        frame: frames.Publish,
        tail: memoryview,
        then: Callable[[int | PublishOutcome | BusError], None],
    ) -> None:
        """Store a batch. ``then`` gets the offset of its first message once it is on disk; a PublishOutcome
        where the topic's ids are unique. Misuse, BadFrame and LimitReached are raised at once."""
        topic = self._check_publish(connection, frame.topic)
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
        self._totals.repeated += rest is None
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
            self._totals.repeated += 1
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
        topic = self._check_publish(connection, frame.topic)
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
            self._totals.repeated += 1
        return entry

    def published(self, subject: str, topic: Topic, batch: Batch, first: int) -> None:
        """A batch of this subject is on disk."""
        messages = len(batch)
        totals = self._totals
        totals.published += messages
        totals.published_bytes += batch.size
        self._status.count(
            self._clock(),
            "publish",
            subject,
            topic.name,
            messages=messages,
            size=batch.size,
            offsets=((first, first + messages),),
        )

    # -- middleware -----------------------------------------------------------------------------

    def has_middleware(self, topic: str) -> bool:
        """Do messages of the topic go through any stage?"""
        found = self._topics.get(topic)
        return found is not None and (found.chain is not None or found.views is not None)

    async def after_middleware(
        self, publisher: PublishingSubject, frame: frames.SendRequest, payload: bytes
    ) -> tuple[frames.SendRequest, bytes]:
        """A request that isn't stored, and its payload, as the middleware of its topic lets it through."""
        topic = self._topics.get(frame.topic)
        if topic is None or (topic.chain is None and topic.views is None):
            return frame, payload
        check_headers(frame.headers)
        headers, keys = [encode_headers(frame.headers)], [frame.key]
        batch = Batch.decode(
            build([payload], id=self._broker.new_id(), time=self._clock(), keys=keys, headers=headers)
        )
        return await through(topic.chain, topic.views, publisher, frame, batch)

    async def types_of(self, topic: str) -> dict[str, EventType]:
        """The event types that a topic lists."""
        return await types_of(self._broker.documents, topic)

    def chain_ended(self, topic: str) -> None:
        """The topic's middleware has nothing more to do."""
        if (found := self._topics.get(topic)) is not None:
            self._table.follow_middleware(found)

    def log_crash(self, what: str, error: BaseException) -> None:
        """Tell whoever runs the terminal of a bug."""
        asyncio.get_running_loop().call_exception_handler({"message": f"{what} crashed", "exception": error})


def _check_no_event(batch: Batch) -> None:
    """BadRequest where a message names an event that a reply to it would end: the event may be another's."""
    if any(replies.REPLY_TO in batch.headers(index) for index in range(len(batch))):
        raise BadRequest(
            f"the header {replies.REPLY_TO} is the bus's own",
            hint="trigger an event; whoever passes on a message leaves out its headers that begin with lb-",
        )

"""Events with an outcome: a message that asks for a reply, what is known of it, and where the reply goes.

Triggering an event stores two things in one commit: the message, whose headers name this terminal and the
event's id, and the event itself. A consumer replies: its terminal stores the reply in the topic ``$replies``
and acks the message in one commit, so a reply is stored once. The terminal where the event was triggered is a
consumer of its own ``$replies``: each reply there ends an event, in one commit with the ack and with the copy
for a callback.

A durable request is an event whose outcome is awaited.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Any, Protocol

import msgspec

from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.group import Consumer, Group
from landbridge.broker.middleware import Outcome, PublishingSubject, accepted
from landbridge.broker.requests import check_headers
from landbridge.broker.surroundings import Client
from landbridge.broker.topic import Topic
from landbridge.core import replies
from landbridge.core.log.batch import Batch, HeaderValue, build, encode_headers
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.core.replies import TriggeredEvent
from landbridge.core.time import SECOND
from landbridge.core.topic import GroupSpec, group_spec
from landbridge.errors import (
    BadRequest,
    BusError,
    LeaseLost,
    NameTaken,
    TooLarge,
    UnknownEvent,
    UnknownTopic,
)
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.operations import EventTrigger

KIND = "event"
PREFETCH, PREFETCH_BYTES = 256, 8 << 20
#: Seconds after which replies are read again that could not be taken in.
AGAIN_AFTER = 1.0
#: What the limit of their number is about, in words.
KEPT = "events with an outcome, which are kept for a day"
#: Events that are looked at in one commit because their time has come.
DUE_AT_ONCE = 256

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TriggeredEvent).decode


class EventCaller(TokenBearer, PublishingSubject, Protocol):
    """Who triggers an event."""


class Outcomes:
    """The events that were triggered at this terminal."""

    def __init__(self, broker: Broker, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._broker = broker
        self._spawn = spawn
        #: By id; what is here is on disk.
        self.events: dict[str, TriggeredEvent] = {}
        #: Subject → how many of the events are its, those included whose first commit is being formed.
        self._kept: Counter[str] = Counter()
        #: Those that are in the commit that is being formed or is under way for the first time.
        self._beginning: dict[str, TriggeredEvent] = {}
        #: Events whose end is in the commit that is being formed or is under way.
        self._ending: set[str] = set()
        #: (when, id) of what time alone ends. Entries of events that ended meanwhile say nothing.
        self._due: list[tuple[int, str]] = []
        #: Id → those who wait for its outcome.
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Address → reads the replies that are for it. The newest address is the one that messages name.
        self._inboxes: dict[str, Inbox] = {}
        #: The events are this node's to end.
        self._is_home = False
        #: The name by which other terminals know this one; a terminal that stands alone has one, too.
        self.addresses = [broker.name]

    async def open(self) -> None:
        """Load the events, and read the replies that came before the terminal was stopped."""
        self._is_home = True
        for id, raw in await self._broker.store.documents(0, KIND):
            event = self._broker.damage.decode(f"the event {id}", _decode, raw, None, "its outcome is lost")
            if event is not None:
                self.events[id] = event
                self._kept[event.subject] += 1
                self._due.append((event.due_at, id))
        heapify(self._due)
        self._arm()
        if replies.TOPIC in self._broker.topics:
            self._begin_reading()

    def join(self, terminal: str) -> None:
        """From now on this terminal is known to others, by this id."""
        if terminal not in self.addresses:
            self.addresses.append(terminal)
        if self._is_home and replies.TOPIC in self._broker.topics:
            self._begin_reading()

    def forget(self, why: BusError) -> None:
        """The events are another node's from now on."""
        self.close()
        self._is_home = False
        self._timer = None
        self._inboxes.clear()
        self.events.clear()
        self._kept.clear()
        self._due.clear()
        waiting, self._waiting = self._waiting, {}
        for waiters in waiting.values():
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(why)

    def close(self) -> None:
        """Look at no deadline any more."""
        if self._timer is not None:
            self._timer.cancel()
        for inbox in self._inboxes.values():
            inbox.close()

    # -- triggering --------------------------------------------------------------------------------

    async def trigger(self, caller: EventCaller, request: EventTrigger, payload: bytes) -> TriggeredEvent:
        """Store an event and its message. One with an id that this caller has used is the same event."""
        broker = self._broker
        id = replies.check_id(request.id)
        known = self.events.get(id)
        if known is not None:
            return self._same(caller, known)
        broker.publishing.check_target(caller, request.topic)
        callback = replies.check_callback(request.callback)
        if callback.startswith("topic:"):
            broker.publishing.check_target(caller, callback.removeprefix("topic:"))
            await broker.publishing.kind_elsewhere(caller, callback.removeprefix("topic:"))
        if not 0 < request.within <= replies.LONGEST_WAIT:
            raise BadRequest(
                f"an event that waits {request.within} s", hint=f"at most {replies.LONGEST_WAIT:.0f} seconds"
            )
        if len(payload) > min(replies.LARGEST, broker.limits.max_payload):
            raise TooLarge(f"an event of {len(payload)} bytes, allowed are {replies.LARGEST}")
        broker.shares.check_all("max_events", KEPT, len(self.events))
        check_headers(request.headers)
        topic = broker.publishing.output(caller, request.topic)
        deadline = broker.clock() + int(request.within * SECOND)
        event = TriggeredEvent(id, caller.subject, topic.name, deadline, callback)
        own: dict[str, HeaderValue] = {
            replies.REPLY_TO: self.addresses[-1],
            replies.CORRELATION: id,
            replies.DEADLINE: deadline,
        }
        batch = Batch.decode(
            build(
                [payload],
                id=broker.new_id(),
                time=broker.clock(),
                keys=[request.key.encode()] if request.key else None,
                headers=[encode_headers({**request.headers, **own})],
                ids=[id.encode()],
                expires_at=[deadline],
            )
        )
        self._begin_reading()
        outcome: Outcome = batch if topic.chain is None else await topic.chain.run(batch, caller)

        def work(commit: BrokerCommit) -> TriggeredEvent:
            again = self.events.get(id) or self._beginning.get(id)
            if again is not None:
                return self._same(caller, again)
            if isinstance(topic, Topic):
                if topic.deleted:
                    raise UnknownTopic(f"the topic {topic.name} was deleted")
                topic.check_backlog()
            self._check_share(caller.subject)
            commit.need_room()
            # First, because it may have to read before it changes anything: is the id new to the topic?
            broker.committing.append(commit, topic, accepted(outcome), caller.subject)
            self._put(commit, event)
            self._beginning[id] = event  # the same request may come over two connections at once
            self._kept[caller.subject] += 1
            commit.on_failed.append(partial(self._drop_count, caller.subject))
            commit.on_stored.append(partial(self._beginning.pop, id, None))
            commit.on_failed.append(partial(self._beginning.pop, id, None))
            return event

        return await broker.units.writers[0].put(work)

    def _drop_count(self, subject: str) -> None:
        self._kept[subject] -= 1
        if not self._kept[subject]:
            del self._kept[subject]

    def _check_share(self, subject: str) -> None:
        """No service takes the place of all others."""
        self._broker.shares.check_own("max_events", KEPT, self._kept[subject], subject)

    def _same(self, caller: TokenBearer, known: TriggeredEvent) -> TriggeredEvent:
        if known.subject != caller.subject:
            raise NameTaken(f"another event has the id {known.id!r}", hint="leave the id out: one is made")
        return known

    def _put(self, commit: BrokerCommit, event: TriggeredEvent) -> None:
        commit.writes.append(PutDocument(KIND, event.id, _encode(event)))
        commit.on_stored.append(partial(self._stored, event))

    def _stored(self, event: TriggeredEvent) -> None:
        self.events[event.id] = event
        heappush(self._due, (event.due_at, event.id))
        self._arm()
        if event.state != "pending":
            for waiter in self._waiting.pop(event.id, ()):
                if not waiter.done():
                    waiter.set_result(None)

    # -- replying ----------------------------------------------------------------------------------

    async def reply(self, connection: Client, frame: frames.SendReply, payload: bytes) -> None:
        """Store a consumer's reply to a message that it holds, and ack the message, in one commit. The reply
        goes to whoever asked, and says who replied: the consumer has no say in either."""
        check_headers(frame.headers)
        consumer = connection.consumers.get(frame.subscription)
        runs = [(frame.offset, frame.offset + 1)]
        if consumer is None or not consumer.group.delivery.holds(frame.number, consumer.number, runs):
            raise LeaseLost("the message is no longer this consumer's to reply to")
        if len(payload) > replies.LARGEST:
            raise TooLarge(
                f"a reply of {len(payload)} bytes to a stored message, allowed are {replies.LARGEST}"
            )
        group = consumer.group
        found = await group.topic.log.read(frame.offset)
        if found is None or not found[0] <= frame.offset < found[0] + len(found[1]):
            raise LeaseLost("the message is gone")
        asked = found[1].headers(frame.offset - found[0])
        to, id = asked.get(replies.REPLY_TO), asked.get(replies.CORRELATION)
        if not isinstance(to, str) or not isinstance(id, str):
            raise BadRequest("the message wants no reply", hint="ack it")
        headers = {name: value for name, value in frame.headers.items() if not name.startswith("lb-")}
        headers |= {replies.CORRELATION: id, replies.SOURCE: connection.subject}
        if (failure := frame.failure) is not None:
            headers |= {replies.CODE: failure.code, replies.STATUS: failure.status}
            payload = failure.text.encode()
        broker = self._broker
        self._find_way(to)
        batch = Batch.decode(
            build(
                [payload],
                id=broker.new_id(),
                time=broker.clock(),
                keys=[to.encode()],
                headers=[encode_headers(headers)],
            )
        )

        def work(commit: BrokerCommit) -> None:
            commit.need_room()
            broker.transacting.ack_all(commit, connection, [(frame.subscription, frame.number, runs)])
            broker.committing.append(commit, replies.TOPIC, batch)

        await group.topic.writer.put(work)

    def _find_way(self, to: str) -> None:
        """Make the group by which replies get to another terminal, unless this one asked itself."""
        broker = self._broker
        if to in self.addresses or broker.crossing is None or not broker.crossing.reply_to(to):
            return
        topic = broker.table.topic_for(replies.TOPIC)
        if replies.group_of(to) not in topic.groups:
            broker.table.create_group(topic, group_to(to), topic.log.end)

    # -- outcomes ----------------------------------------------------------------------------------

    def _begin_reading(self) -> None:
        """Become the consumer of the topic of replies."""
        for address in self.addresses:
            if address not in self._inboxes or self._inboxes[address].closed:
                self._inboxes[address] = Inbox(self._broker, address, self._take)

    def _take(self, commit: BrokerCommit, offset: int, batch: Batch, index: int) -> None:
        """A reply is read: end its event, unless it has ended."""
        headers = batch.headers(index)
        id = headers.get(replies.CORRELATION)
        event = self.events.get(id) if isinstance(id, str) else None
        if event is None or not self._is_open(event) or batch.key(index).decode() not in self.addresses:
            self._broker.totals.late_replies += 1
            return
        payload = batch.payload(index)
        text = payload.decode(errors="replace") if replies.CODE in headers else ""
        self._end(commit, event.replied(commit.now, offset, headers, text), payload)

    def _is_open(self, event: TriggeredEvent) -> bool:
        return event.state == "pending" and event.id not in self._ending

    def _end(self, commit: BrokerCommit, event: TriggeredEvent, payload: bytes) -> None:
        """Write down that an event has ended, with what goes to its callback. Where there is no room, the
        caller has found out before."""
        self._put(commit, event)
        self._ending.add(event.id)  # a second reply in this commit is late
        commit.on_stored.append(partial(self._ending.discard, event.id))
        commit.on_failed.append(partial(self._ending.discard, event.id))
        if not event.callback:
            return
        target = event.callback.removeprefix("topic:")
        to_topic = target != event.callback
        headers: dict[str, HeaderValue] = {
            "lb-event": event.id,
            "lb-state": event.state,
            replies.SOURCE: event.source,
            "lb-topic": event.topic,
        }
        if event.state != "done":
            headers |= {replies.CODE: event.code, replies.STATUS: event.status}
            payload = event.text.encode()
        if not to_topic:
            headers["lb-url"] = event.callback
        batch = Batch.decode(
            build(
                [payload],
                id=self._broker.new_id(),
                time=commit.now,
                keys=[event.id.encode()],
                headers=[encode_headers(headers)],
            )
        )
        try:
            self._broker.committing.append(
                commit, target if to_topic else replies.CALLBACKS, batch, event.subject
            )
        except BusError as error:  # the topic is damaged, perhaps: the outcome can still be asked for
            self._broker.report(target, error)

    async def outcome(self, caller: TokenBearer, id: str, within: float) -> tuple[TriggeredEvent, bytes]:
        """An event and the payload of its reply, as soon as there is one, or after ``within`` seconds."""
        event = self._event(caller, id)
        if event.state == "pending" and within > 0:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._waiting.setdefault(id, [])
            waiters.append(waiter)
            try:
                await asyncio.wait([waiter], timeout=within)
                if waiter.done():
                    waiter.result()
            finally:
                if waiter in waiters:
                    waiters.remove(waiter)
                if not waiters and self._waiting.get(id) is waiters:
                    del self._waiting[id]
            event = self._event(caller, id)
        if event.state != "done":
            return event, b""
        found = await self._broker.table.topic_for(replies.TOPIC).log.read(event.offset)
        if found is None or not found[0] <= event.offset < found[0] + len(found[1]):
            raise UnknownEvent(f"the reply to the event {id[:60]!r} is no longer kept")
        return event, found[1].payload(event.offset - found[0])

    def _event(self, caller: TokenBearer, id: str) -> TriggeredEvent:
        event = self.events.get(id)
        if event is None or (event.subject != caller.subject and not caller.scopes.admin):
            raise UnknownEvent(f"there is no event {id[:60]!r}")
        return event

    # -- time --------------------------------------------------------------------------------------

    def _forget(self, event: TriggeredEvent) -> None:
        if self.events.pop(event.id, None) is not None:
            self._drop_count(event.subject)

    def _arm(self) -> None:
        if self._due and self._timer is None:
            span = max(0.0, (self._due[0][0] - self._broker.clock()) / SECOND)
            # The earliest may change: a look each second is cheap, and no timer has to be moved.
            self._timer = asyncio.get_running_loop().call_later(min(1.0, span), self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.time_passed()

    def time_passed(self) -> None:
        """End the events whose deadline is over, and forget those that were kept for long enough."""
        now = self._broker.clock()
        due: list[TriggeredEvent] = []
        while self._due and self._due[0][0] <= now and len(due) < DUE_AT_ONCE:
            at, id = heappop(self._due)
            event = self.events.get(id)
            if event is not None and event.due_at == at:
                due.append(event)
        if due:
            self._spawn(self._end_due(due))
        self._arm()

    async def _end_due(self, due: list[TriggeredEvent]) -> None:
        def work(commit: BrokerCommit) -> None:
            for event in due:
                if self.events.get(event.id) is not event:
                    continue
                if event.state == "pending":
                    if self._is_open(event):
                        commit.need_room()
                        self._end(commit, event.timed_out(commit.now), b"")
                else:
                    commit.writes.append(DeleteDocument(KIND, event.id))
                    commit.on_stored.append(partial(self._forget, event))

        try:
            await self._broker.units.writers[0].put(work)
        except BusError as error:  # the disk is full, perhaps: they are looked at again
            self._broker.report(replies.TOPIC, error)
            await asyncio.sleep(AGAIN_AFTER)
            for event in due:
                if self.events.get(event.id) is event:
                    heappush(self._due, (event.due_at, event.id))
        self._arm()


def group_to(address: str) -> GroupSpec:
    """The group of the replies that are for a terminal."""
    key = "".join(f"[{character}]" if character in "*?[" else character for character in address)
    name = replies.group_of(address)
    return group_spec({"topic": replies.TOPIC, "name": name, "dead_letter": "", "match": {"key": key}})


class Inbox:
    """The terminal as a consumer of its own topic of replies."""

    subject = ""
    who = "the terminal's events"
    writable = True

    def __init__(
        self, broker: Broker, address: str, take: Callable[[BrokerCommit, int, Batch, int], None]
    ) -> None:
        self._broker = broker
        self._take = take
        self.closed = False
        topic = broker.table.topic_for(replies.TOPIC)
        group = topic.groups.get(replies.group_of(address))
        if group is None:
            group = broker.table.create_group(topic, group_to(address), topic.log.first)
        self._group: Group = group
        self._consumer = Consumer(
            broker.consuming.new_consumer(), self, 0, PREFETCH, group, prefetch_bytes=PREFETCH_BYTES
        )
        #: For the commit that acks: the terminal settles as a client does.
        self.consumers = {0: self._consumer}
        group.join(self._consumer)
        asyncio.get_running_loop().call_soon(group.pump)

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        """Replies have come. They are taken in with the next commit."""
        if isinstance(frame, frames.Deliver) and not self.closed:
            self._read(frame, Batch.decode(bytes(tail[0])))

    def flush(self) -> None:
        """Nothing is held back."""

    def lose(self, consumer: Consumer, why: BusError) -> None:
        """The group or the topic was deleted, or can't be read: the status log has been told."""
        self.closed = True

    def move_on(self, why: BusError) -> None:
        """Another node reads the replies from now on."""
        self.closed = True

    def close(self) -> None:
        """Take nothing in any more."""
        self.closed = True

    def _read(self, frame: frames.Deliver, batch: Batch) -> None:
        offsets = [offset for first, end in frame.runs for offset in range(first, end)]

        def work(commit: BrokerCommit) -> None:
            commit.need_room()
            self._broker.transacting.ack_all(commit, self, [(0, frame.lease, frame.runs)])
            for index, offset in enumerate(offsets):
                self._take(commit, offset, batch, index)

        def ended(result: object) -> None:
            if isinstance(result, LeaseLost):
                return  # they come again
            if isinstance(result, BusError) and not self.closed:
                asyncio.get_running_loop().call_later(AGAIN_AFTER, self._read, frame, batch)

        self._group.topic.writer.hand_in(work, ended)

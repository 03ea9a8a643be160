"""A group in a terminal: the core's delivery, and the consumers that it hands messages to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from landbridge.core.delivery.delivery import SECOND, Condemned, Delivery, Handout
from landbridge.core.delivery.filters import filter_of, sole_key
from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.ranges import Range, count, intersect, normalise
from landbridge.core.log.store import PutDocument
from landbridge.core.log.topic import LONGEST, GroupSpec
from landbridge.errors import BadRequest, BusError, LeaseLost
from landbridge.protocol import frames

if TYPE_CHECKING:
    from landbridge.broker.broker import Broker
    from landbridge.broker.commit import Commit
    from landbridge.broker.connection import Connection
    from landbridge.broker.topic import Topic
    from landbridge.crossing.lane import Hand

KIND = "group"
CURSOR = "cursor"
#: Burials per commit, so that a flood of them doesn't hold up everybody else.
BURY_AT_ONCE = 256
#: Seconds after which what a failed commit left undone is looked at again.
AGAIN_AFTER = 1.0
#: A consumer that still holds messages gets more when this part of its prefetch is free: a quarter.
REFILL = 4
#: Seconds that free places wait for that at most.
GATHER = 0.002
#: Ranges settled out of order up to which a group that takes one key passes over the others ahead of its
#: turn. Of one that is away, or slow, they would become ever more.
PASSED_OVER = 256
VERBS = ("ack", "requeue", "bury", "extend")

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(GroupSpec).decode


class Consumer:
    """A subscription, seen from its group."""

    __slots__ = (
        "bytes",
        "connection",
        "group",
        "messages",
        "number",
        "patient",
        "prefetch",
        "prefetch_bytes",
        "subscription",
    )

    def __init__(
        self,
        number: int,
        connection: Connection | Hand,
        subscription: int,
        prefetch: int,
        group: Group,
        *,
        prefetch_bytes: int,
        patient: bool = False,
    ) -> None:
        #: Never used again in this terminal's life.
        self.number = number
        self.connection = connection
        self.subscription = subscription
        self.prefetch = prefetch
        self.prefetch_bytes = prefetch_bytes
        self.group = group
        #: Its leases don't expire: it is this terminal's own forwarder.
        self.patient = patient
        #: Of a group that settles on delivery: handed out and not credited back yet.
        self.messages = self.bytes = 0


class Group:
    def __init__(
        self, broker: Broker, topic: Topic, spec: GroupSpec, cursor: Cursor, *, durable: bool, stored: bool
    ) -> None:
        self.broker = broker
        self.topic = topic
        self.spec = spec
        self.name = spec.name
        #: False: lives with its subscriber, keeps nothing on disk, holds nothing back from retention.
        self.durable = durable
        self.stored = stored
        self.deleted = False
        #: Consumers in the order in which they get their turn.
        self.consumers: dict[int, Consumer] = {}
        #: Its messages go to another terminal, whose consumers settle them.
        self.forwarded = False
        self.at_most_once = not durable or topic.spec.delivery == "at-most-once"
        #: The only key that its filter lets through; None: there is no filter, or one that may let several.
        self.sole_key = sole_key(spec.match)
        self.delivery = Delivery(
            cursor,
            topic.log.end,
            spec.policy(at_most_once=self.at_most_once),
            group=spec.name,
            first_lease=broker.first_lease,
            filter=filter_of(spec.match),
        )
        #: Who waits for a message to be settled.
        self.watchers: list[tuple[int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._burying = False
        self._pump_soon = False
        #: The lag that the status log knows.
        self.lag_told = 0
        #: Runs while free places wait for more of them; and when it has run out, whatever is free is used.
        self._gathering: asyncio.TimerHandle | None = None
        self._crumbs = False
        topic.enter(self)

    # -- storing -----------------------------------------------------------------------------------

    def settled(self, offset: int) -> bool:
        cursor = self.catch_up().cursor
        return not any(first <= offset < end for first, end in cursor.unsettled(offset + 1))

    def tell_watchers(self) -> None:
        self.catch_up()  # which may itself tell some of them
        for watcher in list(self.watchers):
            offset, done = watcher
            if self.settled(offset) or self.deleted:
                self.watchers.remove(watcher)
                if not done.done():
                    done.set_result(None)

    def changed(self) -> None:
        """The cursor moved: the next commit writes it, at the latest one of its own very soon."""
        if self.watchers:
            self.tell_watchers()
        if self.broker.crossing is not None:
            self.broker.crossing.settled(self)
        if not self.durable:
            self.delivery.cursor.document()  # written nowhere, but it must not gather changes for ever
        elif not self.deleted:
            self.broker.changed(self)

    def save(self, commit: Commit) -> None:
        """Called for each commit while it is being formed, if the cursor changed."""
        if self.deleted:
            return
        key = f"{self.topic.log.number}/{self.name}"
        if not self.stored:
            self.topic.save(commit)
            commit.writes.append(PutDocument(KIND, key, encode(self.spec)))
            commit.after.append(partial(self._saved, self.spec))
        if self.delivery.cursor.dirty:
            slot, value = self.delivery.cursor.document()
            commit.writes.append(PutDocument(CURSOR, f"{key}/{slot:06}", value))
            commit.undo.append(self._unsaved)

    def _saved(self, spec: GroupSpec) -> None:
        self.stored = spec is self.spec  # it may have been changed while the commit was under way

    def _unsaved(self, error: BusError) -> None:
        self.delivery.cursor.rewrite()
        self._again_later()

    # -- consumers ---------------------------------------------------------------------------------

    def forward(self, forwarded: bool) -> None:
        """Its consumers are elsewhere from now on, or here. "At most once" is for them, not for the way
        there."""
        self.forwarded = forwarded
        once = not self.durable or (self.topic.spec.delivery == "at-most-once" and not forwarded)
        if once != self.at_most_once:
            self.at_most_once = once
            self.delivery.policy = self.spec.policy(at_most_once=once)

    @property
    def own_consumers(self) -> list[Consumer]:
        """Those of programs, without the forwarder."""
        return [consumer for consumer in self.consumers.values() if not consumer.patient]

    def join(self, consumer: Consumer) -> None:
        self.consumers[consumer.number] = consumer
        self.topic.listen(self)
        if consumer.patient:
            self.delivery.patient.add(consumer.number)
        self.broker.consumers_changed(self)

    def leave(self, consumer: Consumer, *, counted: bool) -> None:
        if self.consumers.pop(consumer.number, None) is None:
            return
        self.delivery.patient.discard(consumer.number)
        self.broker.consumers_changed(self)
        if not self.consumers:
            self.topic.ignore(self)
        now = self.broker.clock()
        returned = self.delivery.release(now, consumer.number, counted=counted)
        if returned:
            self.broker.status.count(
                now,
                "requeue",
                consumer.connection.subject,
                self.topic.name,
                self.name,
                "consumer_lost" if counted else "unsubscribed",
                messages=returned,
            )
            self._after_change()
            self.pump()

    # -- handing out -------------------------------------------------------------------------------

    def catch_up(self) -> Delivery:
        """The delivery, with all of the log known to it."""
        delivery, end = self.delivery, self.topic.log.end
        if delivery.end >= end:
            return delivery
        known = self.topic.key_runs
        if (
            self.sole_key is None
            or delivery.end < known.first
            or known.end < end
            or len(delivery.cursor.above) > PASSED_OVER
        ):
            delivery.grow(end)
            return delivery
        delivery.grow(end, known.of(self.sole_key, delivery.end))
        if delivery.cursor.dirty:
            self.changed()
        return delivery

    def pump(self) -> None:
        """Hand out what can be handed out now."""
        if not self.consumers or self.deleted:
            return
        delivery = self.catch_up()
        now = self.broker.clock()
        # Once more round for what those before had no room for.
        while self._hand_round(now) and delivery.pending:
            pass
        if delivery.expired:
            self.broker.status.count(
                now, "expire", "", self.topic.name, self.name, "expires_at", messages=delivery.expired
            )
            delivery.expired = 0
        if delivery.cursor.dirty:
            self.changed()
        self._arm()

    def _hand_round(self, now: int) -> bool:
        """Give every consumer its share. Is there any use in going round again?"""
        delivery = self.delivery
        # An even share, so that one consumer's prefetch doesn't leave the others idle.
        share = max(1, -(-delivery.pending // len(self.consumers)))
        handed = False
        for consumer in self._turns():
            room = min(share, self._room(consumer))
            if room <= 0:
                continue
            handouts = delivery.take(now, consumer.number, room, self.topic.log.batch_at)
            if handouts:
                handed = True
                self._deliver(now, consumer, handouts)
            if delivery.missing is not None:
                self.topic.log.load(delivery.missing, self._loaded)
                return False
            if delivery.more:
                self._again_soon()
                return False
        return handed

    def _turns(self) -> Iterable[Consumer]:
        if len(self.consumers) == 1:
            return list(self.consumers.values())
        turns = list(self.consumers.values())
        # Whoever is first now is last next time.
        first = turns[0]
        del self.consumers[first.number]
        self.consumers[first.number] = first
        return turns

    def _room(self, consumer: Consumer) -> int:
        if not consumer.connection.writable:
            return 0
        if self.at_most_once:
            messages, size = consumer.messages, consumer.bytes
        else:
            messages, size = self.delivery.held_by(consumer.number)
        room = consumer.prefetch_bytes - size
        if room <= 0:
            return 0
        # So many messages of middling size; if they turn out smaller, the next round brings more.
        log = self.topic.log
        mean = log.bytes // max(1, log.end - log.first) + 1
        free = min(consumer.prefetch - messages, room // mean + 1)
        # Not in crumbs: handing out each place as it becomes free would make batches of one, for good.
        # But not for long either: the consumer may be waiting for the last ones before it settles any.
        if messages and 0 < free < min(consumer.prefetch, messages + free) // REFILL and not self._crumbs:
            if self._gathering is None and self.delivery.pending:
                self._gathering = asyncio.get_running_loop().call_later(GATHER, self._gathered)
            return 0
        return free

    def _gathered(self) -> None:
        self._gathering = None
        self._crumbs = True
        self.pump()
        self._crumbs = False

    def _again_soon(self) -> None:
        if not self._pump_soon:
            self._pump_soon = True
            asyncio.get_running_loop().call_soon(self._pump_again)

    def _pump_again(self) -> None:
        self._pump_soon = False
        self.pump()

    def _loaded(self, error: BusError | None) -> None:
        if self.deleted:
            return
        if error is None:
            self.pump()
            return
        # A batch that can't be read stops the group rather than being skipped: nothing is lost in silence.
        now = self.broker.clock()
        self.broker.status.note(
            now, "error", topic=self.topic.name, group=self.name, cause=error.code, detail=str(error)
        )
        for consumer in list(self.consumers.values()):
            consumer.connection.lose(consumer, error)

    def _deliver(self, now: int, consumer: Consumer, handouts: list[Handout]) -> None:
        messages = size = 0
        sends: list[tuple[frames.Deliver, bytes | memoryview]] = []
        for handout in handouts:
            data = handout.batch.encode()
            messages += len(handout.batch)
            size += len(data)
            sends.append(
                (
                    frames.Deliver(
                        consumer.subscription,
                        handout.lease,
                        handout.ranges,
                        handout.newest_first,
                        handout.attempts,
                    ),
                    data,
                )
            )
        self.broker.delivered(now, self, consumer, messages, size, handouts)

        def send() -> None:
            for frame, data in sends:
                consumer.connection.send(frame, data)
            consumer.connection.flush()

        if not self.at_most_once:
            send()
            return
        consumer.messages += messages
        consumer.bytes += size
        if not self.durable:
            send()
            return

        # Settle first, then send: if we die in between, the message is lost to the consumer, which is what
        # "at most once" means; the other order could deliver it twice.
        def settle(commit: Commit) -> None:
            self.save(commit)
            commit.after.append(send)

        def undo(error: BusError) -> None:
            consumer.messages -= messages
            consumer.bytes -= size
            self.unsettle(normalise(run for handout in handouts for run in handout.ranges))

        self.broker.committer.put(settle, undo)

    # -- settling ----------------------------------------------------------------------------------

    def settle(
        self,
        consumer: Consumer,
        settlements: list[frames.Settlement],
        done: Callable[[], None] | None,
        refuse: Callable[[BusError], None],
    ) -> None:
        """Ack, requeue, bury, extend. ``done`` is called when it is on disk; None: nobody waits for that, and
        it is written along with whatever comes next."""
        for s in settlements:
            if s.verb not in VERBS:
                refuse(BadRequest(f"no settlement {s.verb[:60]!r}", hint=", ".join(VERBS)))
                return
            if s.after is not None and not 0 <= s.after <= LONGEST:
                refuse(BadRequest(f"requeue after {s.after} seconds"))
                return
        now = self.broker.clock()
        delivery = self.delivery
        asked = accepted = 0
        acked: list[Range] = []
        for s in settlements:
            runs: list[Range] = s.runs
            published = delivery.published(s.lease)  # asked first: its last settle ends the lease
            if s.verb == "ack":
                held = delivery.ack(now, s.lease, consumer.number, runs)
                acked += held
            elif s.verb == "requeue":
                held = delivery.requeue(now, s.lease, consumer.number, runs, s.after)
            elif s.verb == "bury":
                held = delivery.bury(now, s.lease, consumer.number, runs, s.cause or "buried")
            elif delivery.extend(now, s.lease, consumer.number):
                held = intersect(delivery.leases[s.lease].remaining, normalise(runs))
            else:
                held = []
            took = count(held)
            asked += count(normalise(runs))
            accepted += took
            if took:
                self.broker.settled(now, self, consumer, s.verb, s.cause, took, held, published)
        if accepted < asked and not self.at_most_once:
            lost = LeaseLost(
                f"{asked - accepted} of {asked} messages are no longer this consumer's to settle"
            )
            self.broker.status.note(
                now,
                "refuse",
                who=consumer.connection.subject,
                topic=self.topic.name,
                group=self.name,
                cause=lost.code,
                messages=asked - accepted,
            )
            refuse(lost)
        elif done is not None:
            self._settled_on_disk(acked, done, refuse)
        self._after_change()
        self.pump()

    def _settled_on_disk(
        self, acked: list[Range], done: Callable[[], None], refuse: Callable[[BusError], None]
    ) -> None:
        if not self.durable:
            done()
            return

        def work(commit: Commit) -> None:
            self.save(commit)
            commit.after.append(done)

        def undo(error: BusError) -> None:
            self.unsettle(normalise(acked))
            refuse(error)

        self.broker.committer.put(work, undo)

    def unsettle(self, runs: list[Range]) -> None:
        """The commit that was to settle these failed: they are to be delivered again, but not at once, or a
        full disk would send them to and fro all the time."""
        self.delivery.unsettle(runs)
        self._again_later()

    def _again_later(self) -> None:
        asyncio.get_running_loop().call_later(AGAIN_AFTER, self._ring)

    def credit(self, consumer: Consumer, messages: int, size: int) -> None:
        consumer.messages = max(0, consumer.messages - messages)
        consumer.bytes = max(0, consumer.bytes - size)
        self.pump()

    def seek(self, floor: int) -> None:
        self.catch_up().seek(floor)
        self.changed()
        self.pump()

    def change(self, spec: GroupSpec) -> None:
        """Other options, from now on."""
        delivery = self.catch_up()
        self.topic.quit(self)
        self.spec = spec
        self.sole_key = sole_key(spec.match)
        self.topic.enter(self)
        self.stored = False
        delivery.change(spec.policy(at_most_once=self.at_most_once), filter_of(spec.match))
        self.changed()
        self._after_change()
        self.pump()

    # -- time and burials --------------------------------------------------------------------------

    def _after_change(self) -> None:
        if self.delivery.cursor.dirty:
            self.changed()
        if self.delivery.condemned:
            self.bury()
        self._arm()

    def _arm(self) -> None:
        """One timer for the next lease that may end or message that comes due."""
        deadline = self.delivery.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        span = max(0.0, (deadline - self.broker.clock()) / SECOND)
        self._timer = asyncio.get_running_loop().call_later(span, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self.deleted:
            return
        now = self.broker.clock()
        returned = self.delivery.advance(now)
        if returned:
            self.broker.status.count(
                now, "requeue", "", self.topic.name, self.name, "ack_within", messages=returned
            )
        self._after_change()
        self.pump()

    def shift(self, delta: int) -> None:
        self.delivery.shift(delta)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._ring()

    def close(self) -> None:
        self.deleted = True
        self.topic.quit(self)
        self.tell_watchers()
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()

    def bury(self) -> None:
        """Copy the condemned to the dead-letter topic and settle them, in one commit."""
        if self._burying or not self.delivery.condemned:
            return
        self._burying = True
        self._bury_more(None)

    def _bury_more(self, error: BusError | None) -> None:
        condemned = self.delivery.condemned
        ready: list[tuple[int, Condemned, Batch, int]] = []
        log = self.topic.log
        for offset, why in list(condemned.items())[:BURY_AT_ONCE]:
            found = log.batch_at(offset)
            if found is None:
                if error is None and not ready:
                    log.load(offset, self._bury_more)
                    return
                break
            ready.append((offset, why, found[1], offset - found[0]))
        if error is not None or not ready:
            self._burying = False
            return

        def work(commit: Commit) -> None:
            if self.deleted:
                return
            still = [item for item in ready if item[0] in condemned]
            self._copy_to_dead_topic(commit, still)
            self.delivery.buried(item[0] for item in still)
            self.save(commit)

            def undo(error: BusError) -> None:
                self.delivery.unbury({offset: why for offset, why, _, _ in still})

            commit.undo.append(undo)
            commit.after.append(self._buried)

        self.broker.committer.put(work, self._not_buried)

    def _copy_to_dead_topic(self, commit: Commit, items: list[tuple[int, Condemned, Batch, int]]) -> None:
        for offset, why, batch, index in items:
            self.broker.status.note(
                commit.now,
                "bury",
                topic=self.topic.name,
                group=self.name,
                messages=1,
                cause=why.cause,
                offsets=[(offset, offset + 1)],
            )
            if not self.spec.dead_topic or (
                self.spec.dead_letter is None and self.topic.name.endswith(".dead")
            ):
                continue  # a dead letter that dies again is only settled: no chain of .dead.dead
            dead = self.broker.topic_for(self.spec.dead_topic, create=True)
            dead.save(commit)
            headers = {
                **batch.headers(index),
                "lb-topic": self.topic.name,
                "lb-group": self.name,
                "lb-offset": offset,
                "lb-cause": why.cause,
                "lb-attempts": why.attempts,
            }
            letter = build(
                [batch.payload(index)],
                id=self.broker.new_id(),
                time=commit.now,
                keys=[batch.key(index)],
                headers=[encode_headers(headers)],
                ids=[batch.id_of(index).encode()],
                priorities=[(batch.priorities() or bytes(index + 1))[index]],
            )
            commit.append(dead, Batch.decode(letter))

    def _buried(self) -> None:
        self._burying = False
        self.bury()

    def _not_buried(self, error: BusError) -> None:
        self._burying = False
        self._again_later()

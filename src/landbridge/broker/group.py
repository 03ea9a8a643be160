"""A group in a terminal: the core's delivery, and the consumers that it hands messages to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterable
from functools import partial
from itertools import islice
from typing import Protocol, TypeAlias

import msgspec

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.log import Log, LogReader
from landbridge.core.delivery.delivery import Condemned, Delivery, Handout
from landbridge.core.delivery.filters import filter_of, sole_key
from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.keyruns import KeyRuns
from landbridge.core.log.ranges import Range, clip, count, normalise
from landbridge.core.log.store import DeleteDocument, PutDocument, Write
from landbridge.core.pauses import PauseNote
from landbridge.core.schedule.hours import OpeningHours
from landbridge.core.shipping.confirmed import Confirmed
from landbridge.core.status import StatusLog
from landbridge.core.time import SECOND
from landbridge.core.topic import LONGEST, GroupSpec, TopicSpec
from landbridge.errors import BadRequest, BusError, LeaseLost, StoreFailed
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.stores.writer import Commit, Writer

#: What a dead letter says of its burial: where the message was, why it was buried, after how many attempts.
LETTER_HEADERS = frozenset({"lb-topic", "lb-group", "lb-offset", "lb-cause", "lb-attempts"})
KIND = "group"
CURSOR = "cursor"
CONFIRMED = "confirmed"
#: The kind of the documents of pauses.
PAUSE = "pause"
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
#: Seconds after which a closed group looks at the clock again at the latest: somebody may have set it.
LOOK_EVERY = 3600.0
#: Frames that a group hands out in one turn of the loop; the others have their turn then.
HAND_OUT_AT_ONCE = 256
#: Runs that are settled in one turn of the loop. Messages that are given back count one by one.
SETTLE_AT_ONCE = 512
VERBS = ("ack", "requeue", "bury", "extend")
#: Writes an entry of the audit log in a commit.
Enter: TypeAlias = Callable[[Commit], None]

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(GroupSpec).decode


def _hours_of(spec: GroupSpec) -> OpeningHours | None:
    return OpeningHours(spec.hours) if spec.hours else None


class Outlet(Protocol):
    """The way to a consumer: a client's connection, or the part that forwards to another terminal."""

    @property
    def subject(self) -> str: ...

    @property
    def who(self) -> str: ...

    @property
    def writable(self) -> bool:
        """Does it take more at the moment?"""

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None: ...
    def flush(self) -> None: ...
    def lose(self, consumer: Consumer, why: BusError) -> None:
        """The consumer is no longer one of its group."""

    def move_on(self, why: BusError) -> None:
        """The group is at another node from now on: the consumer has to come to it there."""


class Home(Protocol):
    """The topic of a group, as far as the group needs it."""

    name: str
    spec: TopicSpec
    log: Log
    writer: Writer[BrokerCommit]
    key_runs: KeyRuns
    deleted: bool
    pause: PauseNote | None
    created_at: int  #: microseconds since 1970
    groups: dict[str, Group]

    def save(self, commit: Commit) -> None: ...
    def reader_for(self, group: str | None) -> LogReader: ...
    def enter(self, group: Group) -> None: ...
    def quit(self, group: Group) -> None: ...
    def listen(self, group: Group) -> None: ...
    def ignore(self, group: Group) -> None: ...


class Hub(Protocol):
    """What a group asks of the broker."""

    clock: Callable[[], int]
    status: StatusLog

    def first_lease(self, topic: Home) -> int:
        """Where the lease numbers of a topic's group begin."""

    def new_id(self) -> bytes: ...
    def moved(self, group: Group) -> None:
        """The group's cursor moved: it goes into the next commit."""

    def consumers_changed(self, group: Group) -> None: ...
    def delivered(
        self, now: int, group: Group, consumer: Consumer, messages: int, size: int, handouts: list[Handout]
    ) -> None: ...
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
    ) -> None: ...
    def append(self, commit: BrokerCommit, topic: str, batch: Batch) -> object:
        """Append a batch to any topic, made where there is none, within a commit of another one."""


class Consumer:
    """A subscription, seen from its group."""

    __slots__ = (
        "bytes",
        "connection",
        "group",
        "hears_pauses",
        "messages",
        "number",
        "patient",
        "pause",
        "prefetch",
        "prefetch_bytes",
        "pulls",
        "subscription",
    )

    def __init__(
        self,
        number: int,
        connection: Outlet,
        subscription: int,
        prefetch: int,
        group: Group,
        *,
        prefetch_bytes: int,
        patient: bool = False,
        by_pull: bool = False,
        hears_pauses: bool = False,
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
        #: Why it gets nothing: its group, its topic or its service is paused, as far as it has been told.
        self.pause: PauseNote | None = None
        #: Its client takes frames that tell of pauses.
        self.hears_pauses = hears_pauses
        #: Messages that it still asks for; None: as many as its prefetch allows.
        self.pulls: int | None = 0 if by_pull else None
        #: Of a group that settles on delivery: handed out and not credited back yet.
        self.messages = self.bytes = 0


class Group:
    def __init__(
        self, broker: Hub, topic: Home, spec: GroupSpec, cursor: Cursor, *, durable: bool, stored: bool
    ) -> None:
        self.broker = broker
        self.topic = topic
        self.spec = spec
        self.name = spec.name
        #: False: lives with its subscriber, keeps nothing on disk, holds nothing back from retention.
        self.durable = durable
        self.stored = stored
        #: Called once when the group is on disk for the first time.
        self.on_made: Callable[[], None] | None = None
        self.deleted = False
        #: Entries of the audit log that tell of changes which the next commit writes, and that commit.
        self._entries: list[Enter] = []
        self._entered_in: Commit | None = None
        #: Since when it hands nothing out because an operator has paused it; None: it is not paused.
        self.pause: PauseNote | None = None
        #: Why it hands nothing out: what is stored of it was damaged. A seek says where to go on.
        self.damaged: BusError | None = None
        #: Consumers in the order in which they get their turn.
        self.consumers: dict[int, Consumer] = {}
        #: Its messages go to another terminal, whose consumers settle them.
        self.forwarded = False
        #: What of its messages has arrived at other terminals.
        self.confirmed = Confirmed()
        self.at_most_once = not durable or topic.spec.delivery == "at-most-once"
        #: The only key that its filter lets through; None: there is no filter, or one that may let several.
        self.sole_key = sole_key(spec.match)
        #: When it hands out messages; None: always.
        self._hours = _hours_of(spec)
        #: Wakes it when it may open.
        self._opening: asyncio.TimerHandle | None = None
        self.delivery = Delivery(
            cursor,
            topic.log.end,
            spec.policy(at_most_once=self.at_most_once),
            group=spec.name,
            first_lease=broker.first_lease(topic),
            filter=filter_of(spec.match),
        )
        #: Who waits for a message to be settled, and its offset.
        self.watchers: dict[asyncio.Future[None], int] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        #: Copies condemned messages to the dead-letter topic.
        self._burying: asyncio.Task[None] | None = None
        self._pump_soon = False
        #: Reads what is handed out next.
        self._load: asyncio.Task[None] | None = None
        #: Frames handed out in this turn of the loop.
        self._handed = 0
        #: The lag that the status log knows.
        self.lag_told = 0
        #: Runs while free places wait for more of them; and when it has run out, whatever is free is used.
        self._gathering: asyncio.TimerHandle | None = None
        self._crumbs = False
        topic.enter(self)

    # -- storing -----------------------------------------------------------------------------------

    def settled(self, offset: int) -> bool:
        return self.catch_up().cursor.is_settled(offset)

    def tell_watchers(self) -> None:
        self.catch_up()  # which may itself tell some of them
        for done, offset in list(self.watchers.items()):
            if self.delivery.cursor.is_settled(offset) or self.deleted:
                self.watchers.pop(done, None)
                if not done.done():
                    done.set_result(None)

    def end_watchers(self, why: BusError) -> None:
        """Nobody here will know any more when messages are settled."""
        watchers, self.watchers = self.watchers, {}
        for done in watchers:
            if not done.done():
                done.set_exception(why)

    def changed(self) -> None:
        """The cursor moved: the next commit writes it, at the latest one of its own very soon."""
        if self.watchers:
            self.tell_watchers()
        if not self.durable:
            self.delivery.cursor.document()  # written nowhere, but it must not gather changes for ever
        self.broker.moved(self)

    def save(self, commit: Commit) -> None:
        """Called for each commit while it is being formed, if the cursor changed."""
        if self.deleted or self.topic.deleted:
            return
        key = f"{self.topic.log.number}/{self.name}"
        if not self.stored:
            self.topic.save(commit)
            commit.writes.append(PutDocument(KIND, key, encode(self.spec)))
            commit.on_stored.append(partial(self._saved, self.spec))
        if self.delivery.cursor.dirty:
            slot, value = self.delivery.cursor.document()
            commit.writes.append(PutDocument(CURSOR, f"{key}/{slot:06}", value))
            commit.on_failed.append(self._unsaved)
        if self.confirmed.dirty:
            commit.writes.append(PutDocument(CONFIRMED, key, self.confirmed.document(self.topic.log.first)))
            commit.on_failed.append(self._unsaved_confirmed)
        if self._entries and self._entered_in is not commit:
            self._entered_in = commit
            for enter in self._entries:
                enter(commit)
            commit.on_stored.append(partial(self._entered, len(self._entries)))

    def owe_entry(self, enter: Enter) -> None:
        """The options or the cursor are changed: the commit that writes this down has an entry of the audit
        log as well. Call it in the same turn of the loop as what changes them."""
        if self.durable:
            self._entries.append(enter)

    def _entered(self, entries: int) -> None:
        del self._entries[:entries]
        self._entered_in = None

    def documents_to_delete(self) -> list[Write]:
        """Removes what is stored of the group."""
        key = f"{self.topic.log.number}/{self.name}"
        slots = range(self.delivery.cursor.slots)
        cursor = [DeleteDocument(CURSOR, f"{key}/{slot:06}") for slot in slots]
        pause = [] if self.pause is None else [DeleteDocument(PAUSE, self.pause_key)]
        return [DeleteDocument(KIND, key), DeleteDocument(CONFIRMED, key), *cursor, *pause]

    def _saved(self, spec: GroupSpec) -> None:
        self.stored = spec is self.spec  # it may have been changed while the commit was under way
        if self.on_made is not None:
            self.on_made()
            self.on_made = None

    def _unsaved_confirmed(self) -> None:
        self.confirmed.dirty = True

    def _unsaved(self) -> None:
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
    def pause_key(self) -> str:
        """The key of the document of its pause."""
        return f"group/{self.topic.log.number}/{self.name}"

    @property
    def pause_note(self) -> PauseNote | None:
        """Why it hands nothing out: its own pause, or one of its topic that includes delivery."""
        if self.pause is None and self.topic.pause is not None and self.topic.pause.delivery:
            return self.topic.pause
        return self.pause

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
        self._release(consumer, counted=counted)

    def _release(self, consumer: Consumer, *, counted: bool) -> None:
        """Take back what a consumer held that is gone, over several turns of the loop where it is much."""
        if self.deleted:
            return
        now = self.broker.clock()
        returned = self.delivery.release(now, consumer.number, counted=counted)
        if self.delivery.held_by(consumer.number)[0]:
            asyncio.get_running_loop().call_soon(partial(self._release, consumer, counted=False))
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

    def closed_until(self) -> int | None:
        """When its opening hours begin again; None while it is open."""
        if self._hours is None:
            return None
        now = self.broker.clock()
        return None if self._hours.is_open(now) else self._hours.next_change(now)

    def _await_opening(self, opens_at: int) -> None:
        if self._opening is not None:
            self._opening.cancel()
        span = min(LOOK_EVERY, max(0.0, (opens_at - self.broker.clock()) / SECOND))
        self._opening = asyncio.get_running_loop().call_later(span, self.pump)

    def pump(self) -> None:
        """Hand out what can be handed out now."""
        if not self.consumers or self.deleted or self.damaged is not None or self.pause_note is not None:
            return
        if self._hours is not None and (opens_at := self.closed_until()) is not None:
            self._await_opening(opens_at)
            return
        delivery = self.catch_up()
        now = self.broker.clock()
        self._handed = 0
        # Once more round for what those before had no room for.
        while not delivery.is_idle and self._hand_round(now):
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
        delivery, reader = self.delivery, self.topic.reader_for(self.name)
        # An even share, so that one consumer's prefetch doesn't leave the others idle.
        share = max(1, -(-delivery.pending // len(self.consumers)))
        handed = False
        for consumer in self._turns():
            room = min(share, self._room(consumer))
            if room <= 0:
                continue
            handouts = delivery.take(now, consumer.number, room, reader.batch_at)
            if handouts:
                handed = True
                self._deliver(now, consumer, handouts)
            if delivery.missing is not None:
                load = reader.load(delivery.missing)
                if load is not self._load:
                    self._load = load
                    load.add_done_callback(self._loaded)
                return False
            self._handed += len(handouts)
            if delivery.more or self._handed >= HAND_OUT_AT_ONCE:
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
        if not consumer.connection.writable or consumer.pulls == 0 or consumer.pause is not None:
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
        reader = self.topic.reader_for(self.name)
        mean = max(log.bytes // max(1, log.end - log.first), log.mean_size, reader.mean_size) + 1
        free = min(consumer.prefetch - messages, room // mean + 1)
        if consumer.pulls is not None:
            return min(free, consumer.pulls)
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

    def _loaded(self, load: asyncio.Task[None]) -> None:
        if load is self._load:
            self._load = None
        if self.deleted or load.cancelled():
            return
        error = load.exception()
        if error is None:
            self.pump()
            return
        if not isinstance(error, BusError):
            error = StoreFailed(f"the store broke: {error!r}")
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

        def send() -> None:
            for frame, data in sends:
                consumer.connection.send(frame, data)
            consumer.connection.flush()

        if consumer.pulls is not None:
            consumer.pulls = max(0, consumer.pulls - messages)
        if not self.at_most_once:
            send()
        self.broker.delivered(now, self, consumer, messages, size, handouts)
        if not self.at_most_once:
            return
        consumer.messages += messages
        consumer.bytes += size
        if not self.durable:
            send()
            return

        # Settle first, then send: if we die in between, the message is lost to the consumer, which is what
        # "at most once" means; the other order could deliver it twice.
        def settle(commit: BrokerCommit) -> None:
            self.save(commit)
            commit.on_stored.append(send)

        def on_settled(done: asyncio.Future[None]) -> None:
            if done.exception() is not None:
                consumer.messages -= messages
                consumer.bytes -= size
                self.unsettle(normalise(run for handout in handouts for run in handout.ranges))

        self.topic.writer.put(settle).add_done_callback(on_settled)

    # -- settling ----------------------------------------------------------------------------------

    def settle(
        self, consumer: Consumer, settlements: list[frames.Settlement], *, durably: bool
    ) -> asyncio.Future[None] | None:
        """Ack, requeue, bury, extend. ``durably``: returns a future that is done when it is on disk.
        Otherwise nobody waits for that, and it is written along with whatever comes next. LeaseLost where
        some of the messages are no longer the consumer's; the others are settled all the same."""
        settling = self.settle_in_turns(consumer, settlements, durably=durably)
        while True:
            try:
                next(settling)
            except StopIteration as end:
                done: asyncio.Future[None] | None = end.value
                return done

    def settle_in_turns(
        self, consumer: Consumer, settlements: list[frames.Settlement], *, durably: bool
    ) -> Generator[None, None, asyncio.Future[None] | None]:
        """The same for one who may ask for much: stops where others should have a turn of the loop."""
        for s in settlements:
            if s.verb not in VERBS:
                raise BadRequest(f"no settlement {s.verb[:60]!r}", hint=", ".join(VERBS))
            if s.after is not None and not 0 <= s.after <= LONGEST:
                raise BadRequest(f"requeue after {s.after} seconds")
        asked = accepted = work = 0
        acked: list[Range] = []
        for s in settlements:
            for at in range(0, len(s.runs), SETTLE_AT_ONCE):
                runs = normalise(s.runs[at : at + SETTLE_AT_ONCE])
                asked += count(runs)
                for part in self._parts(s, consumer, runs):
                    held = self._settle(consumer, s, part)
                    accepted += count(held)
                    if s.verb == "ack":
                        acked += held
                    work += 1 + (len(part) if s.verb in ("ack", "extend") else count(held))
                    if work >= SETTLE_AT_ONCE:
                        work = 0
                        yield
        lost: LeaseLost | None = None
        done: asyncio.Future[None] | None = None
        if accepted < asked and not self.at_most_once:
            lost = LeaseLost(
                f"{asked - accepted} of {asked} messages are no longer this consumer's to settle"
            )
            self.broker.status.note(
                self.broker.clock(),
                "refuse",
                who=consumer.connection.subject,
                topic=self.topic.name,
                group=self.name,
                cause=lost.code,
                messages=asked - accepted,
            )
        elif durably:
            done = self._settle_on_disk(acked)
        self._after_change()
        self.pump()
        if lost is not None:
            raise lost
        return done

    def _parts(self, s: frames.Settlement, consumer: Consumer, runs: list[Range]) -> Iterable[list[Range]]:
        """What is settled at once of these runs. What is given back is work for each message."""
        if s.verb in ("ack", "extend"):
            return (runs,)
        held = self.delivery.held(s.lease, consumer.number, runs)
        return (
            [(at, min(at + SETTLE_AT_ONCE, end))]
            for first, end in held
            for at in range(first, end, SETTLE_AT_ONCE)
        )

    def _settle(self, consumer: Consumer, s: frames.Settlement, runs: list[Range]) -> list[Range]:
        """Returns what the consumer held of these runs."""
        now, delivery = self.broker.clock(), self.delivery
        published = delivery.published(s.lease)  # asked first: its last settle ends the lease
        if s.verb == "ack":
            held = delivery.ack(now, s.lease, consumer.number, runs)
        elif s.verb == "requeue":
            held = delivery.requeue(now, s.lease, consumer.number, runs, s.after)
        elif s.verb == "bury":
            held = delivery.bury(now, s.lease, consumer.number, runs, s.cause or "buried")
        elif delivery.extend(now, s.lease, consumer.number):
            held = delivery.held(s.lease, consumer.number, runs)
        else:
            held = []
        if held:
            self.broker.settled(now, self, consumer, s.verb, s.cause, count(held), held, published)
        return held

    def _settle_on_disk(self, acked: list[Range]) -> asyncio.Future[None] | None:
        if not self.durable:
            return None

        def work(commit: BrokerCommit) -> None:
            self.save(commit)
            commit.on_given_up.append(partial(self.unsettle, normalise(acked)))

        return self.topic.writer.put(work)

    def unsettle(self, runs: list[Range]) -> None:
        """The commit that was to settle these failed: they are to be delivered again, but not at once, or a
        full disk would send them to and fro all the time."""
        self.delivery.unsettle(runs)
        self._again_later()

    def deliver_again(self, runs: list[Range]) -> int:
        """Deliver messages again that were settled. Returns how many are still here."""
        delivery = self.catch_up()
        before = delivery.cursor.lag(delivery.end)
        delivery.unsettle(clip(runs, self.topic.log.first, self.topic.log.end))
        self.changed()
        self.pump()
        return delivery.cursor.lag(delivery.end) - before

    def put_back(self, runs: list[Range]) -> None:
        """Like ``unsettle``, for what was only set aside."""
        self.delivery.put_back(runs)
        self._again_later()

    def _again_later(self) -> None:
        asyncio.get_running_loop().call_later(AGAIN_AFTER, self._ring)

    def credit(self, consumer: Consumer, messages: int, size: int) -> None:
        consumer.messages = max(0, consumer.messages - messages)
        consumer.bytes = max(0, consumer.bytes - size)
        self.pump()

    def pull(self, consumer: Consumer, messages: int) -> None:
        """The consumer asks for so many messages, instead of what it had asked for before."""
        if consumer.pulls is not None:
            consumer.pulls = messages
            self.pump()

    def seek(self, floor: int) -> None:
        self.damaged = None
        self.catch_up().seek(floor)
        self.changed()
        self.pump()

    def replay(self, first: int, end: int) -> int:
        """Deliver again what is settled of these offsets. Returns how many messages they are."""
        again = self.catch_up().replay(max(first, self.topic.log.first), end)
        self.changed()
        self.pump()
        return again

    def change(self, spec: GroupSpec) -> None:
        """Other options, from now on."""
        delivery = self.catch_up()
        self.topic.quit(self)
        self.spec = spec
        self.sole_key = sole_key(spec.match)
        self._hours = _hours_of(spec)
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
        for timer in (self._timer, self._gathering, self._opening):
            if timer is not None:
                timer.cancel()

    def bury(self) -> None:
        """Copy the condemned to the dead-letter topic and settle them, in one commit."""
        if self._burying is None and self.delivery.condemned:
            self._burying = asyncio.get_running_loop().create_task(self._bury_all())

    async def _bury_all(self) -> None:
        try:
            while self.delivery.condemned and not self.deleted:
                dead = await self._read_condemned()
                if not dead:
                    break
                await self.topic.writer.put(partial(self._bury, dead))
        except BusError:  # the store refuses, or a batch is damaged: told where it happened
            self._again_later()
        finally:
            self._burying = None

    async def _read_condemned(self) -> list[tuple[int, Condemned, Batch, int]]:
        """Some of the condemned, each with its batch and its place in it."""
        found: list[tuple[int, Condemned, Batch, int]] = []
        for offset, why in list(islice(self.delivery.condemned.items(), BURY_AT_ONCE)):
            # As its consumers had it: what is taken away before delivery is in no dead letter.
            batch = await self.topic.reader_for(self.name).read(offset)
            if batch is not None and batch[0] <= offset:
                found.append((offset, why, batch[1], offset - batch[0]))
        return found

    def _bury(self, dead: list[tuple[int, Condemned, Batch, int]], commit: BrokerCommit) -> None:
        if self.deleted:
            return
        still = [item for item in dead if item[0] in self.delivery.condemned]
        if self._has_dead_topic:
            commit.need_room()  # where there is none, the condemned stay where they are
        self.copy_to_dead_topic(commit, still)
        self.delivery.buried(item[0] for item in still)
        self.save(commit)
        commit.on_failed.append(lambda: self.delivery.unbury({offset: why for offset, why, _, _ in still}))

    @property
    def _has_dead_topic(self) -> bool:
        # A dead letter that dies again is only settled: no chain of .dead.dead
        is_letter = self.spec.dead_letter is None and self.topic.name.endswith(".dead")
        return bool(self.spec.dead_topic) and not is_letter

    def copy_to_dead_topic(
        self, commit: BrokerCommit, items: list[tuple[int, Condemned, Batch, int]]
    ) -> None:
        """Write dead letters in a commit, and tell of them. ``items``: of each the offset, the cause, and the
        batch with the place in it."""
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
            if not self._has_dead_topic:
                continue
            headers = {
                **batch.headers(index),
                "lb-topic": self.topic.name,
                "lb-group": self.name,
                "lb-offset": offset,
                "lb-cause": why.cause,
                "lb-attempts": why.attempts,
            }
            data = build(
                [batch.payload(index)],
                id=self.broker.new_id(),
                time=commit.now,
                keys=[batch.key(index)],
                headers=[encode_headers(headers)],
                ids=[batch.id_of(index).encode()],
                priorities=[(batch.priorities() or bytes(index + 1))[index]],
            )
            letter = Batch.decode(data)
            letter.is_letter = True
            self.broker.append(commit, self.spec.dead_topic, letter)

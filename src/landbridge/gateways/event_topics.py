"""Events through topics, so that they survive, cross LANs and can be read by everybody with a scope.

    source ─► TOPIC ─► group "dispatch" ─► TOPIC.notifications ─► group "client.ID" ─► client
                        sequence, exchange
                            │ ▲
                            ▼ │ after a restart
                       TOPIC.journal

The dispatcher takes lines from TOPIC, and in one transaction publishes the notifications (keyed by client, a
batch for each, which the groups of the others pass over), writes a journal entry and acks the lines. So what
has been dispatched, how far the sequence is, who follows whom and which lines are on hold can't disagree,
whoever is killed when. The journal is a queue, and a queue has one producer: a second dispatcher is refused,
and one that was cut off can't write any more once another has taken over.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from glob import escape

import msgspec
import structlog

from landbridge.client.bus import MOST_PREFETCH, Bus
from landbridge.client.message import DeliveredBatch
from landbridge.client.publisher import Rows
from landbridge.client.subscription import Subscription
from landbridge.client.transaction import Transaction
from landbridge.core.events.exchange import Exchange
from landbridge.core.events.parser import LONGEST_ID, LONGEST_LINE, Parsed, number_alone, number_of, parse
from landbridge.core.events.sequencer import SECOND, Sequencer
from landbridge.errors import (
    BadRequest,
    BusError,
    LeaseLost,
    QueueTaken,
    SequenceGap,
    TimedOut,
    UnknownTopic,
)
from landbridge.gateways.events import Client, EventGateway, Source

log = structlog.get_logger("landbridge.events")

GROUP = "dispatch"
#: All lines of a sequence have the same key: whatever keeps messages of one key together keeps them together.
SOURCE_KEY = b"source"
#: Lines taken from the topic and not yet dispatched.
PREFETCH = 8192
#: Bytes of notifications in one transaction: a client that gets many at once is served with little work, and
#: everybody else on the loop waits some ten milliseconds for it. Parts in which they are found, at least.
AT_ONCE, STEPS = 1 << 20, 8
#: Bytes of a notification: the most, and what comes to line and key (two ends).
LARGEST, EXTRA = LONGEST_LINE + LONGEST_ID + 8, 8
#: Lines, or pairs of who follows whom, in one entry of the journal.
PER_ENTRY = 4096
#: Bytes of journal entries after which it is written anew. Far below the prefetch_bytes of a terminal: it is
#: read without being acked, so all of it has to fit.
REWRITE_AT = 4 << 20
#: Lines from sources that may wait to be published before the sources aren't read.
WAITING = 20_000
#: Seconds: between two looks for new clients' groups; before another try; for reading the journal.
LOOK_EVERY, AGAIN_AFTER, READ_WITHIN = 5.0, 0.5, 60.0
#: Of groups that must never bury: a lost connection counts as an attempt of whatever was in hand.
NEVER = 1_000_000_000

_WORD = re.compile(rb"[A-Za-z0-9_-]+")


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the journal. They are applied in order; applying a run of them twice changes nothing."""

    #: The number that is dispatched next; 0: says nothing of it.
    next: int = 0
    #: F and U lines that were dispatched, in order.
    follows: list[bytes] = []
    #: Lines that came and have to wait.
    held: list[bytes] = []
    #: Client → all whom it follows, instead of what was known of it.
    following: dict[bytes, list[bytes]] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


def group_of(client: bytes) -> str:
    """The name of a client's group. An id that is no word of a name is spelled in hex, with one word more."""
    if _WORD.fullmatch(client):
        return f"client.{client.decode()}"
    return f"client.hex.{client.hex()}"


def client_of(group: str) -> bytes | None:
    """The client of a group; None for a group that is nobody's."""
    words = group.split(".")
    if words[0] != "client":
        return None
    if len(words) == 3 and words[1] == "hex":
        try:
            return bytes.fromhex(words[2])
        except ValueError:
            return None
    return words[1].encode() if len(words) == 2 else None


class TopicDispatch:
    def __init__(self, gateway: EventGateway, bus: Bus, topic: str) -> None:
        if gateway.options.on_gap == "refuse" or gateway.options.restart:
            raise BadRequest(
                "lines that are stored can't be refused, and a stored sequence can't begin anew",
                hint="with a topic: on_gap='skip', and no restart",
            )
        self._gateway = gateway
        self._bus = bus
        self.topic, self.notifications, self.journal = topic, f"{topic}.notifications", f"{topic}.journal"
        self.sequencer = self._new_sequencer()
        self.exchange = Exchange()
        #: Clients that have a group: they are told, also while they aren't connected.
        self._known: set[bytes] = set()
        self._looked_at = 0.0
        #: Bytes of entries since the journal was written anew.
        self._journaled = 0
        self._waiting: list[bytes] = []
        self._arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: The task that serves a client, by id.
        self._serving: dict[bytes, asyncio.Task[None]] = {}

    @property
    def held(self) -> int:
        return len(self.sequencer.held)

    def _new_sequencer(self) -> Sequencer:
        options = self._gateway.options
        return Sequencer(options.first, hold=options.hold, gap_within=options.gap_within)

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._make_topic(self.topic)
        await self._make_topic(self.notifications)
        await self._make_topic(self.journal, kind="queue")
        await self._make_group(self.topic, GROUP, start="earliest")
        try:
            await self._recover()
        except QueueTaken as taken:
            # The journal is our own affair: whoever starts a second gateway has never heard of a queue.
            raise QueueTaken(
                f"the topic {self.topic} has an event gateway already: {taken}",
                hint="stop that one, or give this one another topic; its clients may as well connect there",
            ) from None
        self._tasks = [asyncio.ensure_future(self._publish()), asyncio.ensure_future(self._dispatch())]
        for task in self._tasks:
            task.add_done_callback(_tell)

    async def _make_topic(self, name: str, **options: str) -> None:
        try:
            await self._bus.call("topic.show", name=name)
        except UnknownTopic:
            await self._bus.call("topic.create", name=name, **options)

    async def _make_group(self, topic: str, name: str, **options: object) -> None:
        await self._bus.call(
            "group.create", topic=topic, name=name, max_attempts=NEVER, backoff=0.0, **options
        )

    async def close(self) -> None:
        tasks = [*self._tasks, *self._serving.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- from the source to the topic ----------------------------------------------------------------

    def restarted(self) -> None:
        raise AssertionError("refused by the constructor")

    def received(self, source: Source, parsed: Parsed) -> None:
        self._waiting += parsed.lines
        self._arrived.set()
        if len(self._waiting) > WAITING:
            for each in self._gateway.sources:
                each.pause()

    async def _publish(self) -> None:
        publisher = self._bus.publisher(self.topic)
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            lines, self._waiting = self._waiting, []
            try:
                for at in range(0, len(lines), PER_ENTRY):
                    rows = Rows()
                    rows.payloads = lines[at : at + PER_ENTRY]
                    rows.keys = [SOURCE_KEY] * len(rows.payloads)
                    await publisher.send_rows(rows)
            except BusError as error:
                # Refused for longer than the bus is patient. Whoever sent them learns it by being cut off,
                # comes back and sends again; what is stored twice is dispatched once.
                self._gateway.note(error.code, len(lines), f"not stored: {error}")
                for source in self._gateway.sources:
                    source.close()
            for source in self._gateway.sources:
                source.resume()

    # -- from the topic to the notifications ---------------------------------------------------------

    async def _dispatch(self) -> None:
        recovered = True
        while True:
            try:
                if not recovered:
                    await self._recover()
                await self._dispatch_all()
                return  # the bus was closed
            except BusError as error:
                if self._bus.closed is not None:
                    return
                # What is in memory may be ahead of what is stored: begin again from there.
                self._gateway.note(error.code, 1, f"dispatch interrupted: {error}")
                recovered = False
                await asyncio.sleep(AGAIN_AFTER)

    async def _dispatch_all(self) -> None:
        subscription = await self._bus.subscribe(self.topic, group=GROUP, prefetch=PREFETCH).open()
        try:
            while True:
                deadline = self.sequencer.next_deadline()
                try:
                    async with asyncio.timeout(
                        None if deadline is None else max(0.0, (deadline - _now()) / SECOND)
                    ):
                        batch = await subscription.next_batch()
                except TimeoutError:
                    await self._commit(self._gaps_due(), [], None)
                    continue
                if batch is None:
                    return
                # Anybody may have published: what isn't one line keeps its place and is nobody's.
                parsed = parse([each if b"\n" not in each else number_alone(each) for each in batch.payloads])
                if parsed.malformed:
                    self._gateway.malformed(parsed.malformed)
                released = self._offer(parsed)
                held = self.sequencer.held
                waiting = [line for n, line in zip(parsed.numbers, parsed.lines, strict=True) if n in held]
                await self._commit(released, waiting, batch)
                if self._journaled > REWRITE_AT:
                    await self._recover()
        finally:
            await subscription.close()

    def _offer(self, parsed: Parsed) -> list[bytes]:
        skipped = self.sequencer.skipped
        released = self.sequencer.offer(_now(), parsed.numbers, parsed.lines)
        self._tell_skipped(skipped)
        return released

    def _gaps_due(self) -> list[bytes]:
        skipped = self.sequencer.skipped
        released = self.sequencer.advance(_now())
        self._tell_skipped(skipped)
        return released

    def _tell_skipped(self, before: int) -> None:
        if (count := self.sequencer.skipped - before) > 0:
            self._gateway.note(SequenceGap.code, count, f"numbers given up before {self.sequencer.next}")

    async def _commit(
        self, released: list[bytes], waiting: list[bytes], batch: DeliveredBatch | None
    ) -> None:
        """Dispatch lines, in as many transactions as it takes. The last one acks the batch that they came
        with: if we die before it, the batch comes again, and what was dispatched of it is late."""
        await self._look_for_clients()
        done = 0
        while True:
            async with self._bus.transaction() as transaction:
                begin, done = done, await self._notify(transaction, released, done)
                if done < len(released):
                    await self._note(transaction, released[begin:done], number_of(released[done - 1]) + 1, [])
                    continue
                await self._note(transaction, released[begin:], self.sequencer.next, waiting)
                if batch is not None:
                    await transaction.ack(batch)
                return

    async def _notify(self, transaction: Transaction, lines: list[bytes], at: int) -> int:
        """Tell the clients of lines, from ``at`` on, as many as fit. Returns where the next ones begin."""
        exchange = self.exchange
        # What a line comes to is known when it is dispatched, and then there is no way back: so in steps that
        # fit in any case.
        largest = max(1, len(exchange.present)) * LARGEST
        step = max(1, AT_ONCE // STEPS // largest)
        size = 0
        texts: dict[bytes, list[bytes]] = {}
        while at < len(lines) and (size == 0 or size + step * largest <= AT_ONCE):
            part = lines[at : at + step]
            at += len(part)
            notifications = exchange.dispatch(part)
            self._gateway.totals.dispatched += len(part)
            if notifications.malformed:
                self._gateway.malformed(notifications.malformed)
            for client in exchange.present if notifications.everyone else notifications.apart:
                text = notifications.of(client)
                size += len(text) + text.count(b"\n") * (len(client) + EXTRA)
                texts.setdefault(client, []).append(text)
        for client, parts in texts.items():
            rows = Rows()
            rows.payloads = b"".join(parts).split(b"\n")[:-1]
            rows.keys = [client] * len(rows.payloads)
            await transaction.publish_rows(self.notifications, rows)
        return at

    async def _note(
        self, transaction: Transaction, lines: list[bytes], following: int, waiting: list[bytes]
    ) -> None:
        """Put into the journal what dispatching these lines has changed."""
        follows = [line for line in lines if line.partition(b"|")[2][:2] in (b"F|", b"U|")]
        for entry in _entries(following, follows, waiting, {}):
            self._journaled += len(entry)
            await transaction.publish(self.journal, entry)

    # -- the journal -------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Read the journal, go on from there, and write it anew, shorter."""
        # Claims the journal: from here on no other dispatcher can add to it, so what we read is all of it.
        await self._bus.publish(self.journal, _encode(Entry()))
        subscription = await self._bus.subscribe(self.journal, group=GROUP, prefetch=MOST_PREFETCH).open()
        try:
            async with asyncio.timeout(READ_WITHIN):
                batches = await self._read(subscription)
            await self._rewrite(batches)
        except TimeoutError:
            raise TimedOut(
                f"the journal {self.journal} could not be read within {READ_WITHIN:.0f} s",
                hint="if it is larger than the terminal's limit prefetch_bytes, raise that",
            ) from None
        finally:
            await subscription.close()
        self._looked_at = 0.0
        await self._look_for_clients()

    async def _read(self, subscription: Subscription) -> list[DeliveredBatch]:
        self.sequencer, self.exchange = self._new_sequencer(), Exchange()
        shown = await self._bus.call("group.show", topic=self.journal, name=GROUP)
        batches: list[DeliveredBatch] = []
        left = int(shown["lag"])
        while left > 0:
            batch = await subscription.next_batch()
            if batch is None:
                raise LeaseLost("the subscription to the journal ended")
            for payload in batch.payloads:
                self._apply(_decode(payload))
            batches.append(batch)
            left -= len(batch)
        sequencer = self.sequencer
        sequencer.held = {n: line for n, line in sequencer.held.items() if n >= sequencer.next}
        sequencer.offer(_now(), (), ())  # looks at its gaps
        return batches

    def _apply(self, entry: Entry) -> None:
        self.sequencer.next = max(self.sequencer.next, entry.next)
        self.exchange.dispatch(entry.follows)  # nobody is present: nobody is told
        self.sequencer.held.update((number_of(line), line) for line in entry.held)
        for client, followed in entry.following.items():
            self.exchange.following[client] = set(followed)

    async def _rewrite(self, batches: list[DeliveredBatch]) -> None:
        """What is known now, in the place of what was read. Until the last transaction, which acks that, the
        old entries are there as well, and the new ones say the same."""
        state = self.exchange.save()
        entries = list(_entries(self.sequencer.next, [], list(self.sequencer.held.values()), state.following))
        for entry in entries[:-1]:
            await self._bus.publish(self.journal, entry)
        async with self._bus.transaction() as transaction:
            await transaction.publish(self.journal, entries[-1])
            for batch in batches:
                await transaction.ack(batch)
        self._journaled = 0

    # -- clients -----------------------------------------------------------------------------------

    async def _look_for_clients(self) -> None:
        """Groups of clients that came by another gateway, or before we were started."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= LOOK_EVERY or not self._looked_at:
            self._looked_at = now
            after = ""
            while True:
                page = await self._bus.call("group.list", topic=self.notifications, after=after)
                names = (client_of(group["name"]) for group in page["groups"])
                self._known.update(name for name in names if name is not None)
                after = page["next"]
                if not after:
                    break
        for client in self._known:
            self.exchange.join(client)

    def joined(self, client: Client) -> None:
        task = asyncio.ensure_future(self._serve(client, self._serving.get(client.id)))
        self._serving[client.id] = task
        task.add_done_callback(_tell)

    async def _serve(self, client: Client, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # two consumers of one group would share its messages
        group = group_of(client.id)
        match = {"key": escape(client.id.decode())}
        # Before the group is there: if the client leaves at once, its group may still be made.
        self._known.add(client.id)
        try:
            await self._make_group(self.notifications, group, start="latest", match=match)
            await self._feed(client, group)
        except BusError as error:
            self._gateway.note(error.code, 1, f"client {client.id.decode()} is let go: {error}")
        finally:
            client.close()
            if self._serving.get(client.id) is asyncio.current_task():
                del self._serving[client.id]

    async def _feed(self, client: Client, group: str) -> None:
        client.keep_nothing()
        last = -1
        subscription = await self._bus.subscribe(self.notifications, group=group).open()
        try:
            while (batch := await subscription.next_batch()) is not None:
                # After a lost connection to the terminal, what was not acked comes again.
                fresh = [line for line, n in zip(batch.payloads, batch.offsets, strict=True) if n > last]
                last = max(last, batch.offsets[-1])
                if fresh:
                    client.write(b"\n".join([*fresh, b""]))
                    await client.drained()
                if self._gateway.clients.get(client.id) is not client:
                    return  # it is gone, perhaps without having got this: not acked
                await batch.ack()
        finally:
            await subscription.close()

    def left(self, client: Client) -> None:
        task = self._serving.get(client.id)
        if task is not None:
            task.cancel()

    def caught_up(self) -> None:
        pass  # each client's own task waits for it


def _entries(
    following: int, follows: list[bytes], held: list[bytes], graph: dict[bytes, list[bytes]]
) -> Iterator[bytes]:
    """Encoded, each small enough for a message. At least one; the last one has the number."""
    for at in range(PER_ENTRY, len(follows), PER_ENTRY):
        yield _encode(Entry(follows=follows[at - PER_ENTRY : at]))
    for at in range(0, len(held), PER_ENTRY):
        yield _encode(Entry(held=held[at : at + PER_ENTRY]))
    page: dict[bytes, list[bytes]] = {}
    pairs = 0
    for client, followed in graph.items():
        page[client] = followed
        pairs += len(followed)
        if pairs >= PER_ENTRY:
            yield _encode(Entry(following=page))
            page, pairs = {}, 0
    tail = follows[(len(follows) - 1) // PER_ENTRY * PER_ENTRY :] if follows else []
    yield _encode(Entry(following, tail, [], page))


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("events failed", exc_info=error)


def _now() -> int:
    return time.time_ns() // 1000

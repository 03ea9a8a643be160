"""Events through topics, so that they survive, cross LANs and can be read by every client with a scope.

    source ─► TOPIC ─► group "dispatch" ─► TOPIC.notifications ─► group "client.ID" ─► client
                        sequence, exchange
                            │ ▲
                            ▼ │ after a restart
                       TOPIC.journal

The dispatcher takes lines from TOPIC. In one transaction it publishes the notifications (keyed by client, a
batch for each, which the groups of the other clients pass over), writes a journal entry and acks the lines.
So the notifications, the position in the sequence, the followers and the lines on hold always agree,
whichever process is killed at whatever moment. The journal is a queue, and a queue has one producer: a second
dispatcher is refused, and a dispatcher that was cut off can't write any more once another has taken over.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from glob import escape

import msgspec
import structlog
from msgspec import UNSET

from landbridge.client.bus import MOST_PREFETCH, Bus
from landbridge.client.message import DeliveredBatch
from landbridge.client.publisher import Rows
from landbridge.client.reading import Reading
from landbridge.client.transaction import Transaction
from landbridge.core.delivery.filters import Match
from landbridge.core.events.exchange import Exchange
from landbridge.core.events.parser import LONGEST_ID, LONGEST_LINE, Parsed, number_alone, number_of, parse
from landbridge.core.time import SECOND
from landbridge.errors import (
    BadRequest,
    BusError,
    LeaseLost,
    QueueTaken,
    SequenceGap,
    TimedOut,
    UnknownTopic,
)
from landbridge.gateways.events import EventClient, EventGateway, EventOptions, EventSource, now
from landbridge.protocol.operations import Kind, Place

log = structlog.get_logger("landbridge.events")

GROUP = "dispatch"
#: Key of all lines: what keeps messages of one key in order keeps the sequence in order.
SOURCE_KEY = b"source"
#: Lines taken from the topic and not yet dispatched.
PREFETCH = 8192
#: Bytes of notifications in one transaction. Large, so that a client that gets many is served with little
#: work; small enough that other tasks on the loop wait only some ten milliseconds.
AT_ONCE = 1 << 20
#: A transaction's notifications are dispatched in at least so many steps.
STEPS = 8
#: Bytes of a notification: at most, and beyond its line and key (two offsets in the batch).
LARGEST, EXTRA = LONGEST_LINE + LONGEST_ID + 8, 8
#: Lines, or pairs of follower and followed, in one entry of the journal.
PER_ENTRY = 4096
#: Bytes of journal entries after which the journal is rewritten. Far below the prefetch_bytes of a terminal:
#: the journal is read without being acked, so all of it has to fit.
REWRITE_AT = 4 << 20
#: Lines that may wait to be published; with more, the sources are not read.
WAITING = 20_000
#: Seconds between two looks for groups of new clients.
LOOK_EVERY = 5.0
#: Seconds before the dispatch is tried again.
AGAIN_AFTER = 0.5
#: Seconds for reading the journal.
READ_WITHIN = 60.0
#: max_attempts of groups that must never bury: each lost connection counts as an attempt.
NEVER = 1_000_000_000

_WORD = re.compile(rb"[A-Za-z0-9_-]+")


class JournalEntry(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the journal. Entries are applied in order; applying a run of them twice changes
    nothing."""

    #: The number that is dispatched next; 0: unchanged.
    next: int = 0
    #: F and U lines that were dispatched, in order.
    follows: list[bytes] = []
    #: Lines that wait for a missing number.
    held: list[bytes] = []
    #: Client → all clients that it follows, in the place of what was known.
    following: dict[bytes, list[bytes]] = {}


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(JournalEntry).decode


def group_of(client: bytes) -> str:
    """Return the name of a client's group. An id that can't be a word of a name is spelled in hex, with a
    word ``hex`` before it."""
    if _WORD.fullmatch(client):
        return f"client.{client.decode()}"
    return f"client.hex.{client.hex()}"


def client_of(group: str) -> bytes | None:
    """Return the client of a group; None for a group that is no client's."""
    words = group.split(".")
    if words[0] != "client":
        return None
    if len(words) == 3 and words[1] == "hex":
        try:
            return bytes.fromhex(words[2])
        except ValueError:
            return None
    return words[1].encode() if len(words) == 2 else None


def event_gateway(
    bus: Bus | None, topic: str | None = None, options: EventOptions | None = None
) -> EventGateway:
    """Return a gateway that dispatches through topics of this name, or in memory if ``topic`` is None."""
    if topic is None:
        return EventGateway(bus, options=options)
    assert bus is not None, "topics need a bus"
    return EventGateway(bus, dispatch=lambda gateway: TopicDispatch(gateway, bus, topic), options=options)


class TopicDispatch:
    """Sequencer and exchange of a dispatcher whose input, output and state are topics."""

    def __init__(self, gateway: EventGateway, bus: Bus, topic: str) -> None:
        if gateway.options.on_gap == "refuse" or gateway.options.restart:
            raise BadRequest(
                "lines that are stored can't be refused, and a stored sequence can't begin again",
                hint="with a topic: on_gap='skip', and no restart",
            )
        self._gateway = gateway
        self._bus = bus
        self.topic, self.notifications, self.journal = topic, f"{topic}.notifications", f"{topic}.journal"
        self.sequencer = self._gateway.options.new_sequencer()
        self.exchange = Exchange()
        #: Clients that have a group: they are notified also while they aren't connected.
        self._known: set[bytes] = set()
        self._looked_at = 0.0
        #: Bytes of entries since the journal was rewritten.
        self._journaled = 0
        self._waiting: list[bytes] = []
        self._arrived = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        #: The task that serves a client, by id.
        self._serving: dict[bytes, asyncio.Task[None]] = {}

    @property
    def held(self) -> int:
        return len(self.sequencer.held)

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        await self._make_topic(self.topic)
        await self._make_topic(self.notifications)
        await self._make_topic(self.journal, kind="queue")
        await self._make_group(self.topic, GROUP, start="earliest")
        try:
            await self._recover()
        except QueueTaken as taken:
            # The journal is an internal matter: the error has to speak of the topic that the user has named.
            raise QueueTaken(
                f"the topic {self.topic} has an event gateway already: {taken}",
                hint="stop that one, or give this one another topic; its clients may as well connect there",
            ) from None
        self._tasks = [asyncio.ensure_future(self._publish()), asyncio.ensure_future(self._dispatch())]
        for task in self._tasks:
            task.add_done_callback(_log_crash)

    async def _make_topic(self, name: str, kind: Kind = "stream") -> None:
        try:
            await self._bus.topics.show(name)
        except UnknownTopic:
            await self._bus.topics.create(name, kind=kind)

    async def _make_group(self, topic: str, name: str, start: Place, match: Match | None = None) -> None:
        await self._bus.groups.create(
            topic, name, max_attempts=NEVER, backoff=0.0, start=start, match=UNSET if match is None else match
        )

    async def close(self) -> None:
        tasks = [*self._tasks, *self._serving.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- from the source to the topic ----------------------------------------------------------------

    def on_restart(self) -> None:
        raise AssertionError("refused by the constructor")

    def on_lines(self, source: EventSource, parsed: Parsed) -> None:
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
                # Refused for longer than the patience of the bus. The sources learn it by being cut off; they
                # come back and send again. A line that is stored twice is dispatched once.
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
                # Memory may be ahead of what is stored: recover from the journal.
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
                        None if deadline is None else max(0.0, (deadline - now()) / SECOND)
                    ):
                        batch = await subscription.next_batch()
                except TimeoutError:
                    await self._commit(self._gaps_due(), [], None)
                    continue
                if batch is None:
                    return
                # Other clients may publish to the topic too. A payload that is not one line keeps its place
                # in the sequence and is for no client.
                parsed = parse([each if b"\n" not in each else number_alone(each) for each in batch.payloads])
                if parsed.malformed:
                    self._gateway.on_malformed(parsed.malformed)
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
        released = self.sequencer.offer(now(), parsed.numbers, parsed.lines)
        self._tell_skipped(skipped)
        return released

    def _gaps_due(self) -> list[bytes]:
        skipped = self.sequencer.skipped
        released = self.sequencer.advance(now())
        self._tell_skipped(skipped)
        return released

    def _tell_skipped(self, before: int) -> None:
        if (count := self.sequencer.skipped - before) > 0:
            self._gateway.note(SequenceGap.code, count, f"numbers given up before {self.sequencer.next}")

    async def _commit(
        self, released: list[bytes], waiting: list[bytes], batch: DeliveredBatch | None
    ) -> None:
        """Dispatch lines, in as many transactions as it takes. The last one acks the batch that they came
        with: after a crash before that, the batch is delivered again, and lines of it that were dispatched
        are dropped as late."""
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
        """Publish the notifications for lines, from index ``at`` on, as many as fit. Returns the index of the
        next line."""
        exchange = self.exchange
        # The size of a line's notifications is known only after it is dispatched, which can't be undone: so
        # dispatch in steps that fit in any case.
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
                self._gateway.on_malformed(notifications.malformed)
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
        """Write to the journal what dispatching these lines has changed."""
        follows = [line for line in lines if line.partition(b"|")[2][:2] in (b"F|", b"U|")]
        for entry in _entries(following, follows, waiting, {}):
            self._journaled += len(entry)
            await transaction.publish(self.journal, entry)

    # -- the journal -------------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Read the journal, go on from there, and rewrite it, shorter."""
        # This claims the journal: from here on no other dispatcher can add to it, so we read all of it.
        await self._bus.publish(self.journal, _encode(JournalEntry()))
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

    async def _read(self, subscription: Reading) -> list[DeliveredBatch]:
        self.sequencer, self.exchange = self._gateway.options.new_sequencer(), Exchange()
        batches: list[DeliveredBatch] = []
        left = (await self._bus.groups.show(self.journal, GROUP)).lag
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
        sequencer.offer(now(), (), ())  # looks at its gaps
        return batches

    def _apply(self, entry: JournalEntry) -> None:
        self.sequencer.next = max(self.sequencer.next, entry.next)
        self.exchange.dispatch(entry.follows)  # no client has joined yet, so no client is notified
        self.sequencer.held.update((number_of(line), line) for line in entry.held)
        for client, followed in entry.following.items():
            self.exchange.following[client] = set(followed)

    async def _rewrite(self, batches: list[DeliveredBatch]) -> None:
        """Replace the entries that were read by the present state. Until the last transaction, which acks the
        old entries, both are there, and they say the same."""
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
        """Find the groups of clients that came by another gateway, or before this one was started."""
        now = asyncio.get_running_loop().time()
        if now - self._looked_at >= LOOK_EVERY or not self._looked_at:
            self._looked_at = now
            groups = await self._bus.groups.list(topic=self.notifications)
            names = (client_of(group.name) for group in groups)
            self._known.update(name for name in names if name is not None)
        for client in self._known:
            self.exchange.join(client)

    def on_client(self, client: EventClient) -> None:
        task = asyncio.ensure_future(self._serve(client, self._serving.get(client.id)))
        self._serving[client.id] = task
        task.add_done_callback(_log_crash)

    async def _serve(self, client: EventClient, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # two consumers of one group would share its messages
        group = group_of(client.id)
        match = Match(key=escape(client.id.decode()))
        # Known before its group exists: if the client leaves at once, its group may still be made.
        self._known.add(client.id)
        try:
            await self._make_group(self.notifications, group, start="latest", match=match)
            await self._feed(client, group)
        except BusError as error:
            self._gateway.note(error.code, 1, f"client {client.id.decode()} is disconnected: {error}")
        finally:
            client.close()
            if self._serving.get(client.id) is asyncio.current_task():
                del self._serving[client.id]

    async def _feed(self, client: EventClient, group: str) -> None:
        client.keep_nothing()
        last = -1
        subscription = await self._bus.subscribe(self.notifications, group=group).open()
        try:
            while (batch := await subscription.next_batch()) is not None:
                # After a lost connection to the terminal, messages that were not acked are delivered again.
                fresh = [line for line, n in zip(batch.payloads, batch.offsets, strict=True) if n > last]
                last = max(last, batch.offsets[-1])
                if fresh:
                    client.write(b"\n".join([*fresh, b""]))
                    await client.drained()
                if self._gateway.clients.get(client.id) is not client:
                    return  # not acked: the client is gone, perhaps without these lines
                await batch.ack()
        finally:
            await subscription.close()

    def on_client_left(self, client: EventClient) -> None:
        task = self._serving.get(client.id)
        if task is not None:
            task.cancel()

    def on_caught_up(self) -> None:
        pass  # each client has a task of its own, which waits for it


def _entries(
    following: int, follows: list[bytes], held: list[bytes], graph: dict[bytes, list[bytes]]
) -> Iterator[bytes]:
    """Yield encoded entries, each small enough for a message. At least one; the last one has the number."""
    for at in range(PER_ENTRY, len(follows), PER_ENTRY):
        yield _encode(JournalEntry(follows=follows[at - PER_ENTRY : at]))
    for at in range(0, len(held), PER_ENTRY):
        yield _encode(JournalEntry(held=held[at : at + PER_ENTRY]))
    page: dict[bytes, list[bytes]] = {}
    pairs = 0
    for client, followed in graph.items():
        page[client] = followed
        pairs += len(followed)
        if pairs >= PER_ENTRY:
            yield _encode(JournalEntry(following=page))
            page, pairs = {}, 0
    tail = follows[(len(follows) - 1) // PER_ENTRY * PER_ENTRY :] if follows else []
    yield _encode(JournalEntry(following, tail, [], page))


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("events failed", exc_info=error)

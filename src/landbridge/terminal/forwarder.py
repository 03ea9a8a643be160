"""The forwarder: the consumer of every group whose consumers are at another terminal. It takes messages from
the group like any consumer, ships them to the terminal of the group's choice, and acks when they have arrived
there.

    lane       one topic's way to one other terminal: an Outbound, and what waits to be shipped in it
    placement  where a group's messages go at present, and why

Messages that several groups want at the same terminal are shipped once. While there is no path, no ticket or
no registry they stay where they are, in the topic's log, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import structlog

from landbridge.core.batch import Batch, Buffer
from landbridge.core.directory import TopicEntry
from landbridge.core.outbound import Outbound, Shipment
from landbridge.core.parcel import (
    Arrived,
    Ask,
    Control,
    Kind,
    Manifest,
    Missing,
    Piece,
    Stuck,
    Tell,
    Withdraw,
    Withdrawn,
    encode_manifest,
)
from landbridge.core.ranges import Range, count, normalise
from landbridge.core.seal import Sealer
from landbridge.core.topic import group_spec
from landbridge.errors import BadRequest, BusError, Unavailable
from landbridge.protocol import frames
from landbridge.terminal.group import Consumer, Group

if TYPE_CHECKING:
    from landbridge.terminal.network import Network
    from landbridge.terminal.topic import Topic

log = structlog.get_logger("landbridge.forwarder")

SECOND = 1_000_000
#: Bytes and pieces that one shipment gathers at most: large enough that one signature is cheap, small enough
#: for the header and for a link to have others between.
SHIPMENT_BYTES, SHIPMENT_PIECES = 256 << 10, 512
#: While others are on their way, a shipment waits for so many bytes, for so many seconds at most.
GATHER_BYTES, GATHER = 128 << 10, 0.002
#: Bytes on their way in one lane: with 100 ms round trip that is 320 MB/s.
WINDOW = 32 << 20
#: Messages that the forwarder holds of a group at most; bytes are bounded by the window.
PREFETCH = 500_000
#: Seconds after which a refused or failed request for a ticket is made again.
TICKET_AGAIN = 1.0
#: Seconds after which a message counts as late, so that catching up is slowed down to the rate that is set.
LATE = 10.0
#: Shipments of the past that ``why`` can still tell about.
REMEMBERED = 10_000
#: Seconds that a terminal which doesn't confirm is not chosen again.
SUSPECT_FOR = 30.0


class Hand:
    """What the forwarder shows a group in place of a connection."""

    def __init__(self, forwarder: Forwarder, destination: str) -> None:
        self._forwarder = forwarder
        self.destination = destination
        self.subject = "forwarder"
        self.who = f"forwarder to {destination}"
        self.writable = True
        self.closed = False
        self.consumer: Consumer
        self.lane: Lane

    def send(self, frame: frames.Deliver, data: Buffer) -> None:
        self.lane.offer(self, frame, data)

    def flush(self) -> None:
        self.lane.ship_soon()

    def lose(self, consumer: Consumer, error: BusError) -> None:
        """The group ended, or can't read its log."""
        self._forwarder.lost(consumer.group, error)


class Placement:
    """A group of a topic, seen from here."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        #: The terminal that gets its messages; "" = none found yet; this terminal itself = they stay.
        self.target = ""
        self.since = 0
        self.why = "no terminal of the group has been found yet"
        self.hand: Hand | None = None


class Queued:
    """Messages that are to be shipped, and the groups that they are for."""

    __slots__ = ("data", "legs", "newest_first", "runs", "time")

    def __init__(self, runs: list[Range], newest_first: bool, data: Buffer, time: int) -> None:
        self.runs = runs
        self.newest_first = newest_first
        self.data = data
        self.time = time
        #: group → lease
        self.legs: dict[str, int] = {}


class Record(msgspec.Struct):
    """A shipment of the past or on its way, for people."""

    topic: str
    destination: str
    groups: list[str]
    runs: list[Range]
    sequence: int
    routes: list[list[str]]
    why: str
    sent_at: int = 0
    kept_at: int = 0
    arrived_at: int = 0


class Lane:
    def __init__(self, forwarder: Forwarder, topic: Topic, destination: str) -> None:
        self.forwarder = forwarder
        self.network = forwarder.network
        self.topic = topic
        self.destination = destination
        self.outbound = Outbound(self.network.new_epoch())
        self.queue: list[Queued] = []
        #: Bytes in the queue.
        self._queued_bytes = 0
        self._soon = False
        self._gathering: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: What it waits for, for people; empty while it waits for nothing.
        self.waits_for = ""

    # -- taking ------------------------------------------------------------------------------------

    def offer(self, hand: Hand, frame: frames.Deliver, data: Buffer) -> None:
        group, runs = hand.consumer.group.name, frame.runs
        for queued in reversed(self.queue[-64:]):  # two groups of one pump are close together
            if group in queued.legs:
                break  # nothing of a group may go before what it gave us earlier
            if queued.runs == runs and queued.newest_first == frame.newest_first:
                queued.legs[group] = frame.lease
                return
        queued = Queued(runs, frame.newest_first, data, self.network.now())
        queued.legs[group] = frame.lease
        self.queue.append(queued)
        self._queued_bytes += len(data)

    def ship_soon(self) -> None:
        """At once, unless there is little and others are on their way: then it waits for more. A shipment
        costs a signature, a check and a place in three queues, whatever is in it."""
        if self._soon:
            return
        loop = asyncio.get_running_loop()
        if self._queued_bytes >= GATHER_BYTES or not self.outbound.shipments:
            self._soon = True
            if self._gathering is not None:
                self._gathering.cancel()
                self._gathering = None
            loop.call_soon(self._ship)
        elif self._gathering is None:
            self._gathering = loop.call_later(GATHER, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        if not self._soon:
            self._ship()

    # -- shipping ----------------------------------------------------------------------------------

    def _ship(self) -> None:
        self._soon = False
        now = self.network.now()
        while self.queue and self.outbound.bytes < WINDOW:
            shipment = self._gather(now)
            self.outbound.add(shipment)
            self.dispatch(shipment, now)

    def _gather(self, now: int) -> Shipment:
        """The next shipment: pieces for the same groups, as many as fit."""
        groups = self.queue[0].legs.keys()
        each = self.forwarder.one_by_one(self.topic.name)
        taken: list[Queued] = []
        size = messages = 0
        for queued in self.queue:
            if queued.legs.keys() != groups:
                break
            if taken and (size + len(queued.data) > SHIPMENT_BYTES or len(taken) >= SHIPMENT_PIECES or each):
                break
            taken.append(queued)
            size += len(queued.data)
            messages += count(queued.runs)
        del self.queue[: len(taken)]
        self._queued_bytes -= size
        if each and messages > 1:
            first, *rest = _split(taken[0])
            self.queue[:0] = rest
            self._queued_bytes += sum(len(queued.data) for queued in rest)
            taken, size, messages = [first], len(first.data), 1
        shipment = self.outbound.new(self.network.new_id(), messages)
        shipment.bytes = size
        for queued in taken:
            shipment.pieces.append(Piece(queued.runs, queued.newest_first, len(queued.data)))
            shipment.data.append(queued.data)
            shipment.legs += [(group, lease, queued.runs) for group, lease in queued.legs.items()]
        return shipment

    def dispatch(self, shipment: Shipment, now: int, avoid: Iterable[str] = ()) -> None:
        """Seal it and give it to the next hop; or leave it waiting."""
        network, destination = self.network, self.destination
        sealer = self.forwarder.sealer(self.topic.name, shipment.messages, now)
        if sealer is None:
            self.waits_for = "a ticket from the registry"
            return
        if network.route(destination, set(avoid)) is None:
            avoid = ()
            if network.route(destination, set()) is None:
                self.waits_for = f"a path to {network.name_of(destination)}"
                return
        manifest = Manifest(
            self.topic.created_at,
            {group: self.forwarder.floor(self.topic, group) for group in shipment.groups},
            shipment.pieces,
            self.outbound.oldest,
        )
        try:
            data = sealer.seal(
                destination,
                network.keys_of(destination),
                now=now,
                epoch=self.outbound.epoch,
                sequence=shipment.sequence,
                meta=encode_manifest(manifest),
                plaintext=shipment.data,
                messages=shipment.messages,
            )
        except BusError as error:
            self.waits_for = str(error)
            return
        route = network.carrier.send(
            shipment.id, Kind.SHIPMENT, destination, data, partial(self._decided, shipment, now), set(avoid)
        )
        if route is None:
            self.waits_for = f"a path to {network.name_of(destination)}"
            return
        self.waits_for = ""
        again = shipment.attempts > 0
        self.outbound.sent(now, shipment, route[0], route, network.round_trip(route))
        self.forwarder.remember(self, shipment, route, now)
        if again:
            self.forwarder.totals.repeated += 1
        self._arm()

    def _decided(self, shipment: Shipment, sent_at: int, code: str | None) -> None:
        if self.outbound.find(shipment.id) is not shipment:
            return  # arrived, or begun again, meanwhile
        if code is None:
            self.outbound.kept(shipment.id)
            self.forwarder.note_kept(shipment)
            return
        hop = shipment.route[0] if shipment.route else ""
        self.outbound.back(shipment.id)
        self.forwarder.totals.reroutes += 1
        self.network.note(
            "reroute",
            topic=self.topic.name,
            cause=code,
            detail=f"shipment {shipment.sequence} to {self.network.name_of(self.destination)}",
        )
        # Not that way again at once, unless it is the only one; and if all refuse, in a while.
        if shipment.attempts % 4 == 0:
            self._retry_later()
        else:
            self.dispatch(shipment, self.network.now(), {hop} if hop else ())

    def returned(self, shipment: Shipment) -> None:
        self.outbound.back(shipment.id)
        hop = shipment.route[0] if shipment.route else ""
        self.forwarder.totals.reroutes += 1
        self.dispatch(shipment, self.network.now(), {hop} if hop else ())

    def _retry_later(self) -> None:
        asyncio.get_running_loop().call_later(1.0, self.look_again)

    def look_again(self) -> None:
        """Paths, tickets or room have changed: send what waits, oldest first."""
        now = self.network.now()
        for shipment in self.outbound.waiting():
            if not self.forwarder.may_send(self, shipment, now):
                break
            self.dispatch(shipment, now)
            if shipment.hop == "":
                break
        else:
            self._ship()

    def _arm(self) -> None:
        if self._timer is None and (deadline := self.outbound.next_deadline()) is not None:
            span = max(0.05, (deadline - self.network.now()) / SECOND)
            self._timer = asyncio.get_running_loop().call_later(span, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self.network.now()
        overdue = self.outbound.overdue(now)
        if overdue and self.forwarder.another_member(self):
            return  # all of it has gone to another terminal
        for shipment in overdue:
            hop = shipment.route[0] if shipment.route else ""
            self.dispatch(shipment, now, {hop} if hop and shipment.attempts % 2 else ())
        self._arm()

    # -- arriving ----------------------------------------------------------------------------------

    def arrived(self, message: Arrived) -> None:
        now = self.network.now()
        for shipment in self.outbound.arrived(message.stream.epoch, message.sequences):
            self.forwarder.note_arrived(shipment, now)
            for group, lease, runs in shipment.legs:
                self.forwarder.settle(self.topic.name, group, lease, runs)
        if self.queue:
            self.ship_soon()

    def missing(self, message: Missing) -> None:
        if message.stream.epoch != self.outbound.epoch:
            return
        now = self.network.now()
        for sequence in message.sequences:
            shipment = self.outbound.shipments.get(sequence)
            if shipment is not None and shipment.hop != "":
                hop = shipment.route[0] if shipment.route else ""
                self.dispatch(shipment, now, {hop} if hop and shipment.attempts % 2 else ())

    def stuck(self, message: Stuck) -> None:
        shipment = self.outbound.shipments.get(message.sequence)
        if shipment is None or message.stream.epoch != self.outbound.epoch:
            return
        if message.code == "ticket_dead":
            # The topic's policy: nothing late is opened. It ends where dead letters end, here.
            for group, lease, runs in shipment.legs:
                self.forwarder.bury(self.topic.name, group, lease, runs, "ticket_expired")
            shipment.legs = []
            # An empty shipment still takes its place in the order, and none in the window.
            self.outbound.bytes -= shipment.bytes
            shipment.pieces, shipment.data, shipment.bytes = [], [], 0
        # Nobody keeps it any more. If there is no ticket for it yet, it is among those that wait for one.
        self.outbound.back(shipment.id)
        self.dispatch(shipment, self.network.now())

    def without(self, group: str) -> list[Range]:
        """A group goes elsewhere: send the rest again without it. Returns what was on its way for the
        group."""
        self.queue = [queued for queued in self.queue if queued.legs.pop(group, None) is None or queued.legs]
        self._queued_bytes = sum(len(queued.data) for queued in self.queue)
        gone = self.outbound.restart(self.network.new_epoch(), group)
        self.look_again()
        return normalise(
            run for shipment in gone for name, _, runs in shipment.legs if name == group for run in runs
        )

    def close(self) -> None:
        for timer in (self._timer, self._gathering):
            if timer is not None:
                timer.cancel()


def _split(queued: Queued) -> list[Queued]:
    """Message by message, in the order in which the group takes them."""
    batch = Batch.decode(queued.data)
    offsets = [offset for first, end in queued.runs for offset in range(first, end)]
    parts = []
    for index, offset in enumerate(offsets):
        part = Queued([(offset, offset + 1)], False, batch.slice(index, index + 1).encode(), queued.time)
        part.legs = queued.legs
        parts.append(part)
    return parts[::-1] if queued.newest_first else parts


class Totals(msgspec.Struct):
    shipped: int = 0
    arrived: int = 0
    repeated: int = 0
    reroutes: int = 0
    failovers: int = 0
    #: Messages that a failover came too late to take back: seen twice.
    doubled: int = 0


class Tickets:
    """The sealer of one topic: the one in use, and the fetching of the next."""

    def __init__(self) -> None:
        self.sealer: Sealer | None = None
        self.fetching: asyncio.Task[None] | None = None
        self.failed_at = 0


class Forwarder:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.broker = network.broker
        self.totals = Totals()
        self.placements: dict[tuple[str, str], Placement] = {}
        self.lanes: dict[tuple[str, str], Lane] = {}
        #: Terminal → until when it is not chosen, microseconds.
        self.suspects: dict[str, int] = {}
        #: Shipment id → what became of it, newest last.
        self.records: OrderedDict[bytes, Record] = OrderedDict()
        self._tickets: dict[str, Tickets] = {}
        self._spent = 0
        self._spent_at = 0
        #: (terminal, question) → who waits for the answer.
        self._asked: dict[tuple[str, Ask], list[asyncio.Future[Tell]]] = {}

    # -- placing groups ----------------------------------------------------------------------------

    def place(self) -> None:
        """Look at every group of every topic that the directory knows and this terminal has."""
        network = self.network
        seen = set()
        for entry in network.topics.values():
            topic = self.broker.topics.get(entry.name)
            if topic is None or topic.deleted:
                continue
            for name, added_at in entry.groups.items():
                seen.add((entry.name, name))
                self._place(entry, topic, name, added_at)
        for key in [key for key in self.placements if key not in seen]:
            self._leave(self.placements.pop(key))

    def _place(self, entry: TopicEntry, topic: Topic, name: str, added_at: int) -> None:
        network = self.network
        members = network.members(name)
        key = (entry.name, name)
        placement = self.placements.get(key)
        if placement is None:
            placement = self.placements[key] = Placement(*key)
        if not members:
            self._leave(placement)
            placement.target, placement.why = "", "the group has no terminals"
            if name in topic.groups:
                topic.groups[name].forward(True)  # it waits for one
            return
        group = topic.groups.get(name)
        if group is None:
            if topic.spec.kind == "queue" and topic.groups:
                return
            spec = group_spec({"topic": topic.name, "name": name})
            group = self.broker.create_group(topic, spec, added_at)
        now = network.now()
        self.suspects = {terminal: until for terminal, until in self.suspects.items() if until > now}
        target, why = network.choose(entry.name, name, members, placement.target, set(self.suspects))
        if target is not None and target != placement.target:
            self._move(placement, topic, group, target, why)

    def _move(self, placement: Placement, topic: Topic, group: Group, target: str, why: str) -> None:
        network, before = self.network, placement.target
        lane_before = placement.hand.lane if placement.hand is not None else None
        withdrawn = self._leave(placement)
        placement.target, placement.since, placement.why = target, network.now(), why
        if lane_before is not None and withdrawn:
            self.totals.failovers += 1
            epoch = lane_before.outbound.epoch
            network.say(before, Withdraw(topic.name, topic.created_at, group.name, withdrawn, epoch))
        network.note(
            "place",
            topic=topic.name,
            group=group.name,
            detail=f"to {network.name_of(target)}: {why}",
            cause="moved" if before else "found",
        )
        if target == network.me:
            group.forward(False)
            group.pump()
            return
        lane = self.lanes.get((topic.name, target))
        if lane is None:
            lane = self.lanes[topic.name, target] = Lane(self, topic, target)
        hand = Hand(self, target)
        hand.lane = lane
        number = self.broker.new_consumer()
        consumer = Consumer(number, hand, 0, PREFETCH, group, prefetch_bytes=2 * WINDOW, patient=True)
        hand.consumer = consumer
        placement.hand = hand
        group.forward(True)
        group.join(consumer)
        group.pump()

    def _leave(self, placement: Placement) -> list[Range]:
        hand, placement.hand = placement.hand, None
        if hand is None:
            return []
        hand.closed = True
        gone = hand.lane.without(placement.group)
        group = hand.consumer.group
        if not group.deleted:
            group.leave(hand.consumer, counted=False)
        return gone

    def lost(self, group: Group, error: BusError) -> None:
        placement = self.placements.pop((group.topic.name, group.name), None)
        if placement is not None:
            log.warning("a group ended", topic=group.topic.name, group=group.name, detail=str(error))
            self._leave(placement)

    def another_member(self, lane: Lane) -> bool:
        """A destination doesn't confirm. Is there another terminal for all of its groups here?"""
        self.suspects[lane.destination] = self.network.now() + int(SUSPECT_FOR * SECOND)
        self.place()
        return not lane.outbound.shipments

    # -- groups ------------------------------------------------------------------------------------

    def _held(self, topic: str, name: str) -> tuple[Group, Consumer] | None:
        placement = self.placements.get((topic, name))
        if placement is None or placement.hand is None:
            return None
        consumer = placement.hand.consumer
        return consumer.group, consumer

    def settle(self, topic: str, name: str, lease: int, runs: list[Range]) -> None:
        held = self._held(topic, name)
        if held is not None:
            group, consumer = held
            group.settle(consumer, [frames.Settlement(lease, runs)], None, _ignore)

    def bury(self, topic: str, name: str, lease: int, runs: list[Range], cause: str) -> None:
        held = self._held(topic, name)
        if held is not None:
            group, consumer = held
            group.settle(consumer, [frames.Settlement(lease, runs, "bury", None, cause)], None, _ignore)

    def floor(self, topic: Topic, group: str) -> int:
        found = topic.groups.get(group)
        return 0 if found is None else found.delivery.cursor.floor

    # -- tickets -----------------------------------------------------------------------------------

    def one_by_one(self, topic: str) -> bool:
        entry = self.network.topics.get(topic)
        return entry is not None and entry.ticket_scope == "message"

    def sealer(self, topic: str, messages: int, now: int) -> Sealer | None:
        """One that can be used now; None: it is being fetched, and the lanes are told when it is there."""
        tickets = self._tickets.setdefault(topic, Tickets())
        sealer = tickets.sealer
        usable = sealer is not None and sealer.usable(now, messages)
        if sealer is None or not usable or sealer.due(now):
            self._fetch(topic, tickets, now)
        if not usable:
            return None
        if self.one_by_one(topic):
            tickets.sealer = None
        return sealer

    def _fetch(self, topic: str, tickets: Tickets, now: int) -> None:
        if tickets.fetching is None and now - tickets.failed_at >= TICKET_AGAIN * SECOND:
            tickets.fetching = asyncio.ensure_future(self._fetch_ticket(topic, tickets))

    async def _fetch_ticket(self, topic: str, tickets: Tickets) -> None:
        try:
            issue = await self.network.registry.issue(topic)
            tickets.sealer = Sealer(self.network.identity, issue, self.network.now())
            tickets.failed_at = 0
        except BusError as error:
            tickets.failed_at = self.network.now()
            if not isinstance(error, Unavailable):
                self.network.note("refuse", topic=topic, cause=error.code, detail=str(error))
            log.warning("no ticket", topic=topic, code=error.code, detail=str(error))
            asyncio.get_running_loop().call_later(TICKET_AGAIN, self._ticket_again, topic)
        finally:
            tickets.fetching = None
        if not tickets.failed_at:
            self.look_again(topic)

    def _ticket_again(self, topic: str) -> None:
        if any(lane.outbound.waiting() for (name, _), lane in self.lanes.items() if name == topic):
            self._fetch(topic, self._tickets[topic], self.network.now())

    # -- pace --------------------------------------------------------------------------------------

    def may_send(self, lane: Lane, shipment: Shipment, now: int) -> bool:
        """Fresh messages always; after an outage, late ones at the rate that is set."""
        rate = self.network.settings.catch_up_rate
        if not rate or not shipment.first_sent_at or now - shipment.first_sent_at < LATE * SECOND:
            return True
        self._spent = max(0, self._spent - int((now - self._spent_at) * rate / SECOND))
        self._spent_at = now
        if self._spent > rate:
            asyncio.get_running_loop().call_later(0.25, lane.look_again)
            return False
        self._spent += shipment.bytes
        return True

    def room(self) -> None:
        for lane in self.lanes.values():
            lane.look_again()

    def look_again(self, topic: str | None = None) -> None:
        for (name, _), lane in list(self.lanes.items()):
            if topic is None or name == topic:
                lane.look_again()

    def returned(self, id: bytes) -> None:
        for lane in self.lanes.values():
            shipment = lane.outbound.find(id)
            if shipment is not None:
                lane.returned(shipment)
                return

    # -- what the other end says -------------------------------------------------------------------

    def heard(self, source: str, message: Control) -> None:
        match message:
            case Arrived():
                lane = self._lane(message.stream.topic, source, message.stream.incarnation)
                if lane is not None:
                    lane.arrived(message)
            case Stuck():
                lane = self._lane(message.stream.topic, source, message.stream.incarnation)
                if lane is not None:
                    lane.stuck(message)
            case Missing():
                lane = self._lane(message.stream.topic, source, message.stream.incarnation)
                if lane is not None:
                    lane.missing(message)
            case Withdrawn():
                self.totals.doubled += count(message.late)
            case Tell():
                for waiter in self._asked.pop((source, message.ask), []):
                    if not waiter.done():
                        waiter.set_result(message)
            case _:
                raise BadRequest(f"{type(message).__name__} for a source")

    def _lane(self, topic: str, destination: str, incarnation: int) -> Lane | None:
        lane = self.lanes.get((topic, destination))
        return lane if lane is not None and lane.topic.created_at == incarnation else None

    # -- for people --------------------------------------------------------------------------------

    def remember(self, lane: Lane, shipment: Shipment, route: list[str], now: int) -> None:
        record = self.records.get(shipment.id)
        if record is None:
            self.totals.shipped += shipment.messages
            runs = normalise(run for piece in shipment.pieces for run in piece.runs)
            record = Record(
                lane.topic.name, lane.destination, shipment.groups, runs, shipment.sequence, [], "", now
            )
            self.records[shipment.id] = record
            if len(self.records) > REMEMBERED:
                self.records.popitem(last=False)
        record.routes.append(route)
        del record.routes[:-8]
        record.why = self.network.why_route(lane.destination)

    def note_kept(self, shipment: Shipment) -> None:
        record = self.records.get(shipment.id)
        if record is not None and not record.kept_at:
            record.kept_at = self.network.now()

    def note_arrived(self, shipment: Shipment, now: int) -> None:
        self.totals.arrived += shipment.messages
        record = self.records.get(shipment.id)
        if record is not None:
            record.arrived_at = now

    # -- asking at the other end -------------------------------------------------------------------

    async def ask(self, terminal: str, question: Ask, within: float) -> Tell | None:
        """None where no answer came: the question or the answer got lost, or it is not settled yet."""
        waiter: asyncio.Future[Tell] = asyncio.get_running_loop().create_future()
        key = (terminal, question)
        self._asked.setdefault(key, []).append(waiter)
        self.network.say(terminal, question)
        try:
            async with asyncio.timeout(within):
                return await waiter
        except TimeoutError:
            return None
        finally:
            waiters = self._asked.get(key)
            if waiters and waiter in waiters:
                waiters.remove(waiter)
                if not waiters:
                    del self._asked[key]

    async def acked(self, topic: Topic, group: str, offset: int) -> None:
        """Until the group's consumer has acked it, wherever that is. Asks again: neither side keeps the
        question for long."""
        question = Ask(topic.name, topic.created_at, group, offset, True)
        while True:
            target = self.went_to(topic.name, group, offset)
            if not target:
                await asyncio.sleep(0.5)
            elif await self.ask(target, question, 3.0) is not None:
                return

    def went_to(self, topic: str, group: str, offset: int) -> str:
        """The terminal that a message went to or goes to."""
        record = self.record_of(topic, group, offset)
        if record is not None:
            return record.destination
        placement = self.placements.get((topic, group))
        return placement.target if placement is not None else ""

    def record_of(self, topic: str, group: str, offset: int) -> Record | None:
        for record in reversed(self.records.values()):
            if (
                record.topic == topic
                and group in record.groups
                and any(first <= offset < end for first, end in record.runs)
            ):
                return record
        return None

    async def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
        for tickets in self._tickets.values():
            if tickets.fetching is not None:
                tickets.fetching.cancel()
        for waiters in self._asked.values():
            for waiter in waiters:
                waiter.cancel()


def _ignore(error: BusError) -> None:
    """A lease that is gone: the group was moved, or deleted, and its messages are somebody else's
    business."""

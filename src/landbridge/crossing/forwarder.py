"""The forwarder: the consumer of every group whose consumers are at another terminal. It takes messages from
the group like any consumer, ships them to the terminal of the group's choice, and acks when they have arrived
there.

    lane       one topic's way to one other terminal (lane.py)
    placement  where a group's messages go at present, and why

Messages that several groups want at the same terminal are shipped once. While there is no path, no ticket or
no registry they stay where they are, in the topic's log, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

import msgspec
import structlog

from landbridge.broker.group import Consumer, Group
from landbridge.core.log.ranges import Range, count, normalise
from landbridge.core.log.topic import group_spec
from landbridge.core.shipping.outbound import Shipment
from landbridge.core.shipping.parcel import (
    Arrived,
    Ask,
    Control,
    Missing,
    Stuck,
    Tell,
    Withdraw,
    Withdrawn,
)
from landbridge.core.trust.directory import TopicEntry
from landbridge.core.trust.seal import Sealer
from landbridge.crossing.lane import WINDOW, Hand, Lane
from landbridge.errors import BadRequest, BusError, Unavailable
from landbridge.protocol import frames

if TYPE_CHECKING:
    from landbridge.broker.topic import Topic
    from landbridge.crossing.network import Network

log = structlog.get_logger("landbridge.forwarder")

SECOND = 1_000_000
#: Messages that the forwarder holds of a group at most; bytes are bounded by the window.
PREFETCH = 500_000
#: Seconds after which a refused or failed request for a ticket is made again.
TICKET_AGAIN = 1.0
#: Seconds after which a message counts as late, and seconds of the rate that may be sent in one go.
LATE, BURST = 10.0, 0.25
#: Shipments of the past that ``why`` can still tell about.
REMEMBERED = 10_000
#: Seconds that a terminal which doesn't confirm is not chosen again.
SUSPECT_FOR = 30.0


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


class Totals(msgspec.Struct):
    shipped: int = 0
    arrived: int = 0
    repeated: int = 0
    reroutes: int = 0
    failovers: int = 0
    #: Messages that a failover came too late to take back: seen twice.
    doubled: int = 0


class Pace:
    """How fast what an outage has delayed is sent: fresh messages go at once, late ones at a rate."""

    def __init__(self, rate: int) -> None:
        """``rate``: bytes per second; 0 = as fast as it goes."""
        self._rate = rate
        #: Bytes of late messages sent and not yet worked off by time, as of when.
        self._spent = 0.0
        self._at = 0

    def allows(self, published_at: int, size: int, now: int) -> bool:
        if not self._rate or now - published_at < LATE * SECOND:
            return True
        self._spent = max(0.0, self._spent - (now - self._at) * self._rate / SECOND)
        self._at = now
        if self._spent > self._rate * BURST:
            return False
        self._spent += size
        return True


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
        self.pace = Pace(network.settings.catch_up_rate)
        self._tickets: dict[str, Tickets] = {}
        #: (terminal, question) → who waits for the answer.
        self._asked: dict[tuple[str, Ask], list[asyncio.Future[Tell]]] = {}

    # -- placing groups ----------------------------------------------------------------------------

    def place(self) -> None:
        """Look at every group of every topic that the directory knows and this terminal has."""
        network, now = self.network, self.network.now()
        self.suspects = {terminal: until for terminal, until in self.suspects.items() if until > now}
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
        hand = Hand(self, lane)
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

    def suspect(self, terminal: str) -> None:
        """It doesn't confirm: is there another one for the groups that go there?"""
        self.suspects[terminal] = self.network.now() + int(SUSPECT_FOR * SECOND)
        self.place()

    # -- groups ------------------------------------------------------------------------------------

    def settle(self, topic: str, name: str, lease: int, runs: list[Range], *, bury: str = "") -> None:
        """Ack it, or bury it for a cause."""
        placement = self.placements.get((topic, name))
        if placement is None or placement.hand is None:
            return
        consumer = placement.hand.consumer
        settlement = frames.Settlement(lease, runs, "bury" if bury else "ack", None, bury)
        consumer.group.settle(consumer, [settlement], None, _ignore)

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

    # -- lanes -------------------------------------------------------------------------------------

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
            case Arrived() | Stuck() | Missing():
                lane = self.lanes.get((message.stream.topic, source))
                if lane is not None and lane.topic.created_at == message.stream.incarnation:
                    lane.heard(message)
            case Withdrawn():
                self.totals.doubled += count(message.late)
            case Tell():
                for waiter in self._asked.pop((source, message.ask), []):
                    if not waiter.done():
                        waiter.set_result(message)
            case _:
                raise BadRequest(f"{type(message).__name__} for a source")

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

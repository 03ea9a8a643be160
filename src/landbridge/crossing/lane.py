"""A lane: one topic's way to one other terminal. What the groups hand over is gathered into shipments,
sealed, and given to the carrier; each is this terminal's to keep until the other one says that it has
arrived.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from landbridge.core.log.batch import Batch, Buffer
from landbridge.core.log.ranges import Range, count, normalise
from landbridge.core.shipping.outbound import Outbound, Shipment
from landbridge.core.shipping.parcel import Arrived, Kind, Manifest, Missing, Piece, Stuck, encode_manifest
from landbridge.errors import BusError
from landbridge.protocol import frames

if TYPE_CHECKING:
    from landbridge.broker.group import Consumer
    from landbridge.broker.topic import Topic
    from landbridge.crossing.forwarder import Forwarder

SECOND = 1_000_000
#: Bytes and pieces that one shipment gathers at most: large enough that one signature is cheap, small enough
#: for the header and for a link to have others between.
SHIPMENT_BYTES, SHIPMENT_PIECES = 256 << 10, 512
#: While others are on their way, a shipment waits for so many bytes, for so many seconds at most.
GATHER_BYTES, GATHER = 128 << 10, 0.002
#: Bytes on their way in one lane: with 100 ms round trip that is 320 MB/s.
WINDOW = 32 << 20
#: Seconds after which what was declined by everybody, or is sent at a limited rate, is looked at again.
AGAIN, PACE = 1.0, 0.25
#: Messages of two groups that are the same are close together in the queue: no need to look further back.
NEAR = 64


class Hand:
    """What the forwarder shows a group in place of a connection."""

    subject = "forwarder"
    writable = True

    def __init__(self, forwarder: Forwarder, lane: Lane) -> None:
        self._forwarder = forwarder
        self.lane = lane
        self.who = f"forwarder to {lane.destination}"
        self.consumer: Consumer

    def send(self, frame: frames.Deliver, data: Buffer) -> None:
        self.lane.offer(self.consumer.group.name, frame, data)

    def flush(self) -> None:
        self.lane.ship_soon()

    def lose(self, consumer: Consumer, error: BusError) -> None:
        """The group ended, or can't read its log."""
        self._forwarder.lost(consumer.group, error)


class Queued:
    """Messages that are to be shipped, and the groups that they are for."""

    __slots__ = ("data", "legs", "newest_first", "runs", "time")

    def __init__(self, runs: list[Range], newest_first: bool, data: Buffer, time: int) -> None:
        self.runs = runs
        self.newest_first = newest_first
        self.data = data
        #: When they were published, microseconds.
        self.time = time
        #: group → lease
        self.legs: dict[str, int] = {}


class Lane:
    def __init__(self, forwarder: Forwarder, topic: Topic, destination: str) -> None:
        self.forwarder = forwarder
        self.network = forwarder.network
        self.topic = topic
        self.destination = destination
        self.outbound = Outbound(self.network.new_epoch())
        self.queue: deque[Queued] = deque()
        #: Bytes in the queue.
        self._queued_bytes = 0
        self._soon = False
        self._gathering: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        #: What it waits for, for people; empty while it waits for nothing.
        self.waits_for = ""

    # -- taking ------------------------------------------------------------------------------------

    def offer(self, group: str, frame: frames.Deliver, data: Buffer) -> None:
        for queued in islice(reversed(self.queue), NEAR):
            if group in queued.legs:
                break  # nothing of a group may go before what it gave us earlier
            if queued.runs == frame.runs and queued.newest_first == frame.newest_first:
                queued.legs[group] = frame.lease
                return
        queued = Queued(frame.runs, frame.newest_first, data, Batch.decode(data).time)
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
            if not self._may_send(self.queue[0].time, len(self.queue[0].data), now):
                return
            shipment = self._gather()
            self.outbound.add(shipment)
            self.dispatch(shipment, now)

    def _may_send(self, published_at: int, size: int, now: int) -> bool:
        """If it is late, perhaps not yet; then the lane is looked at again by itself."""
        if self.forwarder.pace.allows(published_at, size, now):
            return True
        self.waits_for = "its turn: what an outage has delayed is sent at a limited rate"
        self._look_again_in(PACE)
        return False

    def _gather(self) -> Shipment:
        """The next shipment: pieces for the same groups, as many as fit."""
        groups = self.queue[0].legs.keys()
        each = self.forwarder.one_by_one(self.topic.name)
        taken: list[Queued] = []
        size = 0
        while self.queue and self.queue[0].legs.keys() == groups:
            queued = self.queue[0]
            if taken and (size + len(queued.data) > SHIPMENT_BYTES or len(taken) >= SHIPMENT_PIECES or each):
                break
            taken.append(self.queue.popleft())
            size += len(queued.data)
        self._queued_bytes -= size
        if each:
            first, *rest = _split(taken[0])
            self.queue.extendleft(reversed(rest))
            self._queued_bytes += sum(len(queued.data) for queued in rest)
            taken, size = [first], len(first.data)
        shipment = self.outbound.new(self.network.new_id(), sum(count(queued.runs) for queued in taken))
        shipment.bytes = size
        shipment.published_at = taken[0].time
        for queued in taken:
            shipment.pieces.append(Piece(queued.runs, queued.newest_first, len(queued.data)))
            shipment.data.append(queued.data)
            shipment.legs += [(group, lease, queued.runs) for group, lease in queued.legs.items()]
        return shipment

    def dispatch(self, shipment: Shipment, now: int, avoid: Iterable[str] = ()) -> None:
        """Seal it and give it to the next hop; or let it wait, and say for what."""
        if self.outbound.back(shipment.id) is not shipment:
            return  # arrived, or begun again under another number, meanwhile
        network, destination = self.network, self.destination
        route = network.route(destination, set(avoid)) or network.route(destination, set())
        if route is None:
            self.waits_for = f"a path to {network.name_of(destination)}"
            return
        if not network.carrier.has_room(route[0]):
            self.waits_for = f"room on the link to {network.name_of(route[0])}"
            return
        sealer = self.forwarder.sealer(self.topic.name, shipment.messages, now)
        if sealer is None:
            self.waits_for = "a ticket from the registry"
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
        self.waits_for = ""
        if shipment.attempts:
            self.forwarder.totals.repeated += 1
        self.outbound.sent(now, shipment, route, network.round_trip(route))
        self.forwarder.remember(self, shipment, route, now)
        network.carrier.send(
            shipment.id, Kind.SHIPMENT, destination, route, data, partial(self._decided, shipment)
        )
        self._arm()

    def _decided(self, shipment: Shipment, code: str | None) -> None:
        if self.outbound.find(shipment.id) is not shipment:
            return  # arrived, or begun again, meanwhile
        if code is None:
            self.outbound.kept(shipment.id)
            self.forwarder.note_kept(shipment)
            return
        self.network.note(
            "reroute",
            topic=self.topic.name,
            cause=code,
            detail=f"shipment {shipment.sequence} to {self.network.name_of(self.destination)}",
        )
        self.returned(shipment)

    def returned(self, shipment: Shipment) -> None:
        """It is ours alone again. Not that way at once, unless it is the only one; if all refuse, in a
        while."""
        self.outbound.back(shipment.id)
        self.forwarder.totals.reroutes += 1
        if shipment.attempts % 4 == 0:
            self._look_again_in(AGAIN)
        else:
            self.dispatch(shipment, self.network.now(), shipment.route[:1])

    def _look_again_in(self, seconds: float) -> None:
        if self._again is None:
            self._again = asyncio.get_running_loop().call_later(seconds, self._look_again_now)

    def _look_again_now(self) -> None:
        self._again = None
        self.look_again()

    def look_again(self) -> None:
        """Paths, tickets or room have changed: send what waits, oldest first."""
        now = self.network.now()
        for shipment in self.outbound.waiting():
            if not self._may_send(shipment.published_at, shipment.bytes, now):
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
        if self.outbound.overdue(now):
            self.forwarder.suspect(self.destination)
        # If a group has gone to another terminal for it, the rest has begun again, and nothing is overdue.
        for shipment in self.outbound.overdue(now):
            self._repeat(shipment, now)
        self._arm()

    def _repeat(self, shipment: Shipment, now: int) -> None:
        """Every other time another way: whoever keeps it may be gone, or only slow."""
        self.dispatch(shipment, now, shipment.route[:1] if shipment.attempts % 2 else ())

    # -- what the other end says -------------------------------------------------------------------

    def heard(self, message: Arrived | Stuck | Missing) -> None:
        if message.stream.epoch != self.outbound.epoch:
            return  # it is being sent again from the first on
        match message:
            case Arrived():
                self._arrived(message)
            case Missing():
                self._missing(message)
            case Stuck():
                self._stuck(message)

    def _arrived(self, message: Arrived) -> None:
        now = self.network.now()
        for shipment in self.outbound.arrived(message.stream.epoch, message.sequences):
            self.forwarder.note_arrived(shipment, now)
            for group, lease, runs in shipment.legs:
                self.forwarder.settle(self.topic.name, group, lease, runs)
        if self.queue:
            self.ship_soon()

    def _missing(self, message: Missing) -> None:
        for sequence in message.sequences:
            shipment = self.outbound.shipments.get(sequence)
            if shipment is not None and shipment.hop != "":
                self._repeat(shipment, self.network.now())

    def _stuck(self, message: Stuck) -> None:
        shipment = self.outbound.shipments.get(message.sequence)
        if shipment is None:
            return
        if message.code == "ticket_dead":
            # The topic's policy: nothing late is opened. It ends where dead letters end, here.
            for group, lease, runs in shipment.legs:
                self.forwarder.settle(self.topic.name, group, lease, runs, bury="ticket_expired")
            # An empty shipment still takes its place in the order, and none in the window.
            self.outbound.empty(shipment)
        self.dispatch(shipment, self.network.now())

    def without(self, group: str) -> list[Range]:
        """A group goes elsewhere: send the rest again without it. Returns what was on its way for the
        group."""
        for queued in self.queue:
            queued.legs.pop(group, None)
        self.queue = deque(queued for queued in self.queue if queued.legs)
        self._queued_bytes = sum(len(queued.data) for queued in self.queue)
        gone = self.outbound.restart(self.network.new_epoch(), group)
        self.look_again()
        return normalise(
            run for shipment in gone for name, _, runs in shipment.legs if name == group for run in runs
        )

    def close(self) -> None:
        for timer in (self._timer, self._gathering, self._again):
            if timer is not None:
                timer.cancel()


def _split(queued: Queued) -> list[Queued]:
    """Message by message, in the order in which the group takes them."""
    batch = Batch.decode(queued.data)
    offsets = [offset for first, end in queued.runs for offset in range(first, end)]
    parts = []
    for index, offset in enumerate(offsets):
        part = Queued([(offset, offset + 1)], False, batch.slice(index, index + 1).encode(), queued.time)
        part.legs = dict(queued.legs)
        parts.append(part)
    return parts[::-1] if queued.newest_first else parts

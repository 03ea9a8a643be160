"""A lane: one topic's way to one other terminal. It gathers the messages that the groups there want, ships
them in order, and sends each shipment again until the other terminal says that it has arrived.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Protocol

from landbridge.broker.group import Consumer, Home
from landbridge.core.log.batch import Batch, Buffer
from landbridge.core.log.ranges import Range, count, normalise
from landbridge.core.routing.routes import Routes
from landbridge.core.shipping.cutting import MOST_NAMES, Queued, cut, fits, frame_size, names_size
from landbridge.core.shipping.outbound import Outbound, Shipment
from landbridge.core.shipping.parcel import (
    Arrived,
    EpochOver,
    Kind,
    Manifest,
    Missing,
    Piece,
    Stuck,
    encode_manifest,
)
from landbridge.core.shipping.pause import Pause
from landbridge.core.time import SECOND
from landbridge.crossing.carrier import Carrier
from landbridge.crossing.ground import Ground
from landbridge.crossing.records import Records
from landbridge.crossing.tickets import TicketBook
from landbridge.errors import BusError, LeaseLost, TicketExpired
from landbridge.protocol import frames

#: Bytes and pieces that one shipment gathers at most: large enough that one signature is cheap, small enough
#: for the header and for a link to have others between.
SHIPMENT_BYTES, SHIPMENT_PIECES = 256 << 10, 512
#: While others are on their way, a shipment waits for so many bytes, for so many seconds at most.
GATHER_BYTES, GATHER = 128 << 10, 0.002
#: Bytes on their way in one lane: with 100 ms round trip that is 320 MB/s.
WINDOW = 32 << 20
#: Seconds after which a shipment is tried again that every hop has refused, or whose turn hasn't come yet.
RETRY_AFTER, PACE = 1.0, 0.25
#: Seconds that a message waits for a path whose terminals take a frame of its size, before it is given up.
WIDER_WITHIN = 10.0
#: Messages of two groups that are the same are close together in the queue: no need to look further back.
NEAR = 64
#: Seconds after which a message counts as late, and seconds of the rate that may be sent in one go.
LATE, BURST = 10.0, 0.25


class Pace:
    """How fast messages that an outage has delayed are sent: fresh ones go at once, late ones at a rate."""

    def __init__(self, rate: int) -> None:
        """``rate``: bytes per second; 0 = no limit."""
        self._rate = rate
        #: Bytes of late messages that were sent and not yet worked off by time, as of ``_at``.
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


class LaneOwner(Protocol):
    """What a lane asks of the forwarder, which all lanes share."""

    @property
    def ground(self) -> Ground: ...
    @property
    def carrier(self) -> Carrier: ...
    @property
    def routes(self) -> Routes: ...
    @property
    def tickets(self) -> TicketBook: ...
    @property
    def records(self) -> Records: ...
    @property
    def pace(self) -> Pace: ...
    def compared(self, topic: Home, terminal: str, groups: Collection[str]) -> int:
        """The run of a terminal that the confirmations of these groups were compared with; 0 if it is not
        known, or they were not."""

    def run_of(self, terminal: str) -> int:
        """The run of a terminal; 0 = not known."""

    def is_late(self, terminal: str, run: int) -> bool:
        """Was this run of a terminal followed by another one?"""

    def suspect(self, terminal: str) -> None:
        """A terminal doesn't confirm: is there another one for the groups that go there?"""


class Hand:
    """What the lane shows a group in place of a connection."""

    subject = "forwarder"
    writable = True

    def __init__(self, lane: Lane, on_lost: Callable[[Consumer, BusError], None]) -> None:
        """``on_lost``: the group ended, or can't read its log."""
        self.lane = lane
        self.lose = on_lost
        #: A terminal with links has all units at one node; when that changes, its links begin anew there.
        self.move_on: Callable[[BusError], None] = lambda why: None
        self.who = f"forwarder to {lane.destination}"
        self.consumer: Consumer

    def send(self, frame: frames.Frame, *tail: Buffer) -> None:
        assert isinstance(frame, frames.Deliver), "a group sends nothing else"
        group = self.consumer.group
        self.lane.offer(group.name, frame, tail[0], group.topic.reader_for(group.name).number)

    def flush(self) -> None:
        self.lane.ship_soon()

    def settle(self, lease: int, runs: list[Range], bury: str) -> None:
        """Ack the messages, or bury them for a cause."""
        settlement = frames.Settlement(lease, runs, "bury" if bury else "ack", None, bury)
        with suppress(LeaseLost):  # settled already, or given back
            self.consumer.group.settle(self.consumer, [settlement], durably=False)


class Lane:
    def __init__(self, owner: LaneOwner, topic: Home, destination: str) -> None:
        self._owner = owner
        self._ground = owner.ground
        self.topic = topic
        self.destination = destination
        self.outbound = Outbound(self._ground.new_epoch())
        #: Group → the consumer that takes its messages for this lane.
        self.hands: dict[str, Hand] = {}
        self.queue: deque[Queued] = deque()
        #: Bytes in the queue.
        self._queued_bytes = 0
        #: Whether ``_ship`` runs in this turn of the loop.
        self._soon = False
        #: Runs while the lane waits for more messages, for an overdue confirmation, for its next attempt.
        self._gathering: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        #: Bytes of a frame to which shipments are cut on every path: less than a path takes after shipments
        #: had to be cut again, so that two paths can't have them cut again and again.
        self._most = sys.maxsize
        #: Since when no path takes the frames that single messages need, and when that was last seen,
        #: microseconds.
        self._narrow_since = self._narrow_at = 0
        self._pause = Pause()
        #: The run of the destination that has confirmed something in this run; 0: none has.
        self._knows_run = 0
        #: What the lane waits for, for people; empty while it waits for nothing.
        self.waits_for = ""

    # -- taking ------------------------------------------------------------------------------------

    def offer(self, group: str, frame: frames.Deliver, data: Buffer, reader: int) -> None:
        """``reader``: the number of the log or view that the group has the messages from. What groups get by
        other stages before delivery differs, so it isn't shipped for all of them as one."""
        for queued in islice(reversed(self.queue), NEAR):
            if group in queued.legs:
                break  # a group's messages are shipped in the order in which the group gave them
            if (
                queued.runs == frame.runs
                and queued.reader == reader
                and queued.newest_first == frame.newest_first
                and names_size((*queued.legs, group)) <= MOST_NAMES
            ):
                queued.legs[group] = frame.lease
                return
        queued = Queued(frame.runs, frame.newest_first, data, Batch.decode(data).time, reader)
        queued.legs[group] = frame.lease
        self.queue.append(queued)
        self._queued_bytes += len(data)

    def ship_soon(self) -> None:
        """Ship at once, unless there is little to ship and other shipments are on their way: then wait for
        more. A shipment costs a signature, a check and a place in three queues, whatever is in it."""
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
        now = self._ground.now()
        while self.queue and self.outbound.bytes < WINDOW:
            if not self._may_send(self.queue[0].time, len(self.queue[0].data), now):
                return
            shipment = self._gather(now)
            self.outbound.add(shipment)
            self.dispatch(shipment, now)

    def _may_send(self, published_at: int, size: int, now: int) -> bool:
        """Whether a message may be sent already. If not, because late ones go at a limited rate, the lane
        tries again by itself."""
        if self._owner.pace.allows(published_at, size, now):
            return True
        self.waits_for = "its turn: messages that an outage has delayed are sent at a limited rate"
        self._retry_after(PACE)
        return False

    def _gather(self, now: int) -> Shipment:
        """The next shipment: pieces for the same groups, as many as fit."""
        groups = self.queue[0].legs.keys()
        names = names_size(groups)
        routes = self._owner.routes
        route = routes.hops(now, self.destination)
        most = min(self._most, routes.max_frame(route or [self.destination]))
        each = self._owner.tickets.is_per_message(self.topic.name)
        self._put_first(
            cut(
                self._take_first(),
                lambda part: not each and fits(most, names, 1, len(part.runs), len(part.data)),
            )
        )
        taken: list[Queued] = []
        size = runs = 0
        while self.queue and self.queue[0].legs.keys() == groups:
            queued = self.queue[0]
            size, runs = size + len(queued.data), runs + len(queued.runs)
            if taken and (
                each
                or size > SHIPMENT_BYTES
                or len(taken) >= SHIPMENT_PIECES
                or not fits(most, names, len(taken) + 1, runs, size)
            ):
                break
            taken.append(self._take_first())
        shipment = self.outbound.new(
            self._ground.broker.new_id(), sum(count(queued.runs) for queued in taken)
        )
        shipment.bytes = sum(len(queued.data) for queued in taken)
        shipment.published_at = taken[0].time
        for queued in taken:
            shipment.pieces.append(Piece(queued.runs, queued.newest_first, len(queued.data)))
            shipment.data.append(queued.data)
            shipment.legs += [(group, lease, queued.runs) for group, lease in queued.legs.items()]
        return shipment

    def _take_first(self) -> Queued:
        queued = self.queue.popleft()
        self._queued_bytes -= len(queued.data)
        return queued

    def _put_first(self, parts: list[Queued]) -> None:
        """Put messages before those in the queue."""
        self.queue.extendleft(reversed(parts))
        self._queued_bytes += sum(len(part.data) for part in parts)

    def dispatch(self, shipment: Shipment, now: int, avoid: Collection[str] = ()) -> None:
        """Seal a shipment and give it to the next hop; or let it wait, and say for what."""
        if self.outbound.back(shipment.id) is not shipment:
            return  # it has arrived, or was begun again under another number, meanwhile
        ground, routes, destination = self._ground, self._owner.routes, self.destination
        if left := self._pause.left(now, ground.directory.version):
            self.waits_for = f"the registry to let {ground.name_of(destination)} have the topic's messages"
            self._retry_after(left)
            return
        route = routes.hops(now, destination, set(avoid)) or routes.hops(now, destination)
        if route is None:
            self.waits_for = f"a path to {ground.name_of(destination)}"
            return
        groups, pieces = shipment.groups, shipment.pieces
        measures = names_size(groups), len(pieces), sum(len(piece.runs) for piece in pieces), shipment.bytes
        if not fits(most := routes.max_frame(route), *measures):
            if shipment.messages > 1:
                self._cut_again(most)
                return
            size = frame_size(*measures)
            wide = routes.wide(destination, size, avoid) or routes.wide(destination, size)
            if wide is None:
                self._wait_for_wider(shipment, size, now)
                return
            route = wide
        if not self._owner.carrier.has_room(route[0]):
            self.waits_for = f"room on the link to {ground.name_of(route[0])}"
            return
        data = self._seal(shipment, now)
        if data is None:
            return
        self.waits_for = ""
        if shipment.attempts:
            self._owner.records.totals.repeated += 1
        self.outbound.sent(now, shipment, route, routes.graph.cost(ground.me, route) / 1000)
        why = routes.why(destination)
        self._owner.records.sent(self.topic.name, destination, shipment, route, why, now)
        self._owner.carrier.send(
            shipment.id, Kind.SHIPMENT, destination, route, data, partial(self._decided, shipment)
        )
        self._arm()

    def _cut_again(self, most: int) -> None:
        """The path takes smaller frames than the shipments on their way were cut for. Cut all of them anew
        and send them in a new epoch: their offsets tell the destination what it has already."""
        self._most = min(self._most, most)
        self._begin_again()

    def _begin_again(self) -> None:
        self._put_first([part for each in self.outbound.shipments.values() for part in _contents(each)])
        self.outbound = Outbound(self._ground.new_epoch())
        if not self._soon:
            self._soon = True
            asyncio.get_running_loop().call_soon(self._ship)

    def _wait_for_wider(self, shipment: Shipment, size: int, now: int) -> None:
        """No path takes the frame that a single message needs. If that stays so, the message becomes a dead
        letter here: those behind it must not wait for good."""
        if now - self._narrow_at > WIDER_WITHIN * SECOND:  # that was another time
            self._narrow_since = now
        self._narrow_at = now
        is_hopeless = self._owner.routes.max_frame([self.destination]) < size
        if not is_hopeless and now - self._narrow_since < WIDER_WITHIN * SECOND:
            name = self._ground.name_of(self.destination)
            self.waits_for = f"a path to {name} whose terminals take a frame of {size} bytes"
            self._retry_after(RETRY_AFTER)
            return
        self._give_up(shipment, "too_large")
        self.dispatch(shipment, now)

    def _give_up(self, shipment: Shipment, cause: str) -> None:
        """The messages of a shipment become dead letters here. The shipment still takes its place in the
        order, empty, and none in the window."""
        self._settle(shipment, bury=cause)
        self.outbound.empty(shipment)

    def _seal(self, shipment: Shipment, now: int) -> bytes | None:
        """None if that isn't possible now; ``waits_for`` says why."""
        sealer = self._owner.tickets.sealer(self.topic.name, shipment.messages, now)
        if sealer is None:
            self.waits_for = "a ticket from the registry"
            return None
        groups = self.topic.groups
        floors = {
            name: groups[name].delivery.cursor.floor if name in groups else 0 for name in shipment.groups
        }
        manifest = Manifest(
            self.topic.created_at,
            floors,
            shipment.pieces,
            self.outbound.oldest,
            self._ground.run,
            self._history(),
            self._owner.compared(self.topic, self.destination, shipment.groups),
        )
        shipment.seal_id = sealer.seal_id
        try:
            return sealer.seal(
                self.destination,
                self._ground.keys_of(self.destination),
                now=now,
                epoch=self.outbound.epoch,
                sequence=shipment.sequence,
                meta=encode_manifest(manifest),
                plaintext=shipment.data,
                messages=shipment.messages,
            )
        except BusError as error:
            self.waits_for = str(error)
            return None

    def _history(self) -> list[tuple[int, int]]:
        run, log = self._ground.run, self.topic.log
        is_known = self._knows_run == self._owner.run_of(self.destination)
        return [(run, log.began)] if is_known else log.history_of(run)

    def _decided(self, shipment: Shipment, code: str | None) -> None:
        if self.outbound.find(shipment.id) is not shipment:
            return  # it has arrived, or was begun again, meanwhile
        if code is None:
            self.outbound.kept(shipment.id)
            self._owner.records.kept(shipment, self._ground.now())
            return
        detail = f"shipment {shipment.sequence} to {self._ground.name_of(self.destination)}"
        self._ground.note("reroute", topic=self.topic.name, cause=code, detail=detail)
        self.returned(shipment)

    def returned(self, shipment: Shipment) -> None:
        """A hop has refused the shipment or sent it back. Avoid that hop, unless it is the only one. After
        every fourth attempt, retry after RETRY_AFTER."""
        self.outbound.back(shipment.id)
        self._owner.records.totals.reroutes += 1
        if shipment.attempts % 4 == 0:
            self._retry_after(RETRY_AFTER)
        else:
            self.dispatch(shipment, self._ground.now(), shipment.route[:1])

    def _retry_after(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._again is not None:
            if self._again.when() <= loop.time() + seconds:
                return
            self._again.cancel()
        self._again = loop.call_later(seconds, self._retry)

    def _retry(self) -> None:
        self._again = None
        self.look_again()

    def look_again(self) -> None:
        """Paths, tickets or room have changed: send what waits, oldest first."""
        now = self._ground.now()
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
            span = max(0.05, (deadline - self._ground.now()) / SECOND)
            self._timer = asyncio.get_running_loop().call_later(span, self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = self._ground.now()
        if self.outbound.overdue(now):
            self._owner.suspect(self.destination)
        # If a group has gone to another terminal because of that, the rest was begun again: none is overdue.
        for shipment in self.outbound.overdue(now):
            self._repeat(shipment, now)
        self._arm()

    def _repeat(self, shipment: Shipment, now: int) -> None:
        """Send it again, every other time by another way: the hop that has it may be gone, or only slow."""
        self.dispatch(shipment, now, shipment.route[:1] if shipment.attempts % 2 else ())

    # -- what the other end says -------------------------------------------------------------------

    def heard(self, message: Arrived | Stuck | Missing | EpochOver) -> None:
        if message.stream.epoch != self.outbound.epoch:
            return  # about an epoch that was given up: everything is being sent again
        match message:
            case Arrived():
                self._arrived(message)
            case Missing():
                self._missing(message)
            case Stuck():
                self._stuck(message)
            case EpochOver():
                self._ground.leap(message.latest)
                self._begin_again()

    def _arrived(self, message: Arrived) -> None:
        if self._owner.is_late(self.destination, message.run):
            return  # it may have lost them since; they are sent again
        self._knows_run = message.run
        now = self._ground.now()
        for shipment in self.outbound.arrived(message.stream.epoch, message.sequences):
            self._owner.records.arrived(shipment, now)
            for group, _, runs in shipment.legs:
                if group in self.hands:
                    confirmed = self.hands[group].consumer.group.confirmed
                    confirmed.add(self.destination, message.run, runs)
            self._settle(shipment)
            self._pause.end()
        if self.queue:
            self.ship_soon()

    def _settle(self, shipment: Shipment, *, bury: str = "") -> None:
        """Ack the messages of a shipment in their groups, or bury them for a cause."""
        for group, lease, runs in shipment.legs:
            if group in self.hands:
                self.hands[group].settle(lease, runs, bury)

    def _missing(self, message: Missing) -> None:
        for sequence in message.sequences:
            shipment = self.outbound.shipments.get(sequence)
            if shipment is not None and shipment.hop != "":
                self._repeat(shipment, self._ground.now())

    def _stuck(self, message: Stuck) -> None:
        shipment = self.outbound.shipments.get(message.sequence)
        if shipment is None:
            return
        now = self._ground.now()
        self._owner.tickets.forget(self.topic.name, shipment.seal_id)
        if message.code == "ticket_dead":
            # The topic forbids opening anything late: its messages become dead letters here.
            self._give_up(shipment, "ticket_expired")
        else:
            is_late = message.code == TicketExpired.code
            self._pause.begin(now, self._ground.directory.version, is_late=is_late)
        self.dispatch(shipment, now)

    def without(self, group: str) -> list[Range]:
        """A group goes elsewhere: send the rest again without it. Returns the offsets of its messages that
        were on their way."""
        self.hands.pop(group, None)
        for queued in self.queue:
            queued.legs.pop(group, None)
        self.queue = deque(queued for queued in self.queue if queued.legs)
        self._queued_bytes = sum(len(queued.data) for queued in self.queue)
        gone = self.outbound.restart(self._ground.new_epoch(), group)
        self.look_again()
        return normalise(
            run for shipment in gone for name, _, runs in shipment.legs if name == group for run in runs
        )

    def close(self) -> None:
        for timer in (self._timer, self._gathering, self._again):
            if timer is not None:
                timer.cancel()


def _contents(shipment: Shipment) -> list[Queued]:
    """The messages of a shipment, as they were queued."""
    parts = []
    for piece, data in zip(shipment.pieces, shipment.data, strict=True):
        part = Queued(piece.runs, piece.newest_first, data, shipment.published_at)
        part.legs = {group: lease for group, lease, runs in shipment.legs if runs is piece.runs}
        parts.append(part)
    return parts

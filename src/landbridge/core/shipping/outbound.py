"""Outbound: the shipments of one topic on their way from this terminal to another one.

A shipment is this terminal's to keep until the destination says that it has arrived, whoever else keeps it in
between. Where it is:

    waiting    for a ticket, or for a path
    sent       over a link whose other end hasn't kept it yet
    kept       by the next hop, on disk
    arrived    in the destination's log: forgotten here

Nothing is heard of for too long: it is sent again, with the same number, another way if there is one.
"""

from __future__ import annotations

from collections.abc import Iterable

from landbridge.core.log.batch import Buffer
from landbridge.core.log.ranges import Range
from landbridge.core.shipping.parcel import Piece
from landbridge.core.time import SECOND

#: Seconds without a word of a shipment's arrival after which it is sent again; and how that grows.
AGAIN_AFTER, AGAIN_AFTER_MOST = 10.0, 60.0
#: ... unless the path takes longer: so many round trips.
ROUND_TRIPS = 8


class Shipment:
    def __init__(self, sequence: int, id: bytes, messages: int) -> None:
        self.sequence = sequence
        self.id = id
        self.messages = messages
        self.pieces: list[Piece] = []
        self.data: list[Buffer] = []
        self.bytes = 0
        #: (group, lease, offsets)
        self.legs: list[tuple[str, int, list[Range]]] = []
        #: The link over which it was last sent, while nobody there has kept it; "" = it waits; None = kept.
        self.hop: str | None = ""
        self.route: list[str] = []
        #: The seal under which it was last sent; empty before that.
        self.seal_id = b""
        #: How often it was sent.
        self.attempts = 0
        #: When its first message was published, microseconds.
        self.published_at = 0
        #: When it is sent again if nothing is heard of it.
        self.again_at = 0

    @property
    def groups(self) -> list[str]:
        return sorted({group for group, _, _ in self.legs})


class Outbound:
    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._next = 1
        #: By sequence number, in order.
        self.shipments: dict[int, Shipment] = {}
        self._by_id: dict[bytes, Shipment] = {}
        #: Bytes on their way.
        self.bytes = 0

    def new(self, id: bytes, messages: int) -> Shipment:
        shipment = Shipment(self._next, id, messages)
        self._next += 1
        return shipment

    def add(self, shipment: Shipment) -> None:
        self.shipments[shipment.sequence] = shipment
        self._by_id[shipment.id] = shipment
        self.bytes += shipment.bytes

    def find(self, id: bytes) -> Shipment | None:
        return self._by_id.get(id)

    @property
    def oldest(self) -> int:
        """Below this number everything has arrived."""
        return next(iter(self.shipments), self._next)

    def sent(self, now: int, shipment: Shipment, route: list[str], round_trip: float) -> None:
        """``round_trip``: of the path, in seconds."""
        shipment.attempts += 1
        shipment.hop, shipment.route = route[0], route
        patience = max(AGAIN_AFTER * 2.0 ** min(shipment.attempts - 1, 8), ROUND_TRIPS * round_trip)
        shipment.again_at = now + int(min(patience, max(AGAIN_AFTER_MOST, ROUND_TRIPS * round_trip)) * SECOND)

    def kept(self, id: bytes) -> None:
        shipment = self._by_id.get(id)
        if shipment is not None and shipment.hop:
            shipment.hop = None

    def back(self, id: bytes) -> Shipment | None:
        """It is ours alone again: the link broke before it was kept, or it was declined or returned."""
        shipment = self._by_id.get(id)
        if shipment is not None:
            shipment.hop = ""
        return shipment

    def empty(self, shipment: Shipment) -> None:
        """There is nothing left in it to send, but its number is still waited for."""
        self.bytes -= shipment.bytes
        shipment.pieces, shipment.data, shipment.bytes, shipment.legs = [], [], 0, []

    def arrived(self, epoch: int, sequences: Iterable[int]) -> list[Shipment]:
        if epoch != self.epoch:
            return []
        done = [self.shipments.pop(sequence) for sequence in sequences if sequence in self.shipments]
        for shipment in done:
            del self._by_id[shipment.id]
            self.bytes -= shipment.bytes
        return done

    def restart(self, epoch: int, without: str) -> list[Shipment]:
        """A group's messages go elsewhere. What is on the way is sent again without it, in a new epoch, so
        that the order of the others stays; copies of the old epoch that are still somewhere are stale.
        Returns what was for that group."""
        before, self.shipments, self._by_id = self.shipments, {}, {}
        self.epoch, self._next, self.bytes = epoch, 1, 0
        gone = []
        for shipment in before.values():
            legs = [leg for leg in shipment.legs if leg[0] != without]
            if len(legs) < len(shipment.legs):
                gone.append(shipment)
            if legs:
                again = self.new(shipment.id, shipment.messages)
                again.pieces, again.data, again.bytes = shipment.pieces, shipment.data, shipment.bytes
                again.legs, again.published_at = legs, shipment.published_at
                self.add(again)
        return gone

    def overdue(self, now: int) -> list[Shipment]:
        """Kept by somebody, and not heard of for too long."""
        return [s for s in self.shipments.values() if s.hop != "" and s.again_at <= now]

    def waiting(self) -> list[Shipment]:
        return [s for s in self.shipments.values() if s.hop == ""]

    def next_deadline(self) -> int | None:
        return min((s.again_at for s in self.shipments.values() if s.hop != ""), default=None)

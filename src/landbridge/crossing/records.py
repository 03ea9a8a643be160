"""Records of shipments, for people: what was sent where, by which way, and when it arrived."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from landbridge.core.log.ranges import Range, normalise
from landbridge.core.shipping.outbound import Shipment

#: Shipments of the past that ``landbridge why`` can still tell about, and routes of each.
REMEMBERED, ROUTES = 10_000, 8


class ShipmentRecord(msgspec.Struct):
    """A shipment of the past or on its way. Moments are microseconds, 0 until they have come."""

    topic: str
    destination: str
    groups: list[str]
    runs: list[Range]
    sequence: int
    #: The route of each attempt, newest last.
    routes: list[list[str]]
    #: Why the last route was taken.
    why: str
    sent_at: int = 0
    kept_at: int = 0
    arrived_at: int = 0


class ForwarderTotals(msgspec.Struct):
    """Since the start."""

    #: Messages.
    shipped: int = 0
    arrived: int = 0
    #: Shipments that were sent again, and that took another way.
    repeated: int = 0
    reroutes: int = 0
    #: Groups that went to another terminal with messages under way.
    failovers: int = 0
    #: Messages that a failover came too late to take back: consumers at both terminals have seen them.
    doubled: int = 0


class Records:
    def __init__(self) -> None:
        self.totals = ForwarderTotals()
        #: Shipment id → what became of it, newest last.
        self.shipments: OrderedDict[bytes, ShipmentRecord] = OrderedDict()

    def sent(
        self, topic: str, destination: str, shipment: Shipment, route: list[str], why: str, now: int
    ) -> None:
        record = self.shipments.get(shipment.id)
        if record is None:
            self.totals.shipped += shipment.messages
            runs = normalise(run for piece in shipment.pieces for run in piece.runs)
            record = ShipmentRecord(topic, destination, shipment.groups, runs, shipment.sequence, [], "", now)
            self.shipments[shipment.id] = record
            if len(self.shipments) > REMEMBERED:
                self.shipments.popitem(last=False)
        record.routes.append(route)
        del record.routes[:-ROUTES]
        record.why = why

    def kept(self, shipment: Shipment, now: int) -> None:
        """The next hop has it on disk."""
        record = self.shipments.get(shipment.id)
        if record is not None and not record.kept_at:
            record.kept_at = now

    def arrived(self, shipment: Shipment, now: int) -> None:
        self.totals.arrived += shipment.messages
        record = self.shipments.get(shipment.id)
        if record is not None:
            record.arrived_at = now

    def find(self, topic: str, group: str, offset: int) -> ShipmentRecord | None:
        """The last shipment of a message to a group."""
        for record in reversed(self.shipments.values()):
            if (record.topic == topic and group in record.groups) and any(
                first <= offset < end for first, end in record.runs
            ):
                return record
        return None

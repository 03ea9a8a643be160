"""A shipment on the shelf keeps the ``oldest`` that it was first sealed with."""

from __future__ import annotations

from landbridge.core.shipping.inbound import Inbound
from landbridge.core.shipping.reassembly import LoadInbound, OpenSeal, Reassembly
from tests.core.test_reassembly import SECOND, SOURCE, shipment


def test_a_shipment_on_the_shelf_hears_that_everything_before_it_has_arrived():
    """Restored destination: number 2 was confirmed and is lost; 3 was sealed while 1 and 2 were on their way,
    and says oldest=1. The source sends 3 again and again, and says oldest=3 now."""
    table, now = Reassembly(), SECOND
    inbound = Inbound()
    inbound.apply(5, 1, {"billing": 0}, [(0, 1)])
    [load] = table.restore(shipment(now, (5, 3), 1, oldest=1, floor=0, offsets=[2]), 17)
    assert isinstance(load, LoadInbound)
    assert table.load(now, SOURCE, inbound) == []  # it is early
    effects = table.arrive(now, shipment(now, (5, 3), 1, oldest=3, floor=0, offsets=[2]), lambda code: None)
    assert any(isinstance(effect, OpenSeal) for effect in effects)

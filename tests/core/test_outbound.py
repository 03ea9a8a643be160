"""Shipments on their way: when they are sent again, and what is left of them when a group goes elsewhere."""

from __future__ import annotations

from landbridge.core.shipping.outbound import AGAIN_AFTER, AGAIN_AFTER_MOST, Outbound
from landbridge.core.shipping.parcel import Piece
from landbridge.core.time import SECOND


def shipment(outbound: Outbound, number: int, *groups: str):
    made = outbound.new(bytes([number]) * 16, 1)
    runs = [(number, number + 1)]
    made.pieces, made.data, made.bytes = [Piece(runs, False, 10)], [b"x" * 10], 10
    made.legs = [(group, number, runs) for group in groups]
    outbound.add(made)
    return made


def test_a_shipment_that_is_not_heard_of_is_due_again_later_each_time():
    outbound = Outbound(1)
    sent = shipment(outbound, 1, "g")
    spans = []
    for _ in range(5):
        outbound.sent(0, sent, ["hop", "there"], 0.1)
        spans.append(sent.again_at / SECOND)
    assert spans == [AGAIN_AFTER, 20.0, 40.0, AGAIN_AFTER_MOST, AGAIN_AFTER_MOST]
    assert outbound.overdue(int(59 * SECOND)) == []
    assert outbound.overdue(int(60 * SECOND)) == [sent]


def test_a_slow_path_is_given_eight_round_trips():
    outbound = Outbound(1)
    sent = shipment(outbound, 1, "g")
    outbound.sent(0, sent, ["hop"], 10.0)
    assert sent.again_at == 80 * SECOND


def test_what_waits_for_a_path_is_not_overdue():
    outbound = Outbound(1)
    sent = shipment(outbound, 1, "g")
    outbound.sent(0, sent, ["hop"], 0.0)
    assert outbound.back(sent.id) is sent
    assert outbound.overdue(10**12) == []
    assert outbound.waiting() == [sent]
    assert outbound.next_deadline() is None


def test_confirmations_of_another_epoch_mean_nothing():
    outbound = Outbound(7)
    sent = shipment(outbound, 1, "g")
    assert outbound.arrived(6, [1]) == []
    assert outbound.arrived(7, [1, 1, 9]) == [sent]
    assert (outbound.bytes, outbound.oldest) == (0, 2)


def test_when_a_group_goes_elsewhere_the_others_keep_their_order_in_a_new_epoch():
    outbound = Outbound(1)
    shipment(outbound, 1, "a", "b")
    gone = shipment(outbound, 2, "a")
    shipment(outbound, 3, "b")
    lost = outbound.restart(2, "a")
    assert [each.sequence for each in lost] == [1, gone.sequence]
    assert outbound.epoch == 2
    assert [(s.sequence, s.groups, s.pieces[0].runs) for s in outbound.shipments.values()] == [
        (1, ["b"], [(1, 2)]),
        (2, ["b"], [(3, 4)]),
    ]
    assert outbound.waiting() == list(outbound.shipments.values())
    assert outbound.bytes == 20

"""What travels: a shipment is read back as it was packed, and anything else is a bad frame."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import build
from landbridge.core.shipping import parcel
from landbridge.core.shipping.parcel import Ask, Manifest, Parcel, Piece, Tell
from landbridge.errors import BadFrame


def encoded(count: int) -> bytes:
    return build([b"x" * index for index in range(count)], id=bytes(16), time=1)


def packed(*pieces: tuple[list[tuple[int, int]], int]) -> tuple[Manifest, bytes]:
    data = [encoded(count) for _, count in pieces]
    manifest = Manifest(
        1,
        {"g": 0},
        [Piece(runs, False, len(batch)) for (runs, _), batch in zip(pieces, data, strict=True)],
        1,
    )
    return parcel.decode_manifest(parcel.encode_manifest(manifest)), b"".join(data)


def test_a_shipment_is_unpacked_as_it_was_packed():
    manifest, data = packed(([(0, 3)], 3), ([(5, 6), (9, 11)], 3))
    found = parcel.unpack(manifest, data)
    assert [(piece.runs, batch.payloads()) for piece, batch in found] == [
        ([(0, 3)], [b"", b"x", b"xx"]),
        ([(5, 6), (9, 11)], [b"", b"x", b"xx"]),
    ]


def test_an_empty_shipment_is_one():
    assert parcel.unpack(*packed()) == []


@pytest.mark.parametrize("runs", [[(0, 2)], [(0, 4)], [(3, 0)], [(-1, 2)], []])
def test_offsets_must_match_the_messages(runs):
    manifest, data = packed((runs, 3))
    with pytest.raises(BadFrame):
        parcel.unpack(manifest, data)


@given(st.integers(-50, 50))
def test_pieces_must_fill_the_shipment_exactly(by):
    manifest, data = packed(([(0, 2)], 2))
    changed = data[:by] if by < 0 else data + b"\0" * by
    if by:
        with pytest.raises(BadFrame):
            parcel.unpack(manifest, changed)


@given(st.binary(max_size=200))
def test_noise_is_a_bad_frame(noise):
    for decode in (parcel.decode_parcel, parcel.decode_manifest, parcel.decode_control):
        try:
            decode(noise)
        except BadFrame:
            pass


def test_control_messages_and_parcels_are_read_back():
    ask = Ask("orders", 5, "billing", 7, True)
    tell = Tell(ask, "settled", ["a", "b"], 9)
    assert parcel.decode_control(parcel.encode_control(tell)) == tell
    outside = Parcel(bytes(16), 0, "a", "b", 16, ["a"], ["c", "b"], 1)
    assert parcel.decode_parcel(parcel.encode_parcel(outside)) == outside

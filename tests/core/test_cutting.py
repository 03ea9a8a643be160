"""Shipments that fit: the bounds hold for what is really sealed, and cutting loses and reorders nothing."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, build
from landbridge.core.log.ranges import count
from landbridge.core.names import MAX_LENGTH
from landbridge.core.routing.linkstate import LEAST_FRAME
from landbridge.core.shipping.cutting import (
    MOST_NAMES,
    PARCEL_HEAD,
    Queued,
    cut,
    fits,
    frame_size,
    names_size,
)
from landbridge.core.shipping.parcel import TTL, Manifest, Piece, encode_manifest
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.seal import MAX_HEADER
from landbridge.errors import BadRequest
from landbridge.protocol import frames
from tests.core.crossing import NOW, Crossing

FAR = 1 << 61  # numbers that take the most bytes there are


def sealed(groups: list[str], pieces: list[Piece], size: int) -> bytes:
    world = Crossing("c" * 64, "t" * MAX_LENGTH)
    world.oslo = Identity("c" * 64, "o" * 64, SecureKey.new())
    old, new = (Identity("c" * 64, "l" * 64, SecureKey.new()) for _ in range(2))
    return world.sealer().seal(
        "l" * 64,
        [old.public, new.public],
        now=NOW,
        epoch=FAR,
        sequence=FAR,
        meta=encode_manifest(Manifest(FAR, dict.fromkeys(groups, FAR), pieces, FAR)),
        plaintext=bytes(size),
        messages=1,
    )


def singles(runs: int, size: int = 1 << 30) -> Piece:
    """A piece whose messages don't follow each other."""
    return Piece([(FAR + 2 * number, FAR + 2 * number + 1) for number in range(runs)], True, size)


@pytest.mark.parametrize("groups", [1, 38])
@pytest.mark.parametrize(("pieces", "runs"), [(1, 1), (512, 1), (1, 2000), (100, 25)])
def test_no_frame_is_larger_than_its_bound(groups, pieces, runs):
    names = [f"{number:0{MAX_LENGTH}}" for number in range(groups)]
    assert names_size(names) <= MOST_NAMES + MAX_LENGTH
    measures = names_size(names), pieces, pieces * runs, 1000
    assert fits(1 << 40, *measures)
    frame = sealed(names, [singles(runs)] * pieces, 1000)
    carry = frames.Carry(FAR, bytes(16), 0, "o" * 64, "l" * 64, TTL, ["v" * 64] * TTL, ["r" * 64] * 16, 3)
    assert len(msgspec.msgpack.encode(carry)) <= PARCEL_HEAD
    assert PARCEL_HEAD + len(frame) <= frame_size(*measures)


def test_what_has_a_header_too_large_to_be_sealed_does_not_fit():
    runs = MAX_HEADER // 19
    assert not fits(1 << 40, names_size(["g"]), 1, runs, 1000)
    with pytest.raises(BadRequest, match="header"):
        sealed(["g"], [singles(runs)], 1000)


def test_the_smallest_frame_takes_a_message_of_32_kib():
    assert fits(LEAST_FRAME, MOST_NAMES, 1, 1, 32 << 10)


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=60),
    gaps=st.data(),
    most=st.integers(1, 4000),
    newest_first=st.booleans(),
)
def test_the_parts_are_the_whole_in_the_order_of_its_group(sizes, gaps, most, newest_first):
    steps = gaps.draw(st.lists(st.integers(1, 3), min_size=len(sizes), max_size=len(sizes)))
    offsets = [sum(steps[: index + 1]) for index in range(len(sizes))]
    messages = [bytes([index]) * size for index, size in enumerate(sizes)]
    runs: list[tuple[int, int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset:
            runs[-1] = (runs[-1][0], offset + 1)
        else:
            runs.append((offset, offset + 1))
    whole = Queued(runs, newest_first, build(messages, id=bytes(16), time=7), 7)
    whole.legs = {"billing": 3}
    parts = cut(whole, lambda part: len(part.data) <= most)
    assert all(len(part.data) <= most or count(part.runs) == 1 for part in parts)
    assert all(
        (part.time, part.legs, part.newest_first) == (7, {"billing": 3}, newest_first) for part in parts
    )
    found: list[tuple[int, bytes, str]] = []
    for part in parts[::-1] if newest_first else parts:
        batch = Batch.decode(part.data)
        batch.validate()
        found += zip(
            [offset for first, end in part.runs for offset in range(first, end)],
            batch.payloads(),
            [batch.id_of(index) for index in range(len(batch))],
            strict=True,
        )
    ids = [Batch.decode(whole.data).id_of(index) for index in range(len(messages))]
    assert found == list(zip(offsets, messages, ids, strict=True))

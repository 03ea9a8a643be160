"""Ids that say when they were made."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.time import SECOND, uuid7

moments = st.integers(0, 2**47 * 1000)
noise = st.binary(min_size=10, max_size=10)


@given(moments, noise)
def test_id_is_a_uuid_of_version_7_that_says_when(now: int, random_bytes: bytes) -> None:
    made = uuid.UUID(bytes=uuid7(now, random_bytes))
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert made.int >> 80 == now // 1000


@given(moments, noise, noise)
def test_later_ids_sort_after_earlier_ones(now: int, one: bytes, other: bytes) -> None:
    assert uuid7(now, one) < uuid7(now + SECOND, other)


def test_all_bits_but_version_and_variant_are_random() -> None:
    difference = int.from_bytes(uuid7(0, b"\xff" * 10), "big") ^ int.from_bytes(uuid7(0, bytes(10)), "big")
    assert difference.bit_count() == 74

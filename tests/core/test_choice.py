"""Choices of a batch's messages, against a list of rows."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, Origin, build, encode_headers
from landbridge.core.rules.choice import RowChoice, decode_choice, encode_choice, runs_of
from landbridge.errors import BadFrame

ROWS = st.sets(st.integers(0, 60), min_size=1).map(sorted)


def batch(count: int) -> Batch:
    return Batch.decode(
        build(
            [b"%d" % n for n in range(count)],
            id=bytes(range(16)),
            time=7,
            keys=[b"k%d" % (n % 3) for n in range(count)],
            headers=[encode_headers({"n": n}) for n in range(count)],
            priorities=[n % 10 for n in range(count)],
            times=[100 + n for n in range(count)],
        )
    )


@given(ROWS, st.integers(0, 1 << 50))
def test_a_choice_has_the_rows_as_they_are_and_knows_their_offsets(rows: list[int], offset: int) -> None:
    choice = decode_choice(encode_choice(RowChoice(offset, runs_of(rows))))
    assert choice == RowChoice(offset, runs_of(rows))
    assert len(choice) == len(rows)
    assert [choice.offset_at(at) for at in range(len(rows))] == [offset + row for row in rows]
    with pytest.raises(IndexError):
        choice.offset_at(len(rows))
    whole = batch(61)
    whole.audience, whole.is_letter = frozenset({"elsewhere"}), True
    whole.origin = Origin("paris", 1, [(0, 61)], ["paris"], 5)
    chosen = choice.of(whole)
    assert chosen.payloads() == [b"%d" % row for row in rows]
    assert chosen.keys() == [b"k%d" % (row % 3) for row in rows]
    assert [chosen.headers(at) for at in range(len(rows))] == [{"n": row} for row in rows]
    assert list(chosen.priorities() or bytes(len(rows))) == [row % 10 for row in rows]
    assert [chosen.time_of(at) for at in range(len(rows))] == [100 + row for row in rows]
    assert [chosen.id_of(at) for at in range(len(rows))] == [whole.id_of(row) for row in rows]
    assert (chosen.audience, chosen.is_letter, chosen.origin) == (None, False, None)
    assert Batch.decode(chosen.encode()).payloads() == chosen.payloads()


@given(ROWS)
def test_runs_are_the_rows(rows: list[int]) -> None:
    runs = runs_of(rows)
    assert [row for first, end in runs for row in range(first, end)] == rows
    assert all(end < first for (_, end), (first, _) in pairwise(runs))


def test_a_few_rows_of_a_large_batch_keep_no_more_than_themselves() -> None:
    large = batch(60)
    assert RowChoice(0, [(5, 7)]).of(large).size < large.size / 4
    assert RowChoice(0, [(5, 7), (9, 10)]).of(large).size < large.size / 4
    assert len(encode_choice(RowChoice(1000, [(3, 4)]))) < 10


@pytest.mark.parametrize(
    "numbers",
    [[], [5], [5, 1], [5, 1, 0], [5, 1, 2, 0, 3], [-1, 0, 1], [5, -1, 2], [5, 1, 2, 3], "text", [1.5]],
)
def test_what_is_no_choice_is_refused(numbers: object) -> None:
    with pytest.raises(BadFrame):
        decode_choice(msgspec.msgpack.encode(numbers))


def test_a_choice_of_rows_that_a_batch_does_not_have_is_refused() -> None:
    for rows in ([], [(0, 4)], [(0, 1), (2, 5)]):
        with pytest.raises(BadFrame):
            RowChoice(0, rows).of(batch(3))

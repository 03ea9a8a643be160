"""Shards, packs and the audience, without Spark."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.time import SECOND
from landbridge.errors import BadOption, SequenceGap
from landbridge.pipeline.jobs.sequence.audience import Audience
from landbridge.pipeline.jobs.sequence.packs import Packing, Unpacking, pack, packs, unpack
from landbridge.pipeline.jobs.sequence.policy import GapPolicy
from landbridge.pipeline.jobs.sequence.shard import GIVEN_UP, Shard
from tests.events import oracle, random_lines, shuffled

SCHEMA = pa.schema(
    [
        ("source", pa.binary()),
        ("sequence", pa.int64()),
        ("reason", pa.string()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
    ]
)


def rows(*given: tuple[str, int], first: int = 0) -> pa.Table:
    """Of sources and numbers, with the offsets that follow on ``first``."""
    table = [
        {"source": source.encode(), "sequence": number, "value": f"{source}{number}@{offset}".encode()}
        | {"offset": offset}
        for offset, (source, number) in enumerate(given, first)
    ]
    return pa.Table.from_pylist(table, SCHEMA)


def values(table: pa.Table | None, *, late: bool = False) -> list[str]:
    assert table is not None
    return [row["value"].decode() for row in table.to_pylist() if row["late"] is late]


PLAIN = GapPolicy()


def again(shard: Shard, policy: GapPolicy = PLAIN) -> Shard:
    restored = Shard(policy)
    restored.restore(*shard.save())
    return restored


Batches = st.lists(
    st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.integers(0, 20)), max_size=20), max_size=8
)


@given(Batches, st.randoms(use_true_random=False))
def test_releases_what_an_oracle_releases_in_whatever_order_rows_come(batches: Any, dice: Any) -> None:
    shard = Shard(GapPolicy())
    expected: dict[str, list[str]] = {}
    got: dict[str, list[str]] = {}
    waiting: dict[str, dict[int, str]] = {"a": {}, "b": {}, "c": {}}
    at = dict.fromkeys(waiting, 1)
    offset = 0
    for batch in batches:
        table = rows(*batch, first=offset)
        for each, (source, number) in enumerate(batch, offset):
            if number >= at[source]:
                waiting[source].setdefault(number, f"{source}{number}@{each}")
        offset += len(batch)
        for source, held in waiting.items():
            while at[source] in held:
                expected.setdefault(source, []).append(held.pop(at[source]))
                at[source] += 1
        order = list(range(len(batch)))
        dice.shuffle(order)
        for value in values(shard.take(0, table.take(pa.array(order, pa.int64())))):
            got.setdefault(value[0], []).append(value)
        assert got == expected
        assert shard.held == sum(map(len, waiting.values()))
        if dice.random() < 0.5:
            shard = again(shard)


def test_a_source_whose_rows_wait_keeps_them_while_others_go_on() -> None:
    shard = Shard(GapPolicy())
    shard.take(0, rows(("a", 3), ("a", 2)))
    shard = again(shard)
    assert values(shard.take(0, rows(("b", 1), first=2))) == ["b1@2"]
    assert values(again(shard).take(0, rows(("a", 1), first=3))) == ["a1@3", "a2@1", "a3@0"]


def test_rows_with_a_reason_pass_and_move_nothing() -> None:
    shard = Shard(GapPolicy())
    refused = rows(("a", 1)).to_pylist()[0] | {"sequence": None, "source": None, "reason": "no number"}
    out = shard.take(0, pa.concat_tables([pa.Table.from_pylist([refused], SCHEMA), rows(("a", 1), first=9)]))
    assert [(r["value"], r["reason"]) for r in out.to_pylist()] == [(b"a1@9", None), (b"a1@0", "no number")]


def test_number_that_was_given_up_is_late_once_and_a_repetition_is_dropped() -> None:
    policy = GapPolicy(hold=8)
    shard = Shard(policy)
    numbers = [2, 3, 5, 6, 7, 8, 9, 10, 12]
    assert values(shard.take(0, rows(*(("a", n) for n in numbers)))) == ["a2@0", "a3@1"]
    shard = again(shard, policy)
    out = shard.take(0, rows(("a", 1), ("a", 2), ("a", 1), ("a", 4), first=20))
    assert values(out, late=True) == ["a1@20"]
    assert values(out) == ["a4@23", *(f"a{n}@{at}" for at, n in enumerate(range(5, 11), 2))]
    out = again(shard, policy).take(0, rows(("a", 1), ("a", 11), first=30))
    assert values(out, late=True) == []
    assert values(out) == ["a11@31", "a12@8"]


@given(st.permutations(range(1, 80)), st.integers(1, 12), st.integers(1, 6))
def test_with_few_that_may_wait_each_row_still_comes_out_once(numbers: Any, size: int, hold: int) -> None:
    policy = GapPolicy(hold=hold)
    shard, out, late = Shard(policy), [], []
    for at in range(0, len(numbers), size):
        table = shard.take(0, rows(*(("a", n) for n in numbers[at : at + size]), first=at))
        out += values(table)
        late += values(table, late=True)
        assert shard.held <= hold
        shard = again(shard, policy)
    released = [int(value[1:].partition("@")[0]) for value in out]
    assert released == sorted(released)
    assert len(out) + len(late) + shard.held == len(numbers)
    assert len(set(out) | set(late)) == len(out) + len(late)


def test_memory_of_given_up_numbers_is_bounded() -> None:
    shard = Shard(GapPolicy(hold=1))
    shard.take(0, rows(*(("a", n) for n in range(2, 4 * GIVEN_UP, 2))))
    positions, _ = shard.save()
    assert len(positions) < 10 * GIVEN_UP
    assert values(shard.take(0, rows(("a", 1))), late=True) == []


def test_refusing_names_the_source_and_what_to_do() -> None:
    shard = Shard(GapPolicy(hold=1, on_gap="refuse"))
    with pytest.raises(SequenceGap, match="source 'b': number 1 is missing") as caught:
        shard.take(0, rows(("a", 1), ("b", 2), ("b", 3)))
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]


def test_gap_is_given_up_after_its_time() -> None:
    policy = GapPolicy(gap_within=5.0)
    shard = Shard(policy)
    shard.take(0, rows(("a", 2)))
    shard.take(3 * SECOND, rows(("b", 2)))
    shard = again(shard, policy)
    assert shard.next_deadline() == 5 * SECOND
    assert values(shard.advance(5 * SECOND)) == ["a2@0"]
    assert shard.next_deadline() == 8 * SECOND
    assert values(shard.advance(7 * SECOND)) == []
    assert values(shard.advance(8 * SECOND)) == ["b2@0"]
    assert shard.next_deadline() is None
    assert shard.advance(99 * SECOND) is None
    assert values(shard.take(99 * SECOND, rows(("a", 1))), late=True) == ["a1@0"]


def test_another_number_of_shards_or_other_columns_are_refused() -> None:
    shard = Shard(GapPolicy(), 4)
    shard.take(0, rows(("a", 2)))
    with pytest.raises(BadOption, match="shards=4, not 1"):
        Shard(GapPolicy()).restore(*shard.save())
    with pytest.raises(BadOption, match="1 rows wait that have other columns"):
        shard.take(0, rows(("a", 1)).drop_columns(["offset"]))


@pytest.mark.parametrize(
    "policy",
    [GapPolicy(hold=0), GapPolicy(first=-1), GapPolicy(on_gap="wait"), GapPolicy(gap_within=0.0)],  # type: ignore[arg-type]
)
def test_policy_that_can_not_be_is_refused(policy: GapPolicy) -> None:
    with pytest.raises(BadOption):
        policy.check()


# -- packs --------------------------------------------------------------------------------------------


def test_packs_have_the_rows_of_a_shard_in_their_order() -> None:
    table = pa.table({"shard": pa.array([1, 0, 1, 2, 1], pa.int32()), "n": [1, 2, 3, 4, 5]})
    found = [row for batch in Packing()(table.to_batches(2)) for row in batch.to_pylist()]
    assert [(row["shard"], unpack(row["rows"]).column("n").to_pylist()) for row in found] == [
        (0, [2]),
        (1, [1, 3, 5]),
        (2, [4]),
    ]
    packed = pa.RecordBatch.from_pydict({"rows": [row["rows"] for row in found]})
    assert [row["n"] for batch in Unpacking()([packed]) for row in batch.to_pylist()] == [2, 1, 3, 5, 4]


def test_no_rows_are_no_packs() -> None:
    table = rows()
    assert list(packs(table)) == []
    assert unpack(pack(table)).schema == SCHEMA
    assert list(Packing()(table.append_column("shard", pa.array([], pa.int32())).to_batches())) == []


# -- the audience -------------------------------------------------------------------------------------


def told(audience: Audience, batches: Any) -> dict[bytes, list[bytes]]:
    got: dict[bytes, list[bytes]] = {}
    for batch in batches:
        for client, line in audience.tell(batch):
            assert client is not None
            got.setdefault(client, []).append(line)
    return got


@pytest.mark.parametrize("seed", range(5))
def test_users_that_are_there_from_the_beginning_are_told_what_the_oracle_says(seed: int) -> None:
    lines = random_lines(seed, 2000, 20)
    users = [b"%d" % n for n in range(1, 21)]
    audience = Audience(users)
    got: dict[bytes, list[bytes]] = {user: [] for user in users}
    for at in range(0, len(lines), 150):
        for client, line in audience.tell(lines[at : at + 150]):
            got[client].append(line)  # type: ignore[index]
        restored = Audience()
        restored.restore(audience.save())
        audience = restored
    assert got == oracle(lines, users)


def first_named(lines: list[bytes]) -> dict[bytes, int]:
    found: dict[bytes, int] = {}
    for at, line in enumerate(lines):
        for name in line.split(b"|")[2:]:
            found.setdefault(name, at)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_user_is_told_from_the_first_event_on_that_names_it(seed: int) -> None:
    lines = random_lines(seed, 1000, 50)
    since = first_named(lines)
    place = {line: at for at, line in enumerate(lines)}
    expected = {
        client: kept
        for client, all_of_it in oracle(lines, since).items()
        if (kept := [line for line in all_of_it if place[line] >= since[client]])
    }
    dice = random.Random(seed)
    cuts = [0, *sorted(dice.sample(range(1, 1000), 7)), 1000]
    assert told(Audience(), [lines[a:b] for a, b in pairwise(cuts)]) == expected


def test_line_that_means_nothing_names_nobody_and_is_told_to_nobody() -> None:
    audience = Audience([b"1"])
    lines = [b"1|X|2|3", b"2", b"3|P|4|5|6", b"4|B|\n5|P", b"5|P|7|an id with spaces"]
    assert list(audience.tell(lines)) == [(None, line) for line in (*lines[:3], lines[3])]
    assert audience.users == {b"1", b"7"}


def test_everything_of_a_shuffled_source_reaches_the_audience() -> None:
    lines = random_lines(3, 3000, 30)
    users = [b"%d" % n for n in range(1, 31)]
    shard, audience = Shard(GapPolicy()), Audience(users)
    got: dict[bytes, list[bytes]] = {user: [] for user in users}
    for batch in shuffled(4, lines, 500):
        table = [{"source": b"", "sequence": int(line.split(b"|")[0]), "value": line} for line in batch]
        released = shard.take(0, pa.Table.from_pylist(table, SCHEMA)).column("value").to_pylist()
        for client, line in audience.tell(released):
            got[client].append(line)  # type: ignore[index]
    assert got == oracle(lines, users)

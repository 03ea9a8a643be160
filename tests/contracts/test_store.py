"""The contract of a Store, the same for every driver. A new driver joins by a line in STORES."""

from __future__ import annotations

import os
import tempfile
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from landbridge.core.log.store import (
    LEDGER_ONLY,
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    Store,
    StoredBatch,
    Trim,
    Write,
    keys_of,
)
from landbridge.core.store_address import parse_address
from landbridge.errors import BadRequest, StoreBusy, StoreFailed
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.stores.postgres.store import PostgresStore
from landbridge.stores.redis.store import RedisStore
from tests.plain_store import PlainStore
from tests.servers import name_of, shared_postgres, shared_valkey
from tests.store_model import Model


@dataclass(frozen=True)
class Driver:
    name: str
    #: A closed store in a folder. Made twice in the same folder it is the same store, if it is durable.
    of: Callable[[Path], Store]
    durable: bool = True
    #: Examples of the random test. A server takes much longer to be opened than a folder.
    examples: int = 40

    def make(self, folder: Path) -> PlainStore:
        return PlainStore(self.of(folder))


def restless(folder: Path) -> JournalStore:
    """Has small segments, so that it makes, cleans and removes them all the time."""
    return JournalStore(folder / "bus", smallest=8192, largest=16384)


def redis(folder: Path) -> RedisStore:
    return RedisStore(parse_address(shared_valkey().url(name_of(folder))))


def postgres(folder: Path) -> PostgresStore:
    return PostgresStore(parse_address(shared_postgres().url(name_of(folder))))


STORES = [
    Driver("memory", lambda folder: MemoryStore(), durable=False),
    Driver("journal", lambda folder: JournalStore(folder / "bus")),
    Driver("journal-restless", restless),
    Driver("redis", redis, examples=10),
    Driver("postgres", postgres, examples=4),
]
#: A disk in memory, where there is one: thousands of commits, and none of them has to survive a power cut.
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
ALL = 1 << 40  # more bytes than any test stores


@pytest.fixture(params=STORES, ids=lambda driver: driver.name)
def driver(request: pytest.FixtureRequest) -> Driver:
    return request.param


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK) as name:
        yield Path(name)


@pytest.fixture
def store(driver: Driver, folder: Path) -> Iterator[PlainStore]:
    store = driver.make(folder)
    store.open()
    yield store
    assert store.check() == []
    store.close()


def batch(first: int, count: int = 10, *, log: int = 1, time: int = 0, data: bytes | None = None) -> Append:
    return Append(log, first, first + count, time, data if data is not None else b"batch at %d" % first)


def firsts(batches: list[StoredBatch]) -> list[int]:
    return [found.first for found in batches]


# -- logs and reading


def test_a_new_store_is_empty(store: PlainStore) -> None:
    assert store.logs() == {}
    assert store.read(1, 0, ALL) == []
    assert store.seek_time(1, 0) == 0
    assert store.ledger(1, b"producer") is None
    assert list(store.documents("topic")) == []


def test_what_was_appended_is_read(store: PlainStore) -> None:
    store.commit([Append(1, 0, 10, 123, b"hello"), Append(1, 10, 11, 124, b"")])
    assert store.read(1, 0, ALL) == [StoredBatch(0, 10, 123, b"hello"), StoredBatch(10, 11, 124, b"")]
    assert store.logs() == {1: LogBounds(0, 11, 5, 124)}


def test_nothing_to_commit_is_no_error(store: PlainStore) -> None:
    store.commit([])
    store.commit([Trim(1, 5), DeleteDocument("topic", "none"), PutLedger(1, b"none", None), DropLog(9)])
    assert store.logs() == {}


def test_reading_begins_with_the_batch_that_holds_the_offset(store: PlainStore) -> None:
    store.commit([batch(0), batch(10), batch(20)])
    assert firsts(store.read(1, 9, ALL)) == [0, 10, 20]
    assert firsts(store.read(1, 10, ALL)) == [10, 20]
    assert firsts(store.read(1, 29, ALL)) == [20]


def test_reading_at_or_past_the_end_finds_nothing(store: PlainStore) -> None:
    store.commit([batch(0)])
    assert store.read(1, 10, ALL) == []
    assert store.read(1, 1000, ALL) == []
    assert store.read(2, 0, ALL) == []


def test_reading_returns_what_fits_but_at_least_one(store: PlainStore) -> None:
    store.commit([batch(0, data=b"x" * 100), batch(10, data=b"x" * 100), batch(20, data=b"x" * 100)])
    assert firsts(store.read(1, 0, 0)) == [0]
    assert firsts(store.read(1, 0, 199)) == [0]
    assert firsts(store.read(1, 0, 200)) == [0, 10]
    assert firsts(store.read(1, 0, 299)) == [0, 10]
    assert firsts(store.read(1, 5, 300)) == [0, 10, 20]


def test_large_batches_come_back_whole(store: PlainStore) -> None:
    data = [bytes([number]) * size for number, size in enumerate((1, 16_000, 17_000, 100_000, 1_000_000))]
    store.commit([Append(1, at, at + 1, 0, part) for at, part in enumerate(data)])
    assert [found.data for found in store.read(1, 0, ALL)] == data
    assert store.logs()[1].bytes == sum(map(len, data))


def test_a_log_may_start_anywhere(store: PlainStore) -> None:
    store.commit([batch(5000)])
    assert store.logs() == {1: LogBounds(5000, 5010, 13, 0)}
    assert firsts(store.read(1, 0, ALL)) == [5000]


def test_logs_do_not_mix(store: PlainStore) -> None:
    store.commit([batch(0, log=1), batch(0, log=2), batch(10, log=1), batch(0, log=-3)])
    assert firsts(store.read(1, 0, ALL)) == [0, 10]
    assert firsts(store.read(2, 0, ALL)) == [0]
    assert {log: bounds.end for log, bounds in store.logs().items()} == {1: 20, 2: 10, -3: 10}


def test_a_view_is_stored_as_its_bytes_at_the_time_of_the_commit(store: PlainStore) -> None:
    buffer = bytearray(b"....payload....")
    numbers = array("q", range(1000))
    store.commit([Append(1, 0, 1, 0, memoryview(buffer)[4:11]), Append(1, 1, 2, 0, memoryview(numbers))])
    buffer[:] = b"?" * len(buffer)
    assert [found.data for found in store.read(1, 0, ALL)] == [b"payload", numbers.tobytes()]
    assert store.logs()[1].bytes == 7 + 8000


# -- appends that break the rules


@pytest.mark.parametrize(
    "append",
    [
        pytest.param(batch(11), id="gap"),
        pytest.param(batch(9), id="overlap"),
        pytest.param(batch(0), id="again"),
        pytest.param(batch(10, 0), id="empty"),
        pytest.param(batch(10, -1), id="backwards"),
        pytest.param(batch(-10, 5, log=2), id="negative"),
        pytest.param(batch(10, 2**63, log=1), id="beyond 64 bits"),
        pytest.param(batch(10, time=99), id="older than the log's newest"),
    ],
)
def test_a_commit_with_a_wrong_append_is_refused_whole(store: PlainStore, append: Append) -> None:
    store.commit([batch(0, time=100), PutDocument("topic", "a", b"1"), PutLedger(1, b"p", b"1")])
    before = store.logs()
    with pytest.raises(BadRequest):
        store.commit(
            [
                PutDocument("topic", "a", b"2"),
                batch(0, log=7),
                PutLedger(1, b"p", None),
                Trim(1, 10),
                append,
                DeleteDocument("topic", "a"),
            ]
        )
    assert store.logs() == before
    assert firsts(store.read(1, 0, ALL)) == [0]
    assert store.read(7, 0, ALL) == []
    assert list(store.documents("topic")) == [("a", b"1")]
    assert store.ledger(1, b"p") == b"1"
    store.commit([batch(10, time=100)])  # and the store still works
    assert store.logs()[1].end == 20


# -- copies


def copy(of: Append, first: int, *, log: int, time: int = 0) -> Copy:
    return Copy(log, first, first + of.end - of.first, time, of.log, of.first)


def copied(of: Append, first: int, *, time: int = 0) -> StoredBatch:
    return StoredBatch(first, first + of.end - of.first, time, bytes(of.data))


LARGE = batch(0, 3, data=bytes(range(256)) * 500)
SMALL = batch(3, 10, data=b"small")
SMALL_FIRST = batch(0, 3, data=b"s")


def test_a_copy_is_the_same_batch_in_another_place(store: PlainStore) -> None:
    store.commit([LARGE, SMALL, batch(7, 2, log=2, time=5)])
    store.commit([copy(SMALL, 9, log=2, time=5), copy(LARGE, 19, log=2, time=6)])
    assert store.read(2, 9, ALL) == [copied(SMALL, 9, time=5), copied(LARGE, 19, time=6)]
    assert store.read(1, 0, ALL) == [copied(LARGE, 0), copied(SMALL, 3)]
    assert store.logs()[2] == LogBounds(7, 22, 10 + 5 + 128_000, 6)
    assert store.seek_time(2, 6) == 19
    assert firsts(store.read(2, 9, 128_004)) == [9]


def test_a_copy_may_begin_a_log_and_copies_may_be_copied(store: PlainStore) -> None:
    store.commit([LARGE])
    store.commit([copy(LARGE, 50, log=2)])
    store.commit([Copy(3, 0, 3, 0, 2, 50), Copy(3, 3, 6, 0, 2, 50), Copy(3, 6, 9, 0, 3, 0)])
    assert store.read(3, 0, ALL) == [copied(LARGE, first) for first in (0, 3, 6)]
    store.commit([DropLog(1), Trim(3, 6)])
    assert store.read(2, 0, ALL) == [copied(LARGE, 50)]
    assert store.read(3, 0, ALL) == [copied(LARGE, 6)]
    store.commit([DropLog(2)])
    assert store.read(3, 0, ALL) == [copied(LARGE, 6)]
    store.commit([Trim(3, 9)])
    assert store.logs() == {3: LogBounds(9, 9, 0, 0)}


@pytest.mark.parametrize(
    ("write", "left"),
    [
        pytest.param(Trim(1, 3), 2, id="trim the one"),
        pytest.param(DropLog(1), 2, id="drop the one"),
        pytest.param(Trim(2, 3), 1, id="trim the other"),
        pytest.param(DropLog(2), 1, id="drop the other"),
    ],
)
def test_either_side_may_go_without_the_other_noticing(store: PlainStore, write: Write, left: int) -> None:
    store.commit([LARGE, copy(LARGE, 0, log=2)])
    before = store.logs()[left]
    store.commit([write])
    assert store.check() == []
    assert store.logs()[left] == before
    assert store.read(left, 0, ALL) == [copied(LARGE, 0)]
    store.commit([batch(0, log=5), DropLog(left)])  # and the last one
    assert store.read(left, 0, ALL) == []


def test_a_stretch_of_shared_and_other_batches_goes_together(store: PlainStore) -> None:
    batches = [batch(at * 10, data=b"%d" % at * 4000) for at in range(20)]
    store.commit(batches)
    store.commit([copy(each, at * 10, log=2) for at, each in enumerate(batches[::2])])
    store.commit([copy(each, at * 10, log=3) for at, each in enumerate(batches[::4])])
    store.commit([Trim(1, 150)])
    assert firsts(store.read(1, 0, ALL)) == [150, 160, 170, 180, 190]
    store.commit([DropLog(2)])
    assert [each.data for each in store.read(3, 0, ALL)] == [each.data for each in batches[::4]]
    assert store.read(1, 0, ALL)[1].data == batches[16].data


def test_a_copy_sees_what_comes_before_it_in_its_commit(store: PlainStore) -> None:
    store.commit([LARGE, SMALL])
    store.commit(
        [
            Trim(1, 10**9),
            batch(13, 4, data=b"new"),
            Copy(2, 0, 4, 0, 1, 13),
            DropLog(1),
            batch(13, 2, data=b"newer"),
            Copy(2, 4, 6, 0, 1, 13),
            DropLog(1),
        ]
    )
    assert [each.data for each in store.read(2, 0, ALL)] == [b"new", b"newer"]


@pytest.mark.parametrize(
    "writes",
    [
        pytest.param([Copy(2, 10, 13, 9, 7, 0)], id="of no log"),
        pytest.param([Copy(2, 10, 13, 9, 1, 1)], id="of the middle of a batch"),
        pytest.param([Copy(2, 10, 13, 9, 1, 13)], id="of the log's end"),
        pytest.param([Copy(2, 10, 12, 9, 1, 0)], id="shorter"),
        pytest.param([Copy(2, 10, 14, 9, 1, 0)], id="longer"),
        pytest.param([Copy(2, 11, 14, 9, 1, 0)], id="gap"),
        pytest.param([Copy(2, 9, 12, 9, 1, 0)], id="overlap"),
        pytest.param([Copy(2, 10, 13, 8, 1, 0)], id="older than the log's newest"),
        pytest.param([Copy(4, -3, 0, 9, 1, 0)], id="negative"),
        pytest.param([Trim(1, 3), Copy(2, 10, 13, 9, 1, 0)], id="of what was just trimmed"),
        pytest.param([DropLog(1), Copy(2, 10, 13, 9, 1, 0)], id="of what was just dropped"),
        pytest.param([Copy(2, 10, 13, 9, 3, 0)], id="of what was trimmed before"),
        pytest.param([Trim(3, 24), Copy(2, 10, 13, 9, 3, 21)], id="of what was trimmed and not removed yet"),
    ],
)
def test_a_copy_that_breaks_the_rules_is_refused_whole(store: PlainStore, writes: list[Write]) -> None:
    store.commit([LARGE, SMALL, batch(0, log=2, time=9)])
    store.commit([batch(at * 3, 3, log=3) for at in range(9)])
    store.commit([Trim(3, 3)])
    before = store.logs()
    with pytest.raises(BadRequest):
        store.commit([Copy(5, 0, 3, 0, 1, 0), PutDocument("topic", "a", b"1"), *writes])
    assert store.logs() == before
    assert store.read(1, 0, ALL) == [copied(LARGE, 0), copied(SMALL, 3)]
    assert list(store.documents("topic")) == []
    store.commit([copy(LARGE, 10, log=2, time=9)])
    assert store.read(2, 10, ALL) == [copied(LARGE, 10, time=9)]


def test_a_choice_is_some_of_a_batch_which_is_stored_once(store: PlainStore) -> None:
    store.commit([LARGE, SMALL])
    store.commit([Copy(2, 0, 2, 5, 1, 0, b"two"), Copy(3, 9, 10, 5, 1, 0, b"one")])
    store.commit([Copy(2, 2, 3, 5, 1, 3, b"")])
    assert store.read(2, 0, ALL) == [
        StoredBatch(0, 2, 5, bytes(LARGE.data), b"two"),
        StoredBatch(2, 3, 5, b"small", b""),
    ]
    assert store.read(1, 0, ALL) == [copied(LARGE, 0), copied(SMALL, 3)]
    assert store.logs()[3] == LogBounds(9, 10, 128_000, 5)
    assert store.seek_time(3, 5) == 9
    # A copy of the whole takes the choice along, in the same commit, too.
    store.commit([DropLog(1), Copy(4, 0, 2, 0, 2, 0), Copy(4, 2, 4, 0, 4, 0), Trim(2, 3), DropLog(3)])
    chosen = [StoredBatch(at, at + 2, 0, bytes(LARGE.data), b"two") for at in (0, 2)]
    assert store.read(4, 0, ALL) == chosen
    assert store.check() == []


def test_a_choice_of_a_batch_of_the_same_commit(store: PlainStore) -> None:
    store.commit([SMALL_FIRST, Copy(2, 0, 2, 0, 1, 0, b"x"), Copy(2, 2, 5, 0, 1, 0), DropLog(1)])
    assert store.read(2, 0, ALL) == [StoredBatch(0, 2, 0, b"s", b"x"), StoredBatch(2, 5, 0, b"s")]


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(Copy(4, 0, 4, 0, 1, 0, b"x"), id="more than there are"),
        pytest.param(Copy(4, 0, 0, 0, 1, 0, b"x"), id="none"),
        pytest.param(Copy(4, 0, 1, 0, 1, 1, b"x"), id="of the middle of a batch"),
        pytest.param(Copy(4, 0, 1, 0, 2, 0, b"x"), id="of a choice"),
        pytest.param(Copy(4, 0, 3, 0, 2, 0), id="all of a batch of which some were chosen"),
    ],
)
def test_a_choice_that_breaks_the_rules_is_refused_whole(store: PlainStore, write: Write) -> None:
    store.commit([SMALL_FIRST, Copy(2, 0, 2, 0, 1, 0, b"y")])
    before = store.logs()
    with pytest.raises(BadRequest):
        store.commit([Copy(5, 0, 1, 0, 1, 0, b"z"), PutDocument("topic", "a", b"1"), write])
    assert store.logs() == before
    assert list(store.documents("topic")) == []


def test_copies_are_there_after_the_store_is_opened_anew(driver: Driver, folder: Path) -> None:
    store = driver.make(folder)
    store.open()
    store.commit([LARGE, copy(LARGE, 0, log=2), DropLog(1)])
    store.close()
    if driver.durable:
        store = driver.make(folder)
    store.open()
    store.commit([batch(0, log=3, data=b"another"), Copy(3, 10, 13, 0, 2, 0)])
    assert store.read(2, 0, ALL) == [copied(LARGE, 0)]
    assert store.read(3, 10, ALL) == [copied(LARGE, 10)]
    assert store.check() == []
    store.close()


# -- trimming and dropping


def test_trimming_removes_whole_batches_only(store: PlainStore) -> None:
    store.commit([batch(0), batch(10), batch(20)])
    store.commit([Trim(1, 19)])
    assert store.logs() == {1: LogBounds(10, 30, 2 * len(b"batch at 10"), 0)}
    assert firsts(store.read(1, 0, ALL)) == [10, 20]
    store.commit([Trim(1, 20)])
    assert store.logs()[1].first == 20
    assert firsts(store.read(1, 15, ALL)) == [20]


def test_trimming_below_the_first_batch_changes_nothing(store: PlainStore) -> None:
    store.commit([batch(100), batch(110)])
    before = store.logs()
    store.commit([Trim(1, 0), Trim(1, 100), Trim(1, 109), Trim(2, 50)])
    assert store.logs() == before


def test_a_log_that_was_trimmed_entirely_keeps_its_end_and_its_time(store: PlainStore) -> None:
    store.commit([batch(0, time=5), batch(10, time=6)])
    store.commit([Trim(1, 10**9)])
    assert store.logs() == {1: LogBounds(20, 20, 0, 6)}
    assert store.read(1, 0, ALL) == []
    assert store.seek_time(1, 0) == 20
    with pytest.raises(BadRequest):
        store.commit([batch(0, time=7)])
    store.commit([batch(20, time=7, data=b"12345")])
    assert store.logs() == {1: LogBounds(20, 30, 5, 7)}
    assert firsts(store.read(1, 0, ALL)) == [20]


def test_trimming_many_batches_shows_at_once(store: PlainStore) -> None:
    store.commit([batch(at * 10, data=b"x" * 10) for at in range(1000)])
    store.commit([Trim(1, 5000)])
    assert store.logs() == {1: LogBounds(5000, 10_000, 5000, 0)}
    assert firsts(store.read(1, 0, 20)) == [5000, 5010]
    assert store.seek_time(1, 0) == 5000
    store.commit([Trim(1, 9995), batch(10_000)])
    assert firsts(store.read(1, 0, ALL)) == [9990, 10_000]
    store.commit([Trim(1, 10_010)])
    assert store.read(1, 0, ALL) == []
    assert store.seek_time(1, 0) == 10_010
    store.commit([batch(10_010)])
    assert firsts(store.read(1, 0, ALL)) == [10_010]


def test_a_log_whose_every_batch_was_trimmed_reads_as_empty_at_once(store: PlainStore) -> None:
    """A driver may remove the batches later, but nobody sees them."""
    store.commit([batch(at * 10) for at in range(1000)])
    store.commit([Trim(1, 10_000)])
    for offset in (0, 5000, 9995, 10_000):
        assert store.read(1, offset, ALL) == []


def test_a_dropped_log_is_gone_with_its_ledger(store: PlainStore) -> None:
    store.commit([batch(0), PutLedger(1, b"p", b"1"), batch(0, log=2), PutLedger(2, b"p", b"2")])
    store.commit([DropLog(1)])
    assert set(store.logs()) == {2}
    assert store.read(1, 0, ALL) == []
    assert store.ledger(1, b"p") is None
    assert store.ledger(2, b"p") == b"2"


def test_a_dropped_log_may_begin_again(store: PlainStore) -> None:
    store.commit([batch(at * 10) for at in range(300)])
    store.commit([DropLog(1)])
    store.commit([batch(500, 3, time=0)])
    assert firsts(store.read(1, 0, ALL)) == [500]
    store.commit([Trim(1, 503), DropLog(1), batch(7), PutLedger(1, b"p", b"1")])
    assert store.logs() == {1: LogBounds(7, 17, 10, 0)}
    assert firsts(store.read(1, 0, ALL)) == [7]
    assert store.ledger(1, b"p") == b"1"


def test_writes_take_effect_in_the_order_given(store: PlainStore) -> None:
    store.commit(
        [
            batch(0),
            Trim(1, 10),
            batch(10),
            PutLedger(1, b"p", b"1"),
            PutLedger(1, b"p", b"2"),
            PutDocument("topic", "a", b"1"),
            DeleteDocument("topic", "a"),
            DeleteDocument("topic", "b"),
            PutDocument("topic", "b", b"2"),
        ]
    )
    assert firsts(store.read(1, 0, ALL)) == [10]
    assert store.ledger(1, b"p") == b"2"
    assert list(store.documents("topic")) == [("b", b"2")]
    store.commit([PutLedger(1, b"p", b"3"), DropLog(1)])
    assert store.ledger(1, b"p") is None


# -- time


@pytest.mark.parametrize(
    ("time", "offset"),
    [(0, 0), (100, 0), (101, 10), (200, 10), (201, 40), (300, 40), (301, 50), (10**9, 50)],
)
def test_seeking_a_time_finds_the_oldest_batch_at_or_after_it(
    store: PlainStore, time: int, offset: int
) -> None:
    times = [100, 200, 200, 200, 300]
    store.commit([batch(at * 10, time=when) for at, when in enumerate(times)])
    assert store.seek_time(1, time) == offset


def test_seeking_a_time_that_was_trimmed_finds_the_oldest_batch(store: PlainStore) -> None:
    store.commit([batch(at * 10, time=at) for at in range(100)])
    store.commit([Trim(1, 500)])
    assert store.seek_time(1, 3) == 500
    assert store.seek_time(1, 50) == 500
    assert store.seek_time(1, 51) == 510


# -- documents and ledger


def test_documents_come_by_prefix_and_in_order(store: PlainStore) -> None:
    keys = ["a", "a.b", "a.c", "a%", "a_", "ab", "b", "", "é", "\uffff", "\U0001f600", "a\x00z"]
    store.commit([PutDocument("topic", key, key.encode()) for key in keys])
    store.commit([PutDocument("group", "a.b", b"other")])
    for prefix in ("", "a", "a.", "a%", "a_", "a\x00", "é", "\uffff", "\U0001f600", "c"):
        expected = sorted((key, key.encode()) for key in keys if key.startswith(prefix))
        assert list(store.documents("topic", prefix)) == expected
    assert list(store.documents("none")) == []


def test_a_document_is_replaced_and_deleted(store: PlainStore) -> None:
    store.commit([PutDocument("topic", "a", b"1")])
    store.commit([PutDocument("topic", "a", b"")])
    assert list(store.documents("topic")) == [("a", b"")]
    store.commit([DeleteDocument("topic", "a")])
    assert list(store.documents("topic")) == []


def test_a_ledger_entry_lives_as_long_as_the_log_has_what_it_speaks_of(store: PlainStore) -> None:
    store.commit([batch(first) for first in range(0, 50, 10)])
    entries = [
        PutLedger(1, b"a", b"1", last=9, born=70),
        PutLedger(1, b"b", b"2", last=10, born=80),
        PutLedger(1, b"c", b"3", last=30, born=60),
        PutLedger(1, b"stays", b"4"),
    ]
    store.commit(entries)

    def known() -> list[bytes]:
        return [put.producer for put in entries if store.ledger(1, put.producer) is not None]

    store.commit([Trim(1, 10)])
    assert (known(), store.logs()[1].forgotten) == ([b"b", b"c", b"stays"], 70)
    # A producer that is put after the trim of the same commit stays.
    store.commit([Trim(1, 20), PutLedger(1, b"b", b"5", last=40, born=80)])
    assert (known(), store.logs()[1].forgotten) == ([b"b", b"c", b"stays"], 80)
    store.commit([Trim(1, 50)])
    assert (known(), store.logs()[1].forgotten) == ([b"stays"], 80)


def test_a_ledger_only_log_forgets_by_the_number_of_its_entries(store: PlainStore) -> None:
    """As a topic's keys have one: no batch, and a trim that names an offset of another log."""
    log = keys_of(1, 1)
    assert log >= LEDGER_ONLY
    entries = [PutLedger(log, b"%d" % at, b"x", last=at, born=1000 + at) for at in range(5)]
    store.commit([batch(0), *entries[:3], Trim(log, 0)])
    assert store.logs()[log] == LogBounds(0, 0, 0, 0, 0)
    store.commit(entries[3:])

    def known() -> list[bytes]:
        return [put.producer for put in entries if store.ledger(log, put.producer) is not None]

    assert known() == [b"0", b"1", b"2", b"3", b"4"]
    store.commit([Trim(1, 10), Trim(log, 2)])  # all batches of the topic go, not all of its keys
    assert (known(), store.logs()[log].forgotten) == ([b"2", b"3", b"4"], 1001)
    store.commit([Trim(log, 1)])
    assert (known(), store.logs()[log].forgotten) == ([b"2", b"3", b"4"], 1001)
    store.commit([PutLedger(log, b"4", b"y", last=7, born=2000), Trim(log, 5)])
    assert (known(), store.logs()[log].forgotten) == ([b"4"], 1003)
    store.commit([DropLog(log)])
    assert known() == []
    assert log not in store.logs()


def test_a_ledger_entry_is_replaced_and_forgotten(store: PlainStore) -> None:
    store.commit([PutLedger(1, b"p", b"1"), PutLedger(1, b"", b"2")])
    store.commit([PutLedger(1, b"p", b"3")])
    assert (store.ledger(1, b"p"), store.ledger(1, b"")) == (b"3", b"2")
    store.commit([PutLedger(1, b"p", None)])
    assert store.ledger(1, b"p") is None


# -- the life of a store


def test_a_store_that_is_not_open_refuses_everything(driver: Driver, folder: Path) -> None:
    store = driver.make(folder)
    calls: list[Callable[[], Any]] = [
        lambda: store.commit([batch(0)]),
        lambda: store.logs(),
        lambda: store.read(1, 0, 1),
        lambda: store.seek_time(1, 0),
        lambda: store.ledger(1, b""),
        lambda: list(store.documents("topic")),
        lambda: store.check(),
    ]
    for call in calls:
        with pytest.raises(StoreFailed):
            call()
    store.open()
    store.close()
    store.close()  # closing twice is no error
    for call in calls:
        with pytest.raises(StoreFailed):
            call()


def test_a_store_is_opened_once(driver: Driver, folder: Path) -> None:
    store = driver.make(folder)
    store.open()
    with pytest.raises(StoreBusy):
        store.open()
    if driver.durable:
        with pytest.raises(StoreBusy):
            driver.make(folder).open()
    store.commit([batch(0)])  # the failed attempts did it no harm
    store.close()
    store.open()
    assert firsts(store.read(1, 0, ALL)) == [0]
    store.close()


def test_a_reader_beside_the_writer_sees_whole_commits(store: PlainStore) -> None:
    """Each commit appends two batches, one to each log, and trims; the reader never sees half of one."""
    last, problems, gave_up = 600, list[str](), Event()

    def read() -> None:
        at = 0
        while at < last and not gave_up.is_set():
            bounds = store.logs()
            if not bounds:
                continue
            found = store.read(1, at, 3000)
            if found and found[0].first < at:
                problems.append(f"asked for {at}, got {found[0].first}")
            for earlier, later in pairwise(found):
                if earlier.end != later.first:
                    problems.append(f"{earlier.end} is followed by {later.first}")
            if any(each.data != b"%d" % each.first * 200 for each in found):
                problems.append(f"wrong data at {at}")
            # What was in the first log's bounds before is now in the second log's ledger.
            entry = store.ledger(2, b"p")
            if entry is None or int(entry) < bounds[1].end:
                problems.append(f"the ledger says {entry!r}, the bounds {bounds[1].end}")
            at = found[-1].end if found else at

    reader = Thread(target=read)
    reader.start()
    try:
        for at in range(last):
            end = at + 1
            store.commit(
                [
                    Append(1, at, end, at, b"%d" % at * 200),
                    Append(2, at, end, at, b"x"),
                    PutLedger(2, b"p", b"%d" % end),
                    Trim(1, at - 50),
                ]
            )
    except BaseException:
        gave_up.set()
        raise
    reader.join()
    assert problems == []


# -- random writes against a naive model


LOGS = st.integers(1, 3)
NAMES = st.sampled_from(["a", "a.b", "b"])
SIZES = st.sampled_from([0, 1, 150, 15_000, 40_000])


class StoreMachine(RuleBasedStateMachine):
    driver: Driver  #: set by the test, in a class of its own for each driver

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory(dir=MEMORY_DISK)
        self.model = Model()
        self.store = self.driver.make(Path(self.folder.name))
        self.store.open()

    @rule(data=st.data(), count=st.integers(1, 8), spoil=st.integers(0, 9))
    def commit(self, data: st.DataObject, count: int, spoil: int) -> None:
        ahead = Model()  # only its logs, for appends that follow each other within the commit
        ahead.ends, ahead.times = dict(self.model.ends), dict(self.model.times)
        ahead.batches = {log: list(held) for log, held in self.model.batches.items()}
        writes: list[Write] = []
        for _ in range(count):
            write = self.draw_write(data, ahead)
            ahead.apply(write)
            writes.append(write)
        if spoil == 0 and self.model.ends:
            log, end = next(iter(ahead.ends.items()), (1, -2))
            with pytest.raises(BadRequest):
                self.store.commit([*writes, Append(log, end + 1, end + 1, 10**6, b"")])
            return
        self.store.commit(writes)
        for write in writes:
            self.model.apply(write)

    def draw_write(self, data: st.DataObject, ahead: Model) -> Write:
        log = data.draw(LOGS)
        end = ahead.ends.get(log, 0)
        first = end if log in ahead.ends else data.draw(st.integers(0, 20))
        time = ahead.times.get(log, 0) + data.draw(st.integers(0, 2))
        sources = [(of, each) for of, held in ahead.batches.items() for each in held]
        match data.draw(st.sampled_from("AAAAACCCTTDdxLl" if sources else "AAAAATTDdxLl")):
            case "C":
                of, source = data.draw(st.sampled_from(sources))
                count, choice = source.end - source.first, None
                if source.choice is None and data.draw(st.booleans()):
                    count = data.draw(st.integers(1, count))
                    choice = data.draw(st.binary(min_size=1, max_size=3))
                return Copy(log, first, first + count, time, of, source.first, choice)
            case "A":
                size = data.draw(SIZES)
                return Append(
                    log, first, first + data.draw(st.integers(1, 5)), time, bytes([first % 256]) * size
                )
            case "T":
                return Trim(log, data.draw(st.integers(0, end + 3)))
            case "D":
                return DropLog(log)
            case "d":
                return PutDocument(data.draw(NAMES), data.draw(NAMES), data.draw(st.binary(max_size=3)))
            case "x":
                return DeleteDocument(data.draw(NAMES), data.draw(NAMES))
            case "L":
                last = data.draw(st.none() | st.integers(0, end))
                entry = data.draw(st.binary(max_size=3))
                return PutLedger(log, data.draw(st.binary(max_size=1)), entry, last, data.draw(LOGS))
            case _:
                return PutLedger(log, data.draw(st.binary(max_size=1)), None)

    @rule(log=LOGS, at=st.integers(0, 60), max_bytes=st.integers(0, 100_000))
    def read(self, log: int, at: int, max_bytes: int) -> None:
        assert self.store.read(log, at, max_bytes) == self.model.read(log, at, max_bytes)

    @rule(log=LOGS, time=st.integers(0, 40))
    def seek_time(self, log: int, time: int) -> None:
        assert self.store.seek_time(log, time) == self.model.seek_time(log, time)

    @rule(kind=NAMES, prefix=NAMES)
    def read_documents(self, kind: str, prefix: str) -> None:
        expected = {
            key: value
            for (of_kind, key), value in self.model.documents.items()
            if of_kind == kind and key.startswith(prefix)
        }
        assert list(self.store.documents(kind, prefix)) == sorted(expected.items())

    @rule()
    def read_ledger(self) -> None:
        for (log, producer), put in self.model.ledger.items():
            assert self.store.ledger(log, producer) == put.entry

    @rule()
    def reopen(self) -> None:
        self.store.close()
        if self.driver.durable:
            self.store = self.driver.make(Path(self.folder.name))
        self.store.open()

    @invariant()
    def bounds_agree(self) -> None:
        if hasattr(self, "store"):
            assert self.store.logs() == self.model.logs()

    def teardown(self) -> None:
        if not hasattr(self, "store"):
            return
        try:
            for log in (1, 2, 3):
                assert self.store.read(log, 0, ALL) == self.model.read(log, 0, ALL)
                for producer in [b"", *(bytes([byte]) for byte in range(256))]:
                    put = self.model.ledger.get((log, producer))
                    assert self.store.ledger(log, producer) == (None if put is None else put.entry)
            assert self.store.check() == []
        finally:
            self.store.close()
            self.folder.cleanup()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_random_writes_agree_with_a_naive_model(driver: Driver) -> None:
    test_random_writes_agree_with_a_naive_model(replace(driver, examples=10 * driver.examples))


def test_random_writes_agree_with_a_naive_model(driver: Driver) -> None:
    machine = type("Machine", (StoreMachine,), {"driver": driver})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=driver.examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

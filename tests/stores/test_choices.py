"""Stores of a time when no copy had a choice, and choices through what a journal does to its segments."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from landbridge.core.log.store import Copy, DropLog, StoredBatch
from landbridge.stores.journal.records import Appended, Copied, Moved, Owner, decode_entries
from tests.contracts.test_store import ALL
from tests.stores.faults import Handled, batch, contents, memory_folder, opened


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder / "bus"


def test_entries_without_a_choice_can_be_read() -> None:
    appended, copied = [0, 1, 0, 10, 5, 0, 3, 99], [1, 2, 0, 10, 5, 0, 3, 99, 1, 64]
    moved = [6, [[1, 0, 10, 5, 0]], 3, 99]
    assert decode_entries(msgspec.msgpack.encode([appended, copied, moved])) == [
        Appended(1, 0, 10, 5, 0, 3, 99),
        Copied(2, 0, 10, 5, 0, 3, 99, 1, 64),
        Moved([Owner(1, 0, 10, 5, 0)], 3, 99),
    ]


def test_an_index_without_choices_goes_on(folder: Path) -> None:
    with opened(Handled(folder)) as store:
        store.commit([batch(0), batch(1)])
        store.commit([Copy(2, 0, 10, 1, 1, 0)])
    with closing(sqlite3.connect(folder / "index.db")) as db:
        db.execute("ALTER TABLE log DROP COLUMN choice")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    for _ in range(2):
        with opened(Handled(folder)) as store:
            assert store.findings == []
            end = store.logs()[2].end
            store.commit([Copy(2, end, end + 3, 2, 1, 10, b"x")])
            store.tend()
            assert store.read(2, 10, 1)[0] == StoredBatch(10, 13, 2, contents(1, 1000), b"x")
            assert store.check() == []


def test_a_choice_that_is_damaged_in_the_index_is_noticed(folder: Path) -> None:
    with opened(Handled(folder)) as store:
        store.commit([batch(0)])
        store.commit([Copy(2, 0, 3, 1, 1, 0, b"right")])
    with closing(sqlite3.connect(folder / "index.db")) as db:
        db.execute("UPDATE log SET choice = x'00' WHERE log = 2")
        db.commit()
    with opened(Handled(folder)) as store:
        assert any("log 2, offset 0" in finding for finding in store.check())
    with opened(Handled(folder)) as store:  # the index was made anew
        assert store.read(2, 0, ALL) == [StoredBatch(0, 3, 1, contents(0, 1000), b"right")]


def test_a_choice_of_a_batch_whose_segment_is_being_emptied(folder: Path) -> None:
    with opened(Handled(folder)) as store:
        store.commit([batch(0)])
        store.commit([Copy(2, 0, 3, 1, 1, 0, b"before")])
        store.going = store.row_at(1, 0).segment
        store.commit([Copy(3, 0, 2, 1, 1, 0, b"while")])
        store.commit([Copy(4, 0, 3, 1, 2, 0)])
        store.going = None
        store.commit([DropLog(1)])
        for log, end, choice in ((2, 3, b"before"), (3, 2, b"while"), (4, 3, b"before")):
            assert store.read(log, 0, ALL) == [StoredBatch(0, end, 1, contents(0, 1000), choice)]
        assert store.check() == []

"""The store of version 0.1 becomes a journal when it is opened."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from landbridge.core.log.store import Buffer, PutDocument, Trim
from landbridge.errors import StoreBusy, StoreCorrupt, StoreFailed, StoreFull, StoreTooNew
from landbridge.stores.journal.disk import LocalDisk
from landbridge.stores.journal.store import JournalFolder
from tests.contracts.test_store import ALL
from tests.stores.faults import Handled, assert_intact, batch, contents, memory_folder, opened, read_all
from tests.stores.old_store import OldFile


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture(params=[1, 2, 3], ids=lambda version: f"version {version}")
def old(folder: Path, request: pytest.FixtureRequest) -> OldFile:
    return OldFile(folder / "bus.db", request.param)


@pytest.fixture
def newest(folder: Path) -> OldFile:
    return OldFile(folder / "bus.db", 3)


def assert_taken(store: JournalFolder, old: OldFile) -> None:
    """All of it is here, and nothing else."""
    assert store.logs() == old.bounds
    assert assert_intact(store, old.size) == 28
    assert assert_intact(store, old.size, log=4) == 10
    for kind in ("topic", "cursor"):
        assert store.documents(kind) == [(key, value) for k, key, value in old.documents if k == kind]
    assert store.documents("unit") == []
    assert [store.ledger(log, producer) for log, producer, *_ in old.ledger] == [b"2", b"3", b"4"]
    assert store.seek_time(1, 10) == 100
    assert store.seek_time(3, 0) == 55


def assert_gone(old: OldFile) -> None:
    assert [path.name for path in old.path.parent.iterdir()] == ["bus"]


def test_everything_comes_over_and_the_old_file_goes(old: OldFile, folder: Path) -> None:
    told: list[tuple[int, int]] = []
    with opened(Handled(folder / "bus", tell=lambda done, whole: told.append((done, whole)))) as store:
        assert_taken(store, old)
        assert_gone(old)
    for _ in range(2):
        with opened(Handled(folder / "bus")) as store:
            assert store.findings == []
            assert_taken(store, old)
        for path in (folder / "bus").glob("index.db*"):
            path.unlink()
    with opened(Handled(folder / "bus")) as store:
        store.commit([batch(30, old.size), Trim(1, 50), batch(30, 10, log=4)])
        assert assert_intact(store, old.size) == 26
        assert store.logs()[1].bytes == 26 * old.size


def test_what_a_ledger_knows_of_its_entries_comes_over(newest: OldFile, folder: Path) -> None:
    with opened(Handled(folder / "bus")) as store:
        store.commit([Trim(1, 290), Trim(0, 12)])
        assert store.ledger(1, b"p") == b"2"
        store.commit([Trim(1, 300), Trim(0, 13)])
        assert (store.ledger(1, b"p"), store.ledger(1, b"q")) == (None, b"3")
        assert store.ledger(0, b"t") is None
        assert (store.logs()[1].forgotten, store.logs()[0].forgotten) == (18, 40)


def test_what_lies_in_the_wal_comes_over(newest: OldFile, folder: Path) -> None:
    db = sqlite3.connect(newest.path, isolation_level=None)
    db.execute("INSERT INTO documents VALUES ('late', 'a', x'31')")
    for suffix in ("", "-wal"):
        os.link(f"{newest.path}{suffix}", folder / f"killed.db{suffix}")  # what kill -9 leaves
    with opened(Handled(folder / "killed")) as store:
        assert store.documents("late") == [("a", b"1")]
        assert assert_intact(store, newest.size) == 28
    db.close()


@pytest.mark.parametrize("chain", [False, True], ids=["data", "chain"])
def test_a_damaged_batch_stays_damaged_and_the_others_are_right(
    old: OldFile, folder: Path, chain: bool
) -> None:
    old.damage(7, chain=chain)
    with opened(Handled(folder / "bus")) as store:
        assert store.logs() == old.bounds
        assert [each.first for each in store.read(1, 50, ALL)] == [50, 60]
        with pytest.raises(StoreCorrupt, match="log 1, offset 70"):
            store.read(1, 70, ALL)
        assert len(store.read(1, 80, ALL)) == 22
        assert len(store.check()) == 1
        store.commit([Trim(1, 80)])
        assert store.logs()[1].bytes == 22 * old.size
        assert assert_intact(store, old.size) == 22
        store.commit([Trim(1, 300)])
        assert store.logs()[1].bytes == 0


def test_a_damaged_batch_that_is_shared_is_damaged_in_both_logs(newest: OldFile, folder: Path) -> None:
    newest.damage(25, chain=True)
    with opened(Handled(folder / "bus")) as store:
        for log in (1, 4):
            with pytest.raises(StoreCorrupt, match=f"log {log}, offset 250"):
                store.read(log, 250, ALL)
            assert store.read(log, 260, ALL)[0].data == contents(26, newest.size)


class Interrupted(LocalDisk):
    """Fails at a write."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(5, "interrupted")
        super().write(descriptor, buffers, position)


#: Bytes of a batch with which a takeover makes several records.
LARGE = 300_000


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_takeover_that_is_interrupted_goes_on_where_it_was(folder: Path, version: int) -> None:
    old = OldFile(folder / "bus.db", version, LARGE)
    attempts = 0
    while attempts < 50:
        try:
            with opened(Handled(folder / "bus", disk=Interrupted(1 + attempts % 3))):
                break
        except StoreFailed:
            attempts += 1
    assert attempts > 4
    with opened(Handled(folder / "bus")) as store:
        assert_taken(store, old)
    assert_gone(old)


def test_each_single_interruption_of_a_takeover_is_overcome(folder: Path) -> None:
    for writes in range(200):
        old = OldFile(folder / "bus.db", 3, LARGE)
        try:
            with opened(Handled(folder / "bus", disk=Interrupted(writes))):
                break
        except StoreFailed:
            pass
        with opened(Handled(folder / "bus")) as store:
            assert_taken(store, old)
        assert_gone(old)
        shutil.rmtree(folder / "bus")
    assert writes > 8


def test_a_file_that_was_not_removed_after_its_takeover_is_removed(newest: OldFile, folder: Path) -> None:
    class Unremovable(LocalDisk):
        def sync_folder(self, folder: Path) -> None:
            if folder == newest.path.parent and (newest.path.parent / "bus").exists():
                raise OSError(5, "interrupted")
            super().sync_folder(folder)

    content = newest.path.read_bytes()
    with pytest.raises(StoreFailed):
        Handled(folder / "bus", disk=Unremovable()).open()
    newest.path.write_bytes(content)  # the power cut has brought it back
    with opened(Handled(folder / "bus")) as store:
        assert_taken(store, newest)
    assert_gone(newest)


def test_a_file_that_comes_later_is_not_taken_for_one_that_was_taken_over(
    newest: OldFile, folder: Path
) -> None:
    content = newest.path.read_bytes()
    with opened(Handled(folder / "bus")):
        pass
    newest.path.write_bytes(content)
    with pytest.raises(StoreFailed, match="both hold a store") as refused:
        Handled(folder / "bus").open()
    assert refused.value.hint
    assert newest.path.read_bytes() == content
    newest.path.unlink()
    with opened(Handled(folder / "bus")) as store:
        assert_taken(store, newest)


@pytest.mark.parametrize("held", [PutDocument("topic", "z", b"1"), batch(0)])
@pytest.mark.parametrize("is_killed", [False, True])
def test_two_stores_are_not_mixed(newest: OldFile, folder: Path, held: PutDocument, is_killed: bool) -> None:
    newest.path.rename(folder / "aside")
    with opened(Handled(folder / "bus")) as store:
        store.commit([held])
    if is_killed:  # the index does not have it yet
        for path in (folder / "bus").glob("index.db*"):
            path.unlink()
    (folder / "aside").rename(newest.path)
    with pytest.raises(StoreFailed, match="both hold a store") as refused:
        Handled(folder / "bus").open()
    assert "move one of them away" in refused.value.hint
    assert newest.path.exists()


def test_a_store_that_has_only_its_epoch_takes_the_old_file(newest: OldFile, folder: Path) -> None:
    newest.path.rename(folder / "aside")
    with opened(Handled(folder / "bus")) as store:
        store.commit([PutDocument("unit", "0", b"3")])
    (folder / "aside").rename(newest.path)
    with opened(Handled(folder / "bus")) as store:
        assert store.logs() == newest.bounds
        assert store.documents("unit") == [("0", b"3")]


def test_an_old_file_that_is_in_use_is_busy(newest: OldFile, folder: Path) -> None:
    with open(f"{newest.path}.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy):
            Handled(folder / "bus").open()
    with opened(Handled(folder / "bus")) as store:
        assert_taken(store, newest)


@pytest.mark.parametrize("garbage", [b"", b"x", b"not a database" * 1000, bytes(100_000)])
def test_an_old_file_of_garbage_is_refused_and_left_alone(folder: Path, garbage: bytes) -> None:
    (folder / "bus.db").write_bytes(garbage)
    with pytest.raises(StoreCorrupt, match=r"bus\.db"):
        Handled(folder / "bus").open()
    assert (folder / "bus.db").read_bytes() == garbage


def test_an_old_file_of_another_program_or_a_newer_version_is_refused(newest: OldFile, folder: Path) -> None:
    for pragma, refusal in (("user_version = 4", StoreTooNew), ("application_id = 5", StoreCorrupt)):
        with closing(sqlite3.connect(newest.path)) as db:
            db.execute(f"PRAGMA {pragma}")
        with pytest.raises(refusal):
            Handled(folder / "bus").open()
    assert newest.path.exists()


def test_a_takeover_without_room_goes_on_when_there_is_some(folder: Path) -> None:
    old = OldFile(folder / "bus.db", 3, LARGE)
    for _ in range(2):
        with pytest.raises(StoreFull):
            Handled(folder / "bus", max_bytes=7_000_000).open()
        assert old.path.exists()
    with opened(Handled(folder / "bus")) as store:
        assert store.logs() == old.bounds
        assert_taken(store, old)
    assert_gone(old)


def test_litter_does_not_come_over(old: OldFile, folder: Path) -> None:
    with opened(Handled(folder / "bus")) as store:
        assert 2 not in store.logs()
        assert store.read(1, 0, 0)[0].first == 20
        store.tend(3)
        assert sum(store.index.live.values()) == 38 * (old.size + 1)
        assert len(read_all(store)) == 28

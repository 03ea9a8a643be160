"""What happens to the SQLite store when the disk, the kernel or somebody else does it harm.

Whoever copies a database here lets ``cp`` do it: closing a file in this process would drop the locks that
SQLite holds on it.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import random
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event
from zlib import crc32

import pytest

import landbridge
from landbridge.core.log.store import (
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    PutDocument,
    PutLedger,
    StoredBatch,
    Trim,
)
from landbridge.errors import (
    BadRequest,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreTooNew,
    TooLarge,
)
from landbridge.stores.sqlite import SqliteFile
from landbridge.stores.tables import PAGE

ALL = 1 << 40
SOURCE = Path(landbridge.__path__[0]).parent


@contextmanager
def opened(store: SqliteFile) -> Iterator[SqliteFile]:
    store.open()
    try:
        yield store
    finally:
        store.close()


def contents(number: int, size: int) -> bytes:
    """Data that differs from batch to batch, and from page to page of a batch."""
    return random.Random(number).randbytes(size)


def batch(number: int, size: int = 100_000, *, log: int = 1) -> Append:
    """The batch with that number: ten messages, and data that can be told from any other's."""
    return Append(log, number * 10, number * 10 + 10, number, contents(number, size))


def copy(number: int, *, log: int, of: int = 1) -> Copy:
    """A copy of the batch with that number, in the same place of another log."""
    return Copy(log, number * 10, number * 10 + 10, number, of, number * 10)


def read_all(store: SqliteFile, log: int = 1) -> list[StoredBatch]:
    bounds = store.logs().get(log)
    found: list[StoredBatch] = []
    while bounds is not None and (at := found[-1].end if found else bounds.first) < bounds.end:
        found += store.read(log, at, 1_000_000)
    return found


def assert_intact(store: SqliteFile, size: int = 100_000, *, log: int = 1) -> int:
    """Every batch is what `batch` made, with no gap; how many there are."""
    found = read_all(store, log)
    assert all(each.first % 10 == 0 and each.end == each.first + 10 for each in found)
    assert all(later.first == earlier.end for earlier, later in pairwise(found))
    assert all(each.data == contents(each.first // 10, size) for each in found)
    assert store.check() == []
    return len(found)


def child(code: str, *arguments: object, **environment: str) -> subprocess.Popen[str]:
    """A Python process with this file's helpers at hand and its arguments in `arguments`."""
    setup = """
import json, os, sys
from landbridge.core.log.store import *
from landbridge.errors import *
from landbridge.stores.sqlite import SqliteFile
arguments = json.loads(sys.argv[1])
def say(text): print(text, flush=True)
def attempt(store, *writes):
    try:
        store.commit(writes)
    except BusError as error:
        return error.code
    return "stored"
"""
    return subprocess.Popen(
        [sys.executable, "-c", setup + code, json.dumps([str(each) for each in arguments])],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE), **environment},
    )


def lines_of(process: subprocess.Popen[str]) -> list[str]:
    output, _ = process.communicate()
    assert process.returncode == 0
    return output.split()


# -- files that can't be opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed store with 30 batches of 100 kB, and some of everything else."""
    path = tmp_path / "bus.db"
    with opened(SqliteFile(path)) as store:
        for number in range(30):
            store.commit([batch(number), PutLedger(1, b"p", b"%d" % number)])
        store.commit([PutDocument("topic", "a", b"1"), batch(0, 150, log=2)])
    return path


def test_a_newer_schema_is_refused_and_left_alone(path: Path) -> None:
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 999")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StoreTooNew, match="999"):
        SqliteFile(path).open()
    assert path.read_bytes() == before


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "other.db")
    db.execute("CREATE TABLE log (note TEXT)")
    db.close()
    with pytest.raises(StoreCorrupt, match="not a Landbridge store"):
        SqliteFile(tmp_path / "other.db").open()


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"not a database" * 1000, bytes(100_000), b"SQLite format 3\0"]
)
def test_garbage_is_refused_and_left_alone(tmp_path: Path, garbage: bytes) -> None:
    path = tmp_path / "bus.db"
    path.write_bytes(garbage)
    with pytest.raises(StoreCorrupt, match=r"bus\.db"):
        SqliteFile(path).open()
    assert path.read_bytes() == garbage


@pytest.mark.parametrize("part", [0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_truncated_file_is_refused(path: Path, part: float) -> None:
    os.truncate(path, int(path.stat().st_size * part))
    with pytest.raises(StoreCorrupt, match=r"bus\.db"):
        SqliteFile(path).open()


def test_a_file_that_lost_its_tail_is_refused_even_with_a_wal_beside_it(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with opened(SqliteFile(path)) as store:
        store.commit([PutDocument("topic", "a", b"2")])
        cp(path, copy)
    os.truncate(copy, copy.stat().st_size - 200_000)
    with pytest.raises(StoreCorrupt):
        SqliteFile(copy).open()


def test_a_wal_without_its_database_is_not_played_into_a_new_one(path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    with opened(SqliteFile(path)) as store:
        store.commit([batch(30)])
        cp(path, copy)
    copy.unlink()
    with pytest.raises(StoreCorrupt, match=r"copy\.db is missing"):
        SqliteFile(copy).open()


def test_a_path_that_cannot_be_is_an_error_of_ours(path: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        SqliteFile(path / "below" / "a-file.db").open()
    with pytest.raises(StoreFailed):
        SqliteFile(tmp_path).open()


def test_a_creation_cut_short_is_begun_anew(tmp_path: Path) -> None:
    for name in ("bus.db.new", "bus.db.new-journal", "bus.db.new-wal"):
        (tmp_path / name).write_bytes(b"half of it")
    with opened(SqliteFile(tmp_path / "bus.db")) as store:
        store.commit([batch(0)])
        assert assert_intact(store) == 1
    assert sorted(each.name for each in tmp_path.iterdir()) == ["bus.db", "bus.db.lock"]


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_only_we_may_read_the_files_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    def rights(each: Path) -> int:
        return stat.S_IMODE(each.stat().st_mode)

    before = os.umask(umask)
    try:
        with opened(SqliteFile(tmp_path / "new" / "data" / "bus.db")) as store:
            store.commit([batch(0)])
            folder = store.path.parent
            names = {each.name: rights(each) for each in folder.iterdir()}
            assert (rights(folder.parent), rights(folder)) == (0o700, 0o700)
    finally:
        os.umask(before)
    assert names == dict.fromkeys(["bus.db", "bus.db-wal", "bus.db-shm", "bus.db.lock"], 0o600)


def test_values_that_sqlite_cannot_hold_are_misuse(tmp_path: Path) -> None:
    with opened(SqliteFile(tmp_path / "bus.db")) as store:
        for bad in (
            Append(2**70, 0, 1, 0, b""),
            Append(1, 0, 1, 2**70, b""),
            Trim(1, 2**70),
            PutDocument("topic", "\ud800", b""),
            PutDocument("topic", "a", object()),  # type: ignore[arg-type]
        ):
            with pytest.raises(BadRequest):
                store.commit([PutDocument("topic", "b", b""), batch(0), bad])
        with pytest.raises(TooLarge):  # SQLite's limit; zeros that nobody writes to take no memory
            store.commit([batch(0), Append(1, 10, 11, 1, bytes(1_000_000_001))])
        assert store.logs() == {}
        assert list(store.documents("topic")) == []
        store.commit([batch(0)])


# -- damaged pages


def cp(path: Path, copy: Path) -> None:
    """Copy the database and its WAL, as a crash at this moment would leave them."""
    for suffix in ("", "-wal"):
        if Path(f"{path}{suffix}").exists():
            subprocess.run(["cp", f"{path}{suffix}", f"{copy}{suffix}"], check=True)


def place_in_file(path: Path, data: bytes) -> int:
    """Where a batch's data lies in the database: some bytes of its middle, all on one page."""
    at = path.read_bytes().find(data[50_000:50_100])
    assert at > 0
    return at


def overwrite(path: Path, at: int, change: Callable[[bytes], bytes], count: int = 4) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        old = file.read(count)
        file.seek(at)
        file.write(change(old))


def flipped(old: bytes) -> bytes:
    return bytes(byte ^ 0x10 for byte in old)


@pytest.mark.parametrize("damage", ["data", "chain"])
def test_a_damaged_batch_is_named_and_the_others_stay_readable(path: Path, damage: str) -> None:
    at = place_in_file(path, contents(7, 100_000))
    if damage == "data":
        overwrite(path, at, flipped)
    else:  # the number of the next page of the batch, at the start of each page
        overwrite(path, at - at % PAGE, lambda old: bytes(len(old)))
    with opened(SqliteFile(path)) as store:
        assert [store.read(1, at, 1)[0].first for at in range(0, 70, 10)] == [0, 10, 20, 30, 40, 50, 60]
        assert store.read(1, 0, ALL)[0].first == 0  # what comes before the damage, or a part of it
        for offset in (70, 79):
            with pytest.raises(StoreCorrupt, match="log 1, offset 70"):
                store.read(1, offset, ALL)
        assert len(store.read(1, 80, ALL)) == 22
        assert store.read(2, 0, ALL)[0].data == contents(0, 150)
        assert any("log 1, offset 70" in finding for finding in store.check())
        assert not any("log 2" in finding for finding in store.check())
        store.commit([batch(30)])
        assert store.logs()[1].end == 310
        store.commit([Trim(1, 80)])  # and retention gets rid of it
        assert [each.data for each in read_all(store)] == [
            contents(number, 100_000) for number in range(8, 31)
        ]


def test_random_damage_never_passes_for_data(path: Path) -> None:
    """Whatever bytes are hit: what is read is what was written, or an error says that it isn't."""
    whole = path.read_bytes()
    choice = random.Random(20)
    for _ in range(25):
        path.write_bytes(whole)
        for _ in range(3):
            overwrite(path, choice.randrange(len(whole) - 8), flipped, 8)
        store = SqliteFile(path)
        try:
            store.open()
        except (StoreCorrupt, StoreTooNew, StoreFailed):
            continue
        findings = store.check()
        for number in range(30):
            try:
                found = store.read(1, number * 10, 1)
            except StoreCorrupt:
                assert findings
                continue
            if found and number * 10 == found[0].first and found[0].end == number * 10 + 10:
                assert found[0].data == contents(number, 100_000)
            else:
                assert findings
        store.close()


def test_check_finds_rows_and_bounds_that_disagree(path: Path) -> None:
    for statement, finding in (
        ("UPDATE bounds SET end = end + 5 WHERE log = 1", "the batches end at 300, the bounds at 305"),
        ("UPDATE bounds SET bytes = 1 WHERE log = 2", "log 2: the batches hold 150 bytes, the bounds say 1"),
        ("DELETE FROM log WHERE log = 1 AND first = 50", "log 1, offset 60: the batch should begin at 50"),
        (
            "UPDATE log SET end = 55 WHERE log = 1 AND first = 50",
            "log 1, offset 60: the batch should begin at",
        ),
        ("DELETE FROM bounds WHERE log = 2", "log 2: 1 batches, but no bounds"),
        ("UPDATE log SET time = 99 WHERE log = 1 AND first = 50", "log 1, offset 60: its time 6 is before"),
        (
            "UPDATE log SET crc = 0 WHERE log = 1 AND first = 50",
            "log 1, offset 50: the batch fails its check",
        ),
        ("DELETE FROM batches WHERE id = 3", "log 1, offset 20: the batch is missing"),
        (
            "UPDATE log SET batch = 4 WHERE log = 1 AND first = 20",
            "log 1, offset 20: the batch fails its check",
        ),
        ("UPDATE log SET batch = 4 WHERE log = 1 AND first = 20", "batch 3: no log holds it"),
        ("UPDATE log SET batch = 4 WHERE log = 1 AND first = 20", "batch 4: 1 others hold it, counted are 0"),
        ("INSERT INTO shared VALUES (3, 1)", "batch 3: 0 others hold it, counted are 1"),
        ("INSERT INTO shared VALUES (99, 1)", "batch 99: counted, but no other holds it"),
        ("UPDATE ids SET unused = 31", "batch 31: its id may be given again"),
    ):
        copy = path.with_name("copy.db")
        shutil.copy(path, copy)
        db = sqlite3.connect(copy, isolation_level=None)
        db.execute(statement)
        db.close()
        with opened(SqliteFile(copy)) as store:
            assert any(finding in line for line in store.check()), statement


@contextmanager
def without(path: Path, delete: str) -> Iterator[SqliteFile]:
    """The store when the batch at offset 50 of log 1 is gone, which is told where it was and nowhere else."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute(delete)
    with opened(SqliteFile(path)) as store:
        assert [each.first for each in store.read(1, 30, ALL)] == [30, 40]
        with pytest.raises(StoreCorrupt, match="log 1, offset 50"):
            store.read(1, 50, ALL)
        assert store.read(1, 60, ALL)[0].first == 60
        yield store


def test_a_missing_batch_is_an_error_not_a_silent_gap(path: Path) -> None:
    with without(path, "DELETE FROM log WHERE log = 1 AND first = 50"):
        pass


def test_a_batch_without_its_data_is_damage_to_itself_alone(path: Path) -> None:
    delete = "DELETE FROM batches WHERE id = (SELECT batch FROM log WHERE log = 1 AND first = 50)"
    with without(path, delete) as store:
        with pytest.raises(StoreCorrupt, match="log 1, offset 50"):
            store.commit([PutDocument("topic", "a", b"2"), copy(5, log=3)])
        assert list(store.documents("topic")) == [("a", b"1")]
        store.commit([copy(6, log=3), batch(30)])
        store.commit([Trim(1, 60)])
        assert store.check() == []
        assert assert_intact(store) == 25


# -- batches that several logs hold


def wal_of(store: SqliteFile) -> int:
    return Path(f"{store.path}-wal").stat().st_size


def test_a_copy_and_the_end_of_its_source_write_no_data(path: Path) -> None:
    with opened(SqliteFile(path, wal_bound=1 << 40, checkpoint_bytes=1 << 40)) as store:
        assert wal_of(store) == 0
        store.commit([copy(number, log=3) for number in range(30)])
        store.commit([DropLog(1)])
        assert wal_of(store) < 20 * PAGE  # 3 MB would be 370
        assert assert_intact(store, log=3) == 30
        pages, free = (int(pragma(store, name)) for name in ("page_count", "freelist_count"))
        store.commit([DropLog(3)])
        store.settle()
        assert (int(pragma(store, "page_count")), free) == (pages, 0)
        assert int(pragma(store, "freelist_count")) > 0.9 * pages
        assert store.check() == []


def pragma(store: SqliteFile, name: str) -> str:
    assert store._writer is not None
    return str(store._writer.execute(f"PRAGMA {name}").fetchone()[0])


def test_a_damaged_page_of_a_shared_batch_stops_only_that_batch(path: Path) -> None:
    with opened(SqliteFile(path)) as store:
        store.commit([copy(number, log=3) for number in range(5, 10)])
    overwrite(path, place_in_file(path, contents(7, 100_000)), flipped)
    with opened(SqliteFile(path)) as store:
        for log in (1, 3):
            assert [each.first for each in store.read(log, 50, ALL)] == [50, 60]
            with pytest.raises(StoreCorrupt, match=f"log {log}, offset 70"):
                store.read(log, 70, ALL)
            assert store.read(log, 80, ALL)[0].data == contents(8, 100_000)
        store.commit([Trim(1, 80)])
        assert [line for line in store.check() if "log 3, offset 70" not in line] == []
        store.commit([Trim(3, 80)])
        assert store.check() == []


def test_an_id_is_never_given_again(path: Path) -> None:
    """Else a row that damage has left behind would come to mean a batch that has nothing to do with it."""

    def highest(store: SqliteFile) -> int:
        assert store._writer is not None
        return int(store._writer.execute("SELECT max(id) FROM batches").fetchone()[0])

    seen = []
    for log in range(10, 13):
        with opened(SqliteFile(path)) as store:
            store.commit([batch(0, log=log)])
            seen.append(highest(store))
            with pytest.raises(BadRequest):
                store.commit([batch(0, log=log + 20), batch(5, log=log)])
            store.commit([batch(1, log=log)])
            seen.append(highest(store))
            store.commit([DropLog(log)])
            assert store.check() == []
    assert seen == sorted(set(seen))


def test_a_full_database_takes_copies_as_long_as_there_are_pages_for_their_rows(tmp_path: Path) -> None:
    with opened(SqliteFile(tmp_path / "bus.db", max_bytes=4_000_000)) as store:
        count = fill(store, 0)
        number = 0
        with pytest.raises(StoreFull):
            while True:
                store.commit([Copy(2, number, number + 10, 0, 1, 0)])
                number += 10
        assert number > 100
        assert store.logs()[2].end == number
        assert assert_intact(store) == count
        store.commit([Trim(1, 100)])  # nine batches are gone; the first one log 2 still has
        store.commit([batch(count), DropLog(2)])
        assert assert_intact(store) == count - 10 + 1


# -- stores of earlier versions

VERSION_1 = """
    PRAGMA page_size = 8192;
    PRAGMA auto_vacuum = INCREMENTAL;
    BEGIN;
    CREATE TABLE log (
        log INTEGER NOT NULL, first INTEGER NOT NULL, end INTEGER NOT NULL, time INTEGER NOT NULL,
        crc INTEGER NOT NULL, total INTEGER NOT NULL, data BLOB NOT NULL);
    CREATE UNIQUE INDEX log_first ON log (log, first);
    CREATE TABLE bounds (
        log INTEGER PRIMARY KEY, first INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
        time INTEGER NOT NULL, trimmed INTEGER NOT NULL);
    CREATE TABLE litter (log INTEGER PRIMARY KEY, before INTEGER NOT NULL);
    CREATE TABLE documents (kind TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
    CREATE TABLE ledger (log INTEGER, producer BLOB, entry BLOB NOT NULL, PRIMARY KEY (log, producer))
        WITHOUT ROWID;
    INSERT INTO documents VALUES ('topic', 'a', x'31');
    INSERT INTO ledger VALUES (1, x'70', x'32');
    PRAGMA application_id = 1281453668;
    PRAGMA user_version = 1;
    COMMIT;
    PRAGMA journal_mode = WAL;
"""


@pytest.fixture
def version_1(tmp_path: Path) -> Path:
    """A store as version 1 left it: log 1 has its batches 2 to 29, 0 and 1 are trimmed, 1 is not swept yet;
    log 2 is dropped and not swept."""
    path = tmp_path / "old.db"
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(VERSION_1)
    for number in range(1, 30):
        data = contents(number, 100_000)
        row = (number * 10, number * 10 + 10, number, crc32(data), (number + 1) * 100_000, data)
        db.execute("INSERT INTO log VALUES (1, ?, ?, ?, ?, ?, ?)", row)
    db.execute("INSERT INTO bounds VALUES (1, 20, 300, 2800000, 29, 200000)")
    db.execute("INSERT INTO log VALUES (2, 0, 1, 0, 0, 1, 'x')")
    db.execute("INSERT INTO litter VALUES (1, 20), (2, 9223372036854775807)")
    db.close()
    return path


def test_a_store_of_version_1_is_brought_to_this_one(version_1: Path) -> None:
    for _ in range(2):
        with opened(SqliteFile(version_1)) as store:
            assert pragma(store, "user_version") == "3"
            assert assert_intact(store) == 28
            assert list(store.documents("topic")) == [("a", b"1")]
            assert store.ledger(1, b"p") == b"2"
            store.settle()
            assert store.check() == []
    with opened(SqliteFile(version_1)) as store:
        store.commit([batch(30), Trim(1, 50), copy(7, log=3)])
        assert assert_intact(store) == 26
        assert store.logs().keys() == {1, 3}


def test_a_crash_while_a_store_is_brought_to_this_version_leaves_it_as_it_was(version_1: Path) -> None:
    code = """
from landbridge.stores import sqlite, tables
def crash(db, old):
    db.execute("PRAGMA cache_size = 10")  # so that most of it is in the WAL already
    tables._from_version_1(db, old)
    os.kill(os.getpid(), 9)
sqlite.UPGRADE = {1: crash}
SqliteFile(arguments[0]).open()
"""
    process = child(code, version_1)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert Path(f"{version_1}-wal").stat().st_size > 1_000_000
    db = sqlite3.connect(version_1, isolation_level=None)
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert db.execute("SELECT count(data) FROM log").fetchone() == (30,)
    db.close()
    with opened(SqliteFile(version_1)) as store:
        assert assert_intact(store) == 28


def test_a_store_of_version_1_without_its_tail_is_refused_and_left_alone(version_1: Path) -> None:
    os.truncate(version_1, version_1.stat().st_size - 200_000)
    before = version_1.read_bytes()
    with pytest.raises(StoreCorrupt, match=r"old\.db"):
        SqliteFile(version_1).open()
    assert version_1.read_bytes() == before


def test_a_store_of_version_1_that_no_room_is_left_for_stays_one(version_1: Path, small_disk: Path) -> None:
    cp(version_1, small_disk / "bus.db")
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(20_000_000))
    with pytest.raises(StoreFull):
        SqliteFile(small_disk / "bus.db").open()
    ballast.unlink()
    with opened(SqliteFile(small_disk / "bus.db")) as store:
        assert assert_intact(store) == 28


@pytest.mark.parametrize("damage", ["data", "chain"])
def test_damage_in_a_store_of_version_1_stays_damage_to_one_batch(version_1: Path, damage: str) -> None:
    at = place_in_file(version_1, contents(7, 100_000))
    if damage == "data":
        overwrite(version_1, at, flipped)
    else:
        overwrite(version_1, at - at % PAGE, lambda old: bytes(len(old)))
    with opened(SqliteFile(version_1)) as store:
        with pytest.raises(StoreCorrupt, match="log 1, offset 70"):
            store.read(1, 70, ALL)
        assert any("log 1, offset 70" in finding for finding in store.check())
        assert len(store.read(1, 80, ALL)) == 22
        store.commit([Trim(1, 80)])
        store.settle()
        assert assert_intact(store) == 22


# -- no room


def fill(store: SqliteFile, start: int) -> int:
    """Append batches until there is no room; how many there are now."""
    number = start
    with pytest.raises(StoreFull):
        while True:
            store.commit([batch(number)])
            number += 1
    return number


def test_a_full_database_refuses_commits_until_there_is_room(tmp_path: Path) -> None:
    with opened(SqliteFile(tmp_path / "bus.db", max_bytes=4_000_000)) as store:
        count = fill(store, 0)
        assert count > 20
        assert assert_intact(store) == count  # reading goes on, and nothing of the last commit is there
        with pytest.raises(StoreFull):
            store.commit([PutDocument("topic", "a", b"1"), batch(count)])
        assert list(store.documents("topic")) == []
        store.commit([Trim(1, 100)])
        store.commit([batch(count)])  # into the pages that the trim has freed
        assert assert_intact(store) == count - 10 + 1
    with opened(SqliteFile(tmp_path / "bus.db")) as store:
        assert assert_intact(store) == count - 10 + 1
        store.commit([batch(count + 1)])


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("wal_bound", [2_000_000, 64_000_000], ids=["copies", "one long WAL"])
def test_a_full_disk_stops_commits_not_reads_and_heals(small_disk: Path, wal_bound: int) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8_000_000))
    with opened(
        SqliteFile(small_disk / "bus.db", checkpoint_bytes=wal_bound // 2, wal_bound=wal_bound)
    ) as store:
        count = fill(store, 0)
        assert count > 40
        for _ in range(3):
            with pytest.raises(StoreFull):
                store.commit([batch(count, 3_000_000)])
        assert len(read_all(store)) == count
        ballast.unlink()
        store.commit([batch(count)])
        assert assert_intact(store) == count + 1
        count = fill(store, count + 1)
    with opened(SqliteFile(small_disk / "bus.db")) as store:  # full, it still opens
        assert assert_intact(store) == count


def test_want_of_room_that_sqlite_calls_an_io_error_is_want_of_room(tmp_path: Path) -> None:
    """The limit of a file's size fails a write with EFBIG, as a quota does with EDQUOT."""
    code = """
import resource
store = SqliteFile(arguments[0], checkpoint_bytes=1 << 40, wal_bound=1 << 40)
store.open()
say(attempt(store, Append(1, 0, 1, 0, bytes(100_000))))
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, resource.RLIM_INFINITY))
say(attempt(store, Append(1, 1, 2, 0, bytes(1_000_000))))
say(attempt(store, Append(1, 1, 2, 0, b"small")))
say(len(store.read(1, 0, 1 << 30)))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
say(attempt(store, Append(1, 2, 3, 0, bytes(1_000_000))))
say(len(store.check()))
"""
    assert lines_of(child(code, tmp_path / "bus.db")) == [
        "stored",
        "store_full",
        "stored",
        "2",
        "stored",
        "0",
    ]


# -- a disk that fails


FAILING_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static int failing(void) { return access(getenv("FAIL_SYNC"), F_OK) == 0; }

int fsync(int fd) {
    if (failing()) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}

int fdatasync(int fd) {
    if (failing()) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(fd);
}
"""


@pytest.fixture
def failing_sync(tmp_path: Path) -> dict[str, str]:
    """The environment of a process whose syncs fail while the file FAIL_SYNC names exists."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or ctypes.util.find_library("c") is None or sys.platform != "linux":
        pytest.skip("takes a C compiler and Linux")
    source, library = tmp_path / "sync.c", tmp_path / "sync.so"
    source.write_text(FAILING_SYNC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "FAIL_SYNC": str(tmp_path / "fail")}


def test_after_a_failed_sync_no_commit_is_taken_until_the_store_is_opened_anew(
    tmp_path: Path, failing_sync: dict[str, str]
) -> None:
    code = """
store = SqliteFile(arguments[0])
store.open()
fail = os.environ["FAIL_SYNC"]
say(attempt(store, Append(1, 0, 1, 0, b"first")))
open(fail, "x").close()
say(attempt(store, Append(1, 1, 2, 0, b"unknown")))
os.unlink(fail)
say(attempt(store, Append(1, 1, 2, 0, b"refused")))
say(store.read(1, 0, 1000)[0].data.decode())
store.close()
store.open()
end = store.logs()[1].end
say(attempt(store, Append(1, end, end + 1, 0, b"last")))
say(len(store.check()))
"""
    lines = lines_of(child(code, tmp_path / "bus.db", **failing_sync))
    assert lines == ["stored", "store_failed", "store_failed", "first", "stored", "0"]
    with opened(SqliteFile(tmp_path / "bus.db")) as store:
        found = [each.data for each in store.read(1, 0, ALL)]
        assert found in ([b"first", b"last"], [b"first", b"unknown", b"last"])


def test_a_copy_of_the_wal_that_fails_to_sync_stops_commits(
    tmp_path: Path, failing_sync: dict[str, str]
) -> None:
    """The commit that met it is stored and says so; the disk is not trusted with the next one."""
    code = """
store = SqliteFile(arguments[0], checkpoint_bytes=1 << 40, wal_bound=1 << 40)
store.open()
say(attempt(store, Append(1, 0, 1, 0, b"first")))
open(os.environ["FAIL_SYNC"], "x").close()
store.settle()
os.unlink(os.environ["FAIL_SYNC"])
say(attempt(store, Append(1, 1, 2, 0, b"refused")))
say(store.read(1, 0, 1000)[0].data.decode())
"""
    lines = lines_of(child(code, tmp_path / "bus.db", **failing_sync))
    assert lines == ["stored", "store_failed", "first"]


# -- kill -9, and files as a crash leaves them


def test_every_reported_commit_survives_kill_9(tmp_path: Path) -> None:
    code = """
import random
store = SqliteFile(arguments[0], checkpoint_bytes=int(arguments[1]), wal_bound=4_000_000, sweep_rows=2)
store.open()
bounds = store.logs().get(1)
number = bounds.end // 10 if bounds else 0
while True:
    writes = [
        Append(1, (number + more) * 10, (number + more) * 10 + 10, number + more,
            random.Random(number + more).randbytes(30_000))
        for more in range(number % 5 + 1)
    ]
    number += len(writes)
    writes += [PutLedger(1, b"p", b"%d" % number), PutDocument("cursor", "g", b"%d" % number)]
    if number % 7 == 0:
        writes.append(Trim(1, (number - 40) * 10))
    # Log 2 has copies of some, of this commit's and of earlier ones; it is dropped now and then.
    end = store.logs()[2].end if 2 in store.logs() else 0
    for source in range(max(number - 8, 0), number):
        writes.append(Copy(2, end, end + 10, number, 1, source * 10))
        end += 10
    if number % 11 == 0:
        writes += [DropLog(2), Copy(2, 0, 10, number, 1, (number - 1) * 10)]
    store.commit(writes)
    say(number)
"""
    path = tmp_path / "bus.db"
    for round_, reports in enumerate((1, 30, 100, 61, 87, 7)):
        process = child(code, path, 100_000 if round_ % 2 else 16_000_000)
        assert process.stdout is not None
        reported = [int(process.stdout.readline()) for _ in range(reports)]
        process.send_signal(signal.SIGKILL)
        reported += [int(line) for line in process.stdout if line.endswith("\n")]
        process.wait()
        process.stdout.close()
        with opened(SqliteFile(path)) as store:
            assert_intact(store, 30_000)
            known = {
                contents(number, 30_000) for number in range(max(reported[-1] - 500, 0), reported[-1] + 50)
            }
            assert {each.data for each in read_all(store, 2)} <= known
            stored = store.logs()[1].end // 10
            assert stored >= reported[-1]
            assert store.ledger(1, b"p") == b"%d" % stored
            assert list(store.documents("cursor")) == [("g", b"%d" % stored)]


def test_a_torn_wal_gives_a_prefix_of_the_commits(tmp_path: Path) -> None:
    path, copy = tmp_path / "bus.db", tmp_path / "copy.db"
    with opened(SqliteFile(path)) as store:
        store.commit([batch(0, 1000)])
        store.settle()  # so that the WAL has only what comes now
        for number in range(1, 20):
            store.commit([batch(number, 20_000), PutDocument("cursor", "g", b"%d" % number)])
        cp(path, tmp_path / "whole.db")
    wal = (tmp_path / "whole.db-wal").read_bytes()
    choice = random.Random(3)
    cuts = sorted(choice.randrange(len(wal)) for _ in range(30))
    counts = []
    for cut in [0, 1, 32, *cuts, len(wal)]:
        for torn in (wal[:cut], wal[:cut] + choice.randbytes(len(wal) - cut)):
            shutil.copy(tmp_path / "whole.db", copy)
            Path(f"{copy}-wal").write_bytes(torn)
            with opened(SqliteFile(copy)) as store:
                found = read_all(store)
                assert [each.first for each in found] == [number * 10 for number in range(len(found))]
                assert all(each.data == contents(each.time, 20_000) for each in found[1:])
                assert store.check() == []
                last = [(b"%d" % (len(found) - 1))] if len(found) > 1 else []
                assert [value for _, value in store.documents("cursor")] == last
        counts.append(len(found))
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (1, 20)


# -- one process at a time


def test_a_store_that_another_process_has_open_is_busy_until_that_process_ends(tmp_path: Path) -> None:
    path = tmp_path / "bus.db"
    code = """
store = SqliteFile(arguments[0])
store.open()
store.commit([Append(1, 0, 1, 0, b"theirs")])
say("open")
sys.stdin.read()
"""
    process = child(code, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    try:
        with pytest.raises(StoreBusy, match=f"process {process.pid}"):
            SqliteFile(path).open()
        link = tmp_path / "link.db"
        link.symlink_to(path)
        with pytest.raises(StoreBusy):
            SqliteFile(link).open()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    with opened(SqliteFile(path)) as store:
        assert store.read(1, 0, ALL)[0].data == b"theirs"


# -- the WAL and the size of the files


def test_the_wal_is_copied_while_commits_go_on_and_stays_short(tmp_path: Path) -> None:
    store = SqliteFile(tmp_path / "bus.db", checkpoint_bytes=500_000, wal_bound=4_000_000)
    with opened(store):
        for number in range(0, 400, 4):
            store.commit([batch(more) for more in range(number, number + 4)])
            store.read(1, number * 10, 1)
        wal = Path(f"{store.path}-wal").stat().st_size
        assert wal < 4_000_000 + 2 * 400_000
        assert assert_intact(store) == 400


class WatchedConnection:
    """Does what the store's copying connection does, when it is let, and notes how the WAL is then."""

    def __init__(self, connection: sqlite3.Connection, shm: int) -> None:
        self.connection = connection
        self.shm = shm  # stays open: closing it would drop SQLite's locks, which are on that file
        self.may_copy = Event()
        self.has_copied = Event()
        self.seen: list[tuple[int, int]] = []  # at each start: frames in the WAL, frames of them copied

    def execute(self, statement: str) -> sqlite3.Cursor:
        self.may_copy.wait()
        # sqlite.org/walformat.html: mxFrame and nBackfill of the WAL-index header.
        frames, copied = (int.from_bytes(os.pread(self.shm, 4, at), sys.byteorder) for at in (16, 96))
        self.seen.append((frames, copied))
        cursor = self.connection.execute(statement)
        self.has_copied.set()
        return cursor

    def close(self) -> None:
        self.connection.close()


def test_no_copy_beside_commits_begins_when_the_wal_is_copied_entirely(tmp_path: Path) -> None:
    """Otherwise SQLite before 3.51.3 loses committed pages now and then (the WAL-reset bug): a thread that
    did nothing but copy broke the database in one of five runs of some seconds."""
    store = SqliteFile(tmp_path / "bus.db", checkpoint_bytes=3_000_000)
    store.open()
    shm = os.open(f"{store.path}-shm", os.O_RDONLY)
    assert store._copier is not None
    watched = WatchedConnection(store._copier, shm)
    store._copier = watched  # type: ignore[assignment]

    store.commit([batch(0, 3_000_000)])  # asks for a copy, which begins late ...
    store.commit([batch(1, 2_000_000)])  # ... so that it finds this one too, and copies all there is
    watched.may_copy.set()
    watched.has_copied.wait()
    with store._checkpointing:  # until the thread has let go of it
        assert not store._copying
    store.commit([Trim(1, 0), DeleteDocument("topic", "none")])  # changes nothing: nothing to copy
    assert not store._copying
    for number in range(2, 40):
        store.commit([batch(number, 1_000_000)])
        store.commit([Trim(1, 0)])
    assert store.check() == []
    store.close()
    os.close(shm)
    assert len(watched.seen) > 2
    assert [(frames, copied) for frames, copied in watched.seen if copied >= frames] == []


def test_a_check_beside_commits_does_not_stop_them(tmp_path: Path) -> None:
    """While somebody reads, the WAL can't be started anew. It grows, and shrinks when they have gone."""
    store = SqliteFile(tmp_path / "bus.db", checkpoint_bytes=100_000, wal_bound=1_000_000)
    with opened(store):
        store.commit([batch(0)])
        other = sqlite3.connect(store.path, isolation_level=None)
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM log").fetchone() == (1,)
        for number in range(1, 50):
            store.commit([batch(number)])
        wal = Path(f"{store.path}-wal")
        assert wal.stat().st_size > 4_000_000
        assert other.execute("SELECT count(*) FROM log").fetchone() == (1,)
        other.close()
        store.settle()
        store.commit([batch(50)])
        assert wal.stat().st_size <= 1_000_000
        assert assert_intact(store) == 51


def test_space_goes_back_to_the_disk(tmp_path: Path) -> None:
    store = SqliteFile(tmp_path / "bus.db")
    with opened(store):
        for number in range(0, 600, 10):
            store.commit([batch(more) for more in range(number, number + 10)])
        store.settle()
        full = store.path.stat().st_size
        store.commit([batch(0, log=2)])
        store.commit([DropLog(1)])
        store.settle()
        assert full > 60_000_000
        assert store.path.stat().st_size < 20_000_000
        assert store.logs().keys() == {2}
        assert assert_intact(store, log=2) == 1


def test_a_large_trim_is_finished_after_a_crash(tmp_path: Path) -> None:
    """The commit itself removes only some rows. Whoever opens the store next removes the others."""
    path, copy = tmp_path / "bus.db", tmp_path / "copy.db"
    code = """
store = SqliteFile(arguments[0], sweep_rows=1)
store.open()
store.commit([Append(1, at, at + 1, 0, bytes(100)) for at in range(500)])
store.commit([Append(2, at, at + 1, 0, bytes(100)) for at in range(500)])
store.commit([Trim(1, 450), DropLog(2)])
os.kill(os.getpid(), 9)
"""
    process = child(code, path)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with opened(SqliteFile(path)) as store:
        assert store.logs()[1].first == 450
        assert store.logs().keys() == {1}
        assert len(store.read(1, 0, ALL)) == 50
        assert store.check() == []
        store.settle()
        assert store.check() == []
        cp(path, copy)
    db = sqlite3.connect(copy)
    assert db.execute("SELECT log, count(*) FROM log GROUP BY log").fetchall() == [(1, 50)]
    assert db.execute("SELECT count(*) FROM litter").fetchone() == (0,)
    db.close()

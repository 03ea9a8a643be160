"""A store that runs out of room: publishes stop, what frees room goes on, and all is well again by itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic

import pytest

from landbridge.core.log.store import Append, DeleteDocument, DropLog, PutDocument, PutLedger, Trim
from landbridge.errors import StoreFull
from landbridge.stores.journal.disk import LocalDisk
from landbridge.stores.journal.store import JournalFolder
from landbridge.stores.journal.tending import RETRY_AFTER
from tests.stores.faults import (
    assert_intact,
    batch,
    child,
    copied,
    lines_of,
    memory_folder,
    opened,
    read_all,
    wait_until,
)

SIZE = 20_000
MIB = 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system takes root")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"can't mount a small file system: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(store: JournalFolder, start: int = 0, *, log: int = 1) -> int:
    """Append batches until there is no room. Returns how many there are now."""
    number = start
    with pytest.raises(StoreFull):
        while True:
            store.commit([batch(number, SIZE, log=log)])
            number += 1
    return number


def fill_disk(folder: Path) -> Path:
    """Take all that is left of the disk."""
    path = folder / "ballast"
    with path.open("wb", buffering=0) as file:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    return path


def publishes(store: JournalFolder, number: int, *, log: int = 1) -> bool:
    """Is there room for the batch with this number? Then it is stored."""
    try:
        store.commit([batch(number, SIZE, log=log)])
    except StoreFull:
        return False
    return True


def assert_small_commits_go_through(store: JournalFolder, count: int = 50) -> None:
    for number in range(count):
        store.commit([PutDocument("cursor", "g", b"%d" % number), PutLedger(1, b"p", b"%d" % number)])
    store.commit([DeleteDocument("cursor", "g"), PutLedger(1, b"p", None)])
    assert store.documents("cursor") == []


# -- a bound for the store


@pytest.mark.parametrize("frees", [DropLog(1), Trim(1, 10**9)])
def test_a_full_store_refuses_batches_until_something_goes(folder: Path, frees: DropLog | Trim) -> None:
    with opened(JournalFolder(folder / "bus", max_bytes=6 * MIB)) as store:
        store.commit([batch(0, log=2)])
        count = fill(store)
        assert count > 150
        with pytest.raises(StoreFull):
            store.commit([PutDocument("topic", "a", b"1"), batch(count, SIZE)])
        assert store.documents("topic") == []
        assert_small_commits_go_through(store)
        assert assert_intact(store, SIZE) == count
        store.commit([frees])
        wait_until(lambda: publishes(store, 0, log=3))
        assert fill(store, 1, log=3) > 100
        assert assert_intact(store, log=2) == 1
    assert sum(path.stat().st_size for path in (folder / "bus").glob("*.segment")) <= 6 * MIB
    with opened(JournalFolder(folder / "bus")) as store:
        assert store.findings == []
        assert assert_intact(store, log=2) == 1
        store.commit([batch(1, log=2)])


def test_a_full_store_that_is_trimmed_bit_by_bit_takes_as_much_as_goes(folder: Path) -> None:
    with opened(JournalFolder(folder / "bus", max_bytes=6 * MIB)) as store:
        count = fill(store)
        for _ in range(5):
            first = store.logs()[1].first
            store.commit([Trim(1, first + 1000)])  # a hundred batches
            wait_until(partial(publishes, store, count))
            count = fill(store, count + 1)
        assert assert_intact(store, SIZE) > 100


def test_small_commits_leave_room_for_those_that_free_some(folder: Path) -> None:
    """A full store gets acks until there is no room for them either. A log can still be dropped."""
    with opened(JournalFolder(folder / "bus", max_bytes=4 * MIB)) as store:
        fill(store)
        acks = 0
        for size in (1000, 100, 0):
            with pytest.raises(StoreFull):
                while True:
                    store.commit([PutDocument("", "", bytes(size))])
                    acks += 1
        assert acks > 50
        store.commit([PutDocument("unit", "0", b"2")])  # so does a process that takes the store over
        store.commit([Trim(1, 100)])
        store.commit([DeleteDocument("", "")])
        store.commit([DropLog(1)])
        wait_until(lambda: publishes(store, 0, log=3))
        assert_small_commits_go_through(store)
        assert store.check() == []


def test_copies_count_as_batches(folder: Path) -> None:
    with opened(JournalFolder(folder / "bus", max_bytes=4 * MIB)) as store:
        count = fill(store)
        number = 0
        try:
            while number < count:
                store.commit([copied(number, log=2)])
                number += 1
        except StoreFull:
            pass
        assert assert_intact(store, SIZE) == count
        assert len(read_all(store, 2)) == number
        store.commit([DropLog(1)])
        assert len(read_all(store, 2)) == number


class CountingDisk(LocalDisk):
    """Has no room, and knows when it was asked for some."""

    def __init__(self) -> None:
        self.asked: list[float] = []
        self.is_full = False

    def reserve(self, descriptor: int, size: int) -> None:
        if self.is_full:
            self.asked.append(monotonic())
            raise OSError(28, "no room")
        super().reserve(descriptor, size)


def test_a_full_store_asks_for_room_again_and_again_but_not_all_the_time(folder: Path) -> None:
    disk = CountingDisk()
    with opened(JournalFolder(folder / "bus", disk=disk)) as store:
        disk.is_full = True
        fill(store)
        start = len(disk.asked)
        wait_until(lambda: len(disk.asked) >= start + 3)
        assert disk.asked[start + 2] - disk.asked[start] > RETRY_AFTER
        disk.is_full = False
        wait_until(lambda: not store.is_low)  # nobody has to try
        store.commit([batch(store.logs()[1].end // 10, SIZE)])


# -- a disk without room


def test_a_full_disk_stops_batches_not_reads_and_heals(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(4 * MIB))
    with opened(JournalFolder(small_disk / "bus")) as store:
        count = fill(store)
        assert count > 200
        assert_small_commits_go_through(store)
        assert len(read_all(store)) == count
        ballast.unlink()
        wait_until(lambda: publishes(store, count))
        count = fill(store, count + 1)
    with opened(JournalFolder(small_disk / "bus")) as store:  # full, it still opens
        assert assert_intact(store, SIZE) == count
        store.commit([DropLog(1)])
        wait_until(lambda: publishes(store, 0, log=2))


@pytest.mark.parametrize("has_spare", [True, False])
@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("frees", [DropLog(1), Trim(1, 10**9)])
def test_a_store_opens_on_a_disk_without_any_room_and_gets_out(
    small_disk: Path, has_spare: bool, has_index: bool, frees: DropLog | Trim
) -> None:
    with opened(JournalFolder(small_disk / "bus")) as store:
        store.commit([batch(0, log=2), PutDocument("topic", "a", b"1"), PutLedger(2, b"p", b"1")])
        count = fill(store)
        assert_small_commits_go_through(store)
    if not has_spare:
        (store.folder / "spare").unlink(missing_ok=True)
    if not has_index:
        for path in store.folder.glob("index.db*"):
            path.unlink()
    fill_disk(small_disk)
    for _ in range(2):
        with opened(JournalFolder(small_disk / "bus")) as store:
            assert len(read_all(store)) == count
            assert store.documents("topic") == [("a", b"1")]
            assert store.ledger(2, b"p") == b"1"
            with pytest.raises(StoreFull):
                store.commit([batch(count, 1_000_000)])
    with opened(JournalFolder(small_disk / "bus")) as store:
        store.commit([PutDocument("topic", "b", b"2")])
        store.commit([frees])
        wait_until(lambda: publishes(store, 0, log=3))
    with opened(JournalFolder(small_disk / "bus")) as store:
        assert store.documents("topic") == [("a", b"1"), ("b", b"2")]
        assert store.ledger(2, b"p") == b"1"
        assert assert_intact(store, log=2) == 1
        assert assert_intact(store, SIZE, log=3) == 1
        assert [line for line in store.findings if "index" not in line] == []


def test_a_store_gets_out_when_the_disk_runs_full_under_it(small_disk: Path) -> None:
    """The index can't grow any more either."""
    with opened(JournalFolder(small_disk / "bus")) as store:
        store.commit([batch(0, log=2)])
        count = 0
        while count < 200:
            store.commit([batch(count, SIZE)])
            count += 1
        fill_disk(small_disk)
        count = fill(store, count)
        assert_small_commits_go_through(store)
        assert len(read_all(store)) == count
        store.commit([DropLog(1)])
        wait_until(lambda: publishes(store, 0, log=3))
        assert assert_intact(store, log=2) == 1


def test_want_of_room_under_another_name_is_want_of_room(folder: Path) -> None:
    """The limit of a file's size fails a write with EFBIG, as a quota does with EDQUOT."""
    code = """
import resource
store = JournalFolder(arguments[0])
store.open()
say(attempt(store, Append(1, 0, 1, 0, bytes(100_000))))
resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
say(attempt(store, Append(1, 1, 2, 0, bytes(3_000_000))))
say(attempt(store, Append(1, 1, 2, 0, b"small")))
say(len(store.read(1, 0, 1 << 30)))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
say(attempt(store, Append(1, 2, 3, 0, bytes(3_000_000))))
say(len(store.check()))
"""
    assert lines_of(child(code, folder / "bus")) == [
        *("stored", "store_full", "stored", "2"),
        *("stored", "0"),
    ]


def test_no_room_for_a_new_store_is_want_of_room(small_disk: Path) -> None:
    fill_disk(small_disk)
    with pytest.raises(StoreFull):
        JournalFolder(small_disk / "bus").open()
    (small_disk / "ballast").unlink()
    with opened(JournalFolder(small_disk / "bus")) as store:
        store.commit([Append(1, 0, 1, 0, b"stored")])
        assert store.check() == []

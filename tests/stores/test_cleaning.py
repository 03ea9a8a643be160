"""What goes on beside the commits: cleaning, removing and restating, and what copies, crashes and other
threads have to do with it."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from landbridge.core.log.store import (
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    PutDocument,
    PutLedger,
    Trim,
    Write,
)
from landbridge.errors import StoreCorrupt
from landbridge.stores.journal.segments import segment_files
from landbridge.stores.journal.store import JournalFolder
from tests.contracts.test_store import ALL
from tests.stores.faults import (
    Comparison,
    Handled,
    Witness,
    assert_intact,
    batch,
    child,
    clone,
    contents,
    memory_folder,
    opened,
    read_all,
    wait_until,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def store(folder: Path) -> Iterator[Handled]:
    with opened(Handled(folder / "bus")) as store:
        yield store


def without_index(folder: Path) -> Path:
    """A copy of a store as a backup has it."""
    target = clone(folder, folder.with_name("bare"))
    for path in target.glob("index.db*"):
        path.unlink()
    return target


def assert_right(witness: Witness) -> None:
    """The store says what was committed, and its segments alone say the same."""
    for store in (witness.store, Handled(without_index(witness.store.folder))):
        if store is not witness.store:
            store.open()
        found = Comparison(store, witness.model)
        assert not found.different | found.unreadable
        assert store.findings + store.check() == []
    store.close()


# -- cleaning


def test_a_batch_without_data_is_moved_apart_from_the_one_behind_it(store: Handled) -> None:
    witness = Witness(store)
    for number in range(400):
        empty = Append(2, number, number + 1, number, b"")
        witness.commit(empty, batch(number, 30, log=3), batch(number, 300))
        if number % 10 == 9:
            witness.commit(Trim(1, number * 10 - 20))
            store.tend(2)
    assert 1 not in store.segments.held
    assert_right(witness)


def test_segments_with_little_life_are_emptied_and_removed(store: Handled) -> None:
    witness = Witness(store)
    for number in range(200):  # a little of log 2 in every segment
        witness.commit(batch(number, 20, log=2), *(batch(number * 5 + more, 500) for more in range(5)))
        witness.commit(Trim(1, number * 50 - 100))
        if number % 5 == 4:
            store.tend()
    assert max(store.segments.held) > 30
    store.tend(60)
    assert len(store.segments.held) < 12
    assert_right(witness)


def test_a_damaged_batch_is_moved_and_stays_the_only_damaged_one(store: Handled) -> None:
    for number in range(200):
        store.commit([batch(number, 50, log=2), batch(number, 600)])
    row = store.row_at(2, 50)
    with store.segments.held[row.segment].path.open("r+b") as file:
        file.seek(row.position)
        file.write(b"damaged")
    store.commit([DropLog(1)])
    store.tend(60)
    assert row.segment not in store.segments.held

    def assert_one_damaged(store: JournalFolder) -> None:
        with pytest.raises(StoreCorrupt, match="log 2, offset 50"):
            store.read(2, 50, ALL)
        assert [store.read(2, number * 10, 0)[0].data for number in range(200) if number != 5] == [
            contents(number, 50) for number in range(200) if number != 5
        ]
        assert len(store.check()) == 1

    assert_one_damaged(store)
    with opened(Handled(without_index(store.folder))) as other:
        assert_one_damaged(other)


def test_a_segment_with_a_damaged_record_is_cleaned_without_loss(store: Handled) -> None:
    """The index knows what the record says."""
    witness = Witness(store)
    for number in range(200):
        witness.commit(batch(number, 50, log=2), batch(number, 600))
    store.tend()
    row = store.row_at(2, 50)
    with store.segments.held[row.segment].path.open("r+b") as file:
        file.seek(row.position - 20)  # in the header of the record
        file.write(b"damage")
    witness.commit(DropLog(1))
    store.tend(60)
    assert row.segment not in store.segments.held
    assert_right(witness)


# -- copies


def test_a_copy_outlives_its_source_and_the_segments_of_both(store: Handled) -> None:
    witness = Witness(store)
    for number in range(60):
        witness.commit(batch(number, 400))
        if number % 3 == 0:
            end = witness.model.ends.get(2, 0)
            witness.commit(Copy(2, end, end + 10, number, 1, number * 10))
            end = witness.model.ends.get(4, 0)
            witness.commit(Copy(4, end, end + 3, number, 1, number * 10, b"rows %d" % number))
    witness.commit(DropLog(1))
    for number in range(300):  # so that segments come and go
        witness.commit(batch(number, 600, log=3), Trim(3, number * 10))
        if number % 10 == 0:
            store.tend(2)
    assert len(store.segments.held) < 20
    assert_right(witness)


def test_a_copy_from_a_segment_that_is_being_emptied_is_refused_if_it_is_damaged(store: Handled) -> None:
    for number in range(20):
        store.commit([batch(number, 600)])
    store.tend()
    row = store.row_at(1, 50)
    with store.segments.held[row.segment].path.open("r+b") as file:
        file.truncate(row.position + 10)
    store.going = row.segment
    with pytest.raises(StoreCorrupt, match="log 1, offset 50"):
        store.commit([PutDocument("topic", "a", b""), Copy(2, 0, 10, 0, 1, 50)])
    assert store.documents("topic") == []
    store.commit([PutDocument("topic", "b", b"")])
    assert store.documents("topic") == [("b", b"")]


# -- small state


def test_what_was_deleted_stays_deleted_when_small_state_is_stated_anew(store: Handled) -> None:
    witness = Witness(store)
    for number in range(300):
        witness.commit(
            PutDocument("kept", f"{number % 7}", b"%d" % number),
            PutDocument("deleted", f"{number}", bytes(200)),
            PutLedger(2, b"p%d" % number, b"%d" % number, number * 10, number),
            batch(number, 300),
            batch(number, 5, log=2),
        )
        witness.commit(Trim(1, number * 10 - 50), DeleteDocument("deleted", f"{number - 3}"))
        if number % 30 == 0:
            witness.commit(Trim(2, number * 10 - 100))
        if number % 10 == 0:
            store.tend(3)
    assert store.index.restated.segment > 1
    assert min(store.segments.held) > 1
    assert store.ledger(2, b"p0") is None
    assert_right(witness)
    with opened(Handled(without_index(store.folder))) as other:
        assert other.documents("deleted") == store.documents("deleted")
        assert other.ledger(2, b"p0") is None
        assert other.logs() == store.logs()


# -- the tender's own thread


def restless(folder: Path, **options: int) -> JournalFolder:
    return JournalFolder(folder, **{"smallest": 16384, "largest": 65536, **options})


def size_on_disk(folder: Path) -> int:
    size = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):  # removed meanwhile
            size += path.stat().st_size
    return size


@pytest.mark.parametrize("frees", [DropLog(1), Trim(1, 6000)])
def test_room_goes_back_to_the_disk(folder: Path, frees: DropLog | Trim) -> None:
    with opened(JournalFolder(folder / "bus")) as store:
        for number in range(0, 600, 10):
            store.commit([batch(more, 100_000) for more in range(number, number + 10)])
        store.commit([batch(0, log=2)])
        full = size_on_disk(store.folder)
        assert full > 60_000_000
        store.commit([frees])
        wait_until(lambda: size_on_disk(store.folder) < full // 2)
        assert assert_intact(store, log=2) == 1
    with opened(JournalFolder(folder / "bus")) as store:
        assert assert_intact(store, log=2) == 1


@pytest.mark.parametrize("frees", ["Trim(1, 450)", "DropLog(1), DropLog(2)"])
def test_a_large_trim_or_drop_is_finished_after_a_crash(folder: Path, frees: str) -> None:
    code = f"""
store = JournalFolder(arguments[0], smallest=16384, largest=65536)
store.open()
for log in (1, 2, 3):
    store.commit([Append(log, at, at + 1, 0, bytes(500)) for at in range(500)])
store.commit([{frees}])
os.kill(os.getpid(), 9)
"""
    process = child(code, folder / "bus")
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    with opened(restless(folder / "bus")) as store:
        if frees.startswith("Trim"):
            assert store.logs()[1].first == 450
            assert len(store.read(1, 0, ALL)) == 50
        else:
            assert store.logs().keys() == {3}
        before = size_on_disk(store.folder)
        wait_until(lambda: not store.index.litter)
        if 1 not in store.logs():
            wait_until(lambda: size_on_disk(store.folder) < before)
        assert len(store.read(3, 0, ALL)) == 500
        assert store.check() == []


def work(store: JournalFolder, is_over: Callable[[], bool]) -> int:
    """Commit to three logs, so that segments are cleaned and removed all the time. Log 1 has one small batch
    in each commit and is never trimmed. Returns the number of commits."""
    number = 0
    while not is_over():
        end = number * 10
        writes: list[Write] = [
            batch(number, 60),
            batch(number, 2000, log=2),
            Copy(3, end, end + 10, number, 1, end),
        ]
        writes += [PutDocument("cursor", "g", b"%d" % number), Trim(2, end - 50), Trim(3, end - 300)]
        store.commit(writes)
        number += 1
    return number


def test_reads_beside_commits_and_cleaning_are_right(folder: Path) -> None:
    enough, turn = Event(), Event()
    with opened(restless(folder / "bus")) as store, ThreadPoolExecutor(1) as pool:

        def read() -> int:
            chance, count = random.Random(7), 0
            while not enough.is_set():
                turn.wait()  # else this thread would leave the locks to nobody
                turn.clear()
                for log, size in ((1, 60), (2, 2000), (3, 60)):
                    bounds = store.logs()[log]
                    offset = chance.randint(bounds.first, bounds.end)
                    found = store.read(log, offset, chance.choice((0, 9000)))
                    assert all(each.data == contents(each.time, size) for each in found)
                    count += len(found)
                assert int(store.documents("cursor")[0][1]) >= 0
            return count

        def is_over() -> bool:
            if store.logs():
                turn.set()
            held = store.segments.held
            return max(held) - len(held) > 15 or reader.done()

        reader = pool.submit(read)
        try:
            count = work(store, is_over)
        finally:
            enough.set()
            turn.set()
        assert reader.result() > 100
        assert assert_intact(store, 60) == count


def test_a_check_beside_commits_and_cleaning_finds_nothing(folder: Path) -> None:
    with opened(restless(folder / "bus")) as store, ThreadPoolExecutor(1) as pool:
        done = Event()
        commits = pool.submit(work, store, done.is_set)
        try:
            for _ in range(15):
                assert store.check() == []
        finally:
            done.set()
        count = commits.result()
        assert assert_intact(store, 60) == count


@pytest.mark.parametrize("largest", [65536, 8 << 20])
def test_a_copy_beside_commits_and_cleaning_is_a_prefix_of_the_commits(folder: Path, largest: int) -> None:
    copies: list[tuple[int, Path]] = []  # with the number of commits that it must have
    with opened(restless(folder / "bus", largest=largest)) as store, ThreadPoolExecutor(1) as pool:
        done = Event()
        commits = pool.submit(work, store, done.is_set)
        try:
            wait_until(lambda: 1 in store.logs())
            for number in range(8):
                copies.append((store.logs()[1].end // 10, folder / f"copy-{number}"))
                copies[-1][1].mkdir()
                JournalFolder(store.folder).copy_to(copies[-1][1], lambda done, whole: None)
        finally:
            done.set()
        copies.append((commits.result(), folder / "bus"))
    most = 0
    for least, target in copies:
        with opened(Handled(target)) as other:
            assert other.findings == []
            count = assert_intact(other, 60)
            assert max(least, most) <= count <= copies[-1][0]
            assert other.documents("cursor") == [("g", b"%d" % (count - 1))]
            for log, size, kept in ((2, 2000, 6), (3, 60, 31)):
                assert [each.data for each in read_all(other, log)] == [
                    contents(n, size) for n in range(max(0, count - kept), count)
                ]
        most = count


def test_a_copy_reserves_its_room_on_the_disk(folder: Path) -> None:
    """A store that is opened from it can use its segments without the disk running full."""
    with opened(JournalFolder(folder / "bus")) as store:
        store.commit([batch(0)])
        (folder / "copy").mkdir()
        store.copy_to(folder / "copy", lambda done, whole: None)
    for path in segment_files(folder / "copy"):
        assert path.stat().st_blocks * 512 >= path.stat().st_size


def test_a_log_that_begins_again_while_the_index_is_written_has_nothing_of_the_one_before(
    store: Handled, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        store.commit([batch(number, 30)])
    write = store.index.write

    def write_late(*changes: Any) -> None:
        """Meanwhile the number goes to another log, whose offsets begin within those of the one before."""
        store.commit([DropLog(1)])
        store.commit([batch(5, 30)])
        assert [row.first for row in read_all(store)] == [batch(5, 30).first]
        write(*changes)

    with monkeypatch.context() as patched:
        patched.setattr(store.index, "write", write_late)
        store.tend()
    assert [row.first for row in read_all(store)] == [batch(5, 30).first]
    store.tend(3)
    assert [row.first for row in read_all(store)] == [batch(5, 30).first]

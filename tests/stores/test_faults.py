"""What happens to the journal when its files are not what they were, when the disk fails, and when processes
die or meet."""

from __future__ import annotations

import ctypes.util
import errno
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.store import Append, Buffer, DropLog, PutDocument, PutLedger, Trim
from landbridge.errors import (
    BadRequest,
    BusError,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreFailure,
    StoreTooNew,
)
from landbridge.stores.journal import records, segments
from landbridge.stores.journal.disk import LocalDisk
from landbridge.stores.journal.records import encode_header, seed_of
from landbridge.stores.journal.segments import START, segment_files
from landbridge.stores.journal.store import JournalFolder
from tests.contracts.test_store import ALL
from tests.store_model import Model
from tests.stores.faults import (
    Comparison,
    Handled,
    Witness,
    assert_intact,
    batch,
    child,
    clone,
    contents,
    copy_files,
    lines_of,
    memory_folder,
    opened,
    read_all,
)


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as folder:
        yield folder


@pytest.fixture
def filled(folder: Path) -> tuple[Path, Model]:
    """A closed store with several segments, the last one made ahead, and what is in it: batches of two logs,
    ledgers and documents."""
    with opened(Handled(folder / "bus")) as store:
        witness = Witness(store)
        for number in range(45):
            witness.commit(batch(number), PutLedger(1, b"p", b"%d" % number))
            if number % 5 == 0:
                witness.commit(batch(number // 5, 150, log=2), PutDocument("topic", f"{number}", b"1"))
        while max(store.segments.held) == store.place.segment:
            store.tend()
    assert len(segment_files(store.folder)) > 4
    return store.folder, witness.model


def drop_index(folder: Path) -> None:
    for path in folder.glob("index.db*"):
        path.unlink()


def overwrite(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def assert_all_there(folder: Path, model: Model, *, findings: int | None = None) -> None:
    with opened(Handled(folder)) as store:
        found = Comparison(store, model)
        assert not found.different | found.unreadable
        if findings is not None:
            assert len(store.findings) == findings, store.findings


# -- files that can't be opened


def test_a_newer_format_is_refused_and_left_alone(filled: tuple[Path, Model]) -> None:
    folder, model = filled
    path = segment_files(folder)[2]
    old = path.read_bytes()
    header = list(segments.HEADER.unpack(old[: segments.HEADER.size]))
    header[1] = 99
    text = segments.HEADER.pack(*header)[:-4]
    overwrite(path, 0, text + crc32(text).to_bytes(4, "little"))
    before = {each.name: each.read_bytes() for each in folder.iterdir()}
    with pytest.raises(StoreTooNew, match="99"):
        Handled(folder).open()
    assert {each.name: each.read_bytes() for each in folder.iterdir() if each.name != "lock"} == {
        name: data for name, data in before.items() if name != "lock"
    }
    path.write_bytes(old)
    assert_all_there(folder, model, findings=0)


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"not a segment" * 1000, bytes(100_000), b"LBs1", b"LBr1" * 5000, b"\xff" * 9000]
)
@pytest.mark.parametrize("has_index", [True, False])
def test_a_segment_of_garbage_is_named_and_the_others_stay_readable(
    filled: tuple[Path, Model], garbage: bytes, has_index: bool
) -> None:
    folder, model = filled
    path = segment_files(folder)[2]
    path.write_bytes(garbage)
    if not has_index:
        drop_index(folder)
    with opened(Handled(folder)) as store:
        found = Comparison(store, model)
        assert found.unreadable
        assert any("segment 3" in line for line in store.findings)
        assert store.check()
        first, last = store.read(1, 0, 0), store.read(1, 440, 0)
        assert (first[0].data, last[0].data) == (contents(0, 1000), contents(44, 1000))
        store.commit([batch(45)])
        store.commit([Trim(1, 400)])  # and retention gets rid of it
        assert [each.data for each in read_all(store)] == [contents(n, 1000) for n in range(40, 46)]


def test_nothing_but_garbage_is_refused_and_left_alone(folder: Path) -> None:
    (folder / "00000001.segment").write_bytes(b"garbage" * 5000)
    with pytest.raises(StoreCorrupt, match="no segment has a readable header"):
        Handled(folder).open()
    assert (folder / "00000001.segment").read_bytes() == b"garbage" * 5000


@pytest.mark.parametrize("which", [0, 2, -2])
@pytest.mark.parametrize("part", [0.0, 0.001, 0.005, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_truncated_segment_is_named_and_the_rest_stays_readable(
    filled: tuple[Path, Model], which: int, part: float, has_index: bool
) -> None:
    folder, model = filled
    path = segment_files(folder)[which]
    os.truncate(path, int(path.stat().st_size * part))
    if not has_index:
        drop_index(folder)
    with opened(Handled(folder)) as store:
        found = Comparison(store, model)
        assert any(f"segment {segments.number_of(path)}" in line for line in store.findings)
        assert not has_index or not found.different
        bounds = store.logs()[1]
        for number in range(bounds.first // 10, bounds.end // 10):
            try:
                assert store.read(1, number * 10, 0)[0].data == contents(number, 1000)
            except StoreCorrupt:
                assert store.check()
        end = store.logs()[1].end // 10
        store.commit([batch(end)])
        assert store.read(1, end * 10, ALL)[0].data == contents(end, 1000)
    with opened(Handled(folder)) as store:
        assert store.read(1, end * 10, ALL)[0].data == contents(end, 1000)


@pytest.mark.parametrize("which", [0, 2, -2])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_missing_segment_is_named_and_the_others_stay_readable(
    filled: tuple[Path, Model], which: int, has_index: bool
) -> None:
    folder, model = filled
    files = segment_files(folder)
    with opened(Handled(folder)) as store:
        assert store.place.segment == segments.number_of(files[-2])  # the last one is made ahead
        lost = [n for n in range(45) if store.row_at(1, n * 10).segment == segments.number_of(files[which])]
    assert len(lost) >= 3
    files[which].unlink()
    if not has_index:
        drop_index(folder)
    with opened(Handled(folder)) as store:
        found = Comparison(store, model)
        named = store.findings
        bounds = store.logs()[1]
        for number in range(bounds.first // 10, bounds.end // 10):
            if number not in lost:
                assert store.read(1, number * 10, 0)[0].data == contents(number, 1000)
        if has_index:  # it has everything but the batches of the segment
            assert (found.different, found.unreadable) == (set(), {1, 2})
            assert [line for line in named if "is missing" in line]
        if has_index or which == 2:
            with pytest.raises(StoreCorrupt, match=f"log 1, offset {lost[0] * 10}"):
                store.read(1, lost[0] * 10, ALL)
            assert any("log 1" in line for line in store.check())
        assert named or which == -2  # without the index nobody knows of the last ones
        end = store.logs()[1].end // 10
        for number in range(end, end + 20):
            store.commit([batch(number)])
        store.tend(3)
    with opened(Handled(folder)) as store:
        assert store.read(1, end * 10, 0)[0].data == contents(end, 1000)
        assert bool(store.findings) == has_index  # as long as nothing trims what is lost
        store.commit([Trim(1, end * 10), Trim(2, ALL)])
        assert assert_intact(store) == 20


def test_damaged_headers_are_made_up_for_by_the_others_or_by_the_index(filled: tuple[Path, Model]) -> None:
    folder, model = filled
    files = segment_files(folder)
    for path in files[1:]:
        overwrite(path, 8, b"damaged")
    assert_all_there(folder, model, findings=len(files) - 1)
    drop_index(folder)
    assert_all_there(folder, model, findings=len(files) - 1)
    overwrite(files[0], 8, b"damaged")
    assert_all_there(folder, model, findings=len(files))
    drop_index(folder)
    with pytest.raises(StoreCorrupt, match="no segment has a readable header"):
        Handled(folder).open()


def test_a_segment_of_another_journal_is_not_taken_for_ours(filled: tuple[Path, Model]) -> None:
    folder, _ = filled
    with opened(Handled(folder.with_name("other"))) as other:
        other.commit([batch(0, log=7)])
    for has_index in (True, False):
        target = clone(folder, folder.with_name("mixed"))
        shutil.copy(segment_files(other.folder)[0], target)
        if not has_index:
            drop_index(target)
        with opened(Handled(target)) as store:
            assert any("segment 1" in line for line in store.findings)
            assert 7 not in store.logs()
            assert store.read(1, 440, ALL)[0].data == contents(44, 1000)


def test_a_segment_under_another_number_is_not_taken_for_that_one(filled: tuple[Path, Model]) -> None:
    folder, model = filled
    files = segment_files(folder)
    shutil.copy(files[0], files[2])
    with opened(Handled(folder)) as store:
        assert any("segment 3" in line for line in store.findings)
        assert Comparison(store, model).different == set()


# -- the index


def test_a_missing_index_is_made_anew(filled: tuple[Path, Model]) -> None:
    folder, model = filled
    drop_index(folder)
    assert_all_there(folder, model, findings=0)


@pytest.mark.parametrize(
    "garbage", [b"", b"x", b"not a database" * 1000, bytes(100_000), b"SQLite format 3\0", None]
)
def test_an_index_of_garbage_is_made_anew(filled: tuple[Path, Model], garbage: bytes | None) -> None:
    folder, model = filled
    path = folder / "index.db"
    path.write_bytes(path.read_bytes()[:20_000] if garbage is None else garbage)
    assert_all_there(folder, model, findings=1)
    assert_all_there(folder, model, findings=0)


def test_the_index_of_another_journal_is_made_anew(filled: tuple[Path, Model]) -> None:
    folder, model = filled
    with opened(Handled(folder.with_name("other"))) as other:
        other.commit([batch(0, log=7), PutDocument("other", "a", b"1")])
    shutil.copy(other.folder / "index.db", folder / "index.db")
    assert_all_there(folder, model, findings=1)
    with opened(Handled(folder)) as store:
        assert store.documents("other") == []


def test_an_index_of_an_earlier_moment_is_brought_up_to_date_or_made_anew(folder: Path) -> None:
    moments = []
    with opened(Handled(folder / "bus")) as store:
        witness = Witness(store)
        for number in range(300):
            witness.commit(batch(number, 400), batch(number, 10, log=2), Trim(1, number * 10 - 100))
            if number % 10 == 0:
                store.tend(2)
            if number % 50 == 0:
                moments.append(folder / f"moment {number}")
                copy_files(store.folder, moments[-1])
    for moment in moments:
        target = clone(store.folder, folder / "target")
        drop_index(target)
        for path in moment.glob("index.db*"):
            shutil.copy(path, target)
        assert_all_there(target, witness.model)


def test_an_index_without_its_segments_is_refused(filled: tuple[Path, Model]) -> None:
    folder, _ = filled
    for path in segment_files(folder):
        path.unlink()
    with pytest.raises(StoreCorrupt, match="has an index, but no segments"):
        Handled(folder).open()


# -- making a store


def test_an_empty_folder_becomes_a_store(folder: Path) -> None:
    with opened(Handled(folder)) as store:
        store.commit([batch(0)])
    with opened(Handled(folder)) as store:
        assert assert_intact(store) == 1


def test_a_path_that_cannot_be_is_an_error_of_ours(folder: Path) -> None:
    (folder / "file").write_bytes(b"")
    (folder / "a").mkdir()
    (folder / "a" / "lock").mkdir()
    (folder / "b").mkdir()
    (folder / "b" / "00000001.segment").mkdir()
    (folder / "c").mkdir()
    (folder / "c" / "index.db").mkdir()
    for path in ("file", "file/below", "a", "b", "c"):
        with pytest.raises(StoreFailure):
            Handled(folder / path).open()


@pytest.mark.parametrize("left", ["spare.new", "spare"])
@pytest.mark.parametrize("size", [0, 10, 8192, 100_000])
def test_a_creation_cut_short_is_begun_anew(folder: Path, left: str, size: int) -> None:
    (folder / left).write_bytes(b"x" * size)
    with opened(Handled(folder)) as store:
        for number in range(20):
            store.commit([batch(number)])
        assert assert_intact(store) == 20
    assert not (folder / left).exists()


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_only_we_may_read_the_files_whatever_the_umask(folder: Path, umask: int) -> None:
    def rights(each: Path) -> int:
        return stat.S_IMODE(each.stat().st_mode)

    before = os.umask(umask)
    try:
        with opened(Handled(folder / "new" / "data" / "bus")) as store:
            for number in range(20):
                store.commit([batch(number)])
            (folder / "copy").mkdir(0o700)
            store.copy_to(folder / "copy", lambda done, whole: None)
            names = {each.name: rights(each) for each in store.folder.iterdir()}
            folders = (rights(store.folder.parent), rights(store.folder))
    finally:
        os.umask(before)
    assert folders == (0o700, 0o700)
    assert {"index.db", "index.db-wal", "lock", "00000001.segment", "copying"} <= names.keys()
    assert set(names.values()) == {0o600}


def test_values_that_the_journal_cannot_hold_are_misuse(folder: Path) -> None:
    with opened(Handled(folder / "bus")) as store:
        for bad in (
            Append(2**70, 0, 1, 0, b""),
            Append(1, 0, 1, 2**70, b""),
            DropLog(2**70),
            PutLedger(2**70, b"", b""),
            PutLedger(1, b"", b"", 2**70),
            PutDocument("topic", "\ud800", b""),
            PutDocument("topic", "a", object()),  # type: ignore[arg-type]
        ):
            with pytest.raises(BadRequest):
                store.commit([PutDocument("topic", "b", b""), batch(0, log=3), bad])
        assert store.logs() == {}
        assert store.documents("topic") == []
        store.commit([batch(0)])
    with opened(Handled(folder / "bus")) as store:
        assert assert_intact(store) == 1


# -- a last record that was cut off


def test_a_last_record_that_was_cut_off_is_there_entirely_or_not_at_all(folder: Path) -> None:
    with opened(Handled(folder / "bus")) as store:
        witness = Witness(store)
        for number in range(4):
            witness.commit(batch(number, 50), PutDocument("cursor", "g", b"%d" % number))
        store.tend()
        start, before = store.place.position, Model()
        before.__dict__ = {**witness.model.__dict__, "documents": dict(witness.model.documents)}
        before.batches = {1: list(witness.model.batches[1])}
        before.ends, before.times = dict(before.ends), dict(before.times)
        witness.commit(batch(4, 50), PutDocument("cursor", "g", b"4"), batch(0, 30, log=2))
        end = store.place.position
        copy_files(store.folder, folder / "whole")
    whole = (folder / "whole" / "00000001.segment").read_bytes()
    padding = end - start - len(whole[start:end].rstrip(b"\0"))
    for cut in range(start, end + 1):
        is_there = cut >= end - padding
        for rest in (bytes(end - cut), random.Random(cut).randbytes(end - cut)):
            target = clone(folder / "whole", folder / "torn")
            overwrite(target / "00000001.segment", cut, rest)
            if cut % 3 == 0:
                drop_index(target)
            assert_all_there(target, witness.model if is_there else before, findings=0)
    with opened(Handled(target)) as store:  # and it goes on behind it
        store.commit([batch(5, 50)])
        assert assert_intact(store, 50) == 6


@pytest.mark.parametrize("left", ["spare", "spare.new"])
def test_a_lost_rename_of_a_new_segment_is_no_loss(folder: Path, left: str) -> None:
    with opened(Handled(folder / "bus")) as store:
        witness = Witness(store)
        for number in range(30):
            witness.commit(batch(number))
        store.tend()
    files = segment_files(store.folder)
    assert store.place.segment == segments.number_of(files[-2])
    files[-1].rename(store.folder / left)
    assert_all_there(store.folder, witness.model, findings=0)
    with opened(Handled(store.folder)) as store:
        for number in range(30, 60):
            store.commit([batch(number)])
        assert assert_intact(store) == 60
        assert store.findings == []


# -- a disk that fails


class FailingDisk(LocalDisk):
    """``fails``: names of the calls that fail with EIO. A write that fails has written some of its bytes."""

    def __init__(self) -> None:
        self.fails: set[str] = set()

    def _check(self, call: str) -> None:
        if call in self.fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        if "write" in self.fails:
            some = b"".join(buffers)
            os.pwrite(descriptor, some[: len(some) // 2], position)
        self._check("write")
        super().write(descriptor, buffers, position)

    def sync(self, descriptor: int) -> None:
        self._check("sync")
        super().sync(descriptor)

    def sync_all(self, descriptor: int) -> None:
        self._check("sync_all")
        super().sync_all(descriptor)

    def make(self, path: Path, size: int) -> int:
        self._check("make")
        return super().make(path, size)

    def rename(self, old: Path, new: Path) -> None:
        self._check("rename")
        super().rename(old, new)

    def sync_folder(self, folder: Path) -> None:
        self._check("sync_folder")
        super().sync_folder(folder)


@pytest.mark.parametrize("call", ["write", "sync"])
def test_after_a_failed_write_no_commit_is_taken_until_the_store_is_opened_anew(
    folder: Path, call: str
) -> None:
    disk = FailingDisk()
    store = Handled(folder / "bus", disk=disk)
    store.open()
    store.commit([batch(0)])
    disk.fails = {call}
    with pytest.raises(StoreFailed):
        store.commit([batch(1), PutDocument("cursor", "g", b"1")])
    disk.fails = set()
    for _ in range(2):
        with pytest.raises(StoreFailed, match="until it is opened anew"):
            store.commit([PutDocument("topic", "a", b"refused")])
    assert read_all(store)[0].data == contents(0, 1000)
    assert store.logs()[1].end == 10
    store.close()
    store.open()
    count = assert_intact(store)
    assert store.findings == []
    assert (count, len(store.documents("cursor"))) in ((1, 0), (2, 1))
    assert store.documents("topic") == []
    store.commit([batch(count)])
    assert assert_intact(store) == count + 1
    store.close()


@pytest.mark.parametrize("call", ["make", "sync_all", "rename", "sync_folder"])
def test_a_segment_that_cannot_be_made_loses_no_commit(folder: Path, call: str) -> None:
    disk = FailingDisk()
    store = Handled(folder / "bus", disk=disk)
    store.open()
    disk.fails = {call}
    number = 0
    with pytest.raises(StoreFailed):
        while True:
            store.commit([batch(number)])
            number += 1
    assert number > 2
    disk.fails = set()
    with pytest.raises(StoreFailed, match="until it is opened anew"):
        store.commit([batch(number)])
    store.close()
    store.open()
    assert assert_intact(store) == number
    for later in range(number, 30):
        store.commit([batch(later)])
    store.close()
    with opened(Handled(folder / "bus")) as store_again:
        assert assert_intact(store_again) == 30


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
def failing_sync(folder: Path) -> dict[str, str]:
    """The environment of a process whose syncs fail, SQLite's too, while the file FAIL_SYNC names exists."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or ctypes.util.find_library("c") is None or sys.platform != "linux":
        pytest.skip("takes a C compiler and Linux")
    source, library = folder / "sync.c", folder / "sync.so"
    source.write_text(FAILING_SYNC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library), "FAIL_SYNC": str(folder / "fail")}


def test_a_sync_that_the_kernel_fails_stops_commits(folder: Path, failing_sync: dict[str, str]) -> None:
    code = """
store = JournalFolder(arguments[0])
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
    lines = lines_of(child(code, folder / "bus", **failing_sync))
    assert lines == ["stored", "store_failed", "store_failed", "first", "stored", "0"]
    with opened(JournalFolder(folder / "bus")) as store:
        found = [each.data for each in store.read(1, 0, ALL)]
        assert found in ([b"first", b"last"], [b"first", b"unknown", b"last"])


def test_an_index_that_fails_to_sync_loses_nothing(folder: Path, failing_sync: dict[str, str]) -> None:
    """Closing brings the index to the disk, or not: the journal has all of it."""
    code = """
store = JournalFolder(arguments[0])
store.open()
say(attempt(store, Append(1, 0, 1, 0, b"first"), PutDocument("topic", "a", b"1")))
open(os.environ["FAIL_SYNC"], "x").close()
store.close()
say("closed")
"""
    assert lines_of(child(code, folder / "bus", **failing_sync)) == ["stored", "closed"]
    with opened(JournalFolder(folder / "bus")) as store:
        assert store.read(1, 0, ALL)[0].data == b"first"
        assert store.documents("topic") == [("a", b"1")]
        assert store.check() == []


# -- processes


KILLED = """
import random
store = JournalFolder(arguments[0], smallest=32768, largest=262144)
store.open()
bounds = store.logs().get(1)
number = bounds.end // 10 if bounds else 0
while True:
    writes = [
        Append(1, (number + more) * 10, (number + more) * 10 + 10, number + more,
            random.Random(number + more).randbytes(3000))
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


def test_every_reported_commit_survives_kill_9(folder: Path) -> None:
    path = folder / "bus"
    for reports in (1, 30, 300, 61, 187, 7):
        process = child(KILLED, path)
        assert process.stdout is not None
        reported = [int(process.stdout.readline()) for _ in range(reports)]
        process.send_signal(signal.SIGKILL)
        reported += [int(line) for line in process.stdout if line.endswith("\n")]
        process.communicate()
        with opened(Handled(path)) as store:
            assert_intact(store, 3000)
            known = {contents(n, 3000) for n in range(max(reported[-1] - 500, 0), reported[-1] + 50)}
            assert {each.data for each in read_all(store, 2)} <= known
            stored = store.logs()[1].end // 10
            assert stored >= reported[-1]
            assert store.ledger(1, b"p") == b"%d" % stored
            assert store.documents("cursor") == [("g", b"%d" % stored)]
            assert store.findings == []


def test_a_store_that_another_process_has_open_is_busy_until_that_process_ends(folder: Path) -> None:
    code = """
store = JournalFolder(arguments[0])
store.open()
store.commit([Append(1, 0, 1, 0, b"theirs")])
say("open")
sys.stdin.read()
"""
    path = folder / "bus"
    process = child(code, path)
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    try:
        with pytest.raises(StoreBusy, match=f"process {process.pid}"):
            JournalFolder(path).open()
        link = folder / "link"
        link.symlink_to(path)
        with pytest.raises(StoreBusy):
            JournalFolder(link).open()
        with pytest.raises(StoreBusy), JournalFolder(path).held():
            pass
    finally:
        process.kill()
        process.communicate()
    with opened(JournalFolder(path)) as store:
        assert store.read(1, 0, ALL)[0].data == b"theirs"


# -- bytes that nobody wrote


@given(st.data())
def test_whatever_bytes_a_segment_has_opening_fails_with_our_errors_only(data: st.DataObject) -> None:
    with memory_folder() as folder:
        try_segment(folder, data.draw(st.binary(max_size=5000)))


def try_segment(folder: Path, content: bytes) -> None:
    """Open, read and check a store with such a second segment behind a good one."""
    with opened(Handled(folder)) as store:
        store.commit([batch(0, 10)])
        incarnation = store.segments.incarnation
    (folder / "00000002.segment").write_bytes(content)
    for path in folder.glob("index.db*"):
        path.unlink()
    store = Handled(folder)
    try:
        store.open()
    except BusError:
        return
    assert incarnation == store.segments.incarnation
    try:
        for log in store.logs():
            try:
                read_all(store, log)
            except StoreFailure:
                pass
        store.documents("k")
        store.check()
        store.commit([PutDocument("k", "a", b"")])
    except BusError:
        pass
    finally:
        store.close()


integers = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 50) | st.sampled_from([-1, 2**62, 2**64 - 1])
small = st.integers(0, 20)
owners = st.builds(records.Owner, small, integers, integers, integers, integers)
entries = st.one_of(
    st.builds(records.Appended, small, small, small, integers, integers, small, integers),
    st.builds(records.Appended, integers, integers, integers, integers, integers, integers, integers),
    st.builds(records.Copied, small, small, small, *[integers] * 6),
    st.builds(records.Bounded, small, *[integers] * 8),
    st.builds(records.Dropped, small),
    st.builds(
        records.Documented, st.text(max_size=3), st.text(max_size=3), st.none() | st.binary(max_size=9)
    ),
    st.builds(records.Entered, small, st.binary(max_size=3), st.none() | st.binary(), integers, integers),
    st.builds(records.Moved, st.lists(owners, max_size=3), small, integers),
    st.builds(records.Restated, integers, integers),
)


@given(st.lists(st.lists(entries, max_size=4) | st.binary(max_size=40), max_size=6), st.integers(0, 9))
def test_whatever_records_say_opening_fails_with_our_errors_only(
    listed: list[list[records.Entry] | bytes], first: int
) -> None:
    """With right checksums, so that what they say is believed."""
    with memory_folder() as folder:
        with opened(Handled(folder)) as store:
            incarnation = store.segments.incarnation
        seed = seed_of(incarnation, 2)
        text = segments.HEADER.pack(segments.MAGIC, 1, incarnation, 2, 8192, 0)[:-4]
        content = bytearray((text + crc32(text).to_bytes(4, "little")).ljust(START, b"\0"))
        for number, each in enumerate(listed, first):
            body = each if isinstance(each, bytes) else msgspec.msgpack.encode(each)
            header = encode_header(seed, len(content), number, 0, 0, body, 0)
            content += header + body
            content += bytes(-len(content) % 8)
        (folder / "00000001.segment").unlink()
        (folder / "index.db").unlink()
        try_records(folder, bytes(content).ljust(8192, b"\0"))


def try_records(folder: Path, content: bytes) -> None:
    (folder / "00000002.segment").write_bytes(content)
    store = Handled(folder)
    try:
        store.open()
    except BusError:
        return
    try:
        for log in store.logs():
            try:
                read_all(store, log)
            except StoreFailure:
                pass
        store.check()
        store.tend(2)
        store.commit([PutDocument("k", "a", b"")])
    except BusError:
        pass
    finally:
        store.close()

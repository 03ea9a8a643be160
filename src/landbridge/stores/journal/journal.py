"""The store: commits go into the journal, reads come by the index and by what it does not have yet.

In the folder of a store lie the segments, ``spare`` (the file of a removed segment), ``index.db`` with what
SQLite puts beside it, ``room`` (given back when the disk is full: the index needs some while segments are
removed), and ``lock``, which is held with flock while the store is open.

Locks, taken in this order:
    _writing   one record is written at a time
    _keeping   no segment is removed while its data is read
    _changing  the state in memory changes
"""

from __future__ import annotations

import fcntl
import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol

from isal.isal_zlib import crc32

from landbridge.core.log.store import (
    Append,
    Bounds,
    Buffer,
    DeleteDocument,
    LogBounds,
    PutDocument,
    PutLedger,
    StoredBatch,
    Write,
)
from landbridge.errors import StoreBusy, StoreCorrupt, StoreFailed, StoreFull
from landbridge.stores.journal.disk import NO_ROOM, LocalDisk, make_folder, os_failure
from landbridge.stores.journal.forming import Forming
from landbridge.stores.journal.index import IndexDamaged, JournalIndex
from landbridge.stores.journal.recent import BatchRow, JournalPlace, JournalState, LogState, Recent
from landbridge.stores.journal.records import HEADER, Entry, encode_entries, encode_header, size_of_record
from landbridge.stores.journal.replay import TellProgress, flush, rebuild, replay
from landbridge.stores.journal.segments import START, Segment, Segments

MIB: Final = 1 << 20
SMALLEST: Final = 1 * MIB
LARGEST: Final = 64 * MIB
#: Room in the journal that only commits without batches may use: acks, trims and deletes go on after
#: publishes have stopped. Half of it is left to trims and deletes when acks, too, have stopped. Twice the
#: small state is added, so that it can be stated anew and segments can go.
RESERVE: Final = 256 << 10
#: Bytes on the disk that are kept for the index, and that it needs at least to be opened there.
INDEX_ROOM: Final = 2 * MIB
SQLITE_ROOM: Final = 256 << 10
#: Changes that the index may be behind; commits then wait for it.
MOST_RECENT: Final = 100_000
#: Data of several batches that lie this close is read at once.
NEAR: Final = 4096
MOST_AT_ONCE: Final = 4 * MIB
#: A commit of at most so many writes and bytes of batches is written in the caller's thread.
SMALL_WRITES: Final = 64
SMALL_BYTES: Final = 64 << 10
#: Writes for which nothing has to be read.
SIMPLE: Final = frozenset({Append, PutLedger, PutDocument, DeleteDocument})
PADDING: Final = tuple(bytes(count) for count in range(8))

_first, _end = attrgetter("first"), attrgetter("end")


class WrittenRecord(NamedTuple):
    """A record that is written, but perhaps not on disk."""

    disk: LocalDisk
    descriptor: int
    place: JournalPlace
    size: int
    entries: list[Entry]

    def sync(self) -> None:
        self.disk.sync(self.descriptor)


class Tending(Protocol):
    """What a journal asks of the thread that tends it."""

    trouble: str  #: why the index can't be written

    def start(self) -> None: ...
    def stop(self) -> None: ...
    def tell(self, recent: Recent) -> None: ...
    def hurry(self) -> None: ...
    def catch_up(self) -> bool: ...


class CommitJournal:
    """The journal of one folder.

    :param folder: made where it is missing, readable by us alone. :param max_bytes: a bound for the segments;
    a commit that needs more raises StoreFull. :param smallest: bytes of the first segments; they grow with
    the journal up to ``largest``. :param disk: the disk.
    """

    def __init__(
        self,
        folder: Path | str,
        tending: Callable[[Any], Tending],
        *,
        max_bytes: int | None = None,
        smallest: int = SMALLEST,
        largest: int = LARGEST,
        disk: LocalDisk | None = None,
        tell: TellProgress | None = None,
    ) -> None:
        self.folder = Path(os.path.realpath(folder))
        self.disk = disk or LocalDisk()
        self.segments = Segments(self.folder, self.disk, max_bytes)
        self.index = JournalIndex(self.folder / "index.db")
        self.state = JournalState(JournalPlace(0, 0, 0))
        self.findings: list[str] = []  #: what was found damaged when it was opened
        self._smallest, self._largest = smallest, largest
        self._tell = tell  #: hears of the progress of a long opening
        self._lock_file = -1  #: descriptor, flocked; -1 while closed
        self._writing, self._keeping, self.changing = Lock(), Lock(), Lock()
        self._place = JournalPlace(0, 0, 1)  #: where the next record goes
        self._ahead: deque[Segment] = deque()  #: segments behind that place, made ahead
        self.going: int | None = None  #: the segment whose batches are being moved; changed under _writing
        self._failed: str | None = None  #: why every commit is refused
        self.is_low = False  #: there is no room for batches
        self._tender = tending(self)

    # ------------------------------------------------------------------------------------ open, close

    def open(self) -> None:
        lock_file = self._take_lock()
        try:
            self._open()
        except BaseException as error:
            self.index.close()
            self.segments.close()
            os.close(lock_file)
            if isinstance(error, OSError):
                raise os_failure(self.folder, error, "opening it") from error
            raise
        self._lock_file = lock_file
        self._tender.start()

    def _open(self) -> None:
        self._failed, self.is_low, self.going = None, False, None
        self.segments.open(self.index.incarnation)
        if not self.segments.held:
            if self.index.path.exists():
                raise StoreCorrupt(
                    f"{self.folder} has an index, but no segments",
                    hint="restore it from a backup, or move it away to begin with an empty store",
                )
            self.segments.incarnation = os.urandom(16)
            self.segments.make(1, self._smallest)
        self.state.reset(JournalPlace(0, 0, 0))
        self.index.use_disk()
        if not self.segments.has_room() and self.usage()[0] < SQLITE_ROOM:
            # SQLite might open it, but not write what has to be written before segments can be removed.
            self.index.use_memory()
        try:
            self._place = self._replay()
        except StoreFull:
            # SQLite needs some room even to read. Room is kept for this.
            self._place = self._replay_without_room()
        if self._place.segment not in self.segments.held:
            self._place = self._place_behind(self._place)
        held = self.segments.held
        self._ahead = deque(held[number] for number in sorted(held) if number > self._place.segment)

    def _replay_without_room(self) -> JournalPlace:
        if self.segments.give_room():
            with suppress(StoreFull):
                return self._replay()
        self.index.use_memory()
        return self._replay()

    def _replay(self) -> JournalPlace:
        self.findings = list(self.segments.findings)
        try:
            self.index.open(self.state, self.segments.incarnation)
            place = replay(self.segments, self.state, self.index.place, self.findings)
            self._find_missing(place)
            return place
        except IndexDamaged as damage:
            if self.index.path.exists():
                self.findings.append(f"the index was made anew from the journal: {damage}")
            return rebuild(self.segments, self.state, self.index, self.findings, self._tell)

    def _find_missing(self, place: JournalPlace) -> None:
        """Name the segments that are missing. Where the index is of an earlier moment, what it says of such a
        segment may have been moved, trimmed or dropped since."""
        if self.index.live_segments() <= self.segments.held.keys():
            return
        flush(self.state, self.index, place)
        while self.index.sweep():
            pass
        for number in sorted(self.index.live_segments() - self.segments.held.keys()):
            self.findings.append(f"segment {number} is missing, with the batches in it")

    def _place_behind(self, place: JournalPlace) -> JournalPlace:
        """Where to go on without the segment that had the last records. Others behind it have none."""
        behind = [number for number in self.segments.held if number > place.segment]
        number = min(behind) if behind else self.segments.make(place.segment + 1, self._smallest).number
        self.findings.append(f"segment {place.segment} is missing, which had the last records")
        return JournalPlace(number, START, place.number)

    def close(self) -> None:
        if self._lock_file < 0:
            return
        self._tender.stop()
        with self._writing, self._keeping:
            self.index.close()
            self.segments.close()
            # Last. The lock file stays: without it two processes could each lock a file of that name.
            os.close(self._lock_file)
            self._lock_file = -1

    def _take_lock(self) -> int:
        path = self.folder / "lock"
        try:
            make_folder(self.folder, self.disk)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise os_failure(self.folder, error, "making its lock file") from error
        try:
            os.fchmod(descriptor, 0o600)  # the umask may have taken rights away
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # only a courtesy to whoever is refused; a full disk is no reason to fail
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "?"
            os.close(descriptor)
            raise StoreBusy(f"{self.folder} is open in process {holder}") from error
        except OSError as error:
            os.close(descriptor)
            raise os_failure(self.folder, error, "locking it") from error
        return descriptor

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every process from opening the store while the block runs. StoreBusy if one has it open."""
        descriptor = self._take_lock()
        try:
            yield
        finally:
            os.close(descriptor)

    # ----------------------------------------------------------------------------------------- commit

    def commit(self, writes: Sequence[Write], epoch: int = 0) -> Bounds:
        with self._writing:
            self._require_writable()
            forming = self._formed(writes)
            if forming.entries:
                self._wait_for_index(forming.has_batches)
                self._write(
                    forming.entries,
                    forming.listed(),
                    forming.data,
                    forming.data_size,
                    epoch,
                    self._spared(forming),
                )
            logs = self.state.logs
            return {log: logs[log].bounds() for log in forming.trimmed if log in logs}

    def _formed(self, writes: Sequence[Write]) -> Forming:
        forming = Forming(self, self._place.number, self._is_going)
        for write in writes:
            forming.add(write)
        return forming

    def _require_writable(self) -> None:
        if self._lock_file < 0:
            raise StoreFailed(f"{self.folder} is not open", hint="call open() first")
        if self._failed is not None:
            raise StoreFailed(f"{self._failed}; it refuses commits until it is opened anew")

    def _is_going(self, row: BatchRow) -> bool:
        return row.segment == self.going

    def write(self, entries: list[Entry], data: list[Buffer], size: int) -> None:
        """A record of our own: what is carried along or stated anew."""
        with self._writing:
            self._require_writable()
            self._write(entries, encode_entries(entries), data, size, 0, 0)

    def _write(
        self,
        entries: list[Entry],
        listed: bytes,
        data: list[Buffer],
        size: int,
        epoch: int,
        spared: int,
    ) -> None:
        place = self._place_for(size_of_record(size, len(listed)), spared)
        record = self._put(place, entries, listed, data, size, epoch)
        try:
            record.sync()
        except OSError as error:
            raise self._broken(error, "syncing a commit") from error
        self._stored(record)

    def _put(
        self,
        place: JournalPlace,
        entries: list[Entry],
        listed: bytes,
        data: list[Buffer],
        size: int,
        epoch: int,
    ) -> WrittenRecord:
        """Write a record. It is not on disk yet."""
        segment = self.segments.held[place.segment]
        header = encode_header(segment.seed, place.position, place.number, epoch, 0, listed, size)
        whole = size_of_record(size, len(listed))
        pad = PADDING[whole - len(header) - size - len(listed)]
        try:
            self.disk.write(segment.descriptor, [header, *data, listed, pad], place.position)
        except OSError as error:
            raise self._broken(error, "writing a commit") from error
        return WrittenRecord(self.disk, segment.descriptor, place, whole, entries)

    def _stored(self, record: WrittenRecord) -> None:
        """A record is on disk: the state follows."""
        place = record.place
        self._place = JournalPlace(place.segment, place.position + record.size, place.number + 1)
        with self.changing:
            self.state.apply(record.entries, place.segment, place.position + HEADER.size, place.number)
            self.state.recent.place = self._place
        self._tender.tell(self.state.recent)

    def _broken(self, error: OSError, doing: str) -> StoreFailed:
        """Nobody knows what is on disk: no further commit until it is opened anew."""
        self._failed = str(os_failure(self.folder, error, doing))
        return StoreFailed(self._failed)

    def begin(self, writes: Sequence[Write], epoch: int) -> WrittenRecord | None:
        """Write a small commit at once, without waiting for anything; ``end`` has to be called when it is on
        disk. None: this one takes the long way, by ``commit``."""
        if len(writes) > SMALL_WRITES or not self._writing.acquire(blocking=False):
            return None
        record = None
        try:
            record = self._begin(writes, epoch)
        finally:
            if record is None:
                self._writing.release()
        return record

    def _begin(self, writes: Sequence[Write], epoch: int) -> WrittenRecord | None:
        self._require_writable()
        if not writes or not SIMPLE.issuperset(map(type, writes)):
            return None
        forming = self._formed(writes)
        if forming.data_size > SMALL_BYTES or self.state.recent.size >= MOST_RECENT:
            return None
        listed = forming.listed()
        size, place = size_of_record(forming.data_size, len(listed)), self._place
        if size > self.segments.held[place.segment].size - place.position:
            return None
        if self.room() - size < self._spared(forming):
            return None
        return self._put(place, forming.entries, listed, forming.data, forming.data_size, epoch)

    def end(self, record: WrittenRecord, error: OSError | None) -> Bounds:
        """A commit that was begun is on disk, or failed."""
        try:
            if error is not None:
                raise self._broken(error, "syncing a commit") from error
            self._stored(record)
        finally:
            self._writing.release()
        return {}

    def usage(self) -> tuple[int, int]:
        """Bytes that are free on the disk, and bytes in all."""
        return self.disk.usage(self.folder)

    def room(self) -> int:
        """Bytes of records that the segments have room for."""
        place = self._place
        ahead = sum(segment.size - START for segment in self._ahead)
        return self.segments.held[place.segment].size - place.position + ahead

    def needs_ahead(self) -> bool:
        return not self._ahead or self.room() < 2 * self.reserve()

    def keep_room(self) -> None:
        self.segments.keep_room(min(INDEX_ROOM, 2 * self._smallest))

    def reserve(self) -> int:
        return min(RESERVE, self._smallest // 4) + 2 * self.index.small_bytes

    def _spared(self, forming: Forming) -> int:
        """Bytes that a commit has to leave for others: batches for everything else, and what only adds small
        state for what frees room."""
        if forming.has_batches:
            return self.reserve()
        return 0 if forming.frees else self.reserve() // 2

    def _place_for(self, size: int, spared: int) -> JournalPlace:
        """Where a record of this size goes, with so many bytes left. StoreFull."""
        place = self._place
        segment = self.segments.held[place.segment]
        fits = size <= segment.size - place.position
        if spared and self.room() - size < spared:
            self.make_ahead(size)
        if fits:
            return place
        if not any(size <= ahead.size - START for ahead in self._ahead):
            self.make_ahead(size)
        while size > self._ahead[0].size - START:
            self._ahead.popleft()  # it stays empty, and is removed as any other
        return JournalPlace(self._ahead.popleft().number, START, place.number)

    def make_ahead(self, size: int = 0) -> None:
        """Make a segment that holds a record of this size. StoreFull."""
        whole = self.segments.bytes()
        wanted = max(min(max(whole // 4, self._smallest), self._largest), size + START)
        wanted = -(-wanted // 4096) * 4096
        try:
            segment = self.segments.make(max(self.segments.held) + 1, wanted)
        except OSError as error:
            if error.errno not in NO_ROOM:
                self._failed = str(os_failure(self.folder, error, "making a segment"))
                raise StoreFailed(self._failed) from error
            self.is_low = True
            self._tender.hurry()
            raise StoreFull(
                f"{self.folder}: there is no room for a segment of {wanted} bytes",
                hint="delete or trim topics, or give the disk more room; what frees room still works",
            ) from error
        self.is_low = False
        self._ahead.append(segment)

    def _wait_for_index(self, has_batches: bool) -> None:
        if self.state.recent.size < MOST_RECENT or self._tender.catch_up():
            return
        if has_batches:
            raise StoreFull(f"{self.index.path} can't be written: {self._tender.trouble}")

    def fail(self, why: str) -> None:
        self._failed = why

    # ------------------------------------------------------------------------------------------ reads

    def logs(self) -> dict[int, LogBounds]:
        self._require_open()
        with self.changing:
            return {log: known.bounds() for log, known in self.state.logs.items()}

    def log_state(self, log: int) -> LogState | None:
        return self.state.logs.get(log)

    def row_at(self, log: int, offset: int) -> BatchRow:
        with self.changing:
            for layer in self.state.layers():
                rows = layer.rows.get(log)
                if rows and rows[0].first <= offset:
                    return rows[bisect_right(rows, offset, key=_first) - 1]
                if log in layer.dropped:
                    raise StoreCorrupt(f"log {log}, offset {offset}: no batch is there in {self.folder}")
        found = self.index.holder(log, offset)
        if found is None or not found.first <= offset < found.end:
            raise StoreCorrupt(f"log {log}, offset {offset}: no batch is there in {self.folder}")
        return found

    def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        self._require_open()
        with self._keeping:
            while True:
                with self.changing:
                    known = self.state.logs.get(log)
                    if known is None or offset >= known.end or known.first == known.end:
                        return []
                    first = known.first
                    start, boundary = max(offset, first), 1 << 62
                    above: list[BatchRow] = []
                    for layer in self.state.layers():
                        recent = layer.rows.get(log)
                        if recent:
                            boundary = recent[0].first
                            above = _fitting(recent, start, max_bytes) + above
                        if log in layer.dropped:  # what is below is of a log that had this number before
                            boundary = min(boundary, start)
                            break
                rows = self._rows(log, start, boundary, max_bytes) + above
                rows = _consecutive(rows, start, max_bytes)
                if rows:
                    return self._batches(rows)
                with self.changing:  # it may have been trimmed meanwhile
                    now = self.state.logs.get(log)
                    if now is not None and now.first == first:
                        raise StoreCorrupt(f"log {log}, offset {start}: a batch is missing in {self.folder}")

    def _rows(self, log: int, start: int, boundary: int, max_bytes: int) -> list[BatchRow]:
        """What the index has, from the row that holds an offset to a boundary."""
        if start >= boundary:
            return []
        holder = self.index.holder(log, start)
        return [] if holder is None else self.index.rows(log, holder.first, boundary, max_bytes)

    def _batches(self, rows: list[BatchRow]) -> list[StoredBatch]:
        """The batches up to the first damaged one, which is the next read's business, or an error if it is
        the first of all."""
        found: list[StoredBatch] = []
        try:
            for near in _near(rows):
                start = near[0].position
                block = self._data(near[0], near[-1].position + near[-1].length - start)
                for row in near:
                    at = row.position - start
                    data = block if len(block) == row.length else block[at : at + row.length]
                    if len(data) != row.length or crc32(data) != row.crc:
                        raise StoreCorrupt(f"{_named(row)} fails its checksum in {self.folder}")
                    found.append(StoredBatch(row.first, row.end, row.time, data, row.choice))
        except StoreCorrupt:
            if not found:
                raise
        return found

    def _data(self, row: BatchRow, length: int) -> bytes:
        segment = self.segments.held.get(row.segment)
        if segment is None:
            raise StoreCorrupt(f"{_named(row)} is lost: its part of the journal is damaged or gone")
        try:
            return segment.pread(length, row.position)
        except OSError as error:
            raise StoreCorrupt(f"{_named(row)} can't be read: {error} in {segment.path}") from error

    def data_of(self, row: BatchRow) -> bytes:
        """The data of a batch, also if it is damaged."""
        return self._data(row, row.length)

    def seek_time(self, log: int, time: int) -> int:
        self._require_open()
        with self.changing:
            known = self.state.logs.get(log)
            if known is None:
                return 0
            low, high, newest = known.first, known.end, known.time
        if newest < time:
            return high
        # Every batch that ends at or below `low` is older than `time`; every batch that begins at or above
        # `high` is not. Halve the offsets between, and step to the edges of the batch found there.
        while low < high:
            row = self.row_at(log, (low + high) // 2)
            if row.time >= time:
                high = max(row.first, low)
            else:
                low = row.end
        return low

    def ledger(self, log: int, producer: bytes) -> bytes | None:
        self._require_open()
        floor = None
        with self.changing:
            for layer in self.state.layers():
                put = layer.ledger.get(log, {}).get(producer)
                if put is not None:
                    return None if is_below(put.last, floor) else put.entry
                if log in layer.dropped:
                    return None
                if log in layer.floors:
                    floor = max(floor or 0, layer.floors[log])
        found = self.index.entry(log, producer)
        return None if found is None or is_below(found.last, floor) else found.entry

    def is_entry_in_index(self, log: int, producer: bytes, last: int | None) -> bool:
        """Is what the index has of a producer still so?"""
        return not any(
            producer in layer.ledger.get(log, ())
            or log in layer.dropped
            or is_below(last, layer.floors.get(log))
            for layer in self.state.layers()
        )

    def births_below(self, log: int, floor: int) -> Iterator[tuple[bytes, int]]:
        seen: set[bytes] = set()
        void = None
        with self.changing:
            layers = [(dict(layer.ledger.get(log, {})), layer) for layer in self.state.layers()]
        for entries, layer in layers:
            for producer, put in entries.items():
                is_there = put.entry is not None and not is_below(put.last, void)
                if is_there and producer not in seen and is_below(put.last, floor):
                    yield producer, put.born
            seen |= entries.keys()
            if log in layer.dropped:
                return
            if log in layer.floors:
                void = max(void or 0, layer.floors[log])
        for producer, last, born in self.index.entries_below(log, floor):
            if producer not in seen and not is_below(last, void):
                yield producer, born

    def documents(self, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        self._require_open()
        with self.changing:
            layers = [dict(layer.documents.get(kind, {})) for layer in self.state.layers()]
        found: dict[str, bytes | None] = dict(self.index.documents(kind, prefix))
        for changes in reversed(layers):
            found.update(changes)
        return sorted((k, v) for k, v in found.items() if v is not None and k.startswith(prefix))

    def _require_open(self) -> None:
        if self._lock_file < 0:
            raise StoreFailed(f"{self.folder} is not open", hint="call open() first")

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """No segment is removed while the block runs, and none is read while it begins."""
        with self._keeping:
            yield

    @property
    def place(self) -> JournalPlace:
        return self._place

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """No commit while the block runs."""
        with self._writing:
            yield

    def write_quietly(self, entries: list[Entry], data: list[Buffer], size: int) -> None:
        """Like write, within ``quiet``."""
        self._require_writable()
        self._write(entries, encode_entries(entries), data, size, 0, 0)


def _fitting(rows: list[BatchRow], offset: int, max_bytes: int) -> list[BatchRow]:
    """Rows from the one that holds an offset on, as many as fit but one more."""
    at = stop = bisect_right(rows, offset, key=_end)
    while stop < len(rows) and max_bytes >= 0:
        max_bytes -= rows[stop].length
        stop += 1
    return rows[at:stop]


def _consecutive(rows: list[BatchRow], start: int, max_bytes: int) -> list[BatchRow]:
    """The rows from the one that holds an offset on, up to the first gap, as many as fit, at least one."""
    taken: list[BatchRow] = []
    at = start
    for row in rows:
        if not row.first <= at < row.end or (taken and row.first != at):
            break
        max_bytes -= row.length
        if max_bytes < 0 and taken:
            break
        taken.append(row)
        at = row.end
    return taken


def _near(rows: list[BatchRow]) -> Iterator[list[BatchRow]]:
    """Rows whose data lies close together, one after the other."""
    near: list[BatchRow] = []
    for row in rows:
        if near:
            last = near[-1]
            gap = row.position - last.position - last.length
            size = row.position + row.length - near[0].position
            if row.segment != last.segment or not 0 <= gap <= NEAR or size > MOST_AT_ONCE:
                yield near
                near = []
        near.append(row)
    yield near


def _named(row: BatchRow) -> str:
    return f"log {row.log}, offset {row.first}: the batch up to {row.end}"


def is_below(last: int | None, floor: int | None) -> bool:
    return last is not None and floor is not None and last < floor

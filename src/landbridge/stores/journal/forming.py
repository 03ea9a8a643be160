"""From writes to the entries of a record: a commit is judged as a whole before anything of it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol

from isal.isal_zlib import crc32

from landbridge.core.log.store import (
    Append,
    Buffer,
    Copy,
    DeleteDocument,
    DropLog,
    PutDocument,
    PutLedger,
    Trim,
    Write,
)
from landbridge.errors import BadRequest, StoreCorrupt
from landbridge.stores.bounds import LIMIT, check_append, check_source, is_ledger_only, size_of
from landbridge.stores.journal.recent import BatchRow, LogState
from landbridge.stores.journal.records import (
    Appended,
    Bounded,
    Copied,
    Documented,
    Dropped,
    Entered,
    Entry,
    encode_entries,
)

#: Kind of the document with which a process takes a store over (stores/threads.py). A full one too, or nobody
#: could trim or drop anything in it.
OWNERSHIP: Final = "unit"


class StoredState(Protocol):
    """What is stored."""

    def log_state(self, log: int) -> LogState | None: ...
    def row_at(self, log: int, offset: int) -> BatchRow:
        """The row that holds an offset between the log's bounds. StoreCorrupt."""
        ...

    def births_below(self, log: int, floor: int) -> Iterator[tuple[bytes, int]]:
        """Producer and birth of the entries of a ledger with a lower ``last``."""
        ...

    def data_of(self, row: BatchRow) -> bytes: ...


class Forming:
    """One commit. ``must_append``: is the data of a copy to be written again, because its segment goes?"""

    def __init__(self, known: StoredState, number: int, must_append: Callable[[BatchRow], bool]) -> None:
        self._known, self._number, self._must_append = known, number, must_append
        self.entries: list[Entry] = []
        self.data: list[Buffer] = []
        self.data_size = 0
        self.has_batches = False
        self.frees = False  #: it trims, drops or deletes something
        self.trimmed: set[int] = set()
        #: The logs that change, as they will be; None: dropped.
        self._logs: dict[int, LogState | None] = {}
        #: log → first offset → a batch of this commit, with its data where it has any
        self._batches: dict[int, dict[int, tuple[Appended | Copied, Buffer | None]]] = {}
        #: Log and offset → the stored row that was found there for a copy.
        self._rows: dict[tuple[int, int], BatchRow] = {}
        self._ledger: dict[int, dict[bytes, PutLedger]] = {}
        self._dropped: set[int] = set()

    def listed(self) -> bytes:
        """The entries as bytes."""
        try:
            return encode_entries(self.entries)
        except (OverflowError, UnicodeError, TypeError) as error:
            raise BadRequest(f"a write can't be stored: {error}") from error

    def add(self, write: Write) -> None:
        match write:
            case Append():
                data = write.data
                self._append(write, data, size_of(write), crc32(data))
            case PutLedger(log, producer, entry, last, born):
                if abs(last or 0) > LIMIT or abs(born) > LIMIT:
                    raise BadRequest(f"log {log}: a ledger's entry lives as long as {last}, born {born}")
                self._ledger.setdefault(log, {})[producer] = write
                self.entries.append(Entered(log, producer, entry, last, born))
                self.frees |= entry is None
            case PutDocument(kind, key, value):
                self.entries.append(Documented(kind, key, value))
                self.frees |= kind == OWNERSHIP
            case DeleteDocument(kind, key):
                self.entries.append(Documented(kind, key, None))
                self.frees = True
            case Trim(log, before):
                self._trim(log, before)
            case Copy():
                self._copy(write)
            case DropLog(log):
                self._drop(log)

    def log_state(self, log: int) -> LogState | None:
        """Of a log, as it will be, to be changed."""
        if log not in self._logs:
            known = self._known.log_state(log)
            self._logs[log] = None if known is None else known.copy()
        return self._logs[log]

    def _append(
        self, write: Append | Copy, data: Buffer, size: int, crc: int, choice: bytes | None = None
    ) -> None:
        state = self._extend(write)
        log, first = write.log, write.first
        entry = Appended(log, first, write.end, write.time, state.total, size, crc, choice)
        state.extend(write.end, write.time, size)
        self.entries.append(entry)
        self.data.append(data)
        self.data_size += size
        self._batches.setdefault(log, {})[first] = (entry, data)

    def _extend(self, write: Append | Copy) -> LogState:
        """The log that gets another batch, as it is before."""
        log, state = write.log, self.log_state(write.log)
        check_append(state, write)
        if abs(log) > LIMIT or abs(write.time) > LIMIT:
            raise BadRequest(f"log {log}: no log has this number, or no batch the time {write.time}")
        if state is None:
            state = self._logs[log] = LogState(write.first, write.first, 0, write.time, 0, 0, self._number)
        self.has_batches = True
        return state

    def _copy(self, write: Copy) -> None:
        source, data = self._source(write.from_log, write.from_first)
        known = None if source is None else source.choice
        check_source(write, None if source is None else source.end, known)
        assert source is not None
        choice = known if write.choice is None else write.choice
        if isinstance(source, BatchRow) and not source.segment:
            raise StoreCorrupt(f"log {source.log}, offset {source.first}: the batch to be copied is lost")
        if data is None and isinstance(source, BatchRow) and self._must_append(source):
            data = self._known.data_of(source)
            if len(data) != source.length or crc32(data) != source.crc:
                raise StoreCorrupt(
                    f"log {source.log}, offset {source.first}: the batch to be copied is damaged"
                )
        if data is not None:
            self._append(write, data, source.length, source.crc, choice)
            return
        assert isinstance(source, BatchRow | Copied)
        state = self._extend(write)
        place = (write.log, write.first, write.end, write.time, state.total)
        entry = Copied(*place, source.length, source.crc, source.segment, source.position, choice)
        state.extend(write.end, write.time, source.length)
        self.entries.append(entry)
        self._batches.setdefault(write.log, {})[write.first] = (entry, None)

    def _source(self, log: int, first: int) -> tuple[BatchRow | Appended | Copied | None, Buffer | None]:
        """The batch that begins at an offset, and its data if this commit writes it."""
        state = self.log_state(log)
        if state is None or not state.first <= first < state.end:
            return None, None
        here = self._batches.get(log, {}).get(first)
        if here is not None:
            return here
        stored = self._known.log_state(log)
        if log in self._dropped or stored is None or first >= stored.end:
            return None, None
        row = self._rows.get((log, first))
        if row is None:  # many copies of one batch ask once
            row = self._rows[log, first] = self._known.row_at(log, first)
        return (row if row.first == first else None), None

    def _trim(self, log: int, before: int) -> None:
        state = self.log_state(log)
        self.trimmed.add(log)
        if is_ledger_only(log, 1, state):
            forgotten = self._forget(log, before)
            if state is None:
                state = self._logs[log] = LogState(0, 0, 0, 0, 0, 0, self._number)
            state.forgotten = max(state.forgotten, forgotten)
            self._bound(log, state, before)
            return
        if state is None or before <= state.first:
            return
        first, start = state.end, state.total
        if before < state.end:
            first, start = self._holder(log, before)
        if first > state.first:
            state.first, state.bytes = first, state.total - start
            state.forgotten = max(state.forgotten, self._forget(log, first))
            self._bound(log, state, first)

    def _holder(self, log: int, offset: int) -> tuple[int, int]:
        """Of the batch that holds an offset: its first offset, and the bytes before it."""
        for first, (entry, _) in self._batches.get(log, {}).items():
            if first <= offset < entry.end:
                return first, entry.total
        row = self._known.row_at(log, offset)
        return row.first, row.total

    def _bound(self, log: int, state: LogState, floor: int) -> None:
        entry = Bounded(
            log,
            state.first,
            state.end,
            state.bytes,
            state.time,
            state.forgotten,
            state.total,
            state.made,
            floor,
        )
        self.entries.append(entry)
        self.frees = True

    def _forget(self, log: int, floor: int) -> int:
        """Returns when the youngest of the producers was born whose entries a trim forgets."""
        put, youngest = self._ledger.get(log, {}), 0
        if log not in self._dropped:
            for producer, born in self._known.births_below(log, floor):
                if producer not in put:
                    youngest = max(youngest, born)
        for producer, each in list(put.items()):
            if each.entry is not None and each.last is not None and each.last < floor:
                youngest = max(youngest, each.born)
                put[producer] = PutLedger(log, producer, None)
        return youngest

    def _drop(self, log: int) -> None:
        self.entries.append(Dropped(log))
        self.frees = True
        self._logs[log] = None
        self._batches.pop(log, None)
        self._ledger.pop(log, None)
        self._dropped.add(log)

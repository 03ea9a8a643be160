"""The state that records lead to: every log in memory, and of everything else what has changed since the
index was last written.

``JournalState.apply`` is the one place that says what a record means: for a commit that was just stored, and
for a record that is found when the store is opened.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from landbridge.core.log.store import LogBounds
from landbridge.stores.journal.records import (
    Appended,
    Bounded,
    Copied,
    Documented,
    Dropped,
    Entered,
    Entry,
    Moved,
    Owner,
    Restated,
)


class BatchRow(NamedTuple):
    """Where a batch stands, and where its data lies."""

    log: int
    first: int
    end: int
    time: int
    total: int
    segment: int  #: 0: lost, because the record that appended it is damaged
    position: int
    length: int
    crc: int  #: of the data
    home: int = 0  #: of a copy: the segment that holds its entry; 0: the data's own
    choice: bytes | None = None  #: which of its messages the log has (core/log/store.py); None: all


class JournalPlace(NamedTuple):
    """A position in the journal."""

    segment: int
    position: int
    number: int  #: of the next record


class LogState:
    """One log, changed in place."""

    __slots__ = ("bytes", "end", "first", "forgotten", "made", "time", "total")

    def __init__(
        self, first: int, end: int, bytes: int, time: int, forgotten: int, total: int, made: int
    ) -> None:
        self.first, self.end, self.bytes, self.time = first, end, bytes, time
        self.forgotten, self.total, self.made = forgotten, total, made

    def bounds(self) -> LogBounds:
        return LogBounds(self.first, self.end, self.bytes, self.time, self.forgotten)

    def copy(self) -> LogState:
        return LogState(self.first, self.end, self.bytes, self.time, self.forgotten, self.total, self.made)

    def extend(self, end: int, time: int, length: int) -> None:
        self.end, self.time = end, time
        self.bytes += length
        self.total += length


class Recent:
    """Changes that the index does not have."""

    def __init__(self, place: JournalPlace) -> None:
        self.place = place  #: behind the last record whose changes these are
        self.rows: dict[int, list[BatchRow]] = {}  #: by log, oldest first
        self.moved: list[BatchRow] = []  #: rows that the index has, with another place of their data
        self.logs: set[int] = set()  #: whose state has changed
        self.states: dict[int, LogState | None] = {}  #: those, as they are when nothing is added any more
        self.dropped: set[int] = set()  #: what the index has of these logs is void
        self.litter: dict[int, int] = {}  #: log → the index may have rows that end at or below this offset
        self.documents: dict[str, dict[str, bytes | None]] = {}  #: kind → key → value; None: deleted
        self.ledger: dict[int, dict[bytes, Entered]] = {}
        self.floors: dict[int, int] = {}  #: log → the index's entries with a lower ``last`` are void
        self.restated: Restated | None = None
        self.size = 0  #: number of changes

    def append(self, row: BatchRow) -> None:
        rows = self.rows.get(row.log)
        if rows is None:
            self.rows[row.log] = [row]
        else:
            rows.append(row)

    def forget_rows(self, log: int, before: int) -> None:
        """Rows that the index need not get any more."""
        rows = self.rows.get(log)
        if rows is not None:
            del rows[: bisect_right(rows, before, key=attrgetter("end"))]
            if not rows:
                del self.rows[log]

    def forget_entries(self, log: int, floor: int) -> None:
        self.floors[log] = max(floor, self.floors.get(log, floor))
        entries = self.ledger.get(log, {})
        for producer, put in entries.items():
            if put.entry is not None and put.last is not None and put.last < floor:
                entries[producer] = Entered(log, producer, None, None, 0)


class JournalState:
    """All of it. ``recent`` grows with every record; ``flushing`` is on its way into the index."""

    def __init__(self, place: JournalPlace) -> None:
        self.reset(place)

    def reset(self, place: JournalPlace) -> None:
        self.logs: dict[int, LogState] = {}
        self.recent = Recent(place)
        self.flushing: Recent | None = None
        self.lost: list[str] = []  #: findings of a replay: what damaged records have taken along

    def layers(self) -> Iterator[Recent]:
        """What lies above the index, the newest first."""
        yield self.recent
        if self.flushing is not None:
            yield self.flushing

    def apply(self, entries: list[Entry], segment: int, data_at: int, number: int) -> None:
        recent = self.recent
        recent.size += len(entries)
        for entry in entries:
            if isinstance(entry, Appended):
                self._append(entry, segment, data_at, number, 0)
                data_at += entry.length
            elif isinstance(entry, Entered):
                recent.ledger.setdefault(entry.log, {})[entry.producer] = entry
            elif isinstance(entry, Documented):
                recent.documents.setdefault(entry.kind, {})[entry.key] = entry.value
            elif isinstance(entry, Bounded):
                self._bound(entry)
            elif isinstance(entry, Copied):
                self._append(entry, entry.segment, entry.position, number, segment)
            elif isinstance(entry, Dropped):
                self._drop(entry.log)
            elif isinstance(entry, Moved):
                recent.moved += rows_of(entry, segment, data_at)
                data_at += entry.length
            else:
                recent.restated = entry

    def _append(self, entry: Appended | Copied, segment: int, position: int, number: int, home: int) -> None:
        log, first, end = entry.log, entry.first, entry.end
        state = self.logs.get(log)
        if state is not None and first < state.end:  # a copy whose entry was carried along
            self.recent.moved.append(row_of(entry, segment, position, home))
            return
        if state is None:
            state = self.logs[log] = LogState(first, first, 0, 0, 0, entry.total, number)
        elif state.end != first:
            self.lost.append(f"log {log}: offsets {state.end} to {first - 1} are lost")
            length = entry.total - state.total
            self.recent.append(BatchRow(log, state.end, first, entry.time, state.total, 0, 0, length, 0))
            state.extend(first, entry.time, length)
        state.extend(end, entry.time, entry.length)
        self.recent.append(row_of(entry, segment, position, home))
        self.recent.logs.add(log)

    def _bound(self, entry: Bounded) -> None:
        log, recent = entry.log, self.recent
        self.logs[log] = LogState(
            entry.first, entry.end, entry.bytes, entry.time, entry.forgotten, entry.total, entry.made
        )
        recent.logs.add(log)
        recent.forget_rows(log, entry.first)
        recent.litter[log] = entry.first
        recent.forget_entries(log, entry.floor)

    def _drop(self, log: int) -> None:
        recent = self.recent
        self.logs.pop(log, None)
        recent.logs.add(log)
        recent.dropped.add(log)
        for table in (recent.rows, recent.litter, recent.ledger, recent.floors):
            table.pop(log, None)
        recent.moved = [row for row in recent.moved if row.log != log]


def row_of(entry: Appended | Copied, segment: int, position: int, home: int = 0) -> BatchRow:
    return BatchRow(
        entry.log,
        entry.first,
        entry.end,
        entry.time,
        entry.total,
        segment,
        position,
        entry.length,
        entry.crc,
        home,
        entry.choice,
    )


def rows_of(entry: Moved, segment: int, position: int) -> list[BatchRow]:
    return [
        BatchRow(
            o.log,
            o.first,
            o.end,
            o.time,
            o.total,
            segment,
            position,
            entry.length,
            entry.crc,
            choice=o.choice,
        )
        for o in entry.owners
    ]


def owner_of(row: BatchRow) -> Owner:
    return Owner(row.log, row.first, row.end, row.time, row.total, row.choice)

"""What is derived from the journal, in SQLite: where every batch lies, documents, ledgers, bounds, and how
much of each segment is alive. All of it can be made anew from the segments (``rebuild`` in replay.py).

It is written in large transactions beside the commits, by one connection, and read by another one. SQLite
syncs it only when it copies its WAL, so after a power cut it is what it was some time ago; ``place`` says up
to which record. Every row has a checksum over all of its columns, and of the tables that are not consecutive
by nature the number and the sum of the checksums are kept, so that a row which is not found is missed.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from pathlib import Path
from threading import RLock
from typing import Any, Final
from urllib.parse import quote

from isal.isal_zlib import crc32

from landbridge.errors import BadRequest, StoreBusy, StoreCorrupt, StoreFailed, StoreFailure, StoreFull
from landbridge.stores.journal.disk import is_full, os_failure
from landbridge.stores.journal.recent import BatchRow, JournalPlace, JournalState, LogState, Recent
from landbridge.stores.journal.records import Entered, Restated

VERSION: Final = 2
#: Before that, no row had a choice.
WITHOUT_CHOICES: Final = 1
PAGE: Final = 8192
#: Bytes of the WAL from which on it is copied into the database.
WAL_BYTES: Final = 8 << 20
#: Rows that one statement inserts. One statement, because SQLite's module gives other threads their turn
#: after each one: row by row a busy event loop would keep this thread waiting.
ROWS_AT_ONCE: Final = 256
#: Rows that one transaction sweeps up.
SWEEP_ROWS: Final = 2000
EVERYTHING: Final = 2**63 - 1
LIMITED: Final = 1 << 62  #: sums of checksums are counted below this

SCHEMA: Final = """
    CREATE TABLE log (
        log INTEGER, first INTEGER, end INTEGER NOT NULL, time INTEGER NOT NULL, total INTEGER NOT NULL,
        segment INTEGER NOT NULL, position INTEGER NOT NULL, length INTEGER NOT NULL, crc INTEGER NOT NULL,
        home INTEGER NOT NULL, sum INTEGER NOT NULL, choice BLOB,
        PRIMARY KEY (log, first)) WITHOUT ROWID;
    CREATE INDEX copy_home ON log (home) WHERE home > 0;
    CREATE INDEX copy_data ON log (segment) WHERE home > 0;
    CREATE TABLE bounds (
        log INTEGER PRIMARY KEY, first INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
        time INTEGER NOT NULL, forgotten INTEGER NOT NULL, total INTEGER NOT NULL, made INTEGER NOT NULL,
        sum INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE litter (log INTEGER PRIMARY KEY, before INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE documents (
        kind TEXT, key TEXT, value BLOB NOT NULL, sum INTEGER NOT NULL,
        PRIMARY KEY (kind, key)) WITHOUT ROWID;
    CREATE TABLE ledger (
        log INTEGER, producer BLOB, entry BLOB NOT NULL, last INTEGER, born INTEGER NOT NULL,
        sum INTEGER NOT NULL, PRIMARY KEY (log, producer)) WITHOUT ROWID;
    CREATE INDEX ledger_last ON ledger (log, last) WHERE last IS NOT NULL;
    CREATE TABLE segments (number INTEGER PRIMARY KEY, live INTEGER NOT NULL, sum INTEGER NOT NULL)
        WITHOUT ROWID;
    -- One row: what the rest reflects, and what it adds up to.
    CREATE TABLE journal (
        incarnation BLOB, segment INTEGER, position INTEGER, number INTEGER, restated INTEGER,
        restated_number INTEGER, rows INTEGER, sums INTEGER, sum INTEGER);
"""
COLUMNS: Final = "log, first, end, time, total, segment, position, length, crc, home, choice, sum"
HOLDER: Final = f"SELECT {COLUMNS} FROM log WHERE log = ? AND first <= ? ORDER BY first DESC LIMIT 1"
FROM: Final = f"SELECT {COLUMNS} FROM log WHERE log = ? AND first >= ? AND first < ? ORDER BY first"
INSERT: Final = f"INSERT OR REPLACE INTO log ({COLUMNS}) VALUES "
PLACES: Final = "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
#: Stretches of offsets, and of bytes, between the bounds of the logs that no row holds.
GAPS: Final = """
    SELECT log, reached, first, bytes, total FROM (
        SELECT log, first, total, lag(end, 1, -1) OVER w AS reached, lag(total + length, 1, 0) OVER w AS bytes
        FROM (SELECT log, first, end, total, length FROM log
              UNION ALL SELECT log, first, first, total - bytes, 0 FROM bounds
              UNION ALL SELECT log, end, end, total, 0 FROM bounds)
        WINDOW w AS (PARTITION BY log ORDER BY first, end))
    WHERE reached >= 0 AND reached < first
"""
#: What Python says of a value that has another type than the one that was written.
NOT_AS_WRITTEN: Final = (TypeError, ValueError, AttributeError, struct.error)
MADE_ANEW: Final = "restart the terminal, which then makes the index anew from the journal"
NUMBERS: Final = {count: struct.Struct(f"<{count}q") for count in (2, 7, 8, 10)}


def sum_of(*numbers: int) -> int:
    return crc32(NUMBERS[len(numbers)].pack(*numbers))


def row_sum(row: BatchRow) -> int:
    numbers, choice = row[:-1], row.choice
    sum = sum_of(*numbers)
    return sum if choice is None else crc32(choice, sum)


def document_sum(kind: str, key: str, value: bytes) -> int:
    return crc32(value, crc32(f"{kind}\0{key}".encode()))


def entry_sum(log: int, producer: bytes, entry: bytes, last: int | None, born: int) -> int:
    head = f"{log} {last} {born} ".encode()
    return crc32(entry, crc32(producer, crc32(head)))


class IndexDamaged(Exception):
    """The index can't be used: it has to be made anew."""


class JournalIndex:
    """Methods that change anything are called by one thread; others by any."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._reading = RLock()
        self.place = JournalPlace(0, 0, 0)  #: what the index reflects
        self.restated = Restated(0, 0)
        #: Segment → bytes of the batches that rows name in it, and one for each row: a batch may be empty.
        self.live: dict[int, int] = {}
        self.litter: dict[int, int] = {}  #: log → rows that end at or below this offset are void
        self.small_bytes = 0  #: roughly what documents, ledgers and bounds take when they are restated
        self._rows = self._sums = 0  #: number and sum of the checksums of the small tables' rows
        self._incarnation = b""
        #: While it is made anew, a batch that was moved may come without the row that it had before.
        self._rebuilding = False
        self._in_memory = False
        #: A file that is there after damage was met: the index is made anew when it is opened next.
        self._damage_mark = Path(f"{path}-damaged")

    # ------------------------------------------------------------------------------------ open, close

    def make(self, incarnation: bytes) -> None:
        """Make an empty one in place of what is there."""
        self.close()
        if not self._in_memory:
            for suffix in ("", "-wal", "-shm", "-journal", "-damaged"):
                with suppress(FileNotFoundError):
                    os.unlink(f"{self.path}{suffix}")
        self.place, self.restated, self.live, self.litter = JournalPlace(0, 0, 0), Restated(0, 0), {}, {}
        self._rows = self._sums = self.small_bytes = 0
        self._incarnation, self._rebuilding = incarnation, True
        with self._failures("making it"):
            self._connect()
            assert self._writer is not None
            self._writer.executescript(f"BEGIN; {SCHEMA} PRAGMA user_version = {VERSION};")
            self._put_place(Recent(self.place))
            self._writer.execute("COMMIT")

    def open(self, state: JournalState, incarnation: bytes) -> None:
        """Take what it has into the state. IndexDamaged."""
        if self._in_memory or not self.path.exists():
            raise IndexDamaged("it is missing")
        if self._damage_mark.exists():
            raise IndexDamaged("damage was met when it was last used")
        try:
            self._connect()
            self._load(state, incarnation)
        except (sqlite3.Error, IndexDamaged, OverflowError, *NOT_AS_WRITTEN) as error:
            self.close()
            failure = self._failure(error, "opening it") if isinstance(error, sqlite3.Error) else None
            if isinstance(failure, StoreFull | StoreBusy):
                raise failure from error
            raise IndexDamaged(str(error)) from error

    def incarnation(self) -> bytes:
        """Of the journal that it is of, for a journal that has lost it; empty if it can't be read."""
        try:
            with closing(sqlite3.connect(f"file:{quote(str(self.path))}?mode=ro", uri=True)) as db:
                row = db.execute("SELECT * FROM journal").fetchone()
        except sqlite3.Error:
            return b""
        return row[0] if row and crc32(repr(row[:-1]).encode()) == row[-1] else b""

    def use_memory(self) -> None:
        """Keep it in memory, because the disk has no room for the files that SQLite needs. It will be made
        anew from the journal, and again at the next start."""
        self.close()
        self._in_memory = True

    def use_disk(self) -> None:
        self._in_memory = False

    def close(self) -> None:
        with self._reading:
            for db in (self._reader, self._writer):  # the writer last: it copies the WAL and removes it
                if db is not None:
                    with suppress(sqlite3.Error):
                        db.close()
            self._reader = self._writer = None

    def _connect(self) -> None:
        if self._in_memory:
            self._writer = self._reader = _connected(":memory:", cache=16 << 20)
            return
        path = str(self.path)
        try:
            # SQLite gives -wal and -shm the rights that it finds here.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            os.fchmod(descriptor, 0o600)
            os.close(descriptor)
        except OSError as error:
            raise os_failure(self.path, error, "making it") from error
        self._writer = _connected(path, cache=16 << 20)
        if self._writer.execute("PRAGMA journal_mode = WAL").fetchone()[0] != "wal":
            raise StoreFailed(
                f"{path}: SQLite can't keep a WAL there",
                hint="use a local file system: network file systems lack the shared memory it needs",
            )
        self._reader = _connected(path, cache=8 << 20)
        self._reader.execute("PRAGMA query_only = ON")

    def _load(self, state: JournalState, incarnation: bytes) -> None:
        db = self._writer
        assert db is not None
        db.execute("BEGIN")  # one state of all tables: a check has a second connection beside the first
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == WITHOUT_CHOICES:
            db.execute("ALTER TABLE log ADD COLUMN choice BLOB")
            db.execute(f"PRAGMA user_version = {VERSION}")
        elif version != VERSION:
            raise IndexDamaged("it has another version")
        rows = db.execute("SELECT * FROM journal").fetchall()
        if len(rows) != 1 or crc32(repr(rows[0][:-1]).encode()) != rows[0][-1]:
            raise IndexDamaged("its head fails its checksum")
        found, *place, restated, restated_number, count, sums, _ = rows[0]
        if found != incarnation:
            raise IndexDamaged("it is of another journal")
        self._incarnation, self.place = incarnation, JournalPlace(*place)
        self.restated = Restated(restated, restated_number)
        self.live, self.litter = {}, dict(db.execute("SELECT log, before FROM litter"))
        self._rows = self._sums = self.small_bytes = 0
        for number, live, sum in db.execute("SELECT * FROM segments"):
            self._count(sum_of(number, live), sum, 0)
            self.live[number] = live
        state.logs = {}
        for *row, sum in db.execute("SELECT * FROM bounds"):
            self._count(sum_of(*row), sum, 40)
            log, *known = row
            state.logs[log] = LogState(*known)
        for kind, key, value, sum in db.execute("SELECT * FROM documents"):
            self._count(document_sum(kind, key, value), sum, len(key) + len(value) + 20)
        for log, producer, entry, last, born, sum in db.execute("SELECT * FROM ledger"):
            size = len(producer) + len(entry) + 30
            self._count(entry_sum(log, producer, entry, last, born), sum, size)
        for log, before in self.litter.items():
            self._count(sum_of(log, before), None, 0)
        # What a trim forgets is found by an index of this table, which has no checksums.
        for (text,) in db.execute("PRAGMA integrity_check(ledger)"):
            if text != "ok":
                raise IndexDamaged(text)
        if (self._rows, self._sums) != (count, sums):
            raise IndexDamaged(f"it has {self._rows} rows where {count} are expected, or others")
        db.execute("COMMIT")
        state.recent = Recent(self.place)

    def _count(self, sum: int, stored: int | None, size: int) -> None:
        if stored is not None and sum != stored:
            raise IndexDamaged("a row fails its checksum")
        self._rows += 1
        self._sums = (self._sums + sum) % LIMITED
        self.small_bytes += size

    # ------------------------------------------------------------------------------------------ reads

    def holder(self, log: int, offset: int) -> BatchRow | None:
        """The row with the greatest first offset at or below."""
        with self._read(f"reading log {log}") as db:
            found = db.execute(HOLDER, (log, offset)).fetchone()
            return None if found is None else self._row(found)

    def rows(self, log: int, start: int, stop: int, max_bytes: int) -> list[BatchRow]:
        """Rows that begin in a range of offsets, as many as fit but one more."""
        found: list[BatchRow] = []
        with self._read(f"reading log {log}") as db, closing(db.execute(FROM, (log, start, stop))) as rows:
            for each in rows:
                try:
                    row = self._row(each)
                except StoreCorrupt:
                    if found:
                        break  # the next read's business
                    raise
                found.append(row)
                max_bytes -= row.length
                if max_bytes < 0:
                    break
        return found

    def copies(self, segment: int) -> list[BatchRow]:
        """Copies whose data or whose entry a segment holds."""
        with self._read(f"reading copies of segment {segment}") as db:
            query = f"SELECT {COLUMNS} FROM log WHERE %s = ? AND home > 0"
            both = f"{query % 'segment'} UNION {query % 'home'}"
            return [self._row(each) for each in db.execute(both, (segment, segment))]

    def rows_in(self, segment: int) -> list[BatchRow]:
        """Every row whose data a segment holds. Slow: it reads all of them."""
        with self._read(f"reading rows of segment {segment}") as db:
            query = f"SELECT {COLUMNS} FROM log WHERE segment = ?"
            return [self._row(each) for each in db.execute(query, (segment,))]

    def entry(self, log: int, producer: bytes) -> Entered | None:
        with self._read(f"reading the ledger of log {log}") as db:
            query = "SELECT entry, last, born, sum FROM ledger WHERE log = ? AND producer = ?"
            found = db.execute(query, (log, producer)).fetchone()
            if found is None:
                return None
            entry, last, born, sum = found
            if entry_sum(log, producer, entry, last, born) != sum:
                raise self._damaged(f"the ledger of log {log}")
            return Entered(log, producer, entry, last, born)

    def entries_below(self, log: int, floor: int) -> list[tuple[bytes, int, int]]:
        """Producer, last and born of a ledger's entries with a lower ``last``."""
        with self._read(f"reading the ledger of log {log}") as db:
            query = "SELECT producer, last, born FROM ledger WHERE log = ? AND last < ?"
            return db.execute(query, (log, floor)).fetchall()

    def integrity(self) -> list[str]:
        """What SQLite finds wrong with the file."""
        with self._read("checking it") as db:
            lines = [line for (text,) in db.execute("PRAGMA integrity_check") for line in text.splitlines()]
        if lines != ["ok"]:
            self.condemn()
        return [f"index: {line}" for line in lines if line != "ok"]

    def documents(self, kind: str, prefix: str) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        with self._read(f"reading documents of kind {kind}") as db:
            query = "SELECT key, value, sum FROM documents WHERE kind = ? AND key >= ? ORDER BY key"
            with closing(db.execute(query, (kind, prefix))) as rows:
                for key, value, sum in rows:
                    if not key.startswith(prefix):
                        break
                    if document_sum(kind, key, value) != sum:
                        raise self._damaged(f"document {kind} {key}")
                    found[key] = value
        return found

    def documents_after(self, kind: str, key: str, count: int) -> list[tuple[str, str, bytes]]:
        with self._read("reading documents") as db:
            query = (
                "SELECT kind, key, value FROM documents WHERE (kind, key) > (?, ?) ORDER BY kind, key LIMIT ?"
            )
            return db.execute(query, (kind, key, count)).fetchall()

    def kinds(self) -> list[str]:
        """The kinds of documents."""
        with self._read("reading documents") as db:
            return [kind for (kind,) in db.execute("SELECT DISTINCT kind FROM documents").fetchall()]

    def ledger_logs(self) -> list[int]:
        """The logs that have a ledger."""
        with self._read("reading ledgers") as db:
            return [log for (log,) in db.execute("SELECT DISTINCT log FROM ledger").fetchall()]

    def entries_after(
        self, log: int, producer: bytes, count: int
    ) -> list[tuple[int, bytes, bytes, Any, int]]:
        with self._read("reading ledgers") as db:
            query = (
                "SELECT log, producer, entry, last, born FROM ledger WHERE (log, producer) > (?, ?) "
                "ORDER BY log, producer LIMIT ?"
            )
            return db.execute(query, (log, producer, count)).fetchall()

    def _row(self, found: Sequence[Any]) -> BatchRow:
        row = BatchRow(*found[:-1])
        if row_sum(row) != found[-1]:
            raise self._damaged(f"log {found[0]}, offset {found[1]}")
        return row

    def _damaged(self, what: str) -> StoreCorrupt:
        self.condemn()
        return StoreCorrupt(f"{what}: the entry in the index {self.path} fails its checksum", hint=MADE_ANEW)

    def condemn(self) -> None:
        """Have it made anew when it is opened next."""
        if not self._in_memory:
            with suppress(OSError):  # without room for the mark the damage will be met again
                self._damage_mark.touch(0o600)

    # ----------------------------------------------------------------------------------------- writes

    def write(self, changes: Recent, logs: dict[int, LogState | None]) -> None:
        """Take changes in. ``logs``: those that have changed, as they are after them."""
        with self._transaction("writing it") as db:
            for log in changes.dropped:
                self._litter(db, log, EVERYTHING)
            for log, known in logs.items():
                if known is not None and self.litter.get(log) == EVERYTHING:  # a number that is used again
                    self._sweep(db, log, EVERYTHING, None)
            self._insert([row for rows in changes.rows.values() for row in rows])
            for row in changes.moved:
                self._move(db, row)
            self._put_bounds(db, logs)
            for log, before in changes.litter.items():
                if self.litter.get(log, 0) < before:
                    self._litter(db, log, before)
            self._put_documents(db, changes)
            self._put_ledger(db, changes)
            self._put_place(changes)
        self._copy_wal(WAL_BYTES)

    def sweep(self) -> bool:
        """Remove some of the void rows. True if there are more."""
        if not self.litter:
            return False
        with self._transaction("sweeping it") as db:
            log, before = next(iter(self.litter.items()))
            self._sweep(db, log, before, SWEEP_ROWS)
            self._put_place(Recent(self.place))
        return bool(self.litter)

    def sync(self) -> None:
        """Bring all of it to the disk."""
        self._copy_wal(0)

    def live_segments(self) -> set[int]:
        """Those that rows name. Rows of lost batches name none."""
        return {number for number, live in self.live.items() if number and live}

    def forget_segment(self, number: int) -> None:
        with self._transaction("forgetting a segment") as db:
            self._put_live(db, number, None)
            self._put_place(Recent(self.place))

    def finish_rebuilding(self, logs: dict[int, LogState]) -> list[str]:
        """Remove rows that are in no log any more, and put rows that say so where batches are missing.
        Returns a finding for each of those."""
        findings: list[str] = []
        with self._transaction("making it anew") as db:
            db.execute("DELETE FROM log WHERE log NOT IN (SELECT log FROM bounds)")
            for log, known in logs.items():
                db.execute(
                    "DELETE FROM log WHERE log = ? AND (first < ? OR end > ?)", (log, known.first, known.end)
                )
            for log, first, end, start, total in db.execute(GAPS).fetchall():
                findings.append(f"log {log}: offsets {first} to {end - 1} are lost")
                self._insert([BatchRow(log, first, end, 0, start, 0, 0, max(0, total - start), 0)])
            for log in list(self.litter):
                self._litter(db, log, None)
            for segment in list(self.live):
                self._put_live(db, segment, None)
            for segment, length in db.execute(
                "SELECT segment, sum(length + 1) FROM log GROUP BY segment"
            ).fetchall():
                self._put_live(db, segment, length)
            self._put_place(Recent(self.place))
        self._rebuilding = False
        self.sync()
        return findings

    def _insert(self, rows: list[BatchRow]) -> None:
        db = self._writer
        assert db is not None
        for at in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[at : at + ROWS_AT_ONCE]
            values: list[int | bytes | None] = []
            for row in some:
                values += row
                values.append(row_sum(row))
            db.execute(INSERT + ", ".join([PLACES] * len(some)), values)
        added: dict[int, int] = {}
        for row in rows:
            added[row.segment] = added.get(row.segment, 0) + row.length + 1
        for segment, length in added.items():
            self._add_live(db, segment, length)

    def _move(self, db: sqlite3.Connection, row: BatchRow) -> None:
        query = "SELECT segment, length FROM log WHERE log = ? AND first = ? AND end = ?"
        found = db.execute(query, (row.log, row.first, row.end)).fetchone()
        if found is not None:
            self._add_live(db, found[0], -found[1] - 1)
        if found is not None or self._rebuilding:
            self._insert([row])

    def _sweep(self, db: sqlite3.Connection, log: int, before: int, most: int | None) -> None:
        """Remove rows that begin below an offset."""
        end, rest = before, None
        if most is not None:
            query = "SELECT first FROM log WHERE log = ? AND first < ? ORDER BY first LIMIT 1 OFFSET ?"
            rest = db.execute(query, (log, before, most)).fetchone()
            end = before if rest is None else rest[0]
        query = "SELECT segment, sum(length + 1) FROM log WHERE log = ? AND first < ? GROUP BY segment"
        for segment, length in db.execute(query, (log, end)).fetchall():
            self._add_live(db, segment, -length)
        db.execute("DELETE FROM log WHERE log = ? AND first < ?", (log, end))
        if rest is None:
            self._litter(db, log, None)

    def _litter(self, db: sqlite3.Connection, log: int, before: int | None) -> None:
        was = self.litter.pop(log, None)
        if was is not None:
            self._uncount(sum_of(log, was), 0)
        if before is None:
            db.execute("DELETE FROM litter WHERE log = ?", (log,))
        else:
            self.litter[log] = before
            self._count(sum_of(log, before), None, 0)
            db.execute("INSERT OR REPLACE INTO litter VALUES (?, ?)", (log, before))

    def _add_live(self, db: sqlite3.Connection, segment: int, length: int) -> None:
        self._put_live(db, segment, self.live.get(segment, 0) + length)

    def _put_live(self, db: sqlite3.Connection, segment: int, live: int | None) -> None:
        was = self.live.pop(segment, None)
        if was is not None:
            self._uncount(sum_of(segment, was), 0)
        if live is None:
            db.execute("DELETE FROM segments WHERE number = ?", (segment,))
        else:
            self.live[segment] = live
            sum = sum_of(segment, live)
            self._count(sum, None, 0)
            db.execute("INSERT OR REPLACE INTO segments VALUES (?, ?, ?)", (segment, live, sum))

    def _put_bounds(self, db: sqlite3.Connection, logs: dict[int, LogState | None]) -> None:
        rows: list[tuple[Any, ...]] = []
        for log, s in logs.items():
            if s is None:
                rows.append((log, *[None] * 8))
            else:
                row = (log, s.first, s.end, s.bytes, s.time, s.forgotten, s.total, s.made)
                rows.append((*row, sum_of(*row)))
        self._replace(db, "bounds", "log", rows, 40)

    def _put_documents(self, db: sqlite3.Connection, changes: Recent) -> None:
        rows = [
            (kind, key, value, None if value is None else document_sum(kind, key, value))
            for kind, documents in changes.documents.items()
            for key, value in documents.items()
        ]
        self._replace(db, "documents", "kind, key", rows, 120)

    def _put_ledger(self, db: sqlite3.Connection, changes: Recent) -> None:
        for log in changes.dropped:
            self._remove(db, "ledger WHERE log = ?", (log,), 80)
        for log, floor in changes.floors.items():
            self._remove(db, "ledger WHERE log = ? AND last < ?", (log, floor), 80)
        rows = [
            (log, name, put.entry, put.last, put.born, entry_sum(log, name, put.entry, put.last, put.born))
            if put.entry is not None
            else (log, name, None, None, 0, None)
            for log, entries in changes.ledger.items()
            for name, put in entries.items()
        ]
        self._replace(db, "ledger", "log, producer", rows, 80)

    def _replace(
        self, db: sqlite3.Connection, table: str, key: str, rows: list[tuple[Any, ...]], size: int
    ) -> None:
        """Put rows into a table in place of those with the same key; a row whose last value, the checksum, is
        None only removes. By way of a table in memory, so that the statements are few however many the rows.
        ``size``: bytes of a row, roughly."""
        if not rows:
            return
        fresh = f"fresh_{table}"
        db.execute(f"CREATE TEMP TABLE IF NOT EXISTS {fresh} AS SELECT * FROM {table} LIMIT 0")
        places = f"({', '.join('?' * len(rows[0]))})"
        for at in range(0, len(rows), ROWS_AT_ONCE):
            some = rows[at : at + ROWS_AT_ONCE]
            values = [value for row in some for value in row]
            db.execute(f"INSERT INTO {fresh} VALUES {', '.join([places] * len(some))}", values)
        old = f"{table} WHERE ({key}) IN (SELECT {key} FROM {fresh})"
        self._remove(db, old, (), size)
        db.execute(f"INSERT INTO {table} SELECT * FROM {fresh} WHERE sum IS NOT NULL")
        added = [row[-1] for row in rows if row[-1] is not None]
        db.execute(f"DELETE FROM {fresh}")
        self._rows += len(added)
        self._sums = (self._sums + sum(added)) % LIMITED
        self.small_bytes += size * len(added)

    def _remove(self, db: sqlite3.Connection, where: str, values: tuple[object, ...], size: int) -> None:
        (rows, sums) = db.execute(f"SELECT count(*), sum(sum) FROM {where}", values).fetchone()
        if rows:
            self._uncount(sums, size * rows, rows)
            db.execute(f"DELETE FROM {where}", values)

    def _uncount(self, sums: int, size: int, rows: int = 1) -> None:
        self._rows -= rows
        self._sums = (self._sums - sums) % LIMITED
        self.small_bytes = max(0, self.small_bytes - size)

    def _put_place(self, changes: Recent) -> None:
        self.place = changes.place
        self.restated = changes.restated or self.restated
        row = (
            self._incarnation,
            *self.place,
            self.restated.segment,
            self.restated.number,
            self._rows,
            self._sums,
        )
        sum = crc32(repr(row).encode())
        assert self._writer is not None
        self._writer.execute("DELETE FROM journal")
        self._writer.execute("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, sum))

    def _copy_wal(self, least: int) -> None:
        with self._failures("copying its WAL"):
            if self._writer is not None and not self._in_memory and _size(f"{self.path}-wal") >= least:
                self._writer.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()

    # ----------------------------------------------------------------------------------------- errors

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """All of it or nothing, in memory too."""
        db = self._writer
        if db is None:
            raise StoreFailed(f"{self.path} is not open")
        with self._reading if self._in_memory else nullcontext():
            yield from self._transacted(db, doing)

    def _transacted(self, db: sqlite3.Connection, doing: str) -> Iterator[sqlite3.Connection]:
        kept = (self.place, self.restated, dict(self.live), dict(self.litter))
        counted = (self._rows, self._sums, self.small_bytes)
        try:
            with self._failures(doing):
                db.execute("BEGIN IMMEDIATE")
                yield db
                db.execute("COMMIT")
        except BaseException as error:
            self.place, self.restated, self.live, self.litter = kept
            self._rows, self._sums, self.small_bytes = counted
            with suppress(sqlite3.Error):
                if db.in_transaction:
                    db.execute("ROLLBACK")
            if isinstance(error, struct.error):
                raise BadRequest(f"a number is too large for the index: {error}") from error
            raise

    @contextmanager
    def _read(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._reading:
            if self._reader is None:
                raise StoreFailed(f"{self.path.parent} is not open", hint="call open() first")
            try:
                with self._failures(doing):
                    yield self._reader
            except NOT_AS_WRITTEN as error:
                raise self._damaged(f"{error} while {doing}") from error

    @contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._failure(error, doing) from error
        except OverflowError as error:
            raise BadRequest(f"{error} while {doing}") from error

    def _failure(self, error: sqlite3.Error, doing: str) -> StoreFailure:
        """Which of our errors an error of SQLite is."""
        code = getattr(error, "sqlite_errorcode", None)
        name = getattr(error, "sqlite_errorname", "")
        text = f"{self.path}: {error} {name} while {doing}"
        match None if code is None else code & 0xFF:
            case sqlite3.SQLITE_FULL:
                return StoreFull(text)
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CONSTRAINT:
                self.condemn()
                return StoreCorrupt(text, hint=MADE_ANEW)
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreBusy(text, hint="a program other than Landbridge has the index locked")
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN if is_full(self.path.parent):
                return StoreFull(text)
            case _:
                return StoreFailed(text)


def _connected(path: str, *, cache: int) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        for setting in (
            f"page_size = {PAGE}",
            "synchronous = NORMAL",  # sync when the WAL is copied, not at every transaction
            "fullfsync = ON",  # macOS only
            "checkpoint_fullfsync = ON",
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {2 * WAL_BYTES}",
            f"cache_size = {-cache // 1024}",
            "temp_store = MEMORY",
            "secure_delete = OFF",
            "cell_size_check = ON",
            "trusted_schema = OFF",
        ):
            db.execute(f"PRAGMA {setting}")
    except BaseException:
        db.close()
        raise
    return db


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return -1

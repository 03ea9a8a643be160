"""What is inside the SQLite file: the tables, what one transaction does to them, and their check.

Nothing here knows of threads, of the WAL or of errors: that is sqlite.py, which owns the connections.
"""

from __future__ import annotations

import sqlite3
from typing import Final
from zlib import crc32

from landbridge.core.store import (
    Append,
    Buffer,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    Trim,
    Write,
)
from landbridge.stores.bounds import LIMIT, extended, size_of

SCHEMA_VERSION: Final = 1
APPLICATION_ID: Final = 0x4C616E64  # "Land", so that file(1) and we can tell it from other databases

#: Bytes. One short run each with 400 kB commits, MB/s: 4 KiB 174, 8 KiB 191, 16 KiB 201, 32 KiB 208, 64 KiB
#: 179; a small commit writes three pages and took 0.28, 0.24, 0.28, 0.33, 0.41 ms.
PAGE: Final = 8192

#: The schema of version 1. `total` is what makes a trim cheap: the bytes of data in this log up to the end
#: of this batch, counted since the log began, so that the size of any stretch is one subtraction.
SCHEMA: Final = """
    CREATE TABLE log (
        log INTEGER NOT NULL, first INTEGER NOT NULL, end INTEGER NOT NULL, time INTEGER NOT NULL,
        crc INTEGER NOT NULL, total INTEGER NOT NULL, data BLOB NOT NULL);
    CREATE UNIQUE INDEX log_first ON log (log, first);
    -- One row for each log, for ever. `trimmed` is the `total` of the last batch that was trimmed.
    CREATE TABLE bounds (
        log INTEGER PRIMARY KEY, first INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
        time INTEGER NOT NULL, trimmed INTEGER NOT NULL);
    -- Trimmed or dropped batches whose rows are still there: those of `log` with first < `before`.
    CREATE TABLE litter (log INTEGER PRIMARY KEY, before INTEGER NOT NULL);
    CREATE TABLE documents (kind TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
    CREATE TABLE ledger (log INTEGER, producer BLOB, entry BLOB NOT NULL, PRIMARY KEY (log, producer))
        WITHOUT ROWID;
"""

INSERT_BATCH: Final = "INSERT INTO log (log, first, end, time, crc, total, data) VALUES (?, ?, ?, ?, ?, ?, ?)"
PUT_BOUNDS: Final = (
    "INSERT OR REPLACE INTO bounds (log, first, end, bytes, time, trimmed) VALUES (?, ?, ?, ?, ?, ?)"
)
PUT_LITTER: Final = "INSERT OR REPLACE INTO litter (log, before) VALUES (?, ?)"
PUT_LEDGER: Final = "INSERT OR REPLACE INTO ledger (log, producer, entry) VALUES (?, ?, ?)"
PUT_DOCUMENT: Final = "INSERT OR REPLACE INTO documents (kind, key, value) VALUES (?, ?, ?)"
#: The last batch that begins before an offset.
BATCH_BELOW: Final = (
    "SELECT first, end, time, total FROM log WHERE log = ? AND first < ? ORDER BY first DESC LIMIT 1"
)


class Sweep:
    """Remove some of a log's litter: a write that only the store itself makes."""

    def __init__(self, log: int, before: int) -> None:
        self.log = log
        self.before = before


class Changes:
    """What one transaction does. Gathers the writes so that each table is touched once, each log's bounds
    once however many batches it gets, and what we know of the logs not before the commit."""

    def __init__(
        self,
        db: sqlite3.Connection,
        bounds: dict[int, LogBounds],
        trimmed: dict[int, int],
        litter: dict[int, int],
        sweep_rows: int,
    ) -> None:
        self._db = db
        self._sweep_rows = sweep_rows  #: at most so many rows of a log are removed at once
        #: As they are before the commit; changed by publish().
        self._stored_bounds, self._stored_trimmed, self._stored_litter = bounds, trimmed, litter
        #: As they will be, of the logs that change; None: no more.
        self._bounds: dict[int, LogBounds | None] = {}
        self._trimmed: dict[int, int] = {}
        self._litter: dict[int, int | None] = {}
        self._rows: list[tuple[int, int, int, int, int, int, Buffer]] = []  #: batches not yet inserted
        self._ledger: dict[tuple[int, bytes], bytes | None] = {}  #: None: delete
        self._documents: dict[tuple[str, str], bytes | None] = {}  #: None: delete
        self._data_bytes = 0  #: data appended
        self._removed = 0  #: rows deleted from the log table

    def add(self, write: Write | Sweep) -> None:
        match write:
            case Append():
                self._append(write)
            case PutLedger(log, producer, entry):
                self._ledger[log, producer] = entry
            case PutDocument(kind, key, value):
                self._documents[kind, key] = value
            case DeleteDocument(kind, key):
                self._documents[kind, key] = None
            case Trim():
                self._trim(write)
            case DropLog(log):
                self._drop(log)
            case Sweep():
                self._sweep(write.log, write.before)

    def flush(self) -> None:
        """Bring into the database what has been gathered."""
        self._insert_rows()
        many = self._db.executemany
        if self._ledger:
            entries = [(*key, entry) for key, entry in self._ledger.items() if entry is not None]
            forgotten = [key for key, entry in self._ledger.items() if entry is None]
            many(PUT_LEDGER, entries)
            many("DELETE FROM ledger WHERE log = ? AND producer = ?", forgotten)
        if self._documents:
            values = [(*name, value) for name, value in self._documents.items() if value is not None]
            without = [name for name, value in self._documents.items() if value is None]
            many(PUT_DOCUMENT, values)
            many("DELETE FROM documents WHERE kind = ? AND key = ?", without)
        for log, bounds in self._bounds.items():
            if bounds is None:
                self._db.execute("DELETE FROM bounds WHERE log = ?", (log,))
            else:
                row = (log, bounds.first, bounds.end, bounds.bytes, bounds.time, self._trimmed_of(log))
                self._db.execute(PUT_BOUNDS, row)
        for log, before in self._litter.items():
            if before is None:
                self._db.execute("DELETE FROM litter WHERE log = ?", (log,))
            else:
                self._db.execute(PUT_LITTER, (log, before))

    def publish(self) -> bool:
        """After the commit: make it known. True if it left something to tidy up."""
        self._stored_trimmed.update(self._trimmed)
        for log, bounds in self._bounds.items():
            if bounds is None:
                self._stored_bounds.pop(log, None)
                self._stored_trimmed.pop(log, None)
            else:
                self._stored_bounds[log] = bounds
        for log, before in self._litter.items():
            if before is None:
                self._stored_litter.pop(log, None)
            else:
                self._stored_litter[log] = before
        return self._removed > 0

    def wal_bytes(self) -> int:
        """How much of the WAL it takes, roughly: the data in whole pages; a page each of the table, the
        index and the bounds; up to a page for each small row; the pages around a removed one."""
        small = min(len(self._ledger) + len(self._documents), 64)
        return self._data_bytes * 9 // 8 + (3 + small) * PAGE + self._removed * PAGE // 3

    def _bounds_of(self, log: int) -> LogBounds | None:
        return self._bounds[log] if log in self._bounds else self._stored_bounds.get(log)

    def _trimmed_of(self, log: int) -> int:
        return self._trimmed[log] if log in self._trimmed else self._stored_trimmed.get(log, 0)

    def _append(self, write: Append) -> None:
        log, data, size = write.log, write.data, size_of(write)
        before = self._bounds_of(log)
        bounds = extended(before, write, size)
        if before is None:
            # Numbers aren't reused, but if one is, a drop may not have swept up all of its namesake.
            self._sweep(log, LIMIT, everything=True)
        self._bounds[log] = bounds
        total = self._trimmed_of(log) + bounds.bytes
        self._rows.append((log, write.first, write.end, write.time, crc32(data), total, data))
        self._data_bytes += size

    def _insert_rows(self) -> None:
        if self._rows:
            self._db.executemany(INSERT_BATCH, self._rows)
            self._rows = []

    def _trim(self, write: Trim) -> None:
        log = write.log
        bounds = self._bounds_of(log)
        if bounds is None or write.before <= bounds.first:
            return
        self._insert_rows()
        last = self._db.execute(BATCH_BELOW, (log, write.before)).fetchone()
        if last is not None and last[1] > write.before:  # it holds messages that stay, so it stays
            last = self._db.execute(BATCH_BELOW, (log, last[0])).fetchone()
        if last is None or last[1] <= bounds.first:
            return
        _, cut, _, total = last
        size = self._trimmed_of(log) + bounds.bytes - total
        self._bounds[log] = LogBounds(cut, bounds.end, size, bounds.time)
        self._trimmed[log] = total
        self._sweep(log, cut)

    def _drop(self, log: int) -> None:
        self._insert_rows()
        self._ledger = {key: entry for key, entry in self._ledger.items() if key[0] != log}
        self._db.execute("DELETE FROM ledger WHERE log = ?", (log,))
        if self._bounds_of(log) is not None:
            self._bounds[log] = None
            self._trimmed[log] = 0
            self._sweep(log, LIMIT)

    def _sweep(self, log: int, before: int, *, everything: bool = False) -> None:
        """Remove the oldest rows that begin before an offset, and note the rest as litter. So a trim takes
        the same short time however much it trims, and fits into a disk that is nearly full."""
        rest = None
        if not everything:
            rest = self._db.execute(
                "SELECT first FROM log WHERE log = ? AND first < ? ORDER BY first LIMIT 1 OFFSET ?",
                (log, before, self._sweep_rows),
            ).fetchone()
        end = before if rest is None else rest[0]
        self._removed += self._db.execute("DELETE FROM log WHERE log = ? AND first < ?", (log, end)).rowcount
        if rest is not None:
            self._litter[log] = before
        elif log in self._stored_litter or log in self._litter:
            self._litter[log] = None


def check_pages(db: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file."""
    lines = [line for (text,) in db.execute("PRAGMA integrity_check") for line in text.splitlines()]
    return [f"database: {line}" for line in lines if line != "ok"]


def check_logs(db: sqlite3.Connection) -> list[str]:
    """What is wrong with the batches and the bounds."""
    logs = {log for (log,) in db.execute("SELECT log FROM bounds")}
    (log,) = db.execute("SELECT min(log) FROM log").fetchone()
    while log is not None:
        logs.add(log)
        (log,) = db.execute("SELECT min(log) FROM log WHERE log > ?", (log,)).fetchone()
    findings: list[str] = []
    for log in sorted(logs):
        db.execute("BEGIN")  # one state of this log, while commits go on
        try:
            findings += _check_log(db, log)
        except sqlite3.DatabaseError as error:
            findings.append(f"log {log}: {error}")
        finally:
            db.execute("ROLLBACK")
    return findings


def _check_log(db: sqlite3.Connection, log: int) -> list[str]:
    bounds = db.execute(
        "SELECT first, end, bytes, time, trimmed FROM bounds WHERE log = ?", (log,)
    ).fetchone()
    litter = db.execute("SELECT before FROM litter WHERE log = ?", (log,)).fetchone()
    from_here = (log, 0 if litter is None else litter[0])
    if bounds is None:
        (count,) = db.execute("SELECT count(*) FROM log WHERE log = ? AND first >= ?", from_here).fetchone()
        return [f"log {log}: {count} batches, but no bounds"] if count else []

    findings: list[str] = []
    first, end, size, newest, trimmed = bounds
    at, time, total = first, 0, trimmed  # of the batch before: its end, its time, its running total
    unread = False  # the batch before can't be read, so nothing is known of where this one should begin
    # The offsets come from the index alone, so a damaged row stops only the reading of itself.
    for (found,) in db.execute(
        "SELECT first FROM log WHERE log = ? AND first >= ? ORDER BY first", from_here
    ):
        where = f"log {log}, offset {found}"
        try:
            row = db.execute(
                "SELECT end, time, crc, total, data FROM log WHERE log = ? AND first = ?", (log, found)
            ).fetchone()
        except sqlite3.DatabaseError as error:
            findings.append(f"{where}: the batch can't be read: {error}")
            unread = True
            continue
        batch_end, batch_time, crc, batch_total, data = row
        if found != at and not unread:
            findings.append(f"{where}: the batch should begin at {at}")
        if crc32(data) != crc:
            findings.append(f"{where}: the batch fails its checksum")
        if batch_end <= found:
            findings.append(f"{where}: the batch ends at {batch_end}")
        if batch_time < time:
            findings.append(f"{where}: its time {batch_time} is before the last batch's {time}")
        if batch_total != total + len(data) and not unread:
            findings.append(f"{where}: its running total is {batch_total}, not {total + len(data)}")
        at, time, total, unread = batch_end, batch_time, batch_total, False
    if not unread:
        if at != end:
            findings.append(f"log {log}: the batches end at {at}, the bounds at {end}")
        if total != trimmed + size:
            findings.append(f"log {log}: the batches hold {total - trimmed} bytes, the bounds say {size}")
        if first < end and time != newest:
            findings.append(f"log {log}: the newest batch is of {time}, the bounds say {newest}")
    return findings

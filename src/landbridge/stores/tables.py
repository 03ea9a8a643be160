"""What is inside the SQLite file: the tables, what one transaction does to them, and their check.

Nothing here knows of threads or of what an error of SQLite means to a caller: that is sqlite.py, which owns
the connections.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Final

from isal.isal_zlib import crc32  # the same checksums as zlib's, four times as fast

from landbridge.core.log.store import (
    Append,
    Buffer,
    Copy,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    Trim,
    Write,
)
from landbridge.errors import StoreCorrupt
from landbridge.stores.bounds import LIMIT, check_source, extended, is_ledger_only, size_of

SCHEMA_VERSION: Final = 3
APPLICATION_ID: Final = 0x4C616E64  # "Land", so that file(1) and we can tell it from other databases

#: Bytes. One short run each with 400 kB commits, MB/s: 4 KiB 174, 8 KiB 191, 16 KiB 201, 32 KiB 208, 64 KiB
#: 179; a small commit writes three pages and took 0.28, 0.24, 0.28, 0.33, 0.41 ms.
PAGE: Final = 8192

#: Logs and their batches, which are apart so that several logs can hold one. `total` is what makes a trim
#: cheap: the bytes of data in this log up to the end of this batch, counted since the log began, so that the
#: size of any stretch is one subtraction.
LOGS: Final = """
    CREATE TABLE log (
        log INTEGER, first INTEGER, end INTEGER NOT NULL, time INTEGER NOT NULL, crc INTEGER NOT NULL,
        total INTEGER NOT NULL, batch INTEGER NOT NULL, PRIMARY KEY (log, first)) WITHOUT ROWID;
    CREATE TABLE batches (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
    -- Batches that stand in several rows of `log`: how many there are beside the first. Mostly empty.
    CREATE TABLE shared (batch INTEGER PRIMARY KEY, others INTEGER NOT NULL);
    -- One row: no batch has ever had this id or a higher one.
    CREATE TABLE ids (unused INTEGER NOT NULL);
"""
#: What a producer has stored in a log. The row lives as long as the log holds the offset `last`; null: until
#: it is deleted.
LEDGER: Final = """
    CREATE TABLE ledger (
        log INTEGER, producer BLOB, entry BLOB NOT NULL, last INTEGER, born INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (log, producer)) WITHOUT ROWID;
    CREATE INDEX ledger_last ON ledger (log, last) WHERE last IS NOT NULL;
"""
#: The schema of version 3.
SCHEMA: Final = f"""
    {LOGS}
    INSERT INTO ids VALUES (1);
    -- One row for each log, for ever. `trimmed` is the `total` of the last batch that was trimmed,
    -- `forgotten` the highest `born` of the ledger's rows that were trimmed.
    CREATE TABLE bounds (
        log INTEGER PRIMARY KEY, first INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
        time INTEGER NOT NULL, trimmed INTEGER NOT NULL, forgotten INTEGER NOT NULL DEFAULT 0);
    -- Trimmed or dropped batches whose rows are still there: those of `log` with first < `before`.
    CREATE TABLE litter (log INTEGER PRIMARY KEY, before INTEGER NOT NULL);
    CREATE TABLE documents (kind TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
    {LEDGER}
"""

#: Ids that are taken in advance, so that not every commit has to write how far they are.
IDS: Final = 1 << 16

INSERT_BATCH: Final = "INSERT INTO batches (id, data) VALUES (?, ?)"
INSERT_ROW: Final = "INSERT INTO log (log, first, end, time, crc, total, batch) VALUES (?, ?, ?, ?, ?, ?, ?)"
#: A row of a log and the size of its batch, by a look at the head of the data.
SOURCE: Final = (
    "SELECT end, crc, batch, length(data) FROM log LEFT JOIN batches ON id = batch "
    "WHERE log = ? AND first = ?"
)
SHARE: Final = (
    "INSERT INTO shared (batch, others) VALUES (?, 1) ON CONFLICT (batch) DO UPDATE SET others = others + 1"
)
#: The shared batches among a log's first rows: how many of the rows have it, and how many others there are.
SHARED_BELOW: Final = (
    "SELECT shared.batch, count(*), others FROM log CROSS JOIN shared ON shared.batch = log.batch "
    "WHERE log = ? AND first < ? GROUP BY shared.batch"
)
#: The data of those that are not shared. Of a shared one no page is touched.
DELETE_BATCHES: Final = (
    "DELETE FROM batches WHERE id IN (SELECT batch FROM log "
    "WHERE log = ? AND first < ? AND batch NOT IN (SELECT batch FROM shared))"
)
DELETE_ROWS: Final = "DELETE FROM log WHERE log = ? AND first < ?"
PUT_BOUNDS: Final = (
    "INSERT OR REPLACE INTO bounds (log, first, end, bytes, time, trimmed, forgotten) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)
PUT_LITTER: Final = "INSERT OR REPLACE INTO litter (log, before) VALUES (?, ?)"
PUT_LEDGER: Final = "INSERT OR REPLACE INTO ledger (log, producer, entry, last, born) VALUES (?, ?, ?, ?, ?)"
FORGOTTEN: Final = "SELECT max(born) FROM ledger WHERE log = ? AND last < ?"
FORGET: Final = "DELETE FROM ledger WHERE log = ? AND last < ?"
PUT_DOCUMENT: Final = "INSERT OR REPLACE INTO documents (kind, key, value) VALUES (?, ?, ?)"
#: The last batch that begins before an offset.
BATCH_BELOW: Final = (
    "SELECT first, end, time, total FROM log WHERE log = ? AND first < ? ORDER BY first DESC LIMIT 1"
)


def _from_version_1(db: sqlite3.Connection, old: sqlite3.Connection) -> None:
    """There the rows of `log` had their batches in them. One whose pages are damaged is left behind: to read
    it stays an error. ``old`` is there for that: a connection that has met damage can't drop the table."""
    db.execute("ALTER TABLE log RENAME TO rows")
    for statement in LOGS.split(";"):
        db.execute(statement)
    db.execute(
        "INSERT INTO log SELECT log, first, end, time, crc, total, rowid FROM rows ORDER BY log, first"
    )
    db.execute("INSERT INTO ids SELECT coalesce(max(batch), 0) + 1 FROM log")
    for (id,) in db.execute("SELECT batch FROM log ORDER BY batch").fetchall():
        try:
            (data,) = old.execute("SELECT data FROM log WHERE rowid = ?", (id,)).fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
        else:
            db.execute(INSERT_BATCH, (id, data))
    db.execute("DROP TABLE rows")


def _from_version_2(db: sqlite3.Connection, old: sqlite3.Connection) -> None:
    """There the ledger's rows stayed for ever. So do those that are there; a producer that comes back gives
    its own an end."""
    db.execute("ALTER TABLE bounds ADD COLUMN forgotten INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE ledger RENAME TO entries")
    for statement in LEDGER.split(";"):
        db.execute(statement)
    db.execute("INSERT INTO ledger (log, producer, entry) SELECT log, producer, entry FROM entries")
    db.execute("DROP TABLE entries")


#: By the version that a store has: what brings it to the next one, within a transaction. The other connection
#: sees the store as it was.
UPGRADE: Final = {1: _from_version_1, 2: _from_version_2}


@dataclass(frozen=True, slots=True)
class Sweep:
    """Remove some of a log's litter: a write that only the store itself makes."""

    log: int
    before: int


class BatchIds:
    """Gives each batch an id that no other ever had, crash or not: so no row can come to mean another batch
    than the one it was made with, whatever is deleted."""

    def __init__(self, unused: int) -> None:
        self.next = unused
        #: As it is on disk. What is below it and was not given is skipped after the next start.
        self.unused = unused

    def take(self) -> int:
        self.next += 1
        return self.next - 1


class Changes:
    """What one transaction does. Gathers the writes so that each table is touched once, each log's bounds
    once however many batches it gets, and what we know of the logs not before the commit."""

    def __init__(
        self,
        db: sqlite3.Connection,
        bounds: dict[int, LogBounds],
        trimmed: dict[int, int],
        litter: dict[int, int],
        ids: BatchIds,
        sweep_rows: int,
    ) -> None:
        self._db = db
        self._ids = ids
        self._sweep_rows = sweep_rows  #: at most so many rows of a log are removed at once
        #: As they are before the commit; changed by publish().
        self._stored_bounds, self._stored_trimmed, self._stored_litter = bounds, trimmed, litter
        #: As they will be, of the logs that change; None: no more.
        self._bounds: dict[int, LogBounds | None] = {}
        self._trimmed: dict[int, int] = {}
        self._litter: dict[int, int | None] = {}
        self._rows: list[tuple[int, int, int, int, int, int, int]] = []  #: of `log`, not yet inserted
        self._batches: list[tuple[int, Buffer]] = []  #: likewise
        self._ledger: dict[tuple[int, bytes], PutLedger] = {}  #: the last one of each
        self._documents: dict[tuple[str, str], bytes | None] = {}  #: None: delete
        self._small = 0  #: rows of `ledger` written
        self._data_bytes = 0  #: data appended
        self._shared = 0  #: rows of `shared` written
        self._removed = 0  #: rows deleted from the log table
        self._freed = 0  #: batches deleted with them
        self._unused = ids.unused  #: as it will be on disk

    def add(self, write: Write | Sweep) -> None:
        match write:
            case Append():
                self._append(write)
            case Copy():
                self._copy(write)
            case PutLedger(log, producer):
                self._ledger[log, producer] = write
            case PutDocument(kind, key, value):
                self._documents[kind, key] = value
            case DeleteDocument(kind, key):
                self._documents[kind, key] = None
            case Trim():
                self._trim(write)
            case DropLog(log):
                self._drop(log)
            case Sweep(log, before):
                self._sweep(log, before)

    def flush(self) -> None:
        """Bring into the database what has been gathered."""
        self._insert_rows()
        if self._ids.next > self._ids.unused:
            self._unused = self._ids.next + IDS
            self._db.execute("UPDATE ids SET unused = ?", (self._unused,))
        many = self._db.executemany
        self._put_ledger()
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
                self._db.execute(PUT_BOUNDS, (*row, bounds.forgotten))
        for log, before in self._litter.items():
            if before is None:
                self._db.execute("DELETE FROM litter WHERE log = ?", (log,))
            else:
                self._db.execute(PUT_LITTER, (log, before))

    def publish(self) -> bool:
        """After the commit: make it known. True if it left something to tidy up."""
        self._ids.unused = self._unused
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
        """How much of the WAL it takes, roughly: the data in whole pages; a page each of the log, the batches
        and the bounds; up to a page for each small row; a hundred rows of shared batches to a page; the pages
        around a batch that is removed."""
        small = min(self._small + len(self._documents), 64) + -(-self._shared // 100)
        return self._data_bytes * 9 // 8 + (3 + small) * PAGE + self._freed * PAGE // 3

    def _bounds_of(self, log: int) -> LogBounds | None:
        return self._bounds[log] if log in self._bounds else self._stored_bounds.get(log)

    def _trimmed_of(self, log: int) -> int:
        return self._trimmed[log] if log in self._trimmed else self._stored_trimmed.get(log, 0)

    def _append(self, write: Append) -> None:
        data, size, batch = write.data, size_of(write), self._ids.take()
        self._extend(write, size, crc32(data), batch)
        self._batches.append((batch, data))
        self._data_bytes += size

    def _copy(self, write: Copy) -> None:
        self._insert_rows()
        source, bounds = None, self._bounds_of(write.from_log)
        if bounds is not None and write.from_first >= bounds.first:  # below it there may be litter
            source = self._db.execute(SOURCE, (write.from_log, write.from_first)).fetchone()
        end, crc, batch, size = source or (None, 0, 0, 0)
        check_source(write, end)
        if size is None:
            raise StoreCorrupt(f"log {write.from_log}, offset {write.from_first}: the batch is missing")
        self._extend(write, size, crc, batch)
        self._db.execute(SHARE, (batch,))
        self._shared += 1

    def _extend(self, write: Append | Copy, size: int, crc: int, batch: int) -> None:
        log = write.log
        before = self._bounds_of(log)
        bounds = extended(before, write, size)
        if before is None:
            # Numbers aren't reused, but if one is, a drop may not have swept up all of its namesake.
            self._sweep(log, LIMIT, everything=True)
        self._bounds[log] = bounds
        total = self._trimmed_of(log) + bounds.bytes
        self._rows.append((log, write.first, write.end, write.time, crc, total, batch))

    def _insert_rows(self) -> None:
        if self._rows:
            self._db.executemany(INSERT_BATCH, self._batches)
            self._db.executemany(INSERT_ROW, self._rows)
            self._rows, self._batches = [], []

    def _trim(self, write: Trim) -> None:
        log = write.log
        bounds = self._bounds_of(log)
        if is_ledger_only(log, 1, bounds):
            known = max(bounds.forgotten if bounds else 0, self._forget(log, write.before))
            self._bounds[log], self._trimmed[log] = LogBounds(0, 0, 0, 0, known), 0
            return
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
        known = max(bounds.forgotten, self._forget(log, cut))
        self._bounds[log] = LogBounds(cut, bounds.end, size, bounds.time, known)
        self._trimmed[log] = total
        self._sweep(log, cut)

    def _forget(self, log: int, before: int) -> int:
        """Forget the producers whose last entry is below. Returns when the youngest of them was born."""
        self._put_ledger()
        (forgotten,) = self._db.execute(FORGOTTEN, (log, before)).fetchone()
        if forgotten is not None:
            self._db.execute(FORGET, (log, before))
        return forgotten or 0

    def _put_ledger(self) -> None:
        if self._ledger:
            puts, self._ledger = self._ledger.values(), {}
            self._small += len(puts)
            rows = [(p.log, p.producer, p.entry, p.last, p.born) for p in puts if p.entry is not None]
            self._db.executemany(PUT_LEDGER, rows)
            without = [(put.log, put.producer) for put in puts if put.entry is None]
            self._db.executemany("DELETE FROM ledger WHERE log = ? AND producer = ?", without)

    def _drop(self, log: int) -> None:
        self._insert_rows()
        self._ledger = {key: put for key, put in self._ledger.items() if key[0] != log}
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
        shared = self._db.execute(SHARED_BELOW, (log, end)).fetchall()
        self._freed += self._db.execute(DELETE_BATCHES, (log, end)).rowcount
        for batch, rows, others in shared:
            self._unshare(batch, others - rows)
        self._removed += self._db.execute(DELETE_ROWS, (log, end)).rowcount
        if rest is not None:
            self._litter[log] = before
        elif log in self._stored_litter or log in self._litter:
            self._litter[log] = None

    def _unshare(self, batch: int, others: int) -> None:
        """Rows of a shared batch are removed. ``others``: how many are left beside one; -1: none at all."""
        if others > 0:
            self._db.execute("UPDATE shared SET others = ? WHERE batch = ?", (others, batch))
        else:
            self._db.execute("DELETE FROM shared WHERE batch = ?", (batch,))
        if others < 0:
            self._freed += self._db.execute("DELETE FROM batches WHERE id = ?", (batch,)).rowcount
        self._shared += 1


def check_pages(db: sqlite3.Connection) -> list[str]:
    """What SQLite finds wrong with the file."""
    lines = [line for (text,) in db.execute("PRAGMA integrity_check") for line in text.splitlines()]
    return [f"database: {line}" for line in lines if line != "ok"]


#: Each gives a line for every finding.
DISAGREEMENTS: Final = (
    "SELECT printf('log %d, offset %d: the batch is missing', log, first) FROM log "
    "WHERE batch NOT IN (SELECT id FROM batches)",
    "SELECT printf('batch %d: no log holds it', id) FROM batches WHERE id NOT IN (SELECT batch FROM log)",
    "SELECT printf('batch %d: %d others hold it, counted are %d', batch, others, counted) FROM ("
    "SELECT log.batch, count(*) - 1 AS others, coalesce(shared.others, 0) AS counted "
    "FROM log LEFT JOIN shared ON shared.batch = log.batch GROUP BY log.batch) WHERE others != counted",
    "SELECT printf('batch %d: counted, but no other holds it', batch) FROM shared "
    "WHERE others < 1 OR batch NOT IN (SELECT batch FROM log)",
    "SELECT printf('batch %d: its id may be given again', id) FROM batches "
    "WHERE id >= (SELECT unused FROM ids)",
)


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


def check_batches(db: sqlite3.Connection) -> list[str]:
    """What is wrong between the rows of the logs, trimmed ones included, and the batches."""
    db.execute("BEGIN")  # one state of all of them
    try:
        return [finding for query in DISAGREEMENTS for (finding,) in db.execute(query)]
    finally:
        db.execute("ROLLBACK")


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
    # The offsets come from the log alone, so a damaged batch stops only the reading of itself.
    for (found,) in db.execute(
        "SELECT first FROM log WHERE log = ? AND first >= ? ORDER BY first", from_here
    ):
        where = f"log {log}, offset {found}"
        try:
            row = db.execute(
                "SELECT end, time, crc, total, data FROM log LEFT JOIN batches ON id = batch "
                "WHERE log = ? AND first = ?",
                (log, found),
            ).fetchone()
        except sqlite3.DatabaseError as error:
            findings.append(f"{where}: the batch can't be read: {error}")
            unread = True
            continue
        batch_end, batch_time, crc, batch_total, data = row
        if data is None:  # check_batches says so
            unread = True
            continue
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

"""Files as version 0.1 left them, made with plain SQL: the store was one SQLite file, of three schemas."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from zlib import crc32

from landbridge.core.log.store import LogBounds
from tests.store_model import Model
from tests.stores.faults import contents

#: By version: where the batches are, and what the bounds and the ledger know.
LOG = {
    1: """
        CREATE TABLE log (
            log INTEGER NOT NULL, first INTEGER NOT NULL, end INTEGER NOT NULL, time INTEGER NOT NULL,
            crc INTEGER NOT NULL, total INTEGER NOT NULL, data BLOB NOT NULL);
        CREATE UNIQUE INDEX log_first ON log (log, first);
    """,
    2: """
        CREATE TABLE log (
            log INTEGER, first INTEGER, end INTEGER NOT NULL, time INTEGER NOT NULL, crc INTEGER NOT NULL,
            total INTEGER NOT NULL, batch INTEGER NOT NULL, PRIMARY KEY (log, first)) WITHOUT ROWID;
        CREATE TABLE batches (id INTEGER PRIMARY KEY, data BLOB NOT NULL);
        CREATE TABLE shared (batch INTEGER PRIMARY KEY, others INTEGER NOT NULL);
        CREATE TABLE ids (unused INTEGER NOT NULL);
    """,
}
FORGOTTEN = {1: "", 2: "", 3: ", forgotten INTEGER NOT NULL DEFAULT 0"}
LIFE = {1: "", 2: "", 3: "last INTEGER, born INTEGER NOT NULL DEFAULT 0, "}


def schema(version: int) -> str:
    return f"""
        PRAGMA page_size = 8192;
        BEGIN;
        {LOG[min(version, 2)]}
        CREATE TABLE bounds (
            log INTEGER PRIMARY KEY, first INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
            time INTEGER NOT NULL, trimmed INTEGER NOT NULL{FORGOTTEN[version]});
        CREATE TABLE litter (log INTEGER PRIMARY KEY, before INTEGER NOT NULL);
        CREATE TABLE documents (
            kind TEXT, key TEXT, value BLOB NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
        CREATE TABLE ledger (
            log INTEGER, producer BLOB, entry BLOB NOT NULL, {LIFE[version]}
            PRIMARY KEY (log, producer)) WITHOUT ROWID;
        PRAGMA application_id = 1281453668;
        PRAGMA user_version = {version};
        COMMIT;
        PRAGMA journal_mode = WAL;
    """


class OldFile:
    """Log 1: batches 2 to 29 of ``size`` bytes; 0 and 1 are trimmed, 1 is not swept yet. Log 2: dropped, not
    swept. Log 3: empty, all of it was trimmed. Log 4: the last ten batches of log 1; from version 2 on it
    shares them. Some documents, the epoch among them, and ledgers."""

    def __init__(self, path: Path, version: int, size: int = 20_000) -> None:
        self.path, self.version, self.size = path, version, size
        self.model = Model()
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.executescript(schema(version))
            self._fill(db)

    def _fill(self, db: sqlite3.Connection) -> None:
        size = self.size
        db.execute("BEGIN")
        for number in range(1, 30):
            self._put(db, 1, number, (number + 1) * size)
        for number in range(20, 30):
            self._put(db, 4, number, (number - 19) * size, share=True)
        self._put(db, 2, 0, size)
        bounds = {
            1: (20, 300, 28 * size, 29, 2 * size, 17),
            3: (55, 55, 0, 5, 1234, 3),
            4: (200, 300, 10 * size, 29, 0, 0),
        }
        db.execute(f"INSERT INTO litter VALUES (1, 20), (2, {2**63 - 1})")
        for log, (first, end, held, time, trimmed, forgotten) in bounds.items():
            row = (log, first, end, held, time, trimmed, forgotten)[: 7 if self.version >= 3 else 6]
            db.execute(f"INSERT INTO bounds VALUES ({', '.join('?' * len(row))})", row)
        documents = [
            ("topic", "a", b"1"),
            ("topic", "b", bytes(10_000)),
            ("cursor", "g", b""),
            ("unit", "0", b"7"),
        ]
        db.executemany("INSERT INTO documents VALUES (?, ?, ?)", documents)
        self.documents = documents[:-1]
        #: log, producer, entry, last, born
        self.ledger = [(1, b"p", b"2", 290, 18), (1, b"q", b"3", None, 0), (0, b"t", b"4", 12, 40)]
        for entry in self.ledger:
            some = entry if self.version >= 3 else entry[:3]
            db.execute(f"INSERT INTO ledger VALUES ({', '.join('?' * len(some))})", some)
        db.execute("COMMIT")
        self.bounds = {
            log: LogBounds(first, end, held, time, forgotten if self.version >= 3 else 0)
            for log, (first, end, held, time, _, forgotten) in bounds.items()
        }

    def _put(self, db: sqlite3.Connection, log: int, number: int, total: int, *, share: bool = False) -> None:
        data = contents(number, self.size)
        row = (log, number * 10, number * 10 + 10, number, crc32(data), total)
        if self.version == 1:
            db.execute("INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, data))
            return
        if not share:
            db.execute("INSERT INTO batches VALUES (?, ?)", (log * 100 + number, data))
        db.execute(
            "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?)", (*row, (1 if share else log) * 100 + number)
        )

    def damage(self, number: int, *, chain: bool) -> None:
        """Hit the data of a batch, or the numbers of the pages that it lies on."""
        content = self.path.read_bytes()
        at = content.find(contents(number, self.size)[5_000:5_100])
        assert at > 0
        with self.path.open("r+b") as file:
            file.seek(at - at % 8192 if chain else at)
            file.write(bytes(4))

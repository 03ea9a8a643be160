"""Takes over the data of version 0.1, which kept everything in one SQLite file beside the folder.

Batches go over in records of some megabytes, each with a document that says how far it is, so that a takeover
which was interrupted goes on where it was. The old file stays as it is until all of it is here.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from landbridge.core.log.store import Buffer
from landbridge.errors import StoreBusy, StoreCorrupt, StoreFailed, StoreFull, StoreTooNew
from landbridge.stores.journal.disk import is_full
from landbridge.stores.journal.journal import CommitJournal
from landbridge.stores.journal.records import Appended, Bounded, Documented, Entered, Entry

#: The document that says how far the takeover is; empty when it is complete.
KIND: Final = "takeover"
APPLICATION_ID: Final = 0x4C616E64
#: The newest schema that there ever was.
NEWEST: Final = 3
#: Bytes of batches that one record carries.
CARRIED: Final = 4 << 20
#: No data of length 0 has this checksum: the batch can't be read, here as there.
UNREADABLE: Final = 1


class OldLog(NamedTuple):
    log: int
    first: int
    end: int
    bytes: int
    time: int
    trimmed: int
    forgotten: int


def take_over(journal: CommitJournal, old: Path, tell: Callable[[int, int], None] | None) -> None:
    """Bring what the old file has into an open journal, then remove the file."""
    state = dict(journal.documents(KIND)).get(old.name)
    if state is None and (journal.logs() or _documents(journal)):
        raise StoreFailed(
            f"{old} and {journal.folder} both hold a store", hint="move one of them away: they can't be mixed"
        )
    with OldLock(old):
        if state != b"":
            with closing(sqlite3.connect(old, isolation_level=None)) as db:
                try:
                    _check(db, old)
                    _take(journal, db, old, msgspec.msgpack.decode(state) if state else None, tell)
                except sqlite3.Error as error:
                    if is_full(old.parent):  # SQLite needs some room even to read
                        raise StoreFull(f"{old}: {error} while taking it over") from error
                    raise StoreCorrupt(f"{old}: {error} while taking it over") from error
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.unlink(f"{old}{suffix}")
        journal.disk.sync_folder(old.parent)
    with suppress(FileNotFoundError):
        os.unlink(f"{old}.lock")
    # A file of that name that comes later is another one: it must not be taken for this one and removed.
    journal.write([Documented(KIND, old.name, None)], [], 0)


def _documents(journal: CommitJournal) -> bool:
    """Has anybody put a document? Not the store itself, which keeps its epoch in one."""
    with journal.changing:
        kinds = {kind for layer in journal.state.layers() for kind in layer.documents}
    kinds |= {kind for kind, _, _ in journal.index.documents_after("", "", 2)}
    return bool(kinds - {"unit"})


class OldLock:
    """Keeps an old Landbridge from opening the file meanwhile."""

    def __init__(self, old: Path) -> None:
        self._old = old

    def __enter__(self) -> None:
        self._descriptor = os.open(f"{self._old}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise StoreBusy(f"{self._old} is open in another process") from None

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _check(db: sqlite3.Connection, old: Path) -> None:
    if db.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreCorrupt(f"{old} is not a Landbridge store", hint="use another data folder")
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version > NEWEST:
        raise StoreTooNew(f"{old} has schema version {version}; this Landbridge knows {NEWEST}")


def _take(
    journal: CommitJournal,
    db: sqlite3.Connection,
    old: Path,
    done: tuple[int, int] | None,
    tell: Callable[[int, int], None] | None,
) -> None:
    (version,) = db.execute("PRAGMA user_version").fetchone()
    forgotten = "forgotten" if version >= 3 else "0"
    query = f"SELECT log, first, end, bytes, time, trimmed, {forgotten} FROM bounds ORDER BY log"
    logs = [OldLog(*row) for row in db.execute(query)]
    whole, copied = sum(log.bytes for log in logs), 0
    entries: list[Entry] = []
    data: list[Buffer] = []
    size = 0
    progress = Documented(KIND, old.name, None)
    for known in logs:
        at = known.first
        if done is not None and known.log <= done[0]:
            at = done[1] if known.log == done[0] else known.end
        for first, end, time, after, crc, batch in _batches(db, known.log, at, version):
            content = b"" if batch is None else batch
            total = after - len(content)
            crc = UNREADABLE if batch is None else crc
            entries.append(Appended(known.log, first, end, time, total, len(content), crc))
            data.append(content)
            size += len(content)
            progress.value = msgspec.msgpack.encode((known.log, end))
            if size >= CARRIED:
                journal.write([*entries, progress], data, size)
                copied += size
                entries, data, size = [], [], 0
                if tell is not None:
                    tell(min(copied, whole), whole)
    if entries:
        journal.write([*entries, progress], data, size)
    journal.write([*_bounds(journal, logs), *_small(db, version), Documented(KIND, old.name, b"")], [], 0)


def _batches(
    db: sqlite3.Connection, log: int, first: int, version: int
) -> Iterator[tuple[int, int, int, int, int, bytes | None]]:
    """First, end, time, bytes up to its end, checksum and data of a log's batches; None: it can't be read."""
    rows = db.execute(
        "SELECT first, end, time, total, crc FROM log WHERE log = ? AND first >= ? ORDER BY first",
        (log, first),
    ).fetchall()
    if version == 1:
        query = "SELECT data FROM log WHERE log = ? AND first = ?"
    else:
        query = "SELECT data FROM log JOIN batches ON id = batch WHERE log = ? AND first = ?"
    for row in rows:
        try:
            found = db.execute(query, (log, row[0])).fetchone()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
                raise
            found = None
        yield *row, (None if found is None else found[0])


def _bounds(journal: CommitJournal, logs: list[OldLog]) -> Iterator[Entry]:
    for log in logs:
        known = journal.log_state(log.log)
        made = journal.place.number if known is None else known.made
        total = log.trimmed + log.bytes  # a batch that can't be read counts, as it did there
        yield Bounded(log.log, log.first, log.end, log.bytes, log.time, log.forgotten, total, made, -1)


def _small(db: sqlite3.Connection, version: int) -> Iterator[Entry]:
    for kind, key, value in db.execute("SELECT kind, key, value FROM documents"):
        if kind != "unit":  # the epoch, of which the journal has its own
            yield Documented(kind, key, value)
    life = "last, born" if version >= 3 else "NULL, 0"
    for log, producer, entry, last, born in db.execute(f"SELECT log, producer, entry, {life} FROM ledger"):
        yield Entered(log, producer, entry, last, born)

"""The embedded default: everything in one SQLite file, a batch in one row.

Beside ``bus.db`` lie ``bus.db-wal`` and ``bus.db-shm`` (SQLite's own) and ``bus.db.lock`` (ours: held with
flock while the store is open, so the kernel lets go of it however the process ends).

A commit is one transaction: SQLite appends the changed pages to the WAL and syncs it, and then it is
stored. Somebody has to copy those pages into ``bus.db`` before the WAL may be written from its start again.
Writing over blocks that the file already has is faster than making it longer (small commits: 0.26 ms
against 0.44 where the WAL only grew), so the WAL is kept short: a thread copies while commits go on, and
when little is left the next commit copies that rest itself (``_finish``), after which SQLite starts the
WAL anew.

Three connections, each used by one thread at a time:
    _writer   guarded by _writing        commits, sweeps, and the end of a copy
    _reader   guarded by _reading        every read but check(), which makes its own connection
    _copier   guarded by _checkpointing  copies of the WAL beside the commits
Where more than one lock is needed they are taken in the order _writing, _checkpointing, _reading.

A copy beside commits has one rule. SQLite before 3.51.3 (and most systems have such a one) loses committed
pages when a checkpoint starts at a moment where the WAL is copied entirely, and a commit restarts the WAL
before that checkpoint has looked twice (sqlite.org/wal.html, "the WAL-reset bug"). So a copy is only asked
for by a commit that has changed something and began when no copy was under way: its pages are in the WAL
and not copied, hence nobody can restart the WAL until this copy has ended.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Event, Lock, Thread
from time import perf_counter
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from isal.isal_zlib import crc32

from landbridge.core.log.store import Bounds, LogBounds, StoredBatch, Trim, Write
from landbridge.errors import (
    BadRequest,
    BusError,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreFailure,
    StoreFull,
    StoreTooNew,
    TooLarge,
)
from landbridge.stores.tables import (
    APPLICATION_ID,
    BATCH_BELOW,
    PAGE,
    SCHEMA,
    SCHEMA_VERSION,
    UPGRADE,
    BatchIds,
    Changes,
    Sweep,
    check_batches,
    check_logs,
    check_pages,
)
from landbridge.stores.threads import ThreadedStore

MIB: Final = 1 << 20
#: Seconds between two pieces of tidying, so that commits get their turn: Python's locks aren't fair.
SWEEP_PAUSE: Final = 0.005
#: Seconds that one piece of it should take.
SWEEP_TIME: Final = 0.003
#: Pages that one transaction gives back to the file system.
SHRINK_PAGES: Final = 64
#: Bytes of free pages that are never worth giving back.
SHRINK_FLOOR: Final = 16 * MIB
#: A commit copies what is left of the WAL itself where it is at most this many bytes ...
FINISH_BYTES: Final = 1 * MIB
#: ... or when this many copies beside the commits could not catch up with them.
FINISH_PASSES: Final = 8
#: Pages that a copy of the store takes between two reports of its progress.
COPY_PAGES: Final = 1024
#: Seconds to wait for a foreign program (a curious sqlite3 shell) that has the database locked.
FOREIGN_WAIT: Final = 5.0

#: Where the batch that holds an offset begins; answered by the log alone, without a look at a batch.
FIRST_AT: Final = "SELECT first FROM log WHERE log = ? AND first <= ? ORDER BY first DESC LIMIT 1"
#: Where the next batch begins, likewise.
FIRST_FROM: Final = "SELECT first FROM log WHERE log = ? AND first >= ? ORDER BY first LIMIT 1"
#: The sizes come from the heads of the batches' rows, without a look at the data.
SIZES_FROM: Final = (
    "SELECT first, coalesce(length(data), 0) FROM log LEFT JOIN batches ON id = batch "
    "WHERE log = ? AND first >= ? ORDER BY first"
)
#: LEFT: a batch that is missing must not look like a log without it.
BATCHES: Final = (
    "SELECT first, end, time, crc, data FROM log LEFT JOIN batches ON id = batch "
    "WHERE log = ? AND first BETWEEN ? AND ? ORDER BY first"
)
CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"

#: What to do about a file that can't be opened at all.
RESTORE: Final = "restore it from a copy, or move it away to begin with an empty store"
#: What the kernel says when there is no room: on the disk, in the quota, under the limit of a file's size.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Errors that may be want of room under another name: only a plain ENOSPC of a plain write becomes
#: SQLITE_FULL, a quota or the limit of a file's size does not.
PERHAPS_NO_ROOM: Final = frozenset(
    {
        sqlite3.SQLITE_IOERR_WRITE,
        sqlite3.SQLITE_IOERR_TRUNCATE,
        sqlite3.SQLITE_IOERR_SHMOPEN,
        sqlite3.SQLITE_IOERR_SHMSIZE,
        sqlite3.SQLITE_IOERR_SHMMAP,
        sqlite3.SQLITE_CANTOPEN,
    }
)
#: Errors of a commit before its last page is written. After any other I/O error its outcome is unknown: the
#: sync failed, or the -shm file could not grow when the pages were synced already.
BEFORE_SYNC: Final = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_CANTOPEN})

_Row: TypeAlias = tuple[int, int, int, int, bytes | None]  # first, end, time, crc, data


class SqliteFile:
    """The blocking driver (stores/threads.py) of one SQLite file.

    ``commit`` may also raise BadRequest or TooLarge (a fault in the calling program: nothing was written)
    and StoreCorrupt (a trim or a copy met a damaged page: nothing was written, other commits still work).

    :param path: the database file; its folder is made where it is missing, readable by us alone.
    :param checkpoint_bytes: how long the WAL grows before the thread begins to copy it.
    :param wal_bound: how long it grows before a commit waits for the copy. Also what is left of the file
        after it had to be longer, as during check().
    :param max_bytes: a bound for the database file; a commit that needs more raises StoreFull.
    :param sweep_rows: how many batches one transaction may remove, or up to 64 times as many where they
        are small; what a trim or a drop has beyond that is removed by the thread, bit by bit. 128 batches
        of 100 kB take some 3 ms, or 8 ms if they aren't cached.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        checkpoint_bytes: int = 16 * MIB,
        wal_bound: int = 64 * MIB,
        max_bytes: int | None = None,
        sweep_rows: int = 128,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._checkpoint_bytes = checkpoint_bytes
        self._wal_bound = wal_bound
        self._max_bytes = max_bytes
        self._sweep_rows_floor = sweep_rows
        self._sweep_rows = sweep_rows  #: as many as take SWEEP_TIME, by what the last ones took

        self._lock_file = -1  #: descriptor of the lock file, flocked; -1 while closed
        self._writer: sqlite3.Connection | None = None  #: None while closed, like the other two
        self._reader: sqlite3.Connection | None = None
        self._copier: sqlite3.Connection | None = None
        self._writing = Lock()
        self._reading = Lock()
        self._checkpointing = Lock()

        #: The tables of the same names, in memory: changed under _writing and after the commit only, a
        #: value at a time, so that a reader sees bounds that are stored.
        self._bounds: dict[int, LogBounds] = {}
        self._trimmed: dict[int, int] = {}  #: no entry means 0
        self._litter: dict[int, int] = {}
        self._ids = BatchIds(1)
        #: Why every commit is refused; None while all is well.
        self._failed: str | None = None

        # The copying of the WAL. Estimates in bytes: SQLite's true numbers would cost a call per commit.
        self._wal = 0  #: written since the WAL was last copied entirely
        self._uncopied = 0  #: of that, what came after the last copy was asked for
        self._passes = 0  #: copies asked for since the WAL was last copied entirely
        self._copying = False  #: a copy was asked for and has not ended; set under _writing

        self._untidy = False  #: litter or free pages to look at; changed under _writing
        self._shrinking = False  #: giving free pages back, until few are left
        self._wake = Event()
        self._stopping = False
        self._tender: Thread | None = None

    # ---------------------------------------------------------------------------------- open, close

    def open(self) -> None:
        lock_file = self._take_lock()
        try:
            self._open_database()
        except BaseException:
            self._close_connections()
            os.close(lock_file)
            raise
        self._lock_file = lock_file
        self._stopping = False
        self._tender = Thread(target=self._tend, name=f"landbridge-store {self.path.name}", daemon=True)
        self._tender.start()

    def close(self) -> None:
        if self._lock_file < 0:
            return
        self._stopping = True
        self._wake.set()
        if self._tender is not None:
            self._tender.join()
        with self._writing, self._checkpointing, self._reading:
            self._close_connections()
            # Last, so that nobody opens the database while SQLite still writes it. The lock file stays:
            # if we removed it, two processes could each hold a lock on a file of that name.
            os.close(self._lock_file)
            self._lock_file = -1

    def _take_lock(self) -> int:
        lock_path = f"{self.path}.lock"
        try:
            _make_folder(self.path.parent)
            descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._os_failure(error, "making its lock file") from error
        try:
            os.fchmod(descriptor, 0o600)  # the umask may have taken rights away
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(OSError):  # only a courtesy to whoever is refused; a full disk is no reason to fail
                os.truncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 20, 0).decode("ascii", "replace") or "?"
            os.close(descriptor)
            raise StoreBusy(f"{self.path} is open in process {holder}") from error
        except OSError as error:
            os.close(descriptor)
            raise self._os_failure(error, "locking it") from error
        return descriptor

    def _open_database(self) -> None:
        try:
            if not self.path.exists():
                self._create()
            elif self.path.stat().st_size == 0:
                # Never our own doing: a store gets its name when it is complete.
                raise StoreCorrupt(f"{self.path} is empty", hint=RESTORE)
            self._writer = self._connect(cache=16 * MIB)
            self._check_identity(self._writer)
            self._recover(self._writer)
            self._upgrade(self._writer)
            if self._max_bytes is not None:
                self._writer.execute(f"PRAGMA max_page_count = {max(1, self._max_bytes // PAGE)}")
            self._reader = self._connect(cache=8 * MIB)
            self._reader.execute("PRAGMA query_only = ON")
            self._copier = self._connect(cache=MIB)
            self._load(self._reader)
        except OSError as error:
            raise self._os_failure(error, "opening it") from error
        except sqlite3.Error as error:
            failure = self._failure(error, "opening it")
            if isinstance(failure, StoreCorrupt):
                failure.hint = RESTORE
            raise failure from error

    def _create(self) -> None:
        """Make an empty store. It is made under another name and renamed when it is on disk, so a store
        that has its name is complete, and an empty file under that name is damage rather than a start."""
        wal = Path(f"{self.path}-wal")
        if wal.exists() and wal.stat().st_size:
            # SQLite would play the old WAL into the new database.
            raise StoreCorrupt(
                f"{self.path} is missing, but its {wal.name} is there",
                hint="put the database back, or remove the -wal file as well to begin anew",
            )
        new = f"{self.path}.new"
        for left_over in (new, f"{new}-wal", f"{new}-shm", f"{new}-journal"):
            with suppress(FileNotFoundError):
                os.unlink(left_over)
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.fchmod(descriptor, 0o600)  # SQLite gives -wal and -shm the rights that it finds here
        os.close(descriptor)
        with closing(sqlite3.connect(new, isolation_level=None)) as db:
            db.execute(f"PRAGMA page_size = {PAGE}")
            # For two things: pages can be given back bit by bit, and a delete learns the pages of a batch
            # from SQLite's map of them instead of reading them all (320 MB uncached: 0.12 s, not 0.93 s).
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA synchronous = FULL")
            db.executescript(
                f"BEGIN; {SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {SCHEMA_VERSION}; COMMIT; PRAGMA journal_mode = WAL;"
            )
        os.rename(new, self.path)
        _sync_folder(self.path.parent)

    def _connect(self, *, cache: int) -> sqlite3.Connection:
        db = sqlite3.connect(self.path, timeout=FOREIGN_WAIT, isolation_level=None, check_same_thread=False)
        try:
            for setting in (
                "synchronous = FULL",  # sync the WAL at every commit, and both files at every copy
                "fullfsync = ON",  # macOS only: there a plain fsync stops at the drive's cache
                "checkpoint_fullfsync = ON",
                "wal_autocheckpoint = 0",
                f"journal_size_limit = {self._wal_bound}",
                f"cache_size = {-cache // 1024}",
                "temp_store = MEMORY",
                "secure_delete = FAST",  # ON, Debian's default, writes every page of a trimmed batch again
                "cell_size_check = ON",
                "trusted_schema = OFF",
            ):
                db.execute(f"PRAGMA {setting}")
        except BaseException:
            db.close()
            raise
        return db

    def _check_version(self, db: sqlite3.Connection) -> None:
        if _pragma(db, "application_id") != APPLICATION_ID:
            raise StoreCorrupt(
                f"{self.path} is a database, but not a Landbridge store", hint="use another data folder"
            )
        version = _pragma(db, "user_version")
        if version > SCHEMA_VERSION:
            raise StoreTooNew(
                f"{self.path} has schema version {version}; this Landbridge knows {SCHEMA_VERSION}"
            )

    def _check_identity(self, db: sqlite3.Connection) -> None:
        self._check_version(db)
        mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        if mode != "wal":
            raise StoreFailed(
                f"{self.path}: SQLite can't keep a WAL there (journal mode {mode})",
                hint="use a local file system: network file systems lack the shared memory it needs",
            )

    def _upgrade(self, db: sqlite3.Connection) -> None:
        """Bring a store of an earlier schema to this one; where that fails, it stays what it was. Needs room
        for another copy of it, in the file and in the WAL."""
        version = _pragma(db, "user_version")
        if version == SCHEMA_VERSION:
            return
        if version not in UPGRADE:
            raise StoreCorrupt(f"{self.path} has schema version {version}, which never was", hint=RESTORE)
        db.execute("BEGIN IMMEDIATE")
        with closing(self._connect(cache=MIB)) as old:
            for step in range(version, SCHEMA_VERSION):
                UPGRADE[step](db, old)
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
        self._recover(db)

    def _recover(self, db: sqlite3.Connection) -> None:
        """Copy what a crash left in the WAL; SQLite has just read it up to its last whole commit. Before an
        upgrade, lest it takes a file without its tail for a few damaged batches; and after it."""
        try:
            _, frames, copied = db.execute(CHECKPOINT).fetchone()
        except sqlite3.Error as error:
            failure = self._failure(error, "recovering its WAL")
            if not isinstance(failure, StoreFull):
                raise failure from error
            return  # the WAL is still good: we can read, and write when there is room
        self._wal = self._uncopied = self._passes = 0
        # A file that lost its tail. Only when nothing is left to copy: a copy writes the first page, which
        # has the number of pages, before the last ones.
        expected = _pragma(db, "page_count") * PAGE
        size = self.path.stat().st_size
        if frames == copied and size < expected:
            raise StoreCorrupt(f"{self.path} has {size} bytes where it should have {expected}", hint=RESTORE)

    def _load(self, db: sqlite3.Connection) -> None:
        self._failed = None
        self._copying = self._shrinking = False
        self._bounds, self._trimmed = {}, {}
        for log, first, end, size, time, trimmed, forgotten in db.execute(
            "SELECT log, first, end, bytes, time, trimmed, forgotten FROM bounds"
        ):
            self._bounds[log] = LogBounds(first, end, size, time, forgotten)
            self._trimmed[log] = trimmed
        self._litter = dict(db.execute("SELECT log, before FROM litter"))
        self._ids = BatchIds(db.execute("SELECT unused FROM ids").fetchone()[0])
        self._untidy = True
        self._wake.set()

    def _close_connections(self) -> None:
        # The writer last: the last connection copies the WAL and removes it.
        for db in (self._copier, self._reader, self._writer):
            if db is not None:
                with suppress(sqlite3.Error):
                    db.close()
        self._copier = self._reader = self._writer = None
        self._bounds, self._trimmed, self._litter = {}, {}, {}

    # --------------------------------------------------------------------------------------- commit

    def commit(self, writes: Sequence[Write]) -> Bounds:
        with self._writing:
            db = self._require_writer()
            if not writes:
                return {}
            began_idle = not self._copying
            try:
                written = self._transact(db, writes)
            except StoreFull:
                # Perhaps it is only the WAL that can't grow, and the database has pages to reuse.
                if not self._finish(db):
                    raise
                began_idle = not self._copying
                written = self._transact(db, writes)
            self._account(db, written, began_idle)
            trimmed = {write.log for write in writes if isinstance(write, Trim)}
            return {log: self._bounds[log] for log in trimmed if log in self._bounds}

    def _require_writer(self) -> sqlite3.Connection:
        if self._writer is None:
            raise StoreFailed(f"{self.path} is not open", hint="call open() first")
        if self._failed is not None:
            raise StoreFailed(f"{self._failed}; it refuses commits until it is opened anew")
        return self._writer

    def _transact(self, db: sqlite3.Connection, writes: Iterable[Write | Sweep]) -> int:
        """Do them in one transaction. Roughly how many bytes that put into the WAL; 0 if nothing changed."""
        changes_before = db.total_changes
        changes = Changes(db, self._bounds, self._trimmed, self._litter, self._ids, self._sweep_rows)
        try:
            db.execute("BEGIN IMMEDIATE")
            for write in writes:
                changes.add(write)
            changes.flush()
            db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._undo(db, error, changes.wal_bytes()) from error
        except BaseException as error:
            # Not SQLite's: a request that breaks the rules, or an interrupt. If the transaction is no longer
            # open, the interrupt came after COMMIT, and what we know of the logs is no longer true.
            if not db.in_transaction and not isinstance(error, BusError):
                self._failed = f"{self.path}: a commit was interrupted"
            with suppress(sqlite3.Error):
                db.execute("ROLLBACK")
            if isinstance(error, OverflowError | UnicodeError):  # no number or text that SQLite can hold
                raise BadRequest(f"a write can't be stored: {error}") from error
            raise
        if db.total_changes == changes_before:
            return 0
        if changes.publish() and not self._untidy:
            self._untidy = True
            self._wake.set()
        return changes.wal_bytes()

    def _undo(self, db: sqlite3.Connection, error: sqlite3.Error, need: int) -> BusError:
        """Leave the transaction that failed; what to raise."""
        failure = self._failure(error, "storing a commit", need)
        code = _code(error) or 0
        if isinstance(failure, StoreFull) and code != sqlite3.SQLITE_FULL and code not in BEFORE_SYNC:
            failure = StoreFailed(str(failure))
        if db.in_transaction:  # SQLite has left it already after a full disk and most I/O errors
            try:
                db.execute("ROLLBACK")
            except sqlite3.Error as again:
                failure = StoreFailed(f"{self.path}: {again} while undoing a commit after: {error}")
        if isinstance(failure, StoreFailed):
            self._failed = str(failure)
        return failure

    # ----------------------------------------------------------------------- the WAL and its copies

    def _account(self, db: sqlite3.Connection, written: int, began_idle: bool) -> None:
        """After a transaction, under _writing: see to it that the WAL gets copied."""
        self._wal += written
        self._uncopied += written
        if self._copying and self._uncopied >= self._checkpoint_bytes:
            # Too far ahead of the copy: wait for its end, so that no copy ever has much more than this to do.
            with self._checkpointing:
                pass
        if self._wal >= self._wal_bound:
            self._finish(db)
        elif not began_idle or not written:
            pass  # a copy is under way, or might meet a WAL that is copied entirely: see the top
        elif self._passes and (self._uncopied <= FINISH_BYTES or self._passes >= FINISH_PASSES):
            self._finish(db)
        elif self._passes or self._uncopied >= self._checkpoint_bytes:
            # While this copy runs commits go on; the next copy has only those to do, so the rest shrinks.
            self._passes += 1
            self._uncopied = 0
            self._copying = True
            self._wake.set()

    def _finish(self, db: sqlite3.Connection) -> bool:
        """Copy what is left of the WAL, with no commit and no read beside it, so that the next commit may
        start it anew. Under _writing. True if all of it is copied."""
        try:
            with self._checkpointing, self._reading:
                self._copying = False  # a copy that was asked for and has not begun must not begin any more
                _, frames, copied = db.execute(CHECKPOINT).fetchone()
        except sqlite3.Error as error:
            self._copy_failed(error)
            frames, copied = 1, 0
        # Even where it isn't all copied (check() is reading, the disk is full): don't try at every commit.
        self._wal = self._uncopied = self._passes = 0
        return bool(frames == copied and frames > 0)

    def _copy(self) -> None:
        """Copy the WAL beside the commits. In the thread."""
        with self._checkpointing:
            if self._copying and self._copier is not None:
                try:
                    self._copier.execute(CHECKPOINT).fetchone()
                except sqlite3.Error as error:
                    self._copy_failed(error)
                finally:
                    self._copying = False

    def _copy_failed(self, error: sqlite3.Error) -> None:
        # Nothing is lost, the WAL has it all. No room: try again later. But a disk that fails to write or
        # to sync is not to be trusted with the next commit.
        failure = self._failure(error, "copying its WAL")
        if not isinstance(failure, StoreFull | StoreBusy):
            self._failed = str(failure)

    # ----------------------------------------------------------------------------------- tidying up

    def _tend(self) -> None:
        """The thread: copies the WAL when a commit asks for it, otherwise tidies up, a bit at a time."""
        while True:
            self._wake.wait(SWEEP_PAUSE if self._untidy else None)
            self._wake.clear()
            if self._stopping:
                return
            if self._copying:
                self._copy()
            elif self._untidy:
                self._tidy()

    def settle(self) -> None:
        """Do now what the thread would do in time: remove trimmed rows, give free pages back, copy the
        WAL. For whoever wants to copy or measure the file; the terminal never needs it."""
        while self._untidy:
            self._tidy()
        with self._writing:
            self._finish(self._require_writer())

    def _tidy(self) -> None:
        """One short transaction: sweep some rows, or give some pages back."""
        with self._writing:
            db = self._writer
            if db is None or self._failed is not None:
                self._untidy = False
                return
            began_idle = not self._copying
            try:
                if self._litter:
                    written = self._sweep(db)
                    self._untidy = True
                else:
                    written = self._shrink(db)
                    self._untidy = written > 0
            except (StoreFailure, sqlite3.Error) as error:
                # No room, or a damaged page among the litter. The next trim, drop or open makes us try again,
                # beginning with another log's litter; check() names the damage.
                if self._litter:
                    log = next(iter(self._litter))
                    self._litter[log] = self._litter.pop(log)
                self._untidy = False
                if isinstance(error, sqlite3.Error):
                    self._undo(db, error, 0)
                return
            self._account(db, written, began_idle)

    def _sweep(self, db: sqlite3.Connection) -> int:
        """Remove some rows of one log. As many as keep it short, lest trims outrun us: what a row takes
        depends on its size and on what is cached."""
        log, before = next(iter(self._litter.items()))
        began = perf_counter()
        written = self._transact(db, [Sweep(log, before)])
        took = perf_counter() - began
        if took > 2 * SWEEP_TIME:
            self._sweep_rows = max(self._sweep_rows // 2, self._sweep_rows_floor)
        elif took < SWEEP_TIME / 2 and log in self._litter:
            self._sweep_rows = min(self._sweep_rows * 2, self._sweep_rows_floor * 64)
        return written

    def _shrink(self, db: sqlite3.Connection) -> int:
        """Give some free pages back to the file system where most of the file is free. Free pages are used
        again anyway, so this is for the file that a long backlog or a dropped topic has left behind."""
        free, pages = _pragma(db, "freelist_count"), _pragma(db, "page_count")
        # Begin above a half, end at a quarter, so that a retention that comes and goes doesn't set it off.
        share = 4 if self._shrinking else 2
        self._shrinking = free * PAGE > SHRINK_FLOOR and free * share > pages
        if not self._shrinking:
            return 0
        # executescript, because execute() stops at the first of the rows that this pragma makes.
        db.executescript(f"PRAGMA incremental_vacuum({SHRINK_PAGES})")
        return SHRINK_PAGES * PAGE

    # ---------------------------------------------------------------------------------------- reads

    def logs(self) -> dict[int, LogBounds]:
        self._require_open()
        return dict(self._bounds)

    def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        # The rows may be newer than these bounds, never older: a commit is published after it is stored.
        self._require_open()
        bounds = self._bounds.get(log)
        if bounds is None:
            return []
        offset = max(offset, bounds.first)  # below it there may be litter
        if offset >= bounds.end:
            return []
        with self._snapshot(f"reading log {log} at offset {offset}") as db:
            holder = db.execute(FIRST_AT, (log, offset)).fetchone()
            start = offset if holder is None else holder[0]
            try:
                rows = self._rows(db, log, start, max_bytes)
            except sqlite3.DatabaseError as error:
                if (_code(error) or 0) & 0xFF != sqlite3.SQLITE_CORRUPT:
                    raise
                rows = self._one_row(db, log, start)
            return self._verified(log, offset, rows)

    def _rows(self, db: sqlite3.Connection, log: int, start: int, max_bytes: int) -> list[_Row]:
        # Sizes first: a cursor over the data would load one batch more than fits, to throw it away.
        last, room = start, max_bytes
        with closing(db.execute(SIZES_FROM, (log, start))) as sizes:
            for count, (first, size) in enumerate(sizes):
                room -= size
                if room < 0 and count:
                    break
                last = first
        return db.execute(BATCHES, (log, start, last)).fetchall()

    def _one_row(self, db: sqlite3.Connection, log: int, start: int) -> list[_Row]:
        """The first row alone, where a damaged page stops us from reading several."""
        at = start
        try:
            first = db.execute(FIRST_FROM, (log, start)).fetchone()
            if first is None:
                return []
            at = first[0]
            return db.execute(BATCHES, (log, at, at)).fetchall()
        except sqlite3.DatabaseError as error:
            raise StoreCorrupt(f"log {log}, offset {at}: {error} in {self.path}") from error

    def _verified(self, log: int, offset: int, rows: list[_Row]) -> list[StoredBatch]:
        """The batches up to the first damaged one, which is the next read's business, or an error if it is
        the first of all."""
        found: list[StoredBatch] = []
        for first, end, time, crc, data in rows:
            if data is None or crc32(data) != crc:
                if found:
                    break
                wrong = "is missing" if data is None else "fails its checksum"
                raise StoreCorrupt(f"log {log}, offset {first}: the batch up to {end} {wrong} in {self.path}")
            if end <= offset or (found and first != found[-1].end):
                if found:
                    break
                raise StoreCorrupt(f"log {log}, offset {offset}: a batch is missing in {self.path}")
            found.append(StoredBatch(first, end, time, data))
        return found

    def seek_time(self, log: int, time: int) -> int:
        with self._snapshot(f"seeking a time in log {log}") as db:
            row = db.execute("SELECT first, end, time FROM bounds WHERE log = ?", (log,)).fetchone()
            if row is None:
                return 0
            low, high, newest = row
            if newest < time:
                return int(high)
            # Every batch that ends at or below `low` is older than `time`; every batch that begins at or
            # above `high` is not. Halve the offsets between, and step to the edges of the batch found there.
            while low < high:
                found = db.execute(BATCH_BELOW, (log, (low + high) // 2 + 1)).fetchone()
                if found is None or found[1] <= low:
                    raise StoreCorrupt(f"log {log}, offset {low}: no batch there in {self.path}")
                if found[2] >= time:
                    high = found[0]
                else:
                    low = found[1]
            return int(low)

    def ledger(self, log: int, producer: bytes) -> bytes | None:
        with self._snapshot(f"reading the ledger of log {log}") as db:
            row = db.execute(
                "SELECT entry FROM ledger WHERE log = ? AND producer = ?", (log, producer)
            ).fetchone()
            return None if row is None else row[0]

    def documents(self, kind: str, prefix: str = "") -> Iterable[tuple[str, bytes]]:
        found: list[tuple[str, bytes]] = []
        with self._snapshot(f"reading documents of kind {kind}") as db:
            rows = db.execute(
                "SELECT key, value FROM documents WHERE kind = ? AND key >= ? ORDER BY key", (kind, prefix)
            )
            with closing(rows):
                for key, value in rows:
                    if not key.startswith(prefix):
                        break
                    found.append((key, value))
        return found

    def _require_open(self) -> sqlite3.Connection:
        if self._reader is None:
            raise StoreFailed(f"{self.path} is not open", hint="call open() first")
        return self._reader

    @contextmanager
    def _snapshot(self, doing: str) -> Iterator[sqlite3.Connection]:
        """The reader, on one state of the store until the block ends."""
        with self._reading:
            db = self._require_open()
            try:
                db.execute("BEGIN")
                yield db
            except sqlite3.Error as error:
                raise self._failure(error, doing) from error
            except (OverflowError, UnicodeError) as error:
                raise BadRequest(f"{error} while {doing}") from error
            finally:
                if db.in_transaction:
                    with suppress(sqlite3.Error):
                        db.execute("ROLLBACK")

    # ---------------------------------------------------------------------------------------- check

    def check(self) -> list[str]:
        """Reads all there is, on its own connection, beside commits and reads. The WAL can't be started
        anew while a log is being read, so under load it grows for that long."""
        self._require_open()
        try:
            with closing(self._connect(cache=8 * MIB)) as db:
                db.execute("PRAGMA query_only = ON")
                return self._findings(db)
        except sqlite3.Error as error:
            raise self._failure(error, "checking it") from error

    def _findings(self, db: sqlite3.Connection) -> list[str]:
        findings: list[str] = []
        # An earlier schema has other tables, of which only the pages can be checked.
        current = _pragma(db, "user_version") == SCHEMA_VERSION
        for look in (check_pages, check_logs, check_batches) if current else (check_pages,):
            try:
                findings += look(db)
            except sqlite3.DatabaseError as error:
                if not isinstance(self._failure(error, ""), StoreCorrupt):
                    raise
                findings.append(f"database: {error}")
        return findings

    # --------------------------------------------------------------------------------------- copies
    #
    # These are for a store that this object has not opened.

    def copy_to(self, target: Path, tell: Callable[[int, int], None]) -> None:
        """Copy the store as it is at this moment into an empty file, also while another process has it open
        and commits. Calls ``tell`` with (pages copied, pages in all). Until the copy is complete the WAL
        can't be started anew, so under load it grows for that long."""
        try:
            with closing(self._connect(cache=MIB)) as db:
                self._check_identity(db)
                db.execute("PRAGMA query_only = ON")
                # A transaction of our own: otherwise each commit beside us would make the copy begin anew.
                db.execute("BEGIN")
                db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
                with closing(sqlite3.connect(target, isolation_level=None)) as copy:
                    db.backup(copy, pages=COPY_PAGES, progress=lambda _, left, all: tell(all - left, all))
        except sqlite3.Error as error:
            raise self._failure(error, "copying it") from error

    def check_copy(self) -> list[str]:
        """Like check(), for a copy that no process has open. Changes nothing, also not beside the file."""
        with self._untouched() as db:
            return self._findings(db)

    def settings_of_copy(self, kind: str) -> dict[str, bytes]:
        """The documents of a kind, read from a copy that no process has open. Changes nothing."""
        with self._untouched() as db:
            return dict(db.execute("SELECT key, value FROM documents WHERE kind = ?", (kind,)))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep every process from opening the store while the block runs. StoreBusy if one has it open."""
        descriptor = self._take_lock()
        try:
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def _untouched(self) -> Iterator[sqlite3.Connection]:
        try:
            uri = f"file:{quote(str(self.path))}?mode=ro&immutable=1"
            with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
                self._check_version(db)
                yield db
        except sqlite3.Error as error:
            raise self._failure(error, "checking it") from error

    # --------------------------------------------------------------------------------------- errors

    def _failure(self, error: sqlite3.Error, doing: str, need: int = PAGE) -> BusError:
        """Which of our errors an error of SQLite is. ``need``: bytes that were to be written."""
        code = _code(error)
        if code is None:  # not from the database but from its Python module: a value of a wrong type
            return BadRequest(f"{error} while {doing}")
        text = f"{self.path}: {error} ({error.sqlite_errorname}) while {doing}"
        match code & 0xFF:  # the rest are details of it
            case sqlite3.SQLITE_FULL:
                return StoreFull(text)
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return StoreCorrupt(text)
            case sqlite3.SQLITE_CONSTRAINT:
                # Appends follow the bounds, so a row in their way means that rows and bounds disagree.
                in_the_way = code == sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY
                return StoreCorrupt(text) if in_the_way else BadRequest(text)
            case sqlite3.SQLITE_TOOBIG:
                return TooLarge(text)
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreBusy(text, hint="a program other than Landbridge has the database locked")
            case _ if code in PERHAPS_NO_ROOM and self._no_room(need):
                return StoreFull(text)
            case _:
                return StoreFailed(text)

    def _no_room(self, need: int) -> bool:
        """Does a write of this many bytes at the WAL's end fail for want of room? Asked by doing it, in
        another file: that covers the disk, the quota and the limit of a file's size alike."""
        probe = f"{self.path}.probe"
        try:
            offset = os.stat(f"{self.path}-wal").st_size
        except OSError:
            offset = 0
        try:
            descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                left = memoryview(bytes(min(max(need, PAGE), 64 * MIB)))
                while left:
                    count = os.pwrite(descriptor, left, offset)
                    left, offset = left[count:], offset + count
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            return error.errno in NO_ROOM
        finally:
            with suppress(OSError):
                os.unlink(probe)
        return False

    def _os_failure(self, error: OSError, doing: str) -> StoreFailure:
        text = f"{self.path}: {error.strerror or error} while {doing}"
        return StoreFull(text) if error.errno in NO_ROOM else StoreFailed(text)


class SqliteStore(ThreadedStore):
    """The Store in one SQLite file. ``options`` are those of SqliteFile."""

    def __init__(self, path: Path | str, **options: Any) -> None:
        super().__init__(SqliteFile(path, **options))


def _pragma(db: sqlite3.Connection, name: str) -> int:
    return int(db.execute(f"PRAGMA {name}").fetchone()[0])


def _code(error: sqlite3.Error) -> int | None:
    """SQLite's extended result code; None for an error that the Python module itself has raised."""
    return getattr(error, "sqlite_errorcode", None)


def _make_folder(folder: Path) -> None:
    """Make it and its missing parents, for us alone, and durably."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o700)  # not by mkdir's mode, which the umask would change
            _sync_folder(folder.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

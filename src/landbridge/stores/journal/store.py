"""The embedded store: a journal that is tended, behind the store port."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from landbridge.errors import StoreCorrupt
from landbridge.stores.journal.checking import check
from landbridge.stores.journal.disk import copying
from landbridge.stores.journal.journal import CommitJournal
from landbridge.stores.journal.segments import START, Segment, open_to_read, segment_files
from landbridge.stores.journal.takeover import take_over
from landbridge.stores.journal.tending import Tender
from landbridge.stores.threads import ThreadedStore

#: Bytes that a copy takes between two reports of its progress.
PIECE: Final = 4 << 20


class JournalFolder(CommitJournal):
    """The blocking driver (stores/threads.py). ``options`` are those of CommitJournal. A file with the same
    name and the suffix ``.db`` is the store of version 0.1, which is taken over when the folder is opened."""

    def __init__(self, folder: Path | str, **options: Any) -> None:
        super().__init__(folder, **{"tending": Tender, **options})

    @property
    def old_file(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.db")

    def open(self) -> None:
        super().open()
        if self.old_file.exists():
            try:
                take_over(self, self.old_file, self._tell)
            except BaseException:
                self.close()
                raise

    def check(self) -> list[str]:
        self._require_open()
        return check(self)

    def copy_to(self, target: Path, tell: Callable[[int, int], None]) -> None:
        """Copy the journal into an empty folder, also while another process has it open and commits. The copy
        is the store as it was at a moment while it was made. The index is not copied: it is made from the
        journal. Calls ``tell`` with (bytes copied, bytes in all)."""
        with copying(self.folder), ExitStack() as stack:
            segments = self._open_segments(stack)
            whole = sum(segment.size for segment in segments)
            done, is_last = 0, True
            # The newest first: a record is never there without those before it.
            for segment in reversed(segments):
                end = segment.size
                if is_last:
                    # Behind the last record something may be on its way, in parts.
                    end = segment.scan().end_of_records()
                    is_last = end == START
                out = self.disk.make(target / segment.path.name, segment.size)
                try:
                    for at in range(0, end, PIECE):
                        self.disk.write(out, [segment.pread(min(PIECE, end - at), at)], at)
                        tell(done + at, whole)
                finally:
                    os.close(out)
                done += segment.size
                tell(done, whole)

    def _open_segments(self, stack: ExitStack) -> list[Segment]:
        """Those that are there at one moment. One that is removed later can still be read."""
        for _ in range(100):
            with ExitStack() as opening:
                files = segment_files(self.folder)
                try:
                    found = open_to_read(files, opening, self.index.incarnation)
                except FileNotFoundError:  # removed meanwhile, and what lived in it is in another one
                    continue
                if files == segment_files(self.folder):
                    stack.push(opening.pop_all())
                    return found
        raise StoreCorrupt(f"{self.folder}: its segments change faster than they can be copied")


class _Idle:
    """Tends nothing, because nothing is written."""

    trouble = ""

    def __init__(self, journal: object) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def tell(self, recent: object) -> None: ...
    def hurry(self) -> None: ...
    def catch_up(self) -> bool:
        return True


@contextmanager
def reading(folder: Path) -> Iterator[JournalFolder]:
    """A store that is only read. Its segments stay as they are; an index is made and removed."""
    store = JournalFolder(folder, tending=_Idle)
    store.open()
    try:
        yield store
    finally:
        store.close()
        for path in (*folder.glob("index.db*"), folder / "lock"):
            path.unlink(missing_ok=True)


class JournalStore(ThreadedStore):
    """The Store in a folder."""

    def __init__(self, folder: Path | str, **options: Any) -> None:
        super().__init__(JournalFolder(folder, **options))

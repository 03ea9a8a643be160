"""A disk that forgets, when the power goes, what was not synced: whole writes, or some sectors of them; and
the names of files whose folder was not synced."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

from landbridge.core.log.store import Buffer
from landbridge.stores.journal.disk import LocalDisk
from landbridge.stores.journal.journal import CommitJournal
from landbridge.stores.journal.store import JournalFolder
from landbridge.stores.journal.tending import Tender

SECTOR = 512


class PowerCut(BaseException):
    """The power goes. No code survives it, so nothing may catch it as an Exception."""


class ForgetfulDisk(LocalDisk):
    """``cut_in``: calls until the power goes; None: it stays."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.cut_in: int | None = None
        self._writes: dict[int, list[tuple[int, bytes, bytes]]] = {}  #: by inode: position, old, new
        self._undo_names: list[tuple[Path, Path | None]] = []  #: (name that is there now, what it was before)
        self._paths: dict[int, Path] = {}  #: by inode: a name that the test has given it
        self._trash = 0

    def _tick(self) -> None:
        if self.cut_in is not None:
            self.cut_in -= 1
            if self.cut_in < 0:
                raise PowerCut

    def _keep(self, descriptor: int, path: Path) -> int:
        self._paths[os.fstat(descriptor).st_ino] = path
        return descriptor

    def open(self, path: Path) -> int:
        return self._keep(super().open(path), path)

    def make(self, path: Path, size: int) -> int:
        self._tick()
        descriptor = self._keep(super().make(path, size), path)
        self._undo_names.append((path, None))
        return descriptor

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(bytes(buffer) for buffer in buffers)
        old = os.pread(descriptor, len(data), position)
        self._writes.setdefault(os.fstat(descriptor).st_ino, []).append((position, old, data))
        super().write(descriptor, buffers, position)
        self._tick()

    def sync(self, descriptor: int) -> None:
        self._tick()
        super().sync(descriptor)
        self._writes.pop(os.fstat(descriptor).st_ino, None)
        self._tick()

    sync_all = sync

    def rename(self, old: Path, new: Path) -> None:
        self._tick()
        inode = os.stat(old).st_ino
        super().rename(old, new)
        self._paths[inode] = new
        self._undo_names.append((new, old))
        self._tick()

    def remove(self, path: Path) -> None:
        self._tick()
        self._trash += 1
        kept = path.with_name(f"trash-{self._trash}")
        os.rename(path, kept)  # raises if it is not there
        self._undo_names.append((kept, path))

    def sync_folder(self, folder: Path) -> None:
        self._tick()
        for name, _ in self._undo_names:
            if name.name.startswith("trash-"):
                name.unlink(missing_ok=True)
        self._undo_names = []

    def lose_power(self) -> None:
        """Forget. What was written and not synced is there, or not, or in parts."""
        self.cut_in = None
        by_inode = {}
        survived = self._chance.randint(0, len(self._undo_names))
        for name, before in reversed(self._undo_names[survived:]):
            if before is None:
                name.unlink(missing_ok=True)
            elif name.exists():
                os.rename(name, before)
        for gone, _ in self._undo_names[:survived]:
            if gone.name.startswith("trash-"):
                gone.unlink(missing_ok=True)
        self._undo_names = []
        folders = {path.parent for path in self._paths.values()}
        for folder in folders:
            for path in folder.iterdir():
                by_inode[path.stat().st_ino] = path
        for inode, writes in self._writes.items():
            if inode not in by_inode:
                continue
            with open(by_inode[inode], "r+b", buffering=0) as file:
                for position, old, new in reversed(writes):
                    fate = self._chance.random()
                    if fate < 0.25:
                        continue
                    for at in range(0, len(new), SECTOR):
                        if fate < 0.5 or self._chance.random() < 0.5:
                            os.pwrite(file.fileno(), old[at : at + SECTOR], position + at)
        self._writes = {}


class ByHand(Tender):
    """Tends when the test says so, in the test's thread."""

    def start(self) -> None:
        self._stopping = False

    def stop(self) -> None:
        while self._flush():
            pass

    def catch_up(self) -> bool:
        self._flush()
        return True

    def _pause(self, seconds: float) -> None:
        pass

    def tend(self) -> None:
        self._tend()


class FragileJournal(JournalFolder):
    """A journal on a disk that forgets, tended by hand."""

    def __init__(self, folder: Path, files: ForgetfulDisk) -> None:
        CommitJournal.__init__(self, folder, ByHand, disk=files, smallest=8192, largest=32768)
        self.forgetful = files

    def tend(self) -> None:
        assert isinstance(self._tender, ByHand)
        self._tender.tend()

    def die(self) -> None:
        """What kill -9 leaves: SQLite's files as they are, without the tidying up of a close."""
        folder = self.folder
        kept = [path for path in folder.iterdir() if path.name.startswith("index.db")]
        aside = folder.with_name("aside")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for path in kept:
            if not path.name.endswith("-shm"):
                shutil.copy2(path, aside / path.name)
        for lock in (self._writing, self._keeping, self.changing):
            if lock.locked():
                lock.release()
        self.index.close()
        self.segments.close()
        if self._lock_file >= 0:
            os.close(self._lock_file)
            self._lock_file = -1
        for path in folder.iterdir():
            if path.name.startswith("index.db"):
                path.unlink()
        for path in aside.iterdir():
            shutil.copy2(path, folder / path.name)

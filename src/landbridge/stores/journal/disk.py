"""The disk under the journal: the few calls that it makes, in one place, so that a test can put another disk
under it which forgets what was not synced."""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from landbridge.core.log.store import Buffer
from landbridge.errors import StoreFailed, StoreFailure, StoreFull

#: What the kernel says when there is no room: on the disk, in the quota, under the limit of a file's size.
NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: Buffers that one call may write.
MOST_BUFFERS: Final = 1000


class LocalDisk:
    """Files by descriptor, of one folder."""

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def make(self, path: Path, size: int) -> int:
        """A new file of this size, for us alone, with room on the disk for all of it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)  # the umask may have taken rights away
            self.reserve(descriptor, size)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                os.unlink(path)
            raise
        return descriptor

    def reserve(self, descriptor: int, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # macOS has no call that reserves room and reads as zeros
            zeros = bytes(1 << 20)
            for at in range(0, size, len(zeros)):
                os.pwrite(descriptor, zeros[: size - at], at)

    def write(self, descriptor: int, buffers: Sequence[Buffer], position: int) -> None:
        """All of it, or OSError."""
        for at in range(0, len(buffers), MOST_BUFFERS):
            some = buffers[at : at + MOST_BUFFERS]
            size = sum(map(memory_size, some))
            done = os.pwritev(descriptor, some, position)
            while done < size:
                rest = b"".join(some)[done:]
                done += os.pwrite(descriptor, rest, position + done)
            position += size

    def sync(self, descriptor: int) -> None:
        """What was written is on disk when this returns. The size of the file has not changed."""
        if sys.platform == "darwin":
            fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)  # a plain fsync stops at the drive's cache
        else:
            os.fdatasync(descriptor)

    def sync_all(self, descriptor: int) -> None:
        """Likewise, with the size of the file and whatever else belongs to it."""
        if sys.platform == "darwin":
            self.sync(descriptor)
        else:
            os.fsync(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_if_there(self, path: Path) -> bool:
        try:
            self.remove(path)
        except FileNotFoundError:
            return False
        return True

    def usage(self, folder: Path) -> tuple[int, int]:
        """Bytes that we may still use on the disk of a folder, and bytes in all."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def copying(folder: Path) -> Iterator[None]:
    """While the block runs, files that the journal removes are not used again: whoever has one open can go on
    reading it. Works across processes."""
    descriptor = os.open(folder / "copying", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def is_being_copied(folder: Path) -> bool:
    try:
        descriptor = os.open(folder / "copying", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:  # another user has made it, and may be copying
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def memory_size(buffer: Buffer) -> int:
    """Bytes. ``len`` of a memoryview counts items, which need not be bytes."""
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def make_folder(folder: Path, disk: LocalDisk) -> None:
    """Make it and its missing parents, for us alone, and durably."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for folder in reversed(missing):
        with suppress(FileExistsError):
            folder.mkdir()
            folder.chmod(0o700)  # not by mkdir's mode, which the umask would change
            disk.sync_folder(folder.parent)


def no_room(path: Path) -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def os_failure(path: Path, error: OSError, doing: str) -> StoreFailure:
    text = f"{path}: {error.strerror or error} while {doing}"
    return StoreFull(text) if error.errno in NO_ROOM else StoreFailed(text)


def is_full(folder: Path) -> bool:
    """Is there no room for a page? SQLite has other names than FULL for some of the ways to have none."""
    try:
        room = os.statvfs(folder)
    except OSError:
        return False
    return room.f_bavail * room.f_frsize < 1 << 20

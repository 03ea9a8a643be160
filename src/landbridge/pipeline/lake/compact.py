"""Compaction: the many small files of a lake are rewritten to few large ones, sorted by offset.

Each topic and day is one commit that adds the new files and removes the old ones, so that a reader has either
these or those. The old files are deleted after the commit; if that is interrupted, the next compaction does
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from landbridge.core.lake import DataFile, LakeRecord, Overtaken, Part, file_count, to_compact
from landbridge.errors import BadOption, LakeDamaged
from landbridge.pipeline.lake.lake import STAGING, Lake, columns, micros

#: Bytes of a file, by default. Large enough for a scan, small enough for a task.
TARGET = 256_000_000
#: Microseconds without a change after which an attempt of another process is taken for dead. A process that
#: is only slow can no longer commit and starts again. Nothing is lost in either case.
DEAD_AFTER = 3_600_000_000


class Compacted(NamedTuple):
    """What was done to the files of a topic and a day, or would be done."""

    table: str
    topic: str
    date: str
    rows: int
    files: int
    bytes: int
    files_after: int
    #: None where nothing was written.
    bytes_after: int | None


def compact(
    lake: Lake,
    *,
    target: int = TARGET,
    topic: str | None = None,
    before: str | None = None,
    dry_run: bool = False,
) -> list[Compacted]:
    """Rewrite small files, and clear what crashes have left. ``before``: only days before this one."""
    if target < 1:
        raise BadOption(f"files have at least a byte, not {target}")
    if lake.state().number < 0:
        raise BadOption(f"there is no lake at {lake.url}", hint="the job archive makes one")
    if not dry_run:
        clear(lake)
    done = []
    for part, files in to_compact(lake.state().files, target, topic=topic, before=before).items():
        count, size_after = file_count(files, target), None
        if not dry_run:
            added = _rewrite(lake, part, files, target)
            if added is None:
                continue
            count, size_after = len(added), sum(file.bytes for file in added)
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        done.append(Compacted(*part, rows, len(files), size, count, size_after))
    if done and not dry_run:
        forget(lake)
    return done


def clear(lake: Lake) -> int:
    """Remove files that no reader knows: those of dead attempts, and those that were replaced. Returns the
    number of dead attempts."""
    now = micros()

    def is_dead(name: str) -> bool:
        folder = f"{STAGING}/{name}"
        try:
            changes = [lake.disk.changed_at(folder)]
        except FileNotFoundError:  # The attempt has just ended.
            return False
        changes += [found.changed_at for found in lake.disk.below(folder, "")]
        return max(changes) < now - DEAD_AFTER

    ended = lake.recover(is_dead)
    forget(lake)
    return ended


def forget(lake: Lake) -> None:
    """Delete the files that were replaced, and take them off the list of those that may still be there."""
    leaving = tuple(sorted(lake.state().leaving))
    if leaving:
        lake.disk.delete(leaving)
        lake.commit(LakeRecord(attempt="forget", at=micros(), gone=leaving))


def _rewrite(lake: Lake, part: Part, files: Sequence[DataFile], target: int) -> Sequence[DataFile] | None:
    """Returns the new files; None if another process has changed the old ones meanwhile."""
    attempt = lake.attempt("compact")
    rows = lake.frame(files, part.table).select(*columns(part.table))
    count = file_count(files, target)
    together = rows.coalesce(1) if count == 1 else rows.repartitionByRange(count, "offset")
    together.sortWithinPartitions("offset").write.parquet(f"{attempt.url}/{part.folder}")
    places = attempt.staged()
    added = lake.describe(places)
    had, has = sum(file.rows for file in files), sum(file.rows for file in added)
    if had != has:
        attempt.clear()
        raise LakeDamaged(
            f"{part.folder} should have {had} rows in {len(files)} files, and {has} were read",
            hint="nothing was changed; see whether something else writes into this folder",
        )
    attempt.put_in_place(places)
    removed = tuple(file.path for file in files)
    try:
        lake.commit(LakeRecord(attempt=attempt.id, at=micros(), added=added, removed=removed))
    except Overtaken:
        attempt.withdraw(places)
        return None
    # From here on no new reader opens the old files. If this process dies now, they are listed as leaving.
    lake.disk.delete(removed)
    attempt.clear()
    return added

"""Compaction: the many small files of a lake into few large ones, sorted by offset.

Each topic and day is one commit that adds the new files and removes the old ones, so that a reader has
either. The old ones are taken off the disk after it; where that is broken off, the next compaction does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from landbridge.core.lake import DataFile, Overtaken, Part, Record, file_count, to_compact
from landbridge.errors import BadOption, LakeDamaged
from landbridge.pipeline.lake.lake import STAGING, Lake, columns, micros

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Bytes of a file, by default. Large enough for a scan, small enough for a task.
TARGET = 256_000_000
#: Microseconds without a change after which an attempt of somebody else is taken for dead. Whoever is only
#: slow can't commit any more and starts again; nothing is lost either way.
DEAD_AFTER = 3_600_000_000


class Compacted(NamedTuple):
    table: str
    topic: str
    date: str
    rows: int
    files: int
    bytes: int
    #: What they became, or would become.
    files_after: int
    #: 0 where nothing was written.
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
    """Write small files anew, and clear what crashes have left. ``before``: only days before this one."""
    if target < 1:
        raise BadOption(f"files have at least a byte, not {target}")
    if lake.state().number < 0:
        raise BadOption(f"there is no lake at {lake.url}", hint="the job archive makes one")
    if dry_run:
        parts = to_compact(lake.state().files, target, topic=topic, before=before)
        return [_told(part, files, file_count(files, target), None) for part, files in parts.items()]
    clear(lake)
    done = []
    for part, files in to_compact(lake.state().files, target, topic=topic, before=before).items():
        added = _rewrite(lake, part, files, target)
        if added is not None:
            done.append(_told(part, files, len(added), sum(file.bytes for file in added)))
    if done:
        forget(lake)
    return done


def _told(part: Part, files: Sequence[DataFile], files_after: int, bytes_after: int | None) -> Compacted:
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return Compacted(*part, rows, len(files), size, files_after, bytes_after)


def clear(lake: Lake) -> int:
    """Remove what no reader knows: leavings of dead attempts, and files that were replaced. How many
    attempts."""
    now = micros()

    def dead(name: str) -> bool:
        folder = f"{STAGING}/{name}"
        try:
            changes = [lake.disk.changed_at(folder)]
        except FileNotFoundError:  # it has just come to its end
            return False
        changes += [entry.changed_at for entry in lake.disk.below(folder, "")]
        return max(changes) < now - DEAD_AFTER

    ended = lake.recover(dead)
    forget(lake)
    return ended


def forget(lake: Lake) -> None:
    """Take the files that were replaced off the disk, and off the list of those that may be there."""
    leaving = tuple(sorted(lake.state().leaving))
    if leaving:
        lake.disk.delete(leaving)
        lake.commit(Record(attempt="forget", at=micros(), gone=leaving))


def _rewrite(lake: Lake, part: Part, files: Sequence[DataFile], target: int) -> Sequence[DataFile] | None:
    """The new files; None if somebody else has changed the old ones meanwhile."""
    attempt = lake.attempt("compact")
    rows = lake.frame(files, part.table).select(*columns(part.table))
    _sorted(rows, file_count(files, target)).write.parquet(f"{attempt.url}/{part.folder}")
    places = attempt.staged()
    added = lake.describe(places)
    had, has = sum(file.rows for file in files), sum(file.rows for file in added)
    if had != has:
        attempt.clear()
        raise LakeDamaged(
            f"{part.folder} should have {had} rows in {len(files)} files, and {has} were read",
            hint="nothing was changed; see whether somebody else writes into this folder",
        )
    attempt.put_in_place(places)
    removed = tuple(file.path for file in files)
    try:
        lake.commit(Record(attempt=attempt.id, at=micros(), added=added, removed=removed))
    except Overtaken:
        attempt.withdraw(places)
        return None
    # From here on nobody reads the old ones anew. If we die now, they are on the list of what is leaving.
    lake.disk.delete(removed)
    attempt.clear()
    return added


def _sorted(rows: DataFrame, files: int) -> DataFrame:
    together = rows.coalesce(1) if files == 1 else rows.repartitionByRange(files, "offset")
    return together.sortWithinPartitions("offset")

"""The table of the job ``activity``: a folder of Parquet that has each micro-batch once and stays small.

    TABLE/_query                                      the query that writes it
    TABLE/batches-000000000000-000000000063/*.parquet the figures of micro-batches 0 to 63

A micro-batch writes a folder of its own, and replaces the one that an earlier run of it may have left. So it
counts once, however often it is run. Every 64th micro-batch also merges the folders of the last 64, and every
4096th those of the last 4096. A folder counts when Spark has marked it as complete with ``_SUCCESS``, unless
its micro-batches are within another folder. Then it is removed one micro-batch later, when no reader should
need it any more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from landbridge.errors import BadOption
from landbridge.pipeline.jobs.activity.minutes import merged
from landbridge.pipeline.lake.files import files_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How many folders are merged into one, and the micro-batches of such a folder at each level.
FAN = 64
SPANS = (FAN, FAN**2, FAN**3)
_FOLDER = re.compile(r"batches-(\d{12})-(\d{12})")
_QUERY = "_query"


class BatchFolder(NamedTuple):
    """The folder of the micro-batches from ``first`` to ``last``."""

    first: int
    last: int

    @property
    def folder(self) -> str:
        return f"batches-{self.first:012d}-{self.last:012d}"

    def within(self, other: BatchFolder) -> bool:
        return self != other and other.first <= self.first and self.last <= other.last


class ActivityTable:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path.rstrip("/")
        self._disk = files_at(spark, self._path)

    def read(self) -> DataFrame:
        """A row per minute, topic, group and producer or consumer."""
        parts, _ = self.parts()
        if not parts:
            raise BadOption(
                f"there is no table of activity in {self._path}",
                hint=f"'landbridge pipeline run activity --to {self._path}' makes one",
            )
        return merged(self._load(parts))

    def write(self, minutes: DataFrame, query: str, batch: int) -> None:
        """Write the figures of a micro-batch, in the place of those of an earlier run of it."""
        self._claim(query)
        _, replaced = self.parts()
        self._disk.delete(part.folder for part in replaced)
        self._save(minutes, BatchFolder(batch, batch))
        for span in SPANS:
            if (batch + 1) % span == 0:
                self._merge(BatchFolder(batch + 1 - span, batch))

    def parts(self) -> tuple[list[BatchFolder], list[BatchFolder]]:
        """Returns the complete folders: those that count, and those that are within others."""
        names = filter(None, map(_FOLDER.fullmatch, self._disk.names("")))
        found = [BatchFolder(int(n[1]), int(n[2])) for n in names if self._disk.exists(f"{n[0]}/_SUCCESS")]
        found.sort()
        counting = [part for part in found if not any(part.within(other) for other in found)]
        return counting, [part for part in found if part not in counting]

    def _merge(self, whole: BatchFolder) -> None:
        parts, _ = self.parts()
        # If this micro-batch was run before, the merged folder exists and includes the others.
        inside = [part for part in parts if part.within(whole)]
        if len(inside) > 1:
            self._save(merged(self._load(inside)), whole)

    def _load(self, parts: list[BatchFolder]) -> DataFrame:
        return self._spark.read.parquet(*(f"{self._path}/{part.folder}" for part in parts))

    def _save(self, minutes: DataFrame, part: BatchFolder) -> None:
        # One file, so that it appears by one rename.
        minutes.coalesce(1).write.mode("overwrite").parquet(f"{self._path}/{part.folder}")

    def _claim(self, query: str) -> None:
        """Refuse a second query. It would write its own batch 0 over that of the first."""
        if not self._disk.create(_QUERY, query.encode()):
            owner = self._disk.read(_QUERY).decode()
            if owner != query:
                raise BadOption(
                    f"the table {self._path} is written by another query, {owner[:60]}",
                    hint="go on with that one's checkpoint, or write to another folder",
                )

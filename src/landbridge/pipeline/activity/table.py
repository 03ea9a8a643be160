"""The table of the job ``activity``: a folder of Parquet that has each micro-batch once and stays small.

    TABLE/_query                                      the query that writes it
    TABLE/batches-000000000000-000000000063/*.parquet what micro-batches 0 to 63 have found

A micro-batch writes a folder of its own, in place of the one that a run before it may have left: so it counts
once however often it is run. Every 64th also puts the folders of the 64 before together, every 4096th those
of 4096. A folder counts when Spark has marked its end with ``_SUCCESS``, and not if its micro-batches are
within another's; such ones are removed a micro-batch later, when nobody who began to read should need them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from landbridge.errors import BadOption
from landbridge.pipeline.activity.minutes import merged
from landbridge.pipeline.files import files_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: How many folders become one, and of how many micro-batches the folders are that are put together.
FAN = 64
SPANS = (FAN, FAN**2, FAN**3)
_FOLDER = re.compile(r"batches-(\d{12})-(\d{12})")
_QUERY = "_query"


class Part(NamedTuple):
    """The folder of micro-batches first … last."""

    first: int
    last: int

    @property
    def folder(self) -> str:
        return f"batches-{self.first:012d}-{self.last:012d}"

    def within(self, other: Part) -> bool:
        return self != other and other.first <= self.first and self.last <= other.last


class ActivityTable:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark, self._path = spark, path.rstrip("/")
        self._disk = files_at(spark, self._path)

    def read(self) -> DataFrame:
        """A row per minute, topic, group and producer or consumer, of what is there now."""
        parts, _ = self.parts()
        if not parts:
            raise BadOption(
                f"there is no table of activity in {self._path}",
                hint=f"'landbridge pipeline run activity --to {self._path}' makes one",
            )
        return merged(self._load(parts))

    def write(self, minutes: DataFrame, query: str, batch: int) -> None:
        """What a micro-batch has found, instead of what an earlier run of it may have left."""
        self._claim(query)
        _, replaced = self.parts()
        self._disk.delete(part.folder for part in replaced)
        self._save(minutes, Part(batch, batch))
        for span in SPANS:
            if (batch + 1) % span == 0:
                self._put_together(Part(batch + 1 - span, batch))

    def parts(self) -> tuple[list[Part], list[Part]]:
        """The complete folders, those that count and those that are within others."""
        names = filter(None, map(_FOLDER.fullmatch, self._disk.names("")))
        found = [Part(int(n[1]), int(n[2])) for n in names if self._disk.exists(f"{n[0]}/_SUCCESS")]
        found.sort()
        counting = [part for part in found if not any(part.within(other) for other in found)]
        return counting, [part for part in found if part not in counting]

    def _put_together(self, whole: Part) -> None:
        parts, _ = self.parts()
        # It may be there: this micro-batch was run before, and its own folder is within that one.
        inside = [part for part in parts if part.within(whole)]
        if len(inside) > 1:
            self._save(merged(self._load(inside)), whole)

    def _load(self, parts: list[Part]) -> DataFrame:
        return self._spark.read.parquet(*(f"{self._path}/{part.folder}" for part in parts))

    def _save(self, minutes: DataFrame, part: Part) -> None:
        # One file, so that it appears in one rename.
        minutes.coalesce(1).write.mode("overwrite").parquet(f"{self._path}/{part.folder}")

    def _claim(self, query: str) -> None:
        """A query of another checkpoint would write its own batch 0 over that of this one."""
        if not self._disk.create(_QUERY, query.encode()):
            owner = self._disk.read(_QUERY).decode()
            if owner != query:
                raise BadOption(
                    f"the table {self._path} is written by another query, {owner[:60]}",
                    hint="go on with that one's checkpoint, or write to another folder",
                )

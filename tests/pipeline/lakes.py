"""Lakes of tests: what is in them by their commit records, and for anybody who finds the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.dataset

from landbridge.pipeline.jobs.archive import Batches
from landbridge.pipeline.lake.lake import COMMITS, STAGING, Lake
from landbridge.pipeline.lake.rows import Payload


def committed(lake: Lake) -> list[int]:
    return sorted(row.offset for row in lake.read().select("offset").collect())


def found(path: str | Path, table: str = "messages") -> list[int]:
    folder = Path(path) / table
    if not list(folder.rglob("*.parquet")):
        return []
    data = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive")
    return sorted(data.to_table(columns=["offset"])["offset"].to_pylist())


def stages(path: str | Path) -> list[str]:
    folder = Path(path) / STAGING
    return [each.name for each in folder.iterdir()] if folder.exists() else []


def take(lake: Lake, frame: Any, batch: int = 0, *, query: str = "q", payload: Payload = "auto") -> None:
    """A micro-batch of a query, without all that Spark does around it."""
    context = frame.sparkSession.sparkContext
    context.setLocalProperty("sql.streaming.queryId", query)
    try:
        Batches(lake, payload).take(frame, batch)
    finally:
        context.setLocalProperty("sql.streaming.queryId", None)


NUMBERED = "cast(concat('{\"n\":', id, '}') as binary)"


def messages(spark: Any, offsets: range, topic: str = "orders", value: str = NUMBERED) -> Any:
    """Made up, with the columns that a topic has. ``value`` is an expression of the offset, ``id``."""
    return spark.range(offsets.start, offsets.stop, numPartitions=1).selectExpr(
        f"'{topic}' topic",
        "cast(null as binary) key",
        f"{value} value",
        "id as offset",
        "timestamp'2026-01-31 12:00:00 UTC' timestamp",
        "cast(null as array<struct<key:string,value:binary>>) headers",
        "concat('m', id) id",
        "0 priority",
        "cast(null as string) origin",
    )


class Died(Exception):
    pass


class Dying(Lake):
    """Its writer dies at one step of a commit."""

    def __init__(self, spark: Any, path: str, step: str) -> None:
        super().__init__(spark, path)
        disk: Any = self.disk
        create, move, delete = disk.create, disk.move, disk.delete

        def dying(what: str, act: Any, *args: Any) -> Any:
            if step == f"before {what}":
                raise Died
            if step == f"amid {what}":
                args = (list(args[0])[:1],)
            result = act(*args)
            if step in (f"amid {what}", f"after {what}"):
                raise Died
            return result

        disk.create = lambda path, data: dying("record" if COMMITS in path else "intent", create, path, data)
        disk.move = lambda pairs: dying("files", move, pairs)
        disk.delete = lambda paths: dying("removal", delete, paths)

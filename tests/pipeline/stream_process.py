"""A program of its own, to be killed: a stream from a topic to another topic or to a lake, until all that is
there is done."""

from __future__ import annotations

import sys
from typing import Any

#: A task whose worker was killed is run again by Spark itself.
MASTER = "local[2,4]"


def to_topic(spark: Any, access: dict[str, str], source: str, sink: str, checkpoint: str, rows: int) -> None:
    options = {
        "subscribe": source,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(rows),
        **access,
    }
    frame = spark.readStream.format("landbridge").options(**options).load().select("value")
    to = {"topic": sink, "checkpointLocation": checkpoint, **access}
    query = frame.writeStream.format("landbridge").options(**to).trigger(availableNow=True).start()
    query.awaitTermination()


def to_lake(spark: Any, access: dict[str, str], source: str, lake: str, checkpoint: str, rows: int) -> None:
    """With a compaction after another beside it."""
    from landbridge.pipeline.jobs.archive import Archive
    from landbridge.pipeline.jobs.running import Place, Trigger
    from landbridge.pipeline.lake.compact import compact
    from landbridge.pipeline.lake.lake import Lake

    job = Archive(lake, (source,), rows=rows, payload="json")
    query = job.start(Place(spark, checkpoint, Trigger(once=True), access))
    compacted = Lake(spark, lake)
    while not query.awaitTermination(1):
        if len(compacted.snapshot().files) > 4:
            compact(compacted)


def main(kind: str, url: str, token: str, source: str, sink: str, checkpoint: str, rows: str) -> None:
    from landbridge.pipeline import session

    spark = session(MASTER, **{"spark.driver.memory": "512m", "spark.log.level": "ERROR"})
    write = {"topic": to_topic, "lake": to_lake}[kind]
    write(spark, {"url": url, "token": token}, source, sink, checkpoint, int(rows))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

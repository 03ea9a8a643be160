"""The sequencer on Spark: rows per second with few and with many sources, beside what Spark itself takes to
count the rows of each source. Part of `python -m bench.pipeline`."""

from __future__ import annotations

import random
import tempfile
from typing import Any

import landbridge.sync
from bench.scenarios import Row
from landbridge.pipeline.jobs.sequence.sequence import SHARDS, Numbering, stateful, tasks, transform

#: Rows of a run, in so many micro-batches of which the first one warms up the JVM and the workers.
ROWS, BATCHES = 1_500_000, 3
#: Rows among which the order is random.
WINDOW = 10_000
#: Sources → rows per second that are aimed at, on two cores.
SOURCES = {100: None, 20_000: 80_000}


def publish(bus: landbridge.sync.Bus, topic: str, count: int, sources: int) -> None:
    dice = random.Random(sources)
    with bus.publisher(topic) as out:
        for first in range(0, count, WINDOW):
            window = list(range(first, min(first + WINDOW, count)))
            dice.shuffle(window)
            for n in window:
                out.send(
                    b'{"n":%d,"reading":"%s"}' % (n // sources + 1, b"x" * 70), key=b"s%d" % (n % sources)
                )


def rows_per_second(spark: Any, frame: Any, mode: str) -> float:
    with tempfile.TemporaryDirectory() as checkpoint, stateful(spark, partitions=tasks(spark, SHARDS)):
        writer = frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        steps = [step for step in query.recentProgress if step["numInputRows"]][1:]
    return float(sum(s["numInputRows"] for s in steps) / sum(s["batchDuration"] for s in steps) * 1000)


def sequencing(spark: Any, bus: landbridge.sync.Bus, access: dict[str, str], scale: float) -> list[Row]:
    rows = []
    count = int(ROWS * scale)
    for sources, target in SOURCES.items():
        topic = f"numbered.{sources}"
        publish(bus, topic, count, sources)
        options = {"subscribe": topic, "startingOffsets": "earliest", **access}
        options["maxOffsetsPerTrigger"] = str(count // BATCHES)
        stream = spark.readStream.format("landbridge").options(**options).load()
        frame = stream.select("key", "value", "topic", "offset")
        counted = rows_per_second(spark, frame.groupBy("key").count(), "update")
        ordered = rows_per_second(spark, transform(frame, Numbering("key", "json:$.n")), "append")
        name = f"pipeline: sequence, {sources:,} sources"
        rows.append(Row(name, ordered, "rows/s", target=target))
        rows.append(Row(f"{name}, share of groupBy(key).count()", ordered / counted, "×"))
    return rows

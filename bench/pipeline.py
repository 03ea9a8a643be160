"""The bus and Spark on one machine: rows per second out of a topic and into one, and how long a micro-batch
takes from a publish here to a row in another topic. `python -m bench.pipeline [--quick] [--growth]`."""

from __future__ import annotations

import argparse
import random
import statistics
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import landbridge.sync
from bench import report, roles
from bench.scenarios import Row
from bench.sequencing import sequencing
from landbridge.pipeline import Place, Trigger, run, session
from landbridge.pipeline.jobs.archive import Archive

ROWS = 5_000_000
#: Times as many rows, for how the figures grow.
GROWTH = 10
SIZE = 100
#: Micro-batches that are timed, after some that aren't.
EVENTS, WARM_UP_EVENTS = 100, 50


#: Runs before those that count: Java compiles what is busy, and the rate grows until about the fourth.
WARM_UP = 4


def typical(times: int, *works: Callable[[], object], warm_up: int = WARM_UP) -> list[float]:
    """Median seconds of each, of runs in turns, so that what else the machine does meets them alike."""
    for work in works * warm_up:
        work()
    spans: list[list[float]] = [[] for _ in works]
    for _ in range(times):
        for work, taken in zip(works, spans, strict=True):
            begin = time.perf_counter()
            work()
            taken.append(time.perf_counter() - begin)
    return [statistics.median(taken) for taken in spans]


def nowhere(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


class Pipeline:
    def __init__(self, spark: Any, running: roles.RunningTerminal, bus: landbridge.sync.Bus) -> None:
        self.spark, self.bus = spark, bus
        self.access = {"url": running.url, "token": running.token}
        self._written = 0

    def publish(self, topic: str, count: int) -> None:
        with self.bus.publisher(topic) as out:
            # Not one payload again and again, of which Parquet would keep one.
            dice = random.Random(SIZE)
            some = [dice.randbytes(SIZE) for _ in range(1_000_000)]
            for first in range(0, count, len(some)):
                out.send_many(some[: count - first])

    def read(self, topic: str, **options: Any) -> Any:
        return self.spark.read.format("landbridge").options(subscribe=topic, **self.access, **options).load()

    def out_of_a_topic(self, topic: str) -> None:
        nowhere(self.read(topic))

    def archive(self, topic: str) -> None:
        """Into a new lake, as the job does it."""
        with tempfile.TemporaryDirectory() as lake:
            job = Archive(lake, topics=(topic,), group="")
            done = run(job, Place(self.spark, job.checkpoint, Trigger(once=True), self.access))
            assert done.rows == self.bus.call("topic.show", name=topic)["end"]

    def frame(self, count: int) -> Any:
        text = f"concat(cast(id + 100000000 as string), repeat('x', {SIZE - 9}))"
        return self.spark.range(0, count, 1, 2).selectExpr(f"cast({text} as binary) as value")

    def into_a_topic(self, count: int) -> None:
        self._written += 1
        topic = f"written.{self._written}"
        options = {"topic": topic, **self.access}
        self.frame(count).write.format("landbridge").options(**options).mode("append").save()

    def latency(self, events: int) -> list[float]:
        """Seconds from each publish to the moment when its row stands in the other topic: one at a time."""
        self.bus.call("topic.create", name="events")
        self.bus.call("topic.create", name="echoes")
        with tempfile.TemporaryDirectory() as checkpoint:
            stream = self.spark.readStream.format("landbridge").options(
                subscribe="events", startingOffsets="earliest", **self.access
            )
            sink = stream.load().select("value").writeStream.format("landbridge")
            options = {"topic": "echoes", "checkpointLocation": checkpoint, **self.access}
            query = sink.options(**options).start()
            spans = []
            try:
                for n in range(events + WARM_UP_EVENTS):
                    begin = time.perf_counter()
                    self.bus.publish("events", struct.pack("<q", n))
                    self.bus.call("topic.wait", offsets={"echoes": n}, within=60.0)
                    spans.append(time.perf_counter() - begin)
            finally:
                query.stop()
            return spans[WARM_UP_EVENTS:]


def pipeline(scale: float, times: int, *, growth: bool = False) -> list[Row]:
    rows = []
    count = int(ROWS * scale)
    with roles.scratch() as folder, roles.terminal(Path(folder) / "bus") as running:
        begin = time.perf_counter()
        spark = session("local[2]", **{"spark.driver.memory": "2g", "spark.log.level": "ERROR"})
        rows.append(Row("pipeline: session start", time.perf_counter() - begin, "s", None, "less"))
        try:
            with landbridge.sync.connect(running.url, token=running.token) as bus:
                made = Pipeline(spark, running, bus)
                made.publish("rows", count)
                parquet = str(Path(folder) / "rows.parquet")

                def to_parquet() -> None:
                    made.read("rows").write.mode("overwrite").parquet(parquet)

                to_parquet()
                read, plain = (
                    count / seconds
                    for seconds in typical(
                        times,
                        lambda: made.out_of_a_topic("rows"),
                        lambda: nowhere(spark.read.parquet(parquet)),
                    )
                )
                share = read / plain
                written, archived = typical(times, to_parquet, lambda: made.archive("rows"), warm_up=1)
                framed, sunk = typical(
                    times, lambda: nowhere(made.frame(count)), lambda: made.into_a_topic(count)
                )
                rows += [
                    Row("pipeline: topic → noop", read, "rows/s", target=1_500_000),
                    Row("pipeline: Parquet → noop", plain, "rows/s", bare=True),
                    Row("pipeline: topic, share of Spark's Parquet source", share, "×", target=0.5),
                    Row("pipeline: topic → Parquet", count / written, "rows/s", target=600_000),
                    Row("pipeline: topic → lake, by the job", count / archived, "rows/s"),
                    Row("pipeline: data frame → noop", count / framed, "rows/s", bare=True),
                    Row("pipeline: data frame → topic", count / sunk, "rows/s", target=800_000),
                ]
                spans = made.latency(max(10, int(EVENTS * scale)))
                p50, p90 = statistics.median(spans), statistics.quantiles(spans, n=10)[-1]
                rows.append(Row("pipeline: topic → topic, p50", 1000 * p50, "ms", 100, "less"))
                rows.append(Row("pipeline: topic → topic, p90", 1000 * p90, "ms", None, "less"))
                rows += sequencing(spark, bus, made.access, scale)
                if growth:
                    made.publish("rows", count * (GROWTH - 1))
                    (seconds,) = typical(1, lambda: made.out_of_a_topic("rows"), warm_up=0)
                    grown = count * GROWTH / seconds
                    rows.append(
                        Row(f"pipeline: topic → noop, {GROWTH} times the rows", grown / read, "×", target=0.8)
                    )
        finally:
            spark.stop()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline")
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows, once")
    parser.add_argument("--growth", action="store_true", help=f"also with {GROWTH} times the rows")
    options = parser.parse_args()
    report.table(pipeline(*((0.1, 1) if options.quick else (1.0, 3)), growth=options.growth))


if __name__ == "__main__":
    main()

"""Running a job: a streaming query with its checkpoint, the reports of its micro-batches, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from landbridge.core.log.planning import LogPosition, Positions
from landbridge.errors import BusError
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.connector.failure import failure
from landbridge.pipeline.connector.progress import lag, reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Seconds between two looks at a query.
LOOK_EVERY = 0.1
#: Seconds for the terminal's answer at the end of a job.
SETTLE_WITHIN = 5.0
#: Seconds for the micro-batch that is under way when the job is to stop. Nothing is lost if it takes longer.
STOP_WITHIN = 20.0


class Trigger(NamedTuple):
    """When micro-batches begin."""

    #: Take what is available now, then end.
    once: bool = False
    #: Seconds from the beginning of one to that of the next; 0: as soon as there is something to read.
    every: float = 0.0


@dataclass(frozen=True)
class Place:
    """Where a job runs."""

    spark: SparkSession
    #: Folder or URL of the query's checkpoint.
    checkpoint: str
    trigger: Trigger = field(default_factory=Trigger)
    #: The options context, or url and token; none: the current context.
    where: Mapping[str, str] = field(default_factory=dict)

    def stream(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("landbridge").options(**self.where, **options).load()

    def table(self, **options: str) -> DataFrame:
        return self.spark.read.format("landbridge").options(**self.where, **options).load()

    def writer(self, frame: DataFrame, name: str) -> DataStreamWriter:
        """The writer of a stream, with the checkpoint and the trigger; the caller chooses the sink."""
        # In a thread without an active session Spark finds no sink that is written in Python. This makes one.
        self.spark.createDataFrame([], "nothing int")
        writer = frame.writeStream.queryName(name).option("checkpointLocation", self.checkpoint)
        if self.trigger.once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{round(self.trigger.every * 1000)} milliseconds")

    def to_topics(self, frame: DataFrame, name: str, mode: str = "append") -> StreamingQuery:
        """Write each row to the topic that its column ``topic`` names."""
        writer = self.writer(frame, name).outputMode(mode).format("landbridge")
        return writer.options(**self.where).start()


class Job(Protocol):
    """A transform with what it reads and where its rows go."""

    @property
    def name(self) -> str: ...

    def start(self, place: Place) -> StreamingQuery: ...


class MicroBatch(NamedTuple):
    """What a micro-batch has done."""

    batch: int
    rows: int
    #: Of this micro-batch.
    seconds: float
    #: By topic: messages that were there and not read yet.
    lag: dict[str, int]

    @property
    def rows_per_second(self) -> float:
        return self.rows / self.seconds if self.seconds else 0.0


class Outcome(NamedTuple):
    rows: int
    batches: int
    seconds: float
    lag: dict[str, int]
    #: True: the job was told to stop. False: it took what was available.
    stopped: bool


def run(
    job: Job,
    place: Place,
    *,
    stop: threading.Event | None = None,
    tell: Callable[[MicroBatch], None] | None = None,
) -> Outcome:
    """Run a job until it has taken what is available, or ``stop`` is set. A failure is raised as the error of
    Landbridge that caused it, or as JobFailed."""
    stop = stop or threading.Event()
    begun = time.monotonic()
    rows = batches = 0
    behind: dict[str, int] = {}

    def take(steps: Iterator[MicroBatch]) -> None:
        nonlocal rows, batches, behind
        for step in steps:
            behind = step.lag
            if step.rows:
                rows, batches = rows + step.rows, batches + 1
            if tell is not None:
                tell(step)

    try:
        query = job.start(place)
        reports = _Reports(query, getattr(job, "scans", 1))
        try:
            while query.isActive and not stop.wait(LOOK_EVERY):
                take(reports.new())
            stopped = query.isActive
            if stopped:
                _come_to_rest(query)
        finally:
            query.stop()
        take(reports.new())
        if not stopped and (ended_by := query.exception()) is not None:
            raise ended_by
    except Exception as error:
        raise failure(error) from error
    _settle(job, place, reports.reached)
    return Outcome(rows, batches, time.monotonic() - begun, behind, stopped)


def _come_to_rest(query: StreamingQuery) -> None:
    """Wait for the end of the micro-batch that is under way. Broken off, it would have to be done again."""
    end = time.monotonic() + STOP_WITHIN
    while query.isActive and time.monotonic() < end:
        status = query.status
        if not status["isTriggerActive"] or status["message"].startswith("Getting offsets"):
            return
        time.sleep(LOOK_EVERY)


def _settle(job: Job, place: Place, ends: Positions) -> None:
    """Move the job's cursor to the end of its last micro-batch, which Spark would report only with the next
    one. If the terminal doesn't answer, the next run does it."""
    group = getattr(job, "group", None)
    if group and ends:
        bus = TerminalAccess.of(place.where).bus()
        for topic, (to, log, _) in ends.items():
            try:
                bus.call_soon("group.advance", topic=topic, name=group, to=to, log=log).result(SETTLE_WITHIN)
            except (BusError, TimeoutError):
                return


class _Reports:
    """The progress reports of a query, each once. Spark keeps the last hundred."""

    def __init__(self, query: StreamingQuery, scans: int) -> None:
        self._query = query
        #: How often Spark reads, and counts, each row.
        self._scans = scans
        #: (batch, timestamp) of the last report that was seen.
        self._last: tuple[int, str] = (-1, "")
        #: topic → position before which everything is done.
        self.reached: dict[str, LogPosition] = {}

    def new(self) -> Iterator[MicroBatch]:
        for report in self._query.recentProgress:
            at = (report["batchId"], report["timestamp"])
            if at > self._last:
                self._last = at
                self.reached = reached(report)
                rows = report["numInputRows"] // self._scans
                yield MicroBatch(report["batchId"], rows, report.get("batchDuration", 0) / 1000, lag(report))


def query_of(rows: DataFrame) -> str:
    """The id of the query whose micro-batch these rows are. The checkpoint keeps the id."""
    return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))

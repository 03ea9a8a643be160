"""Running a job: a streaming query with its checkpoint, what it says of its micro-batches, and its end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from landbridge.errors import BusError
from landbridge.pipeline.access import Access
from landbridge.pipeline.failure import failure
from landbridge.pipeline.progress import lag, reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Seconds between two looks at a query.
LOOK_EVERY = 0.1
#: Seconds for an answer at a job's end.
SETTLE_WITHIN = 5.0
#: Seconds that a micro-batch may take to its end when the job is to stop. Nothing is lost where it can't.
STOP_WITHIN = 20.0


class Trigger(NamedTuple):
    """When micro-batches begin."""

    #: What is available now, then end.
    once: bool = False
    #: Seconds from the beginning of one to that of the next; 0: as soon as there is something.
    every: float = 0.0

    def on(self, writer: DataStreamWriter) -> DataStreamWriter:
        if self.once:
            return writer.trigger(availableNow=True)
        return writer.trigger(processingTime=f"{round(self.every * 1000)} milliseconds")


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
        """A stream's writer with the checkpoint and the trigger; the sink is still to be said."""
        # In a thread without an active session Spark finds no sink that is written in Python. This makes one.
        self.spark.createDataFrame([], "nothing int")
        writer = frame.writeStream.queryName(name).option("checkpointLocation", self.checkpoint)
        return self.trigger.on(writer)

    def to_topic(self, frame: DataFrame, name: str, topic: str | None = None) -> StreamingQuery:
        """Into a topic, or into those that the column ``topic`` names."""
        writer = self.writer(frame, name).format("landbridge").options(**self.where)
        return (writer if topic is None else writer.option("topic", topic)).start()


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
    #: Was it told to stop? Else it took what was available.
    stopped: bool


def run(
    job: Job,
    place: Place,
    *,
    stop: threading.Event | None = None,
    tell: Callable[[MicroBatch], None] | None = None,
) -> Outcome:
    """Run a job until it has taken what is available, or ``stop`` is set. What fails is raised as the error
    of ours that it is, or as JobFailed."""
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
        seen = _Seen(query, getattr(job, "scans", 1))
        try:
            while query.isActive and not stop.wait(LOOK_EVERY):
                take(seen.steps())
            stopped = query.isActive
            if stopped:
                _come_to_rest(query)
        finally:
            query.stop()
        take(seen.steps())
        if not stopped and (ended_by := query.exception()) is not None:
            raise ended_by
    except Exception as error:
        raise failure(error) from error
    _settle(job, place, seen.reached)
    return Outcome(rows, batches, time.monotonic() - begun, behind, stopped)


def _come_to_rest(query: StreamingQuery) -> None:
    """Wait for the end of the micro-batch that is under way: broken off, it would be done again."""
    end = time.monotonic() + STOP_WITHIN
    while query.isActive and time.monotonic() < end:
        status = query.status
        if not status["isTriggerActive"] or status["message"].startswith("Getting offsets"):
            return
        time.sleep(LOOK_EVERY)


def _settle(job: Job, place: Place, ends: Mapping[str, int]) -> None:
    """Move the job's cursor to where it is: Spark tells it of a micro-batch only with the next one. What
    can't be told now is told then."""
    group = getattr(job, "group", None)
    if group and ends:
        bus = Access.of(place.where).bus()
        for topic, end in ends.items():
            try:
                bus.call_soon("group.advance", topic=topic, name=group, to=end).result(SETTLE_WITHIN)
            except (BusError, TimeoutError):
                return


class _Seen:
    """Which of a query's progress reports are known. Spark keeps the last hundred."""

    def __init__(self, query: StreamingQuery, scans: int) -> None:
        self._query = query
        #: How often each row is read, and counted by Spark.
        self._scans = scans
        self._last: tuple[int, str] = (-1, "")
        #: topic → offset before which all is done.
        self.reached: dict[str, int] = {}

    def steps(self) -> Iterator[MicroBatch]:
        for progress in self._query.recentProgress:
            said: Mapping[str, Any] = progress
            at = (said["batchId"], said["timestamp"])
            if at > self._last:
                self._last = at
                seconds = said.get("batchDuration", 0) / 1000
                rows = said["numInputRows"] // self._scans
                self.reached = reached(said)
                yield MicroBatch(said["batchId"], rows, seconds, lag(said))


def query_of(rows: DataFrame) -> str:
    """The id of the query that the rows of a micro-batch are of. It is the checkpoint's."""
    return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))

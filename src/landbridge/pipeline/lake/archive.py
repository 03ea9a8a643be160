"""The job ``archive``: topics into a lake, each message once.

Micro-batches become files and one commit record each (``lake.py``). A micro-batch that is run again, after a
crash at whatever point, finds its record and does nothing, or finds none and clears what the crashed attempt
has left.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from landbridge.core.lake import MESSAGES, REJECTS, Overtaken, Record, ends_of
from landbridge.core.log.planning import to_json
from landbridge.errors import AlreadyArchived, BadOption, BusError, StoreBusy
from landbridge.pipeline.failure import with_hint
from landbridge.pipeline.lake.lake import CHECKPOINTS, Lake, columns, micros
from landbridge.pipeline.options import EARLIEST, LATEST, read_options
from landbridge.pipeline.running import query_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from landbridge.pipeline.running import Place

Payload = Literal["auto", "json", "binary"]
PAYLOADS = ("auto", "json", "binary")
#: Rows of a micro-batch at most: what is done again after a crash, and with --delta what the driver holds.
ROWS = 2_000_000
#: Files that a task writes at once. Up to so many topics and days it needs no sort, and rows stay in their
#: order.
WRITERS = 64

#: The day in UTC, whatever the session's time zone is.
DAY = "date_from_unix_date(cast(floor(unix_micros(timestamp) / 86400000000) as int))"
#: Null where the payload isn't JSON. Strict about UTF-8, which Spark's parser is not. What can't be JSON by
#: how it begins is not tried: the parser's failures are dear.
PARSED = r"""case when cast(value as string) rlike '^\\s*[\\[{"0-9tfn-]'
  then try_parse_json(try_validate_utf8(cast(value as string))) end"""
REASON = """case when value is null or length(value) = 0 then 'the payload is empty'
  when not is_valid_utf8(cast(value as string)) then 'the payload is not UTF-8'
  else 'the payload is not JSON' end"""


def transform(frame: DataFrame, payload: Payload = "auto") -> DataFrame:
    """The messages of ``format("landbridge")``, with headers and metadata, as the lake has them: with their
    day and with JSON as a VARIANT. ``json`` and ``auto`` differ in what becomes of the rows where that is
    null."""
    from pyspark.sql import functions as F

    variant = "cast(null as variant)" if payload == "binary" else PARSED
    rows = frame.withColumns({"date": F.expr(DAY), "json": F.expr(variant)})
    return rows.select("topic", "date", *columns(MESSAGES))


def rejected(rows: DataFrame) -> DataFrame:
    """Of transformed rows those without JSON, with the reason."""
    from pyspark.sql import functions as F

    named = rows.where("json is null").withColumn("reason", F.expr(REASON))
    return named.select("topic", "date", *columns(REJECTS))


@dataclass(frozen=True)
class Archive:
    """Topics, or those of a pattern, into a lake."""

    lake: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    payload: Payload = "auto"
    #: The cursor that retention waits for. "" = none.
    group: str = "archive"
    #: Where topics begin that the lake doesn't have yet.
    start_at: Literal["earliest", "latest"] = "earliest"
    rows: int = ROWS
    fail_on_data_loss: bool = True
    #: Delta tables by delta-rs, instead of Parquet files and commit records.
    delta: bool = False

    def __post_init__(self) -> None:
        if self.payload not in PAYLOADS:
            raise BadOption(f"payload is one of {', '.join(PAYLOADS)}, not {self.payload!r}")
        if self.start_at not in ("earliest", "latest"):
            raise BadOption(f"topics start at 'earliest' or 'latest', not {self.start_at!r}")
        if self.rows < 1:
            raise BadOption(f"a micro-batch has at least one row, not {self.rows}")
        if not self.lake:
            raise BadOption("the lake has no path", hint="a folder, or a URL such as hdfs://host/lake")
        if bool(self.topics) == bool(self.pattern):
            raise BadOption(
                "either topics or a pattern say what is archived", hint="orders bills, or --pattern '#'"
            )
        read_options(self._options(), stream=True)

    @property
    def name(self) -> str:
        return "archive"

    @property
    def checkpoint(self) -> str:
        """Where its checkpoint is unless a place says otherwise: in the lake, for the two belong together."""
        return f"{self.lake.rstrip('/')}/{CHECKPOINTS}/{self.group or self.name}"

    def _options(self) -> dict[str, str]:
        which = {"subscribe": ",".join(self.topics)} if self.topics else {"subscribePattern": self.pattern}
        group = {"group": self.group} if self.group else {}
        return {
            **which,
            **group,
            "startingOffsets": self.start_at,
            "maxOffsetsPerTrigger": str(self.rows),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": "true",
            "includeMetadata": "true",
        }

    def start(self, place: Place) -> StreamingQuery:
        options = self._options()
        into: Callable[[DataFrame, int], None]
        if self.delta:
            from landbridge.pipeline.lake.delta import DeltaLake

            into = DeltaLake(self.lake, self.payload).take
        else:
            lake = Lake(place.spark, self.lake)
            options |= self._goes_on(lake.snapshot().ends, place)
            into = Batches(lake, self.payload).take
        name = " ".join(filter(None, (self.name, self.group)))  # a session has each name once
        return place.writer(place.stream(**options), name).foreachBatch(_told(into)).start()

    def _goes_on(self, ends: dict[str, int], place: Place) -> dict[str, str]:
        """A query with a new checkpoint goes on where the lake ends. Spark heeds it at the first start
        only."""
        if not ends:
            return {}
        from landbridge.pipeline.access import Access
        from landbridge.pipeline.source import Topics

        names = list(self.topics)
        if self.pattern:
            names = Topics(Access.of(place.where), read_options(self._options(), stream=True)).names()
        if not names:
            return {}
        new = EARLIEST if self.start_at == "earliest" else LATEST
        return {"startingOffsets": json.dumps(to_json({name: ends.get(name, new) for name in names}))}


def _told(into: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    def each(frame: DataFrame, batch: int) -> None:
        try:
            into(frame, batch)
        except BusError as error:
            raise with_hint(error) from None

    return each


class Batches:
    """Micro-batches on their way into a lake."""

    def __init__(self, lake: Lake, payload: Payload) -> None:
        self._lake = lake
        self._payload = payload
        #: Are the leavings of earlier runs of this query cleared?
        self._clear = False

    def take(self, frame: DataFrame, batch: int) -> None:
        query = query_of(frame)
        if not self._clear:
            self._lake.recover(lambda name: name.startswith(f"{query}-"))
            self._clear = True
        if self._lake.state().has(query, batch):
            return  # it was committed, and Spark was not told
        attempt = self._lake.attempt(f"{query}-{batch}")
        self._stage(frame, attempt.url)
        places = attempt.staged()
        files = self._lake.describe(places)
        record = Record(
            attempt=attempt.id, at=micros(), query=query, batch=batch, added=files, ends=ends_of(files)
        )
        try:
            if places:
                attempt.put_in_place(places)
                self._lake.commit(record)
            else:  # no rows; or somebody has given us up and removed the files
                self._lake.state().check(record)
        except AlreadyArchived:
            attempt.withdraw(places)
            raise
        except Overtaken as error:
            attempt.withdraw(places)
            if not self._lake.state().has(query, batch):
                raise StoreBusy(f"{error}", hint="start the job again, it goes on where it was") from None
        attempt.clear()

    def _stage(self, frame: DataFrame, url: str) -> None:
        """In one pass over the messages. Rejects are rare: if there are any, they get a second one."""
        frame.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", WRITERS)
        rows = transform(frame, self._payload)
        if self._payload != "json":
            _write(rows, f"{url}/{MESSAGES}")
            return
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen: Any = Observation()
        counted = rows.observe(seen, F.count_if(F.col("json").isNull()).alias("rejects"))
        _write(counted.where("json is not null"), f"{url}/{MESSAGES}")
        if seen.get["rejects"]:
            _write(rejected(rows), f"{url}/{REJECTS}")


def _write(rows: DataFrame, url: str) -> None:
    # Tasks of the source have runs of the log, few rows are one task: so files are as few as they can be,
    # without a shuffle, and in the order of the offsets.
    rows.write.partitionBy("topic", "date").parquet(url)

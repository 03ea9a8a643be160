"""The job ``sequence``: the messages of many sources, those of each source in the order of their numbers.

    rows ─► source, sequence, shard ─► packs ─► Shard of each key ─► packs ─► rows, late ones marked

A key of Spark's state is a shard of the sources, and its value is all that is known of them. A key for each
source would cost round trips to the JVM for every source in every micro-batch, twenty times as much as all
the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal

from landbridge.core.events.parser import END_OF_NUMBERS, parse
from landbridge.core.names import check_name
from landbridge.errors import BadOption
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.running import Place
from landbridge.pipeline.jobs.sequence.policy import GapPolicy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

#: Shards can be worked on side by side. Each is one value of the state, read and written whole in every
#: micro-batch with rows of it. A checkpoint keeps the number of shards that it began with.
SHARDS = 16
#: The most rows of a micro-batch. Those of a shard are in memory together.
AT_MOST = 500_000
#: Settings that a query with state needs. Changes go to a log, not to a copy of the store per micro-batch.
STATE = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
#: Columns that a transform adds.
ADDED = ("source", "sequence", "reason", "late")
#: The header of a rejected message that says why.
REASON_HEADER = "reason"
#: The format of events, ``sequence|type|from|to``: the sequence number is in the payload itself.
EVENTS = "events"


@dataclass(frozen=True)
class Numbering:
    """Where a message says which source it is from, and which of the source's messages it is."""

    source_from: str = "key"
    #: None: the format ``events`` is given, whose lines begin with the number.
    sequence_from: str | None = None
    #: "events", or None: any.
    format: str | None = None

    def __post_init__(self) -> None:
        if self.format not in (None, EVENTS):
            raise BadOption(f"the format is {EVENTS} or none, not {self.format!r}")
        if (self.sequence_from is None) == (self.format is None):
            raise BadOption(
                "either the sequence number is somewhere, or the format says where",
                hint="sequence_from='header:NAME' or 'json:$.path', or format='events'",
            )
        for option in ("source_from", "sequence_from"):
            place = getattr(self, option) or "key"
            kind, _, name = place.partition(":")
            if place != "key" and not (kind == "header" and name) and not place.startswith("json:$"):
                raise BadOption(f"{option} is one of key, header:NAME, json:$.path, not {place!r}")

    def columns(self, frame: DataFrame) -> DataFrame:
        """Add the columns source, sequence and reason. The reason says why one of the others is missing. The
        sequence numbers of events are read later (``read_lines``)."""
        source = _found(self.source_from).cast("binary")
        if self.sequence_from is None:
            source = F.coalesce(source, F.lit(b""))  # Lines without a key are one sequence.
            number, reason = F.lit(None).cast("bigint"), F.lit(None).cast("string")
        else:
            text = _found(self.sequence_from).cast("string")
            # A cast alone would also take " 1", "+1" and "1.0".
            number = F.when(text.rlike("^[0-9]{1,19}$"), text.try_cast("bigint"))
            reason = (
                F.when(source.isNull(), f"no source: nothing at {self.source_from}")
                .when(text.isNull(), f"no sequence number: nothing at {self.sequence_from}")
                .when(
                    number.isNull(), f"what is at {self.sequence_from} is not a number below {END_OF_NUMBERS}"
                )
            )
        return frame.withColumns({"source": source, "sequence": number, "reason": reason})


def _found(place: str) -> Column:
    kind, _, name = place.partition(":")
    if kind == "key":
        return F.col("key")
    if kind == "header":
        return F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
    return F.get_json_object(F.col("value").cast("string"), name)


def read_lines(rows: pa.Table) -> pa.Table:
    """Fill the columns sequence and reason from the events in the column value."""
    import pyarrow as pa

    lines = [line or b"" for line in rows.column("value").to_pylist()]
    parsed = parse(lines)
    numbers: list[int | None]
    if parsed.malformed:
        numbers = [next(iter(parse([line]).numbers), None) for line in lines]
    else:
        numbers = list(parsed.numbers)
    reasons = ["not an event: no sequence number" if number is None else None for number in numbers]
    rows = rows.drop_columns(["sequence", "reason"])
    rows = rows.append_column("sequence", pa.array(numbers, pa.int64()))
    return rows.append_column("reason", pa.array(reasons, pa.string()))


def transform(
    frame: DataFrame, numbering: Numbering, policy: GapPolicy | None = None, *, shards: int = SHARDS
) -> DataFrame:
    """The rows of a stream in the order of their sequence numbers, for each source, and each number once.

    Columns: those of the frame, and

    source, sequence    where the row is from, and its number
    late                true: the number was given up before the row came
    reason              why the row has no place in any order; null for all the others

    The frame has value, and the columns that the numbering names. Where it has topic and offset, the first of
    two rows with the same number counts. Needs the settings ``STATE``."""
    from pyspark.sql.types import BooleanType, StructField, StructType

    from landbridge.pipeline.jobs.sequence.packs import SHARD
    from landbridge.pipeline.jobs.sequence.sequencing import Sequencing

    policy = policy or GapPolicy()
    policy.check()
    if shards < 1:
        raise BadOption(f"there is at least one shard, not {shards}")
    if taken := {*ADDED, SHARD} & set(frame.columns):
        raise BadOption(
            f"the frame has a column {', '.join(sorted(taken))}, which is added here",
            hint="rename it: withColumnRenamed",
        )
    rows = numbering.columns(frame)
    schema = StructType([*rows.schema.fields, StructField("late", BooleanType())])
    sharded = rows.withColumn(SHARD, F.pmod(F.hash("source"), F.lit(shards)))
    return through(sharded, Sequencing(policy, shards), schema, policy, lines=numbering.format == EVENTS)


def through(
    sharded: DataFrame,
    processor: StatefulProcessor,
    schema: StructType | str,
    policy: GapPolicy,
    *,
    lines: bool,
) -> DataFrame:
    """Pass rows with a column ``shard`` through a processor of packs, whose rows have this schema."""
    from landbridge.pipeline.jobs.sequence.packs import PACKED, PACKS, SHARD, Packing, Unpacking

    packed = sharded.mapInArrow(Packing(read_lines if lines else None), PACKED)
    # With timers Spark runs micro-batches even where there is nothing to read.
    mode = "None" if policy.gap_within is None else "ProcessingTime"
    ordered = packed.groupBy(SHARD).transformWithStateInPandas(processor, PACKS, "append", mode)
    return ordered.mapInArrow(Unpacking(), schema)


def tasks(spark: SparkSession, shards: int) -> int:
    """The number of tasks that the shards are spread over: one for each core. More tasks are slower, because
    each has a state to load and to commit. The checkpoint keeps the number of the first start."""
    return max(1, min(shards, spark.sparkContext.defaultParallelism))


@contextmanager
def stateful(spark: SparkSession, *, once: bool = False, partitions: int | None = None) -> Iterator[None]:
    """Change the settings of a session for the queries that are started meanwhile, which keep them. ``once``:
    the query takes what is available and ends. ``partitions``: the number of tasks with state."""
    settings = dict(STATE)
    if once:
        # With timers there is always another micro-batch to run, and the query would never end.
        settings["spark.sql.streaming.noDataMicroBatches.enabled"] = "false"
    if partitions is not None:
        settings["spark.sql.shuffle.partitions"] = str(partitions)
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, was in before.items():
            if was is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, was)


@dataclass(frozen=True)
class OrderedFlow:
    """From a topic into another, in order. Messages that have no place in the order go to ``TO.rejects``."""

    #: One topic, or several joined by commas.
    topic: str
    to: str
    _: KW_ONLY
    #: Messages that come after their number was given up: dropped, or passed on to ``TO.late``.
    late: Literal["drop", "pass"] = "drop"
    #: The group whose cursor the job moves; None: none.
    group: str | None = None
    at_most: int = AT_MOST

    def __post_init__(self) -> None:
        for topic in (*self.topic.split(","), self.to):
            check_name(topic, "topic")
        if self.to in self.topic.split(","):
            raise BadOption(f"{self.to} would be read and written", hint="write to another topic")
        if self.late not in ("drop", "pass"):
            raise BadOption(f"late is drop or pass, not {self.late!r}")
        if self.at_most < 1:
            raise BadOption(f"a micro-batch has at least one row, not {self.at_most}")

    def stream(self, place: Place) -> DataFrame:
        options = {"subscribe": self.topic, "startingOffsets": "earliest", "includeHeaders": "true"}
        if self.group is not None:
            options["group"] = self.group
        rows = place.stream(**options, maxOffsetsPerTrigger=str(self.at_most))
        return rows.select("key", "value", "headers", "topic", "offset")

    def publish(self, rows: DataFrame, place: Place, name: str, partitions: int) -> StreamingQuery:
        """Rows with key, value, headers, late and reason, each into the topic that is its place."""
        if self.late == "drop":
            rows = rows.where(~F.col("late"))
        kind = "array<struct<key:string,value:binary>>"
        why = F.struct(F.lit(REASON_HEADER).alias("key"), F.col("reason").cast("binary").alias("value"))
        explained = F.concat(F.coalesce("headers", F.array().cast(kind)), F.array(why).cast(kind))
        is_rejected = F.col("reason").isNotNull()
        topic = F.when(is_rejected, f"{self.to}.rejects").when(F.col("late"), f"{self.to}.late")
        headers = F.when(is_rejected, explained).otherwise(F.col("headers"))
        chosen = rows.select(
            "key", "value", headers.alias("headers"), topic.otherwise(self.to).alias("topic")
        )
        with stateful(place.spark, once=place.trigger.once, partitions=partitions):
            return place.to_topics(chosen, name)


@dataclass(frozen=True)
class Sequence(OrderedFlow):
    """A job: the messages of a topic in the order of their numbers."""

    numbering: Numbering
    policy: GapPolicy
    shards: int = SHARDS

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy.check()

    @property
    def name(self) -> str:
        return f"sequence-{self.to}"

    def start(self, place: Place) -> StreamingQuery:
        rows = transform(self.stream(place), self.numbering, self.policy, shards=self.shards)
        return self.publish(rows, place, self.name, tasks(place.spark, self.shards))

"""The job ``sequence``: the messages of many sources, each source's in the order of its sequence numbers.

    rows ─► source, sequence, shard ─► packs ─► Shard of each key ─► packs ─► rows, late ones marked

One key of Spark's state is a shard of the sources, and one value all that is known of them: a state per
source costs round trips to the JVM for each of them in each micro-batch, twenty times as much as the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from landbridge.core.events.parser import END_OF_NUMBERS, parse
from landbridge.core.names import check_name
from landbridge.errors import BadOption
from landbridge.pipeline.sequence.policy import Policy

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from landbridge.pipeline.running import Place

#: Shards of the sources: what can be done beside each other. Each is one value of the state, read and written
#: whole in every micro-batch with rows of it. Their number can't be changed in a checkpoint.
SHARDS = 16
#: Rows of a micro-batch, at most: those of a shard are in memory together.
AT_MOST = 500_000
#: What a query with state needs. Changes go to a log, not into a copy of the store for every micro-batch.
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
#: A line of the seed, ``sequence|type|from|to``: its sequence number is in the value itself.
EVENTS = "events"

_PLACES = "key, header:NAME, json:$.path"


@dataclass(frozen=True)
class Numbering:
    """Where a message says from which source it is and which of its messages."""

    source_from: str = "key"
    #: None: with the format ``events``, whose lines begin with it.
    sequence_from: str | None = None
    #: "events", or None: any.
    format: str | None = None

    def __post_init__(self) -> None:
        check_place(self.source_from, "source_from")
        if self.format not in (None, EVENTS):
            raise BadOption(f"the format is {EVENTS} or none, not {self.format!r}")
        if (self.sequence_from is None) == (self.format is None):
            raise BadOption(
                "either the sequence number is somewhere, or the format says where",
                hint="sequence_from='header:NAME' or 'json:$.path', or format='events'",
            )
        if self.sequence_from is not None:
            check_place(self.sequence_from, "sequence_from")

    def columns(self, frame: DataFrame) -> DataFrame:
        """With the columns source, sequence and reason; the latter says why there is none of the others. The
        sequence numbers of events are read later (``read_lines``)."""
        from pyspark.sql import functions as F

        source = _found(self.source_from).cast("binary")
        if self.sequence_from is None:
            source = F.coalesce(source, F.lit(b""))  # lines without a key are one sequence
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


def check_place(where: str, option: str) -> None:
    kind, _, name = where.partition(":")
    if not (where == "key" or (kind == "header" and name) or (kind == "json" and name.startswith("$"))):
        raise BadOption(f"{option} is one of {_PLACES}, not {where!r}")


def _found(where: str) -> Column:
    from pyspark.sql import functions as F

    kind, _, name = where.partition(":")
    if kind == "key":
        return F.col("key")
    if kind == "header":
        return F.get(F.filter("headers", lambda header: header["key"] == name), F.lit(0))["value"]
    return F.get_json_object(F.col("value").cast("string"), name)


def read_lines(rows: pa.Table) -> pa.Table:
    """Fill the columns sequence and reason in from the events in the column value."""
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
    frame: DataFrame, numbering: Numbering, policy: Policy | None = None, *, shards: int = SHARDS
) -> DataFrame:
    """The rows of a stream in the order of their sequence numbers, for each source, and each number once.

    Columns: those of the frame, and

    source, sequence    what was read of the row
    late                true: its number was given up before it came
    reason              why it has no place in any order; null for all the others

    The frame has value, and what the numbering speaks of. Where it has topic and offset, the first one of two
    with the same number counts. Needs the settings ``STATE``."""
    from pyspark.sql import functions as F

    from landbridge.pipeline.sequence.packs import SHARD

    policy = policy or Policy()
    policy.check()
    if shards < 1:
        raise BadOption(f"there is at least one shard, not {shards}")
    if taken := {*ADDED, SHARD} & set(frame.columns):
        raise BadOption(
            f"the frame has a column {', '.join(sorted(taken))}, which is added here",
            hint="rename it: withColumnRenamed",
        )
    rows = numbering.columns(frame)
    sharded = rows.withColumn(SHARD, F.pmod(F.hash("source"), F.lit(shards)))
    return _through_shards(sharded, policy, shards, lines=numbering.format == EVENTS)


def _through_shards(sharded: DataFrame, policy: Policy, shards: int, *, lines: bool) -> DataFrame:
    from pyspark.sql.types import BooleanType, StructField, StructType

    from landbridge.pipeline.sequence.packs import SHARD
    from landbridge.pipeline.sequence.sequencing import Sequencing

    kept = [field for field in sharded.schema.fields if field.name != SHARD]
    given = StructType([*kept, StructField("late", BooleanType())])
    return through(sharded, Sequencing(policy, shards), given, policy, lines=lines)


def through(
    sharded: DataFrame, processor: StatefulProcessor, given: StructType | str, policy: Policy, *, lines: bool
) -> DataFrame:
    """Rows with a column ``shard`` through a processor of packs, whose rows have the schema ``given``."""
    from landbridge.pipeline.sequence.packs import PACKED, PACKS, SHARD, Packing, Unpacking

    packed = sharded.mapInArrow(Packing(read_lines if lines else None), PACKED)
    ordered = packed.groupBy(SHARD).transformWithStateInPandas(processor, PACKS, "append", time_mode(policy))
    return ordered.mapInArrow(Unpacking(), given)


def time_mode(policy: Policy) -> str:
    """With timers Spark runs micro-batches also where there is nothing to read."""
    return "None" if policy.gap_within is None else "ProcessingTime"


def tasks(spark: SparkSession, shards: int) -> int:
    """How many tasks the shards are spread over: one a core. More are slower, each with a state to load and
    to commit. The checkpoint keeps the number of the first start."""
    return max(1, min(shards, spark.sparkContext.defaultParallelism))


@contextmanager
def stateful(spark: SparkSession, *, once: bool = False, partitions: int | None = None) -> Iterator[None]:
    """The settings of a session, for queries that are started meanwhile: they keep them. ``once``: the query
    takes what is available and ends; ``partitions``: how many tasks there are where the state is."""
    settings = dict(STATE)
    if once:
        # With timers there is always another micro-batch to run, and it would never end.
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
class Sequence:
    """From a topic into another: in order. What has no place in the order goes to ``TO.rejects``."""

    #: Or several, joined by commas.
    topic: str
    to: str
    numbering: Numbering
    policy: Policy
    #: What comes after its number was given up: dropped, or passed on to ``TO.late``.
    late: Literal["drop", "pass"] = "drop"
    #: The group whose cursor the job moves; None: none.
    group: str | None = None
    shards: int = SHARDS
    at_most: int = AT_MOST

    def __post_init__(self) -> None:
        check_flow(self.topic, self.to, self.late, self.at_most)
        self.policy.check()

    @property
    def name(self) -> str:
        return f"sequence-{self.to}"

    def start(self, place: Place) -> StreamingQuery:
        rows = transform(
            stream_of(place, self.topic, self.group, self.at_most),
            self.numbering,
            self.policy,
            shards=self.shards,
        )
        with stateful(place.spark, once=place.trigger.once, partitions=tasks(place.spark, self.shards)):
            return place.to_topic(messages(rows, self.to, self.late), self.name)


def check_flow(topics: str, to: str, late: str, at_most: int) -> None:
    for topic in (*topics.split(","), to):
        check_name(topic, "topic")
    if to in topics.split(","):
        raise BadOption(f"{to} would be read and written", hint="write to another topic")
    if late not in ("drop", "pass"):
        raise BadOption(f"late is drop or pass, not {late!r}")
    if at_most < 1:
        raise BadOption(f"a micro-batch has at least one row, not {at_most}")


def stream_of(place: Place, topic: str, group: str | None, at_most: int) -> DataFrame:
    options = {"subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"}
    if group is not None:
        options["group"] = group
    rows = place.stream(**options, maxOffsetsPerTrigger=str(at_most))
    return rows.select("key", "value", "headers", "topic", "offset")


def messages(rows: DataFrame, to: str, late: str) -> DataFrame:
    """As the sink takes them: key, value, headers, and which topic."""
    from pyspark.sql import functions as F

    if late == "drop":
        rows = rows.where(~F.col("late"))
    kind = "array<struct<key:string,value:binary>>"
    why = F.struct(F.lit(REASON_HEADER).alias("key"), F.col("reason").cast("binary").alias("value"))
    headers = F.coalesce("headers", F.array().cast(kind))
    rejected = F.col("reason").isNotNull()
    topic = F.when(rejected, f"{to}.rejects").when(F.col("late"), f"{to}.late").otherwise(to)
    return rows.select(
        "key",
        "value",
        F.when(rejected, F.concat(headers, F.array(why).cast(kind)))
        .otherwise(F.col("headers"))
        .alias("headers"),
        topic.alias("topic"),
    )

"""The job ``activity``: from the status log to the figures of every minute.

A micro-batch writes a part of its minutes, and the parts of a minute are added up when they are read
(``minutes.py``). So no state is kept between micro-batches, a row can be read at once, and an event that
comes late adds to its minute like any other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from landbridge.core.names import check_name
from landbridge.core.status import TOPIC
from landbridge.errors import BadName, BadOption
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.activity.minutes import BYTES, EVENTS, FAILURES, HISTOGRAMS, MESSAGES, merged
from landbridge.pipeline.jobs.activity.table import ActivityTable
from landbridge.pipeline.jobs.running import Place, query_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: The fields of an event that are read. The names are those of landbridge.core.status.Event.
_EVENT = (
    "time bigint, event string, who string, topic string, `group` string, messages bigint, bytes bigint, "
    "cause string, latency map<string,bigint>"
)
#: Characters of a cause that are kept, because consumers choose it freely.
_LONGEST_CAUSE = 60


def transform(rows: DataFrame) -> DataFrame:
    """Rows of ``$status`` → a row per minute, topic, group and producer or consumer."""
    return merged(_single(rows))


def _single(rows: DataFrame) -> DataFrame:
    """Each event as a row of its own, in the columns of the table."""
    event = F.from_json(F.col("value").cast("string"), _EVENT)
    known = [*MESSAGES.values(), *EVENTS.values(), "lag"]
    told = rows.select(event.alias("e")).select("e.*").where(F.col("event").isin(known))

    def of(name: str, value: Column) -> Column:
        return F.when(F.col("event") == name, value)

    def text(name: str) -> Column:
        return F.coalesce(F.col(name), F.lit(""))

    role = (
        F.when(F.col("event").isin("publish", "arrive"), "producer")
        .when((text("group") != "") & (text("who") != ""), "consumer")
        .otherwise("")
    )
    messages = F.coalesce(F.col("messages"), F.lit(0))
    buckets = F.transform_keys("latency", lambda bucket, _: bucket.cast("int"))
    # A refusal, an error or a login counts as one, whatever number of messages it is about.
    times = F.when(F.col("event").isin(*EVENTS.values()), F.lit(1).cast("bigint")).otherwise(messages)
    cause = F.concat(F.col("event"), F.lit(": "), F.substring(text("cause"), 1, _LONGEST_CAUSE))
    return told.select(
        F.date_trunc("minute", F.timestamp_micros("time")).alias("minute"),
        *(text(name).alias(name) for name in ("topic", "group")),
        role.alias("role"),
        text("who").alias("who"),
        *(of(name, messages).alias(column) for column, name in MESSAGES.items()),
        *(of(name, F.lit(1)).alias(column) for column, name in EVENTS.items()),
        *(of(name, F.col("bytes")).alias(column) for column, name in BYTES.items()),
        *(of(name, buckets).alias(column) for column, name in HISTOGRAMS.items()),
        of("lag", messages).alias("lag"),
        F.when(F.col("event").isin(*FAILURES), F.create_map(cause, times)).alias("causes"),
    )


@dataclass(frozen=True)
class Activity:
    """Minutes into a table (a folder or a URL), or into a topic."""

    to: str | None = None
    to_topic: str | None = None
    name: str = "activity"

    def __post_init__(self) -> None:
        if (self.to is None) == (self.to_topic is None):
            raise BadOption("minutes go to a table or to a topic, one of the two", hint="--to or --to-topic")
        if self.to_topic is not None:
            try:
                check_name(self.to_topic, "topic")
            except BadName as error:
                raise BadOption(str(error), hint=error.hint) from None

    def start(self, place: Place) -> StreamingQuery:
        # Retention may have removed a part of the status log. The figures go on with the rest.
        rows = place.stream(subscribe=TOPIC, startingOffsets="earliest", failOnDataLoss="false")

        def each(rows: DataFrame, batch: int) -> None:
            query = query_of(rows)
            minutes = transform(rows)
            if self.to is not None:
                ActivityTable(rows.sparkSession, self.to).write(minutes, query, batch)
            else:
                assert self.to_topic is not None
                publish(minutes, self.to_topic, place, query, batch)

        return place.writer(rows.select("value"), self.name).foreachBatch(each).start()


def publish(minutes: DataFrame, topic: str, place: Place, query: str, batch: int) -> None:
    """Publish each row as JSON, once per query and batch. The figures of rows with the same key add up."""
    minute = F.date_format("minute", "yyyy-MM-dd'T'HH:mm'Z'")
    key = F.concat_ws("|", "topic", "group", minute)
    out = minutes.select(key.alias("key"), F.to_json(F.struct("*")).alias("value"))
    writer = out.write.format("landbridge").mode("append").options(**place.where)
    writer.options(topic=topic, producerId=f"activity-{query}", producerBatch=str(batch)).save()

"""Pipelines of your own: a function from rows to rows, between topics.

    @landbridge.pipeline.step(source="orders", sink="invoices", schema="id bigint, amount double")
    def invoices(orders: DataFrame) -> DataFrame:
        return orders.where("amount > 100").selectExpr("id", "amount * 1.19 as total")

It stays a function that can be called with any table: in a notebook, in a test, in Declarative Pipelines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from landbridge.errors import BadOption
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.running import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: Columns of a message that stay beside the fields of its payload, unless a field has that name.
KEPT = ("key", "topic", "offset", "timestamp", "headers")
#: Columns that are written to a topic as they are. The others become fields of the payload.
TAKEN = ("key", "value", "headers", "topic")


@dataclass(eq=False)
class Step:
    """A job: a function, with what it reads and where its rows go."""

    function: Callable[[DataFrame], DataFrame]
    #: Topics joined by commas, or a pattern.
    source: str
    #: A topic; empty: the rows have a column ``topic``.
    sink: str
    #: Fields of the JSON payloads, as in a CREATE TABLE. None: the function gets messages with ``value`` as
    #: bytes.
    schema: str | None = None
    #: The topic of messages whose payload isn't JSON of that schema.
    rejects: str = ""
    #: The group whose cursor retention and lag see.
    group: str = ""
    mode: Literal["append", "update", "complete"] = "append"
    #: More options of the reader, such as maxOffsetsPerTrigger.
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function)
        self.group = self.group or self.name

    def __call__(self, rows: DataFrame) -> DataFrame:
        return self.function(rows)

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def scans(self) -> int:
        """How often Spark reads each message: once for the function, and once more for the rejects."""
        return 1 if self.schema is None else 2

    @property
    def reading(self) -> dict[str, str]:
        """The options of ``format("landbridge")`` that read its messages."""
        by = "subscribePattern" if {"*", "#"} & set(self.source) else "subscribe"
        return {
            by: self.source,
            "startingOffsets": "earliest",
            "includeHeaders": "true",
            "group": self.group,
            **self.options,
        }

    def start(self, place: Place) -> StreamingQuery:
        messages = self.transform(place.stream(**self.reading))
        return place.to_topics(messages, self.name, self.mode)

    def transform(self, messages: DataFrame) -> DataFrame:
        """From messages to messages: decode, call the function, encode, and add the rejects."""
        if self.schema is None:
            return self._addressed(encode(self.function(messages)))
        decoded, rejected = decode(messages, self.schema)
        made = self._addressed(encode(self.function(decoded)))
        refused = rejected.select(F.lit(self.rejects).alias("topic"), "key", "value", "headers")
        return made.unionByName(refused, allowMissingColumns=True)

    def _addressed(self, rows: DataFrame) -> DataFrame:
        if self.sink:
            return rows.withColumn("topic", F.lit(self.sink))
        if "topic" not in rows.columns:
            raise BadOption(f"the rows of {self.name} have no column topic", hint="or say @step(sink=TOPIC)")
        return rows


def step(
    *,
    source: str | Sequence[str],
    sink: str = "",
    schema: str | None = None,
    rejects: str = "",
    group: str = "",
    mode: Literal["append", "update", "complete"] = "append",
    **options: Any,
) -> Callable[[Callable[[DataFrame], DataFrame]], Step]:
    """Make a function a step, for ``landbridge pipeline run MODULE:FUNCTION``.

    ``source``: a topic, several topics, or a pattern (``orders.*``). ``sink``: a topic; "" where the rows
    name it in a column ``topic``. ``schema``: the function gets the fields of JSON payloads as columns, and
    messages of another form go to the topic ``rejects`` (``SINK.rejects``) with the reason in a header.
    ``options`` are those of the reader, as ``maxOffsetsPerTrigger=100_000``.
    The columns ``value``, ``key`` and ``headers`` of the rows that the function returns are a message. Where
    there is no column ``value``, the other columns are its JSON payload.
    """
    named = source if isinstance(source, str) else ",".join(source)
    if not named:
        raise BadOption("a step reads at least one topic", hint='@step(source="orders", sink="invoices")')
    if schema is not None and not rejects:
        if not sink:
            raise BadOption("a step with a schema needs rejects=TOPIC, or a sink")
        rejects = f"{sink}.rejects"
    texts = {
        name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()
    }

    def made(function: Callable[[DataFrame], DataFrame]) -> Step:
        return Step(function, named, sink, schema, rejects, group, mode, texts)

    return made


def decode(messages: DataFrame, schema: str) -> tuple[DataFrame, DataFrame]:
    """Returns the fields of JSON payloads as columns, and the messages with other payloads, each with the
    reason as a header."""
    from pyspark.sql.types import StringType, StructType
    from pyspark.sql.types import _parse_datatype_string as parsed  # what DataFrameReader.schema uses

    wanted = parsed(schema)
    if not isinstance(wanted, StructType):
        raise BadOption(
            f"the schema {schema!r} is not a list of columns", hint='as in "id bigint, amount double"'
        )
    corrupt = "_not_of_the_schema"
    text = F.try_validate_utf8(F.col("value"))
    read = messages.withColumn(
        "_decoded",
        F.from_json(
            text,
            StructType([*wanted.fields]).add(corrupt, StringType()),
            {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": corrupt},
        ),
    )
    reason = (
        F.when(text.isNull(), F.lit("not UTF-8"))
        .when(F.try_parse_json(text).isNull(), F.lit("not JSON"))
        .when(
            F.col("_decoded").isNull() | F.col(f"_decoded.{corrupt}").isNotNull(),
            F.lit(f"not of the schema {schema}"),
        )
    )
    read = read.withColumn("_reason", reason)
    names = {each.name for each in wanted.fields}
    kept = [name for name in KEPT if name in messages.columns and name not in names]
    good = read.where("_reason is null").select(*(f"_decoded.`{each.name}`" for each in wanted.fields), *kept)
    headers = F.coalesce(F.col("headers"), F.array().cast(messages.schema["headers"].dataType))
    told = F.struct(F.lit("reject-reason").alias("key"), F.encode("_reason", "utf-8").alias("value"))
    rejected = read.where("_reason is not null").select(
        "key", "value", F.array_append(headers, told).alias("headers")
    )
    return good, rejected


def encode(rows: DataFrame) -> DataFrame:
    """Rows as messages. The payload is the column ``value``, or else the other columns as JSON."""
    if "value" not in rows.columns:
        fields = [name for name in rows.columns if name not in TAKEN]
        if not fields:
            raise BadOption("rows without a value and without fields can't be messages")
        rows = rows.withColumn("value", F.to_json(F.struct(*(F.col(f"`{name}`") for name in fields))))
    texts = [name for name in ("key", "value") if dict(rows.dtypes).get(name) == "string"]
    rows = rows.withColumns({name: F.encode(F.col(name), "utf-8") for name in texts}) if texts else rows
    return rows.select(*(name for name in TAKEN if name in rows.columns))

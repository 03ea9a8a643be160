"""Messages as the rows of a lake: with their day, and with a JSON payload as VARIANT."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from landbridge.core.lake import MESSAGES, REJECTS
from landbridge.pipeline.functions import F
from landbridge.pipeline.lake.lake import columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: What is done with payloads. auto: the column ``json`` is null where a payload is not JSON. json: such a
#: message goes to the table of rejects. binary: ``json`` is always null.
Payload = Literal["auto", "json", "binary"]
PAYLOADS: tuple[Payload, ...] = get_args(Payload)

#: The day in UTC, whatever the session's time zone is.
DAY = "date_from_unix_date(cast(floor(unix_micros(timestamp) / 86400000000) as int))"
#: Null where the payload isn't JSON. This checks UTF-8, which Spark's parser doesn't. A payload that can't be
#: JSON by its first character is not parsed, because the parser is slow to fail.
PARSED = r"""case when cast(value as string) rlike '^\\s*[\\[{"0-9tfn-]'
  then try_parse_json(try_validate_utf8(cast(value as string))) end"""
REASON = """case when value is null or length(value) = 0 then 'the payload is empty'
  when not is_valid_utf8(cast(value as string)) then 'the payload is not UTF-8'
  else 'the payload is not JSON' end"""


def transform(frame: DataFrame, payload: Payload = "auto") -> DataFrame:
    """The messages of ``format("landbridge")``, with headers and metadata, as rows of the lake."""
    variant = "cast(null as variant)" if payload == "binary" else PARSED
    rows = frame.withColumns({"date": F.expr(DAY), "json": F.expr(variant)})
    return rows.select("topic", "date", *columns(MESSAGES))


def rejected(rows: DataFrame) -> DataFrame:
    """Those of the transformed rows that have no JSON, with the reason."""
    named = rows.where("json is null").withColumn("reason", F.expr(REASON))
    return named.select("topic", "date", *columns(REJECTS))

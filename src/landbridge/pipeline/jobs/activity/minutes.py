"""The columns of a minute's activity, and how its rows are added up.

Every column adds up: counts and histograms of latency are summed, and of lags the largest is kept.
Percentiles and rates don't add up, so they are computed last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from landbridge.core.latency import percentiles
from landbridge.pipeline.functions import F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

#: What a row is about. ``role`` is the role of ``who``: producer, consumer, or "" where it is not known.
KEYS = ("minute", "topic", "group", "role", "who")
#: column → the event whose messages it counts.
MESSAGES = {
    "published": "publish",
    "arrived": "arrive",
    "delivered": "deliver",
    "acked": "ack",
    "requeued": "requeue",
    "expired": "expire",
    "buried": "bury",
}
#: column → the event that it counts.
EVENTS = {"refused": "refuse", "errors": "error", "connected": "authenticate"}
#: column → the event whose bytes it adds up.
BYTES = {"published_bytes": "publish", "delivered_bytes": "deliver"}
#: column → the event whose latencies it has: from the publish to the delivery, the ack, the arrival here.
HISTOGRAMS = {"waiting": "deliver", "latency": "ack", "crossing": "arrive"}
COUNTS = (*MESSAGES, *EVENTS, *BYTES)
#: Events that have a cause worth counting.
FAILURES = ("requeue", "expire", "bury", "refuse", "error")
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
RATES = ("published", "delivered", "acked")


_HISTOGRAM = "map<int,bigint>"
_CAUSES = "map<string,bigint>"


def merged(minutes: DataFrame) -> DataFrame:
    """Rows that are about the same, added up."""
    return minutes.groupBy(*KEYS).agg(
        *(F.coalesce(F.sum(name), F.lit(0)).cast("bigint").alias(name) for name in COUNTS),
        *(_added_up(name, _HISTOGRAM).alias(name) for name in HISTOGRAMS),
        F.max("lag").alias("lag"),
        _added_up("causes", _CAUSES).alias("causes"),
    )


def figures(minutes: DataFrame, seconds: float = 60.0) -> DataFrame:
    """Add rates per second and percentiles in milliseconds; null where nothing was measured."""
    # Without useArrow=False Spark guesses from the type hints, and warns.
    measure = F.udf(_percentiles, "array<double>", useArrow=False)
    rates = {f"{name}_per_second": F.col(name) / seconds for name in RATES}
    spans = {
        f"{name}_{which}_ms": F.col("measured")[name][number]
        for name in HISTOGRAMS
        for number, which in enumerate(PERCENTILES)
    }
    measured = F.struct(*(measure(name).alias(name) for name in HISTOGRAMS))
    return minutes.withColumn("measured", measured).withColumns(rates | spans).drop("measured")


def _percentiles(histogram: dict[int, int]) -> list[float | None]:
    """Milliseconds."""
    found = percentiles(histogram, PERCENTILES.values())
    return [None if micros is None else micros / 1000 for micros in found]


def _added_up(name: str, kind: str) -> Column:
    """The sum of a column of maps to counts, key by key."""
    nothing = F.lit(0).cast("bigint")

    def both(one: Column, other: Column) -> Column:
        return F.map_zip_with(one, other, lambda _, a, b: F.coalesce(a, nothing) + F.coalesce(b, nothing))

    return F.aggregate(F.collect_list(name), F.create_map().cast(kind), both)

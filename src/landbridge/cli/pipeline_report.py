"""``landbridge pipeline report``: what went on, as one file of HTML and a table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.output import Column
from landbridge.cli.pipeline_options import Conf, Master, progress, spark_session, where
from landbridge.core.wording import counted
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from landbridge.pipeline.activity.report import Report

SECOND = 1_000_000


def _milliseconds(value: float) -> str:
    return units.span(value / 1000)


TOPICS = [
    Column("Topic", "topic", style="cyan"),
    Column("In", "taken", units.count),
    Column("Size", "published_bytes", units.size),
    Column("Delivered", "delivered", units.count),
    Column("Acked", "acked", units.count),
    Column("Waiting p99", "waiting", _milliseconds),
    Column("To the ack p50", "latency_p50", _milliseconds),
    Column("p99", "latency_p99", _milliseconds),
    Column("Lag", "lag", units.count, "yellow"),
    Column("Requeued", "requeued", units.count, "yellow"),
    Column("Buried", "buried", units.count, "red"),
]


def report(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FROM",
            help="A table of 'pipeline run activity'. Without one, the status log itself is read.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the page goes.")] = Path("report.html"),
    since: Annotated[
        float | None,
        typer.Option(
            metavar="SPAN", parser=units.parse_span, help="Only the last 1h, 7d.", show_default="all of it"
        ),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Report what went on: messages, latency, lag, failures, in one HTML file.

    The file has everything in it, and nothing that runs: mail it, or put it anywhere.

    \b
    Examples:
      landbridge pipeline report --since 1h
      landbridge pipeline report activity --out week.html --since 7d
      landbridge pipeline report --json | jq .total
    """
    if not out.absolute().parent.is_dir():
        raise BadRequest(f"there is no folder {out.parent} for the page")
    now = time.time_ns() // 1000
    begin = None if since is None else now - int(since * SECOND)
    lags = _lags(context) if source is None else {}
    with spark_session(master, conf) as spark:
        from landbridge.pipeline.activity.page import page
        from landbridge.pipeline.activity.report import compile_report
        from landbridge.pipeline.failure import failure

        with progress("reading the status log" if source is None else f"reading {source}"):
            try:
                minutes = _minutes(spark, source, context, begin)
                found = compile_report(minutes, since=begin, now=now, lags=lags)
            except Exception as error:
                raise failure(error) from error
    said = "the status log" if source is None else source
    out.write_text(page(found, source=said, made_at=now), encoding="utf-8")
    output.emit({"out": str(out)} | found.document(), lambda _: _show(found, out))


def _lags(context: str | None) -> dict[tuple[str, str], int]:
    """What the groups are behind now, those of the topics that the token may see."""
    from landbridge.cli.loop import ask_all

    rows = ask_all(context, "group.list", "groups")
    return {(row["topic"], row["name"]): row["lag"] for row in rows}


def _minutes(spark: SparkSession, source: str | None, context: str | None, begin: int | None) -> DataFrame:
    from landbridge.core.status import TOPIC
    from landbridge.pipeline.activity.activity import transform
    from landbridge.pipeline.activity.table import ActivityTable
    from landbridge.pipeline.running import Place

    if source is not None:
        return ActivityTable(spark, source).read()
    options = {"subscribe": TOPIC, "failOnDataLoss": "false"}
    if begin is not None:
        options["startingTimestamp"] = str(begin // 1000)
    return transform(Place(spark, "", where=where(context)).table(**options))


def _show(found: Report, out: Path) -> None:
    output.table(TOPICS, [_row(found, name) for name in found.busiest()], empty="nothing was published")
    total = found.total
    print()
    output.done(
        f"{out}: {counted(total.taken, 'message')} in {units.span(found.seconds)}, "
        f"{total.acked:,} acked, {total.failures:,} failed"
    )


def _row(found: Report, topic: str) -> dict[str, Any]:
    figures = found.topics[topic]
    lags = [found.lag_of(*key) for key in found.groups if key[0] == topic]
    median, _, worst = figures.spans("latency")
    return {
        "topic": topic,
        "taken": figures.taken,
        "published_bytes": figures.published_bytes,
        "delivered": figures.delivered,
        "acked": figures.acked,
        "waiting": figures.spans("waiting")[2],
        "latency_p50": median,
        "latency_p99": worst,
        "lag": sum(lag for lag in lags if lag is not None) if lags else None,
        "requeued": figures.requeued,
        "buried": figures.buried,
    }

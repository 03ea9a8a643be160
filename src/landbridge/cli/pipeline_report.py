"""``landbridge pipeline report``: what went on, as one file of HTML and a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from landbridge.cli import output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import ContextName, argument, option, span
from landbridge.cli.output import columns
from landbridge.cli.pipeline_options import Conf, Master, progress, spark_session, where
from landbridge.core.wording import counted
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from landbridge.pipeline.jobs.activity.report import ActivityReport

TOPICS = columns(
    "Topic@cyan | In=taken:count | Size=published_bytes:size | Delivered:count | Acked:count | "
    "Waiting p99=waiting:ms | To the ack p50=latency_p50:ms | p99=latency_p99:ms | Lag:count@yellow | "
    "Requeued:count@yellow | Buried:count@red"
)


def report(
    source: str | None = argument(
        "FROM", "A table of 'pipeline run activity'. Without one, the status log itself is read."
    ),
    out: Path = option("Where the page goes.", metavar="FILE", value=Path("report.html")),
    since: float | None = span("Only the last 1h, 7d.", default="all of it"),
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
) -> None:
    """Report what went on: messages, latency, lag, failures, in one HTML file.

    The file has everything in it, and nothing that runs: mail it, or put it anywhere.

    Examples:
      landbridge pipeline report --since 1h
      landbridge pipeline report activity --out week.html --since 7d
      landbridge pipeline report --json | jq .total
    """
    if not out.absolute().parent.is_dir():
        raise BadRequest(f"there is no folder {out.parent} for the page")
    now = units.now()
    begin = None if since is None else now - int(since * units.SECOND)
    # What the groups are behind now, those of the topics that the token may see.
    groups = ask(context, lambda bus: bus.groups.list()) if source is None else []
    lags = {(group.topic, group.name): group.lag for group in groups}
    with spark_session(master, conf) as spark:
        from landbridge.pipeline.connector.failure import failure
        from landbridge.pipeline.jobs.activity.page import page
        from landbridge.pipeline.jobs.activity.report import compile_report

        with progress("reading the status log" if source is None else f"reading {source}"):
            try:
                minutes = _minutes(spark, source, context, begin)
                found = compile_report(minutes, since=begin, now=now, lags=lags)
            except Exception as error:
                raise failure(error) from error
    said = "the status log" if source is None else source
    out.write_text(page(found, source=said, made_at=now), encoding="utf-8")
    output.emit({"out": str(out)} | found.document(), lambda _: _show(found, out))


def _minutes(spark: SparkSession, source: str | None, context: str | None, begin: int | None) -> DataFrame:
    from landbridge.core.status import TOPIC
    from landbridge.pipeline.jobs.activity.activity import transform
    from landbridge.pipeline.jobs.activity.table import ActivityTable
    from landbridge.pipeline.jobs.running import Place

    if source is not None:
        return ActivityTable(spark, source).read()
    options = {"subscribe": TOPIC, "failOnDataLoss": "false"}
    if begin is not None:
        options["startingTimestamp"] = str(begin // 1000)
    return transform(Place(spark, "", where=where(context)).table(**options))


def _show(found: ActivityReport, out: Path) -> None:
    output.table(TOPICS, [_row(found, name) for name in found.busiest()], empty="nothing was published")
    total = found.total
    print()
    output.done(
        f"{out}: {counted(total.taken, 'message')} in {units.span(found.seconds)}, "
        f"{total.acked:,} acked, {total.failures:,} failed"
    )


def _row(found: ActivityReport, topic: str) -> dict[str, Any]:
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

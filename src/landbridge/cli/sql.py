"""``landbridge sql``: a query over topics and their archive."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from landbridge.cli import output
from landbridge.cli.loop import check_reachable
from landbridge.cli.options import ContextName, argument, option
from landbridge.cli.pipeline_options import Conf, Master, spark_session, where
from landbridge.errors import BadRequest

Lake = Annotated[
    str | None,
    option(
        "Where the archive is: a folder or URL.",
        metavar="FOLDER",
        envvar="LANDBRIDGE_LAKE",
        show_default=False,
    ),
]
AllowGaps = Annotated[
    bool, option("Go on where offsets are neither in the archive nor in the log.", "--allow-gaps")
]


def sql(
    statement: str | None = argument("[STATEMENT]", "SQL; '-' or none: standard input."),
    file: Path | None = option("Read the statement from a file.", "--file", "-f", metavar="FILE"),
    lake: Lake = None,
    form: Literal["table", "json", "csv", "parquet"] | None = option(
        "Table, JSON lines, CSV or Parquet; a table by default.", "--format"
    ),
    out: str | None = option("Write there; Parquet: a folder or URL.", "--out", "-o", metavar="FILE"),
    limit: int | None = option("Rows at most; a table shows 1,000.", min=1, metavar="N"),
    allow_gaps: AllowGaps = False,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
) -> None:
    """Query topics: topic.NAME is archive and log as one, log.NAME and archive.NAME the two by themselves.

    Examples:
      landbridge sql "SELECT * FROM topic.orders WHERE timestamp > now() - interval 1 hour"
      landbridge sql "SELECT json:customer::string, sum(json:amount::int) FROM topic.orders GROUP BY 1"
      landbridge sql --lake /data/lake "SELECT date(timestamp), count(*) FROM topic.eu.orders GROUP BY 1"
      landbridge sql "SHOW TOPICS" --json
      landbridge sql -f report.sql --format parquet --out /data/report
    """
    chosen = form or ("json" if output.choice.json else "table")
    if chosen == "parquet" and out is None:
        raise BadRequest("Parquet is no text to be shown", hint="--out FOLDER")
    if out is not None and chosen != "parquet" and not Path(out).absolute().parent.is_dir():
        raise BadRequest(f"there is no folder for {out}")
    text = _read(statement, file)
    if lake is None:
        check_reachable(context)
    with spark_session(master, conf) as spark:
        from landbridge.cli import rows
        from landbridge.pipeline.sql.views import Views

        views = Views(spark, where=where(context), lake=lake, allow_gaps=allow_gaps, tell=output.notice)
        frame = views.sql(text)
        try:
            rows.write(frame, chosen, out, limit)
        except Exception as error:
            raise views.refusal(error) from error
    if out is not None:
        output.note(f"written to {out}")


def _read(statement: str | None, file: Path | None) -> str:
    if file is not None:
        if statement is not None:
            raise BadRequest("either a statement or --file, not both")
        try:
            return file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise BadRequest(f"{file} can't be read: {error}") from None
    if statement in (None, "-"):
        if statement is None and sys.stdin.isatty():
            raise BadRequest(
                "there is no statement",
                hint='landbridge sql "SELECT * FROM topic.orders", or landbridge shell --spark',
            )
        return sys.stdin.read()
    assert statement is not None
    return statement

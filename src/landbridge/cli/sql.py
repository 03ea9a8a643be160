"""``landbridge sql``: a query over topics and their archive."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from landbridge.cli import output
from landbridge.cli.options import ContextName, Json
from landbridge.cli.pipeline_options import Conf, Master, spark_session, where
from landbridge.errors import BadRequest

Lake = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER", envvar="LANDBRIDGE_LAKE", help="Where the archive is: a folder or URL.",
        show_default=False,
    ),
]  # fmt: skip
AllowGaps = Annotated[
    bool,
    typer.Option("--allow-gaps", help="Go on where offsets are neither in the archive nor in the log."),
]


class Form(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


def sql(
    statement: Annotated[
        str | None,
        typer.Argument(metavar="[STATEMENT]", help="SQL; '-' or none: standard input.", show_default=False),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Read the statement from a file.")
    ] = None,
    lake: Lake = None,
    form: Annotated[
        Form | None,
        typer.Option("--format", help="Table, JSON lines, CSV or Parquet; a table by default."),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write there; Parquet: a folder or URL."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="At most so many rows; a table shows 1,000.")
    ] = None,
    allow_gaps: AllowGaps = False,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Query topics: topic.NAME is archive and log as one, log.NAME and archive.NAME the two by themselves.

    \b
    Examples:
      landbridge sql "SELECT * FROM topic.orders WHERE timestamp > now() - interval 1 hour"
      landbridge sql "SELECT json:customer::string, sum(json:amount::int) FROM topic.orders GROUP BY 1"
      landbridge sql --lake /data/lake "SELECT date(timestamp), count(*) FROM topic.eu.orders GROUP BY 1"
      landbridge sql "SHOW TOPICS" --json
      landbridge sql -f report.sql --format parquet --out /data/report
    """
    from landbridge.cli.loop import ask

    chosen = form or (Form.JSON if output.choice.json else Form.TABLE)
    if chosen is Form.PARQUET and out is None:
        raise BadRequest("Parquet is no text to be shown", hint="--out FOLDER")
    if out is not None and chosen is not Form.PARQUET and not Path(out).absolute().parent.is_dir():
        raise BadRequest(f"there is no folder for {out}")
    text = _read(statement, file)
    if lake is None:
        ask(context, "terminal.info")  # a terminal that isn't there is told at once, not after Spark's start
    with spark_session(master, conf) as spark:
        from landbridge.cli import rows
        from landbridge.pipeline.sql.views import Views

        views = Views(
            spark, where=where(context), lake=lake, allow_gaps=allow_gaps, tell=output.notice
        )  # fmt: skip
        frame = views.sql(text)
        try:
            rows.write(frame, chosen.value, out, limit)
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

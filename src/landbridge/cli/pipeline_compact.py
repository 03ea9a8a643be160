"""``landbridge pipeline compact``: the small files of a lake into large ones."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import typer

from landbridge.cli import output, units
from landbridge.cli.options import Json
from landbridge.cli.output import Column
from landbridge.cli.pipeline_options import Conf, Master, spark_session

LIST = [
    Column("Table", "table"),
    Column("Topic", "topic", style="cyan"),
    Column("Date", "date"),
    Column("Rows", "rows", units.count),
    Column("Files", "files", units.count),
    Column("Size", "bytes", units.size),
    Column("Files after", "files_after", units.count),
    Column("Size after", "bytes_after", units.size),
]


def compact(
    lake: Annotated[
        str, typer.Argument(metavar="LAKE", help="The lake's folder or URL.", show_default=False)
    ],
    topic: Annotated[str | None, typer.Option(metavar="TOPIC", help="Only this topic.")] = None,
    before: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only days before this one: 2026-01-31.")
    ] = None,
    target_size: Annotated[
        int,
        typer.Option(
            metavar="SIZE",
            parser=units.parse_size,
            help="Bytes that a file should have.",
            show_default="256MB",
        ),
    ] = "256MB",  # type: ignore[assignment]  # typer parses the default as well
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Compact a lake: write its small files anew as few large ones, and clear what crashes have left.

    Jobs that write to the lake may go on meanwhile.

    \b
    Examples:
      landbridge pipeline compact lake --dry-run
      landbridge pipeline compact lake --topic orders --before 2026-01-31
      landbridge pipeline compact hdfs://host/lake --target-size 1GB --json
    """
    if before is not None:
        try:
            before = date.fromisoformat(before).isoformat()
        except ValueError:
            raise typer.BadParameter(f"{before!r} is not a date such as 2026-01-31") from None
    with spark_session(master, conf) as spark:
        from landbridge.pipeline.failure import failure
        from landbridge.pipeline.lake.compact import compact as act
        from landbridge.pipeline.lake.lake import Lake

        try:
            done = act(Lake(spark, lake), target=target_size, topic=topic, before=before, dry_run=dry_run)
        except Exception as error:
            raise failure(error) from error
    rows: list[dict[str, Any]] = [each._asdict() for each in done]
    output.emit(rows, lambda rows: output.table(LIST, rows, empty="no small files: nothing to do"))

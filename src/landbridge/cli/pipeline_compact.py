"""``landbridge pipeline compact``: the small files of a lake into large ones."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.options import argument, flag, option, size
from landbridge.cli.output import columns
from landbridge.cli.pipeline_options import Conf, Master, spark_session

LIST = columns(
    "Table | Topic@cyan | Date | Rows:count | Files:count | Size=bytes:size | Files after:count | "
    "Size after=bytes_after:size"
)


def compact(
    lake: Annotated[str, argument("LAKE", "The lake's folder or URL.")],
    topic: str | None = option("Only this topic.", metavar="TOPIC"),
    before: str | None = option("Only days before this one: 2026-01-31.", metavar="DATE"),
    target_size: int = size("Bytes that a file should have.", default="256MB", value="256MB"),
    dry_run: bool = flag("Say what would be done, and do nothing.", "--dry-run"),
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Compact a lake: write its small files anew as few large ones, and clear what crashes have left.

    Jobs that write to the lake may go on meanwhile.

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
        from landbridge.pipeline.connector.failure import failure
        from landbridge.pipeline.lake.compact import compact as act
        from landbridge.pipeline.lake.lake import Lake

        try:
            done = act(Lake(spark, lake), target=target_size, topic=topic, before=before, dry_run=dry_run)
        except Exception as error:
            raise failure(error) from error
    rows: list[dict[str, Any]] = [each._asdict() for each in done]
    output.rows(LIST, rows, empty="no small files: nothing to do")

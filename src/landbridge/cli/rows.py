"""The rows of a query for people and for programs: a table, JSON lines, CSV, or Parquet by Spark itself."""

from __future__ import annotations

import base64
import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import msgspec

from landbridge.cli import output
from landbridge.core.text import printable
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Rows of a table, unless --limit says more.
SHOWN = 1000
#: Characters of a cell on a terminal.
WIDEST = 200


def plain(value: Any) -> Any:
    """A value of Spark as one of JSON: bytes as text, or as base64 where they are none; times in UTC."""
    from pyspark.sql import Row
    from pyspark.sql.types import VariantVal

    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # JSON has no infinity and no NaN
    if isinstance(value, (bytes, bytearray)):
        try:
            return bytes(value).decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        # Spark hands over the local time of this machine.
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, VariantVal):
        return msgspec.json.decode(value.toJson())
    if isinstance(value, Row):
        return {name: plain(each) for name, each in zip(value.__fields__, value, strict=True)}
    if isinstance(value, dict):
        return {str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)  # dates, decimals and whatever else there may be


def text(value: Any) -> str:
    """A value in a cell; empty for null."""
    found = plain(value)
    if found is None:
        return ""
    return found if isinstance(found, str) else msgspec.json.encode(found).decode()


def names(frame: DataFrame) -> list[str]:
    """Of the columns, each once: a join may have two of a name, and JSON may not."""
    seen: dict[str, int] = {}
    found = []
    for name in frame.columns:
        key = name.lower()
        seen[key] = seen.get(key, 0) + 1
        found.append(name if seen[key] == 1 else f"{name}_{seen[key]}")
    return found


def write(frame: DataFrame, form: str, out: str | None, limit: int | None) -> None:
    """``out``: a file, or for Parquet a folder or URL; None: standard output."""
    frame = frame.toDF(*names(frame))
    # Times without a zone are shown as they are; from Python's side they look like the others.
    zoneless = [each.name for each in frame.schema if each.dataType.typeName() == "timestamp_ntz"]
    if zoneless and form != "parquet":
        frame = frame.withColumns({name: frame[name].cast("string") for name in zoneless})
    if form == "table":
        _table(frame, SHOWN if limit is None else limit, out, more=limit is None)
        return
    if limit is not None:
        frame = frame.limit(limit)
    if form == "parquet":
        if out is None:
            raise BadRequest("Parquet is no text to be shown", hint="--out FOLDER")
        frame.write.mode("error").parquet(out)
    else:
        with _opened(out) as file:
            (_json if form == "json" else _csv)(frame, file)


def _table(frame: DataFrame, limit: int, out: str | None, *, more: bool) -> None:
    """``more``: tell the user if there are more rows than the limit."""
    rows = frame.limit(limit + more).collect()
    titles = frame.columns
    if out is not None or not output.on_terminal():
        with _opened(out) as file:
            output.aligned(
                [titles, *([printable(text(value)) or "-" for value in row] for row in rows[:limit])], file
            )
    else:
        columns = [output.TableColumn(title, title) for title in titles]
        shown = [
            {title: text(value)[:WIDEST] for title, value in zip(titles, row, strict=True)}
            for row in rows[:limit]
        ]
        output.table(columns, shown, empty="no rows")
    if len(rows) > limit:
        output.notice(f"there are more than these {limit:,} rows: --limit N, or --format json|csv|parquet")


def _json(frame: DataFrame, file: TextIO) -> None:
    titles = frame.columns
    for row in frame.toLocalIterator(prefetchPartitions=True):
        fields = {title: plain(value) for title, value in zip(titles, row, strict=True)}
        file.write(msgspec.json.encode(fields).decode() + "\n")


def _csv(frame: DataFrame, file: TextIO) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(frame.columns)
    for row in frame.toLocalIterator(prefetchPartitions=True):
        writer.writerow([text(value) for value in row])


@contextmanager
def _opened(out: str | None) -> Iterator[TextIO]:
    if out is None:
        yield sys.stdout
        sys.stdout.flush()
        return
    try:
        file = Path(out).open("w", encoding="utf-8", newline="")  # noqa: SIM115 - closed below
    except OSError as error:
        raise BadRequest(f"{out} can't be written: {error.strerror}") from None
    with file:
        yield file

"""``landbridge info``: the terminal at the other end."""

from __future__ import annotations

from typing import Any

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.output import Column

SHOW = [
    Column("URL", "url"),
    Column("Version", "version"),
    Column("Protocol", "protocol"),
    Column("Python", "python"),
    Column("Platform", "platform"),
    Column("Store", "store"),
    Column("Started", "started_at", units.ago, plain=units.iso),
    Column("Starts", "start", units.count),
    Column("Topics", "topics", units.count),
    Column("Connections", "connections", units.count),
]


def info(context: ContextName = None, json: Json = False) -> None:
    """Show the terminal that the context leads to.

    \b
    Examples:
      landbridge info
    """
    from landbridge.cli.loop import ask
    from landbridge.client.context import resolve

    result: dict[str, Any] = {**ask(context, "terminal.info"), "url": resolve(context=context).url}
    output.emit(result, lambda row: output.record(row["name"], SHOW, row))

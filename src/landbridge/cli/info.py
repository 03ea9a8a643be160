"""``landbridge info``: the terminal at the other end."""

from __future__ import annotations

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.options import ContextName
from landbridge.cli.output import columns

SHOW = columns(
    "URL | Version | Protocol | Python | Platform | Store | Incarnation | Started=started_at:moment | "
    "Starts=start:count | Node=node | Topics:count | Connections:count"
)


def info(context: ContextName = None) -> None:
    """Show the terminal that the context leads to.

    Examples:
      landbridge info
    """
    from landbridge.client.context import resolve

    result = output.fields(ask(context, lambda bus: bus.terminal.info()), url=resolve(context=context).url)
    if result["node"]:
        result["start"] = None  # nodes start one by one, and don't count that
    output.emit(result, lambda row: output.record(row["name"], SHOW, row))

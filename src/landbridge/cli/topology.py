"""``landbridge topology`` and ``landbridge network``: the terminals of a customer, their links, and what goes
on between them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.options import ContextName, option
from landbridge.cli.output import columns
from landbridge.cli.route import COST
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.protocol.operations import KnownTerminal, NetworkShown, TopologyShown

TERMINALS = columns("Terminal=name@cyan | Mode | Region | Address | State | Consumers:count")
LINKS = columns("From@cyan | To@cyan | Cost:cost | State")
PLACEMENTS = columns("Topic@cyan | Group@cyan | To | Why | Since:moment")
LANES = columns("Topic@cyan | To | On the way:count | Size=bytes:size | Waits for@yellow")
TOTALS = columns("Part@cyan | What | Count:count")
NETWORK = columns(
    "Terminal | Customer | Mode | Registry | In transit:count | Awaiting a key=awaiting_key:count"
)


def topology(
    svg: Path | None = option("Draw a picture into this file as well.", metavar="FILE"),
    route: list[str] | None = option("Mark a path in the picture. Repeatable.", metavar="FROM:TO"),
    context: ContextName = None,
) -> None:
    """Show the terminals and their links, as the terminal of this context sees them.

    Examples:
      landbridge topology
      landbridge topology --svg bus.svg --route paris:tokyo
    """
    wanted = [_ends(text) for text in route or []]

    async def look(bus: Bus) -> tuple[TopologyShown, list[list[str]]]:
        routes = [await bus.network.route(there, source) for source, there in wanted]
        return await bus.network.topology(), [route.best.hops for route in routes if route.best is not None]

    found, paths = ask(context, look)
    if svg is not None:
        _draw(svg, found, paths)
    output.emit(found, _show)
    if svg is not None:
        output.note(f"the picture is in {svg}")


def _ends(text: str) -> tuple[str, str]:
    source, colon, there = text.partition(":")
    if not source or not colon or not there:
        raise typer.BadParameter(f"{text!r} is not of the form FROM:TO")
    return source, there


def _draw(file: Path, found: TopologyShown, paths: list[list[str]]) -> None:
    from landbridge.plots import topology as picture

    # Names, which are unique in a customer, as everything else in the answer goes by them.
    nodes = [
        picture.TopologyNode(
            id=terminal.name,
            name=terminal.name,
            mode="client" if terminal.mode == "client" else "server",
            region=terminal.region,
            up=terminal.reachable,
            draining=terminal.draining,
        )
        for terminal in found.terminals
    ]
    links = [
        picture.TopologyLink(link.from_, link.to, link.cost if link.up else None) for link in found.links
    ]
    try:
        file.write_text(picture.svg(nodes, links, paths))
    except OSError as error:
        raise BadRequest(f"can't write {file}: {error.strerror}") from None


def _show(found: TopologyShown) -> None:
    rows = [output.fields(terminal, state=_state(terminal, found.me)) for terminal in found.terminals]
    output.table(TERMINALS, rows, empty="the directory names no terminals yet")
    print()
    links = [output.fields(link, state="up" if link.up else "one end only") for link in found.links]
    output.table(LINKS, links, empty="no links")
    if links:
        output.note(COST)
    for name, why in found.failures.items():
        output.notice(f"no link to {name}: {why}")
    for name, cut in found.single_points.items():
        output.notice(f"without {name}, {', '.join(cut)} can't be reached")
    if not found.registry_up:
        output.notice(f"the registry doesn't answer; version {found.directory_version} of the directory")


def _state(terminal: KnownTerminal, me: str) -> str:
    if terminal.name == me:
        state = "here"
    elif terminal.reachable:
        state = "up"
    else:
        state = "no path" if terminal.alive else "down"
    return f"{state}, draining" if terminal.draining else state


def network(context: ContextName = None) -> None:
    """Show what goes on between this terminal and the others: where groups are served, what is on its way.

    Examples:
      landbridge network
      landbridge network --json | jq .lanes
    """
    output.emit(ask(context, lambda bus: bus.network.show()), _show_network)


def _show_network(found: NetworkShown) -> None:
    row = output.fields(found, registry="up" if found.registry_up else "doesn't answer")
    output.record(f"the network at {found.terminal}", NETWORK, row)
    print()
    output.table(PLACEMENTS, row["placements"], empty="no groups elsewhere")
    print()
    output.table(LANES, row["lanes"], empty="nothing has been sent")
    print()
    totals = [
        {"part": part, "what": what.replace("_", " "), "count": count}
        for part in ("forwarder", "carrier", "arrivals")
        for what, count in row[part].items()
    ]
    output.table(TOTALS, totals, empty="no counts")

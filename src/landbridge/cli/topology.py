"""``landbridge topology`` and ``landbridge network``: the terminals of a customer, their links, and what goes
on between them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.output import Column
from landbridge.cli.route import COST, exact, milliseconds
from landbridge.errors import BadRequest

TERMINALS = [
    Column("Terminal", "name", style="cyan"),
    Column("Mode", "mode"),
    Column("Region", "region"),
    Column("Address", "address"),
    Column("State", "state"),
    Column("Consumers", "consumers", units.count),
]
LINKS = [
    Column("From", "from", style="cyan"),
    Column("To", "to", style="cyan"),
    Column("Cost", "cost", milliseconds, plain=exact),
    Column("State", "state"),
]
PLACEMENTS = [
    Column("Topic", "topic", style="cyan"),
    Column("Group", "group", style="cyan"),
    Column("To", "to"),
    Column("Why", "why"),
    Column("Since", "since", units.ago, plain=units.iso),
]
LANES = [
    Column("Topic", "topic", style="cyan"),
    Column("To", "to"),
    Column("On the way", "on_the_way", units.count),
    Column("Size", "bytes", units.size),
    Column("Waits for", "waits_for", style="yellow"),
]
TOTALS = [Column("Part", "part", style="cyan"), Column("What", "what"), Column("Count", "count", units.count)]
NETWORK = [
    Column("Terminal", "terminal"),
    Column("Customer", "customer"),
    Column("Mode", "mode"),
    Column("Registry", "registry"),
    Column("In transit", "in_transit", units.count),
    Column("Awaiting a key", "awaiting_key", units.count),
]


def topology(
    svg: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw a picture into this file as well.")
    ] = None,
    route: Annotated[
        list[str] | None,
        typer.Option(metavar="FROM:TO", help="Mark a path in the picture. Repeatable."),
    ] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Show the terminals and their links, as the terminal of this context sees them.

    \b
    Examples:
      landbridge topology
      landbridge topology --svg bus.svg --route paris:tokyo
    """
    from landbridge.cli.loop import connected, run

    wanted = [_ends(text) for text in route or []]

    async def main() -> tuple[dict[str, Any], list[list[str]]]:
        async with connected(context, "landbridge topology") as bus:
            found = await bus.call("topology.show")
            paths = []
            for source, there in wanted:
                best = (await bus.call("route.show", there=there, source=source))["best"]
                if best is not None:
                    paths.append(best["hops"])
            return found, paths

    found, paths = run(main())
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


def _draw(file: Path, found: dict[str, Any], paths: list[list[str]]) -> None:
    from landbridge.cli import picture

    # Names, which are unique in a customer, as everything else in the answer goes by them.
    nodes = [
        picture.Node(
            id=terminal["name"],
            name=terminal["name"],
            mode=terminal["mode"],
            region=terminal["region"],
            up=terminal["reachable"],
            draining=terminal["draining"],
        )
        for terminal in found["terminals"]
    ]
    links = [
        picture.Link(link["from"], link["to"], link["cost"] if link["up"] else None)
        for link in found["links"]
    ]
    try:
        file.write_text(picture.svg(nodes, links, paths))
    except OSError as error:
        raise BadRequest(f"can't write {file}: {error.strerror}") from None


def _show(found: dict[str, Any]) -> None:
    rows = [{**terminal, "state": _state(terminal, found["me"])} for terminal in found["terminals"]]
    output.table(TERMINALS, rows, empty="the directory names no terminals yet")
    print()
    links = [{**link, "state": "up" if link["up"] else "one end only"} for link in found["links"]]
    output.table(LINKS, links, empty="no links")
    if links:
        output.note(COST)
    for name, why in found["failures"].items():
        output.notice(f"no link to {name}: {why}")
    for name, cut in found["single_points"].items():
        output.notice(f"without {name}, {', '.join(cut)} can't be reached")
    if not found["registry_up"]:
        output.notice(f"the registry doesn't answer; version {found['directory_version']} of the directory")


def _state(terminal: dict[str, Any], me: str) -> str:
    if terminal["name"] == me:
        words = ["here"]
    elif terminal["reachable"]:
        words = ["up"]
    else:
        words = ["no path" if terminal["alive"] else "down"]
    return ", ".join(words + (["draining"] if terminal["draining"] else []))


def network(context: ContextName = None, json: Json = False) -> None:
    """Show what goes on between this terminal and the others: where groups are served, what is on its way.

    \b
    Examples:
      landbridge network
      landbridge network --json | jq .lanes
    """
    from landbridge.cli.loop import ask

    output.emit(ask(context, "network.show"), _show_network)


def _show_network(found: dict[str, Any]) -> None:
    row = {**found, "registry": "up" if found["registry_up"] else "doesn't answer"}
    output.record(f"the network at {found['terminal']}", NETWORK, row)
    print()
    output.table(PLACEMENTS, found["placements"], empty="no groups elsewhere")
    print()
    output.table(LANES, found["lanes"], empty="nothing has been sent")
    print()
    totals = [
        {"part": part, "what": what.replace("_", " "), "count": count}
        for part in ("forwarder", "carrier", "arrivals")
        for what, count in found[part].items()
    ]
    output.table(TOTALS, totals, empty="no counts")

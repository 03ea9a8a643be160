"""``landbridge where`` and ``landbridge why``: a message on its way."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from landbridge.cli import output, units
from landbridge.cli.options import ContextName, Json, given
from landbridge.cli.output import Column

PLACES = [
    Column("Topic", "topic", style="cyan"),
    Column("Group", "group", style="cyan"),
    Column("At", "at"),
    Column("State", "state"),
    Column("Waits for", "waits_for", style="yellow"),
    Column("By", "by"),
    Column("Arrived", "arrived_at", units.ago, plain=units.iso),
]
WHY = [
    Column("Terminal", "terminal", style="cyan"),
    Column("Because", "terminal_why"),
    Column("Way", "way"),
    Column("Because", "route_why"),
    Column("Sent", "sent_at", units.ago, plain=units.iso),
    Column("Arrived", "arrived_at", units.ago, plain=units.iso),
]

Id = Annotated[
    str, typer.Argument(metavar="MESSAGE_ID", help="As 'publish' has printed it.", show_default=False)
]
OfTopic = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Look only there; needed for ids that a producer chose."),
]


def where(id: Id, topic: OfTopic = None, context: ContextName = None, json: Json = False) -> None:
    """Where a message is, for each group: at which terminal, in which state, and what it waits for.

    \b
    Examples:
      landbridge where 01a1e2506bd77c30b2c892b97d32b9b6-0
    """
    from landbridge.cli.loop import ask

    output.emit(ask(context, "message.where", id=id, **given(topic=topic)), _show_places)


def _show_places(found: dict[str, Any]) -> None:
    rows = []
    for place in found["places"]:
        here = {"topic": place["topic"], "at": place["terminal"], "state": "stored"}
        rows += [{**here, **_group(place, group)} for group in place["groups"]] or [here]
    output.table(PLACES, rows, empty="nowhere")


def _group(place: dict[str, Any], group: dict[str, Any]) -> dict[str, Any]:
    came_by = group.get("came_by") or place["came_by"]
    by = [*came_by, group["at"]] if came_by else group["route"]
    arrived_at = group.get("arrived_at") or place["arrived_at"]
    return {**group, "by": " → ".join(by), "arrived_at": arrived_at or None}


def why(id: Id, topic: OfTopic = None, context: ContextName = None, json: Json = False) -> None:
    """Why a message went to which terminal, and by which way. Ask the terminal where it was published.

    \b
    Examples:
      landbridge why 01a1e2506bd77c30b2c892b97d32b9b6-0
    """
    from landbridge.cli.loop import ask

    output.emit(ask(context, "message.why", id=id, **given(topic=topic)), _show_why)


def _show_why(found: dict[str, Any]) -> None:
    if not found["groups"]:
        print("no group of its topic is served at another terminal")
    for number, group in enumerate(found["groups"]):
        if number:
            print()
        way = "; then ".join(" → ".join(route) for route in group["routes"])
        moments = {name: group.get(name) or None for name in ("sent_at", "arrived_at")}
        print(f"group {group['group']}, offset {group['offset']}")
        output.record("", WHY, {**group, **moments, "way": way})

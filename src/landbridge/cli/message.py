"""``landbridge where`` and ``landbridge why``: a message on its way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.options import ContextName, argument, option
from landbridge.cli.output import columns

if TYPE_CHECKING:
    from landbridge.protocol.operations import GroupPlace, MessagePlace, MessagePlaces, MessageReasons

PLACES = columns("Topic@cyan | Group@cyan | At | State | Waits for@yellow | By | Arrived=arrived_at:moment")
WHY = columns(
    "Terminal@cyan | Because=terminal_why | Way | Because=route_why | Sent=sent_at:moment | "
    "Arrived=arrived_at:moment"
)

Id = Annotated[str, argument("MESSAGE_ID", "As 'publish' has printed it.")]
OfTopic = Annotated[
    str | None, option("Look only there; needed for ids that a producer chose.", "--topic", metavar="TOPIC")
]


def where(id: Id, topic: OfTopic = None, context: ContextName = None) -> None:
    """Where a message is, for each group: at which terminal, in which state, and what it waits for.

    Examples:
      landbridge where 01a1e2506bd77c30b2c892b97d32b9b6-0
    """
    output.emit(ask(context, lambda bus: bus.messages.where(id, topic)), _show_places)


def _show_places(found: MessagePlaces) -> None:
    rows = []
    for place in found.places:
        here = {"topic": place.topic, "at": place.terminal, "state": "stored"}
        rows += [here | _group(place, group) for group in place.groups] or [here]
    output.table(PLACES, rows, empty="nowhere")


def _group(place: MessagePlace, group: GroupPlace) -> dict[str, Any]:
    came_by = group.came_by or place.came_by
    by = [*came_by, group.at] if came_by else group.route
    return output.fields(group, by=" → ".join(by), arrived_at=group.arrived_at or place.arrived_at or None)


def why(id: Id, topic: OfTopic = None, context: ContextName = None) -> None:
    """Why a message went to which terminal, and by which way. Ask the terminal where it was published.

    Examples:
      landbridge why 01a1e2506bd77c30b2c892b97d32b9b6-0
    """
    output.emit(ask(context, lambda bus: bus.messages.why(id, topic)), _show_why)


def _show_why(found: MessageReasons) -> None:
    if not found.groups:
        print("no group of its topic is served at another terminal")
    for number, group in enumerate(found.groups):
        if number:
            print()
        way = "; then ".join(" → ".join(route) for route in group.routes)
        print(f"group {group.group}, offset {group.offset}")
        # A moment that is 0 is left out of the fields, and so shown as a dash.
        output.record("", WHY, output.fields(group, way=way))

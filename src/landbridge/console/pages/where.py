"""Where a message is: its way over terminals, and its state in each group."""

from __future__ import annotations

from typing import Any

from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.errors import BadRequest, BusError
from landbridge.protocol import operations as table

#: Seconds after which the states are asked for again.
EVERY = 2.0


async def places(view: PageView) -> dict[str, Any]:
    query = view.query
    id, topic, offset = (query.get(name, "").strip() for name in ("id", "topic", "offset"))
    if not (id or (topic and offset)):
        return {"places": None, "reasons": {}}
    asked: dict[str, Any] = {"id": id, "topic": topic or None}
    if offset:
        if not offset.isdecimal() or len(offset) > 18:
            raise BadRequest(f"{offset[:40]!r} is not an offset")
        asked["offset"] = int(offset)
    found = (await view.bus.messages.where(**asked)).places
    return {"places": found, "reasons": await _reasons(view, found)}


async def _reasons(view: PageView, found: list[table.MessagePlace]) -> dict[str, table.GroupReason]:
    """By group: when the message was sent to another terminal, and why there."""
    reasons = {}
    for place in found:
        try:
            said = await view.bus.messages.why(place.id, place.topic, place.offset)
        except BusError:  # the terminal stands alone, or did not publish it
            continue
        reasons.update({f"{place.topic}/{reason.group}": reason for reason in said.groups})
    return reasons


PAGES = [
    Page(
        "/console/where", "Where is it", "where.html", query=("id", "topic", "offset"),
        fragments=[Fragment("places", "_where.html", places, every=EVERY)],
    )
]  # fmt: skip

ACTIONS: list[Action] = []

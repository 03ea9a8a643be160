"""The map: the terminals of the customer, their links, and the ways between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.errors import BadRequest, BusError
from landbridge.plots.topology import TopologyLink, TopologyNode, svg
from landbridge.protocol import operations as table
from landbridge.protocol.http import problem_of

PATH = "/console/map"
EVERY = 3.0
QUERY = ("from", "to", "message")


async def draw(view: PageView) -> dict[str, Any]:
    try:
        found = await view.bus.network.topology()
    except BadRequest:  # this terminal stands alone
        return {"topology": None}
    way = await _way(view)
    return {
        "topology": found,
        "network": await view.bus.network.show(),
        "states": {terminal.name: _state(terminal, found.me) for terminal in found.terminals},
        "picture": _picture(found, way["paths"]),
        "measured": await _measured(view, found),
        **way,
    }


def _picture(found: table.TopologyShown, paths: Sequence[Sequence[str]]) -> Markup:
    nodes = [
        TopologyNode(
            id=terminal.name,
            name=terminal.name,
            mode="client" if terminal.mode == "client" else "server",
            region=terminal.region,
            up=terminal.reachable,
            draining=terminal.draining,
        )
        for terminal in found.terminals
    ]
    links = [TopologyLink(link.from_, link.to, link.cost if link.up else None) for link in found.links]
    return Markup(svg(nodes, links, paths, in_page=True))


async def _measured(view: PageView, found: table.TopologyShown) -> dict[str, table.LinkCost]:
    """What the links of this terminal measure, by the terminal at their other end."""
    measured = {}
    for link in found.links:
        if not link.up or found.me not in (link.from_, link.to):
            continue
        there = link.to if link.from_ == found.me else link.from_
        shown = await view.bus.network.route(there)
        for each in shown.links:
            if each.parts is not None and {each.from_, each.to} == {found.me, there}:
                measured[there] = each
    return measured


async def _way(view: PageView) -> dict[str, Any]:
    """The way that the form asks for: between two terminals, or of a message."""
    query = view.query
    nothing: dict[str, Any] = {"route": None, "places": None, "paths": [], "error": None}
    try:
        if message := query.get("message", "").strip():
            found = await view.bus.messages.where(message)
            return nothing | {"places": found.places, "paths": _paths(found.places)}
        if there := query.get("to", "").strip():
            route = await view.bus.network.route(there, query.get("from", "").strip() or None)
            shown = [path for path in (route.current or route.best, *route.alternates) if path is not None]
            return nothing | {"route": route, "paths": [path.hops for path in shown[:3]]}
    except BusError as error:
        return nothing | {"error": problem_of(error)}
    return nothing


def _paths(places: Sequence[table.MessagePlace]) -> list[list[str]]:
    """The ways that a message has taken, each once."""
    paths: list[list[str]] = []
    for place in places:
        for way in ([*place.came_by], *([*group.route] for group in place.groups)):
            if len(way) > 1 and way not in paths:
                paths.append(way)
    return paths[:3]


def _state(terminal: table.KnownTerminal, me: str) -> tuple[str, str]:
    """A word and the class of its badge."""
    if terminal.name == me:
        word, kind = "here", "info"
    elif terminal.reachable:
        word, kind = "up", "ok"
    else:
        word, kind = ("no path" if terminal.alive else "down"), "bad"
    return (f"{word}, draining", "warn") if terminal.draining else (word, kind)


PAGES = [
    Page(
        PATH, "Map", "map.html", scope="observe", query=QUERY,
        fragments=[Fragment("map", "_map.html", draw, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS: list[Action] = []

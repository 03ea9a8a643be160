"""Nodes: the processes that are one terminal, which units each has, and their maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from landbridge.client.bus import Bus
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.core.wording import counted
from landbridge.protocol import operations as table

LIST = "/console/nodes"
EVERY = 2.0


async def rows(view: PageView) -> dict[str, Any]:
    return {"found": await view.ask(table.NODE_LIST)}


# -- actions -------------------------------------------------------------------------------------------


async def draining(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.nodes.list()
    node = next((node for node in found.nodes if node.name == arguments["name"]), None)
    others = [each for each in found.nodes if each.state == "live" and each.name != arguments["name"]]
    sentences = [
        f"Its {counted(len(node.units) if node else 0, 'unit')} go to other nodes, one after the other."
    ]
    if not others:
        sentences.append("No other node is live: it keeps them until there is one.")
    return [*sentences, "Its clients are told to come again. It takes no units until it is resumed."]


PAGES = [
    Page(
        LIST, "Nodes", "nodes.html", scope="observe",
        fragments=[Fragment("rows", "_nodes.html", rows, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "node.drain", table.NODE_DRAIN, "Drain", done="The node {name} gives its units up", meaning=draining
    ),
    Action("node.resume", table.NODE_RESUME, "Resume", done="The node {name} takes units again"),
]

"""Feeds (WebSub) and their subscriptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from landbridge.client.bus import Bus
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.core.wording import counted
from landbridge.protocol import operations as table

LIST = "/console/websub"
ONE = "/console/websub/{topic}/{id}"
EVERY = 5.0


async def feeds(view: PageView) -> dict[str, Any]:
    return {"page_of": await view.ask(table.WEBSUB_FEEDS, after=view.query.get("feeds_after", ""))}


async def subscriptions(view: PageView) -> dict[str, Any]:
    if not view.may("observe"):
        return {"page_of": None}
    topic, after = view.query.get("topic") or None, view.query.get("after", "")
    return {"page_of": await view.ask(table.WEBSUB_LIST, topic=topic, after=after)}


async def show(view: PageView) -> dict[str, Any]:
    return {"subscription": await view.bus.websub.inspect(view.names["topic"], view.names["id"])}


# -- actions -------------------------------------------------------------------------------------------


async def opening(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    return [
        f"Anybody who reaches the HTTP port may read the newest message of {arguments['topic']}, and "
        "subscribe to the ones that follow, without a token.",
    ]


async def closing(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    feed = await bus.websub.show(arguments["topic"])
    return [f"{counted(feed.subscriptions, 'subscription')} end, and their callbacks are told."]


async def deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.websub.inspect(arguments["topic"], arguments["id"])
    return [f"{found.callback} is told that it gets nothing more. It may subscribe again."]


PAGES = [
    Page(
        LIST, "WebSub", "websub.html", query=("topic", "after", "feeds_after"),
        fragments=[
            Fragment("feeds", "_feeds.html", feeds, every=EVERY),
            Fragment("subscriptions", "_subscriptions.html", subscriptions, every=EVERY),
        ],
    ),
    Page(
        ONE, "Subscription", "subscription.html", scope="observe", under=LIST,
        fragments=[Fragment("subscription", "_subscription.html", show, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "websub.open", table.WEBSUB_OPEN, "Open the feed", done="The topic {topic} is a feed", meaning=opening
    ),
    Action(
        "websub.close", table.WEBSUB_CLOSE, "Close", done="The feed {topic} is closed",
        danger=True, meaning=closing,
    ),
    Action(
        "websub.delete", table.WEBSUB_DELETE, "End the subscription", done="The subscription has ended",
        danger=True, meaning=deletion, to=LIST,
    ),
]  # fmt: skip

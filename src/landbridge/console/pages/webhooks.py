"""Webhooks: where messages are sent to, each attempt, and their control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.pages.outlets import CHANGE, SEE, read_match, read_range, replay_told
from landbridge.core.time import parse_span, show_span
from landbridge.core.wording import counted
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

LIST = "/console/webhooks"
ONE = "/console/topics/{topic}/webhooks/{name}"
EVERY = 3.0


async def rows(view: PageView) -> dict[str, Any]:
    topic, after = view.query.get("topic") or None, view.query.get("after", "")
    return {"page_of": await view.ask(table.WEBHOOK_LIST, topic=topic, after=after)}


async def show(view: PageView) -> dict[str, Any]:
    return {"webhook": await view.bus.webhooks.show(view.names["topic"], view.names["name"])}


async def details(view: PageView) -> dict[str, Any]:
    shown = await show(view)
    match = shown["webhook"].options.match
    text = msgspec.json.format(msgspec.json.encode(match), indent=2).decode() if match else ""
    return {"title": view.names["name"], "match": text, **shown}


# -- actions -------------------------------------------------------------------------------------------


def read_new(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.create``."""
    arguments: dict[str, Any] = msgspec.to_builtins(
        table.WEBHOOK_CREATE.read(read_match(fields), strict=False)
    )
    return arguments


def read_change(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.update``. A rate that was left empty is no limit."""
    given = read_match(fields)
    given.setdefault("rate", None)
    given.setdefault("content_type", None)
    arguments: dict[str, Any] = msgspec.to_builtins(table.WEBHOOK_UPDATE.read(given, strict=False))
    return arguments


def read_rotation(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.rotate``."""
    try:
        overlap = parse_span(forms.first(fields, "overlap") or "1d")
    except ValueError as error:
        raise BadRequest(f"overlap: {error}") from None
    return {"topic": forms.first(fields, "topic"), "name": forms.first(fields, "name"), "overlap": overlap}


async def replay(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    webhook = await bus.webhooks.show(arguments["topic"], arguments["name"])
    again = f"are posted to {webhook.url} again, with the same webhook-id"
    return replay_told(arguments, again, webhook.lag)


async def rotation(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    overlap = arguments["overlap"]
    return [
        "The webhook gets a new secret, which is shown once.",
        f"For {show_span(overlap)} requests are signed with the one before, too."
        if overlap
        else "The one before is not used any more, from now on.",
    ]


async def deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    webhook = await bus.webhooks.show(arguments["topic"], arguments["name"])
    return [
        f"The webhook {webhook.name} goes with its group. This can’t be undone.",
        f"{counted(webhook.lag or 0, 'message')} that wait are not sent to {webhook.url}.",
    ]


PAGES = [
    Page(
        LIST, "Webhooks", "webhooks.html", query=("topic", "after"),
        fragments=[Fragment("rows", "_webhooks.html", rows, every=EVERY)],
    ),
    Page("/console/new-webhook", "New webhook", "new_webhook.html", scope="subscribe", under=LIST,
         query=("topic",)),
    Page(
        ONE, "Webhook", "webhook.html", scope=SEE, under=LIST, load=details,
        fragments=[Fragment("webhook", "_webhook.html", show, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "webhook.create", table.WEBHOOK_CREATE, "Create the webhook", done="The webhook {name} is there",
        read=read_new, secret="secret", to=ONE,
    ),
    Action(
        "webhook.update", table.WEBHOOK_UPDATE, "Save", done="The webhook {name} is changed",
        read=read_change, to=ONE,
    ),
    Action("webhook.test", table.WEBHOOK_TEST, "Send a test", done="A test was sent to {name}", scope=CHANGE),
    Action("webhook.pause", table.WEBHOOK_PAUSE, "Pause", done="The webhook {name} is paused", scope=CHANGE),
    Action("webhook.resume", table.WEBHOOK_RESUME, "Resume", done="The webhook {name} goes on", scope=CHANGE),
    Action(
        "webhook.replay", table.WEBHOOK_REPLAY, "Replay", done="{messages} messages are sent again",
        meaning=replay, read=read_range, scope=CHANGE,
    ),
    Action(
        "webhook.rotate", table.WEBHOOK_ROTATE, "Rotate the secret",
        done="The webhook {name} has a new secret", danger=True, meaning=rotation, read=read_rotation,
        secret="secret", scope=CHANGE,
    ),
    Action(
        "webhook.delete", table.WEBHOOK_DELETE, "Delete the webhook", done="The webhook {name} is deleted",
        danger=True, meaning=deletion, to=LIST, scope=CHANGE,
    ),
]  # fmt: skip

"""Webhooks: where messages are sent to, each attempt, and their control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.pages.moments import read_optional
from landbridge.core.time import parse_span, show_iso, show_span
from landbridge.core.wording import counted
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

LIST = "/console/webhooks"
ONE = "/console/topics/{topic}/webhooks/{name}"
SEE = "observe|subscribe:{topic}"
#: Who may change a webhook: operators, and its owner, who reads the topic.
CHANGE = "operate|subscribe:{topic}"
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


def _options(fields: forms.Fields) -> dict[str, Any]:
    """What a form says of a webhook; an empty match is none."""
    match = forms.first(fields, "match").strip()
    given = forms.arguments([(name, value) for name, value in fields if name != "match"])
    if any(name == "match" for name, _ in fields):
        try:
            given["match"] = msgspec.json.decode(match) if match else None
        except msgspec.DecodeError as error:
            raise BadRequest(f"match is not JSON: {error}", hint='{"key": "eu-*"}') from None
    return given


def read_new(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.create``."""
    arguments: dict[str, Any] = msgspec.to_builtins(table.WEBHOOK_CREATE.read(_options(fields), strict=False))
    return arguments


def read_change(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.update``. A rate that was left empty is no limit."""
    given = _options(fields)
    given.setdefault("rate", None)
    given.setdefault("content_type", None)
    arguments: dict[str, Any] = msgspec.to_builtins(table.WEBHOOK_UPDATE.read(given, strict=False))
    return arguments


def read_range(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.replay``: a range by offset, or by moment."""
    found: dict[str, Any] = {name: forms.first(fields, name) for name in ("topic", "name")}
    for name in ("first", "end"):
        text = forms.first(fields, name).replace(",", "").strip()
        if text and not (text.isdecimal() and len(text) < 20):
            raise BadRequest(f"{text[:40]!r} is not an offset", hint="a number, as the lists show it")
        if text:
            found[name] = int(text)
    for name in ("begin", "until"):
        moment = read_optional(forms.first(fields, name))
        if moment is not None:
            found[name] = moment
    if not ({"first", "end", "begin", "until"} & found.keys()):
        raise BadRequest("no range is given", hint="give the first offset, or the moment that it begins at")
    return found


def read_rotation(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``webhook.rotate``."""
    try:
        overlap = parse_span(forms.first(fields, "overlap") or "1d")
    except ValueError as error:
        raise BadRequest(f"overlap: {error}") from None
    return {"topic": forms.first(fields, "topic"), "name": forms.first(fields, "name"), "overlap": overlap}


async def replay(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    webhook = await bus.webhooks.show(arguments["topic"], arguments["name"])
    if "first" in arguments or "end" in arguments:
        begin, end = f"offset {arguments.get('first', 0)}", arguments.get("end", "the end of the log")
    else:
        begin = show_iso(arguments["begin"]) if "begin" in arguments else "the oldest message"
        end = show_iso(arguments["until"]) if "until" in arguments else "now"
    return [
        f"The messages from {begin} to {end} are posted to {webhook.url} again, with the same webhook-id.",
        f"{counted(webhook.lag or 0, 'message')} wait for the receiver already.",
    ]


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

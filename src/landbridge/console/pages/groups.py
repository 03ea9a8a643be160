"""Groups: one with its consumers, and what a move of its cursor means."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.pages.topics import TOPIC, sender_of
from landbridge.core.sizes import show_count
from landbridge.core.time import SECOND, parse_moment, parse_span, show_iso
from landbridge.core.wording import counted
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

GROUP = f"{TOPIC}/groups/{{group}}"
SEE = "observe|publish|subscribe:{topic}"
_SPANS = ("ack_within", "backoff", "backoff_most")
EVERY = 2.0


async def show(view: PageView) -> dict[str, Any]:
    topic, name = view.names["topic"], view.names["group"]
    group = await view.bus.groups.show(topic, name)
    [bounds] = (await view.bus.topics.wait({topic: 0})).values() if view.may(READ, topic=topic) else [None]
    return {"group": group, "bounds": bounds, "sent_by": sender_of(topic, name)}


async def details(view: PageView) -> dict[str, Any]:
    group = await view.bus.groups.show(view.names["topic"], view.names["group"])
    match = msgspec.json.format(msgspec.json.encode(group.options.match), indent=2).decode()
    return {"title": group.name, "options": group.options, "match": match if group.options.match else ""}


READ = "observe|subscribe:{topic}"


# -- actions -------------------------------------------------------------------------------------------


def read_options(fields: forms.Fields) -> dict[str, Any]:
    """The options of a group from a form: spans as people write them, the match as JSON."""
    found: forms.Fields = []
    for name, value in fields:
        try:
            found.append((name, str(parse_span(value)) if value and name in _SPANS else value))
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
    match = forms.first(fields, "match")
    given = forms.arguments([(name, value) for name, value in found if name != "match"], lists=("hours",))
    if match.strip():
        given["match"] = forms.json_of(match, "match", '{"key": "eu-*"}')
    arguments: dict[str, Any] = msgspec.to_builtins(table.GROUP_CREATE.read(given, strict=False))
    return arguments


def read_place(fields: forms.Fields) -> dict[str, Any]:
    """Where a group is to go: the choice of the form, with an offset or a moment."""
    where, value = forms.first(fields, "where"), forms.first(fields, "at").strip()
    found: dict[str, Any] = {name: forms.first(fields, name) for name in ("topic", "name")}
    if where in ("earliest", "latest"):
        return found | {"to": where}
    if where == "offset":
        if not value.replace(",", "").isdecimal() or len(value) > 19:
            raise BadRequest(f"{value[:40]!r} is not an offset", hint="a number, as the lists show it")
        return found | {"to": int(value.replace(",", ""))}
    try:
        return found | {"time": int(parse_moment(value, time.time()) * SECOND)}
    except (ValueError, OverflowError) as error:
        raise BadRequest(
            f"not a moment: {error}", hint="2030-01-31T12:00:00Z, or -2h for two hours ago"
        ) from None


async def move(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    """What a move of a cursor means, by what the log has now."""
    topic, name = arguments["topic"], arguments["name"]
    facts, group = await bus.topics.show(topic), await bus.groups.show(topic, name)
    to = arguments.get("to")
    if "time" in arguments:
        to = (await bus.topics.seek_time({topic: arguments["time"]}))[topic]
    target = {"earliest": facts.first, "latest": facts.end}.get(to, to) if isinstance(to, str) else to
    assert isinstance(target, int)
    if target < facts.first:
        raise BadRequest(f"offset {target} is gone", hint=f"the oldest one is {facts.first}")
    target = min(target, facts.end)
    return list(_told(group, target, facts.end, arguments.get("time")))


def _told(group: table.GroupDetails, target: int, end: int, moment: int | None) -> Sequence[str]:
    settled_ahead = end - group.floor - group.lag
    found = [
        f"The group {group.name} of {group.topic} has settled everything below offset {group.floor}"
        + (f" and {counted(settled_ahead, 'message')} beyond" if settled_ahead else "")
        + f"; {counted(group.lag, 'message')} wait.",
        f"It goes to offset {target}"
        + (f", the first message taken at or after {show_iso(moment)}" if moment is not None else "")
        + ("." if target < end else ", the end of the log."),
    ]
    if target > group.floor:
        most = min(target - group.floor, group.lag)
        found.append(
            f"Up to {counted(most, 'message')} that it has not settled will never be delivered to it."
        )
    elif target < group.floor:
        again = group.floor - target
        found.append(f"{counted(again, 'message')} that it has settled will be delivered again.")
    found.append(f"{counted(end - target, 'message')} will wait for its consumers.")
    if group.leased:
        found.append(
            f"{show_count(group.leased)} that consumers hold now: what they settle of it no longer counts."
        )
    return found


async def deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    group = await bus.groups.show(arguments["topic"], arguments["name"])
    return [
        f"The group {group.name} of {group.topic} and its cursor are removed. This can’t be undone.",
        f"It has not settled {counted(group.lag, 'message')}; for it they are lost.",
        f"It has {counted(len(group.consumers), 'consumer')} now, which lose it.",
    ]


PAGES = [
    Page(
        GROUP, "Group", "group.html", scope=SEE, under="/console/topics", load=details,
        fragments=[Fragment("group", "_group.html", show, every=EVERY)],
    ),
    Page(
        f"{TOPIC}/new-group", "New group", "new_group.html", scope="operate|subscribe:{topic}",
        under="/console/topics",
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "group.create", table.GROUP_CREATE, "Create the group", done="The group {name} of {topic} is there",
        read=read_options, to="/console/topics/{topic}/groups/{name}",
    ),
    Action(
        "group.update", table.GROUP_UPDATE, "Save", done="The options of {name} are saved",
        read=read_options, to="/console/topics/{topic}/groups/{name}",
    ),
    Action("group.pause", table.GROUP_PAUSE, "Pause", done="The group {name} of {topic} is paused"),
    Action("group.resume", table.GROUP_RESUME, "Resume", done="The group {name} of {topic} is resumed"),
    Action(
        "group.seek", table.GROUP_SEEK, "Move the group", done="The group {name} is at offset {floor}",
        danger=True, meaning=move, read=read_place,
    ),
    Action(
        "group.delete", table.GROUP_DELETE, "Delete the group", done="The group {name} of {topic} is deleted",
        danger=True, meaning=deletion, to="/console/topics/{topic}",
    ),
]  # fmt: skip

"""Schedules: when they fire next, what became of their firings, and their control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.pages.moments import read_moment
from landbridge.core.time import parse_span, show_iso
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

LIST = "/console/schedules"
ONE = "/console/topics/{topic}/schedules/{name}"
SEE = "observe|publish|subscribe:{topic}"
#: Who may change a schedule: operators, and its owner, who publishes to the topic.
CHANGE = "operate|publish:{topic}"
EVERY = 5.0
#: Firings to come that are shown.
FIRINGS = 10
_SPANS = ("catch_up", "jitter")


async def rows(view: PageView) -> dict[str, Any]:
    topic, after = view.query.get("topic") or None, view.query.get("after", "")
    return {"page_of": await view.ask(table.SCHEDULE_LIST, topic=topic, after=after)}


async def show(view: PageView) -> dict[str, Any]:
    name, topic = view.names["name"], view.names["topic"]
    return {"schedule": await view.bus.schedules.show(topic, name, FIRINGS)}


async def details(view: PageView) -> dict[str, Any]:
    shown = await show(view)
    spec = shown["schedule"].options
    payload = spec.payload if isinstance(spec.payload, str) else msgspec.json.encode(spec.payload).decode()
    return {"title": view.names["name"], "payload": payload, **shown}


# -- actions -------------------------------------------------------------------------------------------


def _spans(fields: forms.Fields) -> forms.Fields:
    found: forms.Fields = []
    for name, value in fields:
        try:
            found.append((name, str(parse_span(value)) if value and name in _SPANS else value))
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
    return found


def read_new(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``schedule.create``, where spans are written as people do."""
    arguments: dict[str, Any] = msgspec.to_builtins(
        table.SCHEDULE_CREATE.read(forms.arguments(_spans(fields)), strict=False)
    )
    return arguments


def read_change(fields: forms.Fields) -> dict[str, Any]:
    """The same of ``schedule.update``."""
    arguments: dict[str, Any] = msgspec.to_builtins(
        table.SCHEDULE_UPDATE.read(forms.arguments(_spans(fields)), strict=False)
    )
    return arguments


def read_range(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``schedule.backfill``."""
    found: dict[str, Any] = {name: forms.first(fields, name) for name in ("topic", "name")}
    return found | {end: read_moment(forms.first(fields, end)) for end in ("begin", "until")}


async def trigger(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    schedule = await bus.schedules.show(arguments["topic"], arguments["name"], 1)
    found = [f"One message is published to {schedule.topic} now, in the name of {schedule.owner}."]
    if schedule.next_at:
        found.append(f"The next firing by the timetable stays at {show_iso(schedule.next_at)}.")
    return found


async def backfill(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    begin, until = show_iso(arguments["begin"]), show_iso(arguments["until"])
    return [
        f"A message is published to {arguments['topic']} for each firing from {begin} to {until}.",
        "Firings that were published before have the same message id; they are published again.",
    ]


async def removal(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    schedule = await bus.schedules.show(arguments["topic"], arguments["name"], 1)
    waiting = f" {len(schedule.waiting)} firings that wait are dropped." if schedule.waiting else ""
    return [f"The schedule {schedule.name} ({schedule.when}) publishes nothing more.{waiting}"]


PAGES = [
    Page(
        LIST, "Schedules", "schedules.html", query=("topic", "after"),
        fragments=[Fragment("rows", "_schedules.html", rows, every=EVERY)],
    ),
    Page("/console/new-schedule", "New schedule", "new_schedule.html", scope="publish", under=LIST,
         query=("topic",)),
    Page(
        ONE, "Schedule", "schedule.html", scope=SEE, under=LIST, load=details,
        fragments=[Fragment("schedule", "_schedule.html", show, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "schedule.create", table.SCHEDULE_CREATE, "Create the schedule", done="The schedule {name} is there",
        read=read_new, to=ONE,
    ),
    Action(
        "schedule.update", table.SCHEDULE_UPDATE, "Save", done="The schedule {name} is changed",
        read=read_change, to=ONE,
    ),
    Action(
        "schedule.pause", table.SCHEDULE_PAUSE, "Pause", done="The schedule {name} is paused", scope=CHANGE
    ),
    Action(
        "schedule.resume", table.SCHEDULE_RESUME, "Resume", done="The schedule {name} goes on", scope=CHANGE
    ),
    Action(
        "schedule.trigger", table.SCHEDULE_TRIGGER, "Trigger now", done="A firing of {name} is published",
        meaning=trigger, scope=CHANGE,
    ),
    Action(
        "schedule.backfill", table.SCHEDULE_BACKFILL, "Backfill", done="{firings} firings are published",
        meaning=backfill, read=read_range, scope=CHANGE,
    ),
    Action(
        "schedule.remove", table.SCHEDULE_REMOVE, "Remove the schedule",
        done="The schedule {name} is removed", danger=True, meaning=removal, to=LIST, scope=CHANGE,
    ),
]  # fmt: skip

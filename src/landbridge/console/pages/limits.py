"""Limits, the levels of the status log, and what the process logs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Page, PageView
from landbridge.console.rendering import written_size
from landbridge.core.sizes import parse_size
from landbridge.core.time import parse_span, show_span
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

LIST = "/console/limits"
ONE = "/console/limits/{limit}"
LEVELS = ("off", "errors", "batches", "messages")


async def show(view: PageView) -> dict[str, Any]:
    try:
        logs = await view.bus.logs.show()
    except BadRequest:  # what the process logs is not the terminal's to say
        logs = None
    return {
        "shown": shown,
        "limits": (await view.bus.limits.show()).limits,
        "logs": logs,
        "levels": await view.bus.status.show(),
        "choices": LEVELS,
    }


def shown(limit: table.LimitRow, value: float | None) -> str:
    """A value of a limit as a form takes it, with its unit."""
    if value is None:
        return "–"
    if limit.help.startswith("Bytes"):
        return written_size(int(value))
    if limit.help.startswith("Seconds") or limit.name.endswith("_life"):
        return show_span(value)
    return f"{value:,}"


async def one(view: PageView) -> dict[str, Any]:
    name = view.names["limit"]
    limits = {limit.name: limit for limit in (await view.bus.limits.show()).limits}
    if name not in limits:
        raise BadRequest(f"there is no limit {name[:60]!r}", hint="see the list of limits")
    return {"limit": limits[name], "shown": shown, "title": name}


# -- actions -------------------------------------------------------------------------------------------


def read_value(fields: forms.Fields) -> dict[str, Any]:
    """The new value of a limit: a size such as 8MiB, a span such as 5s, or a number."""
    name, text = forms.first(fields, "limit"), forms.first(fields, "value").strip()
    for parse in (float, parse_size, parse_span):
        try:
            value = parse(text)
            whole = int(value)
        except (ValueError, OverflowError):  # also of what is no number, or has no end
            continue
        return {"values": {name: whole if value == whole else value}}
    raise BadRequest(f"{text[:40]!r} is no value of a limit", hint="a number, 8MiB or 5s")


def read_reset(fields: forms.Fields) -> dict[str, Any]:
    """The limit that gets its value of the start back."""
    return {"names": [forms.first(fields, "limit")]}


async def setting(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    limits = {limit.name: limit for limit in (await bus.limits.show()).limits}
    return [
        f"{name} is {shown(limits[name], limits[name].value)} now and becomes {shown(limits[name], value)}, "
        "also after restarts."
        for name, value in arguments["values"].items()
        if name in limits
    ]


PAGES = [
    Page(LIST, "Limits and levels", "limits.html", scope="observe", load=show),
    Page(ONE, "Limit", "limit.html", scope="observe", under=LIST, load=one),
]
ACTIONS = [
    Action(
        "limits.set", table.LIMITS_SET, "Set the limit", done="The limit is set", read=read_value,
        meaning=setting, to=LIST,
    ),
    Action("limits.reset", table.LIMITS_RESET, "Reset", done="The limit is as at the start", read=read_reset),
    Action("logs.level", table.LOGS_LEVEL, "Set the level", done="The process logs from {level} on"),
    Action("status.levels", table.STATUS_LEVELS, "Set the level", done="The level of the status log is set"),
]  # fmt: skip

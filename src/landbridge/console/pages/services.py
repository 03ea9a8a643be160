"""Services: who is registered, how they are, what their endpoints do, and their control."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.core.time import parse_span, show_span
from landbridge.core.wording import counted
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

LIST = "/console/services"
ONE = "/console/services/{name}"
EVERY = 5.0
#: Rows of a page.
ROWS = 100
_LISTS = ("scopes", "publishes", "subscribes")


async def rows(view: PageView) -> dict[str, Any]:
    return {"page_of": await view.ask(table.SERVICE_LIST, after=view.query.get("after", ""), limit=ROWS)}


async def show(view: PageView) -> dict[str, Any]:
    name = view.names["name"]
    return {"service": await view.bus.services.show(name), "stats": await view.bus.services.stats(name)}


async def details(view: PageView) -> dict[str, Any]:
    return {"title": view.names["name"], "service": await view.bus.services.show(view.names["name"])}


# -- actions -------------------------------------------------------------------------------------------


def read_rotation(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``service.rotate``: the overlap as people write it."""
    try:
        overlap = parse_span(forms.first(fields, "overlap") or "0")
    except ValueError as error:
        raise BadRequest(f"overlap: {error}") from None
    return {"name": forms.first(fields, "name"), "overlap": overlap}


def read_update(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``service.update``: a list whose field is empty is empty."""
    given = forms.arguments(fields, _LISTS)
    named = {name for name, _ in fields}
    given |= {name: [] for name in _LISTS if name in named and name not in given}
    given |= {name: "" for name in ("owner", "description") if name in named and name not in given}
    arguments: dict[str, Any] = msgspec.to_builtins(table.SERVICE_UPDATE.read(given, strict=False))
    return arguments


async def _told(bus: Bus, name: str) -> str:
    service = await bus.services.show(name)
    return f"The service {name} has {counted(service.connections, 'connection')} now."


async def suspension(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    return [
        await _told(bus, arguments["name"]),
        "They end at once, and its credential and tokens are refused until it is resumed.",
        "Messages that it holds go back to their groups.",
    ]


async def pausing(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    return [
        await _told(bus, arguments["name"]),
        "They stay. The service gets no messages and no requests until it is unpaused.",
    ]


async def rotation(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    overlap = arguments["overlap"]
    return [
        f"The service {arguments['name']} gets another credential, which is shown once.",
        f"The one that it has stays good for {show_span(overlap)}."
        if overlap
        else "The one that it has ends at once, and connections made with it end.",
    ]


async def removal(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    return [
        await _told(bus, arguments["name"]),
        "They end at once. Its credential and all its tokens stay refused, whoever gets the name.",
    ]


PAGES = [
    Page(
        LIST, "Services", "services.html", scope="observe", query=("after",),
        fragments=[Fragment("rows", "_services.html", rows, every=EVERY)],
    ),
    Page("/console/new-service", "New service", "new_service.html", scope="admin", under=LIST),
    Page(
        ONE, "Service", "service.html", scope="observe", under=LIST, load=details,
        fragments=[Fragment("service", "_service.html", show, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "service.register", table.SERVICE_REGISTER, "Register the service",
        done="The service {name} is registered", secret="credential", lists=_LISTS, to=ONE,
    ),
    Action(
        "service.update", table.SERVICE_UPDATE, "Save", done="The service {name} is changed",
        read=read_update, scope="admin", to=ONE,
    ),
    Action(
        "service.pause", table.SERVICE_PAUSE, "Pause", done="The service {name} is paused", meaning=pausing
    ),
    Action("service.unpause", table.SERVICE_UNPAUSE, "Unpause", done="The service {name} goes on"),
    Action(
        "service.suspend", table.SERVICE_SUSPEND, "Suspend", done="The service {name} is suspended",
        danger=True, meaning=suspension,
    ),
    Action("service.resume", table.SERVICE_RESUME, "Resume", done="The service {name} is let in again"),
    Action(
        "service.rotate", table.SERVICE_ROTATE, "Rotate the credential",
        done="The service {name} has another credential", danger=True, meaning=rotation, read=read_rotation,
        secret="credential",
    ),
    Action(
        "service.remove", table.SERVICE_REMOVE, "Remove the service", done="The service {name} is removed",
        danger=True, meaning=removal, to=LIST,
    ),
]  # fmt: skip

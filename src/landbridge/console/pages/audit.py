"""The audit log: who has changed what, from what to what, newest first."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.errors import UnknownTopic
from landbridge.protocol import operations as table

#: Entries of a page, entries that are asked for at a time, and how often at most for one page.
ROWS, AT_ONCE, MOST_STEPS = 100, 500, 20
FILTERS = ("what", "name", "who", "operation")
TOPIC = "$audit"
#: The pages of what entries are about, by kind. A name may have two parts.
PLACES = {
    "topic": "/console/topics/{}",
    "group": "/console/topics/{}/groups/{}",
    "rule": "/console/rules/{}",
    "service": "/console/services/{}",
    "schedule": "/console/topics/{}/schedules/{}",
    "webhook": "/console/topics/{}/webhooks/{}",
    "mail": "/console/topics/{}/mail/{}",
    "sms": "/console/topics/{}/sms/{}",
}


async def rows(view: PageView) -> dict[str, Any]:
    """The newest entries before the offset ``before``. The log is read backwards, some entries at a time."""
    try:
        log = await view.bus.topics.show(TOPIC)
    except UnknownTopic:
        return {"entries": [], "older": ""}
    given = view.query.get("before", "")
    end = min(int(given), log.end) if given.isdecimal() and len(given) < 20 else log.end
    filters = {name: view.query[name] for name in FILTERS if view.query.get(name)}
    found: list[tuple[table.AuditRow, list[str], list[str]]] = []
    for _ in range(MOST_STEPS):
        begin = max(log.first, end - (AT_ONCE if filters else ROWS))
        if begin >= end:
            break
        page = await view.ask(table.AUDIT_LIST, after=str(begin), limit=AT_ONCE, **filters)
        newer = [entry for entry in page.entries if entry.offset < end]
        found += [(entry, _told(entry.before), _told(entry.after)) for entry in reversed(newer)]
        end = begin
        if len(found) >= ROWS:
            found = found[:ROWS]
            end = found[-1][0].offset
            break
    older = str(end) if end > log.first else ""
    return {"entries": found, "places": [_place(entry) for entry, _, _ in found], "older": older}


def _told(value: Any) -> list[str]:
    """A line for each field that has a value."""
    if value is None:
        return []
    if not isinstance(value, dict):
        return [msgspec.json.encode(value).decode()]
    said = {name: each for name, each in value.items() if each is not None} or value
    return [f"{name}: {msgspec.json.encode(each).decode()}" for name, each in said.items()]


def _place(entry: table.AuditRow) -> str:
    """The page of what was changed; empty where it has none."""
    found, parts = PLACES.get(entry.what), entry.name.split("/", 1)
    if found is None or len(parts) != found.count("{}"):
        return ""
    return found.format(*(quote(part, safe="$") for part in parts))


PAGES = [
    Page(
        "/console/audit", "Audit log", "audit.html", scope="subscribe:$audit", query=(*FILTERS, "before"),
        fragments=[Fragment("rows", "_audit.html", rows, every=5.0)],
    ),
]  # fmt: skip
ACTIONS: list[Action] = []

"""Dead letters: by cause over all topics, those of a group, and what is done with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms, payloads, searching
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.pages.moments import read_optional
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError
from landbridge.protocol import operations as table

#: Letters on a page, and causes on the page of all.
ROWS, CAUSES = 50, 200
#: Seconds after which the causes are counted again: thousands of letters may have to be looked at.
EVERY = 15.0
SEE = "observe|publish|subscribe:{topic}"


async def causes(view: PageView) -> dict[str, Any]:
    query = view.query
    since = read_optional(query.get("since", ""))
    topic = query.get("topic", "").strip() or None
    group = query.get("group", "").strip() or None
    found = await view.bus.letters.summary(topic=topic, group=group, since=since)
    return {
        "causes": found.causes[:CAUSES],
        "more": len(found.causes) - CAUSES,
        "counts": found,
        "letters": sum(row.letters for row in found.causes),
    }


async def letters(view: PageView) -> dict[str, Any]:
    topic, group, query = view.names["topic"], view.names["group"], view.query
    found = await view.bus.letters.list(
        topic=topic, group=group, cause=query.get("cause") or None, after=query.get("after", ""), limit=ROWS
    )
    may_read = view.may("subscribe:{topic}", topic=found.dead_topic)
    rows = []
    for letter in found.letters:
        payload = await _excerpt(view.bus, found.dead_topic, letter.offset) if may_read else None
        rows.append((letter, payload))
    return {
        "title": f"Dead letters of {group}",
        "rows": rows,
        "dead_topic": found.dead_topic,
        "may_read": may_read,
        "next": found.next,
        "cause": query.get("cause", ""),
    }


async def _excerpt(bus: Bus, topic: str, offset: int) -> str:
    try:
        return payloads.excerpt((await searching.one(bus, topic, offset)).payload)
    except BusError as error:  # retention has removed it meanwhile
        return f"({error.code})"


# -- actions -------------------------------------------------------------------------------------------


def read_letters(fields: forms.Fields) -> dict[str, Any]:
    """Which letters a form means. Without offsets it would be all of them: a form for some has to name
    some."""
    given = forms.arguments([pair for pair in fields if pair[0] != "some"], lists=("offsets",))
    if forms.first(fields, "some") and not given.get("offsets"):
        raise BadRequest("no letter is chosen", hint="tick the letters first")
    arguments: dict[str, Any] = msgspec.to_builtins(table.LETTER_REDRIVE.read(given, strict=False))
    return arguments


async def redrive(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.letters.redrive(**{**arguments, "dry_run": True})
    topic, group = arguments["topic"], arguments["group"]
    return [
        f"{counted(found.letters, 'letter')}{_of_cause(arguments)} would go back into {topic}, "
        f"for the group {group} alone.",
        "Each is delivered again, with its attempts counted anew. Nothing was changed yet.",
    ]


async def deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = await bus.letters.delete(**{**arguments, "dry_run": True})
    return [
        f"{counted(found.letters, 'letter')}{_of_cause(arguments)} of the group {arguments['group']} "
        f"of {arguments['topic']} would be given up.",
        "They can’t be redriven afterwards. The retention of the dead-letter topic removes what they say.",
    ]


def _of_cause(arguments: dict[str, Any]) -> str:
    return f" of the cause {arguments['cause']!r}" if arguments.get("cause") else ""


PAGES = [
    Page(
        "/console/dead-letters", "Dead letters", "letter_causes.html", query=("topic", "group", "since"),
        fragments=[Fragment("causes", "_letter_causes.html", causes, every=EVERY)],
    ),
    Page(
        "/console/dead-letters/{topic}/{group}", "Dead letters", "letters.html", scope=SEE, load=letters,
        query=("cause", "after"), under="/console/dead-letters",
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "letter.redrive", table.LETTER_REDRIVE, "Redrive", done="{letters} letters went back to {group}",
        meaning=redrive, read=read_letters,
    ),
    Action(
        "letter.delete", table.LETTER_DELETE, "Delete", done="{letters} letters are given up", danger=True,
        meaning=deletion, read=read_letters,
    ),
]  # fmt: skip

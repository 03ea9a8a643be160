"""Rules: which queries there are, what they choose, and what they would make of a message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.core.names import CONTENT_TOPIC
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError
from landbridge.protocol import operations as table

LIST = "/console/rules"
ONE = "/console/rules/{rule}"
TEST = "/console/rules-test"
SEE = "observe|subscribe:{rule}"
EVERY = 5.0
#: What the form of a test asks.
QUERY = ("source", "payload", "key", "headers", "match", "rule", "after")


async def rows(view: PageView) -> dict[str, Any]:
    source, after = view.query.get("source") or None, view.query.get("after", "")
    found = await view.ask(table.RULE_LIST, source=source, after=after)
    return {"page_of": found, "queries": [_short(row.match) for row in found.rules]}


async def show(view: PageView) -> dict[str, Any]:
    rule = await view.bus.rules.show(view.names["rule"])
    return {"rule": rule, "query_text": _pretty(rule.match)}


async def named(view: PageView) -> dict[str, Any]:
    return {"title": view.names["rule"]}


async def test(view: PageView) -> dict[str, Any]:
    """What the rules make of the message that the form describes."""
    query = view.query
    if not ({"payload", "key", "headers"} & query.keys()):
        return {"verdicts": None, "next": "", "error": None}
    try:
        match, headers = _json(query, "match"), _json(query, "headers")
        found = await view.ask(
            table.RULE_TEST,
            payload=query.get("payload", ""),
            key=query.get("key", ""),
            headers=headers or {},
            source=query.get("source") or CONTENT_TOPIC,
            match=match,
            rule=query.get("rule") or None,
            after=query.get("after", ""),
        )
    except BusError as error:
        return {
            "verdicts": None,
            "next": "",
            "error": {"detail": str(error), "hint": error.hint, "code": error.code},
        }
    return {"verdicts": found.verdicts, "next": found.next, "error": None}


def _json(given: Any, name: str) -> Any:
    text = given.get(name, "").strip()
    if not text:
        return None
    return forms.json_of(text, name, '{"state": ["paid"]}')


def _short(query: dict[str, Any]) -> str:
    text = msgspec.json.encode(query).decode()
    return text if len(text) <= 120 else f"{text[:119]}…"


def _pretty(query: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(query), indent=2).decode()


# -- actions -------------------------------------------------------------------------------------------


def read_new(fields: forms.Fields) -> dict[str, Any]:
    """The arguments of ``rule.create``."""
    match = _json(dict(fields), "match")
    if not isinstance(match, dict):
        raise BadRequest("a rule needs a query", hint='{"state": ["paid"]} as JSON')
    return {"match": match, "source": forms.first(fields, "source") or CONTENT_TOPIC}


async def deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    rule = await bus.rules.show(arguments["rule"])
    return [
        f"The topic of the rule goes with its {counted(rule.messages, 'message')} "
        f"and {counted(rule.groups, 'group')}.",
        f"The messages themselves stay in {rule.source}. A rule of the same query begins anew.",
    ]


PAGES = [
    Page(
        LIST, "Rules", "rules.html", query=("source", "after"),
        fragments=[Fragment("rows", "_rules.html", rows, every=EVERY)],
    ),
    Page("/console/new-rule", "New rule", "new_rule.html", scope="subscribe", under=LIST),
    Page(
        TEST, "Test rules", "rules_test.html", scope="observe|subscribe", under=LIST, load=test, query=QUERY
    ),
    Page(
        ONE, "Rule", "rule.html", scope=SEE, under=LIST, load=named,
        fragments=[Fragment("rule", "_rule.html", show, every=EVERY)],
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "rule.create", table.RULE_CREATE, "Make the rule", done="The rule {rule} is there", read=read_new,
        to=ONE,
    ),
    Action(
        "rule.delete", table.RULE_DELETE, "Delete the rule", done="The rule {rule} is deleted",
        danger=True, meaning=deletion, to=LIST, scope="operate|subscribe:{rule}",
    ),
]  # fmt: skip

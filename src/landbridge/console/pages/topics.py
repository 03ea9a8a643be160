"""Topics: the list of them, and what belongs to one besides its messages and groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView, address
from landbridge.core.sizes import parse_size, show_count
from landbridge.core.time import parse_span
from landbridge.core.wording import counted
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table

#: Rows of a page of topics.
ROWS = 50
#: Sorts behind the names that begin with "$", and before all others.
BEHIND_OWN = "%"
#: Seconds after which the rows of a list are renewed.
EVERY = 2.0
TOPIC = "/console/topics/{topic}"
SEE = "observe|publish|subscribe:{topic}"
#: What belongs to a topic besides: a link's words, its address before the name, who may see it.
ALSO = (
    ("Dead letters", "/console/dead-letters?topic=", ""),
    ("Rules", "/console/rules?source=", ""),
    ("Schedules", "/console/schedules?topic=", ""),
    ("Webhooks", "/console/webhooks?topic=", ""),
    ("WebSub", "/console/websub?topic=", ""),
    ("Mail", "/console/mail?topic=", ""),
    ("SMS", "/console/sms?topic=", ""),
    ("Changes", "/console/audit?what=topic&name=", "subscribe:$audit"),
)
#: Options of a topic that hold spans, sizes and JSON in a form.
_SPANS, _SIZES = ("retention.max_age",), ("retention.max_bytes", "max_backlog")
#: What a form says where something is not limited.
UNLIMITED = "none"


async def rows(view: PageView) -> dict[str, Any]:
    query = view.query
    answer = await view.bus.call(
        table.TOPIC_LIST.name, after=_after(query), limit=ROWS, contains=query.get("contains", "")
    )
    page = msgspec.convert(answer, table.TopicRows)
    rates = view.samples.rates
    return {
        "topics": [(row, rates.look(row.name, row.log, row.end, view.now)) for row in page.topics],
        "next": page.next,
    }


def _after(query: Mapping[str, str]) -> str:
    """Where the rows begin. The topics of the bus itself come first by name; they are passed over unless the
    page asks for them, or for a part of a name."""
    if query.get("after") or query.get("contains") or query.get("own"):
        return query.get("after", "")
    return BEHIND_OWN


async def show(view: PageView) -> dict[str, Any]:
    name = view.names["topic"]
    topic = await view.bus.topics.show(name)
    rate = view.samples.rates.look(name, topic.log, topic.end, view.now)
    senders = {group.name: sender_of(name, group.name) for group in topic.groups}
    return {
        "topic": topic,
        "rate": rate,
        "title": name,
        "senders": {group: sender for group, sender in senders.items() if sender is not None},
        "also": [(label, path + quote(name)) for label, path, scope in ALSO if view.may(scope, topic=name)],
    }


class Sender(NamedTuple):
    """What reads a group of its own and sends its messages elsewhere."""

    label: str
    href: str


def sender_of(topic: str, group: str) -> Sender | None:
    """The webhook, the outlet or the subscription whose group this is; None where it is of programs."""
    kind, _, name = group.partition(".")
    base = f"{address(TOPIC, {'topic': topic})}"
    if kind == "webhook":
        return Sender(f"webhook {name}", f"{base}/webhooks/{quote(name)}")
    if kind in ("mail", "sms"):
        return Sender(f"{'mail' if kind == 'mail' else 'SMS'} outlet {name}", f"{base}/{kind}/{quote(name)}")
    if kind == "websub":
        return Sender("subscription", f"/console/websub/{quote(topic)}/{quote(name)}")
    return None


async def settings(view: PageView) -> dict[str, Any]:
    topic = await view.bus.topics.show(view.names["topic"])
    middleware = msgspec.json.encode(topic.options.middleware) if topic.options.middleware else b""
    types = (await view.bus.types.list(topic.name)).types
    return {
        "topic": topic,
        "title": topic.name,
        "middleware": msgspec.json.format(middleware, indent=2).decode() if middleware else "",
        "types": types,
    }


async def named(view: PageView) -> dict[str, Any]:
    return {"title": view.names["topic"]}


# -- actions -------------------------------------------------------------------------------------------


def read_options(fields: forms.Fields) -> dict[str, Any]:
    """The options of a topic from a form, where sizes and spans are written as people do."""
    found: forms.Fields = []
    unlimited: list[str] = []
    for name, value in fields:
        if value.strip() == UNLIMITED and name in (*_SPANS, *_SIZES):
            unlimited.append(name.rpartition(".")[2])
            continue
        try:
            if value and name in _SPANS:
                value = str(parse_span(value))
            elif value and name in _SIZES:
                value = str(parse_size(value))
        except ValueError as error:
            raise BadRequest(f"{name}: {error}") from None
        if name != "middleware":
            found.append((name, value))
    given = forms.arguments(found)
    for name in unlimited:
        given.setdefault("retention", {})[name] = None
    if any(name == "middleware" for name, _ in fields):
        given["middleware"] = _middleware(forms.first(fields, "middleware"))
    arguments: dict[str, Any] = msgspec.to_builtins(table.TOPIC_CREATE.read(given, strict=False))
    return arguments


def _middleware(text: str) -> Any:
    return forms.json_of(text, "middleware", '[{"stage": …}, …], or nothing') if text.strip() else []


async def deletion(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    topic = await bus.topics.show(arguments["name"])
    lag = max((group.lag for group in topic.groups), default=0)
    found = [
        f"The topic {topic.name} goes with its {counted(topic.messages, 'message')} "
        f"and {counted(len(topic.groups), 'group')}.",
        "Its schedules, webhooks and subscriptions go with it. This can’t be undone.",
    ]
    if lag:
        found.insert(1, f"{show_count(lag)} of the messages were not settled by every group: they are lost.")
    return found


async def pause_meaning(bus: Bus, arguments: dict[str, Any]) -> Sequence[str]:
    found = [f"Publishes to {arguments['name']} are refused until it is resumed; publishers may try again."]
    if arguments.get("delivery"):
        found.append("Its groups hand out nothing either.")
    else:
        found.append("Its groups go on with what is there.")
    return found


PAGES = [
    Page(
        "/console/topics", "Topics", "topics.html",
        fragments=[Fragment("rows", "_topics.html", rows, every=EVERY)], query=("contains", "after", "own"),
    ),
    Page("/console/new-topic", "New topic", "new_topic.html", scope="operate", under="/console/topics"),
    Page(
        TOPIC, "Topic", "topic.html", scope=SEE, under="/console/topics", load=named,
        fragments=[Fragment("topic", "_topic.html", show, every=EVERY)],
    ),
    Page(
        f"{TOPIC}/settings", "Settings", "topic_settings.html", scope=SEE, under="/console/topics",
        load=settings,
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "topic.create", table.TOPIC_CREATE, "Create the topic", done="The topic {name} is there",
        read=read_options, to="/console/topics/{name}",
    ),
    Action(
        "topic.update", table.TOPIC_UPDATE, "Save", done="The options of {name} are saved",
        read=read_options, to="/console/topics/{name}/settings",
    ),
    Action(
        "topic.pause", table.TOPIC_PAUSE, "Pause", done="The topic {name} is paused", meaning=pause_meaning
    ),
    Action("topic.resume", table.TOPIC_RESUME, "Resume", done="The topic {name} is resumed"),
    Action(
        "topic.delete", table.TOPIC_DELETE, "Delete the topic", done="The topic {name} is deleted",
        danger=True, meaning=deletion, to="/console/topics",
    ),
]  # fmt: skip

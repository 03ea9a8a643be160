"""The messages of a topic: browsed, searched, one of them in full, and publishing."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any

import msgspec

from landbridge.client.bus import Bus
from landbridge.console import forms, payloads, searching
from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView, Unchanged
from landbridge.console.pages.topics import TOPIC
from landbridge.core.time import parse_span
from landbridge.errors import BadRequest

READ, WRITE = "subscribe:{topic}", "publish:{topic}"
#: Seconds after which the newest messages are looked at again.
EVERY = 2.0
#: Parameters of a search.
FILTERS = ("from", "order", "key", "text", "rule")
#: The order of what is found: newest first, from a place of the log backwards, or oldest first.
NEWEST, OLDEST = "newest", "oldest"
JSON, TEXT, BYTES = "application/json", "text/plain", "application/octet-stream"


async def page(view: PageView) -> dict[str, Any]:
    return {"title": view.names["topic"], "is_search": _is_search(view), "order": _order(view)}


def _is_search(view: PageView) -> bool:
    return any(view.query.get(name) for name in FILTERS if name != "order") or _order(view) == OLDEST


def _order(view: PageView) -> str:
    """As the page asks for. Links that say where to begin, and no order, go on from there."""
    given = view.query.get("order", "")
    if given in (NEWEST, OLDEST):
        return given
    return OLDEST if view.query.get("from", "").strip() not in ("", "latest") else NEWEST


async def found(view: PageView) -> dict[str, Any]:
    topic, query = view.names["topic"], view.query
    order, start = _order(view), query.get("from", "")
    if not _is_search(view):
        result = await searching.last(view.bus, topic)
    elif view.is_live:
        raise Unchanged  # what was searched for stays, until somebody searches again
    else:
        test = searching.read_test(query.get("key", ""), query.get("text", ""), query.get("rule", ""))
        if order == NEWEST:
            end = await searching.end_at(view.bus, topic, start)
            result = await searching.search_back(view.bus, topic, end, test)
        else:
            result = await searching.search(
                view.bus, topic, await searching.begin_at(view.bus, topic, start), test
            )
    return {
        "found": result,
        "messages": result.messages,
        "excerpt": payloads.excerpt,
        "is_search": _is_search(view),
        "order": order,
        "filters": {name: query.get(name, "") for name in ("key", "text", "rule")},
    }


async def one(view: PageView) -> dict[str, Any]:
    topic = view.names["topic"]
    message = await searching.one(view.bus, topic, _offset(view.names["offset"]))
    return {
        "title": f"{topic} {message.offset}",
        "message": message,
        # In a thread: others don't wait for the tens of thousands of tokens that it may have.
        "payload": await asyncio.to_thread(payloads.shown, message.payload),
        "headers": payloads.header_rows(message.headers),
    }


async def copied(view: PageView) -> dict[str, Any]:
    """A form for publishing, with the content of the message that is to be sent again."""
    topic, copy = view.names["topic"], view.query.get("copy", "")
    values = {"payload": "", "key": "", "headers": "", "type": JSON}
    if copy and view.may(READ, topic=topic):
        message = await searching.one(view.bus, topic, _offset(copy))
        kind = str(message.headers.get("content-type", ""))
        try:
            values["payload"] = message.payload.decode()
            values["type"] = kind if kind in (JSON, TEXT) else JSON if _is_json(message.payload) else TEXT
        except UnicodeDecodeError:
            values["payload"], values["type"] = base64.b64encode(message.payload).decode(), BYTES
        values["key"] = message.key
        values["headers"] = "\n".join(
            f"{name}: {payloads.header_text(value)}"
            for name, value in message.headers.items()
            if name != "content-type" and not name.startswith("lb-")
        )
    return {"title": topic, "values": values}


def _is_json(payload: bytes) -> bool:
    try:
        msgspec.json.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _offset(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise BadRequest(f"{text[:40]!r} is not an offset")
    return int(text)


# -- publishing ----------------------------------------------------------------------------------------


def read_message(fields: forms.Fields) -> dict[str, Any]:
    """A message from a form. Raises BadRequest where its payload is not what it says it is."""
    kind = forms.first(fields, "type") or TEXT
    found: dict[str, Any] = {
        "topic": forms.first(fields, "topic"),
        "payload": _payload(kind, forms.first(fields, "payload")),
        "key": forms.first(fields, "key") or None,
        "headers": {"content-type": kind, **_headers(forms.first(fields, "headers"))},
        "id": forms.first(fields, "id") or None,
        "priority": _priority(forms.first(fields, "priority") or "0"),
    }
    if after := forms.first(fields, "after"):
        try:
            found["deliver_at"] = parse_span(after)
        except ValueError as error:
            raise BadRequest(f"after: {error}") from None
    return found


def _priority(text: str) -> int:
    if not text.isdecimal() or len(text) > 4:
        raise BadRequest(f"{text[:40]!r} is no priority", hint="0 to 9")
    return int(text)


def _payload(kind: str, text: str) -> bytes:
    if kind == BYTES:
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except (binascii.Error, ValueError):
            raise BadRequest("the payload is not base64", hint="choose text, or encode it") from None
    if kind == JSON:
        forms.json_of(text, "the payload", "mend it, or choose text")
    return text.encode()


def _headers(text: str) -> Mapping[str, str]:
    pairs = {}
    for line in filter(str.strip, text.splitlines()):
        name, colon, value = line.partition(":")
        if not colon or not name.strip():
            raise BadRequest(f"{line[:60]!r} is not a header", hint="NAME: VALUE, a line each")
        pairs[name.strip()] = value.strip()
    return pairs


async def publish(bus: Bus, message: dict[str, Any]) -> Mapping[str, Any]:
    options = {name: value for name, value in message.items() if name not in ("topic", "payload")}
    receipt = await bus.publish(message["topic"], message["payload"], **options)
    return {"offset": receipt.offset, "id": receipt.id}


PAGES = [
    Page(
        f"{TOPIC}/messages", "Messages", "messages.html", scope=READ, under="/console/topics", load=page,
        fragments=[Fragment("found", "_messages.html", found, every=EVERY)], query=FILTERS,
    ),
    Page(
        f"{TOPIC}/messages/{{offset}}", "Message", "message.html", scope=READ, under="/console/topics",
        load=one,
    ),
    Page(
        f"{TOPIC}/publish", "Publish", "publish.html", scope=WRITE, under="/console/topics", load=copied,
        query=("copy",),
    ),
]  # fmt: skip
ACTIONS = [
    Action(
        "message.publish", None, "Publish", done="Stored in {topic} at offset {offset}", scope=WRITE,
        read=read_message, perform=publish, stays=True,
    ),
]  # fmt: skip

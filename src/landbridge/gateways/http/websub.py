"""Feeds and the hub of WebSub (W3C) by HTTP, for strangers: what they may do is bounded by the terminal.

The hub takes forms, as W3C WebSub has them. A feed is read by GET and HEAD, with the headers by which
subscribers find the hub, and a publisher with a token posts to it as to the topic itself.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from landbridge.core.websub.feed import FEED_PATH, HUB_PATH, links
from landbridge.core.websub.subscription import LONGEST_CALLBACK, LONGEST_SECRET, MOST_PARAMETERS
from landbridge.errors import BadPayload, BadRequest, Forbidden
from landbridge.gateways.http.administration import MOST_OF_STRANGERS, in_time
from landbridge.gateways.http.exchange import HeaderPair, HttpRequest, text_of
from landbridge.gateways.http.pull import RAW
from landbridge.gateways.http.routes import Described, HttpRoute
from landbridge.gateways.http.sessions import SessionPool
from landbridge.protocol import operations as table
from landbridge.protocol.operations import FeedContent, HubAccepted

FORM = "application/x-www-form-urlencoded"
_ONE_FEED = f"{FEED_PATH}{{topic}}"
#: What a feed holds is its publishers': a browser must not take it for a page of this port.
_AS_IT_IS: list[HeaderPair] = [
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'; sandbox"),
]


async def call(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/websub"""
    if b"origin" in request.headers:
        # A page of any web site can send a form to a port that its visitor alone reaches, and have what is
        # open there sent to a callback of its own. Browsers name the page in this header; servers send none.
        raise Forbidden("the hub is asked by servers, not by pages in a browser", hint="ask without Origin")
    if request.content_type != FORM:
        raise BadRequest(f"a body of the type {request.content_type[:60]!r}", hint=f"the hub takes {FORM}")
    body = await request.body(MOST_OF_STRANGERS)
    try:
        text = body.decode().strip()  # a file's last line break is no part of the form
        form = parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS, errors="strict")
    except ValueError as error:
        raise BadPayload(f"the form can't be read: {str(error)[:200]}") from None
    await _ask(pool, request, table.WEBSUB_CALL.name, {"form": form, "base": _base_of(request)}, HubAccepted)
    await request.answer(202)


async def read(pool: SessionPool, request: HttpRequest) -> None:
    """GET and HEAD /v1/feeds/{topic}"""
    request.query(())
    await request.body(MOST_OF_STRANGERS)  # it means nothing here
    topic = request.path_names["topic"]
    asked = {"topic": topic, "base": _base_of(request)}
    found = await _ask(pool, request, table.WEBSUB_READ.name, asked, FeedContent)
    headers = [(b"link", links(found.hub, found.url).encode()), *_AS_IT_IS]
    if found.id:
        tag = f'"{found.offset}"'.encode()
        headers.append((b"etag", tag))
        if request.headers.get(b"if-none-match") == tag:
            await request.answer(304, headers=headers)
            return
    if not found.payload:
        headers.append((b"content-type", RAW.encode()))  # nothing is no JSON
    await request.answer(200, found.payload, found.content_type.encode(), headers)


async def _ask(
    pool: SessionPool, request: HttpRequest, name: str, arguments: dict[str, Any], kind: Any
) -> Any:
    address = (request.scope.get("client") or ("",))[0]
    answer = await in_time(pool.answer_stranger(address, name, arguments))
    assert isinstance(answer, kind)
    return answer


def _base_of(request: HttpRequest) -> str:
    """How the caller has reached this port. Where that is not how others reach it, the operator says so when
    he opens the feed."""
    host = text_of(request.headers.get(b"host", b""), "Host")
    return f"{request.scope['scheme']}://{host}" if host else ""


_TEXT: dict[str, Any] = {"type": "string"}
_CALL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "A request to the hub (W3C WebSub). Other parameters are passed over.",
    "required": ["hub.mode", "hub.topic"],
    "properties": {
        "hub.mode": {"type": "string", "enum": ["subscribe", "unsubscribe", "publish"]},
        "hub.topic": _TEXT | {"description": "The feed's URL, or that of its source."},
        "hub.callback": _TEXT | {"maxLength": LONGEST_CALLBACK, "description": "Where messages go to."},
        "hub.lease_seconds": _TEXT | {"pattern": "^[0-9]{0,20}$"},
        "hub.secret": _TEXT | {"maxLength": LONGEST_SECRET, "description": "Requests are signed with it."},
    },
}
_CALL = Described(
    name="websub.call",
    summary="Subscribe to a feed, end that, or say that a feed's source has changed",
    description=(
        "Needs no token. 202: stored; the callback is then asked whether it wants this, and nothing changes "
        "before it has answered with the challenge."
    ),
    tag="websub",
    bodies={FORM: (_CALL_SCHEMA, "hub.mode=publish&hub.topic=https%3A%2F%2Fhub.example%2Fv1%2Ffeeds%2Fnews")},
    answers={202: ("Stored.", {})},
    refusals=(400, 403, 404, 409, 413, 422, 429, 503, 504, 507),
    needs_token=False,
)


_READ = Described(
    name="websub.read",
    summary="Read the newest message of a feed",
    description=(
        "Needs no token. The header `Link` names the hub and the feed (WebSub); HEAD is enough to see it."
    ),
    tag="websub",
    headers={"If-None-Match": (_TEXT | {"maxLength": 255}, "The ETag of an answer before.")},
    answers={
        200: (
            "The payload of its newest message, with that one's content type.",
            {"*/*": {"description": "The payload, of any content type."}},
        ),
        304: ("There is no newer message.", {}),
    },
    refusals=(400, 404, 413, 429, 503, 504),
    needs_token=False,
)


def routes(publishing: HttpRoute) -> list[HttpRoute]:
    """The routes. ``publishing``: the one that publishes to a topic."""
    said = publishing.described
    posting = Described(
        name="publishToFeed",
        summary="Publish to a feed, as to its topic",
        description=said.description,
        tag="websub",
        query=said.query,
        headers=said.headers,
        bodies=said.bodies,
        answers=said.answers,
        refusals=said.refusals,
    )
    return [
        HttpRoute("POST", HUB_PATH, call, _CALL),
        HttpRoute("GET", _ONE_FEED, read, _READ),
        HttpRoute("HEAD", _ONE_FEED, read, _READ),
        HttpRoute("POST", _ONE_FEED, publishing.answer, posting),
    ]

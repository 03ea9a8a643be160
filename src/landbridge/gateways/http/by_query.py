"""Subscriptions by query: they read the topic of the query's rule, which is made where there is none."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from landbridge.core.names import CONTENT_TOPIC, check_name
from landbridge.errors import BadRequest
from landbridge.gateways.http.exchange import HeaderPair, HttpRequest
from landbridge.gateways.http.forms import read
from landbridge.gateways.http.sessions import HttpSession, answered_soon
from landbridge.protocol import operations as table

#: Bytes of the body of a pull. A query has 16 KiB at most in its canonical form.
MOST_BYTES = 64 << 10
#: The header of an answer that names the rule whose topic is read.
RULE_HEADER = b"landbridge-rule"


class PullGiven(msgspec.Struct, forbid_unknown_fields=True):
    """What the body of a pull may say."""

    match: Annotated[
        dict[str, Any] | None, Meta(description="A query of the topic: a pattern, or with its kind.")
    ] = None


class PullOfQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What the body of a pull without a topic has to say."""

    match: Annotated[dict[str, Any], Meta(description="A query: a pattern, or with its kind.")]


def query_of_body(body: bytes) -> dict[str, Any] | None:
    """The query of a pull; None where its body is empty, or null, or has none."""
    given: PullGiven | None = read(body, PullGiven | None, "the body of a pull") if body.strip() else None
    return None if given is None else given.match


def query_of_text(text: str | None) -> dict[str, Any] | None:
    """The query that the parameter ``match`` of a stream has; None where there is none."""
    if text is None:
        return None
    found: dict[str, Any] = read(text.encode(), dict[str, Any], "the parameter match")
    return found


async def topic_to_read(
    session: HttpSession, address: str, topic: str | None, match: dict[str, Any] | None
) -> str:
    """The topic that a subscription reads: with a query that of its rule. Without a topic the query chooses
    from what is published without one. ``address``: that of the client, for the audit log."""
    if match is None:
        if topic is None:
            raise BadRequest(
                "a subscription has a topic or a query", hint='name a topic, or match={"state": ["paid"]}'
            )
        return check_name(topic, "topic")
    source = CONTENT_TOPIC if topic is None else check_name(topic, "topic")
    wanted = {"match": match, "source": source}
    async with answered_soon():
        made = await session.bus.call_for(address, table.RULE_CREATE.name, wanted)
    rule: str = made["rule"]
    return rule


async def rule_to_read(
    session: HttpSession, request: HttpRequest, match: dict[str, Any] | None
) -> tuple[str, list[HeaderPair]]:
    """The topic that a request reads, and the header of its answer that names the rule."""
    topic = request.path_names.get("topic")
    if match is None and topic is not None:
        return topic, []
    address = str((request.scope.get("client") or ("",))[0])
    rule = await topic_to_read(session, address, topic, match)
    return rule, [(RULE_HEADER, rule.encode())]


def source_of(request: HttpRequest) -> str:
    """The topic that a request reads or chooses from."""
    return request.path_names.get("topic", CONTENT_TOPIC)

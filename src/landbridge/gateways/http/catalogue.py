"""All routes of the gateway: those for messages with what the OpenAPI document says of them, and one for each
operation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from landbridge.gateways.http import administration, asking, sms, websub
from landbridge.gateways.http.by_query import PullGiven, PullOfQuery
from landbridge.gateways.http.cloudevents import BATCH, STRUCTURED
from landbridge.gateways.http.events import MOST_CREDIT, USUAL_CREDIT, events
from landbridge.gateways.http.forms import MessageGiven
from landbridge.gateways.http.publish import (
    LINES,
    LONGEST_WAIT,
    MESSAGES,
    UNTIL,
    USUAL_WAIT,
    MessagesStored,
    MessageStored,
    Several,
    SeveralStored,
    publish,
    publish_content,
    publish_several,
)
from landbridge.gateways.http.pull import MOST_PULLED, RAW, MessagesPulled, pull
from landbridge.gateways.http.routes import Described, HttpRoute
from landbridge.gateways.http.settle import (
    LONGEST_AFTER,
    LONGEST_CODE,
    VERBS,
    SettlementsDone,
    SettlementsGiven,
    reply,
    settle_by_path,
    settle_many,
)

_TEXT: dict[str, Any] = {"type": "string"}
_ONCE = (
    {"type": "string", "maxLength": 255},
    "Makes the request one that can be repeated: with the same key it is stored once.",
)
_BY_QUERY = {"match": {"state": ["paid"], "amount": [{"numeric": [">", 100]}]}}
_EVENT = {
    "specversion": "1.0",
    "id": "A234",
    "source": "/shop",
    "type": "com.example.order",
    "data": {"n": 1},
}
_EVENTS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "An event, as CloudEvents 1.0 has it in JSON.",
    "required": ["specversion", "id", "source", "type"],
    "properties": {
        "specversion": {"const": "1.0"},
        "id": {"type": "string", "minLength": 1},
        "source": {"type": "string", "minLength": 1},
        "type": {"type": "string", "minLength": 1},
    },
}


def _number(least: float, most: float, default: float | None = None, kind: str = "number") -> dict[str, Any]:
    schema = {"type": kind, "minimum": least, "maximum": most}
    return schema if default is None else schema | {"default": default}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


SEND_MESSAGE = Described(
    name="sendMessage",
    summary="Publish a message, or many",
    description=(
        "The body is the payload, unchanged, and its content type is kept. With the content type "
        f"`{MESSAGES}` (a JSON array), `{LINES}` (each line a payload) or `{BATCH}` the body has many "
        "messages, which are stored together or not at all. A header `Landbridge-Header-NAME` becomes the "
        "header NAME of the message. With headers `ce-…` the body is an event of CloudEvents 1.0. 202: "
        "stored, but it has not come as far as `until` asks within the time; `Location` shows how far."
    ),
    query={
        "until": (_one_of(*UNTIL), "How far the message has to come before the answer."),
        "within": (_number(0.001, LONGEST_WAIT, USUAL_WAIT), "Seconds to wait for that."),
    },
    headers={
        "Landbridge-Key": (_TEXT, "The message's key."),
        "Landbridge-Priority": (_number(0, 9, kind="integer"), "9 goes first."),
        "Landbridge-Id": (_TEXT, "An id of your own."),
        "Landbridge-Deliver-At": (
            _TEXT,
            "ISO 8601, seconds since 1970, or +30s: no consumer gets it before.",
        ),
        "Landbridge-Expires-At": (_TEXT, "The same form: no consumer gets it after."),
        "Idempotency-Key": _ONCE,
    },
    bodies={
        RAW: ({"description": "The payload: any bytes, of any content type."}, None),
        "application/json": ({"description": "The payload: any JSON."}, {"n": 1}),
        MESSAGES: (list[MessageGiven], [{"json": {"n": 1}, "key": "a"}, {"text": "hello"}]),
        LINES: (_TEXT, '{"n": 1}\n{"n": 2}\n'),
        STRUCTURED: (_EVENTS_SCHEMA, _EVENT),
        BATCH: ({"type": "array", "items": _EVENTS_SCHEMA}, [_EVENT]),
    },
    answers={
        201: ("Stored.", {"application/json": (MessageStored, MessagesStored)}),
        202: ("Stored, and on its way.", {"application/json": (MessageStored, MessagesStored)}),
    },
    refusals=(400, 401, 403, 404, 409, 413, 422, 429, 503, 504, 507),
)
SEND_CONTENT = Described(
    name="sendContent",
    summary="Publish a message, or many, without a topic",
    description=(
        "As a message for a topic; here the rules of `$content` say who gets it. The token needs the scope "
        "`publish:$content`."
    ),
    query=SEND_MESSAGE.query,
    headers=SEND_MESSAGE.headers,
    bodies=SEND_MESSAGE.bodies,
    answers=SEND_MESSAGE.answers,
    refusals=SEND_MESSAGE.refusals,
)
PUBLISH_SEVERAL = Described(
    name="publishSeveral",
    summary="Publish to several topics at once, all or nothing",
    headers={"Idempotency-Key": _ONCE},
    bodies={
        "application/json": (
            Several,
            {"messages": [{"topic": "orders", "json": {"n": 1}}, {"topic": "audit", "text": "an order"}]},
        )
    },
    answers={201: ("All of them are stored.", {"application/json": SeveralStored})},
    refusals=(400, 401, 403, 404, 409, 413, 422, 429, 503, 504, 507),
)
PULL = Described(
    name="pullMessages",
    summary="Take messages from a group",
    description=(
        "Waits up to `wait` seconds for the first message. Each message has a receipt, which settles it; "
        "one that is not settled within the group's `ack_within` comes again. The group is made if there is "
        f"none. With `Accept: {RAW}` the answer is one payload as it is, with the rest in headers; with "
        f"`Accept: {BATCH}` or `{STRUCTURED}` messages are events of CloudEvents 1.0."
    ),
    query={
        "max": (_number(1, MOST_PULLED, 10, "integer"), "Messages at most."),
        "wait": (_number(0, LONGEST_WAIT, 0), "Seconds to wait for the first one."),
    },
    bodies={"application/json": (PullGiven, _BY_QUERY)},
    needs_body=False,
    answers={
        200: (
            "The messages; none where none came in time.",
            {
                "application/json": MessagesPulled,
                RAW: {"description": "The payload of one message."},
                STRUCTURED: _EVENTS_SCHEMA,
                BATCH: {"type": "array", "items": _EVENTS_SCHEMA},
            },
        ),
        204: ("No message came in time, and one was accepted.", {}),
    },
    refusals=(400, 401, 403, 404, 409, 413, 429, 503, 504, 507),
)
PULL_CONTENT = replace(
    PULL,
    name="pullContent",
    summary="Take messages that were published without a topic, by query",
    description=(
        "As `pullMessages` with a query, which chooses from what is published without a topic. The token "
        "needs the scope `subscribe:$content`."
    ),
    bodies={"application/json": (PullOfQuery, _BY_QUERY)},
    needs_body=True,
)
SETTLE_MANY = Described(
    name="settleMessages",
    summary="Settle messages by their receipts",
    description="Every receipt is settled for itself; the answer says of each what has become of it.",
    bodies={"application/json": (SettlementsGiven, {"receipts": [{"receipt": "…", "verb": "ack"}]})},
    answers={200: ("What has become of each, in the same order.", {"application/json": SettlementsDone})},
    refusals=(400, 401, 413, 429, 503),
)
_SETTLE_SUMMARIES = {
    "ack": "Settle a message: it was handled",
    "requeue": "Give a message back, to be delivered again",
    "bury": "Give a message up: it goes to the dead letters",
    "extend": "Ask for more time for a message",
}
_SETTLE_QUERY = {
    "requeue": {
        "after": (_number(0, LONGEST_AFTER), "Seconds until it comes again; the group's backoff without."),
        "cause": ({"type": "string", "maxLength": 1024}, "Why."),
    },
    "bury": {"cause": ({"type": "string", "maxLength": 1024}, "Why.")},
}
REPLY = Described(
    name="replyToMessage",
    summary="Reply to a message that wants a reply, which settles it",
    description=(
        "For messages that were published by a durable request or as an event with an outcome; they have the "
        "header `lb-correlation`. The body is the reply. With `code` it is the text of a failure, which the "
        "caller gets with that code and status."
    ),
    query={
        "code": ({"type": "string", "minLength": 1, "maxLength": LONGEST_CODE}, "Of a failure: its kind."),
        "status": (_number(400, 599, 500, "integer"), "Of a failure: a number as in HTTP."),
    },
    bodies={
        RAW: ({"description": "The reply: any bytes, of any content type."}, None),
        "application/json": ({"description": "The reply: any JSON."}, {"price": 6}),
    },
    answers={204: ("The reply and the ack are on disk.", {})},
    refusals=(400, 401, 409, 413, 429, 503, 507),
)
EVENTS = Described(
    name="streamMessages",
    summary="A live stream of a topic or of a group, as server-sent events",
    description=(
        "Without `group` the log of the topic, read by offset: a client that comes back with "
        "`Last-Event-ID` goes on behind it, and nothing is lost or comes twice. With `group` a consumer of "
        "it, whose messages have receipts. The data of an event is the message as JSON, or with "
        "`form=payload` the payload alone. An event `refused` with a problem document ends the stream. With "
        "`match` the topic is that of the query's rule, which is made if it is new; the header "
        "`Landbridge-Rule` names it."
    ),
    query={
        "match": (_TEXT, "A query of the topic as JSON: a pattern, or with its kind."),
        "group": (_TEXT, "The group; without one the log of the topic."),
        "ack": (_one_of("receipt", "auto"), "Of a group: 'auto' settles what was sent to the connection."),
        "credit": (
            _number(1, MOST_CREDIT, USUAL_CREDIT, "integer"),
            "Of a group: so many messages may be unsettled.",
        ),
        "from": (_TEXT, "earliest, latest (the default of a log) or an offset."),
        "form": (_one_of("message", "payload"), "What an event's data is."),
    },
    headers={"Last-Event-ID": (_TEXT, "TOPIC:OFFSET of the last event that has come.")},
    answers={200: ("The stream.", {"text/event-stream": {"type": "string"}})},
    refusals=(400, 401, 403, 404, 409, 410, 429, 503, 507),
)
EVENTS_CONTENT = replace(
    EVENTS,
    name="streamContent",
    summary="A live stream of what a query chooses from messages without a topic, as server-sent events",
    description=(
        "As `streamMessages` with `match`, which chooses from what is published without a topic. The token "
        "needs the scope `subscribe:$content`."
    ),
    query=EVENTS.query
    | {"match": ({"of": str, "required": True}, "A query as JSON: a pattern, or with its kind.")},
)

_PUBLISHING = HttpRoute("POST", "/v1/topics/{topic}/messages", publish, SEND_MESSAGE)
_WEBSUB = websub.routes(_PUBLISHING)
#: Operations that have a route of their own.
_SPECIAL = {(route.verb, route.path) for route in (asking.ROUTE, sms.ROUTE, *_WEBSUB)}
ROUTES: tuple[HttpRoute, ...] = (
    _PUBLISHING,
    HttpRoute("POST", "/v1/messages", publish_content, SEND_CONTENT),
    HttpRoute("POST", "/v1/publish", publish_several, PUBLISH_SEVERAL),
    HttpRoute("POST", "/v1/topics/{topic}/groups/{group}/pull", pull, PULL),
    HttpRoute("POST", "/v1/messages/groups/{group}/pull", pull, PULL_CONTENT),
    HttpRoute("POST", "/v1/receipts", settle_many, SETTLE_MANY),
    *(
        HttpRoute(
            "POST",
            f"/v1/receipts/{{receipt}}/{verb}",
            settle_by_path(verb),
            Described(
                name=f"{verb}Message",
                summary=_SETTLE_SUMMARIES[verb],
                query=_SETTLE_QUERY.get(verb, {}),
                answers={204: ("Done, and on disk.", {})},
                refusals=(400, 401, 409, 429, 503),
            ),
        )
        for verb in VERBS
    ),
    HttpRoute("POST", "/v1/receipts/{receipt}/reply", reply, REPLY),
    HttpRoute("GET", "/v1/topics/{topic}/events", events, EVENTS),
    HttpRoute("GET", "/v1/messages/events", events, EVENTS_CONTENT),
    asking.ROUTE,
    sms.ROUTE,
    *_WEBSUB,
    *(route for route in administration.routes() if (route.verb, route.path) not in _SPECIAL),
)

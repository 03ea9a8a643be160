"""Callbacks of SMS providers by HTTP. They show no token: the terminal checks what they are signed with."""

from __future__ import annotations

from typing import Any

from landbridge.gateways.http.administration import MOST_OF_STRANGERS, in_time
from landbridge.gateways.http.exchange import HttpRequest
from landbridge.gateways.http.routes import Described, HttpRoute
from landbridge.gateways.http.sessions import SessionPool
from landbridge.protocol import operations as table

#: Characters of a query, and of a header that may hold a signature.
LONGEST = 2000


async def call(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/topics/{topic}/sms/{name}/receipts, and …/incoming"""
    headers = {
        name.decode("latin-1"): value.decode("latin-1")
        for name, value in request.headers.items()
        if name.startswith(b"x-") and len(value) <= LONGEST
    }
    arguments = {
        **request.path_names,
        "query": request.scope["query_string"].decode("latin-1")[:LONGEST],
        "content_type": request.content_type[:LONGEST],
        "body": await request.body(MOST_OF_STRANGERS),
        "headers": headers,
    }
    address = (request.scope.get("client") or ("",))[0]
    await in_time(pool.answer_stranger(address, table.SMS_CALL.name, arguments))
    await request.answer(204)


_TEXT: dict[str, Any] = {"type": "string"}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "What the provider tells. The names are its own.",
    "additionalProperties": {"type": "string"},
}
ROUTE = HttpRoute(
    "POST",
    table.SMS_CALL.path,
    call,
    Described(
        name=table.SMS_CALL.name,
        summary="Take a delivery receipt or an SMS that comes in",
        description="`what` is `receipts` or `incoming`. Needs no token: the provider signs it. 204: stored.",
        tag="sms",
        query={"message": (_TEXT | {"maxLength": 300}, "The id of the message that was sent.")},
        headers={"X-Twilio-Signature": (_TEXT | {"maxLength": 255}, "What it is signed with.")},
        bodies={"application/x-www-form-urlencoded": (_SCHEMA, "MessageSid=SM1&MessageStatus=delivered")},
        answers={204: ("Stored.", {})},
        refusals=(400, 401, 403, 404, 413, 422, 429, 503, 504, 507),
        needs_token=False,
    ),
)

"""Requests to services by HTTP. The client says by ``Prefer`` (RFC 7240) how long it would like to wait for
the reply, and whether it would rather be told where the reply will be."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec

from landbridge.errors import TimedOut, service_failed
from landbridge.gateways.http import administration
from landbridge.gateways.http.exchange import HeaderPair, HttpRequest
from landbridge.gateways.http.pull import while_there
from landbridge.gateways.http.routes import HttpRoute
from landbridge.gateways.http.sessions import HttpSession, SessionPool
from landbridge.protocol import operations as table
from landbridge.protocol.http import caller_known

#: Seconds that a reply may be waited for.
LONGEST_WAIT = 60
_WAIT = re.compile(r'wait\s*=\s*"?(\d{1,9})"?', re.IGNORECASE)
_encode = msgspec.json.Encoder().encode


class Preference(msgspec.Struct, frozen=True):
    """What the client would like. Preferences that aren't known are passed over, as RFC 7240 demands."""

    #: Seconds; None where the client doesn't say.
    wait: int | None = None
    #: It would rather be answered at once than wait longer.
    responds_async: bool = False

    @property
    def applied(self) -> list[HeaderPair]:
        """The header that tells the client what was heeded."""
        said = ["respond-async"] if self.responds_async else []
        said += [] if self.wait is None else [f"wait={self.wait}"]
        return [(b"preference-applied", ", ".join(said).encode())] if said else []


def preference(headers: list[HeaderPair]) -> Preference:
    """Read all headers ``Prefer``. The first of two that contradict each other holds."""
    text = b",".join(value for name, value in headers if name == b"prefer").decode("latin-1")
    wait, responds_async = None, False
    for part in text.split(","):
        token = part.partition(";")[0].strip()
        if token.lower() == "respond-async":
            responds_async = True
        elif wait is None and (said := _WAIT.fullmatch(token)) and int(said[1]) > 0:
            wait = min(int(said[1]), LONGEST_WAIT)
    return Preference(wait, responds_async)


async def ask(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/topics/{topic}/requests"""
    topic = request.path_names["topic"]
    hint = f"Authorization: Bearer TOKEN, with the scope publish:{topic}"
    async with pool.used(request.token, hint) as session:
        caller_known(request.scope)
        arguments = await administration.arguments_of(table.REQUEST_SEND, request, administration.MOST_BYTES)
        wanted = preference(request.scope["headers"])
        if wanted.responds_async:
            await _ask_later(pool, session, request, arguments, wanted)
            return
        if wanted.wait is not None:
            arguments["timeout"] = float(wanted.wait)
        calling = administration.in_time(session.bus.call(table.REQUEST_SEND.name, **arguments))
        answer = await while_there(pool, request, calling)
        await request.answer(200, _encode(answer), headers=wanted.applied)


async def _ask_later(
    pool: SessionPool,
    session: HttpSession,
    request: HttpRequest,
    arguments: dict[str, Any],
    wanted: Preference,
) -> None:
    """Ask by an event, whose outcome is kept. With ``wait`` a reply that comes in time is the answer."""
    given: dict[str, Any] = {
        name: arguments[name] for name in ("topic", "payload", "headers", "key") if name in arguments
    }
    if "timeout" in arguments:
        given["within"] = arguments["timeout"]
    event = await administration.in_time(session.bus.call(table.EVENT_TRIGGER.name, **given))
    if wanted.wait is not None:
        calling = session.bus.call(table.EVENT_OUTCOME.name, id=event["id"], within=float(wanted.wait))
        outcome = await while_there(pool, request, administration.in_time(calling))
        if outcome["state"] != "pending":
            await request.answer(200, _encode(_reply_of(outcome)), headers=wanted.applied)
            return
    location = (b"location", f"/v1/events/{event['id']}".encode())
    await request.answer(202, _encode(event), headers=[location, *wanted.applied])


def _reply_of(outcome: dict[str, Any]) -> dict[str, Any]:
    """The outcome of an event as the answer of a request. Raises what has failed."""
    if outcome["state"] == "failed":
        details = {
            "service_code": outcome["code"],
            "status": outcome["status"],
            "service": outcome["source"],
        }
        raise service_failed(outcome["text"], None, details)
    if outcome["state"] != "done":
        raise TimedOut("nobody has replied in time", hint="ask again, or give the request a longer timeout")
    return {**{name: outcome[name] for name in ("source", "value", "payload")}, "headers": {}}


_SAID = administration.describe(table.REQUEST_SEND)
_PREFER = {"type": "string"}
ROUTE = HttpRoute(
    table.REQUEST_SEND.verb,
    table.REQUEST_SEND.path,
    ask,
    replace(
        _SAID,
        description=(
            f"{_SAID.description} With `Prefer: wait=N` the reply is waited for so many seconds. With "
            "`Prefer: respond-async` the request is stored, and the answer is 202 with the `Location` of its "
            "outcome; with both only where the reply has not come in N seconds. `Preference-Applied` says "
            "what was heeded."
        ),
        headers={"Prefer": (_PREFER, "`wait=N`, `respond-async`, or both (RFC 7240).")},
        answers={
            **_SAID.answers,
            202: ("Stored; the outcome will be there.", {"application/json": table.EVENT_TRIGGER.answer}),
        },
    ),
)

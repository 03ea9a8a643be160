"""Settling by HTTP: by the receipts of messages that were pulled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta

from landbridge.core.log.batch import HeaderValue
from landbridge.core.replies import LARGEST, LONGEST_TEXT
from landbridge.errors import BadRequest, BusError, LeaseLost
from landbridge.gateways.http.exchange import HttpRequest, number_of
from landbridge.gateways.http.forms import read
from landbridge.gateways.http.receipts import LeasePlace
from landbridge.gateways.http.sessions import HttpSession, SessionPool
from landbridge.protocol.frames import Failure
from landbridge.protocol.http import caller_known

#: Receipts of one request, and bytes of its body.
MOST_SETTLED, MOST_BYTES = 1000, 1 << 20
#: Seconds after which a message may be tried again.
LONGEST_AFTER = 7 * 86400.0
Verb: TypeAlias = Literal["ack", "requeue", "bury", "extend"]
VERBS: tuple[Verb, ...] = ("ack", "requeue", "bury", "extend")
LONGEST_CAUSE = 1024
#: Characters of the code of a failure that a service replies.
LONGEST_CODE = 64
_HINT = "Authorization: Bearer TOKEN, the one that has pulled the message"


class SettlementGiven(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What is to become of a message."""

    receipt: Annotated[str, Meta(description="Of the message, as it was pulled.")]
    verb: Annotated[
        Verb,
        Meta(description="'extend' asks for more time; the others settle the message."),
    ] = "ack"
    after: Annotated[
        Annotated[float, Meta(ge=0, le=LONGEST_AFTER)] | None,
        Meta(description="Of a requeue: seconds until it comes again; the group's backoff without."),
    ] = None
    cause: Annotated[str, Meta(description="Of a requeue or burial: why.", max_length=LONGEST_CAUSE)] = ""


class SettlementsGiven(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """What is to become of many messages."""

    receipts: Annotated[list[SettlementGiven], Meta(description="At most 1000.", max_length=MOST_SETTLED)]


class SettlementDone(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What has become of one of them."""

    receipt: str
    settled: Annotated[bool, Meta(description="False: see the code.")]
    code: Annotated[str, Meta(description="Why not; 'lease_lost': the message went back to its group.")] = ""
    detail: str = ""
    hint: str = ""


class SettlementsDone(msgspec.Struct, frozen=True):
    """What has become of them, in the order of the request."""

    receipts: list[SettlementDone]


async def settle_many(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/receipts"""
    async with pool.used(request.token, _HINT) as session:
        caller_known(request.scope)
        request.own_headers({})
        request.query(())
        given: SettlementsGiven = read(await request.body(MOST_BYTES), SettlementsGiven, "the body")
        done = await asyncio.gather(*(settle_each(pool, session, one) for one in given.receipts))
        await request.answer(200, msgspec.json.encode(SettlementsDone(list(done))))


async def settle_each(pool: SessionPool, session: HttpSession, given: SettlementGiven) -> SettlementDone:
    """Settle one message of several, and say what has become of it."""
    try:
        await settle(pool, session, given)
    except BusError as error:
        return SettlementDone(
            receipt=given.receipt, settled=False, code=error.code, detail=str(error), hint=error.hint
        )
    return SettlementDone(receipt=given.receipt, settled=True)


def settle_by_path(verb: Verb) -> Callable[[SessionPool, HttpRequest], Awaitable[None]]:
    """What answers POST /v1/receipts/{receipt}/VERB."""
    takes = {"requeue": ("after", "cause"), "bury": ("cause",)}.get(verb, ())

    async def answer(pool: SessionPool, request: HttpRequest) -> None:
        async with pool.used(request.token, _HINT) as session:
            caller_known(request.scope)
            request.own_headers({})
            query = request.query(takes)
            after = number_of(query["after"], "after", 0, LONGEST_AFTER) if "after" in query else None
            cause = query.get("cause", "")
            if len(cause) > LONGEST_CAUSE:
                raise BadRequest(f"a cause of {len(cause)} characters, it may have {LONGEST_CAUSE}")
            await request.body(MOST_BYTES)
            receipt = request.path_names["receipt"]
            given = SettlementGiven(receipt=receipt, verb=verb, after=after, cause=cause)
            await settle(pool, session, given)
            await request.answer(204)

    return answer


async def settle(pool: SessionPool, session: HttpSession, given: SettlementGiven) -> None:
    """Settle a message, and wait until that is on disk. ``session``: of the token that asks."""
    leasing, place = _leased(pool, session, given.receipt)
    await leasing.settle(place, given.verb, after=given.after, cause=given.cause)


async def reply(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/receipts/{receipt}/reply: the body is the reply, or with a code the text of a failure."""
    async with pool.used(request.token, _HINT) as session:
        caller_known(request.scope)
        request.own_headers({})
        query = request.query(("code", "status"))
        failure = _failure_said(query)
        body = await request.body(LARGEST)
        headers: dict[str, HeaderValue] = {}
        if failure is None:
            if content_type := request.headers.get(b"content-type"):
                headers["content-type"] = content_type.decode("latin-1")
        else:
            text = body.decode(errors="replace")[:LONGEST_TEXT]
            body, failure = b"", msgspec.structs.replace(failure, text=text)
        leasing, place = _leased(pool, session, request.path_names["receipt"])
        await leasing.reply(place, body, headers, failure)
        await request.answer(204)


def _failure_said(query: dict[str, str]) -> Failure | None:
    """The failure that a query tells of; None where it tells of none."""
    if "code" not in query:
        if "status" in query:
            raise BadRequest("status is for a reply that tells of a failure", hint="code=NAME with it")
        return None
    code = query["code"]
    if not 0 < len(code) <= LONGEST_CODE or not code.isprintable():
        raise BadRequest(
            f"a code of {len(code)} characters", hint=f"a short name in lower case, at most {LONGEST_CODE}"
        )
    return Failure(code, int(number_of(query.get("status", "500"), "status", 400, 599)), "")


def _leased(pool: SessionPool, session: HttpSession, receipt: str) -> tuple[HttpSession, LeasePlace]:
    """Who has leased the message of a receipt, and where. ``session``: of the token that asks."""
    place = session.seal.open(receipt)
    leasing = session if place.session == session.number else pool.by_number(place.session)
    if leasing is None:
        raise LeaseLost("no message is leased by this receipt: its session has ended")
    return leasing, place

"""Pulling by HTTP, with a wait: messages of a group, each with the receipt that settles it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from landbridge.client.message import Message
from landbridge.core.pauses import PauseNote
from landbridge.errors import BadRequest, ShuttingDown
from landbridge.gateways.http import cloudevents
from landbridge.gateways.http.by_query import MOST_BYTES, query_of_body, rule_to_read, source_of
from landbridge.gateways.http.exchange import ClientGone, HeaderPair, HttpRequest, number_of
from landbridge.gateways.http.forms import MessageShown, shown
from landbridge.gateways.http.sessions import HttpSession, SessionPool
from landbridge.protocol.http import caller_known

T = TypeVar("T")

#: Messages of one answer, and seconds that it may be waited for.
MOST_PULLED, LONGEST_WAIT = 1000, 60.0
RAW = "application/octet-stream"
_FORMS = (RAW, cloudevents.BATCH, cloudevents.STRUCTURED, "application/json")


class MessagesPulled(msgspec.Struct, frozen=True):
    """Messages of a group; none where none came in time."""

    messages: Annotated[list[MessageShown], Meta(description="The messages, in the group's order.")]
    paused: Annotated[
        str | msgspec.UnsetType,
        Meta(description="By whom the group, its topic or the service is paused, and why."),
    ] = msgspec.UNSET


async def pull(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/topics/{topic}/groups/{group}/pull, and POST /v1/messages/groups/{group}/pull"""
    group = request.path_names["group"]
    hint = f"Authorization: Bearer TOKEN, with the scope subscribe:{source_of(request)}"
    async with pool.used(request.token, hint) as session:
        caller_known(request.scope)
        request.own_headers({})
        query = request.query(("max", "wait"))
        form = _form(request)
        single = form in (RAW, cloudevents.STRUCTURED)
        most = int(
            number_of(query.get("max", "1" if single else "10"), "max", 1, 1 if single else MOST_PULLED)
        )
        wait = number_of(query.get("wait", "0"), "wait", 0, LONGEST_WAIT)
        match = query_of_body(await request.body(MOST_BYTES))
        topic, rule = await rule_to_read(session, request, match)
        subscription = await session.pull_from(topic, group)
        found = await while_there(pool, request, subscription.pull(most, wait))
        await _answer(request, session, form, found, subscription.paused, rule)


async def _answer(
    request: HttpRequest,
    session: HttpSession,
    form: str,
    found: list[Message],
    pause: PauseNote | None,
    rule: list[HeaderPair],
) -> None:
    paused = pause.told if pause is not None and not found else msgspec.UNSET
    note = rule if paused is msgspec.UNSET else [*rule, (b"landbridge-paused", _quoted(paused))]
    if form == cloudevents.BATCH:
        events = [cloudevents.to_object(message, receipt_of(session, message)) for message in found]
        await request.answer(200, msgspec.json.encode(events), form.encode(), note)
    elif form == "application/json":
        rows = [shown(message, receipt_of(session, message)) for message in found]
        await request.answer(200, msgspec.json.encode(MessagesPulled(rows, paused)), headers=note)
    elif not found:
        await request.answer(204, headers=note)
    elif form == cloudevents.STRUCTURED:
        event = cloudevents.to_object(found[0], receipt_of(session, found[0]))
        await request.answer(200, msgspec.json.encode(event), form.encode(), note)
    else:
        await _answer_raw(request, found[0], receipt_of(session, found[0]), note)


async def _answer_raw(
    request: HttpRequest, message: Message, receipt: str | None, note: list[HeaderPair]
) -> None:
    """The payload as the body, and the rest as headers: those of an event too, in their binary form."""
    said = message.headers
    content_type = said.pop("content-type", RAW)
    headers: list[HeaderPair] = [
        *note,
        (b"landbridge-topic", message.topic.encode()),
        (b"landbridge-offset", b"%d" % message.offset),
        (b"landbridge-id", _quoted(message.id)),
        (b"landbridge-attempt", b"%d" % message.attempt),
    ]
    if receipt is not None:
        headers.append((b"landbridge-receipt", receipt.encode()))
    if message.key is not None:
        headers.append((b"landbridge-key", _quoted(message.key)))
    event = {name[3:]: value for name, value in said.items() if name.startswith("ce-")}
    headers += cloudevents.to_headers(event)
    headers += [
        (f"landbridge-header-{name}".encode(), _quoted(value))
        for name, value in said.items()
        if not name.startswith("ce-") and name.replace("-", "").isalnum() and name.isascii()
    ]
    await request.answer(200, message.payload, _quoted(content_type), headers)


def _quoted(value: object) -> bytes:
    """A value that a header can carry: control characters would end it."""
    text = value.decode("latin-1") if isinstance(value, bytes) else str(value)
    return "".join(c if c.isprintable() else "?" for c in text).strip().encode()


def _form(request: HttpRequest) -> str:
    """The form of the answer that the client accepts."""
    said = request.headers.get(b"accept", b"*/*").decode("latin-1").lower()
    wanted = [part.partition(";")[0].strip() for part in said.split(",")]
    for form in wanted:
        if form in _FORMS:
            return form
    if any(form in ("*/*", "application/*", "") for form in wanted):
        return "application/json"
    raise BadRequest(f"no answer in a form of {said[:80]!r}", hint=f"Accept: one of {', '.join(_FORMS)}")


def receipt_of(session: HttpSession, message: Message) -> str | None:
    """What settles a message; None where its group has settled it on delivery."""
    batch = message.batch
    if not batch.lease or batch.subscription.at_most_once:
        return None
    return session.seal.make(session.number, batch.subscription.number, batch.lease, message.offset)


async def while_there(pool: SessionPool, request: HttpRequest, work: Coroutine[Any, Any, T]) -> T:
    """Do something that takes long, unless the client leaves or the gateway stops before it is done."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.gone())
    stop = asyncio.ensure_future(pool.stopping.wait())
    try:
        await asyncio.wait({task, gone, stop}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if gone.done():
            raise ClientGone
        raise ShuttingDown("the gateway is shutting down")
    finally:
        for one in (task, gone, stop):
            one.cancel()
        await asyncio.gather(task, gone, stop, return_exceptions=True)

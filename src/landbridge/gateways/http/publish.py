"""Publishing by HTTP: one message, many of a topic, and several topics at once."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Literal, TypeAlias, cast
from urllib.parse import quote

import msgspec

from landbridge.client.bus import BatchReceipt, Bus, Receipt
from landbridge.client.publisher import MessageOptions, Rows
from landbridge.core.log.batch import MAX_MESSAGES
from landbridge.core.log.keys import check_key
from landbridge.core.names import CONTENT_TOPIC
from landbridge.core.wording import did_you_mean
from landbridge.errors import BadPayload, BadRequest, BusError, TimedOut, TooLarge
from landbridge.gateways.gathering import place
from landbridge.gateways.http import cloudevents
from landbridge.gateways.http.exchange import HeaderPair, HttpRequest, number_of, text_of
from landbridge.gateways.http.forms import MessageForTopic, MessageGiven, check_json, moment_of, read
from landbridge.gateways.http.sessions import HttpSession, SessionPool
from landbridge.protocol.http import caller_known

Until: TypeAlias = Literal["stored", "arrived", "acked"]
UNTIL = ("stored", "arrived", "acked")
#: Seconds that a request may wait until its message has arrived or is acked, and how long it waits by
#: default.
LONGEST_WAIT, USUAL_WAIT = 60.0, 30.0
#: Messages of one request that can be waited for until they have arrived or are acked.
MOST_AWAITED = 1000
MESSAGES, LINES = "application/vnd.landbridge.messages+json", "application/x-ndjson"
#: Request headers of our own.
KEY, PRIORITY, ID = b"landbridge-key", b"landbridge-priority", b"landbridge-id"
DELIVER_AT, EXPIRES_AT = b"landbridge-deliver-at", b"landbridge-expires-at"
#: What follows is the name of a header of the message.
HEADER = b"landbridge-header-"
OPTIONS = {KEY: "key", PRIORITY: "priority", ID: "id", DELIVER_AT: "deliver_at", EXPIRES_AT: "expires_at"}
#: Headers of HTTP that a message keeps under the same name: what it is, and the trace that it belongs to.
_KEPT = ((b"content-type", "content-type"), (b"traceparent", "traceparent"), (b"tracestate", "tracestate"))


class MessageStored(msgspec.Struct, frozen=True):
    """Says that a message is stored. A repeat gets the answer of the first request."""

    id: str
    offset: int


class MessagesStored(msgspec.Struct, frozen=True):
    """Says that many messages of a topic are stored, one after the other."""

    count: int
    first: MessageStored
    last: MessageStored


class TopicReceipt(msgspec.Struct, frozen=True):
    """Says that a message is stored in a topic."""

    topic: str
    id: str
    offset: int


class SeveralStored(msgspec.Struct, frozen=True):
    """Says that all messages of a request are stored, in the order of the request."""

    receipts: list[TopicReceipt]


class Several(msgspec.Struct, forbid_unknown_fields=True):
    """Messages of several topics, which are stored together or not at all."""

    messages: list[MessageForTopic]


async def publish(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/topics/{topic}/messages: by its content type one message or many."""
    await _publish(pool, request, request.path_names["topic"])


async def publish_content(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/messages: the same without a topic."""
    await _publish(pool, request, CONTENT_TOPIC)


async def _publish(pool: SessionPool, request: HttpRequest, topic: str) -> None:
    async with pool.used(
        request.token, f"Authorization: Bearer TOKEN, with the scope publish:{topic}"
    ) as session:
        caller_known(request.scope)
        until, within = _wait(request)
        content_type = request.content_type
        key = idempotency_key(request)
        if content_type in (MESSAGES, LINES, cloudevents.BATCH, cloudevents.STRUCTURED):
            request.own_headers({})
            body = await request.body(session.bus.max_batch, "messages")
            rows = _rows(content_type, body)
            if content_type == cloudevents.STRUCTURED:
                await _one_of_rows(session, request, topic, rows, key, until, within)
            else:
                await _many(session, request, topic, rows, key, until, within)
            return
        request.own_headers(OPTIONS, HEADER)
        payload = await request.body(session.bus.max_payload, "a payload")
        if cloudevents.is_event(content_type, request.headers):
            payload, options = cloudevents.from_headers(payload, request.headers)
        else:
            if content_type == "application/json":
                check_json(payload, "the body")
            options = {}
        _add_options(request, options)
        receipt = await _store(session, topic, payload, key, _to_store(until, within), options)
        await _tell(session.bus, request, topic, receipt, until, within)


def idempotency_key(request: HttpRequest) -> str | None:
    """The key that makes a request one that can be repeated; None where it has none. The key may stand in
    quotes, as the IETF's draft has it. The terminal keeps it beside the messages, with no end in time."""
    raw = request.headers.get(b"idempotency-key")
    if raw is None:
        return None
    key = text_of(raw, "Idempotency-Key").strip()
    if len(key) >= 2 and key[0] == key[-1] == '"':
        key = key[1:-1]
    return check_key(key)


async def _store(
    session: HttpSession,
    topic: str,
    payload: bytes,
    key: str | None,
    within: float,
    options: MessageOptions,
) -> Receipt:
    """Publish one message. One without a key and an id goes with others that come at the same time."""
    try:
        async with asyncio.timeout(within):
            if key is not None or "id" in options:
                return await session.bus.publish(topic, payload, idempotency_key=key, **options)
            return await session.gathering(topic).put(payload, **options)
    except TimeoutError:
        raise _not_stored(within) from None


def _not_stored(within: float) -> TimedOut:
    return TimedOut(
        f"not stored within {within:g} s",
        hint="it may be stored yet: repeat it with the same Idempotency-Key, then it is stored once",
    )


def _wait(request: HttpRequest) -> tuple[Until, float]:
    if not request.scope["query_string"]:
        return "stored", USUAL_WAIT
    query = request.query(("until", "within"))
    until = query.get("until", "stored")
    if until not in UNTIL:
        raise BadRequest(f"until={until[:40]}", hint=did_you_mean(until, UNTIL, f"one of {', '.join(UNTIL)}"))
    within = number_of(query.get("within", str(USUAL_WAIT)), "within", 0.001, LONGEST_WAIT)
    return cast(Until, until), within


def _to_store(until: Until, within: float) -> float:
    """Seconds that storing may take. Who waits for more than that, waits so long after it was stored."""
    return within if until == "stored" else max(within, USUAL_WAIT)


def _add_options(request: HttpRequest, options: MessageOptions) -> None:
    """Add what the request's headers say of the message."""
    said: dict[str, Any] = dict(options.get("headers") or {})
    for name, value in request.headers.items():
        if name.startswith(HEADER):
            said[text_of(name[len(HEADER) :], "name")] = text_of(value, name.decode("latin-1"))
        elif name in OPTIONS:
            _add_option(options, OPTIONS[name], text_of(value, name.decode()), name.decode())
    for raw, kept in _KEPT:
        # A repeat belongs to another span, and must not be another message for that.
        if raw in request.headers and (kept == "content-type" or b"idempotency-key" not in request.headers):
            said.setdefault(kept, request.headers[raw].decode("latin-1"))
    if said:
        options["headers"] = said


def _add_option(options: MessageOptions, name: str, text: str, header: str) -> None:
    if name == "priority":
        options["priority"] = int(number_of(text, header, 0, 9))
    elif name == "deliver_at":
        options["deliver_at"] = moment_of(text, header)
    elif name == "expires_at":
        options["expires_at"] = moment_of(text, header)
    elif name == "key":
        options["key"] = text
    else:
        options["id"] = text


# -- many ----------------------------------------------------------------------------------------------


def _rows(content_type: str, body: bytes) -> Rows:
    rows = Rows()
    if content_type == LINES:
        rows.payloads = lines_of(body)
        rows.size = len(body)
    elif content_type == MESSAGES:
        for given in read(body, list[MessageGiven], "the messages"):
            given.add_to(rows)
    else:
        is_batch = content_type == cloudevents.BATCH
        for payload, options in (
            cloudevents.from_batch(body) if is_batch else cloudevents.from_structured(body)
        ):
            rows.add(payload, **options)
    if not rows.payloads:
        raise BadPayload("there is no message in the body")
    if len(rows.payloads) > MAX_MESSAGES:
        raise TooLarge(f"{len(rows.payloads)} messages, a request takes {MAX_MESSAGES}")
    return rows


_read_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines


def lines_of(body: bytes) -> list[bytes]:
    """The lines of NDJSON, each a JSON value. Empty lines are passed over."""
    try:
        body.decode()
        _read_lines(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadPayload(f"a line of the body is not JSON: {error}") from None
    if b"\r" in body or b"\n\n" in body or body[:1] == b"\n" or b" \n" in body:
        return [line.strip() for line in body.split(b"\n") if line.strip()]
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


async def _many(
    session: HttpSession,
    request: HttpRequest,
    topic: str,
    rows: Rows,
    key: str | None,
    until: Until,
    within: float,
) -> None:
    count = len(rows.payloads)
    if until != "stored" and count > MOST_AWAITED:
        raise BadRequest(
            f"{count} messages to wait for", hint=f"at most {MOST_AWAITED}, or until=stored for more"
        )
    stored = await _store_rows(session.bus, topic, rows, key, _to_store(until, within))
    ids = rows.ids or [b""] * count
    first, last = (
        MessageStored(ids[index].decode() or f"{stored.id}-{index}", place(stored.first, index))
        for index in (0, count - 1)
    )
    offsets = range(stored.first, stored.first + count)
    done = until == "stored" or await _reach(session.bus, topic, offsets, until, within)
    answer = MessagesStored(count, first, last)
    await _say(request, answer, topic, last.id, done=done, repeated=stored.repeated)


async def _one_of_rows(
    session: HttpSession,
    request: HttpRequest,
    topic: str,
    rows: Rows,
    key: str | None,
    until: Until,
    within: float,
) -> None:
    stored = await _store_rows(session.bus, topic, rows, key, _to_store(until, within))
    receipt = Receipt(f"{stored.id}-0", stored.first, stored.repeated)
    await _tell(session.bus, request, topic, receipt, until, within)


async def _store_rows(bus: Bus, topic: str, rows: Rows, key: str | None, within: float) -> BatchReceipt:
    try:
        async with asyncio.timeout(within):
            return await bus.publish_batch(topic, rows, idempotency_key=key)
    except TimeoutError:
        raise _not_stored(within) from None


async def publish_several(pool: SessionPool, request: HttpRequest) -> None:
    """POST /v1/publish: messages of several topics, all or nothing."""
    hint = "Authorization: Bearer TOKEN, with the scope publish:TOPIC for each topic"
    async with pool.used(request.token, hint) as session:
        caller_known(request.scope)
        request.query(())
        request.own_headers({})
        key = idempotency_key(request)
        given: Several = read(await request.body(session.bus.max_batch, "messages"), Several, "the body")
        if not given.messages:
            raise BadPayload("there is no message in the body")
        by_topic: dict[str, Rows] = {}
        places: list[tuple[str, int]] = []
        for number, message in enumerate(given.messages):
            if key is not None and message.id is None:
                message.id = _id_under(key, session, number)
            rows = by_topic.setdefault(message.topic, Rows())
            places.append((message.topic, len(rows.payloads)))
            message.add_to(rows)
        transaction = session.bus.transaction(idempotency_key=key)
        for topic, rows in by_topic.items():
            await transaction.publish_rows(topic, rows)
        try:
            async with asyncio.timeout(USUAL_WAIT):
                await transaction.commit()
        except TimeoutError:
            raise _not_stored(USUAL_WAIT) from None
        firsts = dict(transaction.offsets)
        ids = dict(zip(by_topic, transaction.batch_ids, strict=True))
        receipts = [
            TopicReceipt(topic, message.id or f"{ids[topic]}-{index}", place(firsts[topic], index))
            for message, (topic, index) in zip(given.messages, places, strict=True)
        ]
        headers = _repeated(repeated=transaction.repeated)
        await request.answer(201, _encode(SeveralStored(receipts)), headers=headers)


def _id_under(key: str, session: HttpSession, number: int) -> str:
    """The id of a message whose request has a key: a repeat of the request gets the same one."""
    digest = hashlib.sha256(session.identity + key.encode()).digest()[:16]
    return f"{digest.hex()}-{number}"


# -- until it has arrived or is acked ------------------------------------------------------------------


async def _tell(
    bus: Bus, request: HttpRequest, topic: str, receipt: Receipt, until: Until, within: float
) -> None:
    offsets = range(receipt.offset, receipt.offset + 1)
    done = until == "stored" or await _reach(bus, topic, offsets, until, within)
    answer = MessageStored(receipt.id, receipt.offset)
    await _say(request, answer, topic, receipt.id, done=done, repeated=receipt.repeated)


async def _reach(bus: Bus, topic: str, offsets: range, until: Until, within: float) -> bool:
    """Wait until all of these messages have arrived or are acked. False: not in this time, or nobody can
    tell, as where the topic has no group, or the terminal is stopped. They are stored all the same."""
    try:
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        async with asyncio.timeout_at(end):
            for offset in offsets:
                if offset >= 0:
                    left = max(0.0, end - loop.time())
                    await bus.call("message.wait", topic=topic, offset=offset, until=until, within=left)
    except (TimeoutError, BusError):
        return False
    return True


async def _say(
    request: HttpRequest,
    answer: MessageStored | MessagesStored,
    topic: str,
    id: str,
    *,
    done: bool,
    repeated: bool,
) -> None:
    """The message is stored, so the answer is never one that makes the client send it again: 202 where it has
    not come as far as was asked, with the place that shows how far it has come."""
    headers = _repeated(repeated=repeated)
    if not done:
        headers.append((b"location", location_of(topic, id)))
    await request.answer(201 if done else 202, _encode(answer), headers=headers)


def location_of(topic: str, id: str) -> bytes:
    """Where the state of a message is shown."""
    return f"/v1/messages/{quote(id, safe='')}/where?topic={quote(topic, safe='')}".encode()


def _repeated(*, repeated: bool) -> list[HeaderPair]:
    return [(b"landbridge-repeated", b"true")] if repeated else []


_encode = msgspec.json.Encoder().encode

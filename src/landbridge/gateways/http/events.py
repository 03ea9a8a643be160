"""Live streams by server-sent events: ``GET /v1/topics/{topic}/events``, and ``GET /v1/messages/events`` of
what a query chooses from what is published without a topic.

Without a group the stream is the topic's log, read by offset. Each event's id is ``TOPIC:OFFSET``, and a
client that comes back with ``Last-Event-ID`` goes on behind that offset: nothing is lost, nothing comes
twice. With a group the stream is a consumer of it: a message is settled by its receipt, and what a client
hasn't settled when it leaves comes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, NamedTuple, TypeVar

import msgspec

from landbridge.client.bus import Bus
from landbridge.client.message import DeliveredBatch
from landbridge.client.subscription import Subscription
from landbridge.core.log.batch import Batch, Column
from landbridge.core.names import check_name
from landbridge.core.wording import did_you_mean
from landbridge.errors import BadRequest, BusError, OffsetGone, OtherLog, ShuttingDown
from landbridge.gateways.http.by_query import query_of_text, rule_to_read, source_of
from landbridge.gateways.http.exchange import ClientGone, HeaderPair, HttpRequest, number_of
from landbridge.gateways.http.forms import MessageShown, fields_of_log, payload_form, shown, shown_headers
from landbridge.gateways.http.pull import receipt_of
from landbridge.gateways.http.sessions import HttpSession, SessionPool, answered_soon
from landbridge.protocol import operations as table
from landbridge.protocol.http import caller_known, problem_of

T = TypeVar("T")

#: Seconds without an event after which a comment shows that the stream lives.
QUIET = 15.0
#: Bytes of the log that are read at a time.
AT_ONCE = 512 << 10
#: Messages that a stream of a group may have unsettled: by default, and at most.
USUAL_CREDIT, MOST_CREDIT = 100, 10_000
#: Milliseconds after which a client that was cut off comes back.
RETRY = 1000
FORMS, ACKS = ("message", "payload"), ("receipt", "auto")
_HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # or a proxy keeps events until it has many
]
_encode = msgspec.json.Encoder().encode
_check_lines = msgspec.json.Decoder(msgspec.Raw).decode_lines
#: Columns of a batch whose messages have more than a payload.
_MORE = (Column.KEY, Column.HEADERS, Column.ID, Column.TIME, Column.PRIORITY)


async def events(pool: SessionPool, request: HttpRequest) -> None:
    """Answer by a stream, until the client leaves."""
    hint = f"Authorization: Bearer TOKEN, with the scope subscribe:{source_of(request)}"
    async with pool.used(request.token, hint) as session:
        caller_known(request.scope)
        request.own_headers({})
        wanted = _wanted(request)
        watch = ClientWatch(pool, request)
        try:
            topic, rule = await rule_to_read(session, request, wanted.match)
            headers = [*_HEADERS, *rule]
            if wanted.group is None:
                await _of_log(session, request, watch, topic, wanted, headers)
            else:
                await _of_group(session, request, watch, topic, wanted, headers)
        except BusError as error:
            if not request.is_answered:
                raise
            await request.send_part(_event("refused", problem_of(error).encode()), more=False)
        finally:
            watch.end()


class StreamWanted(NamedTuple):
    """What the parameters of a stream say."""

    match: dict[str, Any] | None
    group: str | None
    start: str | None
    is_auto: bool
    is_payload: bool
    credit: int


def _wanted(request: HttpRequest) -> StreamWanted:
    """Read the parameters. They are checked before a rule is made."""
    query = request.query(("match", "group", "ack", "credit", "from", "form"))
    group, start = query.get("group"), query.get("from")
    is_auto, is_payload = _choice(query, "ack", ACKS) == "auto", _choice(query, "form", FORMS) == "payload"
    if group is None:
        for name in ("ack", "credit"):
            if name in query:
                raise BadRequest(f"{name} is for a stream of a group", hint="group=NAME")
    else:
        if start not in (None, "earliest", "latest"):
            raise BadRequest(
                f"from={start[:40]} of a group", hint="earliest or latest: where a new group begins"
            )
        if is_payload and not is_auto:
            raise BadRequest("form=payload has no receipts to settle by", hint="ack=auto, or form=message")
    credit = int(number_of(query.get("credit", str(USUAL_CREDIT)), "credit", 1, MOST_CREDIT))
    return StreamWanted(query_of_text(query.get("match")), group, start, is_auto, is_payload, credit)


class ClientWatch:
    """Looks whether the client is still there, and whether the gateway goes on."""

    def __init__(self, pool: SessionPool, request: HttpRequest) -> None:
        self._gone = asyncio.ensure_future(request.gone())
        self._stop = asyncio.ensure_future(pool.stopping.wait())

    def check(self) -> None:
        """Raise what ends the stream."""
        if self._gone.done():
            raise ClientGone
        if self._stop.done():
            raise ShuttingDown("the gateway is shutting down", hint="connect again")

    async def over(self, work: Awaitable[T], within: float | None = None) -> T | None:
        """The result of some work; None if there was none in this time, and then the work is cancelled."""
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait(
                {task, self._gone, self._stop}, timeout=within, return_when=asyncio.FIRST_COMPLETED
            )
            self.check()
            return task.result() if task.done() else None
        finally:
            task.cancel()

    def end(self) -> None:
        """Look no more."""
        self._gone.cancel()
        self._stop.cancel()


def _choice(query: dict[str, str], name: str, known: tuple[str, ...]) -> str:
    found = query.get(name, known[0])
    if found not in known:
        raise BadRequest(
            f"{name}={found[:40]}", hint=did_you_mean(found, known, f"one of {', '.join(known)}")
        )
    return found


# -- the log of a topic --------------------------------------------------------------------------------


async def _of_log(
    session: HttpSession,
    request: HttpRequest,
    watch: ClientWatch,
    topic: str,
    wanted: StreamWanted,
    headers: list[HeaderPair],
) -> None:
    bus = session.bus
    async with answered_soon():
        offset, log = await beginning(bus, topic, request.headers.get(b"last-event-id"), wanted.start)
    await request.begin(200, headers)
    # The id alone: a client that is cut off before the first event goes on from here, too.
    await request.send_part(b"retry: %d\nid: %b:%d\n\n" % (RETRY, topic.encode(), offset - 1))
    while True:
        found = await watch.over(bus.fetch(topic, offset, AT_ONCE))
        assert found is not None
        check_stretch(topic, offset, found.first, log, found.log)
        for fetched in found.batches:
            batch = fetched.batch
            if fetched.first < offset:
                batch = batch.slice(offset - fetched.first, len(batch))
            await request.send_part(text_of_batch(topic, offset, batch, is_payload=wanted.is_payload))
            offset = fetched.end
            watch.check()
        if not found.batches:
            wait = bus.call(table.TOPIC_WAIT.name, offsets={topic: offset}, within=QUIET)
            bounds = await watch.over(wait)
            if bounds is not None and bounds[topic]["end"] <= offset:
                await request.send_part(b": nothing new\n\n")


async def beginning(bus: Bus, topic: str, last: bytes | None, start: str | None) -> tuple[int, str]:
    """Where a stream begins, and in which log."""
    if last:
        name, colon, text = last.decode("latin-1").rpartition(":")
        digits = text.removeprefix("-")
        if not colon or name != topic or not digits.isdecimal() or len(digits) > 18:
            raise BadRequest(f"Last-Event-ID {last[:60]!r} is not of this topic", hint=f"{topic}:OFFSET")
        offset = max(0, int(text) + 1)
        bounds = (await bus.call(table.TOPIC_WAIT.name, offsets={topic: 0}))[topic]
        if offset > bounds["end"]:
            raise OtherLog(
                f"{topic} has no offset {offset - 1}: it ends at {bounds['end']}",
                hint="the topic was made anew: begin without Last-Event-ID",
            )
        return offset, bounds["log"]
    bounds = (await bus.call(table.TOPIC_WAIT.name, offsets={topic: 0}))[topic]
    if start is None or start == "latest":
        return bounds["end"], bounds["log"]
    if start == "earliest":
        return bounds["first"], bounds["log"]
    if not start.isdecimal():
        known = ("earliest", "latest")
        raise BadRequest(
            f"from={start[:40]}", hint=did_you_mean(start, known, "earliest, latest or an offset")
        )
    offset = int(number_of(start, "from", 0, bounds["end"]))
    return offset, bounds["log"]


def check_stretch(topic: str, offset: int, first: int, log: str, log_now: str) -> None:
    """Raise why a stream can't go on from an offset, where the log is another one or doesn't have it."""
    if log != log_now:
        raise OtherLog(f"{topic} was made anew", hint="begin again, without Last-Event-ID")
    if first > offset:
        raise OffsetGone(
            f"retention has removed the offsets {offset} to {first - 1} of {topic}",
            hint="begin with from=earliest, or keep messages for longer",
        )


def text_of_batch(topic: str, first: int, batch: Batch, *, is_payload: bool) -> bytes:
    """The events of a batch of the log, whose first message has this offset."""
    payloads = batch.payloads()
    name = topic.encode()
    joined = b"\n".join(payloads)
    is_plain = joined.count(b"\n") == len(payloads) - 1 and b"\r" not in joined and _is_utf8(joined)
    if is_payload and is_plain:
        return b"".join(
            [
                b"id: %b:%d\ndata: %b\n\n" % (name, offset, payload)
                for offset, payload in enumerate(payloads, first)
            ]
        )
    if not is_payload and is_plain and not any(map(batch.has, _MORE)) and _are_json(joined, len(payloads)):
        head, _, index = batch.id_of(0).rpartition("-")
        form = b'id: %b:%%d\ndata: {"topic":"%b","offset":%%d,"id":"%b-%%d"' % (name, name, head.encode())
        form += b',"time":%d,"attempt":1,"json":%%b}\n\n' % batch.time
        shift = int(index) - first
        return b"".join(
            [
                form % (offset, offset, offset + shift, payload)
                for offset, payload in enumerate(payloads, first)
            ]
        )
    return b"".join(
        _event_of(name, first + index, payload if is_payload else None, batch, index, topic)
        for index, payload in enumerate(payloads)
    )


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _are_json(lines: bytes, count: int) -> bool:
    try:
        return len(_check_lines(lines)) == count
    except (msgspec.DecodeError, RecursionError):
        return False


def _event_of(name: bytes, offset: int, payload: bytes | None, batch: Batch, index: int, topic: str) -> bytes:
    id = b"id: %b:%d\n" % (name, offset)
    if payload is not None:
        return id + _payload_event(payload)
    fields = fields_of_log(topic, offset, batch, index)
    form = payload_form(batch.payload(index), fields["headers"].get("content-type"))
    fields["headers"] = shown_headers(fields["headers"])
    message = MessageShown(**fields, **form)
    return id + _event("", _encode(message))


def _payload_event(payload: bytes) -> bytes:
    """A payload as an event. One that is no text is base64, and the event's type says so."""
    form = payload_form(payload, "text/plain")
    if "base64" not in form and b"\r" in payload:  # which an event can't carry
        form = payload_form(payload, "application/octet-stream")
    if "base64" in form:
        return _event("base64", form["base64"].encode())
    return _event("", payload)


def _event(kind: str, data: bytes) -> bytes:
    head = f"event: {kind}\n".encode() if kind else b""
    if b"\n" in data or b"\r" in data:
        lines = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return head + b"".join(b"data: %b\n" % line for line in lines) + b"\n"
    return b"%bdata: %b\n\n" % (head, data)


# -- a group -------------------------------------------------------------------------------------------


async def _of_group(
    session: HttpSession,
    request: HttpRequest,
    watch: ClientWatch,
    topic: str,
    wanted: StreamWanted,
    headers: list[HeaderPair],
) -> None:
    check_name(topic, "topic")
    subscription = session.bus.subscribe(
        topic, group=wanted.group, prefetch=wanted.credit, start=wanted.start
    )
    assert isinstance(subscription, Subscription)  # of one topic
    async with subscription:
        session.streams[subscription.number] = subscription
        try:
            await request.begin(200, headers)
            await request.send_part(b"retry: %d\n\n" % RETRY)
            waiting = asyncio.ensure_future(subscription.next_batch())
            try:
                while True:
                    batch = await watch.over(asyncio.shield(waiting), QUIET)
                    if batch is None:
                        if waiting.done():
                            return
                        await request.send_part(b": nothing new\n\n")
                        continue
                    waiting = asyncio.ensure_future(subscription.next_batch())
                    await request.send_part(_text_of_delivery(session, batch, is_payload=wanted.is_payload))
                    watch.check()
                    if wanted.is_auto:
                        _ = batch.ack(wait=False)
            finally:
                waiting.cancel()
        finally:
            del session.streams[subscription.number]


def _text_of_delivery(session: HttpSession, batch: DeliveredBatch, *, is_payload: bool) -> bytes:
    parts: list[bytes] = []
    for message in batch.messages():
        parts.append(b"id: %b:%d\n" % (message.topic.encode(), message.offset))
        if is_payload:
            parts.append(_payload_event(message.payload))
        else:
            parts.append(_event("", _encode(shown(message, receipt_of(session, message)))))
    return b"".join(parts)

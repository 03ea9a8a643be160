"""A live stream in both directions: the WebSocket ``/v1/stream``, subprotocol ``landbridge.v1``.

Every message is a JSON object as text. The client's have a member ``op``: auth, subscribe, unsubscribe,
settle and publish. The gateway answers each by ``done`` or ``refused`` with the same ``ref``, and sends
``message`` for each message of a subscription. A subscription has a credit: so many of its messages may be
unsettled, and no more come before some are settled. A client that doesn't read is not sent more than its
connection takes.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
import structlog
from msgspec import Meta

from landbridge.client.publisher import Rows
from landbridge.client.subscription import Subscription
from landbridge.errors import BadFrame, BadRequest, BusError, LimitReached, Misuse, Unauthenticated
from landbridge.gateways.http.by_query import topic_to_read
from landbridge.gateways.http.cross_origin import CrossOrigin
from landbridge.gateways.http.events import MOST_CREDIT, USUAL_CREDIT
from landbridge.gateways.http.exchange import Receive, Scope, Send
from landbridge.gateways.http.forms import MessageForTopic, MessageShown, read, shown
from landbridge.gateways.http.pull import receipt_of
from landbridge.gateways.http.sessions import HttpSession, SessionPool
from landbridge.gateways.http.settle import MOST_SETTLED, SettlementGiven, settle
from landbridge.protocol.http import Problem, bearer_token, caller_known, problem_of

log = structlog.get_logger("landbridge.http")

STREAM, SUBPROTOCOL = "/v1/stream", "landbridge.v1"
#: Seconds for the first message, where the head of the request has no token.
AUTH_WITHIN = 10.0
#: Requests of one client under way, and its subscriptions.
MOST_UNDER_WAY, MOST_SUBSCRIPTIONS = 256, 100
#: Characters of these requests together, beyond which the client is not read from. One may be longer.
MOST_HELD = 4 << 20
#: Close codes (RFC 6455; from 4000 on our own).
_POLICY, _GOING_AWAY, _UNAUTHENTICATED = 1008, 1001, 4401

Ref = Annotated[int | str | None, Meta(description="Comes back with the answer.")]


class AuthOp(msgspec.Struct, tag_field="op", tag="auth", forbid_unknown_fields=True):
    """The first message, where the request had no header Authorization."""

    token: str
    ref: Ref = None


class SubscribeOp(msgspec.Struct, tag_field="op", tag="subscribe", forbid_unknown_fields=True, kw_only=True):
    """Read a group, or without one the topic from now on. With a query, what it chooses: its rule is made
    where there is none."""

    id: Annotated[int, Meta(ge=0, le=1 << 31, description="The client's number for it.")]
    topic: Annotated[
        str | None, Meta(description="None, with a query: what was published without a topic.")
    ] = None
    match: Annotated[
        dict[str, Any] | None, Meta(description="A query of the topic: a pattern, or with its kind.")
    ] = None
    group: str | None = None
    credit: Annotated[int, Meta(ge=1, le=MOST_CREDIT, description="Messages that may be unsettled.")] = (
        USUAL_CREDIT
    )
    start: Annotated[Literal["earliest", "latest"] | None, Meta(description="Where a new group begins.")] = (
        None
    )
    ack: Annotated[
        Literal["receipt", "auto"], Meta(description="'auto': settled when it was sent to the connection.")
    ] = "receipt"
    ref: Ref = None


class UnsubscribeOp(msgspec.Struct, tag_field="op", tag="unsubscribe", forbid_unknown_fields=True):
    """End a subscription; what is not settled goes back."""

    id: int
    ref: Ref = None


class SettleOp(msgspec.Struct, tag_field="op", tag="settle", forbid_unknown_fields=True):
    """Settle messages. Refused if one of them was not settled; the others are settled all the same."""

    receipts: Annotated[list[SettlementGiven], Meta(max_length=MOST_SETTLED)]
    ref: Ref = None


class PublishOp(msgspec.Struct, tag_field="op", tag="publish", forbid_unknown_fields=True):
    """Publish a message. It is stored when ``done`` comes."""

    message: MessageForTopic
    ref: Ref = None


Op = AuthOp | SubscribeOp | UnsubscribeOp | SettleOp | PublishOp


class DoneOp(msgspec.Struct, tag_field="op", tag="done", omit_defaults=True, kw_only=True):
    """A request was carried out."""

    ref: Ref = None
    id: Annotated[str | None, Meta(description="Of a message that was published.")] = None
    offset: Annotated[int | None, Meta(description="Of a message that was published.")] = None
    topic: Annotated[str | None, Meta(description="Of a subscription by query: the rule's.")] = None


class RefusedOp(msgspec.Struct, tag_field="op", tag="refused", omit_defaults=True, kw_only=True):
    """A request was refused, or a subscription has ended (then with its number)."""

    problem: Problem
    ref: Ref = None
    subscription: int | None = None


class MessageOp(msgspec.Struct, tag_field="op", tag="message"):
    """A message of a subscription."""

    subscription: int
    message: MessageShown


_encode = msgspec.json.Encoder().encode


async def serve_stream(
    pool: SessionPool, origins: CrossOrigin, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve one WebSocket."""
    await receive()  # websocket.connect
    refusal: BusError | None = None
    if scope["path"] != STREAM:
        refusal = BadRequest("there is no WebSocket at this path", hint=STREAM)
    elif not origins.allows(scope):
        refusal = BadRequest("pages of this origin may not use the gateway", hint="allow its origin")
    elif SUBPROTOCOL not in scope["subprotocols"]:
        refusal = BadRequest("the WebSocket has no subprotocol of ours", hint=f"subprotocol {SUBPROTOCOL}")
    if refusal is not None:
        await _deny(scope, send, refusal)
        return
    token = bearer_token(
        next((value.decode("latin-1") for name, value in scope["headers"] if name == b"authorization"), "")
    )
    stream = WebSocketStream(pool, receive, send, str((scope.get("client") or ("",))[0]))
    try:
        if token:  # checked before anything is accepted
            async with pool.used(token, "") as session:
                caller_known(scope)
                await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
                await stream.serve(session)
            return
        await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
        first = await stream.first()
        async with pool.used(first.token, "the first message is auth, with a token") as session:
            caller_known(scope)
            await stream.say(DoneOp(ref=first.ref))
            await stream.serve(session)
    except BusError as error:
        if stream.is_accepted(token):
            await stream.end(error)
        else:
            await _deny(scope, send, error)
    except StreamOver:
        pass


async def _deny(scope: Scope, send: Send, error: BusError) -> None:
    """Refuse the WebSocket by an answer of HTTP, where the server can do that."""
    refusal = problem_of(error)
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": _POLICY})
        return
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    status = 403 if refusal.status < 400 else refusal.status
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": refusal.encode()})


class StreamOver(Exception):
    """The client has closed the WebSocket."""


class WebSocketStream:
    """One WebSocket, from the moment when it is accepted."""

    def __init__(self, pool: SessionPool, receive: Receive, send: Send, address: str) -> None:
        self._pool = pool
        self._receive = receive
        self._send = send
        #: Of the client, for the audit log.
        self._address = address
        self._is_serving = False
        #: Subscriptions by the client's numbers, and the tasks that send their messages.
        self._reading: dict[int, tuple[Subscription, asyncio.Task[None]]] = {}
        #: Requests under way.
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MOST_UNDER_WAY)
        #: Characters of the requests under way, and what is set when they get fewer.
        self._held = 0
        self._freed = asyncio.Event()
        #: Of the message that was read last.
        self._length = 0

    def is_accepted(self, token: str) -> bool:
        """Has the WebSocket been accepted?"""
        return self._is_serving or not token

    async def first(self) -> AuthOp:
        """The first message of a client whose request had no token."""
        try:
            async with asyncio.timeout(AUTH_WITHIN):
                op = await self._next()
        except TimeoutError:
            raise Unauthenticated(f"no token within {AUTH_WITHIN:.0f} s") from None
        if not isinstance(op, AuthOp):
            raise Unauthenticated("the first message is not auth", hint='{"op": "auth", "token": "…"}')
        return op

    async def _next(self) -> Op:
        message = await self._receive()
        if message["type"] == "websocket.disconnect":
            raise StreamOver
        text = message.get("text")
        if text is None:
            raise BadFrame("a message of bytes", hint="messages are JSON objects, as text")
        self._length = len(text)
        op: Op = read(text.encode("utf-8", "surrogatepass"), Op, "the message")
        return op

    async def serve(self, session: HttpSession) -> None:
        """Carry out what the client asks for, until one side ends the stream."""
        self._is_serving = True
        stop = asyncio.ensure_future(self._pool.stopping.wait())
        reader = asyncio.ensure_future(self._read(session))
        watch = asyncio.ensure_future(_until_over(session))
        try:
            await asyncio.wait({stop, reader, watch}, return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                reader.result()
            elif watch.done():
                watch.result()
            await self._send({"type": "websocket.close", "code": _GOING_AWAY, "reason": "shutting down"})
        finally:
            for task in (stop, reader, watch, *self._tasks, *(task for _, task in self._reading.values())):
                task.cancel()
            for subscription, _ in self._reading.values():
                session.streams.pop(subscription.number, None)
                await subscription.close()

    async def _read(self, session: HttpSession) -> None:
        while True:
            try:
                op = await self._next()
            except Misuse as error:
                await self.say(RefusedOp(problem=problem_of(error)))
                continue
            await self._room.acquire()  # the client is not read from while so many are under way
            length = self._length
            while self._held and self._held + length > MOST_HELD:  # or so much: answers may be waiting, too
                self._freed.clear()
                await self._freed.wait()
            self._held += length
            task = asyncio.ensure_future(self._carry_out(session, op))
            self._tasks.add(task)
            task.add_done_callback(partial(self._on_carried_out, length))

    def _on_carried_out(self, length: int, task: asyncio.Task[None]) -> None:
        self._held -= length
        self._freed.set()
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception() is not None:
            log.error("stream crashed", exc_info=task.exception())

    async def _carry_out(self, session: HttpSession, op: Op) -> None:
        try:
            await self.say(await self._answer(session, op))
        except BusError as error:
            await self.say(RefusedOp(problem=problem_of(error), ref=op.ref))

    async def _answer(self, session: HttpSession, op: Op) -> DoneOp:
        if isinstance(op, PublishOp):
            rows = Rows()
            op.message.add_to(rows)
            stored = await session.bus.publish_batch(op.message.topic, rows)
            return DoneOp(ref=op.ref, id=op.message.id or f"{stored.id}-0", offset=stored.first)
        if isinstance(op, SettleOp):
            settled = [settle(self._pool, session, given) for given in op.receipts]
            outcomes = await asyncio.gather(*settled, return_exceptions=True)
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome
        elif isinstance(op, SubscribeOp):
            return await self._subscribe(session, op)
        elif isinstance(op, UnsubscribeOp):
            await self._unsubscribe(session, op.id)
        else:
            raise BadRequest("the client is known already")
        return DoneOp(ref=op.ref)

    async def _subscribe(self, session: HttpSession, op: SubscribeOp) -> DoneOp:
        if op.id in self._reading:
            raise BadRequest(f"there is a subscription {op.id} already")
        if len(self._reading) >= MOST_SUBSCRIPTIONS:
            raise LimitReached(f"{MOST_SUBSCRIPTIONS} subscriptions of one stream")
        topic = await topic_to_read(session, self._address, op.topic, op.match)
        subscription = session.bus.subscribe(topic, group=op.group, prefetch=op.credit, start=op.start)
        assert isinstance(subscription, Subscription)  # of one topic
        await subscription.open()
        if op.id in self._reading:  # meanwhile
            await subscription.close()
            raise BadRequest(f"there is a subscription {op.id} already")
        session.streams[subscription.number] = subscription
        reading = asyncio.ensure_future(self._deliver(session, op, subscription))
        self._reading[op.id] = subscription, reading
        return DoneOp(ref=op.ref, topic=None if op.match is None else topic)

    async def _unsubscribe(self, session: HttpSession, id: int) -> None:
        found = self._reading.pop(id, None)
        if found is None:
            raise BadRequest(f"there is no subscription {id}")
        subscription, reading = found
        reading.cancel()
        session.streams.pop(subscription.number, None)
        await subscription.close()

    async def _deliver(self, session: HttpSession, op: SubscribeOp, subscription: Subscription) -> None:
        try:
            while (batch := await subscription.next_batch()) is not None:
                for message in batch.messages():
                    await self.say(MessageOp(op.id, shown(message, receipt_of(session, message))))
                if op.ack == "auto":
                    _ = batch.ack(wait=False)
        except BusError as error:
            self._reading.pop(op.id, None)
            session.streams.pop(subscription.number, None)
            await self.say(RefusedOp(problem=problem_of(error), subscription=op.id))

    async def say(self, op: DoneOp | RefusedOp | MessageOp) -> None:
        """Send a message to the client. Returns when the connection takes more."""
        await self._send({"type": "websocket.send", "text": _encode(op).decode()})

    async def end(self, error: BusError) -> None:
        """Tell the client why the stream ends, and end it."""
        await self.say(RefusedOp(problem=problem_of(error)))
        code = _UNAUTHENTICATED if isinstance(error, Unauthenticated) else _POLICY
        await self._send({"type": "websocket.close", "code": code, "reason": error.code})


async def _until_over(session: HttpSession) -> None:
    """Return when the connection to the terminal has ended for good, by raising why."""
    raise await session.bus.wait_over()

"""One client: its sign-in, its requests, and what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import structlog

from landbridge.core.names import check_name
from landbridge.errors import (
    BadFrame,
    BadRequest,
    BusError,
    LimitReached,
    ShuttingDown,
    TimedOut,
    Unauthenticated,
)
from landbridge.gateways.http.forms import moment_of, read
from landbridge.gateways.http.publish import USUAL_WAIT
from landbridge.gateways.http.sessions import HttpSession
from landbridge.gateways.http.settle import (
    SettlementGiven,
    SettlementsDone,
    SettlementsGiven,
    settle,
    settle_each,
)
from landbridge.gateways.socketio.engine import SocketEngine
from landbridge.gateways.socketio.forms import (
    CallbackGiven,
    CallbackSettlement,
    PublishDone,
    PublishGiven,
    RequestDone,
    RequestRefused,
    SignIn,
    SubscribeGiven,
    UnsubscribeGiven,
)
from landbridge.gateways.socketio.packet import StrictPacket, ack_text, event_text
from landbridge.gateways.socketio.register import SocketRegister
from landbridge.gateways.socketio.subscription import GroupSubscription, LogSubscription, MadePacket
from landbridge.protocol.http import caller_known, cut_caller, problem_of

log = structlog.get_logger("landbridge.http")

#: Requests of one client under way, and its subscriptions.
MOST_UNDER_WAY, MOST_SUBSCRIPTIONS = 256, 20
#: Bytes of these requests together, beyond which the client is not read from. One may be larger.
MOST_HELD = 4 << 20
#: Seconds in which a client has to sign in.
KNOWN_WITHIN = 20.0
#: Seconds in which the attachments of a packet have to come. They are kept meanwhile.
ATTACHED_WITHIN = 30.0
#: Seconds in which a client has to read some of what waits for it.
SLOW_WITHIN = 30.0
#: Seconds that a connection outlives its end, so that the client can read why.
LINGER = 3.0
_HINT = 'auth: {"token": "…"}, a token or the credential of a service'
_SETTLE_HINT = (
    'call it with "ack", "requeue" or "bury", or with {"verb": "requeue", "after": 5, "cause": "…"}'
)
_encode = msgspec.json.Encoder().encode


@dataclass
class AnsweredPoll:
    """A request that was answered. ``mark``: tells it from others, "" for none."""

    mark: str
    body: bytes = b""


class SocketClient:
    """The client of one connection. ``address``: where its stranger is counted; ``id``: known to the client
    alone."""

    def __init__(self, register: SocketRegister, engine: SocketEngine, id: str, address: str) -> None:
        self._register = register
        self._engine = engine
        self.id = id
        #: Requests of HTTP that are under way for it: GET and POST one each, and its WebSockets.
        self.polling: set[str] = set()
        #: The last ones that were answered.
        self.last_get, self.last_post = AnsweredPoll(""), AnsweredPoll("")
        self.scopes: list[Any] = []
        self.is_ending = self.is_signed_in = False
        #: A packet whose attachments are on their way.
        self.partial: StrictPacket | None = None
        self._late: asyncio.TimerHandle | None = None
        self._stranger = register.strangers.enter(address, self.cut)
        self._deadline: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(
            KNOWN_WITHIN, self.cut
        )
        self._session: HttpSession | None = None
        #: What is given back when the client has gone.
        self._lent = AsyncExitStack()
        self._watch: asyncio.Task[None] | None = None
        #: Subscriptions by their numbers, with the tasks that send their messages.
        self._reading: dict[int, tuple[LogSubscription | GroupSubscription, asyncio.Task[None]]] = {}
        #: Subscriptions that are being made.
        self._joining = 0
        self._last_subscription = self._last_callback = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(MOST_UNDER_WAY)
        #: Bytes of the requests under way, and what is set when they get fewer.
        self._held = 0
        self._freed = asyncio.Event()
        #: A packet and its attachments go out together.
        self._saying = asyncio.Lock()

    # -- sign-in and end ---------------------------------------------------------------------------

    async def sign_in(self, auth: bytes) -> None:
        """Let the client in by what it shows."""
        if self.is_signed_in:
            raise BadRequest("the client is known already")
        given: SignIn = read(auth or b"{}", SignIn, "auth")
        used = self._register.pool.used(given.token, _HINT)
        session = await self._lent.enter_async_context(used)
        if self.is_ending:
            await self._lent.aclose()
            raise ShuttingDown("the connection has ended")
        try:
            self._lent.enter_context(self._register.counted(session.service))
        except BusError:
            await self._lent.aclose()
            raise
        self._session = session
        self.is_signed_in = True
        self._leave_strangers()
        for scope in self.scopes:
            caller_known(scope)
        self._watch = asyncio.ensure_future(self._watch_over(session))

    def note_refusal(self, error: BusError) -> None:
        """Tell the status log of a sign-in that is refused."""
        self._register.note("socketio_refused", 1, f"a client at {self._stranger.address}: {error}")

    async def _watch_over(self, session: HttpSession) -> None:
        """End the connection when the token ends, or the gateway."""
        over = asyncio.ensure_future(session.bus.wait_over())
        stop = asyncio.ensure_future(self._register.pool.stopping.wait())
        try:
            await asyncio.wait({over, stop}, return_when=asyncio.FIRST_COMPLETED)
            why = over.result() if over.done() else ShuttingDown("the gateway stops", hint="connect again")
        finally:
            over.cancel()
            stop.cancel()
        self._register.spawn(self.end(why))  # the end cancels this task

    def _leave_strangers(self) -> None:
        self._register.strangers.leave(self._stranger)
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def cut(self) -> None:
        """End the connection of a client that has not signed in, or doesn't read."""
        self._register.spawn(self.end(Unauthenticated(f"no sign-in within {KNOWN_WITHIN:.0f} s", hint=_HINT)))

    def on_lost(self) -> None:
        """Its WebSocket takes nothing more."""
        self._register.spawn(self.end(None))

    async def end(self, error: BusError | None) -> None:
        """End the connection, and tell the client why. A stock client then connects again by itself, and asks
        its program for a token."""
        if self.is_ending:
            return
        self.is_ending = True
        if error is not None and self.is_signed_in:
            await self._engine.say(
                self.id, event_text(b"refused", _encode(RequestRefused(problem=problem_of(error))))
            )
        await self._engine.close(self.id)
        if self.scopes:
            asyncio.get_running_loop().call_later(LINGER, self._cut_sockets)

    def _cut_sockets(self) -> None:
        for scope in self.scopes:
            cut_caller(scope)

    def expect(self, packet: StrictPacket | None) -> None:
        """The attachments of this packet are on their way; None: of none."""
        self.partial = packet
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if packet is not None:
            self._late = asyncio.get_running_loop().call_later(ATTACHED_WITHIN, self._end_late)

    def _end_late(self) -> None:
        late = f"the attachments of a packet did not come within {ATTACHED_WITHIN:.0f} s"
        self._register.spawn(self.end(BadFrame(late)))

    def on_gone(self) -> None:
        """The connection has ended."""
        self.is_ending = True
        self.expect(None)
        self._leave_strangers()
        self._register.spawn(self._release())

    async def _release(self) -> None:
        """Give back what the client had."""
        reading, self._reading = self._reading, {}
        tasks = [*self._tasks, *(task for _, task in reading.values())]
        if self._watch is not None:
            tasks.append(self._watch)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # each that failed has told so
        for subscription, _ in reading.values():
            await _close(subscription)
        await self._lent.aclose()

    # -- what the client sends ---------------------------------------------------------------------

    async def receive(self, event: StrictPacket) -> None:
        """Carry out a request. Returns when more may be read from the client."""
        size = event.size
        await self._room.acquire()
        while self._held and self._held + size > MOST_HELD:
            self._freed.clear()
            await self._freed.wait()
        self._held += size
        task = asyncio.ensure_future(self._carry_out(event))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_carried_out, size))

    def _on_carried_out(self, size: int, task: asyncio.Task[None]) -> None:
        self._held -= size
        self._freed.set()
        self._tasks.discard(task)
        self._room.release()
        if not task.cancelled() and task.exception() is not None:
            log.error("socket.io crashed", exc_info=task.exception())

    async def _carry_out(self, event: StrictPacket) -> None:
        name = ""
        try:
            name, argument = _named(event.data)
            answer = await self._answer(name, argument, event)
        except BusError as error:
            self._register.figures.refused += 1
            refused = RequestRefused(problem=problem_of(error))
            if event.id is None:
                refused.event = name
                await self.say(event_text(b"refused", _encode(refused)))
            else:
                await self.say(ack_text(event.id, _encode(refused)))
            return
        if event.id is not None and answer is not None:
            await self.say(ack_text(event.id, _encode(answer)))

    async def _answer(self, name: str, argument: bytes, event: StrictPacket) -> Any:
        """What a request is answered by; None: it was answered."""
        session = self._session
        assert session is not None
        if name == "publish":
            return await self._publish(session, read(argument, PublishGiven, "publish"), event.attachments)
        if name == "subscribe":
            given: SubscribeGiven = read(argument, SubscribeGiven, "subscribe")
            return await self._subscribe(session, given, event.id)
        if name == "unsubscribe":
            left: UnsubscribeGiven = read(argument, UnsubscribeGiven, "unsubscribe")
            return await self._unsubscribe(left.subscription)
        if name == "settle":
            receipts: SettlementsGiven = read(argument, SettlementsGiven, "settle")
            pool = self._register.pool
            settled = (settle_each(pool, session, one) for one in receipts.receipts)
            return SettlementsDone(list(await asyncio.gather(*settled)))
        raise BadRequest(
            f"there is no event {name[:60]!r}", hint="one of publish, subscribe, unsubscribe, settle"
        )

    async def _publish(
        self, session: HttpSession, given: PublishGiven, attachments: list[bytes]
    ) -> PublishDone:
        options: Any = {
            "key": given.key,
            "priority": given.priority,
            "headers": given.headers or None,
            "deliver_at": moment_of(given.deliver_at, "deliver_at"),
            "expires_at": moment_of(given.expires_at, "expires_at"),
        }
        payload = given.bytes_of(attachments)
        try:
            async with asyncio.timeout(USUAL_WAIT):
                if given.id is None and given.idempotency_key is None:
                    stored = await session.gathering(given.topic).put(payload, **options)
                else:
                    key = given.idempotency_key
                    stored = await session.bus.publish(
                        given.topic, payload, idempotency_key=key, id=given.id, **options
                    )
        except TimeoutError:
            raise TimedOut(
                f"not stored within {USUAL_WAIT:g} s",
                hint="it may be stored yet: repeat it with the same idempotency_key, then it is stored once",
            ) from None
        self._register.figures.published += 1
        return PublishDone(stored.id, stored.offset, stored.repeated)

    async def _subscribe(self, session: HttpSession, given: SubscribeGiven, id: int | None) -> None:
        given.check()
        check_name(given.topic, "topic")
        if len(self._reading) + self._joining >= MOST_SUBSCRIPTIONS:
            raise LimitReached(f"{MOST_SUBSCRIPTIONS} subscriptions of one client")
        self._last_subscription += 1
        number = self._last_subscription
        kind = LogSubscription if given.group is None else GroupSubscription
        subscription = kind(session, given, number)
        self._joining += 1
        try:
            done = await subscription.open(self)
        except BaseException:
            await _close(subscription)
            raise
        finally:
            self._joining -= 1
        if id is not None:
            await self.say(ack_text(id, _encode(done)))  # before the first message
        if self.is_ending:
            await _close(subscription)
            return
        self._reading[number] = subscription, asyncio.ensure_future(self._read(number, subscription))

    async def _read(self, number: int, subscription: LogSubscription | GroupSubscription) -> None:
        try:
            await subscription.run(self)
        except BusError as error:
            self._reading.pop(number, None)
            await _close(subscription)
            await self.say(
                event_text(
                    b"refused", _encode(RequestRefused(problem=problem_of(error), subscription=number))
                )
            )
        except Exception as crash:
            log.error("socket.io crashed", exc_info=crash)
            self._register.spawn(self.end(BusError("the gateway failed", hint="see the log of the terminal")))

    async def _unsubscribe(self, number: int) -> RequestDone:
        found = self._reading.pop(number, None)
        if found is None:
            raise BadRequest(f"there is no subscription {number}")
        subscription, reading = found
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await _close(subscription)
        return RequestDone()

    # -- callbacks ---------------------------------------------------------------------------------

    async def acknowledged(self, answer: StrictPacket) -> None:
        """The client has called the callback of a message, which settles it. Returns when more may be
        read."""
        if answer.id is None:
            raise BadFrame("an acknowledgement without the number of what it acknowledges")
        await self._room.acquire()
        task = asyncio.ensure_future(self._settle_by_callback(answer, answer.id))
        self._tasks.add(task)
        task.add_done_callback(partial(self._on_carried_out, 0))

    async def _settle_by_callback(self, answer: StrictPacket, callback: int) -> None:
        session = self._session
        assert session is not None
        found = next(
            (
                (number, subscription)
                for number, (subscription, _) in self._reading.items()
                if isinstance(subscription, GroupSubscription) and subscription.has_callback(callback)
            ),
            None,
        )
        refused = RequestRefused(problem=problem_of(BusError("")), event="message")
        try:
            said = _settlement(answer)
            if found is None:
                return  # of a subscription that has ended: its messages have gone back
            refused.subscription = found[0]
            receipt, refused.offset = found[1].receipt_of_callback(callback)
            given = SettlementGiven(receipt=receipt, verb=said.verb, after=said.after, cause=said.cause)
            await settle(self._register.pool, session, given)
            self._register.figures.settled += 1
        except BusError as error:
            refused.problem = problem_of(error)
            self._register.figures.refused += 1
            await self.say(event_text(b"refused", _encode(refused)))

    # -- what it is sent ---------------------------------------------------------------------------

    def next_callback(self) -> int:
        """A number for the callback of one more message."""
        self._last_callback += 1
        return self._last_callback

    async def say(self, text: str) -> None:
        """Send a packet without attachments, as ``say_made``."""
        await self.say_made(lambda: (text, None))

    async def say_made(self, make: Callable[[], MadePacket]) -> None:
        """Send a packet, which is made when there is room for it. Returns when it waits for the client, after
        so much else that is bounded. A client that reads nothing for SLOW_WITHIN is cut."""
        async with self._saying:
            queue = self._engine.queue_of(self.id)
            if queue is None or self.is_ending:
                return
            if queue.is_full:
                try:
                    async with asyncio.timeout(SLOW_WITHIN):
                        await queue.room()
                except TimeoutError:
                    self._cut_slow()
                    return
            text, attachment = make()
            await self._engine.say(self.id, text)
            if attachment is not None:
                await self._engine.say(self.id, attachment)
            self._register.figures.sent += 1

    def _cut_slow(self) -> None:
        if not self.is_ending:
            self._register.figures.slow += 1
            service = self._session.service if self._session else ""
            detail = f"a client of {service.rpartition(' ')[2]} has read nothing for {SLOW_WITHIN:.0f} s"
            self._register.note("socketio_slow_client", 1, detail)
            self._register.spawn(self.end(LimitReached(f"nothing was read for {SLOW_WITHIN:.0f} s")))


async def _close(subscription: LogSubscription | GroupSubscription) -> None:
    try:
        await subscription.close()
    except BusError as error:  # the terminal has ended it by itself
        log.debug("subscription not closed", cause=error.code)


def _named(arguments: list[bytes]) -> tuple[str, bytes]:
    """The name of an event and its one argument."""
    if not 1 <= len(arguments) <= 2:
        raise BadRequest(f"an event with {len(arguments)} arguments", hint="a name and one object")
    name: str = read(arguments[0], str, "the name of the event")
    return name, arguments[1] if len(arguments) == 2 else b"{}"


def _settlement(answer: StrictPacket) -> CallbackSettlement:
    """What a callback says. Nothing is not an ack: stock clients call it by themselves, with nothing, where
    the program has no handler or the handler returns nothing."""
    if len(answer.data) != 1 or answer.data[0] == b"null":
        raise BadRequest("the callback of a message says how it is settled", hint=_SETTLE_HINT)
    try:
        said: Any = read(answer.data[0], CallbackGiven, "the callback")
    except BusError as error:
        raise BadRequest(str(error), hint=_SETTLE_HINT) from None
    return said if isinstance(said, CallbackSettlement) else CallbackSettlement(verb=said)

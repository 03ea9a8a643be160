"""Pooled connections to the terminal: requests that show the same token share one.

A session lives while it is used, and for a while after. The terminal ends its connection when the token
expires or is revoked; then the session is thrown away, and the next request, which has to connect anew, gets
a 401. What a session has leased goes back to the groups when the session ends.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec
import structlog

from landbridge.client.bus import Bus
from landbridge.client.pulling import PullSubscription
from landbridge.client.subscription import Subscription
from landbridge.client.wire import Dial
from landbridge.core.log.batch import HeaderValue
from landbridge.errors import (
    BusError,
    LeaseLost,
    LimitReached,
    ShuttingDown,
    TerminalUnreachable,
    Unauthenticated,
)
from landbridge.gateways.gathering import MessageGathering
from landbridge.gateways.http.receipts import LeasePlace, ReceiptSeal, new_key
from landbridge.protocol import frames

log = structlog.get_logger("landbridge.http")

#: Seconds in which a publish that is refused for now (backlog full) is repeated.
PATIENCE = 5.0
#: Sessions at a time. The one that was unused for longest gives way.
MOST_SESSIONS = 1000
#: Of one service: it can have any number of tokens, and must not take the place of all others.
MOST_OF_ONE = 100
#: Seconds after which a session that nobody uses is closed, and between two looks for such.
IDLE, LOOK_EVERY = 60.0, 5.0
#: Seconds that a subscription outlives the leases that it can have.
GRACE = 5.0
#: Seconds that a connection to the terminal may take.
CONNECT_WITHIN = 10.0


@asynccontextmanager
async def answered_soon() -> AsyncIterator[None]:
    """The terminal answers what is asked in the block, or the client is told to try again."""
    try:
        async with asyncio.timeout(CONNECT_WITHIN):
            yield
    except TimeoutError:
        raise TerminalUnreachable(f"no answer from the terminal within {CONNECT_WITHIN:.0f} s") from None


class HttpSession:
    """The connection of a token's identity, with what its requests have begun."""

    def __init__(self, number: int, bus: Bus, service: str, identity: bytes, seal: ReceiptSeal) -> None:
        #: Never used again in this process. Receipts have it.
        self.number = number
        self.bus = bus
        #: The subject of the token.
        self.service = service
        #: Of the bearer of the token: the same for all tokens of a service with the same scopes.
        self.identity = identity
        self.seal = seal
        #: Requests under way, and when the last one ended, in the loop's time.
        self.users = 0
        self.used_at = 0.0
        #: Messages that wait for the end of this turn of the loop, by topic.
        self.gatherings: dict[str, MessageGathering] = {}
        #: Subscriptions of live streams, by number.
        self.streams: dict[int, Subscription] = {}
        #: Subscriptions by pull, by topic and group, with the moment of their last use.
        self._pulls: dict[tuple[str, str], tuple[PullSubscription, float]] = {}
        self._opening = asyncio.Lock()

    @property
    def is_over(self) -> bool:
        """Has the connection ended for good?"""
        return self.bus.closed is not None

    def gathering(self, topic: str) -> MessageGathering:
        """Where messages of this topic gather."""
        found = self.gatherings.get(topic)
        if found is None:
            found = self.gatherings[topic] = MessageGathering(self.bus, topic, self.gatherings)
        return found

    async def pull_from(self, topic: str, group: str) -> PullSubscription:
        """The subscription by which this session pulls from a group."""
        async with answered_soon(), self._opening:
            found, _ = self._pulls.get((topic, group), (None, 0.0))
            if found is None or found.is_over:
                found = self.bus.pull_from(topic, group)
                await found.open()
            self._note_use(found, topic, group)
            return found

    def leased_by(self, number: int) -> Subscription | None:
        """The subscription of this number; None if it has ended."""
        if number in self.streams:
            return self.streams[number]
        for (topic, group), (subscription, _) in self._pulls.items():
            if subscription.number == number and not subscription.is_over:
                self._note_use(subscription, topic, group)
                return subscription
        return None

    async def settle(
        self, place: LeasePlace, verb: str, *, after: float | None = None, cause: str = ""
    ) -> None:
        """Settle a message that this session has leased. Returns when that is on disk."""
        runs = [(place.offset, place.offset + 1)]
        await self._leasing(place).settle(frames.Settlement(place.lease, runs, verb, after, cause))

    async def reply(
        self,
        place: LeasePlace,
        payload: bytes,
        headers: dict[str, HeaderValue],
        failure: frames.Failure | None,
    ) -> None:
        """Reply to a message that this session has leased, which settles it. Done when both are on disk."""
        await self._leasing(place).reply_at(place.lease, place.offset, payload, headers, failure)

    def _leasing(self, place: LeasePlace) -> Subscription:
        """The subscription that has leased a message."""
        subscription = self.leased_by(place.subscription)
        if subscription is None or subscription.at_most_once:
            raise LeaseLost("no message is leased by this receipt: its subscription has ended")
        return subscription

    def _note_use(self, subscription: PullSubscription, topic: str, group: str) -> None:
        self._pulls[topic, group] = subscription, asyncio.get_running_loop().time()

    async def tidy(self, now: float) -> None:
        """End subscriptions that nobody has used for so long that their leases have ended."""
        for place, (subscription, used_at) in list(self._pulls.items()):
            is_old = now > used_at + subscription.ack_within + GRACE and not subscription.is_pulled
            if subscription.is_over or is_old:
                del self._pulls[place]
                try:
                    await subscription.close()
                except BusError as error:  # the terminal has ended it by itself
                    log.warning("subscription not closed", topic=place[0], cause=error.code)

    def is_idle(self, now: float) -> bool:
        """Has nobody used it for a while, and is nothing leased?"""
        return not self.users and not self._pulls and now > self.used_at + IDLE

    async def close(self) -> None:
        """Disconnect; leases go back."""
        await self.bus.close()


#: Answers an operation that needs no token: called with the address of the client, the operation's name and
#: its arguments.
AnswerStranger: TypeAlias = Callable[[str, str, dict[str, Any]], Awaitable[Any]]


async def _no_stranger(_: str, operation: str, __: dict[str, Any]) -> Any:
    raise Unauthenticated(
        f"{operation} without a token is not answered here", hint="ask the HTTP port of the terminal itself"
    )


class SessionPool:
    """The sessions, by token. ``dial`` reaches the terminal, as for a Bus. ``answer_stranger``: what answers
    the operations that need no token; None: nothing does."""

    def __init__(self, dial: Dial, answer_stranger: AnswerStranger | None = None) -> None:
        self._dial = dial
        self.answer_stranger = answer_stranger or _no_stranger
        self._key = new_key()
        #: Least recently used first. By the token's digest: a dump of the memory should not list the tokens
        #: twice.
        self._sessions: OrderedDict[bytes, HttpSession] = OrderedDict()
        self._by_number: dict[int, HttpSession] = {}
        #: Connections in the making: requests of the same token wait for the same one.
        self._opening: dict[bytes, asyncio.Task[HttpSession]] = {}
        self._next = 1
        self._tidying: asyncio.Task[None] | None = None
        self._closed = False
        #: Set when the gateway stops: streams and waits end.
        self.stopping = asyncio.Event()

    def __len__(self) -> int:
        return len(self._sessions)

    async def of(self, token: str, hint: str) -> HttpSession:
        """The session of a token. Raises Unauthenticated where the terminal doesn't know the token. ``hint``:
        what a request without a token should show."""
        if not token:
            raise Unauthenticated("the request has no token", hint=hint)
        key = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = self._sessions.get(key)
        if found is not None and not found.is_over:
            self._sessions.move_to_end(key)
            return found
        if self._closed:
            raise ShuttingDown("the gateway is shutting down")
        opening = self._opening.get(key)
        if opening is None:
            opening = self._opening[key] = asyncio.ensure_future(self._open(key, token))
            opening.add_done_callback(lambda _: self._opening.pop(key, None))
        # Whoever gives up must not end the connection of the others.
        return await asyncio.shield(opening)

    @asynccontextmanager
    async def used(self, token: str, hint: str) -> AsyncIterator[HttpSession]:
        """The session of a token, which is kept while the block uses it."""
        session = await self.of(token, hint)
        session.users += 1
        try:
            yield session
        finally:
            session.users -= 1
            session.used_at = asyncio.get_running_loop().time()

    def by_number(self, number: int) -> HttpSession | None:
        """The session that a receipt names; None if it has ended."""
        found = self._by_number.get(number)
        return None if found is None or found.is_over else found

    async def _open(self, key: bytes, token: str) -> HttpSession:
        before = self._sessions.pop(key, None)
        if before is not None:
            await self._end(before)
        bus = Bus(self._dial, token, name="http", patience=PATIENCE)
        async with answered_soon():
            await bus.open()
        service, identity = _bearer(token)
        session = HttpSession(self._next, bus, service, identity, ReceiptSeal(self._key, identity))
        self._next += 1
        session.used_at = asyncio.get_running_loop().time()
        try:
            await self._make_room(service)
        except BusError:
            await session.close()
            raise
        if self._closed:
            await session.close()
            raise ShuttingDown("the gateway is shutting down")
        self._sessions[key] = session
        self._by_number[session.number] = session
        if self._tidying is None or self._tidying.done():
            self._tidying = asyncio.ensure_future(self._tidy())
        return session

    async def _make_room(self, service: str) -> None:
        """For one more session of a service: of its own there are few enough, and of all."""
        while True:
            own = [key for key, session in self._sessions.items() if session.service == service]
            if len(own) >= MOST_OF_ONE:
                keys, most = own, f"{MOST_OF_ONE} tokens of this service"
            elif len(self._sessions) >= MOST_SESSIONS:
                keys, most = list(self._sessions), f"{MOST_SESSIONS} tokens"
            else:
                return
            unused = next((key for key in keys if not self._sessions[key].users), None)
            if unused is None:
                raise LimitReached(f"{most} are in use by HTTP", hint="try again in a while")
            await self._end(self._sessions.pop(unused))

    async def _end(self, session: HttpSession) -> None:
        self._by_number.pop(session.number, None)
        await session.close()

    async def _tidy(self) -> None:
        """Close what nobody uses, while there are sessions."""
        loop = asyncio.get_running_loop()
        while self._sessions:
            await asyncio.sleep(LOOK_EVERY)
            for key, session in list(self._sessions.items()):
                if not session.is_over:
                    await session.tidy(loop.time())
                if (session.is_over and not session.users) or session.is_idle(loop.time()):
                    if self._sessions.get(key) is session:
                        del self._sessions[key]
                    await self._end(session)

    async def close(self) -> None:
        """Close all sessions."""
        self.stopping.set()
        self._closed = True
        if self._tidying is not None:
            self._tidying.cancel()
        for opening in list(self._opening.values()):
            opening.cancel()
        sessions, self._sessions = list(self._sessions.values()), OrderedDict()
        for session in sessions:
            await self._end(session)


def _bearer(token: str) -> tuple[str, bytes]:
    """Who the bearer of a token is, which the terminal has verified: its subject, and a digest of it with its
    rights. A service gets a fresh token every few minutes, and settles with it what it has pulled with the
    one before. A credential, of which a service has two at most, is somebody by itself."""
    parts = token.split(".")
    try:
        claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        known = {name: claims.get(name) for name in ("iss", "aud", "sub", "scope")}
    except (IndexError, AttributeError, ValueError, binascii.Error, msgspec.MsgspecError):
        known = {"token": token}
    if not known.get("sub"):
        known = {"token": token}
    identity = hashlib.sha256(msgspec.json.encode(known, order="deterministic")).digest()
    return f"{known.get('iss', '')} {known['sub']}" if "sub" in known else identity.hex(), identity

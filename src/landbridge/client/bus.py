"""The bus as a program sees it: one connection that mends itself, with publishers and subscriptions on it."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

import msgspec

from landbridge.client.context import resolve
from landbridge.client.fetch import Stretch, stretch
from landbridge.client.link import Dial, Link, dial_of, open_link
from landbridge.client.outbox import Outbox
from landbridge.client.payload import encode
from landbridge.client.publisher import Publisher, Rows
from landbridge.client.subscription import Subscription
from landbridge.client.transaction import Transaction
from landbridge.core.log.batch import Headers
from landbridge.core.names import check_name
from landbridge.errors import (
    BadRequest,
    BusError,
    Disconnected,
    ShuttingDown,
    TimedOut,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import MAX_HEAD

if TYPE_CHECKING:
    from types import TracebackType

log = logging.getLogger("landbridge.client")

#: Reconnecting: a wait between 0 and twice the one before, from here to there, in seconds.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 5.0
MOST_PREFETCH = 1_000_000
Until: TypeAlias = Literal["stored", "arrived", "acked"]


class Receipt(msgspec.Struct, frozen=True):
    """A message is stored: its id, and its place in the topic's log."""

    id: str
    offset: int


class Bus:
    """Made by ``landbridge.connect()``; use it with ``async with``.

    patience: for how many seconds a publish that is refused for now (backlog or disk full) is tried again.
    address: where the terminal is, for the log."""

    def __init__(
        self,
        dial: Dial,
        token: str | Callable[[], str],
        *,
        name: str = "",
        patience: float = 30.0,
        producer: bytes | None = None,
        address: str = "",
    ) -> None:
        self._dial = dial
        self._address = address
        self._token = token
        self._name = name
        self.patience = patience
        #: Under which the terminal's ledger knows this bus.
        self.producer = producer or os.urandom(16)
        #: The connection, None while there is none.
        self.link: Link | None = None
        #: The terminal's limits, as its welcome says.
        self.window = 1 << 20
        self.max_payload = self.max_batch = 1 << 20
        #: Bytes of batches without an answer.
        self.unanswered = 0
        self.subscriptions: dict[int, Subscription] = {}
        self.terminal = ""
        self._outboxes: dict[str, Outbox] = {}
        self._next_subscription = 1
        self._next_transaction = 1
        #: Transactions without an answer.
        self._transactions: set[int] = set()
        self._closed: BusError | None = None
        self._up = asyncio.Event()
        self._rooms: list[asyncio.Future[None]] = []
        self._mending: asyncio.Task[None] | None = None
        #: When the connection was lost, in the loop's time; None while there is one.
        self._lost_at: float | None = None

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> Bus:
        """Connect. The first time, what goes wrong is raised; later the bus keeps trying by itself."""
        if self._closed is not None:
            raise self._closed
        if self.link is None and self._mending is None:
            await self._connect()
        return self

    async def __aenter__(self) -> Bus:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connect(self) -> None:
        token = self._token() if callable(self._token) else self._token
        hello = frames.Hello(frames.VERSION, token, self._name[:1024])
        link, welcome = await open_link(self._dial, hello, self._received, self._lost)
        self.link = link
        self.window = welcome.window
        self.max_payload = welcome.max_payload
        self.max_batch = max(welcome.max_frame - MAX_HEAD // 2, welcome.max_frame // 2)
        self.terminal = welcome.terminal
        for outbox in self._outboxes.values():
            outbox.send_all()
        for subscription in list(self.subscriptions.values()):
            subscription.restart()
        self._up.set()
        if self._lost_at is not None:
            # As loud as the loss: whoever was told of that one waits for this one.
            away = asyncio.get_running_loop().time() - self._lost_at
            self._lost_at = None
            log.warning("back at the terminal%s after %.1f s", self._at, away)

    @property
    def _at(self) -> str:
        return f" at {self._address}" if self._address else ""

    def _lost(self, link: Link, error: BusError) -> None:
        if link is not self.link:
            return  # it never got as far as a welcome; whoever dialled knows
        self.link = None
        self._up.clear()
        for subscription in self.subscriptions.values():
            subscription.disconnected()
        if self._closed is not None:
            return
        # Who was given a function for tokens, and not a token, may get a fresh one when it has expired.
        if isinstance(error, Unavailable) or (isinstance(error, Unauthenticated) and callable(self._token)):
            self._lost_at = asyncio.get_running_loop().time()
            log.warning("lost the terminal%s, trying again: %s", self._at, error)
            self._mending = asyncio.ensure_future(self._mend())
        else:
            self._fail(error)  # expired, revoked, a broken protocol: trying again would not help

    async def _mend(self) -> None:
        backoff = FIRST_BACKOFF
        while self._closed is None:
            await asyncio.sleep(random.uniform(0, backoff))
            backoff = min(LONGEST_BACKOFF, backoff * 2)
            try:
                await self._connect()
            except (Unavailable, OSError):
                continue
            except BusError as error:
                self._fail(error)
            except Exception as error:  # of the function for tokens
                self._fail(BusError(f"can't connect again: {error!r}"))
            return

    def _fail(self, error: BusError) -> None:
        """For good: everybody who waits is told."""
        self._closed = error
        self._up.set()
        for outbox in self._outboxes.values():
            outbox.fail(error)
        for subscription in list(self.subscriptions.values()):
            subscription.fail(error)
        self.room_made()

    async def close(self) -> None:
        """Leave in good order: acks are sent, leases given back."""
        if self._closed is not None and self.link is None:
            return
        for subscription in list(self.subscriptions.values()):
            await subscription.close()
        closed = Disconnected("the bus was closed")
        self._closed = self._closed or closed
        if self._mending is not None:
            self._mending.cancel()
        link = self.link
        if link is not None and link.open:
            # A producer whose batches are all answered won't repeat any: the ledger may forget it.
            settled = all(outbox.empty for outbox in self._outboxes.values())
            link.send(frames.Bye(self.producer if settled else b""))
            link.close()
        self._fail(closed)
        if link is not None:
            await link.wait_closed()

    @property
    def closed(self) -> BusError | None:
        """Why the bus is of no more use; None while it is."""
        return self._closed

    # -- the link's side ---------------------------------------------------------------------------

    def _received(self, frame: Frame, tail: memoryview) -> None:
        subscription = self.subscriptions.get(getattr(frame, "subscription", 0))
        if subscription is not None:
            subscription.received(frame, tail)

    async def live_link(self) -> Link:
        """The connection, as soon as there is one."""
        while True:
            if self._closed is not None:
                raise self._closed
            if self.link is not None:
                return self.link
            await self._up.wait()

    async def call_on_link(self, make: Callable[[int], Frame], *tail: bytes) -> Any:
        """Ask; after a lost connection ask again on the next one."""
        while True:
            link = await self.live_link()
            try:
                answer = await link.ask(make, *tail)
            except (Disconnected, ShuttingDown):
                if self._closed is not None:
                    raise self._closed from None
                await asyncio.sleep(0)
                continue
            if isinstance(answer, frames.Subscribed):
                subscription = self.subscriptions.get(answer.subscription)
                if subscription is not None:
                    subscription.subscribed(answer)
            return answer

    def new_id(self) -> bytes:
        """A UUIDv7."""
        stamp = time.time_ns() // 1_000_000
        noise = int.from_bytes(os.urandom(10), "big")
        value = stamp << 80 | 7 << 76 | (noise >> 66 & 0xFFF) << 64 | 2 << 62 | noise & (1 << 62) - 1
        return value.to_bytes(16, "big")

    def outbox(self, topic: str) -> Outbox:
        if self._closed is not None:
            raise self._closed
        found = self._outboxes.get(topic)
        if found is None:
            found = self._outboxes[check_name(topic, "topic")] = Outbox(self, topic)
        return found

    def room_made(self) -> None:
        if self._rooms:
            rooms, self._rooms = self._rooms, []
            for room in rooms:
                if not room.done():
                    room.set_result(None)

    def when_room(self, then: Callable[[], None]) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        room.add_done_callback(lambda _: then())
        self._rooms.append(room)

    async def wait_for_room(self) -> None:
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rooms.append(room)
        await room

    # -- publishing --------------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str | bytes | None = None,
        priority: int = 0,
        headers: Headers | None = None,
        id: str | None = None,
        deliver_at: Any = None,
        expires_at: Any = None,
        until: Until = "stored",
        timeout: float | None = None,
    ) -> Receipt:
        """Publish one message. Returns when it is stored; or, with ``until="arrived"``, when it is stored at
        a terminal of each of the topic's groups; or, with "acked", when a consumer of each group has acked
        it.

        deliver_at, expires_at: a datetime, a timedelta from now, or seconds since 1970."""
        outbox = self.outbox(topic)
        rows = Rows()
        rows.add(self.checked(encode(payload)), key, priority, headers, id, deliver_at, expires_at)
        batch_id = self.new_id()
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        first: int | None = None
        try:
            async with asyncio.timeout(timeout):
                while outbox.full:
                    await self.wait_for_room()
                    if self._closed is not None:
                        raise self._closed
                outbox.put(rows.build(batch_id), 1, partial(_resolve, done))
                first = await done
                if until != "stored":
                    await self.call("message.wait", topic=topic, offset=first, until=until)
        except TimeoutError:
            if first is not None:
                raise TimedOut(
                    f"stored in {topic} at offset {first}, id {id or f'{batch_id.hex()}-0'}, but not {until} "
                    f"within {timeout} s",
                    hint="it is on its way: don't publish it again, ask 'landbridge where ID'",
                ) from None
            raise TimedOut(
                f"not stored within {timeout} s", hint="it may be stored yet: the bus goes on trying"
            ) from None
        return Receipt(id or f"{batch_id.hex()}-0", first)

    def checked(self, payload: bytes) -> bytes:
        """The payload, unless it is larger than the terminal takes."""
        if len(payload) > self.max_payload:
            raise TooLarge(
                f"a payload of {len(payload)} bytes, the terminal takes {self.max_payload}",
                hint="send it in parts, or raise the terminal's limit max_payload",
            )
        return payload

    def publisher(self, topic: str) -> Publisher:
        """For many messages: they gather into batches, and you wait only when there is no room."""
        return Publisher(self, self.outbox(topic))

    def transaction(self) -> Transaction:
        """Outputs and acks in one atomic commit."""
        return Transaction(self)

    def begin_transaction(self) -> int:
        number = self._next_transaction
        self._next_transaction += 1
        self._transactions.add(number)
        return number

    def end_transaction(self, number: int) -> None:
        """It was answered, one way or the other: it won't be repeated."""
        self._transactions.discard(number)

    @property
    def oldest_transaction(self) -> int:
        return min(self._transactions, default=self._next_transaction)

    # -- subscribing -------------------------------------------------------------------------------

    def subscribe(
        self, topic: str, *, group: str | None = None, prefetch: int = 1000, start: Any = None
    ) -> Subscription:
        """Read a topic. Without a group: from now on, for oneself alone, settled on delivery.

        start: where a new group begins: "earliest" (the default), "latest", a datetime, a timedelta from now
        (negative: so long ago) or seconds since 1970.
        prefetch: how many messages may be here and unsettled."""
        check_name(topic, "topic")
        if group is not None:
            check_name(group, "group")
        if not 1 <= prefetch <= MOST_PREFETCH:
            raise BadRequest(f"a prefetch of {prefetch}, allowed are 1 to {MOST_PREFETCH:,}")
        number = self._next_subscription
        self._next_subscription += 1
        return Subscription(self, number, topic, group, prefetch, start)

    # -- bulk --------------------------------------------------------------------------------------

    async def fetch(self, topic: str, offset: int, max_bytes: int = 4 << 20) -> Stretch:
        """Read a topic's log by offset, as no group: nothing is settled, delayed, expired or left out."""
        check_name(topic, "topic")
        frame, tail = await self.call_on_link(lambda request: frames.Fetch(request, topic, offset, max_bytes))
        return stretch(frame, tail)

    async def stage(self, stage: str, topic: str, data: bytes) -> tuple[int, int]:
        """Put a batch for a topic on a stage, where nobody sees it until ``stage.commit``. Returns the number
        of the stage's log and the first offset there. After a lost answer it may be there twice, and only
        the one that was answered counts."""
        if len(data) > self.max_batch:
            raise TooLarge(f"a batch of {len(data)} bytes, the terminal takes {self.max_batch}")
        answer = await self.call_on_link(lambda request: frames.Stage(request, stage, topic), data)
        log, first = answer.result
        return log, first

    # -- everything else ---------------------------------------------------------------------------

    async def call(self, op: str, /, **args: Any) -> Any:
        """An operation of the terminal: ``await bus.call("topic.create", name="orders", kind="queue")``."""
        answer = await self.call_on_link(lambda request: frames.Call(request, op, args))
        return answer.result

    async def renew(self, token: str) -> None:
        """Go on with a fresh token, on this connection and on those to come."""
        before, self._token = self._token, token
        try:
            await self.call_on_link(lambda request: frames.Renew(request, token))
        except BusError:
            self._token = before
            raise

    async def ping(self) -> float:
        """Seconds there and back."""
        begin = time.perf_counter()
        await self.call_on_link(frames.Ping)
        return time.perf_counter() - begin


def _resolve(done: asyncio.Future[int], result: int | BusError) -> None:
    if done.done():
        return
    if isinstance(result, BusError):
        done.set_exception(result)
    else:
        done.set_result(result)


class Connecting:
    """What ``connect`` returns: ``async with`` it, or ``await`` it. Whatever else is done with it is answered
    with what to do instead."""

    def __init__(self, make: Callable[[], Bus]) -> None:
        self._make = make
        self._bus: Bus | None = None

    async def __aenter__(self) -> Bus:
        self._bus = self._make()
        return await self._bus.open()

    async def __aexit__(self, *error: Any) -> None:
        if self._bus is not None:
            await self._bus.close()

    def __await__(self) -> Any:
        return self._make().open().__await__()

    if not TYPE_CHECKING:  # a checker of types finds these by itself

        def __enter__(self) -> NoReturn:
            raise BadRequest(
                "this bus is asynchronous: a plain 'with' can't open it",
                hint="'async with landbridge.connect() as bus', or 'with landbridge.sync.connect() as bus'",
            )

        def __exit__(self, *error: Any) -> None:
            pass  # 'with' looks for it before it calls __enter__

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or not hasattr(Bus, name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise BadRequest(
                f"{name!r} of a bus that is not open",
                hint=f"'async with landbridge.connect() as bus', then bus.{name}; or 'bus = await connect()'",
            )


def connect(
    url: str | None = None,
    *,
    token: str | Callable[[], str] | None = None,
    context: str | None = None,
    name: str = "",
    patience: float = 30.0,
) -> Connecting:
    """Connect to a terminal: the one of the current context, or ``connect("lb://host:7420", token=…)``."""
    fixed = token() if callable(token) else token
    where = resolve(url, fixed, context)
    dial = dial_of(where)
    chosen = token if callable(token) else where.token
    return Connecting(lambda: Bus(dial, chosen, name=name, patience=patience, address=where.url))

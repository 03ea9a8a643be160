"""The line to a terminal: a connection that mends itself, and what has to be known across connections. The
bus is a line with publishers and subscriptions on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Protocol, TypeVar
from weakref import WeakValueDictionary

from landbridge.client.node_wires import NodeWires
from landbridge.client.wire import ContextDial, Dial, Wire, open_wire
from landbridge.core.time import SECOND, uuid7
from landbridge.errors import (
    BusError,
    Disconnected,
    NotOwner,
    ShuttingDown,
    TerminalUnreachable,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WrongVersion,
)
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import MAX_HEAD

log = logging.getLogger("landbridge.client")

L = TypeVar("L", bound="TerminalLine")

#: Reconnecting: the bounds of the wait between two attempts, in seconds. Each wait is a random share of the
#: current bound, which doubles.
FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 5.0
#: What this client takes beyond the frames of the first version.
FEATURES = ["pauses", "nodes"]
#: Of a terminal with several nodes: seconds between two questions whether the node in use still answers, and
#: for its answer. A process that is stopped keeps its connections.
ASK_NODE_EVERY, NODE_ANSWERS_WITHIN = 1.0, 4.0
#: Seconds after the goodbye of one node in which another should go on.
GOODBYE_FOR = 1.0
#: Topics whose outboxes are kept although they have nothing to send.
MOST_OUTBOXES = 1024


class Resender(Protocol):
    """What a line has to know of an outbox."""

    topic: str

    @property
    def empty(self) -> bool:
        """Everything that was sent is answered."""

    def send_all(self) -> None:
        """The connection is new: send everything that is not answered."""

    def fail(self, error: BusError) -> None:
        """There will be no connection any more."""


class Receiver(Protocol):
    """What a line has to know of a subscription."""

    topic: str

    def received(self, frame: Frame, tail: memoryview) -> None:
        """A frame for this subscription has come."""

    def disconnected(self) -> None:
        """The connection is lost, and another one is on its way."""

    def restart(self) -> None:
        """The connection is new: subscribe again."""

    def fail(self, error: BusError) -> None:
        """There will be no connection any more."""

    async def close(self) -> None:
        """End the subscription in good order."""


class TerminalLine:
    """A connection to a terminal that is made again when it is lost.

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
        #: The id under which the terminal's ledger knows this bus.
        self.producer = producer or os.urandom(16)
        #: When that producer was born, by the terminal's clock; 0 before the first connection.
        self.born = 0
        #: The connection; None while there is none.
        self.wire: Wire | None = None
        #: How many connections there have been.
        self.connections = 0
        #: The terminal's clock less the loop's, in microseconds.
        self._clock_there = 0
        #: The terminal's limits in bytes, as its welcome says. ``window``: of batches without an answer.
        self.window = 1 << 20
        self.max_payload = self.max_batch = 1 << 20
        #: Bytes of batches without an answer.
        self.unanswered = 0
        #: Open subscriptions by number.
        self.subscriptions: dict[int, Receiver] = {}
        #: The terminal's name; empty before the first connection.
        self.terminal_name = ""
        #: What the terminal knows beyond the frames of the first version, as its welcome says.
        self.features: frozenset[str] = frozenset()
        self._resenders: WeakValueDictionary[str, Resender] = WeakValueDictionary()
        #: Those of them that were used last, and all that have something to send: they must stay.
        self._recent: OrderedDict[str, Resender] = OrderedDict()
        #: Was one forgotten? The ledgers may still know the numbers that it has used.
        self.has_forgotten = False
        self._next_transaction = 1
        #: Transactions without an answer.
        self._transactions: set[int] = set()
        #: Why the bus is closed for good; None while it is in use.
        self.closed: BusError | None = None
        self._up = asyncio.Event()
        #: Done when the bus is closed for good.
        self._over: asyncio.Future[BusError] | None = None
        #: Those who wait until fewer bytes are unanswered.
        self._rooms: list[asyncio.Future[None]] = []
        self._mending: asyncio.Task[None] | None = None
        #: Asks the node in use whether it still answers; None where there is one node alone.
        self._node_watch: asyncio.Task[None] | None = None
        #: When the connection was lost, in the loop's time; None while there is one.
        self._lost_at: float | None = None
        #: What a node has said before it ended the connection, while others may go on; None where nobody has.
        self._goodbye: BusError | None = None

    # -- life --------------------------------------------------------------------------------------

    async def open(self: L) -> L:
        """Connect. The first attempt raises what goes wrong; after that the bus reconnects by itself."""
        if self.closed is not None:
            raise self.closed
        if self.wire is None and self._mending is None:
            await self._connect()
        return self

    async def __aenter__(self: L) -> L:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _connect(self) -> None:
        token = self._token() if callable(self._token) else self._token
        hello = frames.Hello(frames.VERSION, token, self._name[:1024], FEATURES)
        try:
            wire, welcome = await open_wire(self._dial, hello, self._received, self._lost)
        except Unavailable:
            self._move_on()
            raise
        await self._follow_nodes(wire, welcome, hello)
        if not wire.open:
            raise Disconnected("the connection was lost before it was used")
        self.wire = wire
        if wire.nodes is not None:
            self._node_watch = asyncio.ensure_future(self._ask_nodes(wire, wire.nodes))
        self.connections += 1
        if welcome.time:
            self._clock_there = welcome.time - int(asyncio.get_running_loop().time() * SECOND)
            self.born = self.born or welcome.time
        self.window = welcome.window
        self.max_payload = welcome.max_payload
        self.max_batch = max(welcome.max_frame - MAX_HEAD // 2, welcome.max_frame // 2)
        self.terminal_name = welcome.terminal
        self.features = frozenset(welcome.features)
        for resender in list(self._resenders.values()):
            resender.send_all()
        for subscription in list(self.subscriptions.values()):
            subscription.restart()
        self._up.set()
        if self._lost_at is not None:
            # At the level of the loss: whoever has read of the loss waits for this line.
            away = asyncio.get_running_loop().time() - self._lost_at
            self._lost_at = None
            level = logging.INFO if self._goodbye is not None else logging.WARNING
            log.log(level, "back at the terminal%s after %.1f s", self._at, away)

    async def _follow_nodes(self, wire: Wire, welcome: frames.Welcome, hello: frames.Hello) -> None:
        """Where the terminal has several nodes, connect to those that have what is used."""
        dial = self._dial
        if not isinstance(dial, ContextDial):
            return
        dial.learn(welcome.nodes)
        if not dial.has_others:
            return

        async def connect(url: str) -> Wire:
            found, _ = await open_wire(dial.to(url), hello, self._received, lambda *_: None, wire)
            return found

        wire.nodes = NodeWires(wire, connect)
        used = [*self._resenders, *(each.topic for each in self.subscriptions.values())]
        try:
            async with asyncio.timeout(NODE_ANSWERS_WITHIN):
                await wire.nodes.find(used)
        except TimeoutError:
            wire.cut(Disconnected("the node has stopped answering"))
            self._move_on()
            raise TerminalUnreachable(
                f"the node{self._at} has said welcome and nothing else in {NODE_ANSWERS_WITHIN:g} s"
            ) from None

    async def come_near(self, topic: str) -> None:
        """Before a topic is used: where the terminal has several nodes, find the one that has it."""
        wire = self.wire
        if wire is not None and wire.nodes is not None and not wire.nodes.knows(topic):
            await wire.nodes.find([topic])

    def _move_on(self) -> None:
        if isinstance(self._dial, ContextDial):
            self._dial.move_on()

    async def _ask_nodes(self, wire: Wire, nodes: NodeWires) -> None:
        """End a connection one of whose nodes doesn't answer although it is there."""
        while wire is self.wire:
            await asyncio.sleep(ASK_NODE_EVERY)
            try:
                async with asyncio.timeout(NODE_ANSWERS_WITHIN):
                    await nodes.ping()
            except TimeoutError:
                wire.cut(Disconnected(f"a node hasn't answered within {NODE_ANSWERS_WITHIN:g} s"))
                return
            except BusError:
                return

    @property
    def _at(self) -> str:
        return f" at {self._address}" if self._address else ""

    def _lost(self, wire: Wire, error: BusError) -> None:
        if wire is not self.wire:
            return  # the wire had no welcome yet, and whoever dialled gets the error
        self.wire = None
        self._move_on()
        if self._node_watch is not None:
            self._node_watch.cancel()
            self._node_watch = None
        self._up.clear()
        for subscription in self.subscriptions.values():
            subscription.disconnected()
        if self.closed is not None:
            return
        # A function for tokens may return a fresh token when the one in use has expired; a fixed token stays.
        if isinstance(error, Unavailable) or (isinstance(error, Unauthenticated) and callable(self._token)):
            self._lost_at = asyncio.get_running_loop().time()
            self._goodbye = error if self._is_goodbye(error) else None
            if self._goodbye is None:
                log.warning("lost the terminal%s, trying again: %s", self._at, error)
            else:
                log.info("a node%s has said goodbye, going on at another: %s", self._at, error)
            self._mending = asyncio.ensure_future(self._mend())
        else:
            self._fail(error)  # expired, revoked, a broken protocol: trying again would not help

    def _is_goodbye(self, error: BusError) -> bool:
        """Of several nodes, one that ends or gives something up says so, and others are there."""
        if isinstance(error, ShuttingDown):
            return isinstance(self._dial, ContextDial) and self._dial.has_others
        return isinstance(error, NotOwner)

    def _still_away(self) -> None:
        """Another attempt to connect has failed. After a goodbye, nobody else may be there after all."""
        away = asyncio.get_running_loop().time() - (self._lost_at or 0.0)
        if self._goodbye is not None and away > GOODBYE_FOR:
            log.warning("lost the terminal%s, trying again: %s", self._at, self._goodbye)
            self._goodbye = None

    async def _mend(self) -> None:
        backoff = FIRST_BACKOFF
        while self.closed is None:
            await asyncio.sleep(random.uniform(0, backoff))
            backoff = min(LONGEST_BACKOFF, backoff * 2)
            try:
                await self._connect()
            except (Unavailable, OSError):
                self._still_away()
                continue
            except BusError as error:
                self._fail(error)
            except Exception as error:  # of the function for tokens
                self._fail(BusError(f"can't connect again: {error!r}"))
            return

    def _fail(self, error: BusError) -> None:
        """Give up for good, and tell everyone who waits."""
        self.closed = error
        self._up.set()
        if self._over is not None and not self._over.done():
            self._over.set_result(error)
        for resender in list(self._resenders.values()):
            resender.fail(error)
        for subscription in list(self.subscriptions.values()):
            subscription.fail(error)
        self.room_made()

    async def close(self) -> None:
        """Disconnect: acks are sent and leases given back before."""
        if self.closed is not None and self.wire is None:
            return
        for subscription in list(self.subscriptions.values()):
            await subscription.close()
        closed = Disconnected("the bus was closed")
        self.closed = self.closed or closed
        if self._mending is not None:
            self._mending.cancel()
        wire = self.wire
        if wire is not None and wire.open:
            # A producer whose batches are all answered won't repeat any: the ledger may forget it.
            settled = all(resender.empty for resender in self._resenders.values())
            wire.send(frames.Bye(self.producer if settled else b""))
            wire.close()
        self._fail(closed)
        if wire is not None:
            await wire.wait_closed()

    async def wait_over(self) -> BusError:
        """Wait until the bus is closed for good, for example since its token has expired. Returns why."""
        if self.closed is not None:
            return self.closed
        if self._over is None or self._over.done():
            self._over = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._over)

    @property
    def is_connected(self) -> bool:
        """Is there a connection at the moment?"""
        return self.wire is not None

    # -- asking ------------------------------------------------------------------------------------

    def _received(self, frame: Frame, tail: memoryview) -> None:
        subscription = self.subscriptions.get(getattr(frame, "subscription", 0))
        if subscription is not None:
            subscription.received(frame, tail)

    async def live_wire(self) -> Wire:
        """The connection, as soon as there is one."""
        while True:
            if self.closed is not None:
                raise self.closed
            if self.wire is not None:
                return self.wire
            await self._up.wait()

    async def ask(self, make: Callable[[int], Frame], *tail: bytes) -> Any:
        """Send a request and return the answer. After a lost connection the request is sent again on the
        next one. ``make`` makes the frame from the request's number."""
        while True:
            wire = await self.live_wire()
            try:
                return await wire.ask(make, *tail)
            except (Disconnected, ShuttingDown):
                if self.closed is not None:
                    raise self.closed from None
                await asyncio.sleep(0)

    async def ask_patiently(self, make: Callable[[int], Frame], *tail: bytes) -> Any:
        """The same for a request that may be sent any number of times: one that is refused for now (backlog
        or disk full) is sent again until the bus's patience is over."""
        loop = asyncio.get_running_loop()
        give_up_at, delay = 0.0, 0.05
        while True:
            try:
                return await self.ask(make, *tail)
            except BusError as error:
                give_up_at = give_up_at or loop.time() + self.patience
                if not error.retriable or self.closed is not None or loop.time() >= give_up_at:
                    raise
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(2.0, delay * 2)

    async def check_feature(self, feature: str, what: str) -> None:
        """WrongVersion where the terminal is too old for what is asked of it."""
        await self.live_wire()
        if feature not in self.features:
            raise WrongVersion(f"the terminal{self._at} knows no {what}")

    async def call(self, op: str, /, **args: Any) -> Any:
        """Call an operation by name: ``await bus.call("topic.create", name="orders", kind="queue")``. Returns
        plain dictionaries and lists; ``bus.topics.create(…)`` and its kind are typed."""
        return await self.call_for("", op, args)

    async def call_for(self, origin: str, op: str, args: dict[str, Any]) -> Any:
        """The same for a gateway, which says for whom: the address of its client, for the audit log."""
        answer = await self.ask(lambda request: frames.Call(request, op, args, origin))
        return answer.result

    async def renew(self, token: str) -> None:
        """Replace the token, on this connection and on those to come. A function for tokens stays: it makes
        the next ones."""
        before = self._token
        self._token = before if callable(before) else token
        try:
            await self.ask(lambda request: frames.Renew(request, token))
        except BusError:
            self._token = before
            raise

    async def ping(self) -> float:
        """The seconds of a round trip to the terminal."""
        begin = time.perf_counter()
        await self.ask(frames.Ping)
        return time.perf_counter() - begin

    # -- for outboxes and transactions -------------------------------------------------------------

    def use(self, resender: Resender) -> None:
        """An outbox is used. One that has not been used for long, and has nothing to send, is forgotten."""
        recent = self._recent
        recent[resender.topic] = resender
        recent.move_to_end(resender.topic)
        if len(recent) > MOST_OUTBOXES:
            topic, oldest = recent.popitem(last=False)
            if oldest.empty:
                self.has_forgotten = True
            else:
                recent[topic] = oldest

    def time_there(self) -> int:
        """The terminal's clock, about; 0 where it has not told."""
        return self._clock_there and self._clock_there + int(asyncio.get_running_loop().time() * SECOND)

    def new_id(self) -> bytes:
        """A UUIDv7, for a batch."""
        return uuid7(time.time_ns() // 1000, os.urandom(10))

    def checked(self, payload: bytes) -> bytes:
        """The payload; TooLarge if the terminal would not take it."""
        if len(payload) > self.max_payload:
            raise TooLarge(
                f"a payload of {len(payload)} bytes, the terminal takes {self.max_payload}",
                hint="send it in parts, or raise the terminal's limit max_payload",
            )
        return payload

    def room_made(self) -> None:
        """Fewer bytes are unanswered than before: wake those who wait for room."""
        if self._rooms:
            rooms, self._rooms = self._rooms, []
            for room in rooms:
                if not room.done():
                    room.set_result(None)

    def wait_for_room(self) -> asyncio.Future[None]:
        """Done when fewer bytes are unanswered, or when the bus has failed."""
        room: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._rooms.append(room)
        return room

    def begin_transaction(self) -> int:
        """The number of a new transaction."""
        number = self._next_transaction
        self._next_transaction += 1
        self._transactions.add(number)
        return number

    def end_transaction(self, number: int) -> None:
        """The transaction was answered, one way or the other: it won't be repeated."""
        self._transactions.discard(number)

    @property
    def oldest_transaction(self) -> int:
        """The lowest number of a transaction that has no answer yet."""
        return min(self._transactions, default=self._next_transaction)

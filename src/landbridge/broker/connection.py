"""One connection to a terminal: frames in, frames out, and who is at the other end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import msgspec

from landbridge.broker.authority import Authority, TokenIdentity, claims_of
from landbridge.broker.broker import Broker
from landbridge.broker.cluster import Cluster
from landbridge.broker.fetches import Fetches
from landbridge.broker.gathering import Inquiry
from landbridge.broker.group import Consumer
from landbridge.broker.heartbeats import Heartbeats
from landbridge.broker.keys import PublishOutcome
from landbridge.broker.legs import Leg, for_client
from landbridge.broker.mirror import Mirror
from landbridge.broker.outcomes import Outcomes
from landbridge.broker.requests import Outstanding
from landbridge.broker.rule_topics import demand_read
from landbridge.broker.services import Services
from landbridge.broker.stages import Stages
from landbridge.broker.topic import Topic
from landbridge.broker.transactions import TransactionOutcome
from landbridge.core.time import SECOND
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import (
    BadRequest,
    BusError,
    Disconnected,
    Forbidden,
    LeaseLost,
    LimitReached,
    NotOwner,
    ShuttingDown,
    TerminalUnreachable,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from landbridge.protocol import frames
from landbridge.protocol import operations as table
from landbridge.protocol.frames import Frame
from landbridge.protocol.router import ConsumedGroup, Everywhere, Gather, Router, There, Unknown, awaited
from landbridge.protocol.session import Event, Role, Session, State
from landbridge.transport.incoming import Incoming
from landbridge.transport.keepalive import keep_alive
from landbridge.transport.outgoing import Outgoing, gathering
from landbridge.transport.strangers import Stranger, Strangers

T = TypeVar("T")
#: Bytes waiting to be written to a peer above which it gets nothing more and isn't read from.
HIGH_WATER = 4 << 20
#: Seconds from the decision to end a connection until it is cut.
CLOSE_WITHIN = 5.0
EMPTY = memoryview(b"")
#: Nodes that a welcome names.
MOST_ADDRESSES = 256
#: What a client may use of this terminal beyond the frames of the first version.
FEATURES = ["keys", "requests"]
#: Frames of a connection that are handled in one turn of the loop, and those that count as several.
FRAMES_AT_ONCE = 128
HEAVY: dict[type[Frame], int] = {frames.Call: 4, frames.Subscribe: 4, frames.Renew: 4}
#: As whom another node asks, and the microseconds that it may.
NODE, NODE_LIFE = "$node", 365 * 86400 * SECOND
#: So many parts of a transaction count as a frame.
PARTS_PER_FRAME = 8
#: Operations that stay for as long as nothing happens.
WAITS = frozenset(
    operation.name
    for operation in (
        table.TOPIC_WAIT,
        table.TOPIC_WATCH,
        table.DOCUMENT_WAIT,
        table.MESSAGE_WAIT,
        table.EVENT_OUTCOME,
        table.REQUEST_SEND,
    )
)


class OperationsPort(Protocol):
    """Answers operations (``landbridge.broker.operations``)."""

    async def call(
        self, connection: Connection, op: str, args: dict[str, Any], origin: str = ""
    ) -> object: ...


class FrameHeld(Exception):
    """Raised by a handler whose frame has to wait: it is handled again later, and nothing before it."""


class Host(Protocol):
    """The terminal that a connection leads to."""

    #: The other nodes, and what this one follows of the owner of unit 0; None where the terminal has none.
    cluster: Cluster | None
    mirror: Mirror | None

    name: str
    broker: Broker
    authority: Authority
    connections: set[Connection]
    strangers: Strangers
    addresses: Callable[[], list[str]]
    closing: bool
    heartbeats: Heartbeats
    services: Services
    stages: Stages
    outcomes: Outcomes

    @property
    def operations(self) -> OperationsPort: ...

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run it until it ends or the terminal closes."""

    def log_crash(self, what: str, error: BaseException) -> None: ...


class Connection(Incoming):
    def __init__(
        self,
        terminal: Host,
        stranger: Stranger | None = None,
        *,
        is_part: bool = False,
        is_whole: bool = True,
    ) -> None:
        super().__init__(Session(Role.TERMINAL, max_frame=terminal.broker.limits.max_frame))
        self.terminal = terminal
        self.broker = terminal.broker
        self.identity: TokenIdentity | None = None
        #: It takes frames that tell of pauses.
        self.hears_pauses = False
        #: It knows that a terminal may have several nodes, and the error ``not_owner``.
        self.knows_nodes = False
        #: What the peer calls itself, and where it is.
        self.name = self.peer = ""
        #: When something has come from it last, microseconds.
        self.heard_at = terminal.broker.clock()
        self.closed = False
        #: False while the peer doesn't read what it was sent.
        self.writable = True
        #: subscription number → consumer.
        self.consumers: dict[int, Consumer] = {}
        #: Frames that were received and not handled yet, and the frame that its handler has begun with.
        self._events: deque[Event] = deque()
        self._handling: tuple[Frame, Iterator[None]] | None = None
        #: The loop's next turn goes on with them.
        self._is_behind = False
        #: Operations under way that wait for something to happen.
        self._waits = 0
        #: Its requests without an end, by the caller's numbers.
        self.requests: dict[int, Outstanding] = {}
        #: Bulk reads under way.
        self._fetches = Fetches(self)
        #: Bytes of batches that were received and not answered yet, and how many it may be.
        self._unanswered = 0
        self._window = 2 * terminal.broker.limits.publish_window
        self._reading = True
        self._transport: asyncio.Transport
        self._outgoing: Outgoing
        self._timer: asyncio.TimerHandle | None = None
        #: Until the peer has shown who it is; None within this process.
        self._stranger = stranger
        #: Of a node: where the client's frames go, and the legs by which they do, by node. And the token that
        #: the client has shown.
        self._router: Router | None = None
        self._legs: dict[str, Leg] = {}
        self._token = ""
        #: It comes from another node: for a client of that node, or for that node itself.
        self.is_leg = self.is_node = False
        #: A frame waits for something, and so does what has come after it.
        self._is_held = False
        #: It has waited once already.
        self._has_refreshed = False
        #: It is a part of the terminal, which has bounds of its own: max_webhooks, max_subscribers.
        self.is_part = is_part
        #: Its frames go to the nodes that own what they are about; if not, this node alone answers.
        self.is_whole = is_whole
        self._handlers: dict[type[Frame], Callable[..., Iterator[None] | None]] = {
            frames.Hello: self._hello,
            frames.Join: self._join,
            frames.Publish: self._publish,
            frames.PublishOnce: self._publish_once,
            frames.Settle: self._settle,
            frames.Subscribe: self._subscribe,
            frames.Credit: self._credit,
            frames.Unsubscribe: self._unsubscribe,
            frames.Transact: self._transact,
            frames.Call: self._call,
            frames.Renew: self._renew,
            frames.Ping: self._ping,
            frames.Bye: self._bye,
            frames.Fetch: self._fetches.put,
            frames.Stage: self._stage,
            frames.Pull: self._pull,
            frames.SendRequest: self._request,
            frames.SendReply: self._reply,
            frames.Relay: self._relay,
        }

    # -- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._outgoing = Outgoing(self._transport)
        keep_alive(transport)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "memory"
        terminal, stranger = self.terminal, self._stranger
        self._leave_strangers()  # it makes no room for itself
        if terminal.closing:
            self.close(ShuttingDown("the terminal is shutting down"))
        elif not self._find_room():
            self.close(
                LimitReached(
                    f"{self.broker.limits.max_connections} connections, as many as max_connections allows"
                )
            )
        else:
            terminal.connections.add(self)
            if stranger is not None:
                self._stranger = terminal.strangers.enter(stranger.address, self._give_way)
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self.broker.limits.hello_within, self._no_hello)

    def _find_room(self) -> bool:
        """Whether there is room for one more connection. Strangers give way."""
        if self.is_part:
            return True
        connections, most = self.terminal.connections, self.broker.limits.max_connections
        while len(connections) >= most and sum(not each.is_part for each in connections) >= most:
            if not self.terminal.strangers.make_room():
                return False
        return True

    def _give_way(self) -> None:
        self.broker.totals.refused += 1
        limit = self.broker.limits.max_strangers
        self.close(LimitReached(f"no hello yet, and others wait: max_strangers is {limit} for one address"))

    def _leave_strangers(self) -> None:
        if self._stranger is not None:
            self.terminal.strangers.leave(self._stranger)
            self._stranger = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(counted=True)
        if self._timer is not None:
            self._timer.cancel()

    def pause_writing(self) -> None:
        self.writable = False
        for leg in self._legs.values():
            leg.read(False)
        self._throttle()

    def resume_writing(self) -> None:
        self.writable = True
        self._throttle()
        self._fetches.resume()
        for leg in self._legs.values():
            leg.read(True)
        for consumer in list(self.consumers.values()):
            consumer.group.pump()
            self.broker.requests.resume(consumer)

    def _throttle(self) -> None:
        """Read only while the peer reads, while it keeps to its window, and when all of it is handled."""
        reading = self.writable and self._unanswered <= self._window and not self._is_behind
        if reading and self._legs:
            reading = not any(leg.is_full for leg in self._legs.values())
        if reading != self._reading and not self.closed:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def data_received(self, data: bytes | bytearray) -> None:
        self.heard_at = self.broker.clock()
        try:
            events = self.session.receive_data(data)
        except BusError as error:
            self._refuse_peer(error)
            return
        self._events.extend(events)
        if not self._is_behind:
            self._handle()

    def _handle(self) -> None:
        """Handle what has come, but no more than belongs into one turn of the loop. While there is more,
        nothing is read, and the next turn goes on."""
        room = FRAMES_AT_ONCE
        with gathering:
            while (self._events or self._handling) and not self.closed and not self._is_held and room > 0:
                room -= self._handle_one()
        was_behind = self._is_behind
        self._is_behind = bool(self._events or self._handling) and not self.closed
        if self._is_behind and not self._is_held:
            asyncio.get_running_loop().call_soon(self._handle_rest)
        if self._is_behind != was_behind:
            self._throttle()

    def _handle_rest(self) -> None:
        try:
            self._handle()
        except Exception as crash:  # as a transport does where ``data_received`` crashes
            self.log_crash("a connection", crash)
            self.close(BusError(f"the terminal failed: {type(crash).__name__}"))

    def _handle_one(self) -> int:
        """Handle the next frame, or go on with the last one. Returns what of the turn's room that took."""
        if self._handling is None:
            frame, tail = self._events.popleft()
        else:
            frame, begun = self._handling
        try:
            if self._handling is None:
                handler = self._handlers[type(frame)]
                work = handler(frame, tail) if tail else handler(frame)
                if work is None:
                    return _weight(frame)
                begun = work
            for _ in begun:
                self._handling = frame, begun
                return FRAMES_AT_ONCE
        except FrameHeld:
            self._events.appendleft((frame, tail))
            return 0
        except BusError as error:
            self.refuse(getattr(frame, "request", 0), error)
        self._handling = None
        return _weight(frame)

    def _hold(self, until: Coroutine[Any, Any, None]) -> FrameHeld:
        """The frame that is being handled, and all after it, wait for something."""
        self._is_held = True
        self.terminal.spawn(until).add_done_callback(self._go_on)
        return FrameHeld()

    def _go_on(self, done: asyncio.Task[None]) -> None:
        self._is_held = False
        if self.closed or done.cancelled():
            return
        if (error := done.exception()) is None:
            self._handle_rest()
        elif isinstance(error, BusError):
            self.close(error)
        else:
            self.log_crash("a frame that waits", error)
            self.close(BusError(f"the terminal failed: {type(error).__name__}"))

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        if not self.closed:
            self._outgoing.send(frame, *tail)

    def flush(self) -> None:
        """Write now: what is delivered should not wait for the answers that go out with it."""
        if not self.closed:
            self._outgoing.flush()

    def log_crash(self, what: str, error: BaseException) -> None:
        self.terminal.log_crash(what, error)

    # -- who ---------------------------------------------------------------------------------------

    @property
    def subject(self) -> str:
        return self.identity.subject if self.identity is not None else ""

    @property
    def token_id(self) -> str:
        """Names the token that was shown, or the credential."""
        return self.identity.token_id if self.identity is not None else ""

    @property
    def expires_at(self) -> int:
        """When the token or the credential expires, in microseconds."""
        assert self.identity is not None  # as in ``scopes``
        return self.identity.expires_at

    @property
    def scopes(self) -> Scopes:
        assert self.identity is not None  # the session lets nothing but Hello through before
        return self.identity.scopes

    @property
    def claims(self) -> Mapping[str, str]:
        """What is known of the subject, for the middleware of topics that it publishes to."""
        assert self.identity is not None  # as above
        service = self.terminal.services.find(self.subject)
        return claims_of(self.identity, None if service is None else service.spec)

    @property
    def who(self) -> str:
        return f"{self.subject}@{self.peer}" + (f" ({self.name})" if self.name else "")

    # -- answers -----------------------------------------------------------------------------------

    def refuse(self, request: int, error: BusError, subscription: int = 0) -> None:
        self.broker.totals.refused += 1
        if isinstance(error, NotOwner) and self.terminal.cluster is not None and self.is_whole:
            # Nobody may take that for an answer: whoever asks comes again, and is brought to the owner.
            self.close(error)
            return
        self.broker.status.note(
            self.broker.clock(),
            "refuse",
            who=self.subject,
            peer=self.peer,
            cause=error.code,
            detail=str(error),
        )
        self.send(frames.Refused(request, error.code, str(error), error.hint, subscription, error.details))

    def done(self, request: int, result: object = None) -> None:
        if request:
            self.send(frames.Done(request, result))

    def end(self, request: int) -> None:
        """Of a request for several replies: all have come that will come."""
        self.done(request)

    def lose(self, consumer: Consumer, error: BusError) -> None:
        """End a subscription from this side."""
        if self.consumers.pop(consumer.subscription, None) is not None:
            self.send(frames.Lost(consumer.subscription, error.code, str(error), error.hint))
            self.broker.consuming.unsubscribe(consumer, counted=False)

    def move_on(self, why: BusError) -> None:
        """Something that it consumes is at another node from now on. Its client connects anew, repeats what
        has no answer, and subscribes again."""
        self.close(why)

    def close(self, error: BusError) -> None:
        """Tell the peer why, and end."""
        if not self.closed:
            code = error.code
            if isinstance(error, NotOwner) and not (self.knows_nodes or self.is_leg):
                # A client of an earlier version would take a code that it doesn't know for the end. This one
                # it knows, and comes again.
                code = ShuttingDown.code
            self.send(frames.Closing(code, str(error), error.hint))
            self._outgoing.close()
            # A peer that doesn't read gets no more than this to take what was sent to it.
            self._end(counted=False, cause=error.code)
            self._timer = asyncio.get_running_loop().call_later(CLOSE_WITHIN, self._transport.abort)

    def _refuse_peer(self, error: BusError) -> None:
        self.broker.totals.refused += 1
        self.broker.status.note(
            self.broker.clock(),
            "refuse",
            who=self.subject,
            peer=self.peer,
            cause=error.code,
            detail=str(error),
        )
        self.close(error)

    def _no_hello(self) -> None:
        self._refuse_peer(Unauthenticated(f"no hello within {self.broker.limits.hello_within} s"))

    def _end(self, *, counted: bool, cause: str = "") -> None:
        if self.closed:
            return
        self.closed = True
        self.session.close()
        self.terminal.connections.discard(self)
        self._leave_strangers()
        if self._timer is not None:
            self._timer.cancel()
        for consumer in list(self.consumers.values()):
            self.broker.consuming.unsubscribe(consumer, counted=counted)
        self.consumers.clear()
        self.broker.requests.forget(self)
        for leg in list(self._legs.values()):
            leg.close(goodbye=not counted)
        self._legs.clear()
        self._fetches.close()
        self._events.clear()
        self._handling = None
        if self.identity is not None:
            self.terminal.heartbeats.heard(self.subject, self.heard_at)
            self.broker.status.note(
                self.broker.clock(), "disconnect", who=self.subject, peer=self.peer, cause=cause
            )

    # -- frames ------------------------------------------------------------------------------------

    def _hello(self, frame: frames.Hello) -> None:
        self.name = "".join(c if c.isprintable() else "?" for c in frame.name[:64])
        features = frame.features if isinstance(frame.features, list) else []
        self.hears_pauses = "pauses" in features
        self.knows_nodes = "nodes" in features
        now = self.broker.clock()
        if not self._has_refreshed:
            self.broker.status.note(now, "connect", peer=self.peer, detail=self.name)
        try:
            if not self._is_from_node(now, features):
                self._identify(self.terminal.authority.verify(now, frame.token))
        except Unauthenticated as error:
            self._look_once_more()
            self._refuse_peer(error)
            return
        except BusError as error:
            self._refuse_peer(error)
            return
        self._has_refreshed = False
        self._token = frame.token
        self._begin_routing()
        self._leave_strangers()
        self.broker.status.note(now, "authenticate", who=self.subject, peer=self.peer, detail=self.name)
        limits = self.broker.limits
        self.send(
            frames.Welcome(
                frames.VERSION,
                self.terminal.name,
                limits.max_frame,
                limits.max_payload,
                limits.publish_window,
                self.broker.ledger.stamp(),
                FEATURES,
                self.terminal.addresses()[:MOST_ADDRESSES],
            )
        )

    def _look_once_more(self) -> None:
        """Somebody isn't let in. Another node may have let it in a moment ago: the frame waits until this one
        knows what that one does, and is handled again."""
        if self.terminal.mirror is not None and not self._has_refreshed:
            self._has_refreshed = True
            raise self._hold(self.terminal.mirror.refresh())

    def _is_from_node(self, now: int, features: list[Any]) -> bool:
        """Another node has dialled. For a client, it says who that is, and the client's own token decides
        what it may do; for itself, it may do what nodes ask of each other."""
        said = next((each for each in features if isinstance(each, dict)), {})
        shown = said.get("leg", said.get("node"))
        if shown is None:
            return False
        if not isinstance(shown, str) or not self.terminal.authority.is_node(now, shown):
            raise Unauthenticated(
                "what another node shows is not good here",
                hint="do all nodes use one store, and are their clocks within some minutes?",
            )
        self.is_leg = True
        if "node" in said:
            self.is_node = self.is_part = True
            self.is_whole = False
            self._identify(TokenIdentity(NODE, "", Scopes.parse(["admin"]), now + NODE_LIFE, now, own=True))
            return True
        self.peer = str(said.get("peer", ""))[:100]
        return False

    def _begin_routing(self) -> None:
        """From now on each frame goes to the node that has what it is about."""
        cluster = self.terminal.cluster
        if cluster is None or not self.is_whole:
            return
        handle = self._passed_on
        if not self.is_leg:
            self._router = Router(cluster)
            handle = self._routed
        self._handlers = {kind: partial(handle, each) for kind, each in self._handlers.items()}

    def _join(self, frame: frames.Join) -> None:
        """Not a client but another terminal: from here on this is a link."""
        crossing = self.broker.crossing
        if crossing is None:
            error: BusError = Unauthenticated("this terminal has no links", hint="give it a registry")
            if self.terminal.cluster is not None:
                error = NotOwner("this node doesn't have the links of its terminal: the home does")
            self._refuse_peer(error)
            return
        self.closed = True
        self.terminal.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._stranger is not None:
            # The terminal at the other end has proved nothing yet, and has as long for it as for a hello.
            self._stranger.cut = self._cut_join
            loop = asyncio.get_running_loop()
            loop.call_later(self.broker.limits.hello_within, self._leave_strangers)
        crossing.accept(self._transport, self.session, frame)

    def _cut_join(self) -> None:
        if self.session.state is not State.LINKED:
            self._transport.abort()

    def _identify(self, identity: TokenIdentity) -> None:
        self.identity = identity
        if self._timer is not None:
            self._timer.cancel()
        span = (identity.expires_at - self.broker.clock()) / SECOND
        # The loop's timers don't like spans of years; a day at a time is enough.
        self._timer = asyncio.get_running_loop().call_later(min(span, 86400.0), self._expire)

    def _expire(self) -> None:
        assert self.identity is not None
        if self.identity.expires_at <= self.broker.clock():
            self.close(Unauthenticated("the token has expired", hint="connect with a fresh one"))
        else:
            self._identify(self.identity)

    def time_passed(self) -> None:
        if self.identity is not None:
            self._expire()

    def look_again(self) -> None:
        """A token was revoked, or a service was changed: it may concern this connection."""
        if self.identity is None or self.closed:
            return
        try:
            self._change(self.terminal.authority.look_again(self.broker.clock(), self.identity))
        except (Unauthenticated, Unavailable):
            self.close(
                Unauthenticated(
                    "the token or the credential was revoked, or the service was suspended, removed or given "
                    "fewer scopes"
                )
            )

    def _change(self, identity: TokenIdentity) -> None:
        """Go on with what the service may do from now on."""
        self._identify(identity)
        for consumer in list(self.consumers.values()):
            try:
                demand_read(self.broker.topics, self.scopes, consumer.group.topic.name)
            except Forbidden as error:
                self.lose(consumer, error)

    # -- other nodes -------------------------------------------------------------------------------

    def _routed(
        self, handle: Callable[..., Iterator[None] | None], frame: Frame, tail: memoryview = EMPTY
    ) -> Iterator[None] | None:
        """Handle a frame where it belongs."""
        cluster, router = self.terminal.cluster, self._router
        assert cluster is not None
        assert router is not None
        decision = router.route(frame, self._topic_of)
        if isinstance(decision, Unknown):
            raise self._hold(cluster.locate(decision.topic))
        if isinstance(frame, frames.Transact) and frame.acks:
            home = decision.node if isinstance(decision, There) else cluster.me
            frame = router.divided(frame, home, self._group_of)
        if isinstance(decision, There):
            self._leg(decision.node).send(frame, *((tail,) if tail else ()))
            return None
        if isinstance(decision, Gather):
            self._gather(frame, decision)
            return None
        work = handle(frame, tail) if tail else handle(frame)
        if isinstance(decision, Everywhere):  # once it was taken here
            there = frames.Renew(0, frame.token) if isinstance(frame, frames.Renew) else frame
            for leg in self._legs.values():
                leg.send(there)
        return work

    def _passed_on(
        self, handle: Callable[..., Iterator[None] | None], frame: Frame, tail: memoryview = EMPTY
    ) -> Iterator[None] | None:
        """Handle a frame that another node has passed on, once this one has loaded what it is about: a
        refusal would make the client come again at once, and again."""
        cluster = self.terminal.cluster
        assert cluster is not None
        if (missing := awaited(cluster, frame)) is not None:
            raise self._hold(cluster.locate(missing.topic))
        return handle(frame, tail) if tail else handle(frame)

    def _topic_of(self, subscription: int) -> str | None:
        consumer = self.consumers.get(subscription)
        return None if consumer is None else consumer.group.topic.name

    def _group_of(self, subscription: int) -> ConsumedGroup | None:
        consumer = self.consumers.get(subscription)
        return None if consumer is None else ConsumedGroup(consumer.group.topic.name, consumer.group.name)

    def _leg(self, node: str) -> Leg:
        """The session at another node, with the client's token."""
        leg = self._legs.get(node)
        if leg is None:
            cluster = self.terminal.cluster
            assert cluster is not None
            leg = self._legs[node] = Leg(
                node, self._hello_there, self._from_leg, self._leg_lost, self._throttle
            )
            leg.begin(cluster.dial(node))
        return leg

    def _hello_there(self) -> frames.Hello:
        cluster = self.terminal.cluster
        assert cluster is not None
        about = {"leg": cluster.node_pass(), "peer": self.peer}
        features = ["pauses", about] if self.hears_pauses else [about]
        return frames.Hello(frames.VERSION, self._token, self.name, features)

    def _from_leg(self, leg: Leg, frame: Frame, tail: memoryview) -> None:
        assert self._router is not None
        if self._router.answered(leg.node, frame):
            self.send(frame, *((tail,) if tail else ()))

    def _leg_lost(self, leg: Leg, error: BusError) -> None:
        if self._legs.get(leg.node) is leg:
            del self._legs[leg.node]
        if self._router is not None and self._router.uses(leg.node):
            self.close(for_client(error, leg.node))

    def owners_changed(self) -> None:
        """Other nodes have other units now."""
        if self._router is None or self.closed:
            return
        moved = self._router.moved()
        if moved is not None:
            self.close(self.broker.units.not_owner(moved.unit))

    def _gather(self, frame: Frame, decision: Gather) -> None:
        assert isinstance(frame, frames.Call)
        self._enter_wait(frame)
        task = self.terminal.spawn(Inquiry(self._ask_node, decision, frame, self._home()).run())
        task.add_done_callback(partial(self._gathered, frame))

    def _gathered(self, frame: frames.Call, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Disconnected | TerminalUnreachable):
            # A node is gone that had a part of the answer. The client comes again, and asks those that have
            # its units by then.
            self.close(for_client(error, "that was asked"))
        self._called(frame, task)

    def _home(self) -> str:
        """The node that has the terminal's trust and settings; this one while nobody has."""
        cluster = self.terminal.cluster
        assert cluster is not None
        return cluster.node_of(0) or cluster.me

    async def _ask_node(self, node: str, op: str, args: dict[str, Any], origin: str) -> Any:
        """Ask a node in the client's name. The answer is as it comes over the wire."""
        cluster = self.terminal.cluster
        assert cluster is not None
        if node == cluster.me:
            answer = await self.terminal.operations.call(self, op, args, origin)
            return msgspec.msgpack.decode(msgspec.msgpack.encode(answer))
        found, _ = await self._leg(node).ask(lambda request: frames.Call(request, op, args, origin))
        return found

    def _relay(self, frame: frames.Relay, tail: memoryview = EMPTY) -> None:
        cluster = self.terminal.cluster
        if cluster is None or not self.is_node:
            raise Forbidden("only nodes of the terminal ask for that")
        task = self.terminal.spawn(cluster.answer(frame, tail))
        task.add_done_callback(partial(self._relayed, frame))

    def _relayed(self, frame: frames.Relay, task: asyncio.Task[tuple[Any, bytes | memoryview]]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._answer(frame.request, task, f"what a node asks: {frame.op}")
        else:
            result, data = task.result()
            self.send(frames.Relayed(frame.request, result), *((data,) if data else ()))

    # -- what clients ask --------------------------------------------------------------------------

    def _renew(self, frame: frames.Renew) -> None:
        try:
            identity = self.terminal.authority.verify(self.broker.clock(), frame.token)
        except Unauthenticated:
            self._look_once_more()
            raise
        self._has_refreshed = False
        if identity.subject != self.subject:
            raise Unauthenticated("a connection can't change its subject")
        self._token = frame.token
        self._change(identity)
        self.done(frame.request)

    def _publish(self, frame: frames.Publish, tail: memoryview = EMPTY) -> None:
        self.broker.publishing.publish(self, frame, tail, partial(self._on_stored, frame.request, len(tail)))
        self._take(tail)

    def _publish_once(self, frame: frames.PublishOnce, tail: memoryview = EMPTY) -> None:
        self.broker.publishing.publish_once(
            self, frame, tail, partial(self._on_stored, frame.request, len(tail))
        )
        self._take(tail)

    def _on_stored(self, request: int, size: int, result: int | PublishOutcome | BusError) -> None:
        self._give_back(size)
        if isinstance(result, BusError):
            self.refuse(request, result)
        elif isinstance(result, int):
            self.send(frames.Stored(request, result))
        else:
            self.send(frames.Stored(request, *result))

    def _take(self, tail: memoryview) -> int:
        """These bytes are to be stored; a peer that sends more than its window isn't read from meanwhile."""
        self._unanswered += len(tail)
        if self._unanswered > self._window:
            self._throttle()
        return len(tail)

    def _give_back(self, size: int) -> None:
        self._unanswered -= size
        if not self._reading:
            self._throttle()

    def _transact(self, frame: frames.Transact, tail: memoryview = EMPTY) -> None:
        publishes = self.broker.transacting.read_transaction(self, frame, tail)
        done = self.broker.transacting.transact(self, frame, publishes)
        done.add_done_callback(partial(self._on_transacted, frame, self._take(tail)))

    def _on_transacted(
        self, frame: frames.Transact, size: int, done: asyncio.Future[TransactionOutcome]
    ) -> None:
        self._give_back(size)
        if done.cancelled() or done.exception() is not None:
            self._answer(frame.request, done, "a transaction")
            return
        outcome = done.result()
        self.done(frame.request, outcome._asdict() if frame.key else outcome.firsts)

    def _stage(self, frame: frames.Stage, tail: memoryview = EMPTY) -> None:
        done = self.terminal.stages.put(self, frame, tail)
        done.add_done_callback(partial(self._on_done, frame.request, self._take(tail), "a stage"))

    def _on_done(self, request: int, size: int, what: str, done: asyncio.Future[Any]) -> None:
        self._give_back(size)
        self._answer(request, done, what)

    def _answer(self, request: int, done: asyncio.Future[Any], what: str, subscription: int = 0) -> None:
        """Send the result of what has ended, or why it failed."""
        if done.cancelled():
            return
        error = done.exception()
        if error is None:
            try:
                self.done(request, done.result())
            except TooLarge as large:
                self.refuse(request, large, subscription)
        elif isinstance(error, BusError):
            self.refuse(request, error, subscription)
        else:
            self.log_crash(what, error)
            self.refuse(request, BusError(f"the terminal failed: {type(error).__name__}"))

    def consumer(self, subscription: int) -> Consumer:
        try:
            return self.consumers[subscription]
        except KeyError:
            # It ended while the request was on its way: what was leased has gone back already.
            raise LeaseLost(f"there is no subscription {subscription} any more") from None

    def _subscribe(self, frame: frames.Subscribe) -> None:
        if frame.subscription in self.consumers:
            raise BadRequest(f"subscription {frame.subscription} exists")
        if len(self.consumers) >= self.broker.limits.max_subscriptions:
            raise LimitReached(f"{len(self.consumers)} subscriptions, as many as max_subscriptions allows")
        if not isinstance(frame.start, int):
            self._begin(frame, None)
            return
        demand_read(self.broker.topics, self.scopes, frame.topic)
        topic = self.broker.consuming.topic_of(frame, self.subject)
        begun = self.terminal.spawn(self._begin_at(frame, topic))
        begun.add_done_callback(lambda begun: self._answer(0, begun, "a subscription"))

    async def _begin_at(self, frame: frames.Subscribe, topic: Topic) -> None:
        """Begin a subscription at a time, whose place in the log has to be looked up."""
        try:
            floor = await self.broker.table.position(topic, frame.start)
            if not self.closed and frame.subscription not in self.consumers:
                self._begin(frame, floor)
        except BusError as error:
            self.refuse(frame.request, error)

    def _begin(self, frame: frames.Subscribe, floor: int | None) -> None:
        consumer = self.broker.consuming.subscribe(self, frame, floor)
        self.consumers[frame.subscription] = consumer
        group = consumer.group
        self.broker.status.note(
            self.broker.clock(),
            "subscribe",
            who=self.subject,
            peer=self.peer,
            topic=frame.topic,
            group=group.name,
        )
        self.send(
            frames.Subscribed(
                frame.request,
                frame.subscription,
                group.name,
                group.topic.spec.kind,
                group.at_most_once,
                group.spec.ack_within,
            )
        )
        self.broker.pauses.admit(consumer)
        group.pump()

    def _settle(self, frame: frames.Settle) -> Iterator[None]:
        if not frame.request and frame.subscription not in self.consumers:
            return  # nobody waits for an answer
        consumer = self.consumer(frame.subscription)
        try:
            done = yield from consumer.group.settle_in_turns(
                consumer, frame.settlements, durably=bool(frame.request)
            )
        except BusError as error:
            self.refuse(frame.request, error, frame.subscription)
            return
        if done is None:
            self.done(frame.request)
        else:
            done.add_done_callback(
                lambda done: self._answer(frame.request, done, "a settlement", frame.subscription)
            )

    def _credit(self, frame: frames.Credit) -> None:
        consumer = self.consumers.get(frame.subscription)
        if consumer is not None:
            consumer.group.credit(consumer, frame.messages, frame.bytes)

    def _pull(self, frame: frames.Pull) -> None:
        consumer = self.consumers.get(frame.subscription)
        if consumer is not None:
            consumer.group.pull(consumer, frame.messages)

    def _unsubscribe(self, frame: frames.Unsubscribe) -> None:
        consumer = self.consumers.pop(frame.subscription, None)
        if consumer is not None:
            self.broker.consuming.unsubscribe(consumer, counted=False)
        self.done(frame.request)

    def _call(self, frame: frames.Call) -> None:
        self._enter_wait(frame)
        task = self.terminal.spawn(self.terminal.operations.call(self, frame.op, frame.args, frame.origin))
        task.add_done_callback(partial(self._called, frame))

    def _enter_wait(self, frame: frames.Call) -> None:
        """One more operation waits, if it is one that does. LimitReached where there are too many."""
        if frame.op in WAITS:
            if self._waits >= self.broker.limits.max_waits:
                raise LimitReached(
                    f"{self._waits} operations of this connection wait, as many as max_waits allows",
                    hint="wait for several topics with one operation, or raise the limit max_waits",
                )
            self._waits += 1

    def _called(self, frame: frames.Call, task: asyncio.Task[object]) -> None:
        self._waits -= frame.op in WAITS
        self._answer(frame.request, task, f"operation {frame.op}")

    def _request(self, frame: frames.SendRequest, tail: memoryview = EMPTY) -> None:
        self.broker.publishing.check_target(self, frame.topic)
        if (topic := self.broker.topics.get(frame.topic)) is not None:
            topic.check_pause()
        if not self.broker.publishing.has_middleware(frame.topic):
            self.broker.requests.ask(self, frame, tail)
            return
        task = self.terminal.spawn(self._ask_after_middleware(frame, bytes(tail)))
        size = self._take(tail)

        def asked(done: asyncio.Task[None]) -> None:
            self._give_back(size)
            if done.cancelled() or done.exception() is not None:
                self._answer(frame.request, done, "a request")

        task.add_done_callback(asked)

    async def _ask_after_middleware(self, frame: frames.SendRequest, payload: bytes) -> None:
        frame, payload = await self.broker.publishing.after_middleware(self, frame, payload)
        if not self.closed:
            self.broker.requests.ask(self, frame, memoryview(payload))

    def _reply(self, frame: frames.SendReply, tail: memoryview = EMPTY) -> None:
        if frame.offset >= 0:
            done = self.terminal.spawn(self.terminal.outcomes.reply(self, frame, bytes(tail)))
            size = self._take(tail)
            done.add_done_callback(partial(self._on_done, frame.request, size, "a reply"))
            return
        consumer = self.consumers.get(frame.subscription)
        if consumer is not None:  # else it ended while the reply was on its way: others have its requests
            self.broker.requests.reply(consumer, self.subject, frame, tail)

    def _ping(self, frame: frames.Ping) -> None:
        self.done(frame.request)

    def _bye(self, frame: frames.Bye) -> None:
        # Leases first: an ordinary goodbye counts against no message.
        for consumer in list(self.consumers.values()):
            self.broker.consuming.unsubscribe(consumer, counted=False)
        self.consumers.clear()
        if frame.producer:
            self.broker.ledger.forget(frame.producer)


def _weight(frame: Frame) -> int:
    """As how many frames it counts in a turn of the loop."""
    if isinstance(frame, frames.Transact):
        return 1 + frame.parts // PARTS_PER_FRAME
    return HEAVY.get(type(frame), 1)

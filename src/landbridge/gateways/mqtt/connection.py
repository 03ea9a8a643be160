"""One connection of MQTT, from its first byte to its last.

Packets are handled in the order in which they come. The CONNECT opens a connection of the bus, and nothing
more is read until that is open. Subscriptions change one after the other. At the end what the client has
published is finished first, then its will is published, then its session is written, and then what it has not
acked goes back to the bus.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

import structlog

from landbridge.client.bus import Bus
from landbridge.core.mqtt import session as core
from landbridge.core.mqtt.session import LONGEST_CLIENT_ID, NEVER, StoredFilter, StoredSession
from landbridge.core.mqtt.window import Window
from landbridge.errors import (
    BadName,
    BusError,
    Disconnected,
    LimitReached,
    ShuttingDown,
    StoreFull,
    Unauthenticated,
)
from landbridge.gateways.mqtt.bounds import (
    BESIDE_PAYLOAD,
    CONNECT_WITHIN,
    FINISH_WITHIN,
    GOODBYE_WITHIN,
    HIGH_WATER,
    LARGEST_CONNECT,
    LONGEST_KEEP_ALIVE,
    MOST_CHANGES,
    MOST_IN_FLIGHT,
    MOST_SUBSCRIPTIONS,
    MOST_UNREAD,
    PATIENCE_QOS_0,
    PREFETCH,
    PREFETCH_BYTES,
    RECEIVE_MAXIMUM,
    TOPIC_ALIASES,
    AskBounds,
)
from landbridge.gateways.mqtt.deliveries import FilterDelivery, InFlight, on_puback
from landbridge.gateways.mqtt.intake import Intake, refusal_of
from landbridge.gateways.mqtt.retained import RetainedMessages
from landbridge.gateways.mqtt.sessions import Sessions
from landbridge.protocol.mqtt.encoding import encode
from landbridge.protocol.mqtt.fields import LARGEST_VARINT, fitting
from landbridge.protocol.mqtt.names import TopicFilter, filter_of, topic_of
from landbridge.protocol.mqtt.packets import (
    V5,
    AckPacket,
    AskedFilter,
    AuthPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    Packet,
    PingPacket,
    PublishPacket,
    SubackPacket,
    SubscribePacket,
    UnsubackPacket,
    UnsubscribePacket,
    Will,
)
from landbridge.protocol.mqtt.properties import PacketKind, Properties
from landbridge.protocol.mqtt.reasons import (
    BrokenPacket,
    Reason,
    protocol_error,
    reason_of,
    return_code,
)
from landbridge.protocol.mqtt.stream import PacketStream
from landbridge.transport.keepalive import keep_alive
from landbridge.transport.strangers import Stranger, Strangers

log = structlog.get_logger("landbridge.mqtt")

#: The reason that a SUBACK may have beside success (MQTT 5, 3.9.3).
_OF_SUBACK = frozenset(
    {Reason.IMPLEMENTATION_SPECIFIC, Reason.NOT_AUTHORIZED, Reason.BAD_FILTER, Reason.QUOTA_EXCEEDED}
)
#: Reasons that a PUBACK may have (3.4.2.1).
_OF_PUBACK = frozenset(
    {
        Reason.IMPLEMENTATION_SPECIFIC, Reason.NOT_AUTHORIZED, Reason.BAD_TOPIC_NAME, Reason.QUOTA_EXCEEDED,
        Reason.BAD_PAYLOAD_FORMAT,
    }
)  # fmt: skip
#: Bytes of a text that says why.
_LONGEST_TEXT = 1000


class Port(Protocol):
    """The port, as far as its connections need it."""

    strangers: Strangers
    sessions: Sessions
    retained: RetainedMessages
    bounds: AskBounds
    clock: Callable[[], int]
    closing: bool

    def find_room(self) -> bool:
        """Is there room for one more connection?"""
        raise NotImplementedError

    def on_made(self, connection: MqttConnection) -> None:
        """A connection has come."""

    def on_gone(self, connection: MqttConnection) -> None:
        """A connection has ended, with all that it had begun."""

    async def open_bus(self, token: str, name: str) -> tuple[Bus, str]:
        """A connection of the bus, and the service whose token that is."""
        raise NotImplementedError

    async def take_place(self, connection: MqttConnection, *, clean_start: bool) -> None:
        """Let a client in: an older connection of the same client id ends first."""

    def new_client_id(self) -> str:
        """An id for a client that has none."""
        raise NotImplementedError

    def leave_will(
        self, connection: MqttConnection, will: Will, bus: Bus, intake: Intake
    ) -> asyncio.Task[None]:
        """Publish a will, at once or after its delay, and then close the bus."""
        raise NotImplementedError

    def note(self, cause: str, detail: str, count: int = 1) -> None:
        """Tell the status log of what went wrong."""


class MqttConnection(asyncio.Protocol):
    """See above."""

    def __init__(self, port: Port, stranger: Stranger) -> None:
        self._port = port
        self._address = stranger.address
        self._stranger: Stranger | None = stranger
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._stream = PacketStream(LARGEST_CONNECT)
        self.retained, self.clock = port.retained, port.clock
        self.peer = ""
        #: 0 until the CONNECT has come.
        self.version = 0
        self.client_id = self.service = ""
        #: Is the client let in?
        self.is_open = False
        self.delivered = self.dropped = self.received = 0
        self.largest = LARGEST_VARINT
        self.window: Window[InFlight] = Window(1)
        self.session: StoredSession | None = None
        #: Has the session a document?
        self._is_kept = False
        #: The filters that the document has.
        self._saved: dict[str, StoredFilter] = {}
        #: Filters of the session that can't be read for now.
        self._lost: list[StoredFilter] = []
        #: Seconds that the session outlives the connection.
        self._expiry = 0.0
        self._keep_alive = 0
        self._heard_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._bus: Bus | None = None
        self._intake: Intake | None = None
        self._will: Will | None = None
        #: Does the client want to be told why something was refused?
        self._wants_reasons = True
        self._deliveries: dict[str, FilterDelivery] = {}
        self._aliases: dict[str, int] = {}
        self._most_aliases = 0
        #: What changes subscriptions, in order; the first one is under way.
        self._changes: deque[Callable[[], Coroutine[Any, Any, None]]] = deque()
        self._changing: asyncio.Task[None] | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._sending_retained: set[asyncio.Task[None]] = set()
        self._is_reading = True
        self._is_writable = True
        #: The client has taken nothing for a while: QoS 0 is dropped for it.
        self._is_stalled = False
        self._rooms: list[asyncio.Future[None]] = []
        self._is_ending = self._is_lost = False
        #: Set when everything of this connection has ended.
        self.gone = asyncio.Event()
        self._leaving: asyncio.Task[None] | None = None

    # -- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        keep_alive(transport)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "memory"
        self._leave_strangers()  # it makes no room for itself
        self._port.on_made(self)
        if self._port.closing or not self._port.find_room():
            self._transport.abort()
            return
        self._stranger = self._port.strangers.enter(self._address, self._transport.abort)
        self._timer = self._loop.call_later(CONNECT_WITHIN, self._transport.abort)

    def _leave_strangers(self) -> None:
        if self._stranger is not None:
            self._port.strangers.leave(self._stranger)
            self._stranger = None

    def data_received(self, data: bytes) -> None:
        if self._is_ending:
            return
        self._heard_at = self._loop.time()
        self._stream.feed(data)
        self._read()

    def _read(self) -> None:
        """Handle what is here, as far as there is room for what follows from it."""
        try:
            while not self._is_ending and self._may_read() and (packet := self._stream.next()) is not None:
                self._handle(packet)
        except BrokenPacket as error:
            self.end(error.reason, str(error))
        self._look_at_reading()

    def _may_read(self) -> bool:
        if self._connecting is not None and not self._connecting.done():
            return False
        if len(self._changes) >= MOST_CHANGES or (self._intake is not None and self._intake.is_full):
            return False
        return self._transport.get_write_buffer_size() <= MOST_UNREAD

    def _look_at_reading(self) -> None:
        may = self._may_read()
        if self._is_lost or self._is_ending or may == self._is_reading:
            return
        self._is_reading = may
        if may:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()

    def _go_on(self) -> None:
        """There is room again: handle what has waited."""
        if not self._is_lost and not self._is_ending and self._may_read():
            self._read()

    def pause_writing(self) -> None:
        self._is_writable = False

    def resume_writing(self) -> None:
        self._is_writable, self._is_stalled = True, False
        self._wake()
        self._go_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._leave_strangers()
        if self._timer is not None:
            self._timer.cancel()
        self._wake()
        self._leaving = asyncio.ensure_future(self._leave())

    # -- packets in --------------------------------------------------------------------------------

    def _handle(self, packet: Packet) -> None:
        if isinstance(packet, ConnectPacket):
            if self.version:
                raise protocol_error("a second packet CONNECT")
            self.version = packet.version
            self._connecting = asyncio.ensure_future(self._connect(packet))
        elif not self.is_open or self._intake is None:
            raise protocol_error("the first packet is not a CONNECT")
        elif isinstance(packet, PublishPacket):
            self.received += 1
            self._intake.take(packet)
        elif isinstance(packet, AckPacket):
            self._on_ack(packet)
        elif isinstance(packet, SubscribePacket):
            self._change(lambda: self._subscribe(packet))
        elif isinstance(packet, UnsubscribePacket):
            self._change(lambda: self._unsubscribe(packet))
        elif isinstance(packet, PingPacket) and not packet.is_answer:
            self.write(encode(PingPacket(is_answer=True), self.version))
        elif isinstance(packet, DisconnectPacket):
            self._on_disconnect(packet)
        elif isinstance(packet, AuthPacket):
            raise protocol_error("a packet AUTH, and no enhanced authentication was begun")
        else:
            raise protocol_error(f"a {type(packet).__name__} comes from servers only")

    def _on_ack(self, packet: AckPacket) -> None:
        if packet.kind != PacketKind.PUBACK:
            raise protocol_error("an ack of QoS 2, which nothing is sent with")
        item = self.window.take(packet.packet_id)
        if item is not None:
            on_puback(item, packet.reason, packet.properties.get("reason_string", "")[:200])
            self._wake()

    def _on_disconnect(self, packet: DisconnectPacket) -> None:
        if "session_expiry" in packet.properties:
            if not self._expiry and packet.properties["session_expiry"]:
                raise protocol_error("a session that ends with its connection can't be kept after all")
            self._set_expiry(packet.properties["session_expiry"])
        if packet.reason != Reason.DISCONNECT_WITH_WILL:
            self._will = None
        self._is_ending = True
        self._transport.close()

    # -- connecting --------------------------------------------------------------------------------

    async def _connect(self, packet: ConnectPacket) -> None:
        try:
            async with asyncio.timeout(CONNECT_WITHIN):
                await self._let_in(packet)
        except BrokenPacket as error:
            self._refuse(error.reason, str(error))
        except TimeoutError:
            self._refuse(Reason.BUSY, f"the terminal has not answered within {CONNECT_WITHIN:.0f} s")
        except Unauthenticated as error:
            self._refuse(Reason.BAD_CREDENTIALS, str(error))
        except LimitReached as error:
            self._refuse(Reason.QUOTA_EXCEEDED, str(error))
        except BusError as error:
            self._refuse(Reason.UNAVAILABLE if error.retriable else Reason.UNSPECIFIED, str(error))
        except Exception:
            log.error("a CONNECT crashed", exc_info=True)
            self._refuse(Reason.UNSPECIFIED, "a fault of the gateway")
        else:
            self._loop.call_soon(self._go_on)

    async def _let_in(self, packet: ConnectPacket) -> None:
        self._wants_reasons = bool(packet.properties.get("request_problem", 1))
        assigned = _check_connect(packet)
        self.client_id = packet.client_id or self._port.new_client_id()
        if not packet.password:
            raise BrokenPacket(
                Reason.BAD_CREDENTIALS, "no password: it is a token, or a service's credential"
            )
        try:
            token = packet.password.decode()
        except UnicodeDecodeError:
            raise BrokenPacket(Reason.BAD_CREDENTIALS, "the password is no token") from None
        self._bus, self.service = await self._port.open_bus(token, f"mqtt {self.client_id}")
        if packet.username and packet.username != self.service:
            raise BrokenPacket(
                Reason.BAD_CREDENTIALS, "the user name is the service of the token, or empty: it is another's"
            )
        self._leave_strangers()
        await self._port.take_place(self, clean_start=packet.clean_start)
        async with self._port.sessions.turn(core.session_key(self.service, self.client_id)):
            present = await self._take_session(packet)
        self._intake = Intake(self, self._bus)
        self._will = packet.will
        properties = packet.properties
        self.largest = properties.get("maximum_packet_size", LARGEST_VARINT)
        self._most_aliases = min(properties.get("topic_alias_maximum", 0), TOPIC_ALIASES)
        self._stream.largest = self._bus.max_payload + BESIDE_PAYLOAD
        self._begin_keep_alive(packet.keep_alive)
        self.is_open = True
        self._watching = asyncio.ensure_future(self._watch(self._bus))
        self._say_connected(packet, present=present, assigned=assigned)
        await self._resume()

    async def _take_session(self, packet: ConnectPacket) -> bool:
        """Find or make the session. Returns whether the client gets an earlier one."""
        sessions = self._port.sessions
        asked = packet.properties.get("session_expiry", 0) if packet.version == V5 else 0
        if packet.version != V5 and not packet.clean_start:
            asked = NEVER
        self._set_expiry(asked)
        if self._expiry:
            sessions.check_room(self.service, self.client_id)
        session = await sessions.find(self.service, self.client_id)
        present = session is not None and not packet.clean_start
        if session is not None and not present:
            await sessions.end(session)
            session = None
        before = sessions.unanswered.pop(core.session_key(self.service, self.client_id), None)
        size = min(packet.properties.get("receive_maximum", MOST_IN_FLIGHT), MOST_IN_FLIGHT)
        self.window = Window(size, before if present else None)
        if session is None:
            session = StoredSession(service=self.service, client_id=self.client_id, expiry=self._expiry)
        session.expiry, session.expires_at = self._expiry, 0
        self.session = session
        self._is_kept = present or bool(self._expiry)
        self._saved = _by_filter(session)
        if self._is_kept:
            await sessions.save_soon(session)
            sessions.hold(session, self._taken_over)
        return present

    def _taken_over(self) -> None:
        goes_on = self.will_delay > 0
        self.end(Reason.TAKEN_OVER, "another connection has this client id", with_will=not goes_on)

    def _set_expiry(self, asked: int) -> None:
        self._expiry = core.allowed_expiry(asked, self._port.bounds().session_life)
        if self.session is not None:
            self.session.expiry = self._expiry

    def _begin_keep_alive(self, asked: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._keep_alive = asked
        if self.version == V5 and not 0 < asked <= LONGEST_KEEP_ALIVE:
            self._keep_alive = LONGEST_KEEP_ALIVE
        if self._keep_alive:
            self._timer = self._loop.call_later(self._keep_alive * 1.5, self._check_alive)

    def _check_alive(self) -> None:
        # While we don't read, nothing can be heard; unless we don't read as nothing is taken.
        if not self._is_reading and self._is_writable:
            self._heard_at = self._loop.time()
        rest = self._heard_at + self._keep_alive * 1.5 - self._loop.time()
        if rest <= 0:
            self.end(Reason.KEEP_ALIVE_TIMEOUT, f"nothing was heard for {self._keep_alive * 1.5:.0f} s")
        else:
            self._timer = self._loop.call_later(rest, self._check_alive)

    def _say_connected(self, packet: ConnectPacket, *, present: bool, assigned: bool) -> None:
        if self.version != V5:
            self.write(encode(ConnackPacket(session_present=present), self.version))
            return
        properties: Properties = {
            "receive_maximum": RECEIVE_MAXIMUM,
            "maximum_qos": 1,
            "maximum_packet_size": self._stream.largest,
            "topic_alias_maximum": TOPIC_ALIASES,
        }
        if self._expiry != packet.properties.get("session_expiry", 0):
            properties["session_expiry"] = int(self._expiry)
        if assigned:
            properties["assigned_client_id"] = self.client_id
        if self._keep_alive != packet.keep_alive:
            properties["server_keep_alive"] = self._keep_alive
        self.write(encode(ConnackPacket(session_present=present, properties=properties), V5))

    def _refuse(self, reason: Reason, text: str) -> None:
        """Answer the CONNECT with a refusal, and end."""
        self._port.note("mqtt_refused", f"{self.peer} client {self.client_id!r}: {text}")
        if self.is_open:  # the session could not be taken up again
            self.end(reason, text)
            return
        self._is_ending = True
        if self.version == V5:
            properties: Properties = {"reason_string": fitting(text, _LONGEST_TEXT)}
            self.write(encode(ConnackPacket(code=reason, properties=properties), V5))
        elif (code := return_code(reason)) is not None:
            self.write(encode(ConnackPacket(code=code), self.version))
        self._say_goodbye()

    async def _watch(self, bus: Bus) -> None:
        """The terminal ends the connection of the bus when the token expires or is revoked."""
        error = await bus.wait_over()
        if isinstance(error, Unauthenticated):
            self.end(Reason.NOT_AUTHORIZED, str(error))
        elif isinstance(error, ShuttingDown):
            self.end(Reason.SHUTTING_DOWN, str(error))
        else:
            self.end(Reason.UNSPECIFIED, str(error))

    # -- subscriptions -----------------------------------------------------------------------------

    def _change(self, what: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._changes.append(what)
        if self._changing is None or self._changing.done():
            self._changing = asyncio.ensure_future(self._make_changes())

    async def _make_changes(self) -> None:
        while self._changes and not self._is_lost:
            try:
                await self._changes[0]()
            except BrokenPacket as error:
                self.end(error.reason, str(error))
            except BusError as error:
                self.end(Reason.UNSPECIFIED, f"a subscription could not be kept: {error}")
            except Exception:
                log.error("a change of subscriptions crashed", exc_info=True)
                self.end(Reason.UNSPECIFIED, "a fault of the gateway")
            self._changes.popleft()
            self._loop.call_soon(self._go_on)

    async def _subscribe(self, packet: SubscribePacket) -> None:
        ids = packet.properties.get("subscription_ids", [0])
        codes: list[int] = []
        fresh: list[tuple[FilterDelivery, bool]] = []
        told = ""
        for each in packet.filters:
            try:
                delivery, wants_retained = await self._open(each, ids[0])
            except BusError as error:
                reason, told = refusal_of(error)
                reason = Reason.BAD_FILTER if reason is Reason.BAD_TOPIC_NAME else reason
                codes.append(self._code(reason, _OF_SUBACK) if self.version == V5 else Reason.UNSPECIFIED)
                self._port.note(
                    "mqtt_subscription_refused", f"client {self.client_id!r}, {each.filter!r}: {error}"
                )
            else:
                codes.append(delivery.spec.qos)
                fresh.append((delivery, wants_retained))
        try:
            await self._save_session()
        except StoreFull as error:
            reason, told = refusal_of(error)
            refused = await self._take_back(fresh)
            code = self._code(reason, _OF_SUBACK) if self.version == V5 else Reason.UNSPECIFIED
            codes = [
                code if each.filter in refused else was
                for each, was in zip(packet.filters, codes, strict=True)
            ]
            fresh = [each for each in fresh if each[0].spec.filter not in refused]
        self.write(
            encode(
                SubackPacket(packet_id=packet.packet_id, codes=codes, properties=self._why(told)),
                self.version,
            )
        )
        for delivery, wants_retained in fresh:
            if wants_retained:
                self._send_retained(delivery)

    async def _take_back(self, fresh: list[tuple[FilterDelivery, bool]]) -> set[str]:
        """The disk has no room for what the session has subscribed now. Returns the filters that it has
        not."""
        refused: set[str] = set()
        for delivery, _ in fresh:
            saved = self._saved.get(delivery.spec.filter)
            if saved is None:
                refused.add(delivery.spec.filter)
                await self._close_delivery(delivery)
            elif saved.qos != delivery.spec.qos:
                raise StoreFull("no room for the new QoS of a subscription", hint="unsubscribe, or make room")
        return refused

    async def _open(self, asked: AskedFilter, id: int) -> tuple[FilterDelivery, bool]:
        """Subscribe a filter, or change the options of one that is subscribed. Returns it, and whether
        retained messages are wanted."""
        found = filter_of(asked.filter)
        if found.group is not None and core.is_of_session(found.group):
            raise BadName(f"the group {found.group!r} is a session's", hint="share a group of another name")
        if found.group is not None and asked.no_local:
            raise protocol_error("a shared subscription with the option No Local")
        before = self._deliveries.get(asked.filter)
        if before is None and len(self._deliveries) >= MOST_SUBSCRIPTIONS:
            raise LimitReached(f"{MOST_SUBSCRIPTIONS} subscriptions of one session")
        spec = StoredFilter(
            filter=asked.filter,
            qos=min(asked.qos, 1),
            no_local=asked.no_local,
            retain_as_published=asked.retain_as_published,
            subscription_id=id,
        )
        wants = found.group is None and (
            asked.retain_handling == 0 or (asked.retain_handling == 1 and before is None)
        )
        if before is not None and before.spec.qos == spec.qos:
            before.spec = spec
            return before, wants
        delivery = await self._read_from(spec, found, start="latest")
        delivery.begin()
        if before is not None:  # only now: nothing may be lost between the two (MQTT 5, 3.8.4)
            await self._close_delivery(before)
        return delivery, wants

    async def _read_from(self, spec: StoredFilter, found: TopicFilter, start: str) -> FilterDelivery:
        assert self._bus is not None
        group = found.group
        if group is None and spec.qos and self._is_kept:
            group = core.group_of(self.service, self.client_id, spec.filter)
        reading = self._bus.subscribe(
            found.pattern, group=group, prefetch=PREFETCH, start=start if group else None
        )
        reading.prefetch_bytes = PREFETCH_BYTES  # what a client doesn't take waits in the log, and not here
        await reading.open()
        delivery = FilterDelivery(self, spec, found.pattern, group, reading)
        self._deliveries[spec.filter] = delivery
        return delivery

    async def _resume(self) -> None:
        """Read again what the session has subscribed. A topic that was made while the client was away is read
        from its beginning."""
        assert self.session is not None
        for spec in self.session.filters:
            try:
                delivery = await self._read_from(spec, filter_of(spec.filter), start="earliest")
            except BusError as error:
                self._lost.append(spec)
                self._port.note(
                    "mqtt_subscription_lost", f"client {self.client_id!r}, {spec.filter!r}: {error}"
                )
            else:
                delivery.begin()

    async def _unsubscribe(self, packet: UnsubscribePacket) -> None:
        codes: list[int] = []
        for filter in packet.filters:
            delivery = self._deliveries.get(filter)
            codes.append(Reason.SUCCESS if delivery is not None else Reason.NO_SUBSCRIPTION_EXISTED)
            if delivery is not None:
                await self._close_delivery(delivery)
        await self._save_session()
        answer = UnsubackPacket(packet_id=packet.packet_id, codes=codes if self.version == V5 else [])
        self.write(encode(answer, self.version))

    async def _close_delivery(self, delivery: FilterDelivery) -> None:
        """End a subscription, and its group if that is the session's own."""
        topics = delivery.topics
        if self._deliveries.get(delivery.spec.filter) is delivery:
            del self._deliveries[delivery.spec.filter]
        await delivery.close()
        if delivery.group is not None and filter_of(delivery.spec.filter).group is None:
            await self._port.sessions.delete_group(delivery.group, topics)

    def _note_filters(self, session: StoredSession) -> None:
        session.filters = [delivery.spec for delivery in self._deliveries.values()]
        session.filters += [lost for lost in self._lost if lost.filter not in self._deliveries]

    async def _save_session(self) -> None:
        assert self.session is not None
        self._note_filters(self.session)
        filters = _by_filter(self.session)
        if self._is_kept and filters != self._saved:
            await self._port.sessions.save(self.session)
            self._saved = filters

    def on_delivery_failed(self, delivery: FilterDelivery, error: Exception) -> None:
        """A subscription has ended by itself: its topic was deleted, or the token may not read any more."""
        if self._is_ending or self._is_lost or (self._bus is not None and self._bus.closed is not None):
            return
        self._port.note(
            "mqtt_subscription_lost", f"client {self.client_id!r}, {delivery.spec.filter!r}: {error}"
        )
        # The client has no other way to learn that nothing comes any more.
        reason = reason_of(error) if isinstance(error, BusError) else Reason.UNSPECIFIED
        self.end(self._code(reason, _OF_SUBACK), str(error))

    def _send_retained(self, delivery: FilterDelivery) -> None:
        async def send() -> None:
            topics = set(delivery.topics)
            async for topic, message in self.retained.matching(delivery.pattern, topics, self.clock()):
                await delivery.send_retained(topic, message)

        task = asyncio.ensure_future(send())
        self._sending_retained.add(task)
        task.add_done_callback(self._on_retained_sent)

    def _on_retained_sent(self, task: asyncio.Task[None]) -> None:
        self._sending_retained.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if isinstance(error, BusError):
            self._port.note("mqtt_retained", f"client {self.client_id!r}: {error}")
        else:
            log.error("retained messages crashed", exc_info=error)

    # -- packets out -------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if not self._is_lost:
            self._transport.write(data)

    async def wait_for_room(self, qos: int, *, is_dropped: bool) -> bool:
        """Wait until a message of a QoS may be sent. False: it is to be dropped, as ``is_dropped`` allows
        where the client has taken nothing for a while."""
        while (qos and self.window.is_full) or not self._is_writable:
            if is_dropped and self._is_stalled:
                return False
            room = self._loop.create_future()
            self._rooms.append(room)
            done, _ = await asyncio.wait([room], timeout=PATIENCE_QOS_0 if is_dropped else None)
            if not done and is_dropped and not self._is_writable:
                self._is_stalled = True
                self._port.note(
                    "mqtt_slow_client", f"client {self.client_id!r} takes nothing: QoS 0 is dropped"
                )
        return True

    def _wake(self) -> None:
        rooms, self._rooms = self._rooms, []
        for room in rooms:
            if not room.done():
                room.set_result(None)

    def alias_of(self, name: str) -> tuple[int, bool]:
        """The alias of a topic's name, and whether the client knows it; 0: it has none."""
        alias = self._aliases.get(name, 0)
        if alias:
            return alias, True
        if len(self._aliases) >= self._most_aliases:
            return 0, False
        self._aliases[name] = alias = len(self._aliases) + 1
        return alias, False

    def ack(self, kind: PacketKind, packet_id: int, reason: Reason, text: str) -> None:
        """Send an ack."""
        packet = AckPacket(kind=kind, packet_id=packet_id, reason=reason, properties=self._why(text))
        self.write(encode(packet, self.version))

    def _why(self, text: str) -> Properties:
        if not text or not self._wants_reasons or self.version != V5:
            return {}
        return {"reason_string": fitting(text, _LONGEST_TEXT)}

    def _code(self, reason: Reason, allowed: frozenset[Reason]) -> Reason:
        return reason if reason in allowed else Reason.UNSPECIFIED

    def on_refused(self, packet: PublishPacket, error: BusError | BrokenPacket) -> None:
        """A message was not stored. Version 5 is told so; 3.1.1 has no way to say it, so the connection ends
        rather than let the client believe that the message is stored (3.1.1, 3.3.5)."""
        reason, text = refusal_of(error)
        self._port.note("mqtt_publish_refused", f"client {self.client_id!r}, {packet.topic!r}: {text}")
        if isinstance(error, Disconnected | ShuttingDown):
            self.end(Reason.SHUTTING_DOWN, text)  # it was not stored, or may be: the client sends it again
        elif reason is Reason.PROTOCOL_ERROR or (packet.qos and self.version != V5):
            self.end(reason, text)
        elif packet.qos:
            self.ack(PacketKind.PUBACK, packet.packet_id, self._code(reason, _OF_PUBACK), text)

    def on_intake(self) -> None:
        """Less is under way than before."""
        if not self._is_reading:
            self._go_on()

    # -- the end -----------------------------------------------------------------------------------

    @property
    def will_delay(self) -> float:
        """Seconds that its will waits; 0 also where it has none."""
        return float(self._will.properties.get("will_delay", 0)) if self._will is not None else 0.0

    @property
    def expiry(self) -> float:
        """Seconds that the session outlives the connection."""
        return self._expiry

    def end(self, reason: Reason, text: str, *, with_will: bool = True) -> None:
        """End the connection, and tell the client why, if it has a version that can be told."""
        if not with_will:
            self._will = None
        if self._is_ending or self._is_lost:
            return
        if not self.is_open:
            if self.version or reason is not Reason.UNSUPPORTED_VERSION:
                self._is_ending = True
                self._transport.abort()
                return
            # A CONNECT of another version: 3.1.1 says what 5 says, and an older client reads it (4.4.3).
            self.write(encode(ConnackPacket(code=return_code(reason) or 1), 4))
        elif self.version == V5:
            packet = DisconnectPacket(reason=reason, properties=self._why(text))
            self.write(encode(packet, V5))
        self._is_ending = True
        log.info("connection ended", client=self.client_id, peer=self.peer, reason=reason.name, why=text)
        self._say_goodbye()

    def _say_goodbye(self) -> None:
        """Close the transport once the last bytes are taken, but don't wait for ever."""
        self._transport.close()
        self._loop.call_later(GOODBYE_WITHIN, self._transport.abort)

    async def _leave(self) -> None:
        """The connection is lost: end what it has begun, in the order that loses nothing."""
        left: asyncio.Task[None] | None = None
        try:
            if self._changing is not None:  # half a change would leave groups that no session knows
                await asyncio.wait([self._changing], timeout=FINISH_WITHIN)
            await _end_tasks(self._connecting, self._changing, self._watching, *self._sending_retained)
            if self._intake is not None:
                await self._intake.finish(FINISH_WITHIN)
            will = self._will if self._bus is not None and self._bus.closed is None else None
            if self._will is not None and will is None and self._bus is not None:
                self._port.note("mqtt_will_refused", f"client {self.client_id!r}: {self._bus.closed}")
            delay = min(self.will_delay, self._expiry)
            await asyncio.gather(*(delivery.close() for delivery in self._deliveries.values()))
            if will is not None and self._bus is not None and self._intake is not None:
                left = self._port.leave_will(self, will, self._bus, self._intake)
                if not delay:
                    await asyncio.wait([left])
            await self._leave_session()
        except BusError as error:
            self._port.note("mqtt_session", f"client {self.client_id!r}: {error}")
        except Exception:
            log.error("the end of a connection crashed", client=self.client_id, exc_info=True)
        finally:
            if self._bus is not None and left is None:  # a will closes it when it is published
                await _close_bus(self._bus)
            self.gone.set()
            self._port.on_gone(self)

    async def _leave_session(self) -> None:
        session, sessions = self.session, self._port.sessions
        if session is None:
            return
        if self._changing is not None:  # a change that failed half way may have made groups
            self._note_filters(session)
        if self._expiry:
            key = core.session_key(self.service, self.client_id)
            groups = {name for name, delivery in self._deliveries.items() if delivery.group is not None}
            sent = {place: id for place, id in self.window.unanswered().items() if place[0] in groups}
            if sent:
                sessions.unanswered[key] = sent
            await sessions.leave(core.left(session, self.clock()))
        elif self._is_kept:
            await sessions.end_own(session)


async def _end_tasks(*tasks: asyncio.Task[None] | None) -> None:
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


async def _close_bus(bus: Bus) -> None:
    try:
        await bus.close()
    except BusError as error:
        log.info("connection not closed in good order", why=str(error))


def _by_filter(session: StoredSession) -> dict[str, StoredFilter]:
    return {each.filter: each for each in session.filters}


def _check_connect(packet: ConnectPacket) -> bool:
    """BrokenPacket where a client can't be let in as it asks. Returns whether it gets an id."""
    if "auth_method" in packet.properties:
        raise BrokenPacket(
            Reason.BAD_AUTH_METHOD, "there is no enhanced authentication: a token is the password"
        )
    if len(packet.client_id) > LONGEST_CLIENT_ID or not packet.client_id.isprintable():
        raise BrokenPacket(
            Reason.BAD_CLIENT_ID, f"a client id has at most {LONGEST_CLIENT_ID} printable characters"
        )
    if not packet.client_id and packet.version != V5 and not packet.clean_start:
        raise BrokenPacket(Reason.BAD_CLIENT_ID, "a session that is kept needs a client id")
    will = packet.will
    if will is not None:
        if will.qos == 2 and packet.version == V5:
            raise BrokenPacket(Reason.QOS_NOT_SUPPORTED, "a will of QoS 2: 0 and 1 are served")
        try:
            topic_of(will.topic)
        except BusError as error:
            raise BrokenPacket(Reason.BAD_TOPIC_NAME, f"the will: {error}") from None
    return not packet.client_id

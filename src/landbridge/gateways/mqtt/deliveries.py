"""What a client has subscribed: for each filter a subscription of the bus, and a task that sends its
messages.

A subscription of QoS 0, and any of a session that ends with its connection, has no group: it gets what comes
from now on, and the log of the topic is its queue. One of QoS 1 of a session that outlives its connection is
a durable group, and a shared one is the group that it names; their messages are acked to the bus when the
client's PUBACK comes.

A client that doesn't take what is sent is not sent more: the rest stays in the log. Messages of QoS 0 are
dropped for a client that has taken nothing for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import structlog

from landbridge.client.many_topics import ManyTopics
from landbridge.client.message import Message
from landbridge.client.reading import Reading
from landbridge.core.log.batch import HeaderValue
from landbridge.core.mqtt.session import StoredFilter
from landbridge.core.mqtt.window import Place, Window
from landbridge.errors import BusError
from landbridge.gateways.mqtt.forms import CLIENT, RETAIN, expires_at, properties_of
from landbridge.gateways.mqtt.retained import RetainedMessage
from landbridge.protocol.mqtt.encoding import encode
from landbridge.protocol.mqtt.fields import LARGEST_VARINT
from landbridge.protocol.mqtt.names import name_of
from landbridge.protocol.mqtt.packets import V5, PublishPacket
from landbridge.protocol.mqtt.properties import Properties
from landbridge.protocol.mqtt.reasons import Reason

log = structlog.get_logger("landbridge.mqtt")

#: The part of ``ack_within`` after which the bus is asked for more time.
_EXTEND_AFTER = 1 / 3
#: Seconds between two such requests at least.
_LEAST_EXTEND = 0.2
#: Bytes of a packet identifier and of an alias, which are given last.
_BESIDE = 8


class InFlight(NamedTuple):
    """A message that was sent with QoS 1."""

    #: None where the bus has settled the message already.
    message: Message | None
    #: Whose message it is.
    delivery: FilterDelivery


class Receiving(Protocol):
    """The connection, as far as its deliveries need it."""

    version: int
    client_id: str
    window: Window[InFlight]
    clock: Callable[[], int]
    #: Bytes of a packet that the client takes.
    largest: int
    delivered: int
    dropped: int

    async def wait_for_room(self, qos: int, *, is_dropped: bool) -> bool:
        """Wait until a message of a QoS may be sent. False: it is to be dropped, which ``is_dropped``
        allows."""
        raise NotImplementedError

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def alias_of(self, name: str) -> tuple[int, bool]:
        """The alias of a topic's name, and whether the client knows it; 0: it has none."""
        raise NotImplementedError

    def on_delivery_failed(self, delivery: FilterDelivery, error: Exception) -> None:
        """A subscription has ended by itself."""


class FilterDelivery:
    """One subscription of a client."""

    def __init__(
        self, connection: Receiving, spec: StoredFilter, pattern: str, group: str | None, reading: Reading
    ) -> None:
        self._connection = connection
        self.spec = spec
        self.pattern = pattern
        #: The group that it reads; None: none.
        self.group = group
        self._reading = reading
        self._tasks: list[asyncio.Task[None]] = []
        #: The message that waits for room.
        self._next: Message | None = None

    @property
    def topics(self) -> list[str]:
        """The topics that it reads at the moment."""
        reading = self._reading
        return reading.topics if isinstance(reading, ManyTopics) else [reading.topic]

    def begin(self) -> None:
        """Send what comes, from now on."""
        self._tasks.append(asyncio.ensure_future(self._run()))
        if self.group is not None and self.spec.qos:
            self._tasks.append(asyncio.ensure_future(self._extend()))

    async def close(self) -> None:
        """Send nothing more, and give back to the bus what was not acked."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        try:
            await self._reading.close()
        except BusError as error:
            log.info("a subscription has ended before", filter=self.spec.filter, why=str(error))

    # -- sending -----------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while (batch := await self._reading.next_batch()) is not None:
                for message in self._reading.messages_of(batch):
                    await self._send(message)
        except BusError as error:
            self._connection.on_delivery_failed(self, error)
        except Exception as error:
            log.error("a delivery crashed", filter=self.spec.filter, exc_info=True)
            self._connection.on_delivery_failed(self, error)

    async def _send(self, message: Message) -> None:
        connection, spec = self._connection, self.spec
        headers = message.headers
        if spec.no_local and headers.get(CLIENT) == connection.client_id:
            self._settle(message)
            return
        place: Place = (spec.filter, message.topic, message.offset)
        if spec.qos and connection.window.holds(place):
            connection.window.renew(place, InFlight(message, self))
            return
        self._next = message
        # What is a group's is given to another consumer rather than dropped.
        has_room = await connection.wait_for_room(spec.qos, is_dropped=not spec.qos and self.group is None)
        self._next = None
        if not has_room:
            connection.dropped += 1
            self._settle(message)
            return
        properties: Properties = {}
        if connection.version == V5:
            id = message.id if spec.qos else ""
            properties = properties_of(
                headers, expires_at(message), connection.clock(), key=message.key, id=id
            )
        retain = spec.retain_as_published and bool(headers.get(RETAIN))
        item = InFlight(message if self._is_acked else None, self)
        if not self._put(message.topic, message.payload, properties, place, item, retain=retain):
            connection.dropped += 1
            self._settle(message)
        elif not spec.qos:
            self._settle(message)

    @property
    def _is_acked(self) -> bool:
        """Does the bus wait for an ack?"""
        return self.group is not None

    def _settle(self, message: Message) -> None:
        if self._is_acked and not message.batch.subscription.at_most_once:
            _ = message.ack(wait=False)

    def _put(
        self,
        topic: str,
        payload: bytes,
        properties: Properties,
        place: Place,
        item: InFlight,
        *,
        retain: bool,
    ) -> bool:
        """Send one message. False: the client takes no packet of its size (MQTT 5, 3.1.2.11.4)."""
        connection, spec = self._connection, self.spec
        name, largest = name_of(topic), connection.largest
        if spec.subscription_id:
            properties["subscription_ids"] = [spec.subscription_id]
        packet = PublishPacket(
            topic=name, payload=payload, qos=spec.qos, retain=retain, properties=properties
        )
        if len(payload) > largest - _BESIDE or (
            largest < LARGEST_VARINT and len(encode(packet, connection.version)) + _BESIDE > largest
        ):
            return False
        alias, is_known = connection.alias_of(name)
        if alias:
            properties["topic_alias"] = alias
            packet.topic = "" if is_known else name
        if spec.qos:
            packet.packet_id, packet.dup = connection.window.put(place, item)
            packet.dup = packet.dup or (item.message is not None and item.message.attempt > 1)
        connection.write(encode(packet, connection.version))
        connection.delivered += 1
        return True

    async def send_retained(self, topic: str, message: RetainedMessage) -> None:
        """Send a retained message, which is no message of the subscription."""
        connection = self._connection
        if not await connection.wait_for_room(self.spec.qos, is_dropped=not self.spec.qos):
            connection.dropped += 1
            return
        properties: Properties = {}
        headers: dict[str, HeaderValue] = message.all_headers
        if connection.version == V5:
            properties = properties_of(headers, message.expires_at, connection.clock(), key=message.key)
        place: Place = (self.spec.filter, topic, object())
        if not self._put(topic, message.payload, properties, place, InFlight(None, self), retain=True):
            connection.dropped += 1

    # -- acks --------------------------------------------------------------------------------------

    def _sent(self) -> Iterator[Message | None]:
        return (item.message for item in self._connection.window.items() if item.delivery is self)

    async def _extend(self) -> None:
        """Ask the bus for more time for what the client has and hasn't acked: while it is connected, a
        message isn't sent to it a second time (MQTT 5, 4.4)."""
        while True:
            await asyncio.sleep(max(_LEAST_EXTEND, self._reading.ack_within * _EXTEND_AFTER))
            held = {
                id(message.batch): message
                for message in (self._next, *self._sent())
                if message is not None and not message.batch.subscription.at_most_once
            }
            # A lease that is lost is found out by the ack.
            await asyncio.gather(*(message.extend() for message in held.values()), return_exceptions=True)


def on_puback(item: InFlight, reason: int, text: str) -> None:
    """The client has taken a message, or says why it can't."""
    message = item.message
    if message is None or message.batch.subscription.at_most_once:
        return
    if reason >= Reason.UNSPECIFIED:
        done = message.bury(f"mqtt 0x{reason:02x} {text}".strip())
        done.add_done_callback(lambda done: done.cancelled() or done.exception())  # it comes again
    else:
        _ = message.ack(wait=False)

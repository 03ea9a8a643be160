"""What a client publishes: packets as messages of the bus, and their acks in the order of the packets.

A PUBACK is sent when the message is on disk, and where it asks to be retained, when that is, too. Messages
that come in one turn of the loop share a batch for each topic, and so a commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import structlog

from landbridge.client.bus import Bus, Receipt
from landbridge.client.publisher import MessageOptions, microseconds
from landbridge.errors import BusError
from landbridge.gateways.gathering import MessageGathering
from landbridge.gateways.mqtt.bounds import (
    MOST_BYTES,
    MOST_UNDER_WAY,
    RECEIVE_MAXIMUM,
    TOPIC_ALIASES,
)
from landbridge.gateways.mqtt.forms import options_of
from landbridge.gateways.mqtt.retained import RetainedMessage, RetainedMessages
from landbridge.protocol.mqtt.names import topic_of
from landbridge.protocol.mqtt.packets import V5, PublishPacket, Will
from landbridge.protocol.mqtt.properties import PacketKind
from landbridge.protocol.mqtt.reasons import BrokenPacket, Reason, protocol_error, reason_of

log = structlog.get_logger("landbridge.mqtt")


class Under(NamedTuple):
    """A packet whose message is on its way to the disk."""

    packet: PublishPacket
    done: asyncio.Future[Any]


class PublishingClient(Protocol):
    """The connection, as far as its intake needs it."""

    version: int
    client_id: str
    retained: RetainedMessages
    clock: Callable[[], int]

    def ack(self, kind: PacketKind, packet_id: int, reason: Reason, text: str) -> None:
        """Send an ack."""

    def on_refused(self, packet: PublishPacket, error: BusError | BrokenPacket) -> None:
        """The bus, or the gateway, doesn't take a message."""

    def on_intake(self) -> None:
        """Less is under way than before."""


class Intake:
    """The publishes of one connection."""

    def __init__(self, connection: PublishingClient, bus: Bus) -> None:
        self._connection = connection
        self._bus = bus
        self._gatherings: dict[str, MessageGathering] = {}
        #: In the order in which they came.
        self._under_way: deque[Under] = deque()
        #: Bytes of their payloads, and how many of them have QoS 1.
        self._bytes = self._with_acks = 0
        self._aliases: dict[int, str] = {}
        self._idle: asyncio.Future[None] | None = None

    @property
    def is_full(self) -> bool:
        """Is so much under way that the client isn't read from?"""
        if len(self._under_way) >= MOST_UNDER_WAY or self._bytes >= MOST_BYTES:
            return True
        return self._connection.version != V5 and self._with_acks >= RECEIVE_MAXIMUM

    def take(self, packet: PublishPacket) -> None:
        """A packet has come. BrokenPacket ends the connection."""
        if packet.qos == 2:
            raise BrokenPacket(Reason.QOS_NOT_SUPPORTED, "QoS 2 isn't served: publish with QoS 1")
        if packet.qos and self._connection.version == V5 and self._with_acks >= RECEIVE_MAXIMUM:
            raise BrokenPacket(
                Reason.RECEIVE_MAXIMUM_EXCEEDED, f"more than {RECEIVE_MAXIMUM} publishes without a PUBACK"
            )
        name = self._name(packet)
        try:
            done = self._begin(name, packet)
        except (BusError, BrokenPacket) as error:
            done = asyncio.get_running_loop().create_future()
            done.set_exception(error)
        self._bytes += len(packet.payload)
        self._with_acks += packet.qos
        self._under_way.append(Under(packet, done))
        done.add_done_callback(self._on_done)

    def _name(self, packet: PublishPacket) -> str:
        """The topic's name, which an alias may stand for (MQTT 5, 3.3.2.3.4)."""
        alias = packet.properties.get("topic_alias")
        if alias is None:
            return packet.topic
        if not 0 < alias <= TOPIC_ALIASES:
            raise BrokenPacket(
                Reason.BAD_TOPIC_ALIAS, f"the topic alias {alias}, allowed are 1 to {TOPIC_ALIASES}"
            )
        if packet.topic:
            self._aliases[alias] = packet.topic
        elif alias not in self._aliases:
            raise protocol_error(f"the topic alias {alias} stands for nothing yet")
        return self._aliases[alias]

    def _begin(self, name: str, packet: PublishPacket | Will) -> asyncio.Future[Any]:
        if "subscription_ids" in packet.properties:
            raise protocol_error("a subscription identifier in a packet PUBLISH of a client")
        topic = topic_of(name)
        options = options_of(packet, self._connection.client_id, self._connection.clock())
        if packet.retain:
            self._connection.retained.check(topic, packet.payload)
        stored = self._gathering(topic).put(packet.payload, **options)
        if not packet.retain:
            return stored
        retaining = asyncio.ensure_future(self._retain(topic, packet, options, stored))
        self._connection.retained.reserve(topic, retaining)
        return retaining

    def _gathering(self, topic: str) -> MessageGathering:
        found = self._gatherings.get(topic)
        if found is None:
            found = self._gatherings[topic] = MessageGathering(self._bus, topic, self._gatherings)
        return found

    async def _retain(
        self,
        topic: str,
        packet: PublishPacket | Will,
        options: MessageOptions,
        stored: asyncio.Future[Receipt],
    ) -> None:
        await stored
        key, expires_at = options.get("key"), microseconds(options.get("expires_at"))
        assert not isinstance(key, bytes)
        headers = dict(options.get("headers") or {})
        message = RetainedMessage.of(packet.payload, headers, key, expires_at) if packet.payload else None
        await self._connection.retained.keep(topic, message)

    def _on_done(self, _: asyncio.Future[Any]) -> None:
        """Answer those at the head: acks go in the order of their packets (MQTT 5, 4.6)."""
        while self._under_way and self._under_way[0].done.done():
            packet, done = self._under_way.popleft()
            self._bytes -= len(packet.payload)
            self._with_acks -= packet.qos
            self._answer(packet, done)
        if not self._under_way and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        self._connection.on_intake()

    def _answer(self, packet: PublishPacket, done: asyncio.Future[Any]) -> None:
        if done.cancelled():
            return  # it may be stored or not: the client gets no ack, and sends it again
        error = done.exception()
        if error is None:
            if packet.qos:
                self._connection.ack(PacketKind.PUBACK, packet.packet_id, Reason.SUCCESS, "")
        elif isinstance(error, BusError | BrokenPacket):
            self._connection.on_refused(packet, error)
        else:
            log.error("a publish crashed", exc_info=error)
            self._connection.on_refused(packet, protocol_error("a fault of the gateway"))

    async def publish_will(self, will: Will) -> None:
        """Publish what a client has left for the case that it goes without a word."""
        await self._begin(will.topic, will)

    async def finish(self, within: float) -> None:
        """Wait until nothing is under way, or so long."""
        if self._under_way:
            self._idle = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._idle], timeout=within)


def refusal_of(error: BusError | BrokenPacket) -> tuple[Reason, str]:
    """How a PUBACK or a SUBACK says that something was refused."""
    if isinstance(error, BrokenPacket):
        return error.reason, str(error)
    return reason_of(error), f"{error}: {error.hint}" if error.hint else str(error)

"""One struct for each packet of MQTT. Properties are empty in 3.1.1."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from landbridge.protocol.mqtt.properties import Properties

#: Protocol levels, as a CONNECT names them.
V311, V5 = 4, 5


class Will(msgspec.Struct, kw_only=True):
    """What is published for a client that goes without a word."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = {}


class ConnectPacket(msgspec.Struct, kw_only=True):
    """A client's first packet."""

    version: int
    client_id: str
    #: "Clean session" in 3.1.1.
    clean_start: bool = True
    #: Seconds; 0: none.
    keep_alive: int = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    properties: Properties = {}


class ConnackPacket(msgspec.Struct, kw_only=True):
    """The answer. ``code``: a reason in version 5, a return code in 3.1.1."""

    session_present: bool = False
    code: int = 0
    properties: Properties = {}


class PublishPacket(msgspec.Struct, kw_only=True):
    """A message, in either direction. ``topic`` is empty where an alias stands for it."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    #: 0 where the QoS is 0.
    packet_id: int = 0
    properties: Properties = {}


class AckPacket(msgspec.Struct, kw_only=True):
    """PUBACK, PUBREC, PUBREL or PUBCOMP, by ``kind``."""

    kind: int
    packet_id: int
    reason: int = 0
    properties: Properties = {}


class AskedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A topic filter with its options. 3.1.1 knows the QoS alone."""

    filter: str
    qos: int = 0
    no_local: bool = False
    #: The flag RETAIN goes on as the publisher has set it.
    retain_as_published: bool = False
    #: Retained messages are sent: 0 always, 1 where the subscription is new, 2 never.
    retain_handling: int = 0


class SubscribePacket(msgspec.Struct, kw_only=True):
    """Filters to subscribe."""

    packet_id: int
    filters: list[AskedFilter]
    properties: Properties = {}


class UnsubscribePacket(msgspec.Struct, kw_only=True):
    """Filters to end."""

    packet_id: int
    filters: list[str]
    properties: Properties = {}


class SubackPacket(msgspec.Struct, kw_only=True):
    """The answer, a code for each filter."""

    packet_id: int
    codes: list[int]
    properties: Properties = {}


class UnsubackPacket(msgspec.Struct, kw_only=True):
    """The answer. 3.1.1 has no codes here."""

    packet_id: int
    codes: list[int] = []
    properties: Properties = {}


class PingPacket(msgspec.Struct):
    """PINGREQ, or PINGRESP."""

    is_answer: bool = False


class DisconnectPacket(msgspec.Struct, kw_only=True):
    """The last packet of one side. 3.1.1 knows it from the client alone, without a reason."""

    reason: int = 0
    properties: Properties = {}


class AuthPacket(msgspec.Struct, kw_only=True):
    """A step of an enhanced authentication (version 5)."""

    reason: int = 0
    properties: Properties = {}


Packet: TypeAlias = (
    ConnectPacket
    | ConnackPacket
    | PublishPacket
    | AckPacket
    | SubscribePacket
    | SubackPacket
    | UnsubscribePacket
    | UnsubackPacket
    | PingPacket
    | DisconnectPacket
    | AuthPacket
)

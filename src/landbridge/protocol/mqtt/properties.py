"""The properties of version 5 (2.2.2): which there are, in which packets, and what may repeat."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from landbridge.protocol.mqtt.fields import FieldReader, put_binary, put_text, put_varint
from landbridge.protocol.mqtt.reasons import malformed, protocol_error


class PacketKind(IntEnum):
    """The types of packets, by the number in their first byte, and the will, whose properties stand in a
    CONNECT beside its own."""

    WILL = 0
    CONNECT = 1
    CONNACK = 2
    PUBLISH = 3
    PUBACK = 4
    PUBREC = 5
    PUBREL = 6
    PUBCOMP = 7
    SUBSCRIBE = 8
    SUBACK = 9
    UNSUBSCRIBE = 10
    UNSUBACK = 11
    PINGREQ = 12
    PINGRESP = 13
    DISCONNECT = 14
    AUTH = 15


#: By name. ``user_properties`` is a list of pairs, ``subscription_ids`` a list of numbers.
Properties: TypeAlias = dict[str, Any]

_MESSAGE = frozenset({PacketKind.PUBLISH, PacketKind.WILL})
_ACKS = frozenset(
    {
        PacketKind.PUBACK,
        PacketKind.PUBREC,
        PacketKind.PUBREL,
        PacketKind.PUBCOMP,
        PacketKind.SUBACK,
        PacketKind.UNSUBACK,
    }
)
_BOTH = frozenset({PacketKind.CONNECT, PacketKind.CONNACK})
_CONNACK = frozenset({PacketKind.CONNACK})
_SUBSCRIPTION = frozenset({PacketKind.PUBLISH, PacketKind.SUBSCRIBE})
_WHY = _ACKS | {PacketKind.CONNACK, PacketKind.DISCONNECT, PacketKind.AUTH}


class PropertySpec(NamedTuple):
    """One property."""

    number: int
    name: str
    read: Callable[[FieldReader], Any]
    write: Callable[[Any], bytes]
    packets: frozenset[PacketKind]
    #: It may stand there more than once: then its value is a list.
    repeats: bool = False
    #: It may not be 0.
    positive: bool = False


def _byte(value: int) -> bytes:
    return bytes((value,))


def _short(value: int) -> bytes:
    return value.to_bytes(2, "big")


def _long(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _read_pair(fields: FieldReader) -> tuple[str, str]:
    return fields.text(), fields.text()


def _put_pair(value: tuple[str, str]) -> bytes:
    return put_text(value[0]) + put_text(value[1])


_R = FieldReader
_ALL = (
    PropertySpec(0x01, "payload_format", _R.flag, _byte, _MESSAGE),
    PropertySpec(0x02, "message_expiry", _R.long, _long, _MESSAGE),
    PropertySpec(0x03, "content_type", _R.text, put_text, _MESSAGE),
    PropertySpec(0x08, "response_topic", _R.text, put_text, _MESSAGE),
    PropertySpec(0x09, "correlation_data", _R.binary, put_binary, _MESSAGE),
    PropertySpec(
        0x0B, "subscription_ids", _R.varint, put_varint, _SUBSCRIPTION,
        repeats=True, positive=True,
    ),
    PropertySpec(0x11, "session_expiry", _R.long, _long, _BOTH | {PacketKind.DISCONNECT}),
    PropertySpec(0x12, "assigned_client_id", _R.text, put_text, _CONNACK),
    PropertySpec(0x13, "server_keep_alive", _R.short, _short, _CONNACK),
    PropertySpec(0x15, "auth_method", _R.text, put_text, _BOTH | {PacketKind.AUTH}),
    PropertySpec(0x16, "auth_data", _R.binary, put_binary, _BOTH | {PacketKind.AUTH}),
    PropertySpec(0x17, "request_problem", _R.flag, _byte, frozenset({PacketKind.CONNECT})),
    PropertySpec(0x18, "will_delay", _R.long, _long, frozenset({PacketKind.WILL})),
    PropertySpec(0x19, "request_response", _R.flag, _byte, frozenset({PacketKind.CONNECT})),
    PropertySpec(0x1A, "response_information", _R.text, put_text, _CONNACK),
    PropertySpec(0x1C, "server_reference", _R.text, put_text, _CONNACK | {PacketKind.DISCONNECT}),
    PropertySpec(
        0x1F, "reason_string", _R.text, put_text, _WHY
    ),
    PropertySpec(0x21, "receive_maximum", _R.short, _short, _BOTH, positive=True),
    PropertySpec(0x22, "topic_alias_maximum", _R.short, _short, _BOTH),
    PropertySpec(0x23, "topic_alias", _R.short, _short, frozenset({PacketKind.PUBLISH})),
    PropertySpec(0x24, "maximum_qos", _R.flag, _byte, _CONNACK),
    PropertySpec(0x25, "retain_available", _R.flag, _byte, _CONNACK),
    PropertySpec(0x26, "user_properties", _read_pair, _put_pair, frozenset(PacketKind), repeats=True),
    PropertySpec(0x27, "maximum_packet_size", _R.long, _long, _BOTH, positive=True),
    PropertySpec(0x28, "wildcard_available", _R.flag, _byte, _CONNACK),
    PropertySpec(0x29, "subscription_ids_available", _R.flag, _byte, _CONNACK),
    PropertySpec(0x2A, "shared_available", _R.flag, _byte, _CONNACK),
)  # fmt: skip
BY_NUMBER = {spec.number: spec for spec in _ALL}
BY_NAME = {spec.name: spec for spec in _ALL}
#: Packets where the identifier of a subscription may stand only once (3.8.2.1.2).
_ONE_ID = PacketKind.SUBSCRIBE
#: Properties of one packet at most: each costs memory of its own.
MOST_PROPERTIES = 1000


def read_properties(fields: FieldReader, kind: PacketKind) -> Properties:
    """The properties of a packet."""
    length = fields.varint()
    if length > fields.left:
        raise malformed("the properties reach beyond the end of their packet")
    end = fields.at + length
    found: Properties = {}
    count = 0
    while fields.at < end:
        number = fields.varint()
        spec = BY_NUMBER.get(number)
        if spec is None or kind not in spec.packets:
            raise malformed(f"the property 0x{number:02x} may not stand in a packet {kind.name}")
        count += 1
        if count > MOST_PROPERTIES:
            raise malformed(f"more than {MOST_PROPERTIES} properties in one packet")
        value = spec.read(fields)
        if spec.positive and not value:
            raise protocol_error(f"the property {spec.name} is 0")
        if spec.repeats:
            values = found.setdefault(spec.name, [])
            values.append(value)
            if len(values) > 1 and kind is _ONE_ID and spec.name == "subscription_ids":
                raise protocol_error("a packet SUBSCRIBE with two subscription identifiers")
        elif spec.name in found:
            raise protocol_error(f"the property {spec.name} stands twice in a packet")
        else:
            found[spec.name] = value
    if fields.at != end:
        raise malformed("a property reaches beyond the end of the properties")
    return found


def put_properties(properties: Properties) -> bytes:
    """Properties with their length before them."""
    if not properties:
        return b"\0"
    parts: list[bytes] = []
    for name, value in properties.items():
        spec = BY_NAME[name]
        for each in value if spec.repeats else (value,):
            parts += (_byte(spec.number), spec.write(each))
    body = b"".join(parts)
    return put_varint(len(body)) + body

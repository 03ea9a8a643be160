"""The body of a packet, read. The rules are those of MQTT 5, chapter 3, and of 3.1.1 where they differ."""

from __future__ import annotations

from landbridge.protocol.mqtt.fields import FieldReader
from landbridge.protocol.mqtt.packets import (
    V5,
    V311,
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
from landbridge.protocol.mqtt.properties import PacketKind, Properties, read_properties
from landbridge.protocol.mqtt.reasons import BrokenPacket, Reason, malformed, protocol_error

#: The flags of the first byte that each packet must have (2.1.3). PUBLISH has its own.
_FLAGS = {PacketKind.PUBREL: 2, PacketKind.SUBSCRIBE: 2, PacketKind.UNSUBSCRIBE: 2}
#: Filters of one packet.
MOST_FILTERS = 1000
_PROTOCOL = "MQTT"
_ACKS = (PacketKind.PUBACK, PacketKind.PUBREC, PacketKind.PUBREL, PacketKind.PUBCOMP)


def decode(first: int, body: bytes, version: int) -> Packet:
    """A packet from its first byte and its body. ``version``: of the connection, 0 before its CONNECT.
    BrokenPacket where it can't be read."""
    kind, flags = PacketKind(first >> 4), first & 0x0F
    if kind is PacketKind.WILL:
        raise malformed("a packet of the type 0")
    if kind is PacketKind.PUBLISH:
        return _publish(flags, body, version)
    if flags != _FLAGS.get(kind, 0):
        raise malformed(f"a packet {kind.name} with the flags {flags}")
    fields = FieldReader(body)
    packet = _read(kind, fields, version)
    fields.end()
    return packet


def _read(kind: PacketKind, fields: FieldReader, version: int) -> Packet:
    if kind is PacketKind.CONNECT:
        return _connect(fields)
    if kind in _ACKS:
        packet_id = _packet_id(fields)
        reason, properties = _reason(kind, fields, version)
        return AckPacket(kind=kind, packet_id=packet_id, reason=reason, properties=properties)
    if kind is PacketKind.SUBSCRIBE:
        return _subscribe(fields, version)
    if kind is PacketKind.UNSUBSCRIBE:
        return _unsubscribe(fields, version)
    if kind in (PacketKind.PINGREQ, PacketKind.PINGRESP):
        return PingPacket(is_answer=kind is PacketKind.PINGRESP)
    if kind is PacketKind.DISCONNECT:
        reason, properties = _reason(kind, fields, version)
        return DisconnectPacket(reason=reason, properties=properties)
    if kind is PacketKind.CONNACK:
        present, code = fields.flag(), fields.byte()
        return ConnackPacket(
            session_present=bool(present), code=code, properties=_properties(kind, fields, version)
        )
    if kind is PacketKind.AUTH:
        if version != V5:
            raise malformed("a packet AUTH belongs to version 5")
        reason, properties = _reason(kind, fields, version)
        return AuthPacket(reason=reason, properties=properties)
    packet_id = _packet_id(fields)
    properties = _properties(kind, fields, version)
    codes = list(fields.rest())
    if kind is PacketKind.SUBACK:
        return SubackPacket(packet_id=packet_id, codes=codes, properties=properties)
    return UnsubackPacket(packet_id=packet_id, codes=codes, properties=properties)


def _properties(kind: PacketKind, fields: FieldReader, version: int) -> Properties:
    return read_properties(fields, kind) if version == V5 else {}


def _packet_id(fields: FieldReader) -> int:
    packet_id = fields.short()
    if not packet_id:
        raise malformed("a packet identifier of 0")
    return packet_id


def _reason(kind: PacketKind, fields: FieldReader, version: int) -> tuple[int, Properties]:
    """What version 5 leaves out where it is 0, and without properties."""
    if version != V5 or not fields.left:
        return 0, {}
    reason = fields.byte()
    return reason, read_properties(fields, kind) if fields.left else {}


def _connect(fields: FieldReader) -> ConnectPacket:
    if fields.text() != _PROTOCOL:
        raise BrokenPacket(Reason.UNSUPPORTED_VERSION, "the first packet is not of MQTT 3.1.1 or 5")
    version = fields.byte()
    if version not in (V311, V5):
        raise BrokenPacket(
            Reason.UNSUPPORTED_VERSION, f"version {version} of the protocol: 4 and 5 are known"
        )
    flags = fields.byte()
    qos = flags >> 3 & 3
    if flags & 1 or qos == 3 or (not flags & 4 and flags & 0x38):
        raise malformed(f"the flags {flags:08b} of a CONNECT")
    if version == V311 and flags & 0x40 and not flags & 0x80:
        raise malformed("a password without a user name")
    keep_alive = fields.short()
    properties = _properties(PacketKind.CONNECT, fields, version)
    if "auth_data" in properties and "auth_method" not in properties:
        raise protocol_error("authentication data without a method")
    client_id = fields.text()
    will = None
    if flags & 4:
        will_properties = _properties(PacketKind.WILL, fields, version)
        topic, payload = _topic(fields.text()), fields.binary()
        will = Will(
            topic=topic, payload=payload, qos=qos, retain=bool(flags & 0x20), properties=will_properties
        )
    return ConnectPacket(
        version=version,
        client_id=client_id,
        clean_start=bool(flags & 2),
        keep_alive=keep_alive,
        username=fields.text() if flags & 0x80 else None,
        password=fields.binary() if flags & 0x40 else None,
        will=will,
        properties=properties,
    )


def _topic(topic: str) -> str:
    """A topic's name may not have wildcards (4.7.1)."""
    if "+" in topic or "#" in topic:
        raise BrokenPacket(Reason.BAD_TOPIC_NAME, "a topic's name with a wildcard")
    return topic


def _publish(flags: int, body: bytes, version: int) -> PublishPacket:
    qos = flags >> 1 & 3
    if qos == 3 or (not qos and flags & 8):
        raise malformed(f"a packet PUBLISH with the flags {flags:04b}")
    fields = FieldReader(body)
    topic = _topic(fields.text())
    packet_id = _packet_id(fields) if qos else 0
    properties = read_properties(fields, PacketKind.PUBLISH) if version == V5 else {}
    if not topic and "topic_alias" not in properties:
        raise protocol_error("a packet PUBLISH without a topic")
    return PublishPacket(
        topic=topic,
        payload=fields.rest(),
        qos=qos,
        retain=bool(flags & 1),
        dup=bool(flags & 8),
        packet_id=packet_id,
        properties=properties,
    )


def _subscribe(fields: FieldReader, version: int) -> SubscribePacket:
    packet_id = _packet_id(fields)
    properties = _properties(PacketKind.SUBSCRIBE, fields, version)
    filters: list[AskedFilter] = []
    while fields.left:
        if len(filters) >= MOST_FILTERS:
            raise BrokenPacket(Reason.QUOTA_EXCEEDED, f"more than {MOST_FILTERS} filters in one packet")
        name, options = fields.text(), fields.byte()
        qos, handling = options & 3, options >> 4 & 3
        if qos == 3 or handling == 3 or options & (0xC0 if version == V5 else 0xFC):
            raise malformed(f"the options {options:08b} of a subscription")
        filters.append(
            AskedFilter(
                filter=name,
                qos=qos,
                no_local=bool(options & 4),
                retain_as_published=bool(options & 8),
                retain_handling=handling,
            )
        )
    if not filters:
        raise protocol_error("a packet SUBSCRIBE without a filter")
    return SubscribePacket(packet_id=packet_id, filters=filters, properties=properties)


def _unsubscribe(fields: FieldReader, version: int) -> UnsubscribePacket:
    packet_id = _packet_id(fields)
    properties = _properties(PacketKind.UNSUBSCRIBE, fields, version)
    filters: list[str] = []
    while fields.left:
        if len(filters) >= MOST_FILTERS:
            raise BrokenPacket(Reason.QUOTA_EXCEEDED, f"more than {MOST_FILTERS} filters in one packet")
        filters.append(fields.text())
    if not filters:
        raise protocol_error("a packet UNSUBSCRIBE without a filter")
    return UnsubscribePacket(packet_id=packet_id, filters=filters, properties=properties)

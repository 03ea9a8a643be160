"""Packets, written."""

from __future__ import annotations

from landbridge.protocol.mqtt.fields import LARGEST_VARINT, put_binary, put_text, put_varint
from landbridge.protocol.mqtt.packets import (
    V5,
    AckPacket,
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
)
from landbridge.protocol.mqtt.properties import PacketKind, Properties, put_properties
from landbridge.protocol.mqtt.reasons import BrokenPacket, Reason


def encode(packet: Packet, version: int) -> bytes:
    """The bytes of a packet. BrokenPacket where it is larger than any packet can be."""
    if isinstance(packet, PublishPacket):
        return _publish(packet, version)
    if isinstance(packet, AckPacket):
        kind = PacketKind(packet.kind)
        body = packet.packet_id.to_bytes(2, "big") + _reason(packet.reason, packet.properties, version)
        return _framed(kind, body, 2 if kind is PacketKind.PUBREL else 0)
    if isinstance(packet, PingPacket):
        return _framed(PacketKind.PINGRESP if packet.is_answer else PacketKind.PINGREQ, b"")
    if isinstance(packet, SubackPacket | UnsubackPacket):
        kind = PacketKind.SUBACK if isinstance(packet, SubackPacket) else PacketKind.UNSUBACK
        body = packet.packet_id.to_bytes(2, "big") + _properties(packet.properties, version)
        return _framed(kind, body + bytes(packet.codes))
    if isinstance(packet, ConnackPacket):
        body = bytes((packet.session_present, packet.code)) + _properties(packet.properties, version)
        return _framed(PacketKind.CONNACK, body)
    if isinstance(packet, DisconnectPacket | AuthPacket):
        kind = PacketKind.DISCONNECT if isinstance(packet, DisconnectPacket) else PacketKind.AUTH
        return _framed(kind, _reason(packet.reason, packet.properties, version))
    if isinstance(packet, SubscribePacket):
        return _framed(PacketKind.SUBSCRIBE, _subscribe(packet, version), 2)
    if isinstance(packet, UnsubscribePacket):
        body = packet.packet_id.to_bytes(2, "big") + _properties(packet.properties, version)
        return _framed(PacketKind.UNSUBSCRIBE, body + b"".join(map(put_text, packet.filters)), 2)
    return _framed(PacketKind.CONNECT, _connect(packet))


def _framed(kind: PacketKind, body: bytes, flags: int = 0) -> bytes:
    if len(body) > LARGEST_VARINT:
        raise BrokenPacket(Reason.PACKET_TOO_LARGE, f"a packet of {len(body)} bytes")
    return bytes((kind << 4 | flags,)) + put_varint(len(body)) + body


def _properties(properties: Properties, version: int) -> bytes:
    return put_properties(properties) if version == V5 else b""


def _reason(reason: int, properties: Properties, version: int) -> bytes:
    """What version 5 may leave out, and 3.1.1 doesn't have."""
    if version != V5 or not (reason or properties):
        return b""
    return bytes((reason,)) + (put_properties(properties) if properties else b"")


def _publish(packet: PublishPacket, version: int) -> bytes:
    topic = packet.topic.encode()
    head = len(topic).to_bytes(2, "big") + topic
    if packet.qos:
        head += packet.packet_id.to_bytes(2, "big")
    if version == V5:
        head += put_properties(packet.properties)
    length = len(head) + len(packet.payload)
    if length > LARGEST_VARINT:
        raise BrokenPacket(Reason.PACKET_TOO_LARGE, f"a packet of {length} bytes")
    first = PacketKind.PUBLISH << 4 | packet.dup << 3 | packet.qos << 1 | packet.retain
    return b"".join((bytes((first,)), put_varint(length), head, packet.payload))


def _subscribe(packet: SubscribePacket, version: int) -> bytes:
    parts = [packet.packet_id.to_bytes(2, "big"), _properties(packet.properties, version)]
    for one in packet.filters:
        options = one.qos | one.no_local << 2 | one.retain_as_published << 3 | one.retain_handling << 4
        parts += (put_text(one.filter), bytes((options,)))
    return b"".join(parts)


def _connect(packet: ConnectPacket) -> bytes:
    will = packet.will
    flags = packet.clean_start << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
    version = packet.version
    parts = [put_text("MQTT"), bytes((version, flags)), packet.keep_alive.to_bytes(2, "big")]
    parts += (_properties(packet.properties, version), put_text(packet.client_id))
    if will is not None:
        parts += (_properties(will.properties, version), put_text(will.topic), put_binary(will.payload))
    if packet.username is not None:
        parts.append(put_text(packet.username))
    if packet.password is not None:
        parts.append(put_binary(packet.password))
    return b"".join(parts)

"""The codec of MQTT: what is written is read again, whatever the pieces; and nothing hostile gets through."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties as PahoProperties

from landbridge.errors import BadName
from landbridge.protocol.mqtt.encoding import encode
from landbridge.protocol.mqtt.fields import FieldReader, fitting, put_varint
from landbridge.protocol.mqtt.names import filter_of, name_of, topic_of
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
from landbridge.protocol.mqtt.properties import BY_NAME, PacketKind, put_properties, read_properties
from landbridge.protocol.mqtt.reasons import BrokenPacket, Reason
from landbridge.protocol.mqtt.stream import PacketStream

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
TOPIC = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0+#"), min_size=1, max_size=20)
ID = st.integers(1, 65_535)
BYTES = st.binary(max_size=40)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "byte": st.integers(0, 1),
    "short": st.integers(1, 65_535),
    "long": st.integers(1, 2**32 - 1),
    "varint": st.integers(1, 268_435_455),
    "text": TEXT,
    "binary": BYTES,
    "_read_pair": st.tuples(TEXT, TEXT),
    "flag": st.integers(0, 1),
}


def properties(kind: PacketKind) -> st.SearchStrategy[dict[str, Any]]:
    optional = {}
    for name, spec in BY_NAME.items():
        if kind in spec.packets:
            value = VALUES[spec.read.__name__]
            most = 1 if name == "subscription_ids" and kind is PacketKind.SUBSCRIBE else 3
            optional[name] = st.lists(value, min_size=1, max_size=most) if spec.repeats else value
    if "auth_method" in optional and kind is PacketKind.CONNECT:
        del optional["auth_data"]
    return st.fixed_dictionaries({}, optional=optional)


def of_version(draw: st.DrawFn, version: int, kind: PacketKind) -> dict[str, Any]:
    return draw(properties(kind)) if version == V5 else {}


@st.composite
def packets(draw: st.DrawFn, version: int) -> Packet:
    kind = draw(st.sampled_from([kind for kind in PacketKind if kind is not PacketKind.WILL]))
    given = of_version(draw, version, kind)
    reason = draw(st.integers(0, 255)) if version == V5 else 0
    if kind is PacketKind.CONNECT:
        username = draw(st.none() | TEXT)
        will = None
        if draw(st.booleans()):
            will = Will(
                topic=draw(TOPIC), payload=draw(BYTES), qos=draw(st.integers(0, 2)),
                retain=draw(st.booleans()), properties=of_version(draw, version, PacketKind.WILL),
            )  # fmt: skip
        return ConnectPacket(
            version=version, client_id=draw(TEXT), clean_start=draw(st.booleans()), keep_alive=draw(ID),
            username=username, password=None if username is None else draw(st.none() | BYTES), will=will,
            properties=given,
        )  # fmt: skip
    if kind is PacketKind.CONNACK:
        return ConnackPacket(
            session_present=draw(st.booleans()), code=draw(st.integers(0, 255)), properties=given
        )
    if kind is PacketKind.PUBLISH:
        qos = draw(st.integers(0, 2))
        return PublishPacket(
            topic=draw(TOPIC), payload=draw(BYTES), qos=qos, retain=draw(st.booleans()),
            dup=bool(qos) and draw(st.booleans()), packet_id=draw(ID) if qos else 0, properties=given,
        )  # fmt: skip
    if kind in (PacketKind.PUBACK, PacketKind.PUBREC, PacketKind.PUBREL, PacketKind.PUBCOMP):
        return AckPacket(kind=kind, packet_id=draw(ID), reason=reason, properties=given)
    if kind is PacketKind.SUBSCRIBE:
        flag = st.booleans() if version == V5 else st.just(value=False)
        filters = draw(
            st.lists(
                st.builds(
                    AskedFilter, filter=TEXT, qos=st.integers(0, 2), no_local=flag, retain_as_published=flag,
                    retain_handling=st.integers(0, 2 if version == V5 else 0),
                ), min_size=1, max_size=4,
            )
        )  # fmt: skip
        return SubscribePacket(packet_id=draw(ID), filters=filters, properties=given)
    if kind is PacketKind.UNSUBSCRIBE:
        names = draw(st.lists(TEXT, min_size=1, max_size=4))
        return UnsubscribePacket(packet_id=draw(ID), filters=names, properties=given)
    codes = draw(st.lists(st.integers(0, 255), max_size=4))
    if kind is PacketKind.SUBACK:
        return SubackPacket(packet_id=draw(ID), codes=codes, properties=given)
    if kind is PacketKind.UNSUBACK:
        return UnsubackPacket(packet_id=draw(ID), codes=codes, properties=given)
    if kind is PacketKind.DISCONNECT:
        return DisconnectPacket(reason=reason, properties=given)
    if kind is PacketKind.AUTH and version == V5:
        return AuthPacket(reason=reason, properties=given)
    return PingPacket(is_answer=kind is PacketKind.PINGRESP)


def read(data: bytes, version: int, sizes: list[int] | None = None) -> list[Packet]:
    """The packets of a stream that comes in pieces of these sizes, and then one byte at a time."""
    stream = PacketStream(1 << 20, version)
    found: list[Packet] = []
    at = 0
    for size in [*(sizes or []), *([1] * len(data))]:
        stream.feed(data[at : at + size])
        at += size
        while (packet := stream.next()) is not None:
            found.append(packet)
    assert not stream.held
    return found


@given(st.data())
def test_what_is_written_is_read_again_whatever_the_pieces(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([V311, V5]))
    sent = data.draw(st.lists(packets(version), min_size=1, max_size=4))
    raw = b"".join(encode(packet, version) for packet in sent)
    assert read(raw, version, data.draw(st.lists(st.integers(0, 60), max_size=5))) == sent


def until_broken(stream: PacketStream) -> Reason | None:
    """Read all there is. Why it ended early; None: it didn't."""
    try:
        while stream.next() is not None:
            pass
    except BrokenPacket as error:
        return error.reason
    return None


@given(st.binary(max_size=200), st.sampled_from([0, V311, V5]))
def test_no_bytes_do_more_than_break_the_packet(data: bytes, version: int) -> None:
    stream = PacketStream(1 << 10, version)
    stream.feed(data)
    reason = until_broken(stream)
    assert reason is None or reason >= 0x80
    assert stream.held <= len(data)


@given(st.data())
def test_a_packet_with_a_changed_byte_is_read_or_refused(data: st.DataObject) -> None:
    version = data.draw(st.sampled_from([V311, V5]))
    raw = bytearray(encode(data.draw(packets(version)), version))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    stream = PacketStream(1 << 10, version)
    stream.feed(raw)
    reason = until_broken(stream)
    assert reason is None or reason >= 0x80


@given(properties(PacketKind.PUBLISH))
def test_properties_are_as_another_library_reads_them(values: dict[str, Any]) -> None:
    theirs = PahoProperties(PacketTypes.PUBLISH)
    theirs.unpack(put_properties(values))
    names = {
        "payload_format": "PayloadFormatIndicator", "message_expiry": "MessageExpiryInterval",
        "content_type": "ContentType", "response_topic": "ResponseTopic", "topic_alias": "TopicAlias",
        "correlation_data": "CorrelationData", "user_properties": "UserProperty",
        "subscription_ids": "SubscriptionIdentifier",
    }  # fmt: skip
    assert {name: getattr(theirs, names[name]) for name in values} == values
    fields = FieldReader(theirs.pack())
    assert read_properties(fields, PacketKind.PUBLISH) == values


def test_a_length_that_is_too_large_is_refused_before_the_packet_comes() -> None:
    stream = PacketStream(100, V5)
    stream.feed(b"\x30" + put_varint(101))
    with pytest.raises(BrokenPacket, match="allowed are 100") as raised:
        stream.next()
    assert raised.value.reason is Reason.PACKET_TOO_LARGE
    stream = PacketStream(100, V5)
    stream.feed(b"\x30\xff\xff\xff\xff")
    with pytest.raises(BrokenPacket, match="more than four bytes"):
        stream.next()


def publish(body: bytes, flags: int = 0) -> bytes:
    return bytes((0x30 | flags,)) + put_varint(len(body)) + body


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\x00\x00", Reason.MALFORMED),  # no such packet
        (b"\x36\x00", Reason.MALFORMED),  # QoS 3
        (publish(b"\0\1a", 0x08), Reason.MALFORMED),  # DUP of QoS 0
        (publish(b"\0\1a\0\0", 0x02), Reason.MALFORMED),  # packet id 0
        (publish(b"\0\0\0"), Reason.PROTOCOL_ERROR),  # no topic and no alias
        (publish(b"\0\3a/#\0"), Reason.BAD_TOPIC_NAME),
        (publish(b"\0\2a\0\0"), Reason.MALFORMED),  # U+0000
        (publish(b"\0\2\xc3\x28\0"), Reason.MALFORMED),  # no UTF-8
        (publish(b"\0\3\xed\xa0\x80\0"), Reason.MALFORMED),  # a surrogate
        (publish(b"\0\5a\0"), Reason.MALFORMED),  # a text beyond the packet
        (publish(b"\0\1a\x04\x23\0\0"), Reason.MALFORMED),  # properties beyond the packet's own end
        (publish(b"\0\1a\x02\x23\0\1"), Reason.MALFORMED),  # a property that is cut
        (publish(b"\0\1a\x06\x23\0\1\x23\0\1"), Reason.PROTOCOL_ERROR),  # an alias twice
        (publish(b"\0\1a\x02\x01\x02"), Reason.MALFORMED),  # a flag of 2
        (publish(b"\0\1a\x03\x21\0\1"), Reason.MALFORMED),  # Receive Maximum in a PUBLISH
        (b"\x82\x02\0\1", Reason.MALFORMED),  # SUBSCRIBE without properties
        (b"\x82\x03\0\1\0", Reason.PROTOCOL_ERROR),  # without filters
        (b"\x80\x07\0\1\0\0\1a\0", Reason.MALFORMED),  # its flags
        (b"\x82\x07\0\1\0\0\1a\3", Reason.MALFORMED),  # QoS 3
        (b"\x82\x07\0\1\0\0\1a\x30", Reason.MALFORMED),  # retain handling 3
        (b"\xc0\x01\0", Reason.MALFORMED),  # PINGREQ with a body
        (b"\x20\x80\x00", Reason.MALFORMED),  # a length in more bytes than it takes
    ],
)
def test_what_breaks_the_protocol_is_refused_with_its_reason(raw: bytes, reason: Reason) -> None:
    with pytest.raises(BrokenPacket) as raised:
        read(raw, V5)
    assert raised.value.reason is reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"\0\6MQIsdp\3\2\0\0\0\1a", Reason.UNSUPPORTED_VERSION),
        (b"\0\4MQTT\6\2\0\0\0\1a", Reason.UNSUPPORTED_VERSION),
        (b"\0\4MQTT\4\3\0\0\0\1a", Reason.MALFORMED),  # the reserved flag
        (b"\0\4MQTT\4\x08\0\0\0\1a", Reason.MALFORMED),  # QoS of no will
        (b"\0\4MQTT\4\x42\0\0\0\1a\0\1x", Reason.MALFORMED),  # password without user name, in 3.1.1
        (b"\0\4MQTT\5\2\0\0\3\x21\0\0\0\1a", Reason.PROTOCOL_ERROR),  # Receive Maximum 0
        (b"\0\4MQTT\5\2\0\0\4\x16\0\1x\0\1a", Reason.PROTOCOL_ERROR),  # data without a method
    ],
)
def test_a_connect_that_is_wrong_is_refused_with_its_reason(body: bytes, reason: Reason) -> None:
    with pytest.raises(BrokenPacket) as raised:
        read(b"\x10" + put_varint(len(body)) + body, 0)
    assert raised.value.reason is reason


def test_many_properties_and_filters_are_bounded() -> None:
    user = b"\x26\0\0\0\0" * 1001
    with pytest.raises(BrokenPacket, match="properties"):
        read(publish(b"\0\1a" + put_varint(len(user)) + user), V5)
    filters = b"\0\1" + b"\0\1a\0" * 1001
    with pytest.raises(BrokenPacket, match="filters"):
        read(b"\x82" + put_varint(len(filters)) + filters, V311)


@given(st.text(max_size=60), st.integers(0, 20))
def test_a_text_is_cut_to_what_fits(text: str, most: int) -> None:
    cut = fitting(text, most)
    assert len(cut.encode()) <= most
    assert "\0" not in cut


# -- names ---------------------------------------------------------------------------------------------

WORD = st.text("abcZ09_-", min_size=1, max_size=6)


@given(st.lists(WORD, min_size=1, max_size=5))
def test_a_name_is_the_same_there_and_back(words: list[str]) -> None:
    topic = topic_of("/".join(words))
    assert topic == ".".join(words)
    assert name_of(topic) == "/".join(words)
    assert filter_of("/".join(words)) == (topic, None)


@pytest.mark.parametrize(
    "name", ["", "/", "a//b", "/a", "a/", "a.b", "a b", "ü", "a/$b", "a\n", "x" * 201, "+", "#", "a/$SYS"]
)
def test_names_that_no_topic_can_have_are_refused(name: str) -> None:
    with pytest.raises(BadName):
        topic_of(name)


@pytest.mark.parametrize(
    ("filter", "pattern", "group"),
    [
        ("#", "#", None),
        ("+", "*", None),
        ("a/+/c/#", "a.*.c.#", None),
        ("$share/g/a/+", "a.*", "g"),
        ("$share/g.h/a", "a", "g.h"),
        ("$SYS/#", "$SYS.#", None),
    ],
)
def test_filters_are_patterns(filter: str, pattern: str, group: str | None) -> None:
    assert filter_of(filter) == (pattern, group)


@pytest.mark.parametrize(
    "filter",
    ["", "a/#/b", "a+", "a/b#", "a.b", "$share", "$share/g", "$share/g/", "$share//a", "$share/+/a", "a//b"],
)
def test_filters_that_fit_nothing_are_refused(filter: str) -> None:
    with pytest.raises(BadName):
        filter_of(filter)


def test_a_packet_is_what_the_specification_shows() -> None:
    """The example of 3.3.1 in the specification of 3.1.1: topic a/b, packet identifier 10."""
    packet = PublishPacket(topic="a/b", qos=1, packet_id=10)
    assert encode(packet, V311) == b"\x32\x07\x00\x03a/b" + struct.pack(">H", 10)

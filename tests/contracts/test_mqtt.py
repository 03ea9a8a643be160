"""MQTT 3.1.1 and 5, with a client that others have written."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes

from landbridge.broker.limits import Limits
from landbridge.core.mqtt.session import SESSIONS, group_of
from landbridge.gateways.mqtt import connection
from landbridge.node.assembly import dial_to
from landbridge.node.mqtt import mqtt_of
from landbridge.protocol.mqtt.encoding import encode
from landbridge.protocol.mqtt.packets import (
    AckPacket,
    AskedFilter,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PublishPacket,
    SubscribePacket,
    Will,
)
from landbridge.protocol.mqtt.properties import PacketKind
from landbridge.protocol.mqtt.reasons import Reason
from landbridge.protocol.mqtt.stream import PacketStream
from landbridge.testing import FakeClock, attach, run_terminal
from tests.contracts.mqtt import V5, V311, Site, mqtt_site, properties
from tests.waiting import LIMIT, eventually, turns


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Site]:
    async with mqtt_site() as found:
        yield found


def given_with(message: Any) -> Any:
    """The properties of a message, which are attributes that paho makes as it reads them."""
    return message.properties


@pytest.fixture(params=[V311, V5], ids=["3.1.1", "5"])
def version(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_a_message_goes_from_a_client_to_another_and_to_the_bus(site: Site, version: Any) -> None:
    async with site.client("a", version) as a, site.client("b", version) as b:
        assert await b.subscribe("plant/+/temperature", 1) == 1
        assert await b.subscribe("plant/#", 0) == 0
        await a.publish("plant/7/temperature", b"21.5")
        got = await b.take(2)
        assert sorted((m.topic, m.payload, m.qos, m.retain) for m in got) == [
            ("plant/7/temperature", b"21.5", 0, False),
            ("plant/7/temperature", b"21.5", 1, False),
        ]
        async with site.bus.subscribe("plant.7.temperature", group="g") as reading:
            message = await reading.poll(5)
            assert message is not None
            assert message.payload == b"21.5"
            assert message.headers == {"mqtt-client": "a"}
        await site.bus.publish("plant.8.temperature", b"from the bus")
        assert await b.payloads(2) == [b"from the bus"] * 2


async def test_a_session_that_outlives_its_connection_loses_nothing(site: Site, version: Any) -> None:
    kept = {"clean": False, "expiry": 3600 if version == V5 else None}
    async with site.client("dev", version, **kept) as dev:
        assert not dev.session_present
        assert await dev.subscribe("orders/#", 1) == 1
        await site.bus.publish("orders.eu", b"0")
        assert await dev.payloads(1) == [b"0"]
    for number in range(1, 4):
        await site.bus.publish("orders.eu", b"%d" % number)
    await site.bus.publish("orders.us", b"new topic")
    async with site.client("dev", version, **kept) as dev:
        assert dev.session_present
        assert sorted(await dev.payloads(4)) == [b"1", b"2", b"3", b"new topic"]
    async with site.client("dev", version, clean=True) as dev:
        assert not dev.session_present
        await eventually(lambda: not len(site.gateway.sessions))
        groups = await site.bus.groups.list()
        assert [group.name for group in groups if group.name.startswith("mqtt.")] == []


# -- connecting ----------------------------------------------------------------------------------------


async def test_who_is_let_in_and_who_is_not(site: Site, version: Any) -> None:
    async with site.client("a", version, username="shop") as a:
        assert a.connack is not None
    wrong = {
        "another service's name": site.client("b", version, username="other"),
        "no token": site.client("c", version, token="nonsense"),
    }
    for why, client in wrong.items():
        await client.connect()
        assert client.connack is not None, why
        assert client.connack[1].value == 0x86, why  # paho says of 3.1.1 what 5 says
        await client.close()
    await eventually(lambda: not site.gateway.connections)


async def test_a_services_credential_is_a_password(site: Site) -> None:
    made = await site.bus.services.register("meter", scopes=["publish:meters.#"])
    async with site.client("m", token=made.credential, username="meter") as meter:
        assert (await meter.publish("meters/1", b"x")).value == 0
        assert (await meter.publish("other/1", b"x")).value == 0x87
    # Its connections end with its registration.
    async with site.client("m", token=made.credential) as meter:
        await site.bus.services.remove("meter")
        await eventually(lambda: meter.ended is not None)
        assert meter.ended[0].value == 0x87


async def test_the_limits_are_told_to_version_5(site: Site) -> None:
    async with site.client("", keep_alive=0, expiry=10**9) as client:
        assert client.connack is not None
        given = client.connack[2]
        assert (given.MaximumQoS, given.ReceiveMaximum, given.ServerKeepAlive) == (1, 256, 3600)
        assert given.SessionExpiryInterval == 7 * 86400
        assert given.AssignedClientIdentifier.startswith("lb-")
        assert given.MaximumPacketSize > site.terminal.broker.limits.max_payload


async def test_another_connection_takes_a_client_id_over(site: Site, version: Any) -> None:
    kept = {"clean": False, "expiry": 60 if version == V5 else None}
    async with site.client("same", version, **kept) as first:
        assert await first.subscribe("t", 1) == 1
        async with site.client("same", version, **kept) as second:
            await eventually(lambda: first.ended is not None)
            if version == V5:
                assert first.ended[0].value == 0x8E
            assert second.session_present
            await site.bus.publish("t", b"x")
            assert await second.payloads(1) == [b"x"]
            # The client id of another service is another one.
            other = site.token("subscribe:#", subject="market")
            async with site.client("same", version, token=other, **kept) as third:
                assert not third.session_present
            assert second.ended is None


async def test_a_service_has_a_bounded_number_of_connections_and_sessions(crashes: list[Any]) -> None:
    async with mqtt_site(limits=Limits(max_mqtt_connections=2, max_mqtt_sessions=1)) as site:
        async with site.client("a", expiry=60), site.client("b"):
            third = await site.client("c").connect()
            assert third.connack is not None
            assert third.connack[1].value == 0x97
            await third.close()
            async with site.client("c", token=site.token("publish:#", subject="market"), expiry=60):
                pass
        kept = await site.client("b", expiry=60).connect()
        assert kept.connack is not None
        assert kept.connack[1].value == 0x97
        await kept.close()
        async with site.client("b"):
            pass


# -- publishing ----------------------------------------------------------------------------------------


async def test_what_is_refused_says_why(site: Site) -> None:
    token = site.token("publish:a.#")
    async with site.client("a", token=token) as client:
        answers = {
            topic: (await client.publish(topic, b"x")).value for topic in ("a/1", "b/1", "a/x y", "a/1.5")
        }
        assert answers == {"a/1": 0, "b/1": 0x87, "a/x y": 0x90, "a/1.5": 0x90}
    old = await site.client("a", V311, token=token).connect()
    old.paho.publish("b/1", b"x", 1)
    await eventually(lambda: old.ended is not None)  # 3.1.1 has no other way to say that it isn't stored
    await old.close()


async def test_qos_2_is_not_served(site: Site, version: Any) -> None:
    client = await site.client("a", version).connect()
    assert await client.subscribe("t", 2) == 1
    client.paho.publish("t", b"x", 2)
    await eventually(lambda: client.ended is not None)
    if version == V5:
        assert client.ended[0].value == 0x9B
    await client.close()
    assert "t" not in site.terminal.broker.topics or site.terminal.broker.topics["t"].log.end == 0


async def test_acks_come_in_the_order_of_the_publishes_and_after_the_commit(site: Site) -> None:
    async with site.client("a") as client:
        sent = [client.paho.publish(f"t/{number % 3}", b"%d" % number, 1).mid for number in range(600)]
        await eventually(lambda: len(client.acked) == 600)
        assert list(client.acked) == sent
    topics = {row.name: row.messages for row in await site.bus.topics.list()}
    assert {name: topics[name] for name in ("t.0", "t.1", "t.2")} == dict.fromkeys(("t.0", "t.1", "t.2"), 200)


async def test_messages_of_qos_0_that_a_client_sends_before_it_goes_are_stored(site: Site) -> None:
    async with site.client("a") as client:
        for number in range(500):
            client.paho.publish("t", b"%d" % number, 0)
        await eventually(lambda: not client.paho.want_write())
    await eventually(lambda: not site.gateway.connections)
    assert (await site.bus.topics.show("t")).messages == 500


async def test_properties_are_headers_both_ways(site: Site) -> None:
    given = properties(
        PacketTypes.PUBLISH,
        PayloadFormatIndicator=1,
        ContentType="application/json",
        ResponseTopic="answers/1",
        CorrelationData=b"\0\1",
        MessageExpiryInterval=1000,
        UserProperty=[("colour", "red"), ("landbridge-key", "k7"), ("mqtt-client", "forged")],
    )
    async with site.client("a") as a, site.client("b") as b:
        assert await b.subscribe("t", 1) == 1
        await a.publish("t", b"{}", properties=given)
        [got] = await b.take(1)
        theirs: Any = got.properties
        assert theirs is not None
        assert (theirs.PayloadFormatIndicator, theirs.ContentType) == (1, "application/json")
        assert (theirs.ResponseTopic, theirs.CorrelationData) == ("answers/1", b"\0\1")
        assert 990 <= theirs.MessageExpiryInterval <= 1000
        user = dict(theirs.UserProperty)
        assert (user["colour"], user["landbridge-key"], user["mqtt-client"]) == ("red", "k7", "a")
        async with site.bus.subscribe("t", group="g") as reading:
            message = await reading.poll(5)
            assert message is not None
            assert message.id == user["landbridge-id"]
            assert (message.key, message.headers["content-type"]) == ("k7", "application/json")
            assert message.headers["mqtt-correlation-data"] == b"\0\1"
        assert (await a.publish("t", b"\xff", properties=given)).value == 0x99


async def test_an_alias_stands_for_a_topic_in_both_directions(site: Site) -> None:
    async with site.client("a") as a, site.client("b", aliases=2) as b:
        assert await b.subscribe("#", 1) == 1
        alias = properties(PacketTypes.PUBLISH, TopicAlias=7)
        await a.publish("x/y", b"1", properties=alias)
        await a.publish("", b"2", properties=alias)
        got = await b.take(2)
        # paho shows what is on the wire: the alias takes the place of the name.
        assert [(m.topic, m.payload) for m in got] == [("x/y", b"1"), ("", b"2")]
        assert {given_with(m).TopicAlias for m in got} == {1}
        bad = properties(PacketTypes.PUBLISH, TopicAlias=60_000)
        a.paho.publish("x", b"", 1, properties=bad)
        await eventually(lambda: a.ended is not None)
        assert a.ended[0].value == 0x94


# -- subscribing ---------------------------------------------------------------------------------------


async def test_a_wildcard_covers_what_the_token_may_read_and_what_comes_later(
    site: Site, version: Any
) -> None:
    token = site.token("subscribe:a.#")
    async with site.client("r", version, token=token) as reader:
        assert await reader.subscribe("#", 1) == 1
        refused = await reader.subscribe("b/1", 1)
        assert refused == (0x87 if version == V5 else 0x80)
        await site.bus.publish("a.new", b"1")
        await site.bus.publish("b.1", b"2")
        await site.bus.publish("a.new.er", b"3")
        assert sorted(await reader.payloads(2)) == [b"1", b"3"]
        await reader.unsubscribe("#")
        await site.bus.publish("a.new", b"4")
        assert await reader.subscribe("a/+", 0) == 0
        await site.bus.publish("a.new", b"5")
        assert await reader.payloads(1) == [b"5"]


async def test_a_shared_filter_is_a_group_that_others_share(site: Site, version: Any) -> None:
    async with site.client("a", version) as a, site.client("b", version) as b:
        assert await a.subscribe("$share/workers/jobs", 1) == 1
        assert await b.subscribe("$share/workers/jobs", 1) == 1
        async with site.bus.subscribe("jobs", group="workers", prefetch=1) as reading:
            for number in range(300):
                await site.bus.publish("jobs", b"%d" % number)
            own: list[bytes] = []
            while len(own) + len(a.messages) + len(b.messages) < 300:
                message = await reading.poll(0.01)
                if message is not None:
                    own.append(message.payload)
                    await message.ack()
            everything = [*own, *(m.payload for m in a.messages), *(m.payload for m in b.messages)]
            assert sorted(everything) == sorted(b"%d" % number for number in range(300))
        await eventually(lambda: site.terminal.broker.topics["jobs"].groups["workers"].delivery.pending == 0)
    assert "workers" in site.terminal.broker.topics["jobs"].groups  # as any group, it stays


async def test_a_message_that_was_not_acked_comes_again_with_its_identifier_and_dup(site: Site) -> None:
    kept = {"clean": False, "expiry": 60, "manual": True}
    async with site.client("d", **kept) as d:
        assert await d.subscribe("t", 1) == 1
        for number in range(3):
            await site.bus.publish("t", b"%d" % number)
        first = await d.take(3)
        assert [m.dup for m in first] == [False] * 3
        d.paho.ack(first[0].mid, 1)
        d.paho.ack(first[2].mid, 1)
        await eventually(lambda: site.terminal.broker.topics["t"].groups)
        await eventually(lambda: len(next(iter(site.gateway.clients.values())).window) == 1)
    await eventually(lambda: not site.gateway.connections)
    await site.bus.publish("t", b"3")
    async with site.client("d", **kept) as d:
        again = await d.take(2)
        assert [(m.payload, m.dup) for m in again] == [(b"1", True), (b"3", False)]
        assert again[0].mid == first[1].mid


async def test_a_client_that_acks_late_gets_nothing_twice(site: Site) -> None:
    token = site.token("subscribe:#", "publish:#", "operate")
    await site.bus.topics.create("t")
    await site.bus.groups.create("t", "g", ack_within=0.5)
    async with site.client("d", token=token, manual=True) as d:
        assert await d.subscribe("$share/g/t", 1) == 1
        for number in range(5):
            await site.bus.publish("t", b"%d" % number)
        got = await d.take(5)
        # Several times as long as the group waits.
        begun = asyncio.get_running_loop().time()
        await eventually(lambda: asyncio.get_running_loop().time() > begun + 1.6)
        assert not d.messages
        for message in got:
            d.paho.ack(message.mid, 1)
        group = site.terminal.broker.topics["t"].groups["g"]
        await eventually(lambda: group.delivery.cursor.floor == 5)


async def test_the_window_is_what_the_client_takes(site: Site) -> None:
    async with site.client("d", receive_maximum=2, manual=True) as d:
        assert await d.subscribe("t", 1) == 1
        for number in range(5):
            await site.bus.publish("t", b"%d" % number)
        got = await d.take(2)
        window = next(iter(site.gateway.clients.values())).window
        assert (len(window), window.is_full) == (2, True)
        await turns()
        assert not d.messages
        for message in got:
            d.paho.ack(message.mid, 1)
        assert await d.payloads(2) == [b"2", b"3"]


async def test_a_refusal_by_the_client_buries(site: Site) -> None:
    """A PUBACK with a failure: the message goes to the dead letters, and not to the client again."""
    async with site.client("d", expiry=60, clean=False, manual=True) as d:
        assert await d.subscribe("t", 1) == 1
        await site.bus.publish("t", b"bad")
        [got] = await d.take(1)
        packet = encode(AckPacket(kind=PacketKind.PUBACK, packet_id=got.mid, reason=0x99), 5)
        sock = d.paho.socket()
        assert sock is not None
        sock.send(packet)
        await eventually(lambda: "t.dead" in site.terminal.broker.topics)
        async with site.bus.subscribe("t.dead", group="g") as dead:
            message = await dead.poll(5)
            assert message is not None
            assert message.payload == b"bad"


async def test_no_local_and_identifiers_of_subscriptions(site: Site) -> None:
    async with site.client("a") as a, site.client("b") as b:
        assert await a.subscribe("t", 1, noLocal=True) == 1
        mine = properties(PacketTypes.SUBSCRIBE, SubscriptionIdentifier=77)
        assert await b.subscribe("t", 1, properties=mine) == 1
        await a.publish("t", b"own")
        await b.publish("t", b"other")
        assert await a.payloads(1) == [b"other"]
        got = await b.take(2)
        assert {tuple(given_with(m).SubscriptionIdentifier) for m in got} == {(77,)}


async def test_a_packet_larger_than_the_client_takes_is_not_sent(site: Site) -> None:
    async with site.client("d", expiry=60, clean=False, largest=300) as d:
        assert await d.subscribe("t", 1) == 1
        await site.bus.publish("t", b"x" * 400)
        await site.bus.publish("t", b"small")
        assert await d.payloads(1) == [b"small"]
        group = next(iter(site.terminal.broker.topics["t"].groups.values()))
        await eventually(lambda: group.delivery.cursor.floor == 2)
        assert next(iter(site.gateway.clients.values())).dropped == 1


async def test_a_session_ends_when_its_time_is_over(crashes: list[Any], clock: FakeClock) -> None:
    async with mqtt_site(clock=clock) as site:
        async with site.client("d", expiry=60, clean=False) as d:
            assert await d.subscribe("a/#", 1) == 1
            await site.bus.publish("a.1", b"x")
            await d.take(1)
        await eventually(lambda: not site.gateway.connections)
        await site.gateway.sessions.end_those_over()
        assert len(site.gateway.sessions) == 1
        clock.advance(61.0)
        await site.gateway.sessions.end_those_over()
        assert len(site.gateway.sessions) == 0
        assert site.terminal.broker.topics["a.1"].groups == {}
        async with site.client("d", expiry=60, clean=False, token=site.token("subscribe:#", life=1e6)) as d:
            assert not d.session_present


async def test_a_change_of_the_expiry_at_the_end_is_obeyed(site: Site) -> None:
    d = await site.client("d", expiry=60, clean=False).connect()
    assert await d.subscribe("t", 1) == 1
    d.paho.disconnect(properties=properties(PacketTypes.DISCONNECT, SessionExpiryInterval=0))
    await eventually(lambda: not site.gateway.connections)
    await d.close()
    assert len(site.gateway.sessions) == 0
    assert site.terminal.broker.topics["t"].groups == {}


# -- retained messages ---------------------------------------------------------------------------------


async def test_the_last_retained_message_goes_to_who_subscribes_later(site: Site, version: Any) -> None:
    async with site.client("a", version) as a:
        await a.publish("s/1", b"old", retain=True)
        await a.publish("s/1", b"new", retain=True)
        await a.publish("s/1", b"not retained")
        await a.publish("s/2", b"two", retain=True)
        await a.publish("s/3", b"three", retain=True)
        await a.publish("s/3", b"", retain=True)
        assert len(site.gateway.retained) == 2
    async with site.client("b", version) as b:
        assert await b.subscribe("s/#", 1) == 1
        assert [(m.topic, m.payload, m.retain) for m in await b.take(2)] == [
            ("s/1", b"new", True),
            ("s/2", b"two", True),
        ]
        await site.bus.publish("s.1", b"live")
        [live] = await b.take(1)
        assert (live.payload, live.retain) == (b"live", False)
    async with site.client("c", version, token=site.token("subscribe:s.2")) as c:
        assert await c.subscribe("#", 0) == 0
        assert await c.payloads(1) == [b"two"]  # and nothing that its token may not read


async def test_how_retained_messages_are_asked_for(site: Site) -> None:
    async with site.client("a") as a:
        kept = properties(PacketTypes.PUBLISH, ContentType="text/plain", UserProperty=[("k", "v")])
        await a.publish("s", b"x", retain=True, properties=kept)
        assert await a.subscribe("s", 1, retainHandling=2) == 1
        assert await a.subscribe("s", 1, retainHandling=1) == 1  # it is not new
        assert await a.subscribe("s", 1, retainAsPublished=True) == 1
        [got] = await a.take(1)
        assert (got.retain, given_with(got).ContentType) == (True, "text/plain")
        assert ("k", "v") in given_with(got).UserProperty
        await a.publish("s", b"y", retain=True)
        [live] = await a.take(1)
        assert live.retain  # as it was published
        expiring = properties(PacketTypes.PUBLISH, MessageExpiryInterval=1)
        await a.publish("e", b"z", retain=True, properties=expiring)


async def test_retained_messages_are_bounded(crashes: list[Any]) -> None:
    async with mqtt_site(limits=Limits(max_retained=2)) as site, site.client("a") as a:
        codes = [(await a.publish(f"s/{number}", b"x", retain=True)).value for number in range(3)]
        assert codes == [0, 0, 0x97]
        assert (await a.publish("s/1", b"y", retain=True)).value == 0
        assert (await a.publish("s/2", b"x" * 200_000, retain=True)).value == 0x97
        await site.bus.topics.delete("s.0")
        await site.gateway.retained.drop_gone()
        assert len(site.gateway.retained) == 1
        assert (await a.publish("s/2", b"x", retain=True)).value == 0


async def test_retained_messages_that_come_at_a_time_are_bounded(crashes: list[Any]) -> None:
    async with mqtt_site(limits=Limits(max_retained=5)) as site, site.client("a") as a:
        many = (a.publish(f"s/{number}", b"x", retain=True) for number in range(50))
        codes = [code.value for code in await asyncio.gather(*many)]
        assert sorted(codes) == [0] * 5 + [0x97] * 45
        assert len(site.gateway.retained) == 5


# -- wills ---------------------------------------------------------------------------------------------


async def test_a_will_is_published_for_who_goes_without_a_word(site: Site, version: Any) -> None:
    async with site.client("w", version) as watcher:
        assert await watcher.subscribe("gone/#", 1) == 1
        good = site.client("good", version)
        good.paho.will_set("gone/good", b"never", 1)
        async with good:
            pass
        bad = site.client("bad", version)
        bad.paho.will_set("gone/bad", b"dead", 1, retain=True)
        await bad.connect()
        await bad.kill()
        [will] = await watcher.take(1)
        assert (will.topic, will.payload) == ("gone/bad", b"dead")
        await eventually(lambda: len(site.gateway.retained) == 1)
        assert (await site.bus.topics.show("gone.bad")).messages == 1  # stored like any message
    assert "gone.good" not in site.terminal.broker.topics


async def test_a_will_waits_for_its_delay_and_not_longer_than_the_session(site: Site) -> None:
    async def gone(client_id: str, delay: int, expiry: int, **options: Any) -> None:
        client = site.client(client_id, expiry=expiry, **options)
        late = properties(PacketTypes.WILLMESSAGE, WillDelayInterval=delay)
        client.paho.will_set(f"gone/{client_id}", b"dead", 1, properties=late)
        await client.connect()
        await client.kill()
        await eventually(lambda: len(site.gateway.connections) == 1)

    async with site.client("w") as watcher:
        assert await watcher.subscribe("gone/#", 1) == 1
        await gone("a", 1000, 0)
        assert await watcher.payloads(1) == [b"dead"]  # its session has ended
        await gone("b", 1000, 1000)
        await gone("c", 1000, 1000, clean=False)
        async with site.client("c", clean=False, expiry=1000):
            pass  # it is back: nobody needs its will
        async with site.client("b", clean=True):
            [will] = await watcher.take(1)  # the session that it belongs to has ended
        assert will.topic == "gone/b"
        await turns()
        assert not watcher.messages


async def test_a_client_that_is_silent_longer_than_it_said_is_gone(site: Site) -> None:
    async with site.client("w") as watcher:
        assert await watcher.subscribe("gone", 1) == 1
        _reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        will = Will(topic="gone", payload=b"silent", qos=1)
        connect = ConnectPacket(
            version=5, client_id="s", keep_alive=1, password=site.token("publish:#").encode(), will=will
        )
        writer.write(encode(connect, 5))
        assert await watcher.payloads(1) == [b"silent"]
        writer.close()


# -- bounds --------------------------------------------------------------------------------------------


def consumers(site: Site, topic: str) -> list[Any]:
    groups = site.terminal.broker.topics[topic].groups.values()
    return [consumer for group in groups for consumer in group.consumers.values()]


async def test_a_client_that_reads_nothing_holds_no_memory_and_loses_only_qos_0(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_QOS_0", 0.05)
    _reader, writer = await asyncio.open_connection("127.0.0.1", site.port, limit=1024)
    transport = writer.transport
    connect = ConnectPacket(version=5, client_id="s", password=site.token("subscribe:#").encode())
    filters = [AskedFilter(filter="t", qos=0), AskedFilter(filter="u", qos=1)]
    writer.write(encode(connect, 5) + encode(SubscribePacket(packet_id=1, filters=filters), 5))
    await eventually(lambda: site.terminal.broker.topics.keys() >= {"t", "u"})
    await eventually(lambda: len(site.terminal.broker.topics["u"].groups) == 1)
    transport.pause_reading()  # type: ignore[attr-defined]
    client = next(iter(site.gateway.clients.values()))
    payload = bytes(100_000)
    for topic in ("t", "u"):
        async with site.bus.publisher(topic) as publisher:
            for _ in range(200):
                await publisher.send(payload)
    await eventually(lambda: client.dropped > 0)
    # What waits for the client is in the log, not here.
    assert client._transport.get_write_buffer_size() < 2_000_000
    assert len(client.window) <= 256
    held = [consumer for name in ("t", "u") for consumer in consumers(site, name)]
    assert len(held) == 2
    assert all(consumer.bytes < 1_000_000 for consumer in held)
    assert (await site.bus.publish("t", b"others go on")).offset == 200
    transport.abort()
    await eventually(lambda: not site.gateway.connections)


async def test_strangers_and_nonsense_are_sent_away(site: Site) -> None:
    async def send(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(data)
        answer = b""
        try:
            answer = await asyncio.wait_for(reader.read(), 30)
        except ConnectionError:
            pass  # cut
        writer.close()
        return answer

    for data in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x30\x05\x00\x01a12",  # a PUBLISH before the CONNECT
        b"\x10\xff\xff\xff\x7f",  # a CONNECT of 256 MB
        b"\x00\x00",
    ):
        assert await send(data) == b""
    # A CONNECT of another version is told which ones there are (3.1.1, 3.1.2.2).
    assert await send(b"\x10\x0f\0\6MQIsdp\3\2\0\x3c\0\1a") == b"\x20\x02\x00\x01"
    await eventually(lambda: not site.gateway.connections)
    assert len(site.gateway.strangers) == 0


async def test_the_status_log_and_the_metrics_tell_of_it(site: Site) -> None:
    async with site.bus.subscribe("$status", group="g") as status:
        async with site.client("a", token=site.token("publish:a")) as client:
            await client.publish("a", b"x")
            await client.publish("b", b"x")
        causes = set()
        while "mqtt_publish_refused" not in causes:
            message = await status.poll(30)
            assert message is not None
            causes.add(message.json().get("cause"))
    await eventually(lambda: not site.gateway.connections)
    text = await site.bus.terminal.metrics()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("landbridge_mqtt_"))
    assert float(figures["landbridge_mqtt_received_total"]) == 2
    assert float(figures["landbridge_mqtt_refused_total"]) == 1
    assert float(figures["landbridge_mqtt_connections_total"]) == 1
    assert float(figures["landbridge_mqtt_clients"]) == 0


async def test_a_start_deletes_the_groups_that_no_session_names_and_no_others(crashes: list[Any]) -> None:
    async with run_terminal() as terminal, attach(terminal) as bus:
        left = group_of("shop", "dev", "t")
        await bus.topics.create("t")
        for name in (left, "mqtt.bridge"):
            await bus.groups.create("t", name)
        own, clients = dial_to(terminal, is_part=True), dial_to(terminal)
        async with mqtt_of(terminal, own, clients, "127.0.0.1", 0, None):
            assert [row.name for row in await bus.groups.list()] == ["mqtt.bridge"]


async def test_another_qos_for_the_same_filter_takes_the_place_of_the_first(site: Site, version: Any) -> None:
    kept = {"clean": False, "expiry": 60 if version == V5 else None}
    async with site.client("d", version, **kept) as d:
        for qos in (0, 1, 0, 1, 1):
            assert await d.subscribe("t", qos) == qos
            await site.bus.publish("t", b"%d" % qos)
            [got] = await d.take(1)
            assert (got.payload, got.qos) == (b"%d" % qos, qos)
        assert len(await site.bus.groups.list()) == 1
        assert await d.subscribe(f"$share/{group_of('shop', 'd', 't')}/t", 1) >= 0x80
    async with site.client("d", version, **kept) as d:
        await site.bus.publish("t", b"x")
        assert await d.payloads(1) == [b"x"]


async def test_a_subscription_whose_topic_is_deleted_ends_the_connection(site: Site) -> None:
    async with site.client("d") as d:
        assert await d.subscribe("t", 1) == 1
        await site.bus.topics.delete("t", force=True)
        await eventually(lambda: d.ended is not None)


async def test_a_client_that_publishes_and_goes_at_once_is_not_acked_for_what_is_not_stored(
    site: Site,
) -> None:
    """Connections that are cut in the middle of everything leave nothing behind."""
    token = site.token("publish:#", "subscribe:#").encode()
    connect = encode(
        ConnectPacket(version=5, client_id="x", password=token, properties={"session_expiry": 9}), 5
    )
    subscribe = encode(SubscribePacket(packet_id=1, filters=[AskedFilter(filter="a/#", qos=1)]), 5)
    publish = encode(PublishPacket(topic="a/1", payload=b"x", qos=1, packet_id=2), 5)
    everything = connect + subscribe + publish * 3
    for cut in range(0, len(everything), 7):
        _reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(everything[:cut])
        await writer.drain()
        if cut % 2:
            await turns(cut % 5)
        writer.transport.abort()
    await eventually(lambda: not site.gateway.connections)
    assert not site.gateway.clients
    groups = {row.name for row in await site.bus.groups.list()}
    sessions = await site.bus.documents.list(SESSIONS)
    assert groups <= {group_of("shop", "x", "a/#")}
    filters = [each["filter"] for row in sessions for each in row.value.get("filters", [])]
    assert bool(groups) == (filters == ["a/#"])


async def test_a_subscription_that_breaks_the_protocol_leaves_no_group_without_a_session(site: Site) -> None:
    token = site.token("subscribe:#").encode()
    connect = ConnectPacket(version=5, client_id="x", password=token, properties={"session_expiry": 9})
    filters = [AskedFilter(filter="t", qos=1), AskedFilter(filter="$share/g/t", qos=1, no_local=True)]
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(encode(connect, 5) + encode(SubscribePacket(packet_id=1, filters=filters), 5))
    async with asyncio.timeout(LIMIT):
        answer = await reader.read()
    stream = PacketStream(1 << 20, 5)
    stream.feed(answer)
    connack, disconnect = stream.next(), stream.next()
    assert isinstance(connack, ConnackPacket)
    assert isinstance(disconnect, DisconnectPacket)
    assert disconnect.reason == Reason.PROTOCOL_ERROR
    writer.close()
    await eventually(lambda: not site.gateway.connections)
    [row] = await site.bus.documents.list(SESSIONS)
    assert [each["filter"] for each in row.value["filters"]] == ["t"]
    assert [group.name for group in await site.bus.groups.list()] == [group_of("shop", "x", "t")]


async def test_what_comes_again_comes_in_order(site: Site, version: Any) -> None:
    kept = {"clean": False, "expiry": 60 if version == V5 else None, "manual": True}
    async with site.client("d", version, **kept) as d:
        assert await d.subscribe("t", 1) == 1
        for number in range(30):
            await site.bus.publish("t", b"%d" % number)
        got = await d.take(30)
        for message in got[::3]:
            d.paho.ack(message.mid, 1)
        await eventually(lambda: len(next(iter(site.gateway.clients.values())).window) == 20)
    await eventually(lambda: not site.gateway.connections)
    async with site.client("d", version, **kept) as d:
        again = await d.take(20)
        assert [m.payload for m in again] == [m.payload for index, m in enumerate(got) if index % 3]
        assert all(m.dup for m in again)

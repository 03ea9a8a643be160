"""Gateways of several nodes of one terminal: what a client has begun at one node goes on at another one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import aiosmtplib
import pytest

from landbridge.gateways import outlets as sending
from landbridge.node.assembly import dial_to
from landbridge.node.listening import Endpoint
from landbridge.node.mail import mails_of, taking_mail
from landbridge.node.mqtt import mqtt_of
from landbridge.node.outlets import outlet_buses
from landbridge.node.plan import SmtpPlan
from landbridge.testing import attach
from landbridge.testing.cluster import Nodes, run_nodes
from tests.contracts.mqtt import Client, Site
from tests.contracts.test_mail_out import DOMAIN, report
from tests.contracts.test_nodes import topic_of
from tests.mail_receiver import MailReceiver
from tests.receivers import LOOPBACK
from tests.waiting import eventually


@pytest.fixture
async def nodes(crashes: list[Any]) -> AsyncIterator[Nodes]:
    async with run_nodes(("a", "b", "c")) as running:
        yield running


@pytest.fixture
async def bus(nodes: Nodes) -> AsyncIterator[Any]:
    async with attach(nodes["c"], patience=20) as connected:
        yield connected


async def mqtt_sites(nodes: Nodes, bus: Any, stack: AsyncExitStack) -> dict[str, Site]:
    sites = {}
    for name, terminal in nodes.terminals.items():
        whole = dial_to(terminal, is_part=True, is_whole=True)
        gateway = mqtt_of(terminal, whole, dial_to(terminal), "127.0.0.1", 0, None)
        sites[name] = Site(terminal, *await stack.enter_async_context(gateway), bus)
    return sites


def client(site: Site, **options: Any) -> Client:
    return site.client("sensor", clean=False, expiry=3600, **options)


async def test_an_mqtt_session_goes_on_at_another_node(nodes: Nodes, bus: Any) -> None:
    topics = {node: topic_of(nodes, node) for node in "abc"}
    for topic in topics.values():
        await bus.topics.create(topic)
    async with AsyncExitStack() as stack:
        sites = await mqtt_sites(nodes, bus, stack)
        async with client(sites["b"]) as first:
            for topic in topics.values():
                await first.subscribe(topic, qos=1)
        for topic in topics.values():
            await bus.publish(topic, b"while away")
        async with client(sites["c"]) as again:
            assert again.session_present
            found = await again.take(3)
            assert sorted(message.topic for message in found) == sorted(topics.values())


async def test_an_mqtt_client_that_comes_to_another_node_leaves_the_first(nodes: Nodes, bus: Any) -> None:
    topic = topic_of(nodes, "a")
    await bus.topics.create(topic)
    async with AsyncExitStack() as stack:
        sites = await mqtt_sites(nodes, bus, stack)
        async with client(sites["b"]) as first:
            await first.subscribe(topic, qos=1)
            async with client(sites["c"]) as second:
                assert second.session_present
                await eventually(lambda: not sites["b"].gateway.clients)
                # What the first one has left behind is not what counts.
                await bus.publish(topic, b"for the second")
                [message] = await second.take(1)
                assert message.payload == b"for the second"
                assert len(sites["c"].gateway.clients) == 1


async def test_retained_messages_are_of_all_nodes(nodes: Nodes, bus: Any) -> None:
    topics = {node: topic_of(nodes, node) for node in "abc"}
    for topic in topics.values():
        await bus.topics.create(topic)
    async with AsyncExitStack() as stack:
        sites = await mqtt_sites(nodes, bus, stack)
        async with sites["b"].client("writer") as writer:
            for topic in topics.values():
                await writer.publish(topic, b"kept", qos=1, retain=True)
        await eventually(lambda: len(sites["c"].gateway.retained) == 3)
        async with sites["c"].client("reader") as reader:
            for topic in topics.values():
                await reader.subscribe(topic, qos=1)
            found = await reader.take(3)
        assert {(message.topic, message.retain) for message in found} == {
            (topic, True) for topic in topics.values()
        }
        # A topic that is at no node for a moment is not one that was deleted.
        unit = nodes["a"].broker.units.unit_of(topics["a"])
        nodes.owners.pop(unit)
        await nodes["a"].give_up(unit)
        nodes.tell()
        dropping = asyncio.ensure_future(sites["c"].gateway.retained.drop_gone())
        await bus.topics.list()
        assert not dropping.done()
        await nodes.take("b", unit)
        await dropping
        assert (await bus.documents.read("$mqtt-retained", "message", topics["a"])).value


async def test_a_mail_that_comes_back_to_another_node_is_a_dead_letter(
    nodes: Nodes, bus: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(sending, "WRITE_AFTER", 0.01)
    topic = topic_of(nodes, "a")
    await bus.topics.create(topic)
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(MailReceiver())
        ports = {}
        for name, terminal in nodes.terminals.items():
            own = dial_to(terminal, is_part=True)
            senders = await stack.enter_async_context(mails_of(terminal, own, LOOPBACK, DOMAIN))
            plan, here = SmtpPlan(port=0, domain=DOMAIN), Endpoint("127.0.0.1")
            taking = taking_mail(terminal, dial_to(terminal), plan, here, None, senders)
            told = await stack.enter_async_context(taking)
            ports[name] = int(told.split()[0].rpartition(":")[2])
        await bus.mails.create(
            topic, "ops", server=receiver.url, sender=f"bus@{DOMAIN}", to=["ops@example.com"]
        )
        await bus.publish(topic, b"1")
        await eventually(lambda: receiver.envelopes)
        back_to = receiver.envelopes[0][0]
        there = aiosmtplib.SMTP(hostname="127.0.0.1", port=ports["b"], start_tls=False)
        async with there:
            await there.sendmail("", back_to, report("failed"))
            with pytest.raises(aiosmtplib.SMTPRecipientsRefused) as refused:
                await there.sendmail("", back_to.replace("-0-1-", "-0-2-"), report("failed"))
        assert refused.value.recipients[0].code == 550
        async with bus.subscribe(f"{topic}.dead", group="reader", start="earliest") as dead:
            message = await dead.poll(20)
        assert message is not None
        assert message.payload == b"1"


async def test_what_a_provider_calls_back_with_is_stored_where_its_topic_is(nodes: Nodes, bus: Any) -> None:
    topic, terminal = topic_of(nodes, "b"), nodes["a"]
    await bus.topics.create(topic)
    await bus.tokens.create("alice", [f"publish:{topic}"])
    await nodes.settled()
    own, whole = (dial_to(terminal, is_part=True, is_whole=each) for each in (False, True))
    async with outlet_buses(terminal, own, "sms", (), whole=whole) as buses:
        writer = buses.writer_of("alice", topic)
        await writer.open()
        await writer.publish(topic, b"delivered")
        await writer.close()
    assert nodes["b"].broker.table.topic(topic).log.end == 1


async def test_what_is_at_a_node_whose_lease_is_over_waits_for_the_next_owner(nodes: Nodes, bus: Any) -> None:
    topic = topic_of(nodes, "a")
    await bus.topics.create(topic)
    cluster, unit = nodes["a"].cluster, nodes["a"].broker.units.unit_of(topic)
    assert cluster is not None
    async with attach(nodes["a"], patience=20) as client:
        await client.publish(topic, b"before")
        wire = await client.live_wire()
        cluster._may_serve = lambda: False
        publishing = asyncio.ensure_future(client.publish(topic, b"after"))
        reading = asyncio.ensure_future(client.topics.show(topic))
        await bus.topics.list()
        assert not publishing.done()
        assert not reading.done()
        await nodes.usurp(unit, "b")
        await publishing
        await reading
        # It was not sent away, to come back again and again meanwhile.
        assert await client.live_wire() is wire

"""Terminals whose frames are smaller than what is published: shipments are cut, and no link goes down."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from landbridge.broker.limits import Limits
from landbridge.core.log.batch import build
from landbridge.errors import TooLarge
from landbridge.protocol.frames import Publish
from landbridge.testing.fleet import Fleet, FleetMember, until
from tests.waiting import LIMIT

NARROW, WIDE = Limits(max_frame=256 << 10), Limits(max_frame=4 << 20)


def payloads(count: int, size: int) -> list[bytes]:
    return [number.to_bytes(4, "big") * (size // 4) for number in range(count)]


async def publish_batch(bus, topic: str, messages: list[bytes], **columns) -> None:
    """One batch, in a frame that has no byte to spare: the client in Python leaves more room."""
    data = build(messages, id=b"a batch in tests", time=1, **columns)
    async with asyncio.timeout(LIMIT):
        await bus.ask(lambda request: Publish(request, topic, b"producer", 1), data)


async def take(bus, topic: str, group: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with asyncio.timeout(LIMIT):
        async for message in bus.subscribe(topic, group=group):
            found.append(bytes(message.payload))
            await message.ack()
            if len(found) == count:
                return found
    raise AssertionError("the subscription ended")


@asynccontextmanager
async def steady(fleet: Fleet):
    """No link is lost meanwhile."""
    await fleet.linked()
    before = {name: dict(member.network.peers) for name, member in fleet.members.items()}
    yield
    for name, peers in before.items():
        assert fleet.members[name].network.peers == peers


async def crosses(fleet: Fleet, source: FleetMember, target: FleetMember, messages: list[bytes]) -> None:
    """The messages go from one terminal to another in one batch, in order and once, and so do others."""
    await fleet.topic("orders", billing=[target])
    await fleet.topic("others", audit=[target])
    async with steady(fleet), fleet.attach(source) as here, fleet.attach(target) as there:
        await publish_batch(here, "orders", messages)
        await here.publish("others", b"small")
        assert await take(there, "others", "audit", 1) == [b"small"]
        assert await take(there, "orders", "billing", len(messages)) == messages
        await until(lambda: not source.network.forwarder.held())
        assert target.terminal.broker.topics["orders"].log.end == len(messages)


@pytest.mark.parametrize(("count", "size"), [(1000, 256), (30, 8192)])
async def test_a_batch_just_below_max_frame_crosses(count, size):
    messages = payloads(count, size)
    most = len(build(messages, id=bytes(16), time=1)) + 100  # so much is Publish itself
    async with Fleet() as fleet:
        here = await fleet.server("paris", limits=Limits(max_frame=most))
        there = await fleet.server("tokyo", limits=Limits(max_frame=most))
        await crosses(fleet, here, there, messages)


async def test_small_batches_are_gathered_to_no_more_than_a_frame():
    messages = payloads(40, 16384)
    async with Fleet() as fleet:
        limits = Limits(max_frame=96 << 10)
        paris, tokyo = [await fleet.server(name, limits=limits) for name in ("paris", "tokyo")]
        await fleet.topic("orders", billing=[tokyo])
        async with steady(fleet), fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.publish("orders", b"first", until="arrived")
            await asyncio.gather(*(here.publish("orders", message) for message in messages))
            assert await take(there, "orders", "billing", 41) == [b"first", *messages]


async def test_a_batch_larger_than_the_frames_of_its_destination_crosses():
    async with Fleet() as fleet:
        paris = await fleet.server("paris", limits=WIDE)
        tokyo = await fleet.server("tokyo", limits=NARROW)
        await crosses(fleet, paris, tokyo, payloads(200, 16384))


async def test_a_batch_larger_than_the_frames_of_a_terminal_in_transit_crosses():
    async with Fleet() as fleet:
        await fleet.server("hub", limits=NARROW)
        left, right = [await fleet.client(name, limits=WIDE) for name in ("left", "right")]
        await crosses(fleet, left, right, payloads(200, 16384))


async def test_what_waits_is_cut_again_when_its_destination_comes_back_with_smaller_frames():
    messages = payloads(200, 16384)
    async with Fleet() as fleet:
        paris, tokyo = [await fleet.server(name, limits=WIDE) for name in ("paris", "tokyo")]
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here:
            await here.publish("orders", b"first", until="arrived")
            await fleet.stop(tokyo)
            await publish_batch(here, "orders", messages)
            await until(lambda: bool(paris.network.forwarder.lanes["orders", tokyo.id].outbound.shipments))
            tokyo.limits = NARROW
            await fleet.start(tokyo)
            async with steady(fleet), fleet.attach(tokyo) as there:
                assert await take(there, "orders", "billing", 201) == [b"first", *messages]
                await until(lambda: not paris.network.forwarder.held())
                assert tokyo.terminal.broker.topics["orders"].log.end == 201


async def test_a_message_that_no_frame_of_its_group_takes_is_refused_at_the_door():
    async with Fleet() as fleet:
        paris = await fleet.server("paris", limits=WIDE)
        tokyo = await fleet.server("tokyo", limits=NARROW)
        await fleet.topic("orders", billing=[tokyo])
        async with steady(fleet), fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.publish("orders", b"before", until="arrived")
            with pytest.raises(TooLarge, match="tokyo") as refused:
                await here.publish("orders", bytes(300_000))
            assert "max_frame" in refused.value.hint
            async with here.transaction() as together:
                await together.publish("orders", b"after")
            assert await take(there, "orders", "billing", 2) == [b"before", b"after"]
            await here.publish("local", bytes(300_000))  # no other terminal has a group of it


@pytest.mark.parametrize("through", ["", "hub"])
async def test_a_message_that_was_taken_before_it_was_known_to_be_too_large_becomes_a_dead_letter(through):
    async with Fleet() as fleet:
        if through:
            await fleet.server(through, limits=NARROW)
        paris, tokyo = [
            await fleet.add(n, "client" if through else "server", limits=WIDE) for n in ("paris", "tokyo")
        ]
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here:
            await here.publish("orders", b"first", until="arrived")
            await fleet.stop(tokyo)
            await until(lambda: paris.network.routes.best(tokyo.id) is None)
            if not through:
                tokyo.limits = NARROW
            await publish_batch(here, "orders", [b"second", bytes(300_000), b"third"])
            await fleet.start(tokyo)
            async with steady(fleet), fleet.attach(tokyo) as there:
                assert await take(there, "orders", "billing", 3) == [b"first", b"second", b"third"]
            async with asyncio.timeout(LIMIT):
                async for letter in here.subscribe("orders.dead", group="people"):
                    assert len(letter.payload) == 300_000
                    assert letter.headers["lb-cause"] == "too_large"
                    break


async def test_a_batch_whose_messages_are_taken_one_here_one_there_crosses():
    messages = payloads(20_000, 4)
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with steady(fleet), fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.groups.create("orders", "billing", discipline="priority")
            await publish_batch(here, "orders", messages, priorities=[number % 2 for number in range(20_000)])
            assert sorted(await take(there, "orders", "billing", len(messages))) == messages


async def test_link_states_and_directories_are_not_sent_in_frames_that_the_peer_does_not_take():
    async with Fleet() as fleet:
        paris = await fleet.server("paris", limits=WIDE)
        tokyo = await fleet.server("tokyo", limits=NARROW)
        async with steady(fleet), fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            peer, refused = paris.network.peers[tokyo.id], tokyo.network.states.refused
            before = refused.total()
            peer.tell_states([(bytes(100_000), bytes(64))] * 8 + [(bytes(300_000), bytes(64))])
            peer.tell_directory(bytes(2 << 20), bytes(64))
            await until(lambda: refused.total() == before + 8)  # each was looked at, and is no state
            await fleet.topic("orders", billing=[tokyo])
            await here.publish("orders", b"after")
            assert await take(there, "orders", "billing", 1) == [b"after"]

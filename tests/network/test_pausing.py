"""A topic that is paused where its messages arrive: they wait, and come once it is resumed."""

from __future__ import annotations

import asyncio

from landbridge.testing.fleet import Fleet, until
from tests.waiting import LIMIT, turns


async def test_what_comes_from_two_terminals_waits_while_the_topic_is_paused() -> None:
    async with Fleet() as fleet:
        paris, rome = await fleet.server("paris"), await fleet.server("rome")
        tokyo = await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as one, fleet.attach(rome) as two, fleet.attach(tokyo) as there:
            await one.publish("orders", {"id": 0})
            await until(lambda: "orders" in tokyo.terminal.broker.topics)
            await until(lambda: tokyo.terminal.broker.topics["orders"].log.end == 1)
            await there.topics.pause("orders", note="full house")
            for number in range(1, 20):
                await (one if number % 2 else two).publish("orders", {"id": number})
            lanes = paris.network.forwarder.lanes, rome.network.forwarder.lanes
            to = ("orders", tokyo.id)
            await until(lambda: all(to in each and each[to].outbound.shipments for each in lanes))
            await turns(200)
            assert tokyo.terminal.broker.topics["orders"].log.end == 1
            await there.topics.resume("orders")
            found: list[int] = []
            async with asyncio.timeout(LIMIT):
                async for message in there.subscribe("orders", group="billing"):
                    found.append(message.json()["id"])
                    await message.ack()
                    if len(found) == 20:
                        break
            assert sorted(found) == list(range(20))
            assert [number for number in found if number % 2] == list(range(1, 20, 2))
            await until(lambda: not any(each[to].outbound.shipments for each in lanes))
            assert tokyo.terminal.broker.topics["orders"].log.end == 20


async def test_a_topic_that_is_paused_at_its_source_still_ships_what_it_has() -> None:
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await here.publish("orders", {"id": 0})
            await here.topics.pause("orders")
            await until(lambda: "orders" in tokyo.terminal.broker.topics)
            await until(lambda: tokyo.terminal.broker.topics["orders"].log.end == 1)

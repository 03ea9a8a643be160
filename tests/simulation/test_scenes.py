"""Scenes that chance rarely plays: each with a fake clock, real terminals and the rules of chronicle.py."""

from __future__ import annotations

import asyncio

from landbridge.testing.simulation.scene import crossing, scene


def test_a_ticket_that_expired_on_the_shelf_is_renewed():
    with scene() as world:

        async def main():
            *_, here, there = await crossing(world, "hub")
            world.add_producer("early", here, "orders", 1, 0.1)
            await world.drained(1)  # the sender has a ticket now
            there.joined.arrivals.opener._keys.clear()  # and the receiver has no key of it
            world.office.up = False
            world.add_producer("late", here, "orders", 3, 0.1)
            await asyncio.sleep(400)
            assert there.joined.arrivals.table.on_shelf
            world.look_at_custody("while the registry is down")
            world.office.up = True
            await world.drained(4)
            world.judge()

        world.loop.run(main())
    assert world.chronicle.counts["renewed"] >= 1
    assert len(world.chronicle.seen["billing"]) == 4


def test_messages_go_on_without_the_registry_while_tickets_last():
    with scene() as world:

        async def main():
            *_, here, _ = await crossing(world, "hub")
            world.add_producer("first", here, "orders", 1, 0.1)
            await world.drained(1)
            world.office.up = False
            world.add_producer("second", here, "orders", 5, 1.0)
            await asyncio.sleep(20)
            assert world.missing() == []

        world.loop.run(main())
    assert len(world.chronicle.stored) == 6


def test_parcels_in_the_hands_of_a_crashed_hub_are_delivered_when_it_is_back():
    with scene() as world:

        async def main():
            hub, here, there = await crossing(world, "hub")
            line = world.wires.line(hub.host, there.host)
            line.ways[0].dark = line.ways[1].dark = True
            world.add_producer("p", here, "orders", 5, 0.1)
            while not hub.joined.carrier.transits:
                await asyncio.sleep(0.01)
            world.crash(hub, power=True)
            world.look_at_custody("after the crash")
            await asyncio.sleep(30)
            line.heal()
            world.start(hub)
            await world.drained(5)
            world.judge()

        world.loop.run(main())
    assert world.chronicle.seen["billing"] == [f"p:{number}" for number in range(5)]


def test_a_line_that_dies_is_gone_around():
    with scene() as world:

        async def main():
            east, west, here, there = await crossing(world, "east", "west")
            world.add_producer("p", here, "orders", 40, 0.5)
            await asyncio.sleep(5)
            for hub in (east, west):
                line = world.wires.line(hub.host, there.host)
                line.cut = True
                line.reset()
                await asyncio.sleep(20)
                line.heal()
                await asyncio.sleep(10)
            await world.drained(40)
            world.judge()

        world.loop.run(main())
    assert world.chronicle.seen["billing"] == [f"p:{number}" for number in range(40)]
    assert world.chronicle.counts["in transit"] > 0

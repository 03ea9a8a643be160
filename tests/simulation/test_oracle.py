"""What a deletion and a restored store excuse, and what they don't."""

from __future__ import annotations

import asyncio

from landbridge.testing.simulation.scene import crossing, scene


def test_what_a_deleted_topic_held_for_a_group_elsewhere_is_excused_and_nothing_else():
    with scene() as world:

        async def main():
            hub, here, _ = await crossing(world, "hub")
            world.add_producer("first", here, "orders", 3, 0.1)
            await world.drained(3)
            line = world.wires.line(hub.host, here.host)
            line.ways[0].dark = line.ways[1].dark = True
            world.add_producer("second", here, "orders", 2, 0.1)
            await asyncio.sleep(5)
            await world.recreate(here, "orders")
            await asyncio.sleep(5)
            line.heal()
            assert not [value for _, value in world.chronicle.forgiven if value.startswith("first")]

        world.loop.run(main())
    assert world.chronicle.forgiven == {("billing", "second:0"), ("billing", "second:1")}
    assert world.chronicle.missing(world.topics, set()) == []


def test_what_was_published_after_the_copy_is_excused_and_what_was_before_it_is_not():
    with scene() as world:

        async def main():
            hub, here, _ = await crossing(world, "hub")
            line = world.wires.line(hub.host, here.host)
            line.ways[0].dark = line.ways[1].dark = True
            world.add_producer("before", here, "orders", 2, 0.1)
            await asyncio.sleep(5)
            backup = world.copy(here)
            world.add_producer("after", here, "orders", 2, 0.1)
            await asyncio.sleep(5)
            world.restore(here, backup)
            world.look_at_custody("after the restore")
            line.heal()
            await world.drained(4)

        world.loop.run(main())
    assert world.chronicle.forgiven == {("billing", "after:0"), ("billing", "after:1")}
    assert world.chronicle.seen["billing"] == ["before:0", "before:1"]


def test_what_had_arrived_after_the_copy_is_owed():
    with scene() as world:

        async def main():
            _, here, there = await crossing(world, "hub")
            for client in [client for client in world.clients.values() if client.group]:
                world.wires.kill(client.process)
            backup = world.copy(there)
            world.add_producer("p", here, "orders", 2, 0.1)
            while sum(len(values) for values in world.chronicle.arrived.values()) < 2:
                await asyncio.sleep(0.1)
            await asyncio.sleep(5)
            world.restore(there, backup)

        world.loop.run(main())
    assert world.chronicle.owed == {("billing", "p:0"), ("billing", "p:1")}
    assert world.chronicle.forgiven == set()
    assert world.chronicle.missing(world.topics, set()) == [("billing", "p:0"), ("billing", "p:1")]

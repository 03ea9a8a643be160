"""Scenes that chance rarely plays: each with a fake clock, real terminals and the rules of chronicle.py."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from landbridge.crossing.ground import Settings
from landbridge.testing.simulation.scene import crossing, linked, scene
from landbridge.testing.simulation.world import Station, World


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


def test_late_messages_of_sender_only_are_sealed_anew_without_a_pause():
    with scene() as world:

        async def main():
            *_, here, there = await crossing(world, "hub")
            office = world.office
            office.topics["orders"] = msgspec.structs.replace(
                office.topics["orders"], late_open="sender_only"
            )
            office.changed()
            world.add_producer("early", here, "orders", 1, 0.1)
            await world.drained(1)  # the sender has a ticket now
            there.joined.arrivals.opener._keys.clear()  # and the receiver has no key of it
            office.up = False
            world.add_producer("late", here, "orders", 6, 1.0)
            while there.joined.arrivals.table.on_shelf < 3:
                await asyncio.sleep(1)
            await asyncio.sleep(400)
            office.up = True
            # 15 seconds at most until the registry is asked for a key again, and a few trips for each.
            async with asyncio.timeout(30):
                while world.missing():
                    await asyncio.sleep(0.1)
            assert there.joined.arrivals.totals.renewed == 0
            await world.drained(7)
            world.judge()

        world.loop.run(main())


async def _with_skew(world: World, skew: float) -> tuple[Station, Station]:
    """Two servers, and orders without a group. The clock of the first one is wrong."""
    await world.open()
    here = world.add_site("here", "server", settings=Settings(), skew=skew)
    there = world.add_site("there", "server", settings=Settings())
    world.add_topic("orders", {})
    await linked(world)
    world.add_producer("before", here, "orders", 3, 0.1)
    while len(world.chronicle.stored) < 3 or "orders" not in here.joined.topics:
        await asyncio.sleep(0.1)
    await asyncio.sleep(60)
    return here, there


def _add_billing(world: World, there: Station) -> None:
    world.set_group("billing", [there])
    world.office.add_group("orders", "billing")
    world.add_consumer("consumer", there, "orders", "billing")


async def _after(world: World, here: Station) -> None:
    """What is published from now on reaches the group."""
    world.add_producer("after", here, "orders", 5, 0.1)
    wanted = {f"after:{number}" for number in range(5)}
    async with asyncio.timeout(300):
        while not wanted <= {value for group, value in world.chronicle.acked if group == "billing"}:
            await asyncio.sleep(1)


@pytest.mark.parametrize("skew", [-60.0, -6.0, 0.0, 6.0, 60.0])
def test_a_new_group_gets_what_is_published_after_it_was_added_whatever_the_clocks_say(skew):
    with scene() as world:

        async def main():
            here, there = await _with_skew(world, skew)
            _add_billing(world, there)
            await _after(world, here)

        world.loop.run(main())


@pytest.mark.parametrize("skew", [-6.0, -60.0])
def test_a_group_that_was_added_while_its_sender_was_cut_off_misses_nothing_after_a_crash(skew):
    with scene() as world:

        async def main():
            here, there = await _with_skew(world, skew)
            world.office.up = False
            await asyncio.sleep(60)
            _add_billing(world, there)
            world.add_producer("unheard", here, "orders", 5, 0.1)
            while len(world.chronicle.stored) < 8:
                await asyncio.sleep(0.1)
            world.crash(here)
            world.start(here)
            world.office.up = True
            await _after(world, here)
            got = {value for group, value in world.chronicle.acked if group == "billing"}
            assert {f"unheard:{number}" for number in range(5)} <= got

        world.loop.run(main())


def test_a_group_without_terminals_gets_what_was_published_since_it_was_added():
    with scene() as world:

        async def main():
            here, there = await _with_skew(world, -6.0)
            world.office.set_group("billing", [])
            world.office.add_group("orders", "billing")
            world.add_producer("unheard", here, "orders", 5, 0.1)
            await asyncio.sleep(120)
            world.set_group("billing", [there])
            world.add_consumer("consumer", there, "orders", "billing")
            await _after(world, here)
            got = {value for group, value in world.chronicle.acked if group == "billing"}
            assert {f"unheard:{number}" for number in range(5)} <= got

        world.loop.run(main())

"""What simulations have found, each as the smallest scene that shows it."""

from __future__ import annotations

import asyncio

from landbridge.core.log.batch import build
from landbridge.core.shipping.inbound import Inbound
from landbridge.core.shipping.parcel import Arrived
from landbridge.protocol import frames
from landbridge.testing.simulation.scene import crossing, linked, scene, servers
from landbridge.testing.simulation.world import Station, World


def test_a_later_shipment_does_not_hide_what_is_missing_before_it():
    # Seed 22 of five terminals: the floor jumped over 56 and 57, which then counted as here.
    inbound = Inbound()
    inbound.apply(1, 1, {"billing": 56}, [(58, 60)])
    assert inbound.fresh("billing", [(56, 60)]) == [(56, 58)]
    inbound.apply(1, 2, {"billing": 56}, [(56, 58)])
    assert inbound.fresh("billing", [(56, 61)]) == [(60, 61)]
    assert Inbound.decode(inbound.encode()).fresh("billing", [(56, 61)]) == [(60, 61)]


def test_a_given_back_message_is_wanted_again_and_a_late_order_is_void():
    inbound = Inbound()
    inbound.apply(1, 1, {"billing": 0}, [(0, 5)])
    inbound.give_back("billing", [(1, 3)])
    inbound = Inbound.decode(inbound.encode())
    assert inbound.fresh("billing", [(0, 6)]) == [(1, 3), (5, 6)]
    assert not inbound.has_come_back("billing", 2)
    inbound.apply(2, 1, {"audit": 0}, [(0, 1)])  # in the new epoch, but not for this group
    assert not inbound.has_come_back("billing", 2)
    inbound.apply(3, 1, {"billing": 1}, [(1, 2)])
    assert inbound.has_come_back("billing", 2)
    assert inbound.fresh("billing", [(0, 6)]) == [(2, 3), (5, 6)]
    inbound.apply(3, 2, {"billing": 4}, [(5, 6)])  # the source has nothing below 4 any more: 2 went elsewhere
    assert Inbound.decode(inbound.encode()).fresh("billing", [(0, 7)]) == [(2, 3), (6, 7)]


def test_what_another_terminal_got_is_taken_here_after_that_terminal_has_lost_it():
    # Seed 86: a member of a group was restored from a backup and the group failed over to this one. What the
    # restored member had confirmed counted here as arrived, because it lay below the source's floor.
    inbound = Inbound()
    inbound.apply(1, 1, {"audit": 6}, [(6, 8)])  # 0 to 5 went to the other member
    assert inbound.fresh("audit", [(0, 9)]) == [(0, 6), (8, 9)]
    inbound.apply(2, 1, {"audit": 0}, [(0, 6)])
    assert Inbound.decode(inbound.encode()).fresh("audit", [(0, 9)]) == [(8, 9)]


def test_a_shipment_for_two_groups_does_not_overtake_what_one_of_them_gave_before():
    # The same seed: messages of one group were added to queued ones of another that stood before its own.
    with scene() as world:

        async def main():
            here, there = await servers(world, "here", "there")
            world.add_topic("orders", {"billing": [there], "audit": [there]})
            await linked(world)
            world.add_producer("p", here, "orders", 1, 0.1)
            forwarder = here.joined.forwarder
            while not forwarder.lanes:
                await asyncio.sleep(0.1)
            lane = forwarder.lanes["orders", there.id]
            lane.queue.clear()
            data = build([b"data"], id=bytes(16), time=1)
            offers = [("audit", 3), *(("billing", n) for n in (1, 2, 3)), ("audit", 4), ("billing", 4)]
            for group, offset in offers:
                frame = frames.Deliver(0, offset, [(offset, offset + 1)], False, {})
                lane.offer(group, frame, data, 1)
            queued = [(queued.runs[0][0], sorted(queued.legs)) for queued in lane.queue]
            lane.queue.clear()
            return queued

        queue = world.loop.run(main())
    assert queue == [
        (3, ["audit"]),
        (1, ["billing"]),
        (2, ["billing"]),
        (3, ["billing"]),
        (4, ["audit", "billing"]),
    ]


def slow_consumer(world: World, site: Station, speed: dict[str, float]) -> None:
    """Of orders/billing, one message at a time; how fast is in ``speed``, seconds per message."""
    chronicle = world.chronicle

    async def work() -> None:
        bus = await world._connected(site)
        async for message in bus.subscribe("orders", group="billing", prefetch=1):
            value = bytes(message.payload).decode()
            chronicle.see("billing", value)
            await asyncio.sleep(speed[site.name])
            chronicle.acked.add(("billing", value))
            await message.ack()

    world._begin(f"consumer at {site.name}", site, work, "billing")


def deafen(site: Station, deaf: set[str]) -> None:
    """Its confirmations get lost, as control messages may, while its name is in ``deaf``."""
    say = site.joined.say

    def perhaps(destination, message):
        if not (isinstance(message, Arrived) and site.name in deaf):
            say(destination, message)

    site.joined.say = perhaps  # type: ignore[method-assign]


def test_what_a_terminal_gave_back_it_takes_again():
    """Sent to one, not confirmed, taken back for another, which is cut off; so to the first again, whose
    ledger knew the messages although its log had let go of them."""
    with scene() as world:
        speed = {"one": 1e5, "other": 1e5}
        deaf = {"one", "other"}

        async def main():
            here, one, other = await servers(world, "here", "one", "other")
            world.add_topic("orders", {"billing": [one, other]})
            await linked(world)
            for site in (one, other):
                slow_consumer(world, site, speed)
                deafen(site, deaf)
            await asyncio.sleep(6)
            placements = here.joined.forwarder.placements
            world.add_producer("p", here, "orders", 5, 0.01)
            while len(world.chronicle.stored) < 5 or not placements["orders", "billing"].target:
                await asyncio.sleep(0.1)
            is_one = placements["orders", "billing"].target == one.id
            first, second = (one, other) if is_one else (other, one)
            while placements["orders", "billing"].target != second.id:
                await asyncio.sleep(0.1)
            lines = [world.wires.line(site.host, second.host) for site in (here, first)]
            for line in lines:
                line.ways[0].dark = line.ways[1].dark = True
            deaf.remove(first.name)
            await asyncio.sleep(120)
            speed["one"] = speed["other"] = 0.0
            for client in [client for client in world.clients.values() if client.group]:
                world.restart(client)  # the slow ones would hold their first message for a day
            world.look_at_custody("while the second is dark")
            await asyncio.sleep(100)
            for line in lines:
                line.heal()
            await world.drained()
            world.look_at_custody("at the end")

        world.loop.run(main())


def test_a_shipment_whose_source_went_elsewhere_leaves_the_shelf():
    # Seed 57 of five terminals: one of three shipments was lost on the way, the one behind it waited on the
    # shelf, and the source gave the messages to another terminal. Nothing came that could have told.
    with scene() as world:

        async def main():
            here, there, other = await servers(world, "here", "there", "other")
            world.add_topic("orders", {"billing": [there]})
            await linked(world)
            network, carrier = here.joined, here.joined.carrier
            send, sent = carrier.send, []

            def lose_the_first(*arguments):
                sent.append(arguments)
                return network.routes.hops(network.now(), there.id) if len(sent) == 1 else send(*arguments)

            carrier.send = lose_the_first  # type: ignore[method-assign]
            world.add_producer("p", here, "orders", 12, 0.3)
            while not there.joined.arrivals.table.on_shelf:
                await asyncio.sleep(0.05)
            world.set_group("billing", [other])
            world.add_consumer("consumer", other, "orders", "billing")
            await world.drained(12)
            world.look_at_custody("at the end")
            assert there.joined.arrivals.totals.shelved > 0

        world.loop.run(main())


def test_parcels_of_a_revoked_terminal_do_not_stay_with_the_hub():
    # Seed 68: its parcels had no way on and none back.
    with scene() as world:

        async def main():
            hub, here, there = await crossing(world, "hub")
            line = world.wires.line(hub.host, there.host)
            line.ways[0].dark = line.ways[1].dark = True
            world.add_producer("p", here, "orders", 5, 0.1)
            while not hub.joined.carrier.transits:
                await asyncio.sleep(0.01)
            here.revoked = True
            world.office.revoke(here.id)
            await asyncio.sleep(5)
            line.heal()
            await world.drained()
            world.look_at_custody("at the end")

        world.loop.run(main())


def test_messages_of_a_recreated_topic_arrive_although_their_offsets_were_used_before():
    # `landbridge simulate --fault recreated-at-source`: the lane of the deleted topic went on, so the first
    # messages of the new log were taken for those of the old one.
    with scene() as world:

        async def main():
            *_, here, _ = await crossing(world, "hub")
            world.add_producer("former", here, "orders", 5, 0.1)
            await world.drained(5)
            await world.recreate(here, "orders")
            await asyncio.sleep(5)
            world.add_producer("later", here, "orders", 5, 0.1)
            await world.drained(10)
            world.judge()

        world.loop.run(main())
    assert len(world.chronicle.seen["billing"]) == 10

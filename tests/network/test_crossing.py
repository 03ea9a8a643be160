"""Messages that cross terminals: a registry and several terminals in this process, links over loopback."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from landbridge.core.shipping.parcel import Stuck
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.crossing.peer import Peer
from landbridge.errors import (
    BusError,
    GroupElsewhere,
    RegistryUnreachable,
    TimedOut,
    Unauthenticated,
    UnknownGroup,
    UnknownMessage,
    UnknownTerminal,
)
from landbridge.stores.memory import MemoryStore
from landbridge.testing.fleet import QUICK, Fleet, until
from tests.waiting import LIMIT, turns


async def take(bus, topic, group, count):
    found = []
    async for message in bus.subscribe(topic, group=group):
        found.append(message.json())
        await message.ack()
        if len(found) == count:
            return found
    raise AssertionError("the subscription ended")


async def test_a_message_crosses_from_one_server_to_another():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            for number in range(3):
                await here.publish("orders", {"id": number})
            async with asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 3) == [{"id": 0}, {"id": 1}, {"id": 2}]
        await until(lambda: not paris.network.forwarder.lanes["orders", tokyo.id].outbound.shipments)
        assert paris.network.forwarder.totals.arrived == 3


async def test_clients_behind_nat_reach_each_other_through_a_server_that_cannot_read():
    async with Fleet() as fleet:
        hub = await fleet.server("hub")
        left, right = await fleet.client("left"), await fleet.client("right")
        await fleet.topic("orders", billing=[right])
        async with fleet.attach(left) as here, fleet.attach(right) as there:
            async with here.publisher("orders") as out:
                for number in range(1000):
                    await out.send({"id": number})
            async with asyncio.timeout(LIMIT):
                found = await take(there, "orders", "billing", 1000)
        assert found == [{"id": number} for number in range(1000)]
        assert hub.network.carrier.totals.passed_on > 0
        assert "orders" not in hub.terminal.broker.topics


async def test_two_groups_at_one_terminal_get_one_copy_over_the_link():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo], audit=[tokyo])
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await fleet.linked()
            await here.publish("orders", {"id": -1}, until="arrived")
            before = paris.network.forwarder.totals.shipped
            async with here.publisher("orders") as out:
                for number in range(500):
                    await out.send({"id": number})
            async with asyncio.timeout(LIMIT):
                wanted = [{"id": number} for number in range(-1, 500)]
                assert await take(there, "orders", "billing", 501) == wanted
                assert await take(there, "orders", "audit", 501) == wanted
        assert paris.network.forwarder.totals.shipped - before == 500


async def test_what_waits_at_the_origin_is_sent_after_its_restart_once():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here:
            await here.publish("orders", {"id": 0}, until="arrived")
            await fleet.stop(tokyo)
            for number in range(1, 4):
                await here.publish("orders", {"id": number})
        await fleet.stop(paris)
        await fleet.start(paris)
        await fleet.start(tokyo)
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.publish("orders", {"id": 4})
            async with asyncio.timeout(LIMIT):
                found = await take(there, "orders", "billing", 5)
            assert found == [{"id": number} for number in range(5)]
            await until(lambda: not paris.network.forwarder.held())
        topic = tokyo.terminal.broker.topics["orders"]
        assert topic.log.end == 5


async def test_without_the_registry_messages_wait_and_arrive_when_it_is_back():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.publish("local", {"id": 0})  # a topic of its own LAN
            await until(lambda: "orders" in tokyo.network.topics)
            fleet.registry_up = False
            await here.publish("orders", {"id": 1})
            await here.publish("local", {"id": 2})
            assert await take(here, "local", "mine", 2) == [{"id": 0}, {"id": 2}]
            fleet.registry_up = True
            async with asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 1) == [{"id": 1}]


async def test_consumers_of_the_own_lan_are_served_without_a_ticket():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[paris, tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here:
            await until(lambda: "orders" in paris.network.topics)
            subscription = here.subscribe("orders", group="billing")
            async with asyncio.timeout(LIMIT):
                waiting = asyncio.ensure_future(anext(aiter(subscription)))
                await asyncio.sleep(0)
                await here.publish("orders", {"id": 1})
                message = await waiting
                assert message.json() == {"id": 1}
                await message.ack()
        assert paris.network.forwarder.totals.shipped == 0


async def test_another_member_takes_over_when_a_terminal_is_gone():
    async with Fleet() as fleet:
        paris, tokyo, osaka = [await fleet.server(name) for name in ("paris", "tokyo", "osaka")]
        await fleet.topic("orders", billing=[tokyo, osaka])
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(osaka) as there:
            async with fleet.attach(tokyo) as first:
                waiting = asyncio.ensure_future(take(first, "orders", "billing", 1))
                await until(lambda: bool(tokyo.network.placing.consumers()))
                await here.publish("orders", {"id": 1})
                async with asyncio.timeout(LIMIT):
                    assert await waiting == [{"id": 1}]
            await fleet.stop(tokyo)
            await here.publish("orders", {"id": 2})
            async with asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 1) == [{"id": 2}]
        await fleet.start(tokyo)


async def test_a_producer_can_wait_until_it_has_arrived_or_was_acked():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            async with asyncio.timeout(LIMIT):
                await here.publish("orders", {"id": 1}, until="arrived")
                assert tokyo.terminal.broker.topics["orders"].log.end == 1
                acked = asyncio.ensure_future(here.publish("orders", {"id": 2}, until="acked"))
                messages = aiter(there.subscribe("orders", group="billing"))
                first, second = await anext(messages), await anext(messages)
                await until(lambda: tokyo.network.questions.waiting == 1)
                await first.ack(wait=True)
                assert tokyo.network.questions.waiting == 1
                assert not acked.done()
                await second.ack()
                await acked


async def test_where_and_why_tell_of_a_message_on_both_sides():
    async with Fleet() as fleet:
        hub = await fleet.server("hub")
        left, right = await fleet.client("left"), await fleet.client("right")
        await fleet.topic("orders", billing=[right])
        await fleet.linked()
        async with fleet.attach(left) as here, fleet.attach(right) as there, asyncio.timeout(LIMIT):
            receipt = await here.publish("orders", {"id": 1}, until="arrived")
            (place,) = (await here.call("message.where", id=receipt.id))["places"]
            (group,) = place["groups"]
            assert (group["at"], group["state"], group["waits_for"]) == (
                "right",
                "waiting",
                "a consumer there",
            )
            assert group["came_by"] == ["left", "hub"]
            (place,) = (await there.call("message.where", id=receipt.id))["places"]
            assert place["came_by"] == ["left", "hub"]
            assert place["groups"][0]["waits_for"] == "a consumer"
            (why,) = (await here.call("message.why", id=receipt.id))["groups"]
            assert why["routes"] == [["left", "hub", "right"]]
            shown = await here.call("route.show", there="right")
            assert shown["best"]["hops"] == ["left", "hub", "right"]
            topology = await here.call("topology.show")
            assert {row["name"] for row in topology["terminals"]} == {"hub", "left", "right"}
            assert topology["single_points"] == {"hub": ["right"]}
        assert hub.network.carries


async def test_a_terminal_in_transit_says_that_it_has_sealed_parcels(monkeypatch):
    async with Fleet() as fleet:
        hub = await fleet.server("hub")
        left, right = await fleet.client("left"), await fleet.client("right")
        await fleet.topic("orders", billing=[right])
        await fleet.linked()
        async with fleet.attach(left) as here, fleet.attach(hub) as between:
            receipt = await here.publish("orders", {"id": 0}, until="arrived")
            with pytest.raises(UnknownMessage) as nothing:
                await between.call("message.where", id=receipt.id)
            assert "sealed" not in nothing.value.hint
            # It keeps what comes now.
            monkeypatch.setattr(hub.network.carrier, "has_room", lambda terminal: False)
            receipt = await here.publish("orders", {"id": 1})
            await until(lambda: len(hub.network.carrier.transits) == 1)
            with pytest.raises(UnknownMessage) as some:
                await between.call("message.where", id=receipt.id)
            assert "1 parcel on the way through here, sealed" in some.value.hint


async def test_a_mistyped_terminal_or_group_is_asked_about():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as bus:
            with pytest.raises(UnknownTerminal) as terminal:
                await bus.call("route.show", there="tokio")
            assert terminal.value.hint.startswith("did you mean tokyo?")
            await bus.call("topic.create", name="local")
            await bus.call("group.create", topic="local", name="archive")
            with pytest.raises(UnknownGroup) as group:
                await bus.call("group.show", topic="local", name="archiv")
            assert group.value.hint.startswith("did you mean archive?")
        with pytest.raises(UnknownGroup) as far:
            await fleet.admin.add_terminal_to_group("biling", tokyo.id)
        assert far.value.hint.startswith("did you mean billing?")


async def test_subscribing_where_the_group_has_no_terminal_is_refused():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here:
            await here.publish("orders", {"id": 1})
            await until(lambda: ("orders", "billing") in paris.network.forwarder.placements)
            with pytest.raises(GroupElsewhere, match="tokyo"):
                await take(here, "orders", "billing", 1)


async def test_a_revoked_terminal_is_cut_off_at_once():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        await fleet.admin.revoke_terminal(tokyo.id)
        await until(lambda: not paris.network.knows(tokyo.id))
        await until(lambda: not paris.network.peers)
        with pytest.raises(BusError):
            await tokyo.network.registry.issue("orders")


async def test_a_transit_terminal_that_restarts_passes_on_what_it_had_kept():
    async with Fleet() as fleet:
        hub = await fleet.server("hub")
        left, right = await fleet.client("left"), await fleet.client("right")
        await fleet.topic("orders", billing=[right])
        await fleet.linked()
        async with fleet.attach(left) as here:
            await here.publish("orders", {"id": 0}, until="arrived")
            await fleet.stop(right)
            await here.publish("orders", {"id": 1})
            await fleet.stop(hub)
            await fleet.start(hub)
            await fleet.start(right)
            async with fleet.attach(right) as there, asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 2) == [{"id": 0}, {"id": 1}]
            await until(lambda: not hub.network.carrier.transits)


async def test_an_admin_cost_keeps_traffic_away_from_a_terminal():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        there = {paris.id: paris.network.peers, tokyo.id: tokyo.network.peers}
        await until(lambda: tokyo.id in there[paris.id] and paris.id in there[tokyo.id])
        await fleet.admin.update_terminal(tokyo.id, admin_cost=500.0)
        # Also on links that were there before, and from both sides.
        meters = [peer.meter for peers in there.values() for peer in peers.values()]
        await until(lambda: all(meter.parts is not None and meter.parts.total >= 500 for meter in meters))


async def test_one_ticket_for_each_message_where_the_topic_wants_it():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.admin.create_terminal_group("billing", [tokyo.id])
        await fleet.admin.create_message_bus_topic("orders", ["billing"], ticket_scope="message")
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            async with here.publisher("orders") as out:
                for number in range(10):
                    await out.send({"id": number})
            async with asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 10) == [{"id": n} for n in range(10)]
        events = (await fleet.admin.audit(limit=1000)).items
        assert sum(event.op == "issueTicket" and event.outcome == "ok" for event in events) >= 10
        assert sum(event.op == "redeemTicket" and event.outcome == "ok" for event in events) >= 10


async def test_delays_and_filters_of_a_far_group_are_kept():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.call("group.create", topic="orders", name="billing", match={"key": "eu"})
            await here.publish("orders", {"id": 1}, key="us")
            await here.publish("orders", {"id": 2}, key="eu", priority=7, headers={"a": "b"})
            async with asyncio.timeout(LIMIT):
                message = await anext(aiter(there.subscribe("orders", group="billing")))
            assert (message.json(), message.key, message.priority) == ({"id": 2}, "eu", 7)
            assert message.headers == {"a": "b"}
            await message.ack(wait=True)
            await until(lambda: not paris.network.forwarder.held())
        assert paris.network.forwarder.totals.shipped == 1


async def test_a_group_that_is_added_later_gets_what_was_published_since():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders")
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.publish("orders", {"id": 0})
            await fleet.admin.create_terminal_group("billing", [tokyo.id])
            await fleet.admin.add_group_to_topic("orders", "billing")
            await here.publish("orders", {"id": 1})
            async with asyncio.timeout(LIMIT):
                found = await take(there, "orders", "billing", 1)
                if found == [{"id": 0}]:  # published shortly before: it may come, and the other one has to
                    found = await take(there, "orders", "billing", 1)
                assert found == [{"id": 1}]


async def test_a_message_of_a_terminal_outside_the_customer_is_not_taken():
    async with Fleet() as ours, Fleet() as theirs:
        paris, rome = await ours.server("paris"), await theirs.server("rome")
        stranger = Peer(rome.network, rome.network, paris.id)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: stranger, "127.0.0.1", paris.port)
        with pytest.raises(BusError, match="another customer"):
            await stranger.linked
        await stranger.gone
        assert not paris.network.peers


async def test_a_terminal_whose_key_is_another_one_gets_no_link():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.linked()
        tokyo.network.identity = Identity(fleet.customer, tokyo.id, SecureKey.new())
        thief = Peer(tokyo.network, tokyo.network, paris.id)
        loop = asyncio.get_running_loop()
        await loop.create_connection(lambda: thief, "127.0.0.1", paris.port)
        with pytest.raises(BusError, match="proof is wrong"):
            await thief.linked
        await thief.gone


class Mute(Peer):
    """The dialling end of a link that never proves itself."""

    challenged = False

    def _received(self, frame, tail):
        self.challenged = True


async def test_a_terminal_that_stops_ends_the_links_whose_handshake_is_under_way():
    met = []

    class Listener(asyncio.Protocol):
        """The listening end of a link that never answers."""

        def connection_made(self, transport):
            self.gone = asyncio.get_running_loop().create_future()
            met.append(self)

        def connection_lost(self, exc):
            self.gone.set_result(None)

    loop = asyncio.get_running_loop()
    async with Fleet() as fleet, await loop.create_server(Listener, "127.0.0.1", 0) as silent:
        paris = await fleet.server("paris")
        rome = await fleet.client("rome", settings=replace(QUICK, neighbours=["paris"]))
        # So long that only the end of the terminal can end them.
        paris.network.max_handshake = rome.network.max_handshake = 2 * LIMIT
        await fleet.admin.create_terminal(
            "tokyo", mode="server", address=f"lb://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
        )
        mute = Mute(rome.network, rome.network, paris.id)
        await loop.create_connection(lambda: mute, "127.0.0.1", paris.port)
        await until(lambda: mute.challenged and bool(met))
        await fleet.stop(paris)
        async with asyncio.timeout(LIMIT):
            await mute.gone
            await met[0].gone


async def test_waiting_for_an_arrival_where_there_is_no_group_says_so():
    async with Fleet() as fleet:
        paris = await fleet.server("paris")
        async with fleet.attach(paris) as here, asyncio.timeout(LIMIT):
            with pytest.raises(UnknownGroup, match="stored at offset 0"):
                await here.publish("orders", {"id": 1}, until="arrived")


async def test_waiting_for_an_arrival_waits_for_a_registry_that_was_never_reached(monkeypatch):
    async with Fleet() as fleet:
        tokyo = await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        rome = await fleet.client("rome")
        await fleet.stop(rome)
        rome.store = MemoryStore()
        fleet.registry_up = False
        await fleet.start(rome)
        async with fleet.attach(rome) as here:
            waits = asyncio.Event()
            until_known = rome.network.until_known

            async def watched(topic):
                waits.set()
                await until_known(topic)

            monkeypatch.setattr(rome.network, "until_known", watched)
            waiting = asyncio.ensure_future(here.publish("orders", {"id": 1}, until="arrived"))
            await waits.wait()
            await turns()
            assert not waiting.done()
            fleet.registry_up = True
            async with asyncio.timeout(LIMIT):
                await waiting
        assert tokyo.terminal.broker.topics["orders"].log.end == 1


async def test_a_revoked_terminal_is_told_so_when_it_waits():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        await fleet.admin.revoke_terminal(paris.id)
        await until(lambda: paris.network.refusal is not None)
        async with fleet.attach(paris) as here, asyncio.timeout(LIMIT):
            with pytest.raises(Unauthenticated, match="refuses this terminal"):
                await here.publish("orders", {"id": 1}, until="arrived")


async def test_a_timeout_says_that_the_message_is_stored():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here:
            with pytest.raises(TimedOut, match=r"stored in orders at offset 0, id .* but not acked"):
                await here.publish("orders", {"id": 1}, until="acked", timeout=3.0)


async def test_messages_of_a_group_that_lost_its_last_terminal_wait_for_another():
    async with Fleet() as fleet:
        paris, tokyo, osaka = [await fleet.server(name) for name in ("paris", "tokyo", "osaka")]
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(osaka) as there, asyncio.timeout(LIMIT):
            await here.publish("orders", {"id": 1}, until="arrived")
            await fleet.admin.update_terminal_group("billing", [], force=True)
            await until(lambda: not paris.network.members("billing"))
            receipt = await here.publish("orders", {"id": 2})
            await until(lambda: paris.network.forwarder.placements["orders", "billing"].target == "")
            (place,) = (await here.call("message.where", id=receipt.id))["places"]
            assert place["groups"][0]["waits_for"] == "the group has no terminals"
            await fleet.admin.add_terminal_to_group("billing", osaka.id)
            assert (await take(there, "orders", "billing", 1)) == [{"id": 2}]


async def test_a_group_of_which_a_neighbour_tells_first_is_asked_for_at_the_registry(monkeypatch):
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders")
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.topics.create("orders")
            await until(lambda: "orders" in paris.network.topics)
            registry, asked = paris.network.registry, 0
            directory = registry.directory

            async def unreachable(*arguments):
                nonlocal asked
                asked += 1
                raise RegistryUnreachable("paris is cut off from the registry")

            await paris.network.following.close()  # ends the question that is open at the registry
            monkeypatch.setattr(registry, "directory", unreachable)
            paris.network.following.start()
            await until(lambda: asked > 0)
            await fleet.admin.create_terminal_group("billing", [tokyo.id])
            await fleet.admin.add_group_to_topic("orders", "billing")
            newest = fleet.registry.state.index.accounts[fleet.customer].customer.version
            await until(lambda: paris.network.directory.version >= newest)
            await here.publish("orders", {"id": 1})
            monkeypatch.setattr(registry, "directory", directory)
            async with asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 1) == [{"id": 1}]


async def test_an_older_answer_of_the_registry_replaces_nothing_and_is_asked_again(monkeypatch):
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.topics.create("orders")
            await until(lambda: "orders" in paris.network.topics)
            registry, known = paris.network.registry, paris.network.directory.version
            directory, given = registry.directory, list[object]()
            older = await directory(0, 0.0, ["orders"])
            await fleet.topic("invoices", accounting=[tokyo])
            await until(lambda: paris.network.directory.version > known + 1)

            async def behind(version, wait, topics):
                if len(given) < 2:
                    given.append(older)
                    return older
                return await directory(version, wait, topics)

            monkeypatch.setattr(registry, "directory", behind)
            await here.publish("invoices", {"id": 1})
            async with asyncio.timeout(LIMIT):
                assert await take(there, "invoices", "accounting", 1) == [{"id": 1}]
            assert len(given) == 2


def counting(monkeypatch, member):
    """Counts how often a terminal asks the registry for a key: the list grows by the ticket."""
    registry, asked = member.network.registry, []
    redeem = registry.redeem

    async def counted(topic, ticket, box):
        asked.append(ticket)
        return await redeem(topic, ticket, box)

    monkeypatch.setattr(registry, "redeem", counted)
    return asked


async def test_a_terminal_whose_group_was_removed_is_not_sent_shipments_in_a_hot_loop(monkeypatch):
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        asked = counting(monkeypatch, tokyo)
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.topics.create("orders")
            await until(lambda: ("orders", tokyo.id) in paris.network.forwarder.lanes)
            await paris.network.following.close()  # paris hears nothing of the topic's groups
            version = tokyo.network.directory.version
            await fleet.admin.remove_group_from_topic("orders", "billing")
            await until(lambda: tokyo.network.directory.version > version)
            for number in range(10):
                await here.publish("orders", {"id": number})
            lane = paris.network.forwarder.lanes["orders", tokyo.id]
            await until(lambda: "registry" in lane.waits_for)
            await asyncio.sleep(3.0)  # time for many more, if nothing stopped them
            assert 1 <= len(asked) <= 12
            assert len(set(asked)) == len(asked)
            await fleet.admin.add_group_to_topic("orders", "billing")
            paris.network.following.start()
            async with asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 10) == [{"id": number} for number in range(10)]


def reached(found, count):
    return len(found) >= count


async def test_a_refused_ticket_is_not_redeemed_again_while_the_directory_is_the_same(monkeypatch):
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        await fleet.linked()
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            caught, said, arrivals = [], [], tokyo.network.arrivals
            with monkeypatch.context() as patch:
                patch.setattr(arrivals, "received", lambda parcel, data, _: caught.append((parcel, data)))
                await here.publish("orders", {"id": 1})
                await until(lambda: bool(caught))
                (parcel, data), *_ = caught
                data = memoryview(bytes(data))
            monkeypatch.setattr(tokyo.network, "say", lambda _, message: said.append(message))
            version = tokyo.network.directory.version
            await fleet.admin.remove_group_from_topic("orders", "billing")
            await until(lambda: tokyo.network.directory.version > version)
            asked = counting(monkeypatch, tokyo)
            for times in range(1, 6):
                arrivals.received(parcel, data, lambda _: None)
                await until(partial(reached, said, times))
            assert [type(message) for message in said] == [Stuck] * 5
            assert {message.code for message in said} == {"ticket_refused"}
            assert len(asked) == 1
            monkeypatch.undo()
            await fleet.admin.add_group_to_topic("orders", "billing")
            async with asyncio.timeout(LIMIT):
                assert await take(there, "orders", "billing", 1) == [{"id": 1}]

"""Link states as messages of ``$links``, and the plan that is made from them back at the terminals."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from landbridge.core.routing.plan import Plan, PlannedLink
from landbridge.crossing.measurements import TOPIC, Measurement, Measurements
from landbridge.testing.fleet import QUICK, Fleet, FleetMember, until
from tests.waiting import LIMIT


async def written(fleet: Fleet, member: FleetMember) -> list[Measurement]:
    if TOPIC not in member.terminal.broker.topics:
        return []
    async with fleet.attach(member) as bus:
        batches = (await bus.fetch(TOPIC, 0)).batches
    payloads = [payload for each in batches for payload in each.batch.payloads()]
    return [msgspec.json.decode(payload, type=Measurement) for payload in payloads]


async def test_one_terminal_writes_down_what_all_of_them_say() -> None:
    async with Fleet() as fleet:
        paris = await fleet.server("paris", settings=msgspec.structs.replace(QUICK, log_links=True))
        tokyo, osaka = await fleet.server("tokyo"), await fleet.client("osaka")
        members = {member.id: member for member in (paris, tokyo, osaka)}

        def linked() -> bool:
            states = paris.network.states.states
            return len(states) == 3 and all(states[id].links for id in members)

        await until(linked)
        assert paris.network.measurements is not None
        newest: dict[str, Measurement] = {}
        async with asyncio.timeout(LIMIT):
            # What the terminal has begun to write by itself may come a little later.
            while len(newest) < 3 or not all(each.links for each in newest.values()):
                paris.network.measurements.write()
                await paris.terminal.broker.drain()
                found = await written(fleet, paris)
                newest = {each.terminal: each for each in found}
        assert {each.terminal for each in found} == set(members)
        assert {each.customer for each in found} == {fleet.customer}
        assert {id: each.name for id, each in newest.items()} == {
            id: member.name for id, member in members.items()
        }
        assert {each.name: each.carries for each in newest.values()} == {
            "paris": True,
            "tokyo": True,
            "osaka": False,
        }
        for id, each in newest.items():
            for link in each.links:
                assert link.to in members.keys() - {id}
                assert link.cost > 0
                assert link.rtt is not None
                assert link.rtt >= 0
                assert link.loss == 0
        # Nobody else was asked to.
        assert tokyo.network.measurements is None
        assert TOPIC not in tokyo.terminal.broker.topics


async def test_what_can_not_be_written_in_time_is_told(monkeypatch: Any) -> None:
    monkeypatch.setattr("landbridge.crossing.measurements.MOST", 1)
    async with Fleet() as fleet:
        paris = await fleet.server("paris")
        measurements = Measurements(paris.network)
        await until(lambda: paris.id in paris.network.states.states)
        state = paris.network.states.states[paris.id]
        for _ in range(3):
            measurements.note(state)
        measurements.write()
        events = msgspec.to_builtins(paris.terminal.broker.status.take(1))
        [event] = [event for event in events if event["event"] == "error"]
        assert (event["cause"], event["messages"]) == ("links_overflow", 2)
        await paris.terminal.broker.drain()
        assert len(await written(fleet, paris)) == 1


async def test_a_plan_reaches_the_terminals_and_new_links_begin_with_it() -> None:
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await until(lambda: tokyo.id in paris.network.peers and paris.id in tokyo.network.peers)
        assert paris.network.peers[tokyo.id].meter.prior is None
        here, there = sorted((paris.id, tokyo.id))
        link = PlannedLink(
            here=here, there=there, cost=321.0, availability=0.5, rtt=80.0, rtt_95=90.0, loss=0.0
        )
        plan = Plan(since=1, until=2, terminals={here: True, there: True}, links=[link], single_points=[])
        await fleet.admin.put_plan(plan)
        await until(lambda: paris.network.routes.graph.planned(paris.id, tokyo.id) == 321.0)
        before = paris.network.peers[tokyo.id]
        before.abort()
        await until(lambda: paris.network.peers.get(tokyo.id) not in (None, before))
        peer = paris.network.peers[tokyo.id]
        assert peer.meter.prior == 321.0
        await until(lambda: peer.meter.cost is not None)
        async with fleet.attach(paris) as bus:
            await until(lambda: tokyo.id in paris.network.routes.graph.links[paris.id])
            shown = await bus.call("route.show", there="tokyo")
        assert shown["links"][0]["planned"] == 321.0

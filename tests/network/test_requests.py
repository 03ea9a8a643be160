"""Durable requests and events whose responder is at another terminal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge import Service, ServiceFailed
from landbridge.core.replies import TOPIC, group_of
from landbridge.errors import NoResponder
from landbridge.testing.fleet import Fleet, until
from tests.waiting import LIMIT


def quotes() -> Service:
    service = Service("quotes")

    @service.on("prices.quote", reply=True)
    async def quote(value: Any) -> Any:
        if value == "fail":
            raise ServiceFailed("no such thing", service_code="no_thing", status=404)
        return {"twice": 2 * value}

    return service


async def test_a_durable_request_is_answered_at_another_terminal() -> None:
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("prices.quote", quotes=[tokyo])
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there, quotes().running(there):
            with pytest.raises(NoResponder):  # what is not stored stays at its terminal
                await here.request("prices.quote", 1)
            for number in range(3):
                reply = await here.request("prices.quote", number, durable=True, timeout=LIMIT)
                assert reply.json() == {"twice": 2 * number}
            with pytest.raises(ServiceFailed) as caught:
                await here.request("prices.quote", '"fail"', durable=True, timeout=LIMIT)
            assert (caught.value.service_code, caught.value.status) == ("no_thing", 404)
            # The responder's terminal asks, too, and each gets its own replies.
            both = [bus.request("prices.quote", 7, durable=True, timeout=LIMIT) for bus in (here, there)]
            assert [reply.json() for reply in await asyncio.gather(*both)] == [{"twice": 14}] * 2
        group = tokyo.terminal.broker.topics[TOPIC].groups[group_of(paris.id)]
        await until(lambda: group.delivery.cursor.floor == group.topic.log.end)
        assert paris.terminal.broker.totals.late_replies == 0


async def test_an_event_waits_for_a_terminal_that_is_away() -> None:
    async with Fleet() as fleet:
        hub = await fleet.server("hub")
        left, right = await fleet.client("left"), await fleet.client("right")
        await fleet.topic("prices.quote", quotes=[right])
        seen: list[Any] = []
        async with fleet.attach(left) as here:
            id = await here.trigger("prices.quote", 21, callback=seen.append)
            assert (await here.outcome(id)).state == "pending"
            async with fleet.attach(right) as there, quotes().running(there):
                assert (await here.outcome(id, wait=LIMIT)).json() == {"twice": 42}
                await until(lambda: bool(seen))
        assert TOPIC not in hub.terminal.broker.topics  # a transit knows nothing of it
        assert seen[0].id == id

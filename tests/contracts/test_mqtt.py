"""MQTT 3.1.1 and 5, with a client that others have written."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.contracts.mqtt import V5, V311, Site, mqtt_site
from tests.waiting import eventually


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Site]:
    async with mqtt_site() as found:
        yield found


@pytest.fixture(params=[V311, V5], ids=["3.1.1", "5"])
def version(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_a_message_goes_from_a_client_to_another_and_to_the_bus(site: Site, version: Any) -> None:
    async with site.client("a", version) as a, site.client("b", version) as b:
        assert await b.subscribe("plant/+/temperature", 1) == 1
        assert await b.subscribe("plant/#", 0) == 0
        await a.publish("plant/7/temperature", b"21.5")
        got = await b.take(2)
        assert sorted((m.topic, m.payload, m.qos, m.retain) for m in got) == [
            ("plant/7/temperature", b"21.5", 0, False),
            ("plant/7/temperature", b"21.5", 1, False),
        ]
        async with site.bus.subscribe("plant.7.temperature", group="g") as reading:
            message = await reading.poll(5)
            assert message is not None
            assert message.payload == b"21.5"
            assert message.headers == {"mqtt-client": "a"}
        await site.bus.publish("plant.8.temperature", b"from the bus")
        assert await b.payloads(2) == [b"from the bus"] * 2


async def test_a_session_that_outlives_its_connection_loses_nothing(site: Site, version: Any) -> None:
    kept = {"clean": False, "expiry": 3600 if version == V5 else None}
    async with site.client("dev", version, **kept) as dev:
        assert not dev.session_present
        assert await dev.subscribe("orders/#", 1) == 1
        await site.bus.publish("orders.eu", b"0")
        assert await dev.payloads(1) == [b"0"]
    for number in range(1, 4):
        await site.bus.publish("orders.eu", b"%d" % number)
    await site.bus.publish("orders.us", b"new topic")
    async with site.client("dev", version, **kept) as dev:
        assert dev.session_present
        assert sorted(await dev.payloads(4)) == [b"1", b"2", b"3", b"new topic"]
    async with site.client("dev", version, clean=True) as dev:
        assert not dev.session_present
        await eventually(lambda: not len(site.gateway.sessions))
        groups = await site.bus.groups.list()
        assert [group.name for group in groups if group.name.startswith("mqtt.")] == []

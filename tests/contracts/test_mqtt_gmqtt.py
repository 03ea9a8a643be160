"""MQTT with a second client that others have written: gmqtt, which shares nothing with paho."""

from __future__ import annotations

import asyncio
from typing import Any

import gmqtt
import pytest
from gmqtt.mqtt.constants import MQTTv50, MQTTv311

from tests.contracts.mqtt import mqtt_site
from tests.waiting import LIMIT


@pytest.mark.parametrize("version", [MQTTv311, MQTTv50], ids=["3.1.1", "5"])
async def test_a_message_there_and_back(crashes: list[Any], version: int) -> None:
    async with mqtt_site() as site:
        got: asyncio.Queue[tuple[str, bytes, int, Any]] = asyncio.Queue()
        subscribed = asyncio.Event()
        client = gmqtt.Client("g", clean_session=True)
        client.set_auth_credentials("shop", site.token("publish:#", "subscribe:#"))

        def on_message(_: Any, topic: str, payload: bytes, qos: int, given: Any) -> int:
            got.put_nowait((topic, payload, qos, given))
            return 0

        client.on_message = on_message
        client.on_subscribe = lambda *_: subscribed.set()
        await client.connect("127.0.0.1", site.port, version=version)
        client.subscribe("a/+", qos=1)
        async with asyncio.timeout(LIMIT):
            await subscribed.wait()
        more = {"content_type": "text/plain", "user_property": ("k", "v")} if version == MQTTv50 else {}
        client.publish("a/1", b"there", qos=1, **more)
        async with asyncio.timeout(LIMIT):
            topic, payload, qos, given = await got.get()
        assert (topic, payload, qos) == ("a/1", b"there", 1)
        if version == MQTTv50:
            assert given["content_type"] == ["text/plain"]
            assert ("k", "v") in given["user_property"]
        await site.bus.publish("a.2", b"from the bus")
        async with asyncio.timeout(LIMIT):
            assert (await got.get())[:2] == ("a/2", b"from the bus")
        await client.disconnect()

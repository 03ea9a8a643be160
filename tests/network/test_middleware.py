"""Middleware of a topic that crosses LANs: it works once, where a message was published."""

from __future__ import annotations

from typing import Any

from landbridge.testing.fleet import Fleet
from tests.waiting import Reader, eventually


async def test_stages_work_at_the_origin_alone() -> None:
    early: Any = [{"stage": "authorise", "payload": "by"}, {"stage": "compress"}]
    late: Any = [{"stage": "redact", "fields": ["/pin"], "at": "deliver"}]
    refusing: Any = [{"stage": "validate"}, *late]
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", sales=[tokyo])
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.topics.create("orders", middleware=early + late)
            # Whatever is published in Tokyo would be refused: its topic lists no types.
            await eventually(lambda: "orders" in tokyo.terminal.broker.topics)
            await there.topics.update("orders", middleware=refusing)
            for number in range(3):
                await here.publish("orders", {"id": number, "pin": 7, "text": "x" * 1000})
            async with Reader(there.subscribe("orders", group="sales")) as reader:
                for number in range(3):
                    message = await reader.next()
                    await message.ack()
                    value = message.json()
                    assert (value["id"], value["pin"], value["text"]) == (number, "[redacted]", "x" * 1000)
                    assert value["by"] == {"subject": message.headers["lb-producer"]}
        log = tokyo.terminal.broker.topics["orders"].log
        assert log.end == 3
        assert log.bytes > 3000, "its own topic stores plain batches"
        assert paris.terminal.broker.topics["orders"].log.bytes < 1500

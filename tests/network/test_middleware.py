"""Middleware of a topic that crosses LANs: it works once, where a message was published."""

from __future__ import annotations

from typing import Any

from landbridge.protocol import frames
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


async def test_a_group_that_gets_all_does_not_give_it_to_another_at_the_same_terminal() -> None:
    late: Any = [{"stage": "redact", "fields": ["/pin"], "at": "deliver", "except_groups": ["fraud"]}]
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", fraud=[tokyo], sales=[tokyo])
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            await here.topics.create("orders", middleware=late)
            await eventually(lambda: "orders" in tokyo.terminal.broker.topics)
            async with here.publisher("orders") as out:
                for number in range(300):
                    await out.send({"pin": number})
            for group in ("fraud", "sales"):
                async with Reader(there.subscribe("orders", group=group)) as reader:
                    got = [message.json()["pin"] for message in await reader.take(300)]
                    assert got == (list(range(300)) if group == "fraud" else ["[redacted]"] * 300)


async def test_groups_with_other_views_do_not_share_what_waits_in_a_lane() -> None:
    late: Any = [{"stage": "redact", "fields": ["/pin"], "at": "deliver", "except_groups": ["fraud"]}]
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", fraud=[tokyo], sales=[tokyo], stock=[tokyo])
        async with fleet.attach(paris) as here:
            await here.topics.create("orders", middleware=late)
            await here.publish("orders", {"pin": 7}, until="arrived")
            lane = paris.network.forwarder.lanes["orders", tokyo.id]
            sent: list[Any] = []
            for group in ("fraud", "sales", "stock"):
                reader = paris.terminal.broker.topics["orders"].reader_for(group)
                found = await reader.read(0)
                assert found is not None
                sent.append((group, frames.Deliver(1, 1, [(0, 1)]), found[1].encode(), reader.number))
            for each in sent:  # in one turn of the loop, so that nothing is shipped meanwhile
                lane.offer(*each)
            assert [set(queued.legs) for queued in lane.queue] == [{"fraud"}, {"sales", "stock"}]
            lane.queue.clear()

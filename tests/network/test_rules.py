"""Rules at linked terminals: they choose from what is published there and from what arrives, and what they
choose stays there."""

from __future__ import annotations

from typing import Any

import msgspec

from landbridge.broker.server import Terminal
from landbridge.core.names import RULES_GROUP
from landbridge.core.rules.query import read_query, topic_of
from landbridge.testing.fleet import Fleet
from tests.waiting import eventually

PAID = {"state": ["paid"]}
RULE = topic_of(read_query(PAID), "orders")


async def chosen(terminal: Terminal) -> list[Any]:
    log = terminal.broker.topics[RULE].log
    found = await log._read(0, 1 << 20)
    return [msgspec.json.decode(payload)["n"] for _, batch in found for payload in batch.payloads()]


def has_looked_at(terminal: Terminal, messages: int) -> bool:
    topic = terminal.broker.topics.get("orders")
    if topic is None or RULES_GROUP not in topic.groups:
        return False
    return topic.groups[RULES_GROUP].delivery.cursor.floor == topic.log.end == messages


async def test_a_rule_has_what_arrives_and_its_topic_does_not_cross(crashes: list[Any]) -> None:
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.client("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
            for bus in (here, there):
                assert (await bus.rules.create(PAID, "orders")).rule == RULE
            for n in range(6):
                await here.publish("orders", {"n": n, "state": "paid" if n % 2 else "open"}, until="arrived")
            for member in (paris, tokyo):
                await eventually(lambda member=member: has_looked_at(member.terminal, 6))
                await member.terminal.broker.drain()
                assert await chosen(member.terminal) == [1, 3, 5]
            # A group of the rule's topic gets them without regard to what the arrivals were for.
            async for message in there.subscribe(RULE, group="audit"):
                await message.ack(wait=True)
                if message.json()["n"] == 5:
                    break
            await there.publish("orders", {"n": 7, "state": "paid"})
            await eventually(lambda: has_looked_at(tokyo.terminal, 7))
            assert await chosen(paris.terminal) == [1, 3, 5]

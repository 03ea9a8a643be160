"""Rules at their edges: where a rule begins, what is left of one that was deleted, commits that fail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.core.names import RULES_GROUP
from landbridge.errors import BacklogFull, Forbidden, StoreFull
from landbridge.protocol.operations.topics import RetentionOptions
from landbridge.stores.memory import MemoryStore
from landbridge.testing import attach, run_terminal
from landbridge.testing.faults import FaultyStore
from tests.contracts.test_rules import LARGE, PAID, payloads, until_routed
from tests.waiting import Reader, eventually


async def test_rules_that_choose_again_begin_where_they_were_made(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.rules.create(PAID, "orders")
        for n in range(4):
            await bus.publish("orders", {"state": "paid", "amount": 500, "n": n})
        second = (await bus.rules.create(LARGE, "orders")).rule
        await bus.publish("orders", {"state": "paid", "amount": 500, "n": 4})
        await until_routed(terminal, "orders")
        await bus.groups.seek("orders", RULES_GROUP, to=0)
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, second)] == [4, 4]


async def test_dead_letters_of_a_deleted_rule_are_for_those_who_could_read_it(terminal: Terminal) -> None:
    async with attach(terminal) as admin:
        rule = (await admin.rules.create(PAID)).rule
        await admin.publish(None, {"state": "paid"})
        await until_routed(terminal)
        async with Reader(admin.subscribe(rule, group="g")) as reader:
            await (await reader.next()).bury("bad")
        dead = f"{rule}.dead"
        await eventually(lambda: dead in terminal.broker.topics)
        await admin.rules.delete(rule, force=True)
        async with attach(terminal, subject="ann", scopes=["subscribe:#"]) as bus:
            with pytest.raises(Forbidden):
                await bus.fetch(dead, 0)


async def test_a_rule_whose_deletion_failed_has_missed_nothing(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        kept = (await bus.rules.create(LARGE, "orders")).rule
        rule = (await bus.rules.create(PAID, "orders")).rule
        await bus.publish("orders", {"state": "paid", "amount": 500, "n": 0})
        await until_routed(terminal, "orders")
        topic, route = terminal.broker.topics[rule], terminal.routing.routes["orders"]
        stored: list[asyncio.Task[Any]] = []
        delete_topic = terminal.broker.table.delete_topic

        async def delete(*given: Any) -> None:
            """A message comes before the deletion, and the disk fails with the deletion."""
            store.gate.clear()
            paid = {"state": "paid", "amount": 500, "n": 1}
            stored.append(asyncio.create_task(bus.publish("orders", paid)))
            await eventually(lambda: terminal.broker.units.writer_for("orders").is_busy)
            store.gate.set()
            await eventually(lambda: terminal.broker.topics["orders"].log.end == 2)
            await until_routed(terminal, "orders")
            store.failing = True
            try:
                await delete_topic(*given)
            finally:
                store.failing = False

        monkeypatch.setattr(terminal.broker.table, "delete_topic", delete)
        with pytest.raises(StoreFull):
            await bus.rules.delete(rule, force=True)
        await stored[0]
        await until_routed(terminal, "orders")
        assert [each["n"] for each in await payloads(terminal, kept)] == [0, 1]
        assert [each["n"] for each in await payloads(terminal, rule)] == [0, 1]
        assert (topic.deleted, route.rules[rule]) == (False, topic)


async def test_wildcards_show_nothing_of_rules_whose_source_one_may_not_read(terminal: Terminal) -> None:
    async with attach(terminal) as admin:
        rule = (await admin.rules.create(PAID)).rule
        await admin.groups.create(rule, "g")
        for scopes, shows in ((["subscribe:#", "publish:#"], False), (["observe"], True)):
            async with attach(terminal, subject="ann", scopes=scopes) as bus:
                assert (rule in [each.name for each in await bus.topics.list()]) == shows
                assert (rule in [each.topic for each in await bus.groups.list()]) == shows
                if shows:
                    assert (await bus.topics.show(rule)).options.rule is not None
                else:
                    with pytest.raises(Forbidden):
                        await bus.topics.show(rule)


async def test_costly_rules_of_one_source_hold_up_no_other_one(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        paid = (await bus.rules.create(PAID, "orders")).rule
        for more in range(25):
            path = f"$..[?count($..*) > {1000 + more}]"
            await bus.rules.create({"kind": "jsonpath", "path": path}, "costly")
        async with bus.publisher("costly") as out:
            for _ in range(1000):
                await out.send(list(range(60)))
        slow = terminal.broker.topics["costly"]
        rules = slow.groups[RULES_GROUP].delivery
        await eventually(lambda: rules.cursor.floor > 0)
        for number in range(3):
            await bus.publish("orders", {"state": "paid", "n": number})
            await until_routed(terminal, "orders")
        assert len(await payloads(terminal, paid)) == 3
        assert rules.cursor.floor < slow.log.end  # they are still at work


async def test_the_topic_of_a_rule_keeps_no_more_than_its_source(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        short = RetentionOptions(max_age=3600.0, max_bytes=1 << 20, discard="any")
        await bus.topics.create("orders", retention=short, max_backlog=4096)
        await bus.topics.create("bills", retention=RetentionOptions(max_age=30 * 86400.0, settled=True))
        orders = (await bus.rules.create(PAID, "orders")).rule
        bills = (await bus.rules.create(PAID, "bills")).rule
        kept = (await bus.topics.show(orders)).options
        assert (kept.retention.max_age, kept.retention.max_bytes, kept.retention.discard) == (
            3600.0, 1 << 20, "any",
        )  # fmt: skip
        assert kept.max_backlog == 4096
        kept = (await bus.topics.show(bills)).options
        assert (kept.retention.max_age, kept.retention.settled) == (7 * 86400.0, False)


async def test_an_abandoned_group_of_a_rule_holds_no_more_than_its_topic_may(terminal: Terminal) -> None:
    async with attach(terminal, patience=0.0) as bus:
        await bus.topics.create("orders", max_backlog=1 << 20)
        rule = (await bus.rules.create(PAID, "orders")).rule
        other = (await bus.rules.create(LARGE, "orders")).rule
        await bus.topics.update(rule, max_backlog=4096)
        await bus.groups.create(rule, "abandoned", start="earliest")
        with pytest.raises(BacklogFull, match=rule):
            for _ in range(100):
                await bus.publish("orders", {"state": "paid", "note": "x" * 500})
                await until_routed(terminal, "orders")
        held = terminal.broker.topics[rule].log.bytes
        assert 4096 <= held < 3 * 4096
        await bus.groups.delete(rule, "abandoned", force=True)
        await bus.publish("orders", {"amount": 500})
        await until_routed(terminal, "orders")
        assert len(await payloads(terminal, other)) == 1

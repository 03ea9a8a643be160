"""Outputs and acks in one atomic commit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.errors import BadName, BadRequest, Forbidden, LeaseLost, StoreFull, TooLarge
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import Reader, eventually, turns


def end(terminal: Terminal, topic: str) -> int:
    found = terminal.broker.topics.get(topic)
    return 0 if found is None else found.log.end


def floor(terminal: Terminal, topic: str, group: str = "g") -> int:
    return terminal.broker.table.group(topic, group).delivery.cursor.floor


async def test_outputs_and_acks_happen_together(terminal: Terminal, bus: Any) -> None:
    await bus.publish("orders", b"1")
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        message = await reader.next()
        async with bus.transaction() as t:
            await t.publish("invoices", b"i1", key="k")
            await t.publish("invoices", b"i2")
            await t.publish("mail", {"to": "x"})
            await t.ack(message)
            assert (end(terminal, "invoices"), end(terminal, "mail")) == (0, 0)
        assert (end(terminal, "invoices"), end(terminal, "mail")) == (2, 1)
        assert floor(terminal, "orders") == 1
    async with Reader(bus.subscribe("invoices", group="g")) as reader:
        assert await reader.payloads(2) == [b"i1", b"i2"]


async def test_whole_batches_are_acked(terminal: Terminal, bus: Any) -> None:
    async with bus.publisher("orders") as out:
        await out.send_many([b"x"] * 100)
    async with Reader(bus.subscribe("orders", group="g"), batches=True) as reader:
        seen = 0
        while seen < 100:
            batch = await reader.next()
            seen += len(batch)
            async with bus.transaction() as t:
                for payload in batch.payloads:
                    await t.publish("copies", payload)
                await t.ack(batch)
    assert (end(terminal, "copies"), floor(terminal, "orders")) == (100, 100)


async def test_an_exception_in_the_block_means_nothing_happens(terminal: Terminal, bus: Any) -> None:
    await bus.publish("orders", b"1")
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        message = await reader.next()
        with pytest.raises(ZeroDivisionError):
            async with bus.transaction() as t:
                await t.publish("invoices", b"i")
                await t.ack(message)
                raise ZeroDivisionError
        await message.ack(wait=True)  # it is still ours
    assert end(terminal, "invoices") == 0


async def test_an_ended_transaction_takes_nothing_more(bus: Any) -> None:
    async with bus.transaction() as t:
        await t.publish("a", b"1")
    with pytest.raises(BadRequest):
        await t.publish("a", b"2")


async def test_an_empty_transaction_is_nothing(bus: Any) -> None:
    async with bus.transaction():
        pass


async def test_a_lost_lease_makes_nothing_happen(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=10.0)
        for number in range(3):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g", prefetch=1)) as reader:
            late = await reader.next()
            clock.advance(11)
            again = await reader.next()
            with pytest.raises(LeaseLost):
                async with bus.transaction() as t:
                    await t.publish("invoices", b"late")
                    await t.ack(late)
            assert end(timed, "invoices") == 0
            assert floor(timed, "orders") == 0
            async with bus.transaction() as t:
                await t.publish("invoices", b"0")
                await t.ack(again)
            for expected in (b"1", b"2"):
                message = await reader.next()
                assert message.payload == expected
                async with bus.transaction() as t:
                    await t.publish("invoices", message.payload)
                    await t.ack(message)
        assert (end(timed, "invoices"), floor(timed, "orders")) == (3, 3)


async def test_one_lost_lease_among_many_makes_nothing_happen(terminal: Terminal, bus: Any) -> None:
    for number in range(3):
        await bus.publish("orders", b"%d" % number)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        messages = await reader.take(3)
        await messages[1].ack(wait=True)
        with pytest.raises(LeaseLost):
            async with bus.transaction() as t:
                await t.publish("invoices", b"x")
                for message in messages:
                    await t.ack(message)
        assert end(terminal, "invoices") == 0
        assert floor(terminal, "orders") == 0
        await messages[0].ack(wait=True)
        await messages[2].ack(wait=True)
    assert floor(terminal, "orders") == 3


async def test_acks_of_several_topics_and_groups(terminal: Terminal, bus: Any) -> None:
    await bus.publish("a", b"1")
    await bus.publish("b", b"2")
    async with (
        Reader(bus.subscribe("a", group="g")) as a,
        Reader(bus.subscribe("b", group="g")) as b,
        Reader(bus.subscribe("b", group="h")) as h,
        bus.transaction() as t,
    ):
        for reader in (a, b, h):
            await t.ack(await reader.next())
    assert [floor(terminal, "a"), floor(terminal, "b"), floor(terminal, "b", "h")] == [1, 1, 1]


@pytest.mark.parametrize("what", ["forbidden", "name", "too large"])
async def test_a_refused_transaction_harms_nothing_that_follows(
    terminal: Terminal, way: Way, what: str
) -> None:
    scopes = ["publish:orders", "subscribe:orders", "publish:out"]
    async with way.connect(terminal, scopes=scopes) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            with pytest.raises((Forbidden, BadName, TooLarge)):
                async with bus.transaction() as t:
                    await t.publish("out", b"x")
                    await t.ack(message)
                    if what == "forbidden":
                        await t.publish("secret", b"x")
                    elif what == "name":
                        await t.publish("no such name", b"x")
                    else:
                        await t.publish("out", bytes(5 << 20))
            assert end(terminal, "out") == 0
            for _ in range(3):
                async with bus.transaction() as t:
                    await t.publish("out", b"y")
            async with bus.transaction() as t:
                await t.publish("out", b"z")
                await t.ack(message)
    assert end(terminal, "out") == 4
    assert floor(terminal, "orders") == 1


async def test_transactions_at_the_same_time(terminal: Terminal, bus: Any) -> None:
    """Half of them must fail, and the other half must not notice."""
    for number in range(50):
        await bus.publish("orders", b"%d" % number)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        messages = await reader.take(50)
        for message in messages[::2]:
            await message.ack(wait=True)

        async def move(message: Any) -> bool:
            try:
                async with bus.transaction() as t:
                    await t.publish("out", message.payload)
                    await t.ack(message)
            except LeaseLost:
                return False
            return True

        moved = await asyncio.gather(*map(move, messages))
    assert moved == [False, True] * 25
    async with Reader(bus.subscribe("out", group="g")) as reader:
        assert sorted(map(int, await reader.payloads(25))) == list(range(1, 50, 2))
    assert end(terminal, "out") == 25
    assert floor(terminal, "orders") == 50


@pytest.mark.parametrize("error", [StoreFull("no room (as told)")], ids=["full"])
async def test_a_failed_commit_shows_nothing_and_the_message_comes_again(
    crashes: list[Any], error: StoreFull
) -> None:
    store = FaultyStore(MemoryStore(), error=error)
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"1")
        await bus.call("topic.create", name="invoices")
        async with (
            Reader(bus.subscribe("orders", group="g")) as reader,
            Reader(bus.subscribe("invoices", group="g")) as invoices,
        ):
            message = await reader.next()
            await terminal.broker.drain()
            store.failing = True
            with pytest.raises(StoreFull):
                async with bus.transaction() as t:
                    await t.publish("invoices", b"i")
                    await t.ack(message)
            assert end(terminal, "invoices") == 0
            assert floor(terminal, "orders") == 0
            store.failing = False
            again = await reader.next()
            assert again.payload == b"1"
            async with bus.transaction() as t:
                await t.publish("invoices", b"j")
                await t.ack(again)
            assert await invoices.payloads(1) == [b"j"]
    # And that is what the disk says too.
    async with run_terminal(store._store) as terminal:
        assert (end(terminal, "invoices"), floor(terminal, "orders")) == (1, 1)


async def test_a_lost_answer_is_asked_for_again_and_happens_once(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        for number in range(20):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g", prefetch=1)) as reader:
            for _ in range(20):
                message = await reader.next()
                (connection,) = terminal.connections
                send, connection.send = connection.send, lambda *frame: None  # type: ignore[method-assign]
                transaction = asyncio.ensure_future(commit(bus, message))
                before = end(terminal, "out")
                await eventually(lambda before=before: end(terminal, "out") == before + 1)
                connection.send = send  # type: ignore[method-assign]
                connection._transport.abort()
                await transaction
    assert (end(terminal, "out"), floor(terminal, "orders")) == (20, 20)
    assert terminal.broker.totals.repeated == 20


async def commit(bus: Any, message: Any) -> None:
    async with bus.transaction() as t:
        await t.publish("out", message.payload)
        await t.ack(message)


async def test_a_transaction_at_shutdown_is_whole_or_not_at_all(crashes: list[Any]) -> None:
    """The terminal closes right after the frame has come: both halves must be on disk, or neither."""
    for wait in range(6):
        store = MemoryStore()
        async with run_terminal(store) as terminal:
            bus = await attach(terminal).open()
            await bus.publish("orders", b"1")
            reader = await Reader(bus.subscribe("orders", group="g")).__aenter__()
            transaction = asyncio.ensure_future(commit(bus, await reader.next()))
            await turns(wait)
        transaction.cancel()
        await asyncio.gather(transaction, return_exceptions=True)
        await bus.close()
        async with run_terminal(store) as terminal:
            assert end(terminal, "out") == floor(terminal, "orders"), wait


async def test_a_transaction_that_is_too_large_is_refused(crashes: list[Any]) -> None:
    limits = Limits(max_frame=2 << 20, max_payload=1 << 20)
    async with run_terminal(limits=limits) as terminal, attach(terminal) as bus:
        with pytest.raises(TooLarge):
            async with bus.transaction() as t:
                for _ in range(5):
                    await t.publish("out", bytes(1 << 19))
        assert (await bus.publish("out", b"1")).offset == 0

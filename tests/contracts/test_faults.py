"""What a failing store does to a running terminal: nothing is acked that isn't stored, and it recovers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.errors import BusError, StoreFailed, StoreFull
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FaultyStore, attach, run_terminal
from tests.waiting import Reader, eventually


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def faulty(store: FaultyStore, crashes: list[Any]) -> AsyncIterator[Terminal]:
    async with run_terminal(store) as terminal:
        yield terminal
        store.failing = False
        store.gate.set()


def numbers(payloads: list[bytes]) -> list[int]:
    return list(map(int, payloads))


async def on_disk(store: FaultyStore, topic: str) -> list[int]:
    """What another start would find."""
    async with (
        run_terminal(store._store) as terminal,
        attach(terminal) as bus,
        Reader(bus.subscribe(topic, group="check", start="earliest")) as reader,
    ):
        return numbers(await reader.payloads(terminal.broker.topics[topic].log.end))


async def test_a_full_disk_is_waited_out(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty, patience=30.0) as bus:
        await bus.publish("orders", b"0")
        store.failing = True
        publishing = asyncio.ensure_future(bus.publish("orders", b"1"))
        await eventually(lambda: faulty.broker.totals.refused >= 3)
        assert not publishing.done()
        store.failing = False
        assert (await publishing).offset == 1


async def test_a_full_disk_is_told_when_patience_is_over(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty, patience=0.0) as bus:
        await bus.publish("orders", b"0")
        store.failing = True
        with pytest.raises(StoreFull) as caught:
            await bus.publish("orders", b"1")
        assert caught.value.retriable
        async with bus.publisher("orders") as out:
            with pytest.raises(StoreFull):
                await out.send(b"2")
                await out.flush()
            store.failing = False
            await out.send(b"3")
        assert (await bus.publish("orders", b"4")).offset == 2
    assert faulty.broker.topics["orders"].log.end == 3


async def test_every_other_commit_fails_and_nothing_is_lost_or_doubled(
    store: FaultyStore, crashes: list[Any]
) -> None:
    store.fail_on = set(range(6, 400, 2))
    acked: list[int] = []
    async with run_terminal(store) as terminal, attach(terminal, patience=60.0) as bus:

        async def publish(number: int) -> None:
            await bus.publish("orders", b"%d" % number)
            acked.append(number)

        async with bus.publisher("pipelined") as out:
            for number in range(100):
                await out.send(b"%d" % number)
                if number % 10 == 0:
                    await asyncio.sleep(0)
        await asyncio.gather(*map(publish, range(50)))
        store.fail_on = set()
    assert sorted(acked) == list(range(50))
    assert sorted(await on_disk(store, "orders")) == list(range(50))
    assert await on_disk(store, "pipelined") == list(range(100))


async def test_reading_goes_on_while_the_disk_is_full(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty) as bus:
        async with bus.publisher("orders") as out:
            await out.send_many([b"%d" % n for n in range(100)])
        await bus.call("group.create", topic="orders", name="g")
        await faulty.broker.drain()
        store.failing = True
        async with (
            Reader(bus.subscribe("orders", group="g")) as reader,
            Reader(bus.subscribe("orders", start="earliest")) as ephemeral,
        ):
            assert numbers([m.payload for m in await reader.take(100)]) == list(range(100))
            assert numbers(await ephemeral.payloads(100)) == list(range(100))
            store.failing = False


async def test_an_ack_that_is_not_stored_is_refused_and_the_message_comes_again(
    faulty: Terminal, store: FaultyStore
) -> None:
    async with attach(faulty) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            await faulty.broker.drain()
            store.failing = True
            with pytest.raises(StoreFull):
                await message.ack(wait=True)
            assert faulty.broker.table.group("orders", "g").delivery.cursor.floor == 0
            store.failing = False
            again = await reader.next()
            assert again.payload == b"1"
            await again.ack(wait=True)


async def test_acks_that_nobody_waits_for_do_not_end_the_subscription(
    faulty: Terminal, store: FaultyStore
) -> None:
    async with attach(faulty) as bus:
        for number in range(3):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            messages = await reader.take(3)
            await faulty.broker.drain()
            commits, store.failing = store.commits, True
            for message in messages:
                await message.ack()
            await eventually(lambda: store.commits > commits)
            store.failing = False
            group = faulty.broker.table.group("orders", "g")
            while group.delivery.cursor.floor < 3:
                await (await reader.next()).ack(wait=True)


async def test_requeue_and_bury_while_the_disk_is_full(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty) as bus:
        for number in range(2):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            first, second = await reader.take(2)
            await faulty.broker.drain()
            store.failing = True
            with pytest.raises(StoreFull):
                await first.bury("bad")
            with pytest.raises(StoreFull):
                await second.requeue(after=0.0)
            store.failing = False
            # Whatever became of them: nothing is lost.
            group = faulty.broker.table.group("orders", "g")
            dead: set[bytes] = set()
            while group.delivery.cursor.floor < 2:
                if group.delivery.pending or group.delivery.leases or reader.subscription._batches:
                    await (await reader.next()).ack(wait=True)
                await asyncio.sleep(0.01)
            if "orders.dead" in faulty.broker.topics:
                async with Reader(bus.subscribe("orders.dead", group="g")) as letters:
                    dead = set(await letters.payloads(faulty.broker.topics["orders.dead"].log.end))
            assert dead <= {b"0"}


async def test_operations_on_a_full_disk_are_refused(store: FaultyStore, crashes: list[Any]) -> None:
    async with run_terminal(store) as faulty, attach(faulty) as bus:
        await bus.publish("orders", b"1")
        store.failing = True
        for op, args in (
            ("topic.create", {"name": "new"}),
            ("group.create", {"topic": "orders", "name": "new"}),
            ("token.revoke", {"subject": "nobody"}),
            ("status.levels", {"default": "errors"}),
        ):
            with pytest.raises(StoreFull):
                await bus.call(op, **args)
        store.failing = False
        await bus.call("topic.create", name="new")
        await bus.call("group.create", topic="orders", name="new")
    async with run_terminal(store._store) as terminal:
        pass
    assert "new" in terminal.broker.topics
    assert "new" in terminal.broker.topics["orders"].groups


async def test_a_revocation_that_is_not_stored_does_not_count(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty, subject="root") as root, attach(faulty, subject="svc") as svc:
        store.failing = True
        with pytest.raises(StoreFull):
            await root.call("token.revoke", subject="svc")
        store.failing = False
        await svc.ping()


async def test_a_broken_disk_acks_nothing(crashes: list[Any]) -> None:
    """StoreFailed: the outcome is unknown, so nobody is told that it is stored, and it isn't tried again."""
    store = FaultyStore(MemoryStore(), error=StoreFailed("the disk is gone (as told)"))
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"0")
        store.failing = True
        with pytest.raises(StoreFailed):
            await bus.publish("orders", b"1")
        with pytest.raises(StoreFailed):
            async with bus.transaction() as t:
                await t.publish("orders", b"2")
        async with Reader(bus.subscribe("orders", group="g", start="earliest")) as reader:
            assert (await reader.next()).payload == b"0"
        store.failing = False
    assert await on_disk(store, "orders") == [0]


@pytest.mark.parametrize("error", [ValueError("a bug"), MemoryError(), OSError(5, "EIO")])
async def test_a_store_that_breaks_its_contract(crashes: list[Any], error: Exception) -> None:
    class Broken(FaultyStore):
        async def commit(self, unit: int, epoch: int, writes: Any) -> Any:
            if self.failing:
                raise error
            return await super().commit(unit, epoch, writes)

    store = Broken(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"0")
        store.failing = True
        with pytest.raises(BusError):
            await bus.publish("orders", b"1")
        store.failing = False
        await bus.ping()


async def test_a_slow_disk_groups_what_waits(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty) as bus:
        await bus.publish("orders", b"first")
        await faulty.broker.drain()
        before = store.commits
        store.gate.clear()
        publishes = [asyncio.ensure_future(bus.publish("orders", b"%d" % n)) for n in range(50)]
        for _ in range(20):
            await bus.ping()
        store.gate.set()
        await asyncio.gather(*publishes)
        assert store.commits - before <= 4, "one under way, one for all that waited"

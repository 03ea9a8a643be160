"""Units of a store: what one commit can change, who owns them, and what crosses from one to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from landbridge.broker.handover import KIND as HANDOVER
from landbridge.broker.rule_topics import unit_of
from landbridge.broker.server import Terminal
from landbridge.core.log.store import Append, DeleteDocument, PutDocument, PutLedger, Store, Trim
from landbridge.core.store_address import parse_address
from landbridge.errors import BadRequest, Fenced
from landbridge.node.stores import store_at
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FaultyStore, attach, run_terminal
from tests.servers import name_of, shared_postgres, shared_valkey
from tests.waiting import LIMIT, Reader, eventually

UNITS = 4
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda folder: MemoryStore(),
    "memory of four units": lambda folder: MemoryStore(units=UNITS),
    "journal": lambda folder: JournalStore(folder / "bus"),
    "redis of four units": lambda folder: store_at(
        parse_address(shared_valkey().url(name_of(folder), units=UNITS))
    ),
    "postgres of four units": lambda folder: store_at(
        parse_address(shared_postgres().url(name_of(folder), units=UNITS))
    ),
}


@pytest.mark.parametrize("name", STORES)
async def test_a_new_owner_fences_the_old_one(name: str, tmp_path: Path) -> None:
    store = STORES[name](tmp_path)
    await store.open()
    first = await store.claim(0)
    await store.commit(0, first, [PutDocument("a", "1", b"first")])
    second = await store.claim(0)
    assert second > first
    with pytest.raises(Fenced):
        await store.commit(0, first, [PutDocument("a", "1", b"late"), DeleteDocument("a", "1")])
    assert await store.documents(0, "a") == [("1", b"first")]
    await store.commit(0, second, [PutDocument("a", "1", b"second")])
    await store.close()
    await store.open()
    third = await store.claim(0)
    assert third > second
    with pytest.raises(Fenced):
        await store.commit(0, second, [])
    await store.close()


@pytest.mark.parametrize("name", STORES)
async def test_there_is_no_unit_beyond_the_last(name: str, tmp_path: Path) -> None:
    store = STORES[name](tmp_path)
    await store.open()
    epoch = await store.claim(0)
    for call in (store.claim(store.units), store.logs(-1), store.documents(store.units, "a")):
        with pytest.raises(BadRequest):
            await call
    with pytest.raises(BadRequest):
        await store.commit(store.units, epoch, [])
    await store.close()


async def test_a_commit_across_units_is_refused_whole() -> None:
    store = MemoryStore(units=UNITS)
    await store.open()
    epoch = await store.claim(1)
    for write in (Append(6, 0, 1, 0, b"x"), PutLedger(4, b"p", b"e"), Trim(7, 3)):
        with pytest.raises(BadRequest):
            await store.commit(1, epoch, [Append(5, 0, 1, 0, b"x"), write])
    assert await store.logs(1) == {}
    await store.commit(1, epoch, [Append(5, 0, 1, 0, b"x"), PutDocument("a", "1", b"one")])
    assert list(await store.logs(1)) == [5]
    assert await store.logs(2) == {}
    assert await store.documents(0, "a") == []


async def test_a_commit_tells_the_bounds_of_what_it_trimmed() -> None:
    store = MemoryStore()
    await store.open()
    epoch = await store.claim(0)
    trimmed = await store.commit(0, epoch, [Append(1, 0, 2, 0, b"abc"), Append(1, 2, 3, 0, b"d"), Trim(1, 2)])
    assert {log: (bounds.first, bounds.bytes) for log, bounds in trimmed.items()} == {1: (2, 1)}


def in_other_units(topic: str) -> list[str]:
    """Names of topics, one in each unit but the topic's."""
    found = {unit_of(f"other{n}", UNITS): f"other{n}" for n in range(64)}
    found.pop(unit_of(topic, UNITS))
    return list(found.values())


async def handovers(terminal: Terminal) -> int:
    return sum([len(await terminal.store.documents(unit, HANDOVER)) for unit in range(UNITS)])


async def test_a_dead_letter_lives_with_its_topic() -> None:
    assert unit_of("orders.dead", UNITS) == unit_of("orders", UNITS)
    assert {unit_of(name, UNITS) for name in ("$status", "$transit", "$sealed", "$links")} == {0}


async def test_a_transaction_reaches_topics_of_every_unit(terminal: Terminal) -> None:
    others = in_other_units("orders")
    async with attach(terminal) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            async with bus.transaction() as t:
                await t.ack(message)
                for other in [*others, "orders"]:
                    await t.publish(other, other.encode())
        for other in others:
            assert [each.batch.payloads() for each in (await bus.fetch(other, 0)).batches] == [
                [other.encode()]
            ]
        await terminal.broker.drain()
        assert await handovers(terminal) == 0


class Stopping(FaultyStore):
    """Stops before the first commit that appends to a log of another unit than the home."""

    home = -1

    async def commit(self, unit: int, epoch: int, writes: Any) -> Any:
        if self.home >= 0 and unit != self.home and any(isinstance(write, Append) for write in writes):
            await asyncio.Event().wait()
        return await super().commit(unit, epoch, writes)


async def test_outputs_and_acks_in_other_units_survive_a_crash_between_the_commits() -> None:
    """The transaction is committed in its own unit; the terminal dies before the others have their part."""
    memory = MemoryStore(units=UNITS)
    store = Stopping(memory)
    out, source = in_other_units("orders")[:2]
    dead = Terminal(store)
    await dead.open()
    bus = await attach(dead).open()
    await bus.publish("orders", b"1")
    await bus.publish(source, b"2")
    async with (
        Reader(bus.subscribe("orders", group="g")) as one,
        Reader(bus.subscribe(source, group="g")) as two,
    ):
        store.home = unit_of("orders", UNITS)
        t = bus.transaction()
        await t.ack(await one.next())
        await t.ack(await two.next())
        await t.publish(out, b"bill")
        task = asyncio.ensure_future(t.commit())
        await eventually(lambda: dead.broker.table.group("orders", "g").delivery.cursor.floor == 1)
        await eventually(lambda: bool(memory._documents.get((store.home, HANDOVER))))
        task.cancel()
        # kill -9: nothing more of it reaches the disk
        held = {key: dict(found) for key, found in memory._documents.items()}
        assert any(kind == HANDOVER and found for (_, kind), found in held.items())
        memory._is_open = False
        for writer in dead.broker.units.writers:
            writer._store = MemoryStore(units=UNITS)
    async with run_terminal(memory) as again, attach(again) as bus:
        assert again.broker.table.group("orders", "g").delivery.cursor.floor == 1
        assert again.broker.table.group(source, "g").delivery.cursor.floor == 1
        await eventually(lambda: out in again.broker.topics and again.broker.topics[out].log.end == 1)
        await again.broker.drain()
        assert [each.batch.payloads() for each in (await bus.fetch(out, 0)).batches] == [[b"bill"]]
        await eventually(lambda: not any(memory._documents.get((unit, HANDOVER)) for unit in range(UNITS)))
    async with run_terminal(memory) as again, attach(again) as bus:
        assert again.broker.topics[out].log.end == 1, "handed over once"


@pytest.mark.parametrize("name", STORES)
async def test_the_number_of_a_deleted_log_is_never_used_again(name: str, tmp_path: Path) -> None:
    """Not after a restart either: whatever was said of the old log must not be taken for the new one's."""
    store, numbers = STORES[name](tmp_path), set()
    for start in range(3):
        async with run_terminal(store) as terminal, attach(terminal) as bus:
            for _ in range(2):
                await bus.publish("orders", b"1")
                numbers.add(terminal.broker.topics["orders"].log.number)
                await bus.topics.delete("orders", force=True)
        assert len(numbers) == 2 * (start + 1)


class Owing(FaultyStore):
    """Holds a commit that writes a handover until the gate is open, and lets it fail if told to."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.open_gate = asyncio.Event()
        self.stored = True

    async def commit(self, unit: int, epoch: int, writes: Any) -> Any:
        if any(isinstance(write, PutDocument) and write.kind == HANDOVER for write in writes):
            await self.open_gate.wait()
            if not self.stored:
                raise self.error
        return await super().commit(unit, epoch, writes)


@pytest.mark.parametrize("stored", [True, False])
async def test_nobody_gets_what_a_transaction_on_its_way_settles_in_another_unit(stored: bool) -> None:
    """The consumer disconnects while the commit of its transaction is being written."""
    store = Owing(MemoryStore(units=UNITS))
    source = in_other_units("orders")[0]
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"1")
        await bus.publish(source, b"2")
        async with (
            Reader(bus.subscribe("orders", group="g")) as one,
            Reader(bus.subscribe(source, group="g")) as two,
        ):
            t = bus.transaction()
            await t.ack(await one.next())
            await t.ack(await two.next())
            await t.publish("orders", b"bill")
            group = terminal.broker.table.group(source, "g")
            asyncio.get_running_loop().call_later(LIMIT, store.open_gate.set)  # also where the test fails
            task = asyncio.ensure_future(t.commit())
            await eventually(lambda: not group.delivery.leases)
            task.cancel()
            [connection] = terminal.connections
            connection._transport.abort()
            await eventually(lambda: group.own_consumers, "the client has subscribed again")
            assert not group.delivery.pending
            assert not group.delivery.leases
            store.stored = stored
            store.open_gate.set()
            if stored:
                await eventually(lambda: group.delivery.cursor.floor == 1)
            else:
                assert (await two.next()).payload == b"2"


async def test_a_dead_letter_goes_to_a_topic_of_another_unit(terminal: Terminal) -> None:
    other = in_other_units("orders")[0]
    async with attach(terminal) as bus:
        await bus.groups.create("orders", "g", dead_letter=other)
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await (await reader.next()).bury("no good")
        await eventually(
            lambda: other in terminal.broker.topics and terminal.broker.topics[other].log.end == 1
        )
        redriven = await bus.groups.redrive("orders", "g")
        assert redriven.redriven == 1
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert (await reader.next()).payload == b"1"


async def test_nothing_waits_for_a_slow_read_on_the_loop(tmp_path: Path, crashes: list[Any]) -> None:
    """The store is held at a gate: whoever needs it waits, and the loop goes on for everybody else."""
    path = tmp_path / "bus"
    async with run_terminal(JournalStore(path)) as terminal, attach(terminal) as bus:
        for n in range(10):
            await bus.publish("orders", b"%d" % n)
    store = FaultyStore(JournalStore(path))
    async with run_terminal(store) as terminal, attach(terminal) as bus, attach(terminal) as other:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        store.read_gate.clear()
        waiting = [
            asyncio.ensure_future(work)
            for work in (
                bus.fetch("orders", 0),
                bus.publish("orders", b"a producer that the ledger has to be read for"),
                bus.topics.seek_time({"orders": 1}),
                bus.groups.create("orders", "by-time", start=1),
                bus.documents.read("jobs", "a"),
                bus.tokens.list(),
                bus.messages.where("01a1ec751fd8704ab9ea223925160f29-0"),
            )
        ]
        async with Reader(bus.subscribe("orders", group="g")):
            for _ in range(5):
                before = ticks
                await other.ping()
                assert (await other.topics.show("orders")).end == 10
                assert ticks > before
            assert not any(each.done() for each in waiting)
            store.read_gate.set()
            done = await asyncio.gather(*waiting, return_exceptions=True)
        ticking.cancel()
        assert [type(each).__name__ for each in done if isinstance(each, Exception)] == [
            "UnknownDocument",
            "UnknownMessage",
        ]

"""A full disk: publishes are refused, whatever frees room goes through, and publishes go on by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.core.log.store import Append, Bounds, Write
from landbridge.errors import StoreFull
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.small_disk import mounted
from tests.waiting import Reader, eventually

PAYLOAD = bytes(50_000)


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
async def faulty(store: FaultyStore, crashes: list[Any]) -> AsyncIterator[Terminal]:
    async with run_terminal(store) as terminal:
        yield terminal
        store.full = store.failing = False
        store.gate.set()


@pytest.fixture(params=["told", "by surprise"])
def full(store: FaultyStore, request: pytest.FixtureRequest) -> FaultyStore:
    """A store that is full once ``full`` is set; ``by surprise``: a commit is the first to find out."""
    store.full_by_surprise = request.param == "by surprise"
    return store


# -- what goes through


async def test_acks_and_publishes_in_one_commit(faulty: Terminal, full: FaultyStore) -> None:
    async with attach(faulty, patience=0.0) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            await faulty.broker.drain()
            full.full = True
            full.gate.clear()
            first = asyncio.ensure_future(bus.publish("other", b"x"))
            await asyncio.sleep(0.01)
            acked = asyncio.ensure_future(message.ack(wait=True))
            second = asyncio.ensure_future(bus.publish("orders", b"2"))
            await asyncio.sleep(0.01)
            full.gate.set()
            for refused in first, second:
                with pytest.raises(StoreFull):
                    await refused
            await acked
            assert faulty.broker.table.group("orders", "g").delivery.cursor.floor == 1
    async with run_terminal(full._store.copy()) as again:  # type: ignore[attr-defined]
        assert again.broker.table.group("orders", "g").delivery.cursor.floor == 1
        assert again.broker.topics["orders"].log.end == 1


async def test_what_frees_room_goes_through(faulty: Terminal, full: FaultyStore) -> None:
    async with attach(faulty, patience=0.0) as bus:
        for topic in "orders", "old":
            await bus.publish(topic, b"1")
            await bus.groups.create(topic, "g")
        made = await bus.documents.create("jobs", "a", 1)
        full.full = True

        async def beside(work: Any) -> Any:
            """In one commit with a publish."""
            publishing = asyncio.ensure_future(bus.publish("orders", b"2"))
            done = await asyncio.gather(publishing, work, return_exceptions=True)
            assert isinstance(done[0], StoreFull)
            if isinstance(done[1], BaseException):
                raise done[1]

        await beside(bus.topics.delete("old", force=True))
        await beside(bus.groups.seek("orders", "g", to=1))
        await beside(bus.groups.delete("orders", "g"))
        if full.is_low:
            with pytest.raises(StoreFull):
                await bus.documents.update("jobs", "a", 2, version=made.version)
        await beside(bus.documents.delete("jobs", "a"))
        await bus.groups.create("orders", "other")
        assert set(faulty.broker.topics) - {"$status", "$audit"} == {"orders"}
        assert set(faulty.broker.topics["orders"].groups) == {"other"}
        full.full = False
        assert (await bus.publish("orders", b"2")).offset == 1
        # The entries of the audit log were put aside in the commits of the changes, and follow.
        told = [("group.create", "orders/g"), ("group.create", "old/g"), ("topic.delete", "old")]
        told += [("group.seek", "orders/g"), ("group.delete", "orders/g"), ("group.create", "orders/other")]
        await eventually(lambda: faulty.broker.topics["$audit"].log.end == len(told))
        entries = await bus.audit.list()
        assert sorted((entry.operation, entry.name) for entry in entries) == sorted(told)


async def test_retention_goes_on(store: FaultyStore, crashes: list[Any]) -> None:
    clock = FakeClock()
    async with run_terminal(store, clock=clock) as terminal, attach(terminal, patience=0.0) as bus:
        await bus.call("topic.create", name="orders", retention={"max_age": 60.0})
        await bus.publish("orders", b"1")
        store.full = True
        clock.advance(3600)
        await eventually(lambda: terminal.broker.topics["orders"].log.first == 1)
        store.full = False


async def test_a_transaction_that_only_acks_goes_through(faulty: Terminal, full: FaultyStore) -> None:
    async with attach(faulty, patience=0.0) as bus:
        for number in range(2):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            first, second = await reader.take(2)
            await faulty.broker.drain()
            full.full = True
            with pytest.raises(StoreFull):
                async with bus.transaction() as t:
                    await t.ack(first)
                    await t.publish("out", b"x")
            group = faulty.broker.table.group("orders", "g")
            assert group.delivery.cursor.floor == 0, "nothing of the refused transaction has happened"
            async with bus.transaction() as t:
                await t.ack(second)
            assert group.delivery.cursor.is_settled(1)
            assert not group.delivery.cursor.is_settled(0)
            full.full = False


async def test_the_buried_stay_where_they_are_until_there_is_room(
    faulty: Terminal, full: FaultyStore
) -> None:
    async with attach(faulty, patience=0.0) as bus:
        await bus.publish("orders", b"bad")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            await faulty.broker.drain()
            full.full = True
            await message.bury("bad")
            group = faulty.broker.table.group("orders", "g")
            await faulty.broker.drain()
            assert group.delivery.cursor.floor == 0
            assert len(group.delivery.condemned) == 1
            full.full = False
            await eventually(lambda: group.delivery.cursor.floor == 1)
            await eventually(lambda: faulty.broker.topics["orders.dead"].log.end == 1)


async def test_a_status_log_that_has_no_room_waits(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty, patience=0.0) as bus:
        store.full = True
        with pytest.raises(StoreFull):
            await bus.publish("orders", b"1")
        faulty.broker.status_topic.write()
        await faulty.broker.drain()
        assert faulty.broker.status, "what has gathered is kept"
        store.full = False
        faulty.broker.status_topic.write()
        await eventually(lambda: faulty.broker.topics["$status"].log.end > 0)


# -- what fails leaves all as it was


async def test_a_delete_that_fails_leaves_the_topic_as_it_was(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty, patience=0.0) as bus:
        for number in range(3):
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g", prefetch=1)) as reader:
            message = await reader.next()
            await eventually(lambda: faulty.broker.table.group("orders", "g").stored)
            await faulty.broker.drain()
            store.failing = True
            store.gate.clear()
            deleting = asyncio.ensure_future(bus.topics.delete("orders", force=True))
            await eventually(lambda: faulty.broker.topics["orders"].deleted)
            await message.ack()  # while it is about to go
            store.gate.set()
            with pytest.raises(StoreFull):
                await deleting
            store.failing = False
            assert (await bus.publish("orders", b"3")).offset == 3
            assert (await reader.next()).payload == b"1"
            await faulty.broker.drain()
    async with run_terminal(store._store.copy()) as again:  # type: ignore[attr-defined]
        assert again.broker.table.group("orders", "g").delivery.cursor.floor == 1


# -- telling of it


async def status_of_room(bus: Any, terminal: Terminal, count: int) -> list[str]:
    terminal.broker.status_topic.write()
    found: list[str] = []
    async with Reader(bus.subscribe("$status", group=f"watch-{count}", start="earliest")) as reader:
        while len(found) < count:
            event = (await reader.next()).json()
            if event["event"] == "room":
                found.append(event["cause"])
    return found


async def test_room_is_told_before_there_is_none_and_when_it_is_back(
    faulty: Terminal, store: FaultyStore
) -> None:
    gib, room = 1 << 30, faulty.broker.room
    async with attach(faulty, patience=0.0) as bus:
        for usage, is_full, state in (
            ((50 * gib, 100 * gib), False, "enough"),
            ((gib - 1, 100 * gib), False, "little"),
            ((0, 100 * gib), True, "low"),
            ((2 * gib, 100 * gib), False, "enough"),
            ((2 * gib, 10 * gib), False, "enough"),
            ((gib // 20, gib), False, "little"),
        ):
            store.usage, store.full = usage, is_full
            await room.look()
            assert (room.state, room.free) == (state, usage[0])
        assert await status_of_room(bus, faulty, 4) == ["little", "low", "enough", "little"]


async def test_metrics_and_info_tell_of_room_and_damage(faulty: Terminal, store: FaultyStore) -> None:
    async with attach(faulty, patience=0.0) as bus:
        store.usage = (12345, 1 << 40)
        await faulty.broker.room.look()
        text = await bus.terminal.metrics()
        assert "landbridge_disk_free_bytes 12345.0" in text
        assert "landbridge_store_low 0.0" in text
        assert "landbridge_damage_findings 0.0" in text
        store.full = True
        assert "landbridge_store_low 1.0" in await bus.terminal.metrics()
        info = await bus.terminal.info()
        assert (info.free, info.low, info.damage) == (12345, True, [])


async def test_a_change_of_room_is_seen_within_a_second(faulty: Terminal, store: FaultyStore) -> None:
    store.full = True
    faulty.broker.room.tick()
    await eventually(lambda: faulty.broker.room.state == "low")
    store.full = False
    faulty.broker.room.tick()
    await eventually(lambda: faulty.broker.room.state == "enough")


# -- a real disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", 12) as folder:
        yield folder


async def fill(bus: Any, topic: str) -> int:
    """Publish until there is no room. Returns the number of messages that were stored."""
    stored = 0
    with pytest.raises(StoreFull) as caught:
        while True:
            await bus.publish(topic, PAYLOAD)
            stored += 1
    assert caught.value.retriable
    assert "room" in caught.value.hint
    return stored


async def ack_all(bus: Any, topic: str, number: int) -> None:
    async with Reader(bus.subscribe(topic, group="g")) as reader:
        for message in await reader.take(number):
            await message.ack(wait=True)


async def test_the_way_out_of_a_full_disk(small_disk: Path, crashes: list[Any]) -> None:
    data, ballast = small_disk / "bus", small_disk / "ballast"
    async with run_terminal(JournalStore(data)) as terminal, attach(terminal, patience=0.0) as bus:
        await bus.topics.create("queue", kind="queue")
        await bus.publish("queue", PAYLOAD)
        await bus.groups.create("orders", "g")
        first = await fill(bus, "orders")
        assert first > 50
        ballast.write_bytes(b"")
        with (
            pytest.raises(OSError, match="No space"),
            ballast.open("r+b") as file,
        ):  # somebody else takes the last byte
            while True:
                file.write(bytes(4096))
        second = await fill(bus, "orders")
        await ack_all(bus, "orders", first + second)
        with pytest.raises(StoreFull):
            await bus.publish("other", PAYLOAD)
    # Not a byte is free, and yet it starts.
    async with run_terminal(JournalStore(data)) as terminal, attach(terminal, patience=0.0) as bus:
        group = terminal.broker.table.group("orders", "g")
        assert group.delivery.cursor.floor == first + second
        with pytest.raises(StoreFull):
            for _ in range(100):
                await bus.publish("orders", PAYLOAD)
        await ack_all(bus, "queue", 1)
        await bus.topics.delete("orders", force=True)
        patient = attach(terminal, patience=30.0)
        async with patient:
            await patient.publish("orders", PAYLOAD)
        assert await fill(bus, "orders") > 50, "the room of the deleted topic is used again"
        await bus.groups.create("orders", "late")
        await bus.topics.delete("orders", force=True)
        await bus.topics.delete("queue", force=True)


class Watched(FaultyStore):
    """Notes what was committed together."""

    together: list[tuple[int, int]]

    async def commit(self, unit: int, epoch: int, writes: Any) -> Bounds:
        appends = sum(isinstance(write, Append) for write in writes)
        others: list[Write] = [write for write in writes if not isinstance(write, Append)]
        self.together = [*getattr(self, "together", []), (appends, len(others))]
        return await super().commit(unit, epoch, writes)


async def test_acks_under_a_storm_of_publishes_on_a_full_disk(small_disk: Path, crashes: list[Any]) -> None:
    store = Watched(JournalStore(small_disk / "bus"))
    async with run_terminal(store) as terminal, attach(terminal, patience=0.0) as bus:
        stored = await fill(bus, "orders")
        async with Reader(bus.subscribe("orders", group="g", prefetch=10)) as reader:
            for number in range(stored):
                message = await reader.next()
                storm = [bus.publish(f"storm-{number % 3}", PAYLOAD) for _ in range(3)]
                await asyncio.gather(message.ack(wait=True), *storm, return_exceptions=True)
                floor = terminal.broker.table.group("orders", "g").delivery.cursor.floor
                assert floor == number + 1, "the ack was stored, whatever became of the publishes"

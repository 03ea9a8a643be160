"""Units of one store that are owned by several terminals in this process: taken, given up, and fenced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.core.log.batch import Batch, build
from landbridge.errors import BusError, NotOwner
from landbridge.protocol import frames
from landbridge.stores.memory import MemoryHandle, MemoryStore
from landbridge.testing import attach
from tests.waiting import eventually

UNITS = 4


class Alone:
    """A node that knows no other."""

    def owner_of(self, unit: int) -> str:
        return "b"

    def topics(self) -> int:
        return 0

    def check_owned(self, unit: int) -> None:
        pass

    async def append(self, topic: str, producer: bytes, number: int, subject: str, batch: Batch) -> int:
        raise NotOwner("nobody is there")

    async def settle(self, log: int, group: str) -> None:
        raise NotOwner("nobody is there")

    async def find_unit(self, topic: str) -> int:
        raise NotOwner("nobody is there")

    async def reserve(
        self, unit: int, token: bytes, home: int, subject: str, acks: Sequence[frames.ApartAck]
    ) -> None:
        raise NotOwner("nobody is there")

    async def keep(self, unit: int, token: bytes) -> None:
        raise NotOwner("nobody is there")

    async def drop(self, unit: int, token: bytes) -> None:
        raise NotOwner("nobody is there")

    async def decide(self, home: int, token: bytes) -> bool | None:
        raise NotOwner("nobody is there")

    async def prepare(self, publisher: Any, topic: str, batch: Batch) -> Batch:
        raise NotOwner("nobody is there")

    async def look_at(self, topic: str, subject: str) -> str:
        raise NotOwner("nobody is there")

    async def append_rows(
        self, topic: str, producer: bytes, left: int, subject: str, batches: Sequence[Batch]
    ) -> None:
        raise NotOwner("nobody is there")

    async def forget_producer(self, topic: str, producer: bytes) -> None:
        raise NotOwner("nobody is there")

    def announce(self) -> None:
        pass

    def tell(self, topic: str, batch: Batch) -> None:
        pass


@asynccontextmanager
async def node(engine: MemoryStore, *units: int) -> AsyncIterator[Terminal]:
    terminal = Terminal(MemoryHandle(engine))
    await terminal.open_shared(Alone())
    try:
        for unit in units:
            await terminal.take(unit)
        yield terminal
    finally:
        await terminal.close()


def topics_of(terminal: Terminal, unit: int) -> list[str]:
    names = (f"t{number}" for number in range(100))
    return [name for name in names if terminal.broker.units.unit_of(name) == unit]


async def read(bus: Any, topic: str, group: str, count: int) -> list[bytes]:
    found: list[bytes] = []
    async with bus.subscribe(topic, group=group) as messages:
        while len(found) < count:
            message = await messages.poll(timeout=10)
            assert message is not None
            found.append(bytes(message.payload))
            await message.ack()
    return found


async def test_a_unit_is_given_up_and_taken_with_all_that_is_in_it(crashes: list[Any]) -> None:
    engine = MemoryStore(units=UNITS)
    async with node(engine, *range(UNITS)) as first, node(engine) as second:
        names = {unit: topics_of(first, unit)[0] for unit in range(UNITS)}
        async with attach(first) as bus:
            for name in names.values():
                await bus.groups.create(name, "g")
                for number in range(4):
                    await bus.publish(name, b"%d" % number)
                assert await read(bus, name, "g", 2) == [b"0", b"1"]
        await first.give_up(1)
        await second.take(1)
        assert first.broker.units.owned == {0, 2, 3}
        assert second.broker.units.owned == {1}
        async with attach(second) as bus:
            assert await read(bus, names[1], "g", 2) == [b"2", b"3"]
            with pytest.raises(BusError):
                async with attach(second, patience=0.1) as other:
                    await other.call("topic.show", name=names[2])
        async with attach(first) as bus:
            assert await read(bus, names[2], "g", 2) == [b"2", b"3"]


async def test_who_was_fenced_drops_the_unit_and_writes_nothing(crashes: list[Any]) -> None:
    engine = MemoryStore(units=UNITS)
    async with node(engine, *range(UNITS)) as first, node(engine) as second:
        name = topics_of(first, 1)[0]
        async with attach(first) as bus:
            await bus.publish(name, b"1")
        await second.take(1)  # without a word to the first
        topic, batch = first.broker.topics[name], one_message(first)
        with pytest.raises(NotOwner):
            await topic.writer.put(lambda commit: first.broker.committing.append(commit, topic, batch))
        await eventually(lambda: 1 not in first.broker.units.owned)
        assert name not in first.broker.topics
        assert second.broker.topics[name].log.end == 1
        with pytest.raises(NotOwner):
            first.broker.table.topic(name)


def one_message(terminal: Terminal) -> Batch:
    return Batch.decode(build([b"late"], id=terminal.broker.new_id(), time=terminal.broker.clock()))


async def test_trust_of_the_owner_of_unit_0_reaches_the_other_nodes(crashes: list[Any]) -> None:
    engine = MemoryStore(units=UNITS)
    async with node(engine, *range(UNITS)) as first, node(engine) as second:
        async with attach(first) as bus:
            made = await bus.tokens.create("alice", ["publish:*"])
            await bus.call("limits.set", values={"max_payload": 4096})
        assert second.mirror is not None
        await second.mirror.refresh()
        assert second.broker.limits.max_payload == 4096
        now = second.broker.clock()
        assert second.authority.verify(now, made.token).subject == "alice"
        async with attach(first) as bus:
            await bus.call("token.revoke", id=made.id)
        await second.mirror.refresh()
        with pytest.raises(BusError):
            second.authority.verify(now, made.token)


class SlowHandle(MemoryHandle):
    """Reads take turns of the loop, as they do on a server."""

    async def documents(self, unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        for _ in range(3):
            await asyncio.sleep(0)
        return await super().documents(unit, kind, prefix)


async def test_nothing_is_made_in_a_unit_that_is_not_loaded_yet(crashes: list[Any]) -> None:
    engine = MemoryStore(units=UNITS)
    async with node(engine, *range(UNITS)) as first:
        name = topics_of(first, 1)[0]
        async with attach(first) as bus:
            await bus.groups.create(name, "g")
            await bus.publish(name, b"1")
        second = Terminal(SlowHandle(engine))
        await second.open_shared(Alone())
        try:
            taking, refused = asyncio.ensure_future(second.take(1)), 0
            while not taking.done():
                await asyncio.sleep(0)
                if 1 in second.broker.units.owned:
                    assert second.broker.table.topic_for(name).groups.keys() == {"g"}
                    continue
                refused += 1
                with pytest.raises(NotOwner):
                    second.broker.table.topic_for(name)
                with pytest.raises(NotOwner):
                    second.broker.table.topic(name)
            await taking
            assert refused > 3
            assert second.broker.topics[name].log.end == 1
        finally:
            await second.close()

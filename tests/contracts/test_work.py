"""Topics of kind work: any producers, one group, and consumers that share its messages."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.errors import BadRequest, QueueTaken
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import Reader, eventually


@pytest.fixture
async def work(bus: Any) -> Any:
    """A bus that has made the work queue ``jobs``."""
    await bus.topics.create("jobs", kind="work")
    return bus


async def test_several_producers_and_consumers_settle_each_message_once(
    terminal: Terminal, work: Any, way: Way
) -> None:
    one, two = way.connect(terminal, subject="p1"), way.connect(terminal, subject="p2")
    async with one as p1, two as p2:
        crew = Reader(p1.subscribe("jobs")), Reader(p2.subscribe("jobs", group="workers"))
        async with crew[0] as c1, crew[1] as c2:
            for number in range(20):
                await (p1, p2)[number % 2].publish("jobs", b"%d" % number)
            seen: list[bytes] = []

            async def take(reader: Reader) -> None:
                while True:
                    seen.extend(await reader.payloads(1))

            taking = [asyncio.ensure_future(take(reader)) for reader in (c1, c2)]
            await eventually(lambda: len(seen) == 20)
            assert sorted(map(int, seen)) == list(range(20))
            for task in taking:
                task.cancel()
            await asyncio.gather(*taking, return_exceptions=True)


async def test_a_second_group_is_refused_with_the_way_to_go_on(work: Any) -> None:
    await work.groups.create("jobs", "crew")
    for refused in (work.groups.create("jobs", "others"), work.subscribe("jobs", group="others").open()):
        with pytest.raises(QueueTaken) as error:
            await refused
        assert "'crew'" in error.value.hint
    async with Reader(work.subscribe("jobs")) as reader:  # no group: the one that there is
        await work.publish("jobs", b"1")
        assert await reader.payloads(1) == [b"1"]


async def test_what_is_settled_is_removed_and_acks_are_waited_for() -> None:
    clock, store = FakeClock(), FaultyStore(MemoryStore(units=4))
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        await bus.topics.create("jobs", kind="work")
        for number in range(3):
            await bus.publish("jobs", b"%d" % number)
        async with bus.subscribe("jobs") as jobs:
            stream = aiter(jobs)
            message = await anext(stream)
            store.gate.clear()
            ack = asyncio.ensure_future(message.ack())  # type: ignore[arg-type]
            await asyncio.sleep(0)
            assert not ack.done()
            store.gate.set()
            await ack
            for _ in range(2):
                await (await anext(stream)).ack()
        clock.advance(5)
        await eventually(lambda: terminal.broker.topics["jobs"].log.first == 3)


async def test_one_consumer_does_not_hold_what_others_could_work_on(terminal: Terminal, work: Any) -> None:
    def held() -> list[int]:
        group = terminal.broker.topics["jobs"].groups["workers"]
        return [group.delivery.held_by(number)[0] for number in group.consumers]

    for number in range(40):
        await work.publish("jobs", b"%d" % number)
    async with attach(terminal) as first, attach(terminal) as second:
        async with Reader(first.subscribe("jobs", prefetch=1000)):
            await eventually(lambda: held() == [16])
            async with Reader(second.subscribe("jobs", prefetch=4)):
                await eventually(lambda: held() == [16, 4])
        await work.topics.update("jobs", prefetch=30)
        async with Reader(first.subscribe("jobs", prefetch=1000)):
            await eventually(lambda: held() == [30])


@pytest.mark.parametrize("units", [1, 4])
async def test_killed_consumers_lose_and_double_nothing(units: int) -> None:
    """Each job is done in a transaction: its ack and its result, both or none. Consumers are cut off again
    and again, in the middle of what they do."""
    jobs = 120
    async with run_terminal(MemoryStore(units=units)) as terminal, attach(terminal) as bus:
        await bus.topics.create("jobs", kind="work")
        await bus.groups.create("jobs", "workers", backoff=0.0, max_attempts=1000)

        async def produce(name: str) -> None:
            async with attach(terminal, subject=name) as own, own.publisher("jobs") as publisher:
                for number in range(jobs // 3):
                    await publisher.send(f"{name}-{number}".encode())

        async def consume(number: int) -> None:
            async with attach(terminal, subject=f"c{number}") as own, own.subscribe("jobs") as stream:
                async for message in stream:
                    async with own.transaction() as t:
                        await t.publish("results", message.payload)
                        await t.ack(message)

        async def trouble(number: int) -> None:
            """A consumer that does some jobs, begins with more, and is killed."""
            for round in range(4):
                own = attach(terminal, subject=f"k{number}")
                await own.open()
                stream = aiter(own.subscribe("jobs"))
                for _ in range(round + 1):
                    message = await asyncio.wait_for(anext(stream), 10)
                    async with own.transaction() as t:
                        await t.publish("results", message.payload)
                        await t.ack(message)
                    if done():
                        return
                for connection in list(terminal.connections):
                    if connection.subject == f"k{number}":
                        connection._transport.abort()
                own.closed = own.closed or QueueTaken("killed")  # it doesn't come back
                await asyncio.sleep(0)

        def done() -> bool:
            found = terminal.broker.topics.get("results")
            return found is not None and found.log.end >= jobs - 20

        killed = [asyncio.ensure_future(trouble(number)) for number in range(2)]
        consumers = [asyncio.ensure_future(consume(number)) for number in range(3)]
        await asyncio.gather(*(produce(name) for name in "abc"))
        await eventually(
            lambda: terminal.broker.topics["jobs"].groups["workers"].delivery.cursor.lag(jobs) == 0
        )
        await eventually(lambda: terminal.broker.topics["results"].log.end >= jobs)
        for task in (*killed, *consumers):
            task.cancel()
        await asyncio.gather(*killed, *consumers, return_exceptions=True)
        found = await bus.fetch("results", 0)
        results = Counter(payload for each in found.batches for payload in each.batch.payloads())
        assert results == Counter(f"{name}-{n}".encode() for name in "abc" for n in range(jobs // 3))


@pytest.mark.parametrize(
    "options",
    [{"kind": "work", "producer": "a"}, {"kind": "stream", "prefetch": 3}, {"kind": "work", "prefetch": 0}],
)
async def test_options_that_make_no_sense_are_refused(bus: Any, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        await bus.topics.create("jobs", **options)


async def test_it_can_settle_on_delivery(bus: Any) -> None:
    await bus.topics.create("jobs", kind="work", delivery="at-most-once")
    await bus.publish("jobs", b"1")
    async with Reader(bus.subscribe("jobs")) as reader:
        assert await reader.payloads(1) == [b"1"]
    assert (await bus.groups.show("jobs", "workers")).lag == 0


# -- the discipline of a topic -----------------------------------------------------------------------


async def test_new_groups_have_the_discipline_of_their_topic(bus: Any) -> None:
    await bus.topics.create("stack", discipline="lifo")
    async with bus.subscribe("stack", group="a"):
        pass
    await bus.groups.create("stack", "b")
    await bus.groups.create("stack", "c", discipline="priority")
    assert [row.discipline for row in (await bus.topics.show("stack")).groups] == ["lifo", "lifo", "priority"]
    await bus.topics.update("stack", discipline="fifo")
    await bus.groups.create("stack", "b")  # the same options as before
    await bus.groups.create("stack", "d")
    shown = {row.name: row.discipline for row in (await bus.topics.show("stack")).groups}
    assert shown == {"a": "lifo", "b": "lifo", "c": "priority", "d": "fifo"}


@pytest.mark.parametrize("kind", ["queue", "work"])
async def test_queues_have_a_discipline_too(bus: Any, kind: str) -> None:
    await bus.topics.create("jobs", kind=kind, discipline="priority")
    for priority in (1, 9, 5):
        await bus.publish("jobs", b"%d" % priority, priority=priority)
    async with Reader(bus.subscribe("jobs", prefetch=1)) as reader:
        assert await reader.payloads(3) == [b"9", b"5", b"1"]

"""Topics of kind queue: one producer, one group, one consumer at a time, each message once."""

from __future__ import annotations

from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.errors import BadRequest, LeaseLost, QueueTaken
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.contracts.ways import Way
from tests.plain_store import bounds_of
from tests.waiting import Reader, eventually


@pytest.fixture
async def queue(bus: Any) -> Any:
    """A bus that has made the queue ``jobs``."""
    await bus.call("topic.create", name="jobs", kind="queue")
    return bus


async def test_messages_go_from_one_to_one(queue: Any) -> None:
    await queue.publish("jobs", b"1")
    async with queue.publisher("jobs") as out:
        await out.send(b"2")
    async with Reader(queue.subscribe("jobs", group="workers")) as reader:
        assert await reader.payloads(2) == [b"1", b"2"]


async def test_a_second_producer_is_refused(terminal: Terminal, queue: Any, way: Way) -> None:
    await queue.publish("jobs", b"1")
    async with way.connect(terminal, subject="other") as other:
        with pytest.raises(QueueTaken):
            await other.publish("jobs", b"2")
        with pytest.raises(QueueTaken):
            async with other.publisher("jobs") as out:
                await out.send(b"3")
        with pytest.raises(QueueTaken):
            async with other.transaction() as t:
                await t.publish("jobs", b"4")
        await other.publish("elsewhere", b"ok")
    await queue.publish("jobs", b"5")
    assert terminal.broker.topics["jobs"].log.end == 2


async def test_the_producer_may_change_once_the_first_is_gone(terminal: Terminal, bus: Any, way: Way) -> None:
    await bus.call("topic.create", name="jobs", kind="queue")
    async with way.connect(terminal, subject="first") as first:
        await first.publish("jobs", b"1")
    await eventually(lambda: len(terminal.connections) == 1)
    async with way.connect(terminal, subject="second") as second:
        assert (await second.publish("jobs", b"2")).offset == 1


async def test_a_named_producer_alone_may_publish(terminal: Terminal, bus: Any, way: Way) -> None:
    await bus.call("topic.create", name="jobs", kind="queue", producer="boss")
    with pytest.raises(QueueTaken):
        await bus.publish("jobs", b"1")
    async with way.connect(terminal, subject="boss") as boss:
        assert (await boss.publish("jobs", b"2")).offset == 0


async def test_a_producer_publishes_to_its_queue_and_in_transactions(queue: Any) -> None:
    await queue.publish("jobs", b"1")
    async with queue.transaction() as t:
        await t.publish("jobs", b"2")
    assert (await queue.publish("jobs", b"3")).offset == 2


async def test_a_second_group_is_refused(queue: Any) -> None:
    async with Reader(queue.subscribe("jobs", group="workers")):
        with pytest.raises(QueueTaken):
            async with Reader(queue.subscribe("jobs", group="others")):
                pass
        with pytest.raises(QueueTaken):
            await queue.call("group.create", topic="jobs", name="others")


async def test_a_second_consumer_is_refused(terminal: Terminal, queue: Any, way: Way) -> None:
    await queue.publish("jobs", b"1")
    async with way.connect(terminal, subject="other") as other:
        async with Reader(queue.subscribe("jobs", group="workers")) as reader:
            for bus in (queue, other):
                for group in ("workers", None):
                    with pytest.raises(QueueTaken):
                        async with Reader(bus.subscribe("jobs", group=group)):
                            pass
            assert await reader.payloads(1) == [b"1"]
        async with Reader(other.subscribe("jobs", group="workers")):
            pass


async def test_a_consumer_without_a_group_name_means_the_queues_own(queue: Any) -> None:
    await queue.publish("jobs", b"1")
    async with Reader(queue.subscribe("jobs")) as reader:
        assert await reader.payloads(1) == [b"1"]
    await queue.publish("jobs", b"2")
    async with Reader(queue.subscribe("jobs")) as reader:
        assert await reader.payloads(1) == [b"2"]


async def test_ack_waits_for_the_disk(terminal: Terminal, queue: Any) -> None:
    await queue.publish("jobs", b"1")
    async with Reader(queue.subscribe("jobs", group="workers")) as reader:
        await (await reader.next()).ack()
        assert terminal.broker.table.group("jobs", "workers").delivery.cursor.floor == 1


async def test_a_late_ack_of_a_lost_lease_is_refused(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        await bus.call("topic.create", name="jobs", kind="queue")
        await bus.call("group.create", topic="jobs", name="workers", ack_within=10.0)
        await bus.publish("jobs", b"1")
        async with Reader(bus.subscribe("jobs", group="workers")) as reader:
            late = await reader.next()
            clock.advance(11)
            with pytest.raises(LeaseLost):
                await late.ack()
            again = await reader.next()
            assert again.attempt == 2
            with pytest.raises(LeaseLost):
                await late.ack()
            await again.ack()
            with pytest.raises(LeaseLost):
                await late.bury()


async def test_an_ack_from_an_earlier_connection_is_refused(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        await bus.call("topic.create", name="jobs", kind="queue")
        for number in range(3):
            await bus.publish("jobs", b"%d" % number)
        async with Reader(bus.subscribe("jobs", group="workers")) as reader:
            stale = await reader.take(3)
            (connection,) = terminal.connections
            connection._transport.abort()
            fresh = await reader.take(3)
            assert [m.payload for m in fresh] == [b"0", b"1", b"2"]
            for message in stale:
                with pytest.raises(LeaseLost):
                    await message.ack()
            for message in fresh:
                await message.ack()
        assert terminal.broker.table.group("jobs", "workers").delivery.cursor.floor == 3


async def test_an_ack_while_disconnected_is_refused_and_so_are_those_after_it(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.call("topic.create", name="jobs", kind="queue")
        async with bus.publisher("jobs") as out:
            await out.send_many([b"0", b"1", b"2"])
        async with Reader(bus.subscribe("jobs", group="workers")) as reader:
            stale = await reader.take(3)
            (connection,) = terminal.connections
            connection._transport.abort()
            await eventually(lambda: bus.wire is None)
            await stale[0].ack(wait=False)  # nobody waits, nothing to tell
            await eventually(lambda: bus.wire is not None)
            fresh = await reader.take(3)
            for message in stale[1:]:
                with pytest.raises(LeaseLost):
                    await message.ack()
            await stale[0].ack(wait=False)  # and what nobody waits for harms nobody else
            for message in fresh:
                await message.ack()


async def test_at_most_once_settles_on_delivery(terminal: Terminal, bus: Any) -> None:
    await bus.call("topic.create", name="jobs", kind="queue", delivery="at-most-once")
    async with bus.publisher("jobs") as out:
        await out.send_many([b"%d" % n for n in range(10)])
    async with Reader(bus.subscribe("jobs", group="workers", prefetch=3)) as reader:
        message = await reader.next()
        assert message.payload == b"0"
        group = terminal.broker.table.group("jobs", "workers")
        # Without any ack, what was handed over is settled; what was not sent is still there.
        assert group.delivery.cursor.floor >= 1
        await message.ack()
        with pytest.raises(BadRequest):
            await message.requeue()
        handed = group.delivery.cursor.floor
    await eventually(lambda: not group.consumers)
    handed = group.delivery.cursor.floor
    async with Reader(bus.subscribe("jobs", group="workers")) as reader:
        assert await reader.payloads(10 - handed) == [b"%d" % n for n in range(handed, 10)]


async def test_at_most_once_is_settled_before_it_is_sent(crashes: list[Any]) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.call("topic.create", name="jobs", kind="queue", delivery="at-most-once")
        await bus.publish("jobs", b"1")
        await bus.call("group.create", topic="jobs", name="workers")
        await terminal.broker.drain()
        store.gate.clear()
        try:
            async with Reader(bus.subscribe("jobs", group="workers")) as reader:
                for _ in range(50):
                    await bus.ping()
                assert not reader.subscription._batches, "not on disk, not sent"
                store.gate.set()
                assert await reader.payloads(1) == [b"1"]
        finally:
            store.gate.set()


async def test_at_most_once_goes_on_after_a_full_disk(crashes: list[Any]) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.call("topic.create", name="jobs", kind="queue", delivery="at-most-once")
        await bus.publish("jobs", b"1")
        await bus.call("group.create", topic="jobs", name="workers")
        await terminal.broker.drain()
        commits, store.failing = store.commits, True
        async with Reader(bus.subscribe("jobs", group="workers")) as reader:
            await eventually(lambda: store.commits > commits)
            assert not reader.subscription._batches
            store.failing = False
            assert await reader.payloads(1) == [b"1"]


async def test_settled_messages_are_not_kept(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        await bus.call("topic.create", name="jobs", kind="queue")
        async with bus.publisher("jobs") as out:
            await out.send_many([b"x"] * 100)
        async with Reader(bus.subscribe("jobs", group="workers")) as reader:
            assert len(await reader.payloads(100)) == 100
        clock.advance(2)
        log = timed.broker.topics["jobs"].log
        await eventually(lambda: log.first == 100)
        assert bounds_of(timed.store, log).bytes == 0


async def test_exactly_once_over_lost_connections(terminal: Terminal, way: Way) -> None:
    """A handler that publishes and acks in one transaction, with the connection cut in its middle."""
    async with way.connect(terminal, subject="worker") as bus, attach(terminal, subject="boss") as boss:
        await boss.call("topic.create", name="jobs", kind="queue")
        async with boss.publisher("jobs") as out:
            await out.send_many([b"%d" % n for n in range(60)])
        async with Reader(bus.subscribe("jobs", group="workers", prefetch=5)) as reader:
            done = 0
            while terminal.broker.table.group("jobs", "workers").delivery.cursor.floor < 60:
                message = await reader.next()
                try:
                    async with bus.transaction() as t:
                        await t.publish("results", message.payload)
                        await t.ack(message)
                        done += 1
                        if done % 4 == 0:
                            (connection,) = [c for c in terminal.connections if c.subject == "worker"]
                            connection._transport.abort()
                except LeaseLost:
                    pass
        async with Reader(boss.subscribe("results", group="check")) as results:
            assert await results.payloads(60) == [b"%d" % n for n in range(60)]
        assert terminal.broker.topics["results"].log.end == 60

"""How messages reach the consumers of a group, and what becomes of those that aren't acked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.broker.group import Group
from landbridge.broker.server import Terminal
from landbridge.errors import LeaseLost, OffsetGone, StoreFull, UnknownGroup, UnknownTopic
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import Reader, eventually, turns


async def publish(bus: Any, topic: str, count: int, **attributes: Any) -> None:
    async with bus.publisher(topic) as out:
        for number in range(count):
            await out.send(b"%d" % number, **attributes)


def settled(group: Group) -> int:
    return group.delivery.cursor.floor


# -- ack, requeue, bury, extend -----------------------------------------------------------------------


async def test_ack_settles(terminal: Terminal, bus: Any) -> None:
    await publish(bus, "orders", 3)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        for message in await reader.take(3):
            await message.ack(wait=True)
    assert settled(terminal.broker.table.group("orders", "g")) == 3


async def test_acks_out_of_order_settle_those_alone(terminal: Terminal, bus: Any) -> None:
    await publish(bus, "orders", 5)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        messages = await reader.take(5)
        for index in (4, 1, 3):
            await messages[index].ack(wait=True)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(2) == [b"0", b"2"]
    await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 5)


async def test_closing_sends_the_acks(terminal: Terminal, bus: Any) -> None:
    await publish(bus, "orders", 3)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        for message in await reader.take(2):
            await message.ack()
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert await reader.payloads(1) == [b"2"]


async def test_requeue_at_once(bus: Any) -> None:
    await publish(bus, "orders", 1)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        for attempt in (1, 2, 3):
            message = await reader.next()
            assert (message.payload, message.attempt) == (b"0", attempt)
            await message.requeue(after=0.0)


async def test_requeue_after_a_while(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        await publish(bus, "orders", 1)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await (await reader.next()).requeue(after=5.0)
            clock.advance(4.9)
            await bus.publish("orders", b"marker")
            assert await reader.payloads(1) == [b"marker"]
            clock.advance(0.2)
            message = await reader.next()
            assert (message.payload, message.attempt) == (b"0", 2)


async def test_backoff_doubles(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("group.create", topic="orders", name="g", backoff=1.0, backoff_most=4.0)
        await publish(bus, "orders", 1)
        group = timed.broker.table.group("orders", "g")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            for delay in (1.0, 2.0, 4.0, 4.0):
                await (await reader.next()).requeue()
                clock.advance(delay - 0.01)
                assert group.delivery.pending == 0
                assert not group.delivery.leases
                clock.advance(0.02)
            assert (await reader.next()).attempt == 5


async def test_bury_goes_to_the_dead_letter_topic(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        await bus.publish("orders", b"0")
        await bus.publish("orders", b"bad", key="k", headers={"mine": 1}, priority=3, id="id-1")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await (await reader.next()).ack()
            await (await reader.next()).bury("can't parse")
        async with Reader(bus.subscribe("orders.dead", group="ops")) as reader:
            letter = await reader.next()
            assert (letter.payload, letter.key, letter.priority, letter.id) == (b"bad", "k", 3, "id-1")
            assert letter.headers == {
                "mine": 1,
                "lb-topic": "orders",
                "lb-group": "g",
                "lb-offset": 1,
                "lb-cause": "can't parse",
                "lb-attempts": 1,
            }
        await eventually(lambda: settled(timed.broker.table.group("orders", "g")) == 2)


async def test_max_attempts_buries(terminal: Terminal, bus: Any) -> None:
    await bus.call("group.create", topic="orders", name="g", max_attempts=3, dead_letter="graveyard")
    await publish(bus, "orders", 1)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        for attempt in (1, 2, 3):
            message = await reader.next()
            assert message.attempt == attempt
            await message.requeue(after=0.0, cause="disk on fire")
        async with Reader(bus.subscribe("graveyard", group="ops")) as dead:
            letter = await dead.next()
            assert letter.payload == b"0"
            assert letter.headers["lb-attempts"] == 3
            assert letter.headers["lb-cause"] in ("disk on fire", "max_attempts")
    await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 1)
    assert "orders.dead" not in terminal.broker.topics


async def test_an_empty_dead_letter_name_only_settles(terminal: Terminal, bus: Any) -> None:
    await bus.call("group.create", topic="orders", name="g", dead_letter="")
    await publish(bus, "orders", 2)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        for message in await reader.take(2):
            await message.bury()
    await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 2)
    assert set(terminal.broker.topics) - {"$audit", "$status"} == {"orders"}


async def test_a_topic_whose_name_ends_in_dead_has_its_own_dead_letters(terminal: Terminal, bus: Any) -> None:
    await bus.call("group.create", topic="walking.dead", name="g", dead_letter="graveyard")
    await publish(bus, "walking.dead", 1)
    async with Reader(bus.subscribe("walking.dead", group="g")) as reader:
        await (await reader.next()).bury("bitten")
    async with Reader(bus.subscribe("graveyard", group="ops")) as reader:
        assert (await reader.next()).headers["lb-topic"] == "walking.dead"


async def test_burying_needs_no_permission_to_create_topics(crashes: list[Any]) -> None:
    async with run_terminal(auto_create=False) as terminal, attach(terminal) as bus:
        await bus.call("topic.create", name="orders")
        await publish(bus, "orders", 1)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await (await reader.next()).bury("bad")
        await eventually(lambda: "orders.dead" in terminal.broker.topics, "there is a dead-letter topic")
        await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 1)


async def test_batches_are_requeued_and_buried_whole(terminal: Terminal, bus: Any) -> None:
    await publish(bus, "orders", 10)
    async with Reader(bus.subscribe("orders", group="g"), batches=True) as reader:
        seen = 0
        while seen < 10:
            batch = await reader.next()
            seen += len(batch)
            await batch.requeue(after=0.0)
        seen = 0
        while seen < 10:
            batch = await reader.next()
            assert {m.attempt for m in batch} == {2}
            seen += len(batch)
            await batch.bury("all bad")
    await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 10)
    assert terminal.broker.topics["orders.dead"].log.end == 10


async def test_extend_keeps_the_lease(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=10.0)
        await publish(bus, "orders", 1)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            for _ in range(5):
                clock.advance(9)
                await message.extend()
            await message.ack(wait=True)
        assert settled(timed.broker.table.group("orders", "g")) == 1


async def test_extend_of_a_lost_lease_is_refused(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=10.0)
        await publish(bus, "orders", 1)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            clock.advance(11)
            with pytest.raises(LeaseLost) as refused:
                await message.extend()
            assert "ack_within" in refused.value.hint  # and not that it was settled


async def test_settling_twice_says_so(bus: Any) -> None:
    await publish(bus, "orders", 5)
    async with Reader(bus.subscribe("orders", group="g", prefetch=5)) as reader:
        messages = await reader.take(5)
        await messages[0].ack(wait=True)
        await messages[2].ack(wait=True)  # out of order
        await messages[3].bury("bad")
        async with bus.transaction() as t:
            await t.ack(messages[4])
        for message in (messages[0], messages[2], messages[3], messages[4]):
            with pytest.raises(LeaseLost, match="already settled by this consumer") as refused:
                await message.ack(wait=True)
            assert "ack_within" not in refused.value.hint
        with pytest.raises(LeaseLost, match="already settled by this consumer"):
            await messages[0].requeue()
        await messages[0].ack()  # nobody waits for the answer: nothing happens
        await messages[1].ack(wait=True)


async def test_acks_of_a_batch_one_by_one_and_then_all(bus: Any, terminal: Terminal) -> None:
    await publish(bus, "orders", 6)
    async with Reader(bus.subscribe("orders", group="g", prefetch=6), batches=True) as reader:
        batch = await reader.next()
        messages = list(batch)
        await messages[0].ack()
        await messages[1].ack(wait=True)
        await messages[4].ack(wait=True)
        await messages[2].ack()
        await batch.ack(wait=True)  # the rest
        assert settled(terminal.broker.table.group("orders", "g")) == len(batch)
        await batch.ack(wait=True)  # nothing is left to settle


@pytest.mark.parametrize("whole", [False, True])
async def test_an_ack_that_failed_has_settled_nothing(crashes: list[Any], whole: bool) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="g"), batches=True) as reader:
            batch = await reader.next()
            act = batch.ack if whole else next(iter(batch)).ack
            await terminal.broker.drain()
            store.failing = True
            with pytest.raises(StoreFull):
                await act(wait=True)
            store.failing = False
            with pytest.raises(LeaseLost, match="no longer this consumer's"):  # it was given back
                await act(wait=True)
            await (await reader.next()).ack(wait=True)
        assert settled(terminal.broker.table.group("orders", "g")) == 1


# -- leases that end ----------------------------------------------------------------------------------


async def test_expired_lease_comes_again_and_its_late_ack_is_refused(
    timed: Terminal, clock: FakeClock, way: Way
) -> None:
    async with way.connect(timed) as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=10.0)
        await publish(bus, "orders", 2)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            first, second = await reader.take(2)
            clock.advance(11)
            again = await reader.take(2)
            assert [(m.payload, m.attempt) for m in again] == [(b"0", 2), (b"1", 1)]
            for late in (first, second):
                with pytest.raises(LeaseLost):
                    await late.ack(wait=True)
            for message in again:
                await message.ack(wait=True)
        assert settled(timed.broker.table.group("orders", "g")) == 2


async def test_progress_keeps_what_waits_behind(timed: Terminal, clock: FakeClock) -> None:
    """A consumer that acks one message every nine seconds of ten loses none of the hundred it has."""
    async with attach(timed) as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=10.0)
        await publish(bus, "orders", 100)
        async with Reader(bus.subscribe("orders", group="g", prefetch=1000)) as reader:
            for message in await reader.take(100):
                clock.advance(9)
                assert message.attempt == 1
                await message.ack(wait=True)
        assert settled(timed.broker.table.group("orders", "g")) == 100


async def test_a_vanished_consumer_gives_back(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        await publish(bus, "orders", 5)
        async with attach(terminal, subject="fleeting") as fleeting:
            reader = await Reader(fleeting.subscribe("orders", group="g")).__aenter__()
            await (await reader.next()).ack(wait=True)
            await reader.next()
            (connection,) = [c for c in terminal.connections if c.subject == "fleeting"]
            fleeting.closed = LeaseLost("gone")  # it won't come back
            connection._transport.abort()
            await eventually(lambda: connection not in terminal.connections)
        async with Reader(bus.subscribe("orders", group="g")) as other:
            messages = await other.take(4)
            # Only the message it was busy with counts as tried; the rest had merely been prefetched.
            assert [(m.payload, m.attempt) for m in messages] == [
                (b"1", 2),
                (b"2", 1),
                (b"3", 1),
                (b"4", 1),
            ]


async def test_a_consumer_that_leaves_in_good_order_counts_against_nothing(bus: Any) -> None:
    await publish(bus, "orders", 3)
    for _ in range(20):  # more often than max_attempts
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            assert (message.payload, message.attempt) == (b"0", 1)


async def test_a_second_consumer_takes_over(bus: Any) -> None:
    await publish(bus, "orders", 10)
    async with Reader(bus.subscribe("orders", group="g", prefetch=5)) as second:
        first = await Reader(bus.subscribe("orders", group="g", prefetch=5)).__aenter__()
        await first.next()
        await first.__aexit__()
        assert sorted(await second.payloads(10)) == [b"%d" % n for n in range(10)]


async def test_attempts_survive_a_restart(crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.call("group.create", topic="orders", name="g", max_attempts=4)
        await publish(bus, "orders", 1)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            for _ in range(2):
                await (await reader.next()).requeue(after=0.0)
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            message = await reader.next()
            assert message.attempt == 3
            await message.requeue(after=0.0)
            await (await reader.next()).requeue(after=0.0)
        await eventually(lambda: "orders.dead" in terminal.broker.topics)


async def test_a_delay_survives_a_restart(clock: FakeClock, crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        await publish(bus, "orders", 1)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await (await reader.next()).requeue(after=60.0)
    async with (
        run_terminal(store, clock=clock) as terminal,
        attach(terminal) as bus,
        Reader(bus.subscribe("orders", group="g")) as reader,
    ):
        clock.advance(59)
        await bus.publish("orders", b"marker")
        assert await reader.payloads(1) == [b"marker"]
        clock.advance(2)
        assert await reader.payloads(1) == [b"0"]


async def test_what_was_acked_just_before_a_clean_shutdown_stays_acked(crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store) as terminal:
        bus = await attach(terminal).open()
        await publish(bus, "orders", 100)
        reader = await Reader(bus.subscribe("orders", group="g")).__aenter__()
        for message in await reader.take(100):
            await message.ack()
        bus.closed = LeaseLost("done")
        (connection,) = terminal.connections
        await turns(3)  # the acks are with the terminal, perhaps not yet on disk
        assert terminal.broker.table.group("orders", "g").delivery.cursor.floor == 100
        assert connection in terminal.connections
    async with run_terminal(store) as terminal:
        assert settled(terminal.broker.table.group("orders", "g")) == 100


# -- dead letters again -------------------------------------------------------------------------------


async def test_redrive_gives_the_group_its_letters_again_and_nobody_else(timed: Terminal, way: Way) -> None:
    async with way.connect(timed) as bus:
        await publish(bus, "orders", 5, key="k", headers={"mine": "h"})
        async with (
            Reader(bus.subscribe("orders", group="billing")) as billing,
            Reader(bus.subscribe("orders", group="lake")) as lake,
        ):
            assert len(await lake.payloads(5)) == 5
            for message in await billing.take(5):
                await (message.bury("bad") if message.payload in (b"1", b"3") else message.ack())
            await eventually(lambda: settled(timed.broker.table.group("orders", "billing")) == 5)
            assert await bus.call("group.redrive", topic="orders", name="lake") == {"redriven": 0}
            assert await bus.call("group.redrive", topic="orders", name="billing") == {"redriven": 2}
            again = await billing.take(2)
            assert [m.payload for m in again] == [b"1", b"3"]
            for message in again:
                assert (message.key, message.headers, message.attempt) == ("k", {"mine": "h"}, 1)
                await message.ack()
            await bus.publish("orders", b"marker")
            assert await lake.payloads(1) == [b"marker"]
            assert await billing.payloads(1) == [b"marker"]
            assert await bus.call("group.redrive", topic="orders", name="billing") == {"redriven": 0}
        async with Reader(bus.subscribe("orders", group="fresh", start="earliest")) as fresh:
            assert await fresh.payloads(6) == [b"0", b"1", b"2", b"3", b"4", b"marker"]


async def test_a_letter_that_dies_again_can_be_redriven_again(bus: Any) -> None:
    await publish(bus, "orders", 1)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        for _ in range(3):
            await (await reader.next()).bury("bad")
            redriven = 0
            while not redriven:  # the burial is on its way
                redriven = (await bus.call("group.redrive", topic="orders", name="g"))["redriven"]
            assert redriven == 1
        message = await reader.next()
        assert (message.payload, message.attempt, message.headers) == (b"0", 1, {})


async def test_redrives_at_the_same_time_send_each_letter_once(terminal: Terminal) -> None:
    async with attach(terminal) as bus, attach(terminal) as other:
        await publish(bus, "orders", 3000)
        async with Reader(bus.subscribe("orders", group="g", prefetch=5000), batches=True) as reader:
            seen = 0
            while seen < 3000:
                batch = await reader.next()
                seen += len(batch)
                await batch.bury("bad")
            await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 3000)
            redriven = await asyncio.gather(
                *(b.call("group.redrive", topic="orders", name="g") for b in (bus, other, bus, other))
            )
            assert sum(answer["redriven"] for answer in redriven) == 3000
            assert terminal.broker.topics["orders"].log.end == 6000


async def test_redrive_of_nothing(bus: Any) -> None:
    await publish(bus, "orders", 1)
    with pytest.raises(UnknownGroup):
        await bus.call("group.redrive", topic="orders", name="nobody")
    with pytest.raises(UnknownTopic):
        await bus.call("group.redrive", topic="nothing", name="nobody")
    await bus.call("group.create", topic="orders", name="g")
    assert await bus.call("group.redrive", topic="orders", name="g") == {"redriven": 0}


# -- disciplines --------------------------------------------------------------------------------------

PRIORITIES = [3, 9, 0, 3, 9, 1, 0, 7, 3, 9]


@pytest.mark.parametrize("prefetch", [1, 3, 100])
async def test_lifo_takes_the_newest_first(bus: Any, prefetch: int) -> None:
    await bus.call("group.create", topic="orders", name="g", discipline="lifo")
    await publish(bus, "orders", 25)
    async with Reader(bus.subscribe("orders", group="g", prefetch=prefetch)) as reader:
        assert await reader.payloads(25) == [b"%d" % n for n in reversed(range(25))]


async def test_lifo_prefers_what_came_meanwhile(bus: Any) -> None:
    await bus.call("group.create", topic="orders", name="g", discipline="lifo")
    await publish(bus, "orders", 3)
    async with Reader(bus.subscribe("orders", group="g", prefetch=1)) as reader:
        message = await reader.next()
        assert message.payload == b"2"
        await bus.publish("orders", b"new")
        await message.ack()
        assert await reader.payloads(3) == [b"new", b"1", b"0"]


@pytest.mark.parametrize("prefetch", [1, 3, 100])
async def test_priority_takes_the_highest_first(bus: Any, prefetch: int) -> None:
    await bus.call("group.create", topic="orders", name="g", discipline="priority")
    async with bus.publisher("orders") as out:
        for number, priority in enumerate(PRIORITIES):
            await out.send(b"%d" % number, priority=priority)
    async with Reader(bus.subscribe("orders", group="g", prefetch=prefetch)) as reader:
        messages = []
        for _ in PRIORITIES:
            message = await reader.next()
            messages.append((message.priority, int(message.payload), message.offset))
            await message.ack()
    expected = sorted(((p, n, n) for n, p in enumerate(PRIORITIES)), key=lambda m: (-m[0], m[1]))
    assert messages == expected


async def test_priority_passes_what_waits(bus: Any) -> None:
    await bus.call("group.create", topic="orders", name="g", discipline="priority")
    await publish(bus, "orders", 3)
    async with Reader(bus.subscribe("orders", group="g", prefetch=1)) as reader:
        message = await reader.next()
        await bus.publish("orders", b"urgent", priority=9)
        await bus.publish("orders", b"soon", priority=5)
        await message.ack()
        assert await reader.payloads(4) == [b"urgent", b"soon", b"1", b"2"]


@pytest.mark.parametrize("discipline", ["fifo", "lifo", "priority"])
async def test_every_discipline_settles_all_in_batches(terminal: Terminal, bus: Any, discipline: str) -> None:
    await bus.call("group.create", topic="orders", name="g", discipline=discipline)
    async with bus.publisher("orders") as out:
        for number in range(1000):
            await out.send(b"%d" % number, priority=number * 7 % 10)
    seen: list[bytes] = []
    async with Reader(bus.subscribe("orders", group="g", prefetch=64), batches=True) as reader:
        while len(seen) < 1000:
            batch = await reader.next()
            assert [b"%d" % offset for offset in batch.offsets] == batch.payloads
            assert [m.offset for m in batch] == list(batch.offsets)
            seen += batch.payloads
            await batch.ack()
    assert sorted(seen, key=int) == [b"%d" % n for n in range(1000)]
    await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 1000)


@pytest.mark.parametrize("discipline", ["lifo", "priority"])
async def test_single_messages_of_a_mixed_batch_are_settled_right(
    terminal: Terminal, bus: Any, discipline: str
) -> None:
    """Settle by payload; what is left over must be exactly the others."""
    await bus.call("group.create", topic="orders", name="g", discipline=discipline, max_attempts=5)
    async with bus.publisher("orders") as out:
        for number in range(30):
            await out.send(b"%d" % number, priority=number % 4)
    async with Reader(bus.subscribe("orders", group="g", prefetch=100)) as reader:
        for message in await reader.take(30):
            if int(message.payload) % 3 == 0:
                await message.ack()
            elif int(message.payload) % 3 == 1:
                await message.bury("one")
        await reader.subscription.flush()
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        left = await reader.payloads(10)
        assert sorted(map(int, left)) == [n for n in range(30) if n % 3 == 2]
    await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 30)


# -- moving a group -----------------------------------------------------------------------------------


async def test_seek_to_an_offset(bus: Any) -> None:
    await publish(bus, "orders", 10)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        await reader.payloads(10)
        await bus.call("group.seek", topic="orders", name="g", to=7)
        assert await reader.payloads(3) == [b"7", b"8", b"9"]
        await bus.call("group.seek", topic="orders", name="g", to="earliest")
        assert len(await reader.payloads(10)) == 10
        await bus.call("group.seek", topic="orders", name="g", to="latest")
        await bus.publish("orders", b"marker")
        assert await reader.payloads(1) == [b"marker"]


async def test_seek_to_a_time(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        moments = []
        for number in range(5):
            clock.advance(10)
            moments.append(clock.now)
            await bus.publish("orders", b"%d" % number)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await reader.payloads(5)
            await bus.call("group.seek", topic="orders", name="g", time=moments[3])
            assert await reader.payloads(2) == [b"3", b"4"]


async def test_seek_below_what_is_kept(bus: Any) -> None:
    await publish(bus, "orders", 1)
    await bus.call("group.create", topic="orders", name="g")
    with pytest.raises(OffsetGone):
        await bus.call("group.seek", topic="orders", name="g", to=-1)


async def test_seek_past_the_end_waits_for_what_comes(bus: Any) -> None:
    await publish(bus, "orders", 3)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        await reader.payloads(3)
        await bus.call("group.seek", topic="orders", name="g", to=1000)
        await bus.publish("orders", b"new")
        assert await reader.payloads(1) == [b"new"]


async def test_leases_from_before_a_seek_are_lost(bus: Any) -> None:
    await publish(bus, "orders", 2)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        before = await reader.take(2)
        await bus.call("group.seek", topic="orders", name="g", to=0)
        with pytest.raises(LeaseLost):
            await before[0].ack(wait=True)
        assert await reader.payloads(2) == [b"0", b"1"]


async def test_replay_in_a_group_of_its_own(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed) as bus:
        moments = []
        for number in range(5):
            clock.advance(10)
            moments.append(clock.now)
            await bus.publish("orders", b"%d" % number)
        await bus.call("group.create", topic="orders", name="replay", start=moments[2])
        await bus.call("group.create", topic="orders", name="tail", start="latest")
        async with Reader(bus.subscribe("orders", group="replay")) as reader:
            assert await reader.payloads(3) == [b"2", b"3", b"4"]
        await bus.publish("orders", b"new")
        async with Reader(bus.subscribe("orders", group="tail")) as reader:
            assert await reader.payloads(1) == [b"new"]


# -- filters ------------------------------------------------------------------------------------------


async def test_filters(terminal: Terminal, bus: Any) -> None:
    filters: dict[str, Any] = {
        "europe": {"key": "eu-*"},
        "big": {"headers": {"size": "big"}},
        "big-europe": {"key": "eu-*", "headers": {"size": "b?g"}},
        "nothing": {"key": "asia"},
    }
    for name, match in filters.items():
        await bus.call("group.create", topic="orders", name=name, match=match)
    async with bus.publisher("orders") as out:
        await out.send(b"0", key="eu-1", headers={"size": "big"})
        await out.send(b"1", key="us-1", headers={"size": "big"})
        await out.send(b"2", key="eu-2", headers={"size": "small"})
        await out.send(b"3")
        await out.send(b"4", key="eu-3", headers={"size": "bug", "n": 5})
        await out.send(b"last", key="eu-asia", headers={"size": "big"})
    expected = {
        "europe": [b"0", b"2", b"4", b"last"],
        "big": [b"0", b"1", b"last"],
        "big-europe": [b"0", b"4", b"last"],
    }
    for name, payloads in expected.items():
        async with Reader(bus.subscribe("orders", group=name)) as reader:
            assert await reader.payloads(len(payloads)) == payloads
    async with Reader(bus.subscribe("orders", group="nothing")):
        await eventually(lambda: settled(terminal.broker.table.group("orders", "nothing")) == 6)
    for name in expected:
        await eventually(lambda name=name: settled(terminal.broker.table.group("orders", name)) == 6)


async def test_a_filter_that_takes_one_in_ten_thousand(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.call("group.create", topic="orders", name="g", match={"key": "yes"})
        async with bus.publisher("orders") as out:
            for number in range(40_000):
                await out.send(b"%d" % number, key="yes" if number % 10_000 == 9_999 else "no")
        async with Reader(bus.subscribe("orders", group="g", prefetch=10)) as reader:
            assert await reader.payloads(4) == [b"9999", b"19999", b"29999", b"39999"]


# -- other options -------------------------------------------------------------------------------------


async def test_options_of_a_group_change_while_it_runs(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=1000.0)
        await publish(bus, "orders", 6)
        async with Reader(bus.subscribe("orders", group="g", prefetch=1)) as reader:
            message = await reader.next()
            assert message.payload == b"0"
            await bus.call("group.update", topic="orders", name="g", discipline="lifo", ack_within=10.0)
            with pytest.raises(LeaseLost):  # handed out by the old rules
                await message.ack(wait=True)
            assert await reader.payloads(3) == [b"5", b"4", b"3"]
            assert (await reader.next()).attempt == 1
            clock.advance(11)
            assert (await reader.next()).attempt == 2
        shown = (await bus.call("group.show", topic="orders", name="g"))["options"]
        assert (shown["discipline"], shown["ack_within"], shown["max_attempts"]) == ("lifo", 10.0, 10)


async def test_fewer_attempts_bury_what_had_more(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await publish(bus, "orders", 1)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            for _ in range(3):
                await (await reader.next()).requeue(after=0.0)
            await (await reader.next()).requeue(after=1000.0)
            await bus.call("group.update", topic="orders", name="g", max_attempts=2)
            await eventually(lambda: "orders.dead" in terminal.broker.topics)
            await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 1)


async def test_options_changed_while_they_are_being_stored_survive(crashes: list[Any]) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"1")
        store.gate.clear()
        made = asyncio.ensure_future(bus.call("group.create", topic="orders", name="g"))
        await eventually(lambda: "g" in terminal.broker.topics["orders"].groups)
        changed = asyncio.ensure_future(bus.call("group.update", topic="orders", name="g", max_attempts=3))
        await eventually(lambda: terminal.broker.table.group("orders", "g").spec.max_attempts == 3)
        store.gate.set()
        await made
        await changed
    async with run_terminal(store._store) as terminal:
        assert terminal.broker.table.group("orders", "g").spec.max_attempts == 3


# -- topics that end ----------------------------------------------------------------------------------


async def test_deleting_a_topic_ends_its_subscriptions(terminal: Terminal, bus: Any) -> None:
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        await bus.call("topic.delete", name="orders")
        with pytest.raises(UnknownTopic):
            await reader.next()
    assert "orders" not in terminal.broker.topics


async def test_a_topic_can_be_made_again(terminal: Terminal, bus: Any) -> None:
    """The new topic knows nothing of the old one: offsets begin anew, and the same producer may go on."""
    for _ in range(3):
        async with bus.publisher("orders") as out:
            await out.send(b"first")
            await out.flush()
            await out.send(b"second")
        assert (await bus.publish("orders", b"third")).offset == 2
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert await reader.payloads(3) == [b"first", b"second", b"third"]
        await bus.call("topic.delete", name="orders", force=True)


async def test_deleting_a_group_ends_its_subscriptions(terminal: Terminal, bus: Any) -> None:
    await publish(bus, "orders", 3)
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        await reader.payloads(3)
        await eventually(lambda: settled(terminal.broker.table.group("orders", "g")) == 3)
        await bus.call("group.delete", topic="orders", name="g")
        with pytest.raises(UnknownGroup):
            await reader.next()
    async with Reader(bus.subscribe("orders", group="g")) as reader:
        assert len(await reader.payloads(3)) == 3

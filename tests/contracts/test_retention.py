"""What a topic forgets, and what it must not."""

from __future__ import annotations

from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.core.log.store import Trim
from landbridge.errors import LeaseLost, OffsetGone
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.plain_store import bounds_of
from tests.waiting import Reader, eventually, turns

DAY = 86400.0


def bounds(terminal: Terminal, topic: str) -> tuple[int, int]:
    log = terminal.broker.topics[topic].log
    stored = bounds_of(terminal.store, log)
    assert (log.first, log.end) == (stored.first, stored.end)
    return log.first, log.end


async def look(terminal: Terminal, clock: FakeClock, seconds: float = 61.0) -> None:
    """Let time pass until retention has looked at everything, and done what it had to."""
    clock.advance(seconds)
    for _ in range(3):
        clock.advance(1.1)
        await eventually(lambda: not terminal.broker.trimmer._tasks)
        await terminal.broker.drain()
        await turns(2)


async def publish(bus: Any, topic: str, count: int, size: int = 10) -> None:
    for number in range(count):
        await bus.publish(topic, b"%d" % number + bytes(size))


async def test_settled_messages_go_when_every_group_has_settled_them(
    timed: Terminal, clock: FakeClock
) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"settled": True})
        await bus.call("group.create", topic="orders", name="slow")
        await publish(bus, "orders", 10)
        async with (
            Reader(bus.subscribe("orders", group="fast")) as fast,
            Reader(bus.subscribe("orders")),  # who has no group holds nothing back
        ):
            await fast.payloads(10)
            await fast.subscription.flush()
            await look(timed, clock, 1.0)
            assert bounds(timed, "orders") == (0, 10)
            async with Reader(bus.subscribe("orders", group="slow")) as slow:
                await slow.payloads(4)
                await slow.subscription.flush()
                await look(timed, clock, 1.0)
                assert bounds(timed, "orders") == (4, 10)
                await slow.payloads(6)
                await slow.subscription.flush()
                await look(timed, clock, 1.0)
                assert bounds(timed, "orders") == (10, 10)
        assert timed.broker.topics["orders"].log.bytes == 0


async def test_without_groups_nothing_counts_as_settled(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"settled": True})
        await publish(bus, "orders", 5)
        await look(timed, clock)
        assert bounds(timed, "orders") == (0, 5)


async def test_age(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed, life=DAY) as bus:
        await bus.call("topic.create", name="orders", retention={"max_age": 3600.0})
        await publish(bus, "orders", 3)
        clock.advance(3000)
        await publish(bus, "orders", 2)
        await look(timed, clock)
        assert bounds(timed, "orders") == (0, 5)
        await look(timed, clock, 700)
        assert bounds(timed, "orders") == (3, 5)
        await look(timed, clock, 3600)
        assert bounds(timed, "orders") == (5, 5)
        assert (await bus.publish("orders", b"next")).offset == 5


async def test_the_default_keeps_a_week(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed, life=30 * DAY) as bus:
        await publish(bus, "orders", 1)
        await look(timed, clock, 6.9 * DAY)
        assert bounds(timed, "orders") == (0, 1)
        await look(timed, clock, 0.2 * DAY)
        assert bounds(timed, "orders") == (1, 1)


async def test_age_waits_for_the_groups(timed: Terminal, clock: FakeClock) -> None:
    """The safe rule: what a group has still to settle is kept, whatever its age."""
    async with attach(timed, life=30 * DAY) as bus:
        await bus.call("topic.create", name="orders", retention={"max_age": 60.0, "max_bytes": 100})
        await bus.call("group.create", topic="orders", name="g")
        await publish(bus, "orders", 10)
        await look(timed, clock, DAY)
        assert bounds(timed, "orders") == (0, 10)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert len(await reader.payloads(10)) == 10
            await reader.subscription.flush()
        await look(timed, clock)
        assert bounds(timed, "orders") == (10, 10)


async def test_discard_any_removes_regardless_and_groups_skip(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed, life=30 * DAY) as bus:
        retention = {"max_age": 600.0, "discard": "any"}
        await bus.call("topic.create", name="telemetry", retention=retention)
        await bus.call("group.create", topic="telemetry", name="g", ack_within=1e6)
        await bus.call("group.create", topic="telemetry", name="delayed", ack_within=1e6)
        await publish(bus, "telemetry", 5)
        async with (
            Reader(bus.subscribe("telemetry", group="g", prefetch=2)) as reader,
            Reader(bus.subscribe("telemetry", group="delayed", prefetch=2)) as delayed,
        ):
            held = await reader.take(2)
            await (await delayed.next()).requeue(after=5000.0)
            clock.advance(500)
            await publish(bus, "telemetry", 2)
            await look(timed, clock, 200)
            assert bounds(timed, "telemetry") == (5, 7)
            # What was gone is skipped, what was not is delivered.
            assert [m.offset for m in await reader.take(2)] == [5, 6]
            with pytest.raises(LeaseLost):
                await held[0].ack(wait=True)
            # This one had room for two more, and had got them before they were gone.
            assert [m.offset for m in await delayed.take(4)] == [1, 2, 5, 6]
        await look(timed, clock, DAY)
        assert bounds(timed, "telemetry") == (7, 7)
        for name in ("g", "delayed"):
            cursor = timed.broker.table.group("telemetry", name).delivery.cursor
            assert (cursor.floor, dict(cursor.tries)) == (7, {})


async def test_size(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"max_bytes": 10_000})
        await publish(bus, "orders", 50, size=1000)
        await look(timed, clock)
        _first, end = bounds(timed, "orders")
        log = timed.broker.topics["orders"].log
        stored = bounds_of(timed.store, log).bytes
        assert end == 50
        assert 8_000 < stored <= 10_000, "as much as is allowed, and no more"
        assert log.bytes == stored


async def test_size_with_messages_of_very_different_sizes(timed: Terminal, clock: FakeClock) -> None:
    """Large ones first, small ones after: only as many go as have to."""
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"max_bytes": 500_000, "discard": "any"})
        await publish(bus, "orders", 10, size=100_000)
        await publish(bus, "orders", 500, size=10)
        await look(timed, clock)
        await look(timed, clock)
        first, end = bounds(timed, "orders")
        log = timed.broker.topics["orders"].log
        assert end == 510
        assert first in (5, 6, 7)
        assert log.bytes == bounds_of(timed.store, log).bytes <= 500_000


async def test_backlog_is_measured_right_after_large_ones_are_gone(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed, patience=0.0) as bus:
        await bus.call("topic.create", name="jobs", retention={"settled": True}, max_backlog=500_000)
        await bus.call("group.create", topic="jobs", name="g")
        await publish(bus, "jobs", 4, size=100_000)
        await publish(bus, "jobs", 50, size=10)
        async with Reader(bus.subscribe("jobs", group="g", prefetch=4)) as reader:
            await reader.payloads(4)
            await reader.subscription.flush()
            await look(timed, clock, 1.0)
            # Four large ones fit again.
            await publish(bus, "jobs", 4, size=100_000)


async def test_size_far_above_the_limit_is_brought_down_at_once(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"max_bytes": 1 << 20})
        async with bus.publisher("orders") as out:
            await out.send_many([bytes(1 << 20)] * 40)
        clock.advance(1.1)
        log = timed.broker.topics["orders"].log
        await eventually(lambda: log.bytes <= 1 << 20)


async def test_new_options_count_at_once(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await publish(bus, "orders", 20, size=1000)
        await look(timed, clock)
        assert bounds(timed, "orders") == (0, 20)
        await bus.call("topic.update", name="orders", retention={"max_bytes": 5000})
        clock.advance(1.1)
        await eventually(lambda: timed.broker.topics["orders"].log.first > 10)
        shown = await bus.call("topic.show", name="orders")
        assert shown["options"]["retention"]["max_bytes"] == 5000
        assert shown["options"]["retention"]["max_age"] == 7 * DAY


async def test_who_comes_late_gets_what_is_left(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"max_age": 600.0})
        await publish(bus, "orders", 3)
        clock.advance(590)
        await bus.publish("orders", b"new")
        await look(timed, clock)
        async with Reader(bus.subscribe("orders", group="late", start="earliest")) as reader:
            assert await reader.payloads(1) == [b"new"]
        with pytest.raises(OffsetGone):
            await bus.call("group.seek", topic="orders", name="late", to=1)
        await bus.call("group.seek", topic="orders", name="late", to=3)


async def test_whole_batches_go(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"settled": True})
        async with bus.publisher("orders") as out:
            await out.send_many([b"x"] * 100)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await reader.payloads(50)
            await reader.subscription.flush()
            await look(timed, clock, 1.0)
            assert bounds(timed, "orders") == (0, 100)
            await reader.payloads(50)
            await reader.subscription.flush()
        await look(timed, clock, 1.0)
        assert bounds(timed, "orders") == (100, 100)


async def test_what_is_gone_stays_gone_over_a_restart(clock: FakeClock, crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        await bus.call("topic.create", name="orders", retention={"settled": True})
        await publish(bus, "orders", 5)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await reader.payloads(5)
            await reader.subscription.flush()
        await look(terminal, clock, 1.0)
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        assert bounds(terminal, "orders") == (5, 5)
        assert (await bus.publish("orders", b"next")).offset == 5
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert await reader.payloads(1) == [b"next"]


async def test_deleting_the_slow_group_frees_its_messages(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"settled": True})
        await bus.call("group.create", topic="orders", name="slow")
        await publish(bus, "orders", 5)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await reader.payloads(5)
            await reader.subscription.flush()
        await look(timed, clock)
        assert bounds(timed, "orders") == (0, 5)
        await bus.call("group.delete", topic="orders", name="slow", force=True)
        await look(timed, clock)
        assert bounds(timed, "orders") == (5, 5)


@pytest.mark.parametrize("discipline", ["fifo", "lifo", "priority"])
async def test_a_cursor_that_did_not_hear_of_the_last_trim_goes_on_behind_it(
    discipline: Any, crashes: list[Any]
) -> None:
    """A crash came after the trim of unsettled messages was stored, and before the group's cursor was."""
    store = MemoryStore()
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.groups.create("orders", "g", discipline=discipline)
        await publish(bus, "orders", 10)
        number = terminal.broker.topics["orders"].log.number
    await store.open()
    await store.commit(0, await store.claim(0), [Trim(number, 6)])
    await store.close()
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        assert (await bus.groups.show("orders", "g")).lag == 4
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert sorted(payload[:1] for payload in await reader.payloads(4)) == [b"6", b"7", b"8", b"9"]
            await reader.subscription.flush()
        assert terminal.broker.table.group("orders", "g").delivery.cursor.floor == 10


async def test_topics_that_come_and_go_leave_no_plans(terminal: Terminal, bus: Any) -> None:
    for number in range(300):
        await bus.publish(f"topic-{number}", b"x")
        await bus.topics.delete(f"topic-{number}")
    assert len(terminal.broker.trimmer._planned) < 100

"""Bulk reads by offset, waiting for growth, and cursors that are moved by offset."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from landbridge.broker.fetches import MOST_BATCHES, MOST_WAITING
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.fetch import Stretch
from landbridge.core.log.batch import Batch, Origin, build
from landbridge.errors import BadRequest, Forbidden, LimitReached, OtherLog, UnknownTopic
from landbridge.protocol import frames
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import eventually


def payloads(stretch: Stretch) -> list[bytes]:
    return [payload for each in stretch.batches for payload in each.batch.payloads()]


async def everything(bus: Any, topic: str, max_bytes: int = 4 << 20) -> list[bytes]:
    found: list[bytes] = []
    at = 0
    while (stretch := await bus.fetch(topic, at, max_bytes)).batches:
        assert stretch.batches[0].first <= at
        found += payloads(stretch)
        at = stretch.batches[-1].end
    assert at == stretch.end
    return found


async def test_a_log_is_read_by_offset(bus: Any) -> None:
    for n in range(5):
        await bus.publish("orders", b"%d" % n)
    stretch = await bus.fetch("orders", 2)
    assert (stretch.first, stretch.end) == (0, 5)
    assert [each.first for each in stretch.batches] == [2, 3, 4]
    assert payloads(stretch) == [b"2", b"3", b"4"]
    assert {each.origin for each in stretch.batches} == {""}
    assert (await bus.fetch("orders", 5)).batches == []


@pytest.mark.parametrize("cache", [1, 64 << 20], ids=["from-disk", "from-memory"])
async def test_a_log_is_read_in_pieces(tmp_path: Any, crashes: list[Any], cache: int) -> None:
    store = JournalStore(tmp_path / "bus")
    async with run_terminal(store, limits=Limits(cache=cache)) as terminal, attach(terminal) as bus:
        async with bus.publisher("orders") as out:
            sent = [b"%06d" % n for n in range(20_000)]
            await out.send_many(sent)
        assert await everything(bus, "orders", 30_000) == sent
        assert await everything(bus, "orders", 1) == sent  # a batch at a time
        assert terminal.broker.cache.size <= max(cache, 1 << 20)


async def test_small_batches_come_a_bounded_number_at_a_time(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        count = MOST_BATCHES + 10
        for begin in range(0, count, 50):  # not a publisher, which would join them
            sends = [bus.publish("orders", b"%d" % n) for n in range(begin, min(count, begin + 50))]
            await asyncio.gather(*sends)
        assert len((await bus.fetch("orders", 0)).batches) == MOST_BATCHES
        assert len(await everything(bus, "orders")) == count


async def test_an_answer_is_no_larger_than_a_frame_may_be(crashes: list[Any]) -> None:
    limits = Limits(max_frame=1 << 20, max_payload=1 << 18)
    async with run_terminal(limits=limits) as terminal, attach(terminal) as bus:
        for _ in range(12):
            await bus.publish("orders", bytes(200_000))
        assert len((await bus.fetch("orders", 0, 1 << 30)).batches) < 6
        assert len(await everything(bus, "orders", 1 << 30)) == 12


async def test_what_was_trimmed_is_told_by_the_bounds(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.call("topic.create", name="orders", retention={"max_age": 10.0})
        await bus.publish("orders", b"old")
        clock.advance(20)
        await bus.publish("orders", b"new")
        while await timed.broker.trimmer.trim(timed.broker.table.topic("orders")):
            pass
        stretch = await bus.fetch("orders", 0)
        assert (stretch.first, stretch.end, stretch.batches[0].first) == (1, 2, 1)


async def test_a_fetch_needs_the_scope(terminal: Terminal, way: Way) -> None:
    async with attach(terminal) as admin:
        await admin.publish("orders", b"x")
    async with way.connect(terminal, scopes=["publish:#", "subscribe:bills"]) as bus:
        for call in (
            bus.fetch("orders", 0),
            bus.call("topic.wait", offsets={"orders": 0}),
            bus.call("topic.seek_time", times={"orders": 0}),
            bus.call("group.advance", topic="orders", name="g", to=1),
        ):
            with pytest.raises(Forbidden):
                await call
        with pytest.raises(UnknownTopic):
            await bus.fetch("bills", 0)


async def test_fetches_wait_for_a_peer_that_does_not_read(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"x")
        connection = next(iter(terminal.connections))
        connection.pause_writing()
        requests = [asyncio.ensure_future(bus.fetch("orders", 0)) for _ in range(MOST_WAITING)]
        link = await bus.live_wire()
        refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        await asyncio.sleep(0)
        connection.resume_writing()
        assert [len(each.batches) for each in await asyncio.gather(*requests)] == [1] * MOST_WAITING
        connection.pause_writing()
        for _ in range(MOST_WAITING):
            connection._fetches.put(frames.Fetch(link.request(lambda _: None), "orders", 0, 1))
        with pytest.raises(LimitReached):
            connection._fetches.put(frames.Fetch(link.request(refused.set_result), "orders", 0, 1))
        connection.resume_writing()


async def ends(bus: Any, **request: Any) -> dict[str, int]:
    found = await bus.call("topic.wait", **request)
    return {name: each["end"] for name, each in found.items()}


async def test_waiting_ends_when_a_topic_grows(terminal: Terminal, bus: Any) -> None:
    for name in ("orders", "bills"):
        await bus.publish(name, b"x")
    at = {"orders": 1, "bills": 1}
    assert await ends(bus, offsets=at) == {"orders": 1, "bills": 1}
    waiting = asyncio.ensure_future(ends(bus, offsets=at, within=60.0))
    log = terminal.broker.table.topic("bills").log
    await eventually(lambda: log._growth)
    await bus.publish("bills", b"y")
    assert await waiting == {"orders": 1, "bills": 2}
    assert await ends(bus, offsets=at, within=60.0) == {"orders": 1, "bills": 2}


async def test_waiting_ends_at_the_offset_and_not_before(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"0")
        waiting = asyncio.ensure_future(ends(bus, offsets={"orders": 2}, within=60.0))
        log = terminal.broker.table.topic("orders").log
        for end in (2, 3):
            while not log._growth:
                await asyncio.sleep(0)
            assert not waiting.done()
            await bus.publish("orders", b"%d" % end)
        assert await waiting == {"orders": 3}


async def test_a_log_has_an_identity(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        for payload in (b"a", b"b"):
            await bus.publish("orders", payload)
        there = (await bus.topics.wait({"orders": 1}))["orders"]
        stretch = await bus.fetch("orders", 0)
        times = [each.batch.time_of(0) for each in stretch.batches]
        assert (there.before, there.newest) == (times[0], times[1])
        assert (await bus.topics.wait({"orders": 0}))["orders"].before is None
        assert (await bus.topics.wait({"orders": 9}))["orders"].before is None
        assert there.log == stretch.log == (await bus.topics.show("orders")).log
        await bus.call("group.advance", topic="orders", name="g", to=1, log=there.log)
        await bus.call("topic.delete", name="orders", force=True)
        await bus.publish("orders", b"c")
        assert (await bus.fetch("orders", 0)).log == (await bus.topics.show("orders")).log != there.log
        with pytest.raises(OtherLog):
            await bus.call("group.advance", topic="orders", name="g", to=1, log=there.log)


async def test_where_a_batch_came_from_is_told(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"here")
        topic = terminal.broker.table.topic("orders")
        batch = Batch.decode(build([b"there"], id=bus.new_id(), time=1))
        batch.origin = Origin("ter_lyon", 1, [(7, 8)], ["ter_lyon"], 2)
        batch.audience = frozenset({"billing"})

        await topic.writer.put(lambda commit: commit.append(topic.log, batch))
        found = await bus.fetch("orders", 0)
        assert [(each.origin, each.batch.payloads()) for each in found.batches] == [
            ("", [b"here"]),
            ("ter_lyon", [b"there"]),
        ]


async def test_a_time_is_an_offset(timed: Terminal, clock: FakeClock) -> None:
    async with attach(timed) as bus:
        await bus.publish("orders", b"0")
        clock.advance(10)
        middle = clock.now
        await bus.publish("orders", b"1")
        found = await bus.call("topic.seek_time", times={"orders": middle})
        assert found == {"orders": 1}
        assert await bus.call("topic.seek_time", times={"orders": middle + 1}) == {"orders": 2}
        assert await bus.call("topic.seek_time", times={"orders": 0}) == {"orders": 0}


async def test_a_group_advances_and_never_goes_back(terminal: Terminal) -> None:
    async with attach(terminal, scopes=["publish:orders", "subscribe:orders"]) as bus:
        for n in range(5):
            await bus.publish("orders", b"%d" % n)
        assert (await bus.call("group.advance", topic="orders", name="spark", to=2))["lag"] == 3
        assert (await bus.call("group.advance", topic="orders", name="spark", to=1))["floor"] == 2
        assert (await bus.call("group.advance", topic="orders", name="spark", to=99))["floor"] == 5
        async with bus.subscribe("orders", group="spark"):
            with pytest.raises(BadRequest, match="consumers of its own"):
                await bus.call("group.advance", topic="orders", name="spark", to=5)

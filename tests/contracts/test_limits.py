"""Bounds: who floods is held back, who is slow slows only himself, and every limit says its name."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from typing import Any

import pytest

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.core.log.batch import build
from landbridge.errors import BacklogFull, LimitReached, TooLarge
from landbridge.protocol import frames
from landbridge.protocol.session import Session
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FaultyStore, attach, run_terminal
from tests.contracts.ways import WAYS, Way
from tests.waiting import LIMIT, Reader, eventually, turns

TCP = WAYS[1]


def end(terminal: Terminal, topic: str) -> int:
    found = terminal.broker.topics.get(topic)
    return 0 if found is None else found.log.end


def floor(terminal: Terminal, topic: str, group: str) -> int:
    return terminal.broker.table.group(topic, group).delivery.cursor.floor


# -- backlog ------------------------------------------------------------------------------------------


async def fill(bus: Any, topic: str) -> int:
    """Publish until the backlog is full. Returns how many messages were stored."""
    stored = 0
    while True:
        try:
            await bus.publish(topic, bytes(100))
        except BacklogFull:
            return stored
        stored += 1
        assert stored < 1000


async def test_full_backlog_is_refused_after_patience(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, patience=0.05) as bus:
        await bus.call("topic.create", name="orders", max_backlog=2000)
        await bus.call("group.create", topic="orders", name="g")
        stored = await fill(bus, "orders")
        assert 5 < stored < 30
        assert end(terminal, "orders") == stored
        # Other topics are not concerned.
        assert (await bus.publish("others", b"1")).offset == 0
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await reader.payloads(stored)
            await reader.subscription.flush()
            for number in range(5):
                assert (await bus.publish("orders", b"more")).offset == stored + number


async def test_publishing_goes_on_when_the_group_has_caught_up(terminal: Terminal, way: Way) -> None:
    """Within the patience nobody is told; the publisher just waits."""
    async with way.connect(terminal, patience=30.0) as bus:
        await bus.call("topic.create", name="orders", max_backlog=2000)
        await bus.call("group.create", topic="orders", name="g")

        async def publish() -> None:
            async with bus.publisher("orders") as out:
                for number in range(100):
                    await out.send(b"%03d" % number + bytes(100))
                    if number % 10 == 0:
                        await out.flush()

        publishing = asyncio.ensure_future(publish())
        await eventually(lambda: terminal.broker.totals.refused > 0, "the backlog is full")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            payloads = await reader.payloads(100)
        await publishing
        assert [int(p[:3]) for p in payloads] == list(range(100))
        assert end(terminal, "orders") == 100


async def test_a_topic_without_groups_has_no_backlog(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, patience=0.0) as bus:
        await bus.call("topic.create", name="orders", max_backlog=500)
        for _ in range(20):
            await bus.publish("orders", bytes(100))


async def test_the_slowest_group_counts(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, patience=0.05) as bus:
        await bus.call("topic.create", name="orders", max_backlog=2000)
        await bus.call("group.create", topic="orders", name="slow")
        async with Reader(bus.subscribe("orders", group="fast")) as fast:
            stored = await fill(bus, "orders")
            await fast.payloads(stored)
        # Deleting the group that nobody reads is what the hint says.
        await bus.call("group.delete", topic="orders", name="slow", force=True)
        await bus.publish("orders", b"1")


async def test_patience_is_not_multiplied_by_those_who_wait(terminal: Terminal) -> None:
    """Ten wait at the same time: they give up at the same time, not one after the other."""
    async with attach(terminal, patience=0.5) as bus:
        await bus.call("topic.create", name="orders", max_backlog=1000)
        await bus.call("group.create", topic="orders", name="g")
        bus.patience = 0.0
        stored = await fill(bus, "orders")
        bus.patience = 0.5
        given_up: list[float] = []
        time = asyncio.get_running_loop().time

        async def publish() -> None:
            with pytest.raises(BacklogFull):
                await bus.publish("orders", bytes(100))
            given_up.append(time())

        began = time()
        await asyncio.gather(*(publish() for _ in range(10)))
        # One after the other would take ten times the patience, and half a minute with the usual one.
        assert max(given_up) - began < 10 * 0.5
        assert end(terminal, "orders") == stored


def not_stored(error: BacklogFull) -> int:
    """As how many messages it tells."""
    (note,) = error.__notes__
    return int(note.split()[0].replace(",", ""))


async def test_a_refused_send_many_stores_none_of_its_messages(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, patience=0.05) as bus:
        await bus.call("topic.create", name="orders", max_backlog=10_000)
        await bus.call("group.create", topic="orders", name="g")
        out = bus.publisher("orders")
        given = refused = 0
        with pytest.raises(BacklogFull) as caught:
            for _ in range(100_000):
                given += 16  # they divide what a batch takes, so a call that raises has taken all
                await out.send_many([bytes(100)] * 16)
                await turns(1)  # what has gathered is a batch
        try:
            await out.flush()
        except BacklogFull as error:  # the batches that were under way
            refused += not_stored(error)
        refused += not_stored(caught.value)
        assert 0 < end(terminal, "orders") == given - refused


async def test_a_refused_pipelined_publish_says_how_many_and_goes_on(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, patience=0.05) as bus:
        await bus.call("topic.create", name="orders", max_backlog=1000)
        await bus.call("group.create", topic="orders", name="g")
        out = bus.publisher("orders")
        with pytest.raises(BacklogFull) as caught:
            for _ in range(100):
                await out.send(bytes(100))
                await out.flush()
        assert "1 message not stored" in caught.value.__notes__
        stored = end(terminal, "orders")
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            await reader.payloads(stored)
            await reader.subscription.flush()
            await out.send(b"after")
            await out.flush()
            assert await reader.payloads(1) == [b"after"]


async def test_flush_ends_even_if_what_comes_behind_a_refusal_is_stored(terminal: Terminal) -> None:
    """A batch in the middle is refused, those behind it are stored: the count comes out right."""
    limits = Limits(max_payload=1000)
    async with run_terminal(limits=limits) as small, attach(small) as bus:
        bus.max_payload = 1 << 20  # the client doesn't know
        out = bus.publisher("orders")
        out._large = 1 << 20
        for payload in (b"1", bytes(2000), b"3", b"4"):
            await out.send(payload)
            out._cut()
        with pytest.raises(TooLarge):
            await out.flush()
        await out.send(b"5")
        async with asyncio.timeout(LIMIT):
            await out.flush()
        assert (out.sent, out.stored) == (5, 4)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert await reader.payloads(4) == [b"1", b"3", b"4", b"5"]


# -- slow and greedy consumers ------------------------------------------------------------------------


async def test_a_slow_consumer_slows_only_itself(terminal: Terminal, way: Way) -> None:
    async with (
        way.connect(terminal) as bus,
        attach(terminal, subject="slow") as slow,
        Reader(slow.subscribe("orders", group="slow", prefetch=10)) as stuck,
        Reader(bus.subscribe("orders", group="fast"), batches=True) as fast,
    ):
        async with bus.publisher("orders") as out:
            await out.send_many([b"%d" % n for n in range(20_000)])
        await stuck.next()
        seen = 0
        while seen < 20_000:
            batch = await fast.next()
            seen += len(batch)
            await batch.ack()
        assert floor(terminal, "orders", "slow") == 0
        assert (
            sum(
                lease.size for lease in terminal.broker.table.group("orders", "slow").delivery.leases.values()
            )
            == 10
        )


async def test_a_consumer_that_does_not_read_its_socket_slows_only_itself(crashes: list[Any]) -> None:
    """50 MB for somebody whose socket takes nothing: the terminal keeps little of it, the others get all."""
    async with run_terminal(port=0, limits=Limits(cache=4 << 20)) as terminal, TCP.connect(terminal) as bus:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            deaf.connect(("127.0.0.1", int(terminal.url.rsplit(":", 1)[1])))
            token = terminal.issue_token("deaf", ["admin"], 3600)
            for frame in (
                frames.Hello(frames.VERSION, token),
                frames.Subscribe(1, 1, "orders", "deaf", 1_000_000),
                frames.Subscribe(1, 2, "orders", None, 1_000_000),
            ):
                deaf.sendall(b"".join(map(bytes, Session.send(frame))))
            await eventually(lambda: len(terminal.broker.topics.get("orders", _Nothing).groups) == 2)
            async with Reader(bus.subscribe("orders", group="fast")) as fast:
                tracemalloc.start()
                try:
                    for _ in range(50):
                        await bus.publish("orders", bytes(1_000_000))
                        await (await fast.next()).ack()
                    grown = tracemalloc.get_traced_memory()[0]
                finally:
                    tracemalloc.stop()
            (connection,) = [c for c in terminal.connections if c.subject == "deaf"]
            assert not connection.writable
            assert connection._transport.get_write_buffer_size() < 8 << 20
            # The store in memory holds all 50 MB; what is beyond is the terminal's.
            assert grown - 50_000_000 < 24 << 20


class _Nothing:
    groups: dict[str, Any] = {}  # noqa: RUF012


@pytest.mark.parametrize("group", ["g", None], ids=["group", "ephemeral"])
async def test_a_consumer_that_never_acks_holds_little(crashes: list[Any], group: str | None) -> None:
    limits = Limits(prefetch_bytes=1 << 20, cache=64 << 20)
    async with (
        run_terminal(limits=limits) as terminal,
        attach(terminal) as bus,
        Reader(bus.subscribe("orders", group=group, prefetch=1_000_000)) as reader,
    ):
        async with bus.publisher("orders") as out:
            await out.send_many([bytes(10_000)] * 2000)
        (found,) = terminal.broker.topics["orders"].groups.values()
        (consumer,) = found.consumers.values()
        await eventually(lambda: reader.subscription._batches)
        await bus.ping()
        size = found.delivery.held_by(consumer.number)[1] if group else consumer.bytes
        assert (1 << 20) - 20_000 < size < (1 << 20) + 20_000


async def test_small_messages_fill_the_prefetch_although_large_ones_were_there(crashes: list[Any]) -> None:
    limits = Limits(prefetch_bytes=1 << 20)
    async with run_terminal(limits=limits) as terminal, attach(terminal) as bus:
        await bus.call("group.create", topic="orders", name="g")
        async with bus.publisher("orders") as out:
            await out.send_many([bytes(1_000_000)] * 5)
            await out.send_many([b"small"] * 1000)
        async with Reader(bus.subscribe("orders", group="g", prefetch=600)) as reader:
            assert len(await reader.payloads(5)) == 5
            await reader.subscription.flush()
            group = terminal.broker.table.group("orders", "g")
            (consumer,) = group.consumers
            await eventually(lambda: group.delivery.held_by(consumer)[0] == 600)


async def test_the_cache_is_bounded(crashes: list[Any]) -> None:
    async with run_terminal(limits=Limits(cache=1 << 20)) as terminal, attach(terminal) as bus:
        async with bus.publisher("orders") as out:
            await out.send_many([bytes(10_000)] * 1000)
        assert terminal.broker.cache.size <= (1 << 20) + (600 << 10)
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert len(await reader.payloads(1000)) == 1000
        assert terminal.broker.cache.size <= (1 << 20) + (600 << 10)


async def test_a_subscriber_without_a_group_costs_nothing_with_time(terminal: Terminal) -> None:
    async with attach(terminal) as bus, Reader(bus.subscribe("news")) as reader:
        for number in range(500):
            await bus.publish("news", b"%d" % number)
        assert len(await reader.payloads(500)) == 500
        (group,) = terminal.broker.topics["news"].groups.values()
        assert len(group.delivery.cursor._settled) < 50


# -- floods -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["publish", "transact"])
async def test_a_flood_is_held_back(crashes: list[Any], kind: str) -> None:
    """A client that ignores its window isn't read from any more, so its socket fills up, not our memory."""
    store = FaultyStore(MemoryStore())
    limits = Limits(publish_window=1 << 20)
    async with run_terminal(store, port=0, limits=limits) as terminal:
        token = terminal.issue_token("flood", ["admin"], 3600)
        port = int(terminal.url.rsplit(":", 1)[1])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"".join(map(bytes, Session.send(frames.Hello(frames.VERSION, token)))))
        await reader.read(1000)
        batch = build([bytes(100_000)], id=bytes(16), time=0)
        store.gate.clear()
        try:
            for number in range(1, 301):
                frame: frames.Frame = frames.Publish(number, "orders", b"p", number)
                if kind == "transact":
                    frame = frames.Transact(number, b"p", number, 1, [("orders", len(batch))], [])
                writer.writelines(map(bytes, Session.send(frame, batch)))
            (connection,) = terminal.connections
            await eventually(lambda: not connection._reading)
            assert connection._unanswered < (2 << 20) + (1 << 20)
        finally:
            store.gate.set()
        await eventually(lambda: end(terminal, "orders") == 300, "held back, not lost")
        writer.close()


# -- limits -------------------------------------------------------------------------------------------


@pytest.fixture
async def small(crashes: list[Any]) -> Any:
    limits = Limits(
        max_topics=4, max_groups=2, max_connections=2, max_subscriptions=3, max_payload=1000, max_frame=65536
    )
    async with run_terminal(port=0, limits=limits) as terminal:
        yield terminal


async def test_max_topics(small: Terminal, way: Way) -> None:
    async with way.connect(small, patience=0.0) as bus:
        names = []
        with pytest.raises(LimitReached) as caught:
            for number in range(5):
                await bus.publish(f"t{number}", b"1")
                names.append(f"t{number}")
        assert caught.value.retriable
        assert len(names) == 4  # $status doesn't count
        with pytest.raises(LimitReached):
            async with Reader(bus.subscribe("another", group="g")):
                pass
        with pytest.raises(LimitReached):
            await bus.call("topic.create", name="another")
        for name in names:
            await bus.publish(name, b"2")
        await bus.call("topic.delete", name=names[0])
        await bus.publish("another", b"1")


async def test_max_groups(small: Terminal, way: Way) -> None:
    async with way.connect(small) as bus:
        await bus.publish("orders", b"1")
        async with Reader(bus.subscribe("orders", group="a")) as a, Reader(bus.subscribe("orders")):
            for group in ("b", None):
                with pytest.raises(LimitReached):
                    async with Reader(bus.subscribe("orders", group=group)):
                        pass
            with pytest.raises(LimitReached):
                await bus.call("group.create", topic="orders", name="b")
            assert await a.payloads(1) == [b"1"]
        async with Reader(bus.subscribe("orders", group="b")) as b:
            assert await b.payloads(1) == [b"1"]


async def test_max_connections(small: Terminal, way: Way) -> None:
    async with way.connect(small) as one:
        async with way.connect(small):
            with pytest.raises(LimitReached) as caught:
                async with way.connect(small):
                    pass
            assert caught.value.retriable
            await one.publish("orders", b"1")
        await eventually(lambda: len(small.connections) == 1)
        async with way.connect(small) as two:
            assert (await two.publish("orders", b"2")).offset == 1


async def test_max_subscriptions(small: Terminal, way: Way) -> None:
    async with way.connect(small) as bus:
        readers = [await Reader(bus.subscribe(f"t{n}", group="g")).__aenter__() for n in range(3)]
        with pytest.raises(LimitReached):
            async with Reader(bus.subscribe("t0", group="h")):
                pass
        await bus.publish("t0", b"1")
        assert await readers[0].payloads(1) == [b"1"]
        await readers[0].__aexit__()
        async with Reader(bus.subscribe("t0", group="h")) as reader:
            assert await reader.payloads(1) == [b"1"]
        for reader in readers[1:]:
            await reader.__aexit__()


async def test_max_payload(small: Terminal, way: Way) -> None:
    async with way.connect(small) as bus:
        assert (await bus.publish("orders", bytes(1000))).offset == 0
        for size in (1001, 100_000):
            with pytest.raises(TooLarge):
                await bus.publish("orders", bytes(size))
            async with bus.publisher("orders") as out:
                await out.send(b"before")
                with pytest.raises(TooLarge):
                    await out.send(bytes(size))
                with pytest.raises(TooLarge):
                    await out.send_many([bytes(size)])
                await out.send(b"after")
            with pytest.raises(TooLarge):
                async with bus.transaction() as t:
                    await t.publish("orders", bytes(size))
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert await reader.payloads(5) == [bytes(1000), *[b"before", b"after"] * 2]


async def test_a_small_frame_still_carries_everything(small: Terminal, way: Way) -> None:
    payloads = [b"%03d" % n + bytes(n * 7 % 997) for n in range(500)]
    async with way.connect(small) as bus:
        async with bus.publisher("orders") as out:
            await out.send_many(payloads)
            for payload in payloads:
                await out.send(payload, key="k" * 50, headers={"h": "v" * 50})
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert await reader.payloads(1000) == payloads * 2


async def test_headers_larger_than_a_frame(small: Terminal, way: Way) -> None:
    async with way.connect(small) as bus:
        with pytest.raises(TooLarge):
            await bus.publish("orders", b"1", headers={"h": "v" * 100_000})
        out = bus.publisher("orders")
        with pytest.raises(TooLarge):
            await out.send(b"1", headers={"h": "v" * 100_000})
            await out.flush()
        await out.send(b"2")
        await out.flush()
        assert end(small, "orders") == 1


async def test_a_payload_larger_than_any_frame(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        with pytest.raises(TooLarge):
            await bus.publish("orders", bytes(20 << 20))
        assert (await bus.publish("orders", bytes(4 << 20))).offset == 0
        async with Reader(bus.subscribe("orders", group="g")) as reader:
            assert len((await reader.next()).payload) == 4 << 20

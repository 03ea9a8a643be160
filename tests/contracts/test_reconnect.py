"""A client whose connection is lost, or whose terminal is restarted: it mends itself, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import landbridge
from landbridge.broker.connection import Connection
from landbridge.broker.server import Terminal
from landbridge.client import line
from landbridge.core.log.ledger import (
    KEEP_LEFT,
    KEEP_TRANSACTIONS,
    MOST_TRANSACTIONS,
    NO_TRANSACTIONS,
)
from landbridge.core.log.store import Append, Trim
from landbridge.core.time import SECOND
from landbridge.errors import (
    BadRequest,
    BusError,
    Disconnected,
    LimitReached,
    QueueTaken,
    StoreFailed,
    TerminalUnreachable,
    TimedOut,
    TooOld,
    UnknownGroup,
    UnknownTopic,
)
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore, attach, run_terminal
from tests.contracts.ways import Way
from tests.ports import free_port
from tests.waiting import LIMIT, Reader, eventually, turns


def cut(terminal: Terminal, subject: str = "test") -> None:
    """Lose the connections of a subject, as a network would."""
    for connection in list(terminal.connections):
        if connection.subject == subject:
            connection._transport.abort()


def silence(connection: Connection) -> None:
    """It hears the client, and its answers get lost."""
    connection.send = lambda *frame: None  # type: ignore[method-assign]  # of this one connection


def length(terminal: Terminal, topic: str) -> int:
    found = terminal.broker.topics.get(topic)
    return 0 if found is None else found.log.end


def numbers(payloads: list[bytes]) -> list[int]:
    return list(map(int, payloads))


async def everything(terminal: Terminal, topic: str) -> list[bytes]:
    """The log itself."""
    async with (
        attach(terminal, subject="checker") as bus,
        Reader(bus.subscribe(topic, group="check", start="earliest")) as reader,
    ):
        return await reader.payloads(terminal.broker.topics[topic].log.end)


# -- news ---------------------------------------------------------------------------------------------


async def test_one_line_for_the_loss_and_one_for_the_return(
    terminal: Terminal, caplog: pytest.LogCaptureFixture
) -> None:
    token = terminal.issue_token("test", ["admin"], 3600)
    async with landbridge.connect(terminal.url, token=token) as bus:
        dial, tries = bus._dial, 0

        async def away(factory: Any) -> Any:
            nonlocal tries
            tries += 1
            if tries <= 3:
                raise TerminalUnreachable("nobody there")
            return await dial(factory)

        bus._dial = away
        cut(terminal)
        await eventually(lambda: bus.wire is None)
        await bus.ping()
    lines = [record.getMessage() for record in caplog.records if record.name == "landbridge.client"]
    assert len(lines) == 2  # however many tries it took, and none for the goodbye
    assert lines[0].startswith(f"lost the terminal at {terminal.url}, trying again: ")
    assert lines[1].startswith(f"back at the terminal at {terminal.url} after ")


async def test_who_creates_nothing_brings_no_group_back(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        for start in None, timedelta(hours=-1):
            with pytest.raises(UnknownTopic):
                await bus.subscribe("orders", group="g", start=start, create=False).open()
        assert await bus.topics.list() == []
        await bus.publish("orders", b"0")
        for start in None, timedelta(hours=-1):
            with pytest.raises(UnknownGroup):
                await bus.subscribe("orders", group="g", start=start, create=False).open()
        await bus.groups.create("orders", "g")
        async with (
            attach(terminal, subject="away") as away,
            Reader(away.subscribe("orders", group="g", create=False)) as reader,
        ):
            assert (await reader.next()).payload == b"0"
            dial, gone = away._dial, asyncio.Event()

            async def later(factory: Any) -> Any:
                await gone.wait()
                return await dial(factory)

            away._dial = later
            cut(terminal, "away")
            await eventually(lambda: away.wire is None)
            await bus.groups.delete("orders", "g", force=True)
            gone.set()
            with pytest.raises(UnknownGroup):
                await reader.next()
        assert (await bus.topics.show("orders")).groups == []
        with pytest.raises(BadRequest):
            bus.subscribe("orders.*", create=False)


# -- publishing ---------------------------------------------------------------------------------------


async def test_pipelined_publishing_over_lost_connections(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus, bus.publisher("orders") as out:
        for part in range(10):
            await out.send_many([b"%d" % n for n in range(part * 5000, part * 5000 + 5000)])
            cut(terminal)
    assert numbers(await everything(terminal, "orders")) == list(range(50_000))


async def test_message_by_message_over_lost_connections(terminal: Terminal) -> None:
    async with attach(terminal) as bus, bus.publisher("orders") as out:
        for number in range(5000):
            await out.send(b"%d" % number)
            if number % 500 == 250:
                await asyncio.sleep(0)
                cut(terminal)
                await asyncio.sleep(0)
    assert numbers(await everything(terminal, "orders")) == list(range(5000))


async def test_publishes_at_the_same_time_over_lost_connections(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        publishes = [asyncio.ensure_future(bus.publish("orders", b"%d" % n)) for n in range(200)]
        for _ in range(5):
            await asyncio.sleep(0.002)
            cut(terminal)
        receipts = await asyncio.gather(*publishes)
    stored = await everything(terminal, "orders")
    assert sorted(numbers(stored)) == list(range(200))
    assert [stored[receipt.offset] for receipt in receipts] == [b"%d" % n for n in range(200)]


async def test_lost_answers_are_given_again(terminal: Terminal, way: Way) -> None:
    """Stored, but the answer is lost: the publish is repeated, stored once, and gets the first offset."""
    async with way.connect(terminal) as bus:
        for number in range(10):
            (connection,) = terminal.connections
            silence(connection)
            publish = asyncio.ensure_future(bus.publish("orders", b"%d" % number))
            await eventually(lambda n=number: length(terminal, "orders") == n + 1)
            connection._transport.abort()
            assert (await publish).offset == number
    assert terminal.broker.totals.repeated == 10
    assert numbers(await everything(terminal, "orders")) == list(range(10))


async def test_publish_while_disconnected_waits(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"0")
        cut(terminal)
        await eventually(lambda: bus.wire is None)
        assert (await bus.publish("orders", b"1")).offset == 1


async def test_timeout_of_a_publish(crashes: list[Any]) -> None:
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.publish("orders", b"0")
        store.gate.clear()
        try:
            with pytest.raises(TimedOut):
                await bus.publish("orders", b"1", timeout=0.01)
        finally:
            store.gate.set()
        # It was under way, and arrives; whatever comes after it is not hurt.
        assert (await bus.publish("orders", b"2")).offset == 2


async def test_a_publisher_waits_for_room_while_disconnected(terminal: Terminal) -> None:
    """However slowly the messages come: what waits for a connection is bounded."""
    async with attach(terminal) as bus:
        bus._dial = never
        cut(terminal)
        await eventually(lambda: bus.wire is None)
        out = bus.publisher("orders")
        sent = 0

        async def flood() -> None:
            nonlocal sent
            while True:
                await out.send(bytes(1000))
                sent += 1
                await asyncio.sleep(0)

        flooding = asyncio.ensure_future(flood())
        before = -1
        while before != sent:  # until it stands still
            before = sent
            await asyncio.sleep(0.05)
        flooding.cancel()
        assert sent * 1000 < 2 * bus.window + (2 << 20)
        assert len(out._outbox._batches) <= 65


async def never(factory: Any) -> Any:
    raise TerminalUnreachable("nobody there")


async def test_a_small_outbox_behind_a_slow_disk(crashes: list[Any]) -> None:
    """More than 64 batches may not be unanswered: the ledger couldn't tell where the oldest went."""
    store = FaultyStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        out = bus.publisher("orders")
        store.gate.clear()
        try:
            for number in range(1000):
                await out.send(b"%d" % number)
                await asyncio.sleep(0)
            assert len(out._outbox._batches) <= 65
        finally:
            store.gate.set()
        await out.flush()
        assert numbers(await everything(terminal, "orders")) == list(range(1000))


# -- subscribing --------------------------------------------------------------------------------------


async def test_subscriptions_go_on(terminal: Terminal, way: Way) -> None:
    async with (
        way.connect(terminal) as bus,
        attach(terminal, subject="producer") as producer,
        Reader(bus.subscribe("orders", group="g", prefetch=10)) as reader,
    ):
        seen: list[int] = []
        for part in range(10):
            async with producer.publisher("orders") as out:
                await out.send_many([b"%d" % n for n in range(part * 20, part * 20 + 20)])
            cut(terminal)
            while (part + 1) * 20 - 1 not in seen:
                message = await reader.next()
                seen.append(int(message.payload))
                await message.ack()
    # At least once: acks that were on their way when the connection was lost may cost a repetition.
    assert sorted(set(seen)) == list(range(200))
    assert len(seen) <= 200 + 10 * 10
    await eventually(lambda: terminal.broker.table.group("orders", "g").delivery.cursor.floor == 200)


async def test_ephemeral_subscriptions_go_on(terminal: Terminal) -> None:
    async with (
        attach(terminal) as bus,
        attach(terminal, subject="producer") as producer,
        Reader(bus.subscribe("news")) as reader,
    ):
        await producer.publish("news", b"1")
        assert await reader.payloads(1) == [b"1"]
        cut(terminal)
        await eventually(lambda: bus.wire is None)
        await eventually(lambda: bus.wire is not None)
        await eventually(lambda: len(terminal.broker.topics["news"].groups) == 1)
        await producer.publish("news", b"2")
        assert await reader.payloads(1) == [b"2"]


async def test_subscribing_while_disconnected(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"1")
        for number in range(5):
            cut(terminal)
            await eventually(lambda: bus.wire is None)
            async with Reader(bus.subscribe("orders", group=f"g{number}")) as reader:
                assert await reader.payloads(1) == [b"1"]


async def test_a_connection_lost_while_subscribing(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        await bus.publish("orders", b"1")
        groups = terminal.broker.topics["orders"].groups
        for number in range(5):
            (connection,) = terminal.connections
            silence(connection)
            opening = asyncio.ensure_future(Reader(bus.subscribe("orders", group=f"g{number}")).__aenter__())
            await eventually(lambda n=number: f"g{n}" in groups and groups[f"g{n}"].consumers)
            connection._transport.abort()
            async with asyncio.timeout(LIMIT):
                reader = await opening
            assert await reader.payloads(1) == [b"1"]
            assert len(groups[f"g{number}"].consumers) == 1
            await reader.__aexit__()
            assert not groups[f"g{number}"].consumers


async def test_operations_are_asked_again(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        for number in range(5):
            cut(terminal)
            await bus.call("topic.create", name=f"t{number}")
            assert await bus.ping() >= 0
    assert {f"t{n}" for n in range(5)} <= set(terminal.broker.topics)


async def test_a_failed_subscription_does_not_come_back(terminal: Terminal) -> None:
    """Its topic was deleted, and nobody reads it any more: a reconnect must not take messages for it."""
    async with attach(terminal) as bus:
        subscription = await bus.subscribe("orders", group="g").open()
        await bus.call("topic.delete", name="orders")
        cut(terminal)
        await eventually(lambda: bus.wire is None)
        await eventually(lambda: bus.wire is not None)
        await bus.ping()
        assert "orders" not in terminal.broker.topics
        await subscription.close()


class Half(asyncio.Protocol):
    """One side of a connection through the proxy."""

    def __init__(self, ends: list[asyncio.Transport]) -> None:
        self._ends = ends
        self.sink: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._ends.append(transport)

    def data_received(self, data: bytes) -> None:
        self.sink.add_done_callback(lambda sink: sink.result().write(data))


class Proxy:
    """Stands between a client and a terminal, and can lose the client's side alone."""

    def __init__(self, port: int) -> None:
        self._port = port
        #: Towards clients and towards the terminal, oldest first.
        self._clients: list[asyncio.Transport] = []
        self._upstream: list[asyncio.Transport] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.get_running_loop().create_server(self._accept, "127.0.0.1", 0)
        self.url = f"lb://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._server.close()
        await asyncio.gather(*self._tasks)
        for transport in (*self._clients, *self._upstream):
            transport.abort()

    def _accept(self) -> Half:
        half = Half(self._clients)
        self._tasks.append(asyncio.ensure_future(self._join(half)))
        return half

    async def _join(self, client: Half) -> None:
        loop = asyncio.get_running_loop()
        _, terminal = await loop.create_connection(lambda: Half(self._upstream), "127.0.0.1", self._port)
        terminal.sink.set_result(client.transport)
        client.sink.set_result(terminal.transport)

    def lose_client(self) -> None:
        self._clients.pop().abort()

    def tell_terminal(self) -> None:
        self._upstream.pop(0).abort()


async def test_a_queues_consumer_comes_back_before_its_loss_was_noticed(terminal: Terminal) -> None:
    """The old connection still holds its place: that is no reason to give up at once."""
    port = int(terminal.url.rsplit(":", 1)[1])
    token = terminal.issue_token("worker", ["admin"], 3600)
    async with attach(terminal, subject="boss") as boss, Proxy(port) as proxy:
        await boss.call("topic.create", name="jobs", kind="queue")
        await boss.publish("jobs", b"1")
        async with (
            landbridge.connect(proxy.url, token=token) as bus,
            Reader(bus.subscribe("jobs", group="workers")) as reader,
        ):
            assert (await reader.next()).attempt == 1
            refused = terminal.broker.totals.refused
            proxy.lose_client()
            await eventually(lambda: terminal.broker.totals.refused >= refused + 2, "its place is taken")
            proxy.tell_terminal()
            message = await reader.next()
            assert (message.payload, message.attempt) == (b"1", 2)
            await message.ack()


async def test_a_place_that_stays_taken_is_given_up_in_the_end(terminal: Terminal) -> None:
    port = int(terminal.url.rsplit(":", 1)[1])
    token = terminal.issue_token("worker", ["admin"], 3600)
    async with attach(terminal, subject="boss") as boss, Proxy(port) as proxy:
        await boss.call("topic.create", name="jobs", kind="queue")
        async with (
            landbridge.connect(proxy.url, token=token, patience=0.3) as bus,
            Reader(bus.subscribe("jobs", group="workers")) as reader,
        ):
            proxy.lose_client()
            with pytest.raises(QueueTaken):
                await reader.next()


async def test_both_sides_have_the_kernel_watch_the_connection(terminal: Terminal) -> None:
    token = terminal.issue_token("svc", ["admin"], 3600)
    async with landbridge.connect(terminal.url, token=token) as bus:
        (connection,) = terminal.connections
        assert bus.wire is not None
        assert bus.wire._transport is not None
        for transport in (connection._transport, bus.wire._transport):
            watched = transport.get_extra_info("socket")
            assert watched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert watched.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000


# -- closing ------------------------------------------------------------------------------------------


async def test_a_closed_bus_says_so(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus:
        out = bus.publisher("orders")
        await out.send(b"1")
        await out.flush()
        subscription = bus.subscribe("orders", group="g")
        await subscription.open()
    with pytest.raises(Disconnected):
        await bus.publish("orders", b"2")
    with pytest.raises(BusError):
        await out.send(b"3")
        await out.flush()
    with pytest.raises(Disconnected):
        await bus.call("topic.list")
    await subscription.close()
    await bus.close()


async def test_closing_while_disconnected_returns(terminal: Terminal) -> None:
    bus = await attach(terminal).open()
    bus._dial = never
    cut(terminal)
    await eventually(lambda: bus.wire is None)
    publishing = asyncio.ensure_future(bus.publish("orders", b"1"))
    reading = asyncio.ensure_future(anext(aiter(bus.subscribe("orders", group="g"))))
    await asyncio.sleep(0)
    async with asyncio.timeout(LIMIT):
        await bus.close()
        for waiting in (publishing, reading):
            with pytest.raises((Disconnected, StopAsyncIteration)):
                await waiting


async def test_the_ledger_forgets_a_producer_with_its_last_message(terminal: Terminal, way: Way) -> None:
    assert isinstance(terminal.store, MemoryStore)
    async with way.connect(terminal) as bus:
        await bus.publish("orders", b"1")
    await eventually(lambda: not terminal.connections)
    await terminal.broker.drain()
    number = terminal.broker.topics["orders"].log.number
    assert {log for log, entries in terminal.store._ledger.items() if entries} == {number}
    await trim(terminal, "orders", 1)
    assert not any(terminal.store._ledger.values())


async def test_the_ledger_forgets_transactions_after_a_while(timed: Terminal, clock: FakeClock) -> None:
    assert isinstance(timed.store, MemoryStore)
    ledgers, units = timed.store._ledger, timed.store.units

    def remembered() -> int:
        return sum(len(ledgers.get(unit, {})) for unit in range(units))

    async def transact(bus: Any) -> None:
        async with bus.transaction() as t:
            await t.publish("orders", b"1")

    life = 2 * KEEP_TRANSACTIONS / SECOND
    async with attach(timed, life=life) as idle, attach(timed, life=life) as killed:
        async with attach(timed) as leaving:
            await transact(leaving)
        await transact(idle)
        await transact(killed)
        await eventually(lambda: len(timed.connections) == 2)
        await timed.broker.drain()
        assert remembered() == 3
        clock.advance(KEEP_LEFT / SECOND + 1)  # bytes of the one that left may have been on their way
        await timed.broker.ledger.trim()
        assert remembered() == 2
        clock.advance(KEEP_TRANSACTIONS / SECOND)
        await timed.broker.ledger.trim()
        assert remembered() == 0
        assert not timed.broker.ledger._known
        await transact(idle)  # it was here all the time, and goes on
        assert length(timed, "orders") == 4


@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_transaction_that_comes_late_on_an_old_connection_does_not_happen_again(
    timed: Terminal, clock: FakeClock, is_forgotten: bool
) -> None:
    async with attach(timed) as bus:
        [old] = timed.connections
        late: list[bytes | bytearray] = []
        old.data_received = late.append  # type: ignore[assignment,method-assign]  # of this one connection
        transaction = bus.transaction()
        await transaction.publish("orders", b"0")
        committing = asyncio.ensure_future(transaction.commit())
        await eventually(lambda: late)
        assert bus.wire is not None
        bus.wire.connection_lost(None)
        await committing
    await eventually(lambda: timed.connections == {old})
    await timed.broker.drain()
    if is_forgotten:
        clock.advance(KEEP_LEFT / SECOND + 1)
        await timed.broker.ledger.trim()
    del old.data_received
    for data in late:
        old.data_received(data)
    await timed.broker.drain()
    await turns()
    await timed.broker.drain()
    assert length(timed, "orders") == 1


async def test_the_ledger_of_transactions_is_bounded() -> None:
    happened = NO_TRANSACTIONS
    for number in range(2, MOST_TRANSACTIONS + 2):
        happened = happened.after(number, 1, 1)  # number 1 is never answered
    with pytest.raises(LimitReached, match="no answer for"):
        happened.after(MOST_TRANSACTIONS + 2, 1, 1)
    assert happened.after(MOST_TRANSACTIONS + 2, MOST_TRANSACTIONS, 1).floor == MOST_TRANSACTIONS


async def trim(terminal: Terminal, topic: str, before: int) -> None:
    """As retention would."""
    found = terminal.broker.topics[topic]

    def work(commit: Any) -> None:
        commit.writes.append(Trim(found.log.number, before))
        commit.on_stored.append(lambda: terminal.broker.trimmer._trimmed(found, before, commit.trimmed))

    await found.writer.put(work)


@pytest.mark.parametrize("trimmed", [False, True])
async def test_late_bytes_of_an_old_connection_are_not_stored_again(
    terminal: Terminal, trimmed: bool
) -> None:
    """The client has connected again, repeated the batch and left, before its first connection is read."""
    async with attach(terminal) as bus:
        [old] = terminal.connections
        late: list[bytes | bytearray] = []
        old.data_received = late.append  # type: ignore[assignment,method-assign]  # of this one connection
        publish = asyncio.ensure_future(bus.publish("orders", b"0"))
        await eventually(lambda: late)
        assert bus.wire is not None
        bus.wire.connection_lost(None)
        assert (await publish).offset == 0
    if trimmed:
        await trim(terminal, "orders", 1)
    del old.data_received
    for data in late:
        old.data_received(data)
    await terminal.broker.drain()
    assert length(terminal, "orders") == 1


async def test_a_producer_that_was_forgotten_goes_on_as_another(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal) as bus, way.connect(terminal, subject="other") as other:
        for number in range(3):
            await bus.publish("orders", b"%d" % number)
        await trim(terminal, "orders", 3)
        # Born before the one that was forgotten, or after it: both have never been here.
        receipts = await asyncio.gather(*(each.publish("orders", b"x") for each in (bus, bus, other, other)))
        assert sorted(receipt.offset for receipt in receipts) == [3, 4, 5, 6]
        await trim(terminal, "orders", 7)
        assert (await bus.publish("orders", b"y")).offset == 7
        # Where the terminal's clock was set back, every birth is too early.
        terminal.broker.topics["orders"].log.forgotten = 1 << 60
        await trim_all_but_births(terminal, "orders")
        assert (await bus.publish("orders", b"z")).offset == 8


async def trim_all_but_births(terminal: Terminal, topic: str) -> None:
    log = terminal.broker.topics[topic].log
    forgotten = log.forgotten
    await trim(terminal, topic, log.end)
    log.forgotten = forgotten


async def test_a_repeat_of_a_forgotten_producer_is_refused(terminal: Terminal, way: Way) -> None:
    """It may have been stored: the terminal can't know any more, and must not store it a second time."""
    async with way.connect(terminal) as bus:
        [connection] = terminal.connections
        silence(connection)
        publish = asyncio.ensure_future(bus.publish("orders", b"0"))
        await eventually(lambda: length(terminal, "orders") == 1)
        await trim(terminal, "orders", 1)
        connection._transport.abort()
        with pytest.raises(TooOld):
            await publish
        assert (await bus.publish("orders", b"1")).offset == 1


async def test_nobody_there() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    with pytest.raises(TerminalUnreachable):
        await landbridge.connect(f"lb://127.0.0.1:{port}", token="x")


# -- restarts -----------------------------------------------------------------------------------------


async def test_a_restarted_terminal_gets_everything_once(tmp_path: Path, crashes: list[Any]) -> None:
    """Three starts on the same file and port, with clients that stay."""
    path, port = tmp_path / "bus", free_port()
    async with run_terminal(JournalStore(path), port=port) as terminal:
        token = terminal.issue_token("test", ["admin"], 3600)
        producer = await landbridge.connect(terminal.url, token=token)
        consumer = await landbridge.connect(terminal.url, token=token)
        out = producer.publisher("orders")
        await out.send_many([b"%d" % n for n in range(100)])
        await out.flush()
        reader = await Reader(consumer.subscribe("orders", group="g", prefetch=10)).__aenter__()
        seen = numbers(await reader.payloads(30))
    for part in (1, 2):
        pending = asyncio.ensure_future(
            out.send_many([b"%d" % n for n in range(part * 100, part * 100 + 100)])
        )
        async with run_terminal(JournalStore(path), port=port) as terminal:
            await pending
            await out.flush()
            while not set(range(part * 100 + 50)) <= set(seen):
                seen += numbers(await reader.payloads(1))
            assert terminal.broker.life.start == part + 1
    async with run_terminal(JournalStore(path), port=port) as terminal:
        while not set(range(300)) <= set(seen):
            seen += numbers(await reader.payloads(1))
        await reader.__aexit__()
        await producer.close()
        await consumer.close()
        assert numbers(await everything(terminal, "orders")) == list(range(300))


async def test_the_ledger_survives_a_restart(tmp_path: Path, crashes: list[Any]) -> None:
    """Stored, the answer lost, and then the terminal restarts: the repetition is still known."""
    path, port = tmp_path / "bus", free_port()
    async with run_terminal(JournalStore(path), port=port) as terminal:
        token = terminal.issue_token("test", ["admin"], 3600)
        bus = await landbridge.connect(terminal.url, token=token)
        await bus.publish("orders", b"0")
        (connection,) = terminal.connections
        silence(connection)
        publish = asyncio.ensure_future(bus.publish("orders", b"1"))
        transaction = asyncio.ensure_future(one_message(bus, "orders", b"2"))
        await eventually(lambda: terminal.broker.topics["orders"].log.end == 3)
    async with run_terminal(JournalStore(path), port=port) as terminal:
        async with asyncio.timeout(LIMIT):
            assert (await publish).offset == 1
            await transaction
        assert terminal.broker.totals.repeated == 2
        assert numbers(await everything(terminal, "orders")) == [0, 1, 2]
        await bus.close()


class FickleDisk(FaultyStore):
    """Stores a commit and says that it has failed, as a disk may; then refuses everything until it is opened
    again."""

    fickle = failed = False

    async def open(self) -> None:
        self.failed = False
        await super().open()

    async def commit(self, unit: int, epoch: int, writes: Any) -> Any:
        if self.failed:
            raise StoreFailed("opened too long ago (as told)")
        bounds = await super().commit(unit, epoch, writes)
        if self.fickle and any(isinstance(write, Append) for write in writes):
            self.fickle, self.failed = False, True
            raise StoreFailed("a failed fsync (as told)")
        return bounds


@pytest.mark.parametrize("behind", [0, 3])
async def test_a_batch_that_was_refused_and_stored_after_all_takes_no_other_ones_place(
    behind: int, crashes: list[Any]
) -> None:
    """The number of a refused batch is not used again: the next one would be taken for its repeat.
    ``behind``: how many batches were sent after it, before its refusal."""
    store, port = FickleDisk(MemoryStore()), free_port()
    async with run_terminal(store, port=port) as terminal:
        token = terminal.issue_token("test", ["admin"], 3600)
        bus = await landbridge.connect(terminal.url, token=token)
        await bus.publish("orders", b"0")
        await terminal.broker.drain()
        store.fickle = True
        sent = [asyncio.ensure_future(bus.publish("orders", b"%d" % n)) for n in range(1, behind + 2)]
        with pytest.raises(StoreFailed):
            await sent[0]
        outcomes = await asyncio.gather(*sent, return_exceptions=True)
        assert all(isinstance(outcome, StoreFailed) for outcome in outcomes)
    async with run_terminal(store, port=port) as terminal, asyncio.timeout(LIMIT):
        before = length(terminal, "orders")
        assert before > 1, "the refused one was stored"
        receipts = [await bus.publish("orders", b"next"), await bus.publish("orders", b"last")]
        assert [receipt.offset for receipt in receipts] == [before, before + 1]
        assert (await everything(terminal, "orders"))[before:] == [b"next", b"last"]
        await bus.close()


async def test_a_repeat_of_a_stored_batch_is_answered_also_if_the_queue_was_taken_over(
    terminal: Terminal, way: Way
) -> None:
    async with way.connect(terminal) as bus, way.connect(terminal, subject="other") as other:
        await other.topics.create("jobs", kind="queue")
        await bus.publish("jobs", b"0")
        [connection] = [each for each in terminal.connections if each.subject == "test"]
        silence(connection)
        publish = asyncio.ensure_future(bus.publish("jobs", b"1"))
        await eventually(lambda: length(terminal, "jobs") == 2)
        connection.closed = True  # the terminal has noticed the loss, the client has not
        assert (await other.publish("jobs", b"2")).offset == 2
        connection.closed = False
        cut(terminal)
        async with asyncio.timeout(LIMIT):
            assert (await publish).offset == 1
        with pytest.raises(QueueTaken):
            await bus.publish("jobs", b"refused")
        cut(terminal, "other")
        await eventually(lambda: len(terminal.connections) == 2)
        terminal.broker.topics["jobs"].claim = None
        assert (await bus.publish("jobs", b"3")).offset == 3
    assert numbers(await everything(terminal, "jobs")) == list(range(4))


async def one_message(bus: Any, topic: str, payload: bytes) -> None:
    async with bus.transaction() as t:
        await t.publish(topic, payload)


async def test_outboxes_of_topics_that_are_used_no_more_are_forgotten(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "MOST_OUTBOXES", 3)
    async with attach(terminal) as bus, bus.publisher("kept") as kept:
        for number in range(20):
            await bus.publish(f"topic-{number}", b"first")
        gc.collect()
        assert len(bus._recent) <= 3
        assert len(bus._resenders) <= 3 + 1, "and the publisher's"
        # Whoever comes back has other numbers than before, so nothing is taken for a repeat.
        for number in range(20):
            assert (await bus.publish(f"topic-{number}", b"second")).offset == 1
        # A publisher that has been idle goes on, also over a lost connection.
        assert bus.wire is not None
        await kept.send(b"1")
        bus.wire.connection_lost(None)
        await kept.flush()
        await asyncio.gather(*(bus.publish(f"topic-{number}", b"third") for number in range(20)))
        assert [length(terminal, f"topic-{number}") for number in range(20)] == [3] * 20
    assert length(terminal, "kept") == 1

"""The event gateway: what the source sends, and what the clients get. In memory and through topics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.events.parser import LONGEST_LINE
from landbridge.errors import BadRequest, Forbidden, QueueTaken, TerminalUnreachable
from landbridge.gateways import event_topics
from landbridge.gateways.event_topics import client_of, event_gateway, group_of
from landbridge.gateways.events import EventClient, EventGateway, EventOptions, EventSource
from landbridge.node.assembly import dial_to
from landbridge.node.events import beside
from landbridge.node.plan import EventsPlan
from landbridge.stores.memory import MemoryStore
from landbridge.testing import attach, run_terminal
from tests.events import is_window, oracle, random_lines, shuffled
from tests.waiting import LIMIT, Reader, eventually, turns

TOPIC = "happenings"


class Visitor:
    """A client with a socket of its own. Reads all the time, unless it is told not to."""

    def __init__(self, gateway: EventGateway, name: bytes, terminal: Terminal) -> None:
        self._gateway, self.name, self._terminal = gateway, name, terminal
        self.got = b""
        self._reading: asyncio.Task[None] | None = None

    async def come(self, *, reading: bool = True) -> Visitor:
        port = self._gateway.client_port
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
        before = self._gateway.clients.get(self.name)
        self._writer.write(self.name + b"\n")
        await eventually(lambda: self._gateway.clients.get(self.name) not in (None, before))
        await self._registered()
        if reading:
            self.read()
        return self

    async def _registered(self) -> None:
        """Through topics: it has its group."""
        topic = self._terminal.broker.topics.get(f"{TOPIC}.notifications")
        if topic is not None:
            await eventually(lambda: group_of(self.name) in topic.groups)

    def read(self) -> None:
        self._reading = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        while data := await self._reader.read(1 << 16):
            self.got += data

    async def ended(self) -> None:
        """Wait until the gateway has closed the connection."""
        assert self._reading is not None
        async with asyncio.timeout(LIMIT):
            await asyncio.wait([self._reading])
        self._reading.exception()  # a reset is as good as an end
        self._writer.close()

    async def go(self) -> None:
        """Read no more, and leave."""
        self._writer.close()
        if self._reading is not None:
            await asyncio.wait([self._reading])
        await eventually(lambda: self.name not in self._gateway.clients)

    async def reads(self, lines: Iterable[bytes]) -> None:
        """Wait until exactly these have come, in all."""
        expected = b"".join(line + b"\n" for line in lines)
        await eventually(lambda: len(self.got) >= len(expected), f"{self.name!r} gets {expected[-200:]!r}")
        await turns()
        assert self.got == expected


class Place:
    """A gateway with what stands around it."""

    def __init__(self, gateway: EventGateway, bus: Bus, terminal: Terminal) -> None:
        self.gateway, self.bus, self.terminal = gateway, bus, terminal
        self._sources: list[asyncio.StreamWriter] = []
        self.visitors: list[Visitor] = []

    async def source(self) -> asyncio.StreamWriter:
        _, writer = await asyncio.open_connection("127.0.0.1", self.gateway.event_port)
        self._sources.append(writer)
        return writer

    async def send(self, *lines: bytes) -> None:
        """By a source that comes and goes."""
        writer = await self.source()
        writer.writelines(line + b"\n" for line in lines)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def dispatched(self, count: int) -> None:
        await eventually(lambda: self.gateway.totals.dispatched >= count, f"{count} dispatched")

    async def visitor(self, name: bytes, *, reading: bool = True) -> Visitor:
        self.visitors.append(Visitor(self.gateway, name, self.terminal))
        return await self.visitors[-1].come(reading=reading)

    async def close(self) -> None:
        for writer in self._sources:
            writer.close()
        for visitor in self.visitors:
            visitor._writer.close()
            if visitor._reading is not None:
                visitor._reading.cancel()


Open = Callable[..., Any]


@asynccontextmanager
async def place_on(terminal: Terminal, topic: str | None = None, **options: Any) -> AsyncIterator[Place]:
    options = {"note_every": 0.001, **options}
    async with (
        attach(terminal, subject="events") as bus,
        event_gateway(bus, topic, EventOptions(**options)) as gateway,
    ):
        await gateway.listen("127.0.0.1", 0, 0)
        place = Place(gateway, bus, terminal)
        yield place
        await place.close()


@pytest.fixture(params=[None, TOPIC], ids=["memory", "topics"])
async def place(terminal: Terminal, request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    async with place_on(terminal, request.param) as found:
        yield found


@pytest.fixture
async def memory(terminal: Terminal) -> AsyncIterator[Place]:
    async with place_on(terminal) as found:
        yield found


async def notes(terminal: Terminal, cause: str) -> list[dict[str, Any]]:
    """What the status log says of a cause, as soon as it says something."""
    async with (
        attach(terminal, subject="watcher") as bus,
        Reader(bus.subscribe("$status", group=f"watch-{cause}", start="earliest")) as reader,
    ):
        while True:
            event = (await reader.next()).json()
            if event["event"] == "error" and event.get("cause") == cause:
                return [event]


# -- whom a line is for ------------------------------------------------------------------------------------


async def test_each_kind_goes_to_those_whom_it_is_for(place: Place) -> None:
    one, two, three = [await place.visitor(name) for name in (b"1", b"2", b"3")]
    await place.send(b"1|F|1|2", b"2|P|3|1", b"3|S|2", b"4|B", b"5|U|1|2", b"6|S|2", b"7|B")
    await one.reads([b"2|P|3|1", b"3|S|2", b"4|B", b"7|B"])
    await two.reads([b"1|F|1|2", b"4|B", b"7|B"])
    await three.reads([b"4|B", b"7|B"])


async def test_lines_come_in_order_and_unchanged_whatever_order_they_were_sent_in(place: Place) -> None:
    one = await place.visitor(b"1")
    lines = [b"%03d|P|x|1" % n for n in range(1, 300)]
    mixed = lines[:]
    random.Random(5).shuffle(mixed)
    await place.send(*mixed)
    await one.reads(lines)


async def test_a_line_that_comes_twice_is_passed_on_once(place: Place) -> None:
    one = await place.visitor(b"1")
    await place.send(b"2|P|9|1", b"2|P|9|1", b"1|P|9|1", b"1|P|9|1")
    await place.send(b"1|P|9|1", b"3|B")
    await one.reads([b"1|P|9|1", b"2|P|9|1", b"3|B"])


async def test_following_twice_notifies_once(place: Place) -> None:
    two = await place.visitor(b"2")
    await place.send(b"1|F|1|2", b"2|F|1|2", b"3|U|1|2", b"4|F|1|2", b"5|B")
    await two.reads([b"1|F|1|2", b"4|F|1|2", b"5|B"])


async def test_ids_need_not_be_numbers(place: Place) -> None:
    strange = [await place.visitor(name) for name in (b"anna", b"[*]", b"*", b"a.b", b"hex")]
    await place.send(*(b"%d|P|x|%s" % (n, v.name) for n, v in enumerate(strange, 1)), b"6|B")
    for number, visitor in enumerate(strange, 1):
        await visitor.reads([b"%d|P|x|%s" % (number, visitor.name), b"6|B"])


# -- coming and going ----------------------------------------------------------------------------------------


async def test_source_that_drops_and_comes_back_continues(place: Place) -> None:
    one = await place.visitor(b"1")
    writer = await place.source()
    writer.write(b"1|B\n3|B\n4|P|9|1")  # cut in the middle of a line
    await writer.drain()
    writer.close()
    await one.reads([b"1|B"])
    await place.send(b"4|P|9|123", b"2|B", b"5|B")
    await one.reads([b"1|B", b"2|B", b"3|B", b"5|B"])


async def test_two_sources_at_once_are_one_sequence(place: Place) -> None:
    one = await place.visitor(b"1")
    first, second = await place.source(), await place.source()
    first.write(b"1|B\n4|B\n")
    second.write(b"3|B\n2|B\n")
    await one.reads([b"1|B", b"2|B", b"3|B", b"4|B"])


async def test_absent_client_misses_lines_and_keeps_its_followers(memory: Place) -> None:
    await memory.send(b"1|F|1|2", b"2|P|9|1", b"3|B", b"4|S|2")
    await memory.dispatched(4)
    one = await memory.visitor(b"1")
    await memory.send(b"5|S|2")
    await one.reads([b"5|S|2"])
    await one.go()
    await memory.send(b"6|S|2")
    await memory.dispatched(6)
    again = await memory.visitor(b"1")
    await memory.send(b"7|S|2")
    await again.reads([b"7|S|2"])


async def test_newer_connection_of_a_client_replaces_the_older_one(place: Place) -> None:
    older = await place.visitor(b"1")
    await place.send(b"1|B")
    await older.reads([b"1|B"])
    newer = await place.visitor(b"1")
    await older.ended()
    await place.send(b"2|B")
    await newer.reads([b"2|B"])
    assert older.got == b"1|B\n"


async def test_restarting_sources_begin_anew_and_keep_the_followers(terminal: Terminal) -> None:
    async with place_on(terminal, restart=True) as place:
        one = await place.visitor(b"1")
        reader, old = await asyncio.open_connection("127.0.0.1", place.gateway.event_port)
        old.write(b"1|F|1|2\n2|B\n9|B\n")
        await one.reads([b"2|B"])
        await place.send(b"1|S|2", b"2|B")
        await one.reads([b"2|B", b"1|S|2", b"2|B"])
        async with asyncio.timeout(LIMIT):
            assert await reader.read() == b""  # cut off
        old.close()


# -- what goes wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line", [b"nonsense", b"", b"x|B", b"-1|B", b"7" * 30 + b"|B", b"2|P|1|" + b"1" * 300, b"2" * 70_000]
)
async def test_line_without_a_number_is_counted_logged_and_skipped(place: Place, line: bytes) -> None:
    one = await place.visitor(b"1")
    await place.send(b"1|B", line, b"2|B")
    await one.reads([b"1|B", b"2|B"])
    assert place.gateway.totals.malformed == 1
    (event,) = await notes(place.terminal, "bad_event")
    assert (event["who"], event["messages"]) == ("events", 1)
    assert repr(line[:20])[2:-1] in event["detail"]


async def test_nonsense_with_a_number_takes_its_turn(place: Place) -> None:
    """Otherwise everything after it would wait for a number that has been used up."""
    one = await place.visitor(b"1")
    await place.send(b"3|B", b"2|X|1|1", b"1|P|", b"4|F|1")
    await one.reads([b"3|B"])
    await place.dispatched(4)
    await eventually(lambda: place.gateway.totals.malformed == 3)


async def test_a_flood_of_nonsense_is_one_note_with_a_count(terminal: Terminal) -> None:
    async with place_on(terminal, note_every=3600.0) as place:
        await place.send(*[b"nonsense"] * 5000)
        await eventually(lambda: place.gateway.totals.malformed == 5000)
    (event,) = await notes(terminal, "bad_event")
    assert event["messages"] == 5000


async def test_overlong_line_is_one_mistake_however_it_arrives(memory: Place) -> None:
    one = await memory.visitor(b"1")
    writer = await memory.source()
    for _ in range(5):
        writer.write(b"9" * LONGEST_LINE)
        await writer.drain()
        await turns()
    writer.write(b"9\n1|B\n")
    await one.reads([b"1|B"])
    assert memory.gateway.totals.malformed == 1


async def test_one_byte_at_a_time(memory: Place) -> None:
    """Straight into the protocol: the socket would put the bytes together again."""
    one = await memory.visitor(b"1")
    source = EventSource(memory.gateway)
    for byte in b"2|P|3|1\r\n1|B\n\nx\n3|B\n":
        source.data_received(bytes([byte]))
    await one.reads([b"1|B", b"2|P|3|1", b"3|B"])
    assert memory.gateway.totals.malformed == 2


async def test_missing_number_is_given_up_when_too_many_wait(terminal: Terminal) -> None:
    async with place_on(terminal, hold=8) as place:
        one = await place.visitor(b"1")
        await place.send(*(b"%d|B" % n for n in range(2, 12)))
        await one.reads([b"%d|B" % n for n in range(2, 12)])
        await place.send(b"1|B", b"12|B")
        await one.reads([b"%d|B" % n for n in range(2, 13)])
    (event,) = await notes(terminal, "sequence_gap")
    assert event["messages"] == 1


async def test_refusing_disconnects_the_source_which_may_come_back(terminal: Terminal) -> None:
    async with place_on(terminal, hold=3, on_gap="refuse") as place:
        one = await place.visitor(b"1")
        reader, writer = await asyncio.open_connection("127.0.0.1", place.gateway.event_port)
        writer.write(b"2|B\n3|B\n4|B\n5|B\n6|B\n")
        async with asyncio.timeout(LIMIT):
            assert await reader.read() == b""
        writer.close()
        await place.send(b"1|B", b"2|B", b"3|B")
        await one.reads([b"1|B", b"2|B", b"3|B"])


@pytest.mark.parametrize("topic", [None, TOPIC])
async def test_missing_number_is_given_up_after_its_time(terminal: Terminal, topic: str | None) -> None:
    async with place_on(terminal, topic, gap_within=0.01) as place:
        one = await place.visitor(b"1")
        await place.send(b"2|B", b"4|B")
        await one.reads([b"2|B", b"4|B"])


@pytest.mark.parametrize("said", [b"\n", b"a b\n", b"x" * 100, b"x" * 65 + b"\n", b"a|b\n", b"\xff\n"])
async def test_client_without_an_id_is_sent_away(memory: Place, said: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", memory.gateway.client_port)
    writer.write(said)
    with pytest.raises(ConnectionError):
        async with asyncio.timeout(LIMIT):
            if await reader.read() == b"":
                raise ConnectionResetError
    writer.close()
    await eventually(lambda: not memory.gateway.visitors)
    assert not memory.gateway.clients


async def test_id_may_come_in_pieces_and_with_a_carriage_return(memory: Place) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", memory.gateway.client_port)
    for piece in (b"4", b"2", b"\r", b"\nmore that nobody reads"):
        writer.write(piece)
        await writer.drain()
        await turns()
    await eventually(lambda: set(memory.gateway.clients) == {b"42"})
    writer.close()


async def test_too_many_connections_are_sent_away(terminal: Terminal) -> None:
    async with place_on(terminal, most_clients=1, most_sources=1) as place:
        one = await place.visitor(b"1")
        source = await place.source()
        await eventually(lambda: len(place.gateway.sources) == 1)
        for port in (place.gateway.client_port, place.gateway.event_port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            with pytest.raises(ConnectionError):
                if await reader.read() == b"":
                    raise ConnectionResetError
            writer.close()
        source.write(b"1|B\n")
        await one.reads([b"1|B"])


async def test_taken_port_is_told(memory: Place) -> None:
    async with EventGateway() as other:
        with pytest.raises(TerminalUnreachable, match="can't listen"):
            await other.listen("127.0.0.1", 0, memory.gateway.client_port)


# -- slow clients --------------------------------------------------------------------------------------------


def broadcasts(count: int, first: int = 1) -> list[bytes]:
    return [b"%d|B|%s" % (n, b"x" * 200) for n in range(first, first + count)]


async def test_slow_client_is_disconnected_and_slows_nobody(terminal: Terminal) -> None:
    async with place_on(terminal, queue=1 << 20) as place:
        one = await place.visitor(b"1")
        slow = await place.visitor(b"2", reading=False)
        # More than its queue and all the buffers of the system hold, but never more than the other can read.
        lines = broadcasts(120_000)
        source = await place.source()
        for at in range(0, len(lines), 2000):
            source.writelines(line + b"\n" for line in lines[at : at + 2000])
            await one.reads(lines[: at + 2000])
            if b"2" not in place.gateway.clients:
                break
        assert set(place.gateway.clients) == {b"1"}
        assert place.gateway.totals.dropped == 1
        slow.read()
        await slow.ended()
        assert is_window(slow.got, one.got)
    (event,) = await notes(terminal, "slow_client")
    assert "client 2" in event["detail"]


async def test_slow_client_through_topics_gets_everything_when_it_reads(terminal: Terminal) -> None:
    async with place_on(terminal, TOPIC) as place:
        one = await place.visitor(b"1")
        slow = await place.visitor(b"2", reading=False)
        lines = broadcasts(20_000)
        await place.send(*lines)
        await one.reads(lines)
        slow.read()
        await slow.reads(lines)


async def test_source_waits_for_clients_that_are_all_behind(terminal: Terminal) -> None:
    """Not one slow client but all of them: then the source is slowed, and nobody is disconnected."""
    async with place_on(terminal, queue=1 << 30, queues=1 << 16) as place:
        visitors = [await place.visitor(b"%d" % n, reading=False) for n in range(3)]
        lines = broadcasts(60_000)
        sending = asyncio.ensure_future(place.send(*lines))
        dispatch: Any = place.gateway.dispatch
        await eventually(lambda: dispatch._overloaded)
        assert place.gateway.totals.dispatched < len(lines)
        for visitor in visitors:
            visitor.read()
        await sending
        for visitor in visitors:
            await visitor.reads(lines)
        assert place.gateway.totals.dropped == 0


async def test_patience_with_clients_that_hold_up_the_source_ends(terminal: Terminal) -> None:
    async with place_on(terminal, queue=1 << 30, queues=1 << 16, patience=3600.0) as place:
        one = await place.visitor(b"1")
        for name in (b"2", b"3"):
            await place.visitor(name, reading=False)
        lines = broadcasts(60_000)
        sending = asyncio.ensure_future(place.send(*lines))
        dispatch: Any = place.gateway.dispatch
        await eventually(lambda: dispatch._overloaded)
        await eventually(lambda: {client.id for client in place.gateway.behind} == {b"2", b"3"})
        dispatch._drop_slowest()  # the time is over
        await one.reads(lines)
        await sending
        assert set(place.gateway.clients) == {b"1"}
        assert place.gateway.totals.dropped == 2


# -- many events ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
async def test_random_events_reach_exactly_those_whom_they_are_for(memory: Place, seed: int) -> None:
    """Clients come and go between the batches; each connection gets exactly what its time brought."""
    lines = random_lines(seed, 20_000, users=60)
    dice = random.Random(seed)
    names = [b"%d" % n for n in range(1, 61)]
    stayed = [await memory.visitor(name) for name in names[:20]]
    #: Visitor → how many events had been sent when it came.
    guests: dict[Visitor, int] = {}
    source = await memory.source()
    sent = 0
    for batch in shuffled(seed, lines, most=2000):
        source.writelines(line + b"\n" for line in batch)
        sent += len(batch)
        await memory.dispatched(sent)
        for visitor in [guest for guest in guests if dice.random() < 0.5]:
            await visitor.reads(lines_for(lines, visitor.name, guests.pop(visitor), sent))
            await visitor.go()
        absent = [name for name in names if name not in memory.gateway.clients]
        for name in dice.sample(absent, min(len(absent), 5)):
            guests[await memory.visitor(name)] = sent
    for visitor, since in guests.items():
        await visitor.reads(lines_for(lines, visitor.name, since, sent))
    whole = oracle(lines, names)
    for visitor in stayed:
        await visitor.reads(whole[visitor.name])


def lines_for(lines: list[bytes], name: bytes, since: int, until: int) -> list[bytes]:
    whole = oracle(lines[:until], [name])[name]
    return [line for line in whole if int(line.split(b"|")[0]) > since]


async def test_random_events_through_topics(terminal: Terminal) -> None:
    async with place_on(terminal, TOPIC) as place:
        lines = random_lines(7, 3_000, users=30)
        visitors = [await place.visitor(b"%d" % n) for n in range(1, 11)]
        source = await place.source()
        for batch in shuffled(7, lines, most=500):
            source.writelines(line + b"\n" for line in batch)
        whole = oracle(lines, [visitor.name for visitor in visitors])
        for visitor in visitors:
            await visitor.reads(whole[visitor.name])


async def test_broadcast_to_many_is_one_text(memory: Place) -> None:
    """Its cost doesn't grow with lines × clients: all get the same object."""
    texts: list[bytes] = []

    class Listening(EventClient):
        def write(self, text: bytes) -> None:
            texts.append(text)

    for n in range(1000):
        client = Listening(memory.gateway)
        client.id = b"%d" % n
        memory.gateway.on_client(client)
    await memory.send(*broadcasts(500))
    await memory.dispatched(500)
    assert len(texts) % 1000 == 0
    assert len({id(text) for text in texts}) == len(texts) // 1000
    memory.gateway.clients.clear()


# -- topics --------------------------------------------------------------------------------------------------


async def test_client_that_was_away_gets_what_it_missed(terminal: Terminal) -> None:
    async with place_on(terminal, TOPIC) as place:
        one = await place.visitor(b"1")
        await place.send(b"1|B")
        await one.reads([b"1|B"])
        await one.go()
        await place.send(b"2|P|9|1", b"3|B")
        await place.dispatched(3)
        again = await place.visitor(b"1")
        await place.send(b"4|B")
        await again.reads([b"2|P|9|1", b"3|B", b"4|B"])


async def test_a_restart_goes_on_with_sequence_hold_and_followers(terminal: Terminal) -> None:
    async with place_on(terminal, TOPIC) as place:
        one = await place.visitor(b"1")
        await place.send(b"1|F|1|2", b"2|F|1|3", b"3|U|1|3", b"4|B", b"6|S|2", b"8|B", b"9|S|3")
        await one.reads([b"4|B"])
        await one.go()
    async with place_on(terminal, TOPIC) as place:
        await place.send(b"5|P|9|1", b"4|B")
        again = await place.visitor(b"1")
        await again.reads([b"5|P|9|1", b"6|S|2"])
        await place.send(b"7|F|1|2", b"10|S|2")
        await again.reads([b"5|P|9|1", b"6|S|2", b"8|B", b"10|S|2"])


async def test_many_restarts_under_way_lose_and_double_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gateway is torn down at any moment, and the journal is written anew all the time."""
    monkeypatch.setattr(event_topics, "REWRITE_AT", 300)
    monkeypatch.setattr(event_topics, "PER_ENTRY", 7)
    monkeypatch.setattr(event_topics, "AT_ONCE", 5000)
    lines = random_lines(3, 1500, users=12)
    names = [b"%d" % n for n in range(1, 7)]
    async with place_on(terminal, TOPIC) as place:
        for name in names:
            await (await place.visitor(name)).go()
    rest = list(shuffled(3, lines, most=200))
    dice = random.Random(3)
    while rest:
        async with place_on(terminal, TOPIC) as place:
            for batch in rest[:2]:
                await place.send(*batch)
            await turns(dice.randint(1, 300))
        # Whatever the torn-down gateway had not published its source sends again.
        rest = rest[2:]
    async with place_on(terminal, TOPIC) as place:
        await place.send(*lines)
        visitors = [await place.visitor(name) for name in names]
        whole = oracle(lines, names)
        for visitor in visitors:
            await visitor.reads(whole[visitor.name])


async def test_lost_connection_to_the_terminal_doubles_nothing(terminal: Terminal) -> None:
    lines = random_lines(9, 2000, users=10)
    names = [b"1", b"2", b"3"]
    async with place_on(terminal, TOPIC) as place:
        visitors = [await place.visitor(name) for name in names]
        for batch in shuffled(9, lines, most=100):
            await place.send(*batch)
            for connection in list(terminal.connections):
                if connection.subject == "events":
                    connection._transport.abort()
        # A source doesn't know what got through: it sends everything again.
        await place.send(*lines)
        whole = oracle(lines, names)
        for visitor in visitors:
            await visitor.reads(whole[visitor.name])


async def test_second_dispatcher_of_a_topic_is_refused(terminal: Terminal) -> None:
    async with place_on(terminal, TOPIC) as place:
        with pytest.raises(QueueTaken, match=f"{TOPIC} has an event gateway already.*events@") as refused:
            async with place_on(terminal, TOPIC):
                pass
        assert "stop that one" in refused.value.hint
        one = await place.visitor(b"1")
        await place.send(b"1|B")
        await one.reads([b"1|B"])


async def test_notifications_are_messages_that_anybody_with_a_scope_can_read(terminal: Terminal) -> None:
    async with place_on(terminal, TOPIC) as place:
        one = await place.visitor(b"1")
        await place.send(b"1|B", b"2|P|9|1")
        await one.reads([b"1|B", b"2|P|9|1"])
        async with Reader(
            place.bus.subscribe(f"{TOPIC}.notifications", group="archive", start="earliest")
        ) as reader:
            found = await reader.take(2)
            assert [(m.key, m.payload) for m in found] == [("1", b"1|B"), ("1", b"2|P|9|1")]
        async with Reader(place.bus.subscribe(TOPIC, group="archive")) as reader:
            assert [m.payload for m in await reader.take(2)] == [b"1|B", b"2|P|9|1"]


async def test_events_may_come_from_the_bus_as_well(terminal: Terminal) -> None:
    async with place_on(terminal, TOPIC) as place:
        one = await place.visitor(b"1")
        async with place.bus.publisher(TOPIC) as publisher:
            # A payload of two lines would be two notifications: it takes its turn and is nobody's.
            await publisher.send_many([b"2|B", b"nonsense", b"1|B", b"3|P|9|1\n4|B|forged", b"4|B"])
        await one.reads([b"1|B", b"2|B", b"4|B"])
        assert place.gateway.totals.malformed == 2


@pytest.mark.parametrize("options", [{"on_gap": "refuse"}, {"restart": True}])
async def test_what_topics_can_not_do_is_told(terminal: Terminal, options: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        async with place_on(terminal, TOPIC, **options):
            pass


@pytest.mark.parametrize("name", [b"1", b"hex", b"a.b", b"*", b"x2a", b"client", b"a" * 64, b"~" * 64])
def test_group_of_a_client_tells_the_client(name: bytes) -> None:
    assert client_of(group_of(name)) == name


@pytest.mark.parametrize(
    "group", ["archive", "dispatch", "client", "client.a.b", "client.hex.zz", "clients.1"]
)
def test_groups_of_others_are_nobodys(group: str) -> None:
    assert client_of(group) is None


# -- the status log ------------------------------------------------------------------------------------------


async def test_note_needs_its_scope(terminal: Terminal) -> None:
    async with attach(terminal, subject="other", scopes=["publish:#"]) as bus:
        with pytest.raises(Forbidden):
            await bus.call("status.note", cause="x")
    async with attach(terminal, subject="told", scopes=["publish:$status"]) as bus:
        await bus.call("status.note", cause="trouble", detail="y" * 5000, topic="orders", messages=3)
        with pytest.raises(BadRequest):
            await bus.call("status.note", cause="trouble", messages=-1)
        with pytest.raises(Forbidden):
            await bus.publish("$status", b"forged")
    (event,) = await notes(terminal, "trouble")
    assert (event["who"], event["topic"], event["messages"]) == ("told", "orders", 3)
    assert len(event["detail"]) == 1024


@pytest.mark.parametrize("topic", [None, TOPIC])
async def test_gateway_beside_a_terminal_has_a_credential_of_its_own(topic: str | None) -> None:
    async with run_terminal(MemoryStore()) as terminal:
        plan = EventsPlan(event_port=0, client_port=0, topic=topic)
        async with beside(terminal, plan, dial_to(terminal)) as gateway:
            (connection,) = terminal.connections
            assert connection.subject == "events"
            assert connection.scopes.admin == (topic is not None)
            visitor = await Visitor(gateway, b"1", terminal).come()
            _, writer = await asyncio.open_connection("127.0.0.1", gateway.event_port)
            writer.write(b"2|B\n1|B\n")
            await visitor.reads([b"1|B", b"2|B"])
            writer.close()
            await visitor.go()

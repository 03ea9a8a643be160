"""The promise: what was acked is there, once, whatever happens to the process that acked it."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import landbridge
from landbridge.client.bus import Bus
from landbridge.errors import Disconnected, LeaseLost, TooOld, Unavailable
from landbridge.stores.journal.store import JournalFolder
from tests.ports import free_port
from tests.system.history import Deliveries, History, duplicated, gaps, out_of_order
from tests.waiting import LIMIT, Reader, until

HERE = Path(__file__).parent
SOURCE = Path(landbridge.__path__[0]).parent
KILLS = 20
#: Messages that the producers may be ahead of the slowest consumer.
AHEAD = 1000


async def start(script: str, *arguments: object) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        HERE / script,
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT):
        return (await process.stdout.readline()).decode().strip()


async def end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()


class TerminalProcess:
    """A terminal that is killed and started again, on the same port and the same store: a folder, or the URL
    of one on a server."""

    def __init__(self, store: Path | str) -> None:
        self.store, self.port = store, free_port()
        self.url = f"lb://127.0.0.1:{self.port}"
        self.token = ""
        self.starts = 0
        self._process: asyncio.subprocess.Process | None = None
        self._struck = False

    async def __aenter__(self) -> TerminalProcess:
        await self.start()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.kill()

    async def start(self) -> None:
        self._process = await start("terminal_process.py", self.store, self.port)
        self.token = await line_of(self._process)
        assert self.token, "the terminal didn't start"
        self.starts += 1

    def strike(self) -> None:
        """SIGKILL, this instant; ``kill`` sees to the rest."""
        assert self._process is not None
        self._process.kill()
        self._struck = True

    async def kill(self) -> None:
        if self._process is not None:
            process, self._process = self._process, None
            if not self._struck:  # a second signal might reap it where asyncio doesn't see how it ended
                process.kill()
            self._struck = False
            await process.communicate()
            assert process.returncode == -signal.SIGKILL

    def connect(self, name: str) -> Any:
        return landbridge.connect(self.url, token=self.token, name=name, patience=LIMIT)


# -- the load -----------------------------------------------------------------------------------------


class Load:
    """Producers and consumers, and what they saw."""

    def __init__(self, terminal: TerminalProcess, seed: int) -> None:
        self.terminal = terminal
        self.rng = random.Random(seed)
        self.orders, self.jobs = History(), History()
        #: offset → value, as receipts said.
        self.receipts: dict[int, str] = {}
        self.one, self.lake = Deliveries(), Deliveries()
        self.stopping = asyncio.Event()
        self.moved = self.lost_leases = 0
        #: Jobs of which nobody knows whether they are stored.
        self.unknown = 0
        #: Topics that remove what was settled.
        self.emptied: set[str] = set()
        #: The promise at whose making the terminal is to be killed; "" = none.
        self._strike_at = ""
        self._struck = asyncio.Event()

    async def struck(self, promise: str) -> None:
        """Until the terminal has been killed, at the very moment of the next promise of this kind."""
        self._strike_at = promise
        self._struck.clear()
        async with asyncio.timeout(LIMIT):
            await self._struck.wait()

    def promised(self, promise: str) -> None:
        """Called as soon as an answer is here. If the terminal had answered before it stored, this would be
        the moment to catch it."""
        if promise == self._strike_at:
            self._strike_at = ""
            self.terminal.strike()
            self._struck.set()

    async def pace(self) -> None:
        """A pause between two sends, until those who take one message at a time are not far behind."""
        await asyncio.sleep(self.rng.uniform(0, 0.005))
        while not self.stopping.is_set() and (
            len(self.orders.sent) > len(self.one.values) + AHEAD
            or len(self.jobs.sent) > self.moved + self.unknown + AHEAD
        ):
            await asyncio.sleep(0.005)

    async def pipelined(self, name: str, topic: str, history: History) -> None:
        async with self.terminal.connect(name) as bus:
            out, waiting = bus.publisher(topic), []
            while not self.stopping.is_set():
                try:
                    for _ in range(self.rng.randint(1, 100)):
                        waiting.append(history.new(name))
                        await out.send(waiting[-1])
                    await self.pace()
                    if self.rng.random() < 0.5:
                        await self._flush(out, waiting, history)
                except TooOld:
                    self._away(topic, waiting)
            try:
                await self._flush(out, waiting, history)
            except TooOld:
                self._away(topic, waiting)

    async def _flush(self, out: Any, waiting: list[str], history: History) -> None:
        await out.flush()
        self.promised("flush")
        history.stored(waiting)
        waiting.clear()

    def _away(self, topic: str, waiting: list[str]) -> None:
        """A producer that is away until its queue was emptied is rightly told too_old: nobody promises what
        became of these. A topic that keeps its messages never says that."""
        assert topic in self.emptied, topic
        self.unknown += len(waiting)
        waiting.clear()

    async def by_request(self, name: str) -> None:
        async with self.terminal.connect(name) as bus:
            while not self.stopping.is_set():
                value = self.orders.new(name)
                receipt = await bus.publish("orders", value)
                self.promised("publish")
                assert receipt.offset not in self.receipts
                self.receipts[receipt.offset] = value
                self.orders.stored([value])
                await self.pace()

    async def fleeting(self, name: str) -> None:
        """Comes, sends, and vanishes without a word: most of what it sends is never acked."""
        visit = 0
        while not self.stopping.is_set():
            visit += 1
            bus = await self._connected(f"{name}-{visit}")
            out = bus.publisher("orders")
            values = [self.orders.new(f"{name}-{visit}") for _ in range(self.rng.randint(1, 30))]
            for value in values:
                await out.send(value)
            await asyncio.sleep(self.rng.uniform(0, 0.005))
            if out.stored == len(values):
                self.orders.stored(values)
            vanish(bus)
            await self.pace()

    async def _connected(self, name: str) -> Bus:
        while True:
            try:
                bus: Bus = await self.terminal.connect(name)
                return bus
            except Unavailable:
                await asyncio.sleep(0.01)

    async def one_by_one(self) -> None:
        async with self.terminal.connect("one") as bus:
            async for message in bus.subscribe("orders", group="one", prefetch=50):
                self.one.delivered([message.text()])
                try:
                    await message.ack(wait=True)
                    self.promised("ack")
                    self.one.confirmed([message.text()])
                except LeaseLost:
                    self.lost_leases += 1

    async def by_batches(self) -> None:
        async with self.terminal.connect("lake") as bus:
            async for batch in bus.subscribe("orders", group="lake").batches():
                values = [payload.decode() for payload in batch.payloads]
                self.lake.delivered(values)
                try:
                    await batch.ack(wait=True)
                    self.lake.confirmed(values)
                except LeaseLost:
                    self.lost_leases += 1

    async def mover(self) -> None:
        """Moves jobs from the queue to another topic, each in a transaction."""
        async with self.terminal.connect("mover") as bus:
            async for message in bus.subscribe("jobs", group="movers", prefetch=20):
                try:
                    async with bus.transaction() as t:
                        await t.publish("moved", message.payload)
                        await t.ack(message)
                    self.promised("move")
                    self.moved += 1
                except LeaseLost:
                    self.lost_leases += 1


def vanish(bus: Bus) -> None:
    """As if the program had died: the connection is cut, and nothing is tried again."""
    link = bus.wire
    bus._fail(Disconnected("vanished"))
    if link is not None and link._transport is not None:
        link._transport.abort()


async def lag_of(bus: Bus, topic: str, group: str) -> int:
    return int((await bus.call("group.show", topic=topic, name=group))["lag"])


async def read_all(bus: Bus, topic: str) -> list[tuple[int, str]]:
    """The log itself, by a group that nobody used before."""
    last = (await bus.call("topic.show", name=topic))["end"] - 1
    found: list[tuple[int, str]] = []
    async with Reader(bus.subscribe(topic, group="check", start="earliest"), batches=True) as reader:
        while not found or found[-1][0] < last:
            batch = await reader.next()
            found += zip(batch.offsets, (payload.decode() for payload in batch.payloads), strict=True)
            await batch.ack()
    return found


async def until_caught_up(bus: Bus, topic: str, group: str) -> None:
    """As long as it makes progress it may take its time."""
    lag, before, since = await lag_of(bus, topic, group), -1, 0.0
    time = asyncio.get_running_loop().time
    while lag:
        if lag != before:
            before, since = lag, time()
        assert time() < since + LIMIT, await bus.call("group.show", topic=topic, name=group)
        await asyncio.sleep(0.01)
        lag = await lag_of(bus, topic, group)


def new_seed() -> int:
    seed = int(os.environ.get("LANDBRIDGE_SEED") or random.randrange(1 << 32))
    print(f"LANDBRIDGE_SEED={seed}")
    return seed


async def kill_under_load(
    store: Path | str, kills: int, again: Callable[[int], Awaitable[None]] | None = None
) -> None:
    """Kill a terminal that is at work and start it again, so many times, and check what is left. ``again`` is
    called between, with the number of the kill."""
    async with TerminalProcess(store) as terminal:
        load = Load(terminal, new_seed())
        async with terminal.connect("setup") as bus:
            # Where outages are long, the queue keeps what was settled: the fate of too few would be known.
            keeping = {} if again is None else {"retention": {"settled": False}}
            load.emptied = set() if keeping else {"jobs"}
            await bus.call("topic.create", name="jobs", kind="queue", **keeping)
            await bus.call("group.create", topic="orders", name="one")
            await bus.call("group.create", topic="orders", name="lake")
            await bus.call("group.create", topic="jobs", name="movers")
        producers = [
            asyncio.ensure_future(producing)
            for producing in (
                load.pipelined("pipe-a", "orders", load.orders),
                load.pipelined("pipe-b", "orders", load.orders),
                load.by_request("request-a"),
                load.by_request("request-b"),
                load.fleeting("fleeting"),
                load.pipelined("boss", "jobs", load.jobs),
            )
        ]
        consumers = [
            asyncio.ensure_future(consuming)
            for consuming in (load.one_by_one(), load.by_batches(), load.mover())
        ]
        everybody = [*producers, *consumers]
        for kill in range(kills):
            acked = len(load.orders.acked)
            # Not before everything runs again, and then at a moment that nobody knows.
            async with asyncio.timeout(LIMIT):
                while len(load.orders.acked) <= acked:
                    assert not any(task.done() for task in everybody), [t for t in everybody if t.done()]
                    await asyncio.sleep(0.005)
            moment = load.rng.choice(("any", "publish", "flush", "ack", "move"))
            if moment == "any":
                await asyncio.sleep(load.rng.expovariate(1 / 0.1))
            else:
                await load.struck(moment)
            await terminal.kill()
            if again is not None:
                await again(kill)
            await terminal.start()
        load.stopping.set()
        await asyncio.gather(*producers)
        async with terminal.connect("check") as bus:
            for topic, group in (("orders", "one"), ("orders", "lake"), ("jobs", "movers")):
                await until_caught_up(bus, topic, group)
            for consumer in consumers:
                assert not consumer.done()
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            orders = await read_all(bus, "orders")
            moved = await read_all(bus, "moved")
        assert terminal.starts == kills + 1
    check(load, orders, moved, least=50 * kills)


async def test_twenty_kills_under_load_lose_and_double_nothing(tmp_path: Path, crashes: list[Any]) -> None:
    await kill_under_load(tmp_path / "bus", KILLS)
    store = JournalFolder(tmp_path / "bus")
    store.open()
    assert store.check() == []
    store.close()


def check(load: Load, orders: list[tuple[int, str]], moved: list[tuple[int, str]], least: int) -> None:
    history = load.orders
    found = [value for _, value in orders]
    repeated = [len(group.values) - len(found) for group in (load.one, load.lake)]
    print(
        f"sent {len(history.sent)}, acked {len(history.acked)}, found {len(found)}, "
        f"recovered {len(history.recovered(found))}, moved {len(moved)}, leases lost {load.lost_leases}, "
        f"delivered again {repeated}"
    )
    assert history.lost(found) == []
    assert duplicated(found) == []
    assert history.unexpected(found) == []
    assert out_of_order(found) == []
    assert gaps(offset for offset, _ in orders) == []
    by_offset = dict(orders)
    assert {offset: by_offset[offset] for offset in load.receipts} == load.receipts
    for group in (load.one, load.lake):
        assert set(group.values) == set(found), "every group sees all, and nothing else"
        assert group.wrong == []
    jobs = [value for _, value in moved]
    assert load.jobs.lost(jobs) == []
    assert duplicated(jobs) == []
    assert load.jobs.unexpected(jobs) == []
    assert out_of_order(jobs) == []
    # The run was one: it had something to lose.
    assert len(history.acked) > least
    assert len(jobs) > least // 5


# -- stopped, not killed ------------------------------------------------------------------------------


async def say(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    await process.stdin.drain()


async def test_a_consumer_that_stood_still_past_its_lease_is_fenced(
    tmp_path: Path, crashes: list[Any]
) -> None:
    """SIGSTOP a consumer until somebody else has its message: when it goes on, its ack is refused."""
    async with TerminalProcess(tmp_path / "bus") as terminal, terminal.connect("test") as bus:
        await bus.call("group.create", topic="orders", name="g", ack_within=0.5, max_attempts=1000)
        await bus.publish("orders", "the message")
        first = await start("consumer_process.py", terminal.url, terminal.token, "orders", "g")
        try:
            assert await line_of(first) == "got the message 1"
            first.send_signal(signal.SIGSTOP)
            async with Reader(bus.subscribe("orders", group="g", prefetch=1)) as second:
                is_acked = False
                while not is_acked:  # on a busy machine its own lease may end, too
                    message = await second.next()
                    assert message.text() == "the message"
                    assert message.attempt >= 2
                    try:
                        await message.ack(wait=True)
                        is_acked = True
                    except LeaseLost:
                        pass
            first.send_signal(signal.SIGCONT)
            await say(first)
            assert await line_of(first) == "lease_lost"
            # It was settled once, by the second; nothing is left, and the first goes on with what comes.
            assert await lag_of(bus, "orders", "g") == 0
            await bus.publish("orders", "the next")
            got = await line_of(first)
            while got.startswith("got the message"):  # handed to it again before the second one was there
                await say(first)
                assert await line_of(first) == "lease_lost"
                got = await line_of(first)
            assert got.startswith("got the next")
        finally:
            await end(first)


async def test_the_consumer_of_a_queue_that_stood_still_is_fenced(tmp_path: Path, crashes: list[Any]) -> None:
    """Nobody may take its place while it is connected; its late ack is refused, and the job comes again."""
    async with TerminalProcess(tmp_path / "bus") as terminal, terminal.connect("test") as bus:
        await bus.call("topic.create", name="jobs", kind="queue")
        await bus.call("group.create", topic="jobs", name="workers", ack_within=0.5, max_attempts=1000)
        await bus.publish("jobs", "the job")
        worker = await start("consumer_process.py", terminal.url, terminal.token, "jobs", "workers")
        try:
            assert await line_of(worker) == "got the job 1"
            worker.send_signal(signal.SIGSTOP)

            async def given_back() -> bool:
                return bool((await bus.call("group.show", topic="jobs", name="workers"))["retrying"])

            await until(given_back)
            worker.send_signal(signal.SIGCONT)
            await say(worker)
            assert await line_of(worker) == "lease_lost"
            # What it was sent meanwhile may have ended too; in the end it acks one that is its own.
            answer = ""
            while answer != "acked":
                assert (await line_of(worker)).startswith("got the job")
                await say(worker)
                answer = await line_of(worker)
            assert await lag_of(bus, "jobs", "workers") == 0
        finally:
            await end(worker)


async def test_a_worker_killed_in_the_middle_of_its_job(tmp_path: Path, crashes: list[Any]) -> None:
    async with TerminalProcess(tmp_path / "bus") as terminal, terminal.connect("test") as bus:
        await bus.call("topic.create", name="jobs", kind="queue")
        await bus.publish("jobs", "the job")
        for attempt in (1, 2, 3):
            worker = await start("consumer_process.py", terminal.url, terminal.token, "jobs", "workers")
            try:
                assert await line_of(worker) == f"got the job {attempt}"
            finally:
                await end(worker)

            async def noticed() -> bool:
                return not (await bus.call("group.show", topic="jobs", name="workers"))["consumers"]

            await until(noticed)
        async with Reader(bus.subscribe("jobs", group="workers")) as reader:
            message = await reader.next()
            assert message.attempt == 4
            await message.ack()

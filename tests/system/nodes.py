"""Nodes of one terminal as processes of their own, as ``landbridge up --node`` starts them, and what may
happen to them."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import landbridge
from tests.ports import free_port
from tests.proxy import Proxy
from tests.system.test_promise import (
    AHEAD,
    SOURCE,
    Load,
    check,
    read_all,
    until_caught_up,
)
from tests.waiting import LIMIT, until

#: Seconds of a node's lease in these tests.
LIFE = 2.0
#: Of the fault ``late``: topics enough to be in every unit, tries, and seconds to hear of a refusal.
LATE_TOPICS, LATE_TRIES, LATE_SEEN_WITHIN = 24, 5, 20.0


class NodeProcess:
    """A node that is killed, frozen, drained and started again, on the same port and the same store. Other
    nodes, and clients that learn of it, reach it over a way that can be cut. ``servers``: ports of the
    store's servers that it reaches over such ways, too."""

    def __init__(
        self,
        name: str,
        store: str,
        folder: Path,
        *options: str,
        http: bool = False,
        servers: Sequence[int] = (),
    ) -> None:
        self.name, self.store, self.folder = name, store, folder
        self.port = free_port()
        self.store_ways = [Proxy(server) for server in servers]
        self.options = options
        self.http_port = free_port() if http else 0
        self.way = Proxy(self.port)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"lb://127.0.0.1:{self.port}"

    async def open_ways(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.way)
        names: dict[bytes, bytes] = {}
        for way in self.store_ways:
            await stack.enter_async_context(way)
            self.store = self.store.replace(f"127.0.0.1:{way.target}", f"127.0.0.1:{way.port}")
            # Servers of a cluster tell where the others are: for this node, where its ways to them are.
            names[b":%d@" % way.target] = b":%d@" % way.port
        for way in self.store_ways:
            way.renamed = names

    async def start(self) -> None:
        """Until it serves."""
        log = (self.folder / f"{self.name}.log").open("ab")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "landbridge", "up", "--json",
            "--data", self.folder / self.name, "--store", self.store,
            "--node", self.name, "--node-life", str(LIFE), "--port", str(self.port),
            "--http-port", str(self.http_port), "--address", f"lb://127.0.0.1:{self.way.port}",
            "--secret-file", self.folder / "bus.key", *self.options,
            stdout=asyncio.subprocess.PIPE, stderr=log,
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "LANDBRIDGE_HOME": str(self.folder / "home"),
            },
        )  # fmt: skip
        log.close()
        assert self._process.stdout is not None
        async with asyncio.timeout(LIMIT):
            line = await self._process.stdout.readline()
        assert line, self.log()
        assert json.loads(line)["node"] == self.name

    def log(self) -> str:
        return (self.folder / f"{self.name}.log").read_text()

    def refused(self) -> int:
        """How many of its commits have come too late, as its log says."""
        return self.log().count('"a late commit was refused"')

    def sends(self, payload: bytes) -> bool:
        """Is a commit with it held up on the way to the server?"""
        return any(payload in data for way in self.store_ways for data in way.held)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """In good order."""
        await self._end(signal.SIGTERM)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):  # it has ended by itself
                process.send_signal(number)
            async with asyncio.timeout(LIMIT):
                await process.communicate()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class Fleet:
    """The nodes of one terminal."""

    def __init__(
        self,
        store: str,
        folder: Path,
        count: int,
        *options: str,
        http: bool = False,
        servers: Sequence[int] = (),
    ) -> None:
        self.folder = folder
        self.nodes = [
            NodeProcess(f"n{number}", store, folder, *options, http=http, servers=servers)
            for number in range(count)
        ]
        #: Messages of the fault ``late``, by topic.
        self.late: Counter[str] = Counter()

    @property
    def token(self) -> str:
        found = json.loads((self.folder / "home" / "contexts" / "local.json").read_text())
        return str(found["token"])

    def connect(self, name: str, at: NodeProcess | None = None) -> Any:
        urls = ",".join(node.url for node in ([at] if at is not None else self.nodes))
        return landbridge.connect(urls, token=self.token, name=name, patience=LIMIT)

    async def publish_late(self, bus: Any, payload: bytes) -> None:
        """To every unit."""
        topics = [f"late.{number}" for number in range(LATE_TOPICS)]
        await asyncio.gather(*(bus.publish(topic, payload) for topic in topics))
        self.late.update(topics)

    async def settled(self) -> None:
        """Until every unit is at a node."""
        async with self.connect("settled") as bus:

            async def is_whole() -> bool:
                found = await bus.nodes.list()
                return found.units > 0 and found.free == 0

            await until(is_whole)


@asynccontextmanager
async def fleet_of(
    store: str,
    folder: Path,
    count: int = 3,
    *options: str,
    http: bool = False,
    servers: Sequence[int] = (),
) -> AsyncIterator[Fleet]:
    fleet = Fleet(store, folder, count, *options, http=http, servers=servers)
    async with AsyncExitStack() as ways:
        try:
            for node in fleet.nodes:
                await node.open_ways(ways)
                await node.start()
            await fleet.settled()
            yield fleet
        finally:
            for node in fleet.nodes:
                await node.kill()


# -- what may happen ----------------------------------------------------------------------------------


async def killed(fleet: Fleet, rng: random.Random) -> None:
    node = rng.choice(fleet.nodes)
    await node.kill()
    await asyncio.sleep(rng.uniform(0, 2 * LIFE))
    await node.start()


async def paused(fleet: Fleet, rng: random.Random) -> None:
    """Past its lease, so that others take its units. What it wants to write afterwards is refused."""
    node = rng.choice(fleet.nodes)
    node.freeze()
    await asyncio.sleep(LIFE + rng.uniform(0.5, 2.0))
    node.thaw()


async def drained(fleet: Fleet, rng: random.Random) -> None:
    node = rng.choice(fleet.nodes)
    async with fleet.connect("drain") as bus:
        await bus.nodes.drain(node.name)

        async def is_empty() -> bool:
            return not (await bus.nodes.show(node.name)).units

        await until(is_empty)
        await bus.nodes.resume(node.name)


async def restarted(fleet: Fleet, rng: random.Random) -> None:
    """All of them, one after the other, in good order."""
    for node in fleet.nodes:
        await node.stop()
        await node.start()


async def parted(fleet: Fleet, rng: random.Random) -> None:
    """Nothing passes between one node and the others; the server can be reached by all."""
    node = rng.choice(fleet.nodes)
    node.way.is_silent = True
    await asyncio.sleep(rng.uniform(0.5, 2 * LIFE))
    node.way.is_silent = False


async def late(fleet: Fleet, rng: random.Random) -> None:
    """A node is stopped while a commit of it is on its way to the server. When the commit arrives, others
    have the node's units: it is refused, the node goes on, and what was to be stored is stored once."""
    async with fleet.connect("late") as bus:
        for _ in range(LATE_TRIES):
            node = rng.choice(fleet.nodes)
            refused = node.refused()
            if not await _hold_up(fleet, bus, node):
                continue  # it had no unit at the moment
            with suppress(TimeoutError):
                async with asyncio.timeout(LATE_SEEN_WITHIN):
                    while node.refused() == refused:
                        await asyncio.sleep(0.01)
            if node.refused() > refused:
                return
    raise AssertionError(f"no late commit was refused in {LATE_TRIES} tries")


async def _hold_up(fleet: Fleet, bus: Any, node: NodeProcess) -> bool:
    """Stop a node with a commit on its way, until others have stored what was in it. False: it has sent
    none."""
    await fleet.publish_late(bus, b"before")  # no topic has to be made
    mark = uuid.uuid4().hex.encode()
    for way in node.store_ways:
        way.is_silent = True
    publishing = asyncio.ensure_future(fleet.publish_late(bus, mark))
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(LIFE):
                while not node.sends(mark):
                    await asyncio.sleep(0.001)
        is_sent = node.sends(mark)
        if is_sent:
            node.freeze()
            async with asyncio.timeout(LIMIT):
                await asyncio.shield(publishing)
    finally:
        for way in node.store_ways:
            way.is_silent = False
        node.thaw()
    async with asyncio.timeout(LIMIT):
        await publishing
    return is_sent


async def check_late(fleet: Fleet, bus: Any) -> None:
    """What was published by ``late`` is there once."""
    for topic, count in fleet.late.items():
        assert (await bus.call("topic.show", name=topic))["end"] == count


Fault = Callable[[Fleet, random.Random], Awaitable[None]]
FAULTS: list[Fault] = [killed, paused, late, drained, restarted, parted]


class FleetLoad(Load):
    """Paced by what is stored: what a producer has sent that vanished in an outage never comes to anybody."""

    async def pace(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, 0.005))
        while not self.stopping.is_set() and (
            len(self.orders.acked) > len(self.one.values) + AHEAD or len(self.jobs.acked) > self.moved + AHEAD
        ):
            await asyncio.sleep(0.005)


async def told(fleet: Fleet, load: Load) -> str:
    """What can be said where nothing goes on."""
    said = [f"acked {len(load.orders.acked)} of {len(load.orders.sent)}, moved {load.moved}"]
    async with asyncio.timeout(10), fleet.connect("told") as bus:
        said += [str(row) for row in (await bus.call("node.list"))["nodes"]]
        for group in (await bus.call("group.list"))["groups"]:
            if not group["topic"].startswith("$"):
                said.append(str(group))
    said += [f"{node.name}: {node.log()[-1500:]}" for node in fleet.nodes]
    return "\n".join(said)


async def suffer(fleet: Fleet, faults: list[Fault], seed: int) -> None:
    """Let these things happen to a terminal at work, one after the other, and check what is left."""
    load = FleetLoad(fleet, seed)  # type: ignore[arg-type]
    async with fleet.connect("setup") as bus:
        await bus.call("topic.create", name="jobs", kind="queue", retention={"settled": False})
        await bus.call("group.create", topic="orders", name="one")
        await bus.call("group.create", topic="orders", name="lake")
        await bus.call("group.create", topic="jobs", name="movers")
    producers = [
        asyncio.ensure_future(producing)
        for producing in (
            load.pipelined("pipe-a", "orders", load.orders),
            load.pipelined("pipe-b", "orders", load.orders),
            load.by_request("request-a"),
            load.fleeting("fleeting"),
            load.pipelined("boss", "jobs", load.jobs),
        )
    ]
    consumers = [
        asyncio.ensure_future(consuming) for consuming in (load.one_by_one(), load.by_batches(), load.mover())
    ]
    everybody = [*producers, *consumers]
    try:
        for fault in faults:
            acked, moved = len(load.orders.acked), load.moved
            try:
                async with asyncio.timeout(LIMIT):
                    while len(load.orders.acked) <= acked + 20 or load.moved <= moved:
                        assert not any(task.done() for task in everybody), [t for t in everybody if t.done()]
                        await asyncio.sleep(0.005)
            except TimeoutError:
                raise AssertionError(await told(fleet, load)) from None
            print(f"{fault.__name__}: {len(load.orders.acked)} acked, {load.moved} moved", flush=True)
            await fault(fleet, load.rng)
        load.stopping.set()
        async with asyncio.timeout(2 * LIMIT):
            await asyncio.gather(*producers)
        async with fleet.connect("check") as bus:
            for topic, group in (("orders", "one"), ("orders", "lake"), ("jobs", "movers")):
                await until_caught_up(bus, topic, group)
            assert not any(consumer.done() for consumer in consumers)
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
            await check_late(fleet, bus)
            orders = await read_all(bus, "orders")
            moved_there = await read_all(bus, "moved")
    finally:
        for task in everybody:
            task.cancel()
        await asyncio.gather(*everybody, return_exceptions=True)
    check(load, orders, moved_there, least=20 * len(faults))

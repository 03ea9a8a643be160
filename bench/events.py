"""Ordered event dispatch: CPU seconds and memory of the event gateway, beside bare programs that do no more.

Gateway, source and clients are three processes. The last event is a broadcast: who has read it has it all.
"""

from __future__ import annotations

import asyncio
import random
import selectors
import socket
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import structlog
import uvloop

from bench.roles import SPAWN
from bench.scenarios import Row
from landbridge.gateways.event_topics import event_gateway
from landbridge.gateways.events import EventGateway, EventOptions
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import attach, run_terminal

USERS = 1000
KINDS = {"F": 30, "U": 10, "P": 30, "S": 20, "B": 10}
#: Who follows whom has to be remembered; without that, nothing may grow.
NO_FOLLOWS = {"P": 60, "S": 30, "B": 10}
#: Nobody is to be dropped for being slow while three processes share two cores.
OPTIONS = EventOptions(queue=1 << 30, queues=1 << 30)


def lines_of(count: int, kinds: dict[str, int]) -> bytes:
    """Shuffled in batches of 1 to 10,000."""
    dice = random.Random(1)
    chosen = dice.choices(list(kinds), list(kinds.values()), k=count - 1)
    lines = []
    for number, kind in enumerate(chosen, 1):
        one, other = dice.randint(1, USERS), dice.randint(1, USERS)
        lines.append(
            {"B": f"{number}|B", "S": f"{number}|S|{one}"}.get(kind, f"{number}|{kind}|{one}|{other}")
        )
    lines.append(f"{count}|B")
    mixed: list[str] = []
    while len(mixed) < count:
        batch = lines[len(mixed) : len(mixed) + dice.randint(1, 10_000)]
        dice.shuffle(batch)
        mixed += batch
    return ("\n".join(mixed) + "\n").encode()


# -- the programs ------------------------------------------------------------------------------------------


async def ours() -> tuple[int, int]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    gateway = await EventGateway(options=OPTIONS).__aenter__()
    await gateway.listen("127.0.0.1", 0, 0)
    return gateway.event_port, gateway.client_port


class Bare:
    """What anybody would write: a dict of what waits, a dict of writers, sets of followers."""

    def __init__(self) -> None:
        self.next = 1
        self.held: dict[int, bytes] = {}
        self.writers: dict[bytes, Any] = {}
        self.followers: defaultdict[bytes, set[bytes]] = defaultdict(set)

    def receive(self, line: bytes) -> None:
        self.held[int(line.split(b"|", 1)[0])] = line
        while self.next in self.held:
            self.handle(self.held.pop(self.next))
            self.next += 1

    def handle(self, line: bytes) -> None:
        fields = line.rstrip(b"\n").split(b"|")
        kind = fields[1]
        if kind == b"B":
            for name in self.writers:
                self.send(name, line)
        elif kind == b"P":
            self.send(fields[3], line)
        elif kind == b"S":
            for name in self.followers[fields[2]]:
                self.send(name, line)
        elif kind == b"F":
            if fields[2] not in self.followers[fields[3]]:
                self.followers[fields[3]].add(fields[2])
                self.send(fields[3], line)
        elif kind == b"U":
            self.followers[fields[3]].discard(fields[2])

    def send(self, name: bytes, line: bytes) -> None:
        if name in self.writers:
            self.writers[name].write(line)

    # With streams, as the documentation of asyncio teaches it.

    async def source(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.receive(line)
        writer.close()

    async def client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers[(await reader.readline()).strip()] = writer


class Frugal(Bare):
    """The same by someone who counts system calls: protocols, and one write per client for all that one read
    brought."""

    def __init__(self) -> None:
        super().__init__()
        self.boxes: dict[bytes, list[bytes]] = {}

    def send(self, name: bytes, line: bytes) -> None:
        if name in self.boxes:
            self.boxes[name].append(line)

    def flush(self) -> None:
        for name, box in self.boxes.items():
            if box:
                self.writers[name].write(b"".join(box))
                box.clear()


class FrugalSource(asyncio.Protocol):
    def __init__(self, frugal: Frugal) -> None:
        self.frugal, self.rest = frugal, b""

    def data_received(self, data: bytes) -> None:
        lines = (self.rest + data).splitlines(keepends=True)
        self.rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
        for line in lines:
            self.frugal.receive(line)
        self.frugal.flush()


class FrugalClient(asyncio.Protocol):
    def __init__(self, frugal: Frugal) -> None:
        self.frugal = frugal

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.frugal.writers[data.strip()] = self.transport
        self.frugal.boxes[data.strip()] = []


async def bare() -> tuple[int, int]:
    program = Bare()
    servers = [await asyncio.start_server(each, "127.0.0.1", 0) for each in (program.source, program.client)]
    keep.extend(servers)
    return _ports(servers)


async def frugal() -> tuple[int, int]:
    program = Frugal()
    loop = asyncio.get_running_loop()
    kinds: tuple[Any, Any] = (FrugalSource, FrugalClient)
    servers = [await loop.create_server(lambda k=k: k(program), "127.0.0.1", 0) for k in kinds]  # type: ignore[misc]
    keep.extend(servers)
    return _ports(servers)


#: Servers that must not be collected.
keep: list[Any] = []


def _ports(servers: list[Any]) -> tuple[int, int]:
    first, second = (int(server.sockets[0].getsockname()[1]) for server in servers)
    return first, second


def _serve(start: Callable[[], Any], out: Connection) -> None:
    async def main() -> None:
        out.send(await start())
        await asyncio.Event().wait()

    uvloop.run(main())


async def through_topics(folder: str) -> tuple[int, int]:
    """Gateway and terminal in one process, as ``landbridge up --events`` with a topic."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))
    running = run_terminal(JournalStore(Path(folder) / "bus"))
    bus = await attach(await running.__aenter__()).__aenter__()
    gateway = await event_gateway(bus, "events", OPTIONS).__aenter__()
    await gateway.listen("127.0.0.1", 0, 0)
    keep.extend((running, bus, gateway))
    return gateway.event_port, gateway.client_port


# -- source and clients ------------------------------------------------------------------------------------


def _source(port: int, data: bytes, gate: Any) -> None:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        gate.wait()
        connection.sendall(data)
        gate.wait()


def _clients(port: int, count: int, last: bytes, gate: Any, out: Connection) -> None:
    """Connect, read until each has the last line, tell how many bytes it were in all and when."""
    ready = selectors.DefaultSelector()
    sockets = []
    for name in range(1, count + 1):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(b"%d\n" % name)
        connection.setblocking(False)
        ready.register(connection, selectors.EVENT_READ)
        sockets.append(connection)
    time.sleep(0.5)  # they have no way to tell that they are known
    gate.wait()
    begin = time.monotonic()
    total, left = 0, count
    tails: dict[Any, bytes] = {}
    while left:
        for key, _ in ready.select():
            data = key.fileobj.recv(1 << 18)  # type: ignore[union-attr]
            total += len(data)
            tail = tails[key.fileobj] = (tails.get(key.fileobj, b"") + data[-len(last) :])[-len(last) :]
            if tail == last:
                left -= 1
                ready.unregister(key.fileobj)
    out.send((total, time.monotonic() - begin))
    gate.wait()


def run(start: Callable[[], Any], data: bytes, count: int, clients: int) -> dict[str, float]:
    """One program, one source, so many clients."""
    here, there = SPAWN.Pipe()
    server = SPAWN.Process(target=_serve, args=(start, there), daemon=True)
    server.start()
    event_port, client_port = here.recv()
    process = psutil.Process(server.pid)
    gate = SPAWN.Barrier(3)
    results, told = SPAWN.Pipe()
    last = b"\n%d|B\n" % count
    others = [
        SPAWN.Process(target=_source, args=(event_port, data, gate), daemon=True),
        SPAWN.Process(target=_clients, args=(client_port, clients, last, gate, told), daemon=True),
    ]
    for other in others:
        other.start()
    gate.wait()
    before, empty = sum(process.cpu_times()[:2]), process.memory_info().rss
    most = empty
    while not results.poll(0.1):
        most = max(most, process.memory_info().rss)
        if not all(other.is_alive() for other in others):
            raise RuntimeError("source or clients died")
    total, seconds = results.recv()
    cpu, after = sum(process.cpu_times()[:2]) - before, process.memory_info().rss
    gate.wait()
    for other in [*others, server]:
        other.kill()
        other.join()
    return {"cpu": cpu, "seconds": seconds, "bytes": total, "empty": empty, "most": most, "after": after}


def events(scale: float, times: int) -> list[Row]:
    count = int(1_000_000 * scale)
    data = lines_of(count, KINDS)
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "frugal": [], "bare": []}
    programs = {"ours": ours, "frugal": frugal, "bare": bare}
    for _ in range(times):  # interleaved, so that a noisy moment hits all
        for name, start in programs.items():
            runs[name].append(run(start, data, count, 100))
    if len({found["bytes"] for each in runs.values() for found in each}) != 1:
        raise RuntimeError("the programs don't agree on what the clients get")

    def median(name: str, what: str) -> float:
        return statistics.median(found[what] for found in runs[name])

    short = run(ours, lines_of(count // 10, NO_FOLLOWS), count // 10, 100)
    long = run(ours, lines_of(count, NO_FOLLOWS), count, 100)
    wide = run(ours, lines_of(count // 50, {"B": 1}), count // 50, 1000)
    stored = count // 20
    with TemporaryDirectory() as folder:
        topics = run(partial(through_topics, folder), lines_of(stored, KINDS), stored, 100)
    m = f"{count:,} events, 100 clients"
    return [
        Row(f"gateway CPU, {m}", median("ours", "cpu"), "s", None, "less"),
        Row(f"bare asyncio streams CPU, {m}", median("bare", "cpu"), "s", None, "less", bare=True),
        Row(f"bare asyncio protocols CPU, {m}", median("frugal", "cpu"), "s", None, "less", bare=True),
        Row(
            "gateway CPU, share of bare streams",
            median("ours", "cpu") / median("bare", "cpu"),
            "×",
            1.0,
            "less",
        ),
        Row(
            "gateway CPU, share of bare protocols",
            median("ours", "cpu") / median("frugal", "cpu"),
            "×",
            1.0,
            "less",
        ),
        Row(f"events dispatched, {m}", count / median("ours", "seconds"), "msg/s"),
        Row(f"gateway RSS, {m}, most", median("ours", "most") / 2**20, "MiB", None, "less"),
        Row(f"bare streams RSS, {m}, most", median("bare", "most") / 2**20, "MiB", None, "less", bare=True),
        Row(
            f"gateway RSS, nobody follows: after {count:,} events, share of after {count // 10:,}",
            long["after"] / short["after"],
            "×",
            1.1,
            "less",
        ),
        Row(f"gateway CPU, {count // 50:,} broadcasts to 1,000 clients", wide["cpu"], "s", None, "less"),
        Row(
            "broadcasts to 1,000 clients",
            count // 50 * 1000 / wide["seconds"],
            "deliveries/s",
        ),
        Row(f"through topics, {stored:,} events, 100 clients", stored / topics["seconds"], "msg/s", 10_000.0),
        Row(
            f"through topics, gateway and terminal CPU, {stored:,} events, 100 clients",
            topics["cpu"],
            "s",
            None,
            "less",
        ),
    ]

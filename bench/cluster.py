"""A terminal with several nodes on a server, beside the embedded store in the same run: throughput over eight
topics, the CPU of the nodes, and how long nobody answers when a node or a server is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop

import landbridge
from bench.roles import Crew, RunningTerminal, _drain, payload, ready, scratch, terminal
from bench.scenarios import Row, run
from tests.ports import free_port
from tests.servers import Postgres, Valkey, server_folder
from tests.stores.test_replicas import Cluster, online

TOPICS = [f"orders.{number}" for number in range(8)]
#: Bytes of a message, and messages of a batch.
SIZE, PER_BATCH = 100, 500
#: Seconds without a sign of life after which a node counts as gone: the default.
LIFE = 3.0
#: Seconds that something is published after a loss, and between two messages of a topic.
WATCHED, EVERY = 12.0, 0.02


class RunningNodes(RunningTerminal):
    """The nodes of one terminal."""

    def __init__(self, url: str, token: str, processes: list[subprocess.Popen[bytes]]) -> None:
        super().__init__(url, token, 0.0, processes[0].pid)
        self.processes = processes
        self._watched = [psutil.Process(process.pid) for process in processes]

    def cpu(self) -> float:
        return sum(float(sum(process.cpu_times()[:2])) for process in self._watched)


@contextmanager
def nodes_on(store: str, count: int) -> Iterator[RunningNodes]:
    """So many nodes on a store, of which each has its share of the units."""
    with scratch() as folder:
        started: list[subprocess.Popen[bytes]] = []
        urls = []
        try:
            for number in range(count):
                port = free_port()
                urls.append(f"lb://127.0.0.1:{port}")
                started.append(_start(folder, store, f"n{number}", port))
            context = json.loads((folder / "home" / "contexts" / "local.json").read_text())
            running = RunningNodes(",".join(urls), context["token"], started)
            run(running, lambda bus: _until_spread(bus, count))
            yield running
        finally:
            for process in started:
                process.kill()
                process.wait()


def _start(folder: Path, store: str, name: str, port: int) -> subprocess.Popen[bytes]:
    log = (folder / f"{name}.log").open("wb")
    process = subprocess.Popen(
        [
            sys.executable, "-m", "landbridge", "up", "--json", "--store", store, "--node", name,
            "--data", str(folder / name), "--port", str(port), "--http-port", "0", "--log-level", "error",
        ],
        env={**os.environ, "LANDBRIDGE_HOME": str(folder / "home")},
        stdout=subprocess.PIPE,
        stderr=log,
    )  # fmt: skip
    log.close()
    assert process.stdout is not None
    if not process.stdout.readline():
        raise RuntimeError((folder / f"{name}.log").read_text()[-2000:])
    return process


async def _until_spread(bus: landbridge.Bus, count: int) -> None:
    while True:
        found = await bus.nodes.list()
        shares = [len(node.units) for node in found.nodes]
        if len(shares) == count and not found.free and max(shares) - min(shares) <= 1:
            await bus.call("status.levels", default="batches")
            return
        await asyncio.sleep(0.05)


# -- throughput ---------------------------------------------------------------------------------------


async def publish_topics(
    bus: landbridge.Bus, gate: Any, topics: list[str], count: int
) -> tuple[float, float]:
    """So many messages to each of the topics, by batches."""
    rows = [payload(SIZE)] * PER_BATCH

    async def one(topic: str) -> None:
        async with bus.publisher(topic) as out:
            left = count
            while left > 0:
                left -= await out.send_many(rows[: min(left, PER_BATCH)])

    await ready(gate)
    begin = time.monotonic()
    await asyncio.gather(*(one(topic) for topic in topics))
    return begin, time.monotonic()


async def consume_topics(
    bus: landbridge.Bus, gate: Any, topics: list[str], count: int
) -> tuple[float, float]:
    """The same from a group of each of the topics."""
    opened = [await bus.subscribe(topic, group="group", prefetch=32_000).open() for topic in topics]
    await ready(gate)
    spans = await asyncio.gather(*(_drain(subscription, count) for subscription in opened))
    return min(begin for begin, _ in spans), max(end for _, end in spans)


def through(running: RunningTerminal, count: int) -> tuple[float, float]:
    """(Messages a second, CPU of the terminal for a message in microseconds), published and consumed at
    once."""

    async def make(bus: landbridge.Bus) -> None:
        for topic in TOPICS:
            await bus.call("group.create", topic=topic, name="group")

    run(running, make)
    before = running.cpu()
    crew = Crew(running, 2)
    crew.add(consume_topics, TOPICS, count)
    crew.add(publish_topics, TOPICS, count)
    (_, consumed), (begin, _) = crew.results()
    messages = count * len(TOPICS)
    return messages / (consumed - begin), (running.cpu() - before) / messages * 1e6


# -- without service ----------------------------------------------------------------------------------


def longest_silence(running: RunningTerminal, lose: Callable[[], None]) -> float:
    """The longest time that a topic took no message, while something is lost."""

    async def publishing(bus: landbridge.Bus, topic: str, end: float) -> float:
        longest, last = 0.0, time.monotonic()
        while time.monotonic() < end:
            await bus.publish(topic, b"x")
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            await asyncio.sleep(EVERY)
        return longest - EVERY

    async def main() -> float:
        async with landbridge.connect(running.url, token=running.token, patience=60.0) as bus:
            for topic in TOPICS:
                await bus.publish(topic, b"x")
            end = time.monotonic() + WATCHED
            tasks = [asyncio.ensure_future(publishing(bus, topic, end)) for topic in TOPICS]
            await asyncio.sleep(0.5)
            await asyncio.to_thread(lose)
            return max(await asyncio.gather(*tasks))

    return float(uvloop.run(main()))


def without_node(store: str) -> float:
    with nodes_on(store, 3) as running:
        victim = running.processes[1]
        return longest_silence(running, lambda: victim.send_signal(signal.SIGKILL))


def without_primary() -> float:
    """Of a cluster of three primaries with a replica each; its own timeout is 1.5 s."""
    with server_folder() as folder:
        cluster = Cluster(folder)
        try:
            cluster.start()
            with nodes_on(cluster.url("bus", 64), 3) as running:
                return longest_silence(running, lambda: cluster.nodes[0].kill())
        finally:
            cluster.kill()


# -- the scenario -------------------------------------------------------------------------------------


@contextmanager
def _valkey() -> Iterator[Callable[[str], str]]:
    with server_folder() as folder:
        server = Valkey(folder / "valkey").start()
        yield lambda name: server.url(name, units=64)
        server.kill()


@contextmanager
def _valkey_with_a_copy() -> Iterator[Callable[[str], str]]:
    with server_folder() as folder:
        server = Valkey(folder / "valkey").start()
        copy = Valkey(folder / "copy", replicaof=f"127.0.0.1 {server.port}").start()
        while online(server) < 1:
            time.sleep(0.05)
        yield lambda name: server.url(name, units=64)
        copy.kill()
        server.kill()


@contextmanager
def _postgres() -> Iterator[Callable[[str], str]]:
    with server_folder() as folder:
        server = Postgres(folder / "postgres").start()
        yield lambda name: server.url(name, units=64)
        server.kill()


ENGINES = {"Valkey": _valkey, "Valkey with a replica": _valkey_with_a_copy, "PostgreSQL": _postgres}


def cluster(scale: float, times: int) -> list[Row]:
    count = int(60_000 * scale)
    rates: dict[str, list[float]] = {}
    costs: dict[str, list[float]] = {}

    def note(name: str, found: tuple[float, float]) -> None:
        rates.setdefault(name, []).append(found[0])
        costs.setdefault(name, []).append(found[1])

    for number in range(times):  # interleaved, so that a noisy moment hits all
        with scratch() as folder, terminal(folder / "bus") as running:
            note("embedded", through(running, count))
        for engine, servers in ENGINES.items():
            with servers() as url:
                for nodes in (1, 3):
                    with nodes_on(url(f"bus{number}_{nodes}"), nodes) as running:
                        note(f"{engine}, {nodes} node{'s' if nodes > 1 else ''}", through(running, count))
    rows = []
    base = statistics.median(rates["embedded"])
    for name, found in rates.items():
        rate = statistics.median(found)
        rows.append(Row(f"eight topics, batches, {name}", rate, "msg/s"))
        if name != "embedded":
            target = 0.15 if name == "Valkey with a replica, 1 node" else None
            rows.append(Row(f"share of the embedded store, {name}", rate / base, "×", target))
        rows.append(Row(f"CPU of the terminal for a message, {name}", statistics.median(costs[name]), "µs"))
    for engine in ENGINES:
        one, three = (statistics.median(costs[f"{engine}, {nodes}"]) for nodes in ("1 node", "3 nodes"))
        rows.append(
            Row(f"CPU for a message, three nodes beside one, {engine}", three / one, "×", 1.3, "less")
        )
    for engine, servers in ENGINES.items():
        with servers() as url:
            gaps = [without_node(url(f"lost{number}")) for number in range(times)]
        rows.append(
            Row(f"without service after a node was killed, {engine}", statistics.median(gaps), "s", 5, "less")
        )
    gaps = [without_primary() for _ in range(times)]
    rows.append(
        Row("without service after a primary of a Valkey cluster was killed", statistics.median(gaps), "s")
    )
    return rows

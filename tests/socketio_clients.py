"""Clients of Socket.IO: the stock one of Python, and one that says whatever a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import socketio
from websockets.asyncio.client import ClientConnection, connect

from tests.waiting import LIMIT, eventually


class Stock:
    """The stock client. ``settlement``: what the callback of every message is called with."""

    def __init__(self, settlement: Any = "ack", **options: Any) -> None:
        self.sio = socketio.AsyncClient(
            reconnection_delay=0.05, reconnection_delay_max=0.2, randomization_factor=0.0, **options
        )
        self.settlement = settlement
        self.messages: list[dict[str, Any]] = []
        self.refused: list[dict[str, Any]] = []
        self.paused: list[Any] = []
        self.refusals: list[Any] = []
        self.connects = 0
        self.sio.on("message", self._on_message)
        self.sio.on("refused", self.refused.append)
        self.sio.on("paused", self.paused.append)
        self.sio.on("connect_error", self.refusals.append)
        self.sio.on("connect", self._on_connect)

    def _on_connect(self) -> None:
        self.connects += 1

    def _on_message(self, message: dict[str, Any]) -> Any:
        self.messages.append(message)
        return self.settlement(message) if callable(self.settlement) else self.settlement

    async def open(self, url: str, token: Any, transports: Any = None) -> Stock:
        auth = (lambda: {"token": token()}) if callable(token) else {"token": token}
        await self.sio.connect(url, auth=auth, transports=transports, wait_timeout=LIMIT)
        return self

    async def call(self, event: str, **given: Any) -> Any:
        """What an event is answered by."""
        return await self.sio.call(event, given, timeout=LIMIT)

    async def done(self, event: str, **given: Any) -> Any:
        """The same, where it has to be carried out."""
        answer = await self.call(event, **given)
        assert "problem" not in answer, answer
        return answer

    async def have(self, count: int) -> list[dict[str, Any]]:
        await eventually(lambda: len(self.messages) >= count, f"{count} messages, not {self.messages[-1:]}")
        return self.messages

    async def close(self) -> None:
        await self.sio.disconnect()
        # The library leaves its HTTP session open where the server has ended the connection.
        if self.sio.eio.http is not None and not self.sio.eio.http.closed:
            await self.sio.eio.http.close()


@asynccontextmanager
async def stock(url: str, token: Any, transports: Any = None, **options: Any) -> AsyncIterator[Stock]:
    client = Stock(**options)
    try:
        yield await client.open(url, token, transports)
    finally:
        await client.close()


class Raw:
    """A WebSocket of Engine.IO by hand."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def next(self) -> str | bytes:
        async with asyncio.timeout(LIMIT):
            while (found := await self.socket.recv()) == "2":
                await self.socket.send("3")
            return found

    async def say(self, *frames: str | bytes) -> None:
        for frame in frames:
            await self.socket.send(frame)

    async def ask(self, event: str, id: int = 0) -> Any:
        """The answer to an event, given as the JSON of its arguments."""
        await self.say(f"42{id}{event}")
        while True:
            found = await self.next()
            if isinstance(found, str) and found.startswith(f"43{id}["):
                return json.loads(found[found.index("[") :])[0]


@asynccontextmanager
async def raw(url: str, token: str = "", **options: Any) -> AsyncIterator[Raw]:
    """Signed in, where there is a token."""
    address = f"{url.replace('http', 'ws', 1)}/socket.io/?EIO=4&transport=websocket"
    async with connect(address, compression=None, **options) as socket:
        client = Raw(socket)
        assert str(await client.next()).startswith('0{"sid"')
        if token:
            await client.say(f"40{json.dumps({'token': token})}")
            assert str(await client.next()).startswith('40{"sid"')
        yield client

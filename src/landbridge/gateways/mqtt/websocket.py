"""MQTT over a WebSocket (MQTT 5, chapter 6): for browsers, and where only HTTP gets through.

The HTTP port makes the WebSocket. Its binary messages are one stream of bytes, whatever packets they hold,
and that stream is joined in memory to the same connection as one of the MQTT port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias, cast

from landbridge.gateways.http.cross_origin import CrossOrigin
from landbridge.gateways.mqtt.connection import MqttConnection
from landbridge.gateways.mqtt.port import MqttPort
from landbridge.protocol.http import caller_known
from landbridge.transport.memory import MemoryTransport, join
from landbridge.transport.strangers import site_of

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: What its subprotocol is called (MQTT 5, 6.0).
SUBPROTOCOL = "mqtt"
#: Bytes for a client that takes nothing; then the connection is told to wait.
HIGH_WATER = 1 << 20
#: Codes of a close: all is done, the port goes away, a message of text, not allowed.
_DONE, _GOING_AWAY, _NO_TEXT, _POLICY = 1000, 1001, 1003, 1008


class _WebSocketEnd(asyncio.Protocol):
    """The end of the pair in memory that is the client's."""

    def __init__(self) -> None:
        self.transport: MemoryTransport
        #: From the gateway, not sent yet.
        self._out = bytearray()
        self._news = asyncio.Event()
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.is_lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(MemoryTransport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)

    def data_received(self, data: bytes) -> None:
        self._out += data
        self._news.set()
        if len(self._out) > HIGH_WATER:
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._news.set()
        self._has_room.set()

    def pause_writing(self) -> None:
        self._has_room.clear()

    def resume_writing(self) -> None:
        self._has_room.set()

    async def give(self, data: bytes) -> None:
        """Hand bytes of the client over, when there is room for them."""
        await self._has_room.wait()
        self.transport.write(data)

    async def taken(self) -> bytes:
        """What is to be sent to the client; empty when there will be nothing more."""
        while not self._out and not self.is_lost:
            self._news.clear()
            await self._news.wait()
        data = bytes(self._out)
        self._out.clear()
        if not self.is_lost:
            self.transport.resume_reading()
        return data


async def serve_websocket(
    port: MqttPort, origins: CrossOrigin, scope: Scope, receive: Receive, send: Send
) -> None:
    """Serve one WebSocket of a client of MQTT."""
    await receive()  # websocket.connect
    if port.closing or SUBPROTOCOL not in scope["subprotocols"] or not origins.allows(scope):
        await send({"type": "websocket.close", "code": _POLICY})
        return
    await send({"type": "websocket.accept", "subprotocol": SUBPROTOCOL})
    host, number = scope.get("client") or ("", 0)
    end = _WebSocketEnd()
    connection = MqttConnection(port, port.strangers.enter(site_of((host,)), lambda: None))
    join(end, connection)
    connection.peer = f"{host}:{number}"
    reading = asyncio.ensure_future(_read(end, receive))
    writing = asyncio.ensure_future(_write(end, connection, scope, send))
    try:
        await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
        if reading.done():
            code = reading.result()
        else:
            writing.result()
            code = _GOING_AWAY if port.closing else _DONE
        if code is not None:
            await send({"type": "websocket.close", "code": code})
    except OSError:
        pass  # the client has gone meanwhile
    finally:
        end.transport.close()
        for task in (reading, writing):
            task.cancel()
        await asyncio.gather(reading, writing, return_exceptions=True)
        await connection.gone.wait()


async def _read(end: _WebSocketEnd, receive: Receive) -> int | None:
    """Hand over what the client sends. Returns the code to close with; None where it has closed."""
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return None
        data = message.get("bytes")
        if data is None:  # MQTT 5, 6.0: text closes the connection
            return _NO_TEXT
        await end.give(data)


async def _write(end: _WebSocketEnd, connection: MqttConnection, scope: Scope, send: Send) -> None:
    """Send what the gateway says, until it has ended the connection."""
    is_known = False
    while data := await end.taken():
        if connection.is_open and not is_known:
            is_known = True
            caller_known(scope)  # the CONNACK comes first
        await send({"type": "websocket.send", "bytes": data})

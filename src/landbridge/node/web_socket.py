"""A WebSocket of an HTTP port: uvicorn's, counted and given a time while nobody knows the peer."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn import Config
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol
from uvicorn.server import ServerState
from wsproto.events import Ping

from landbridge.protocol.http import CUT, LET_IN, problem
from landbridge.transport.reading_watch import ReadingWatch
from landbridge.transport.strangers import Stranger, Strangers

#: Seconds in which a peer has to show a good token.
KNOWN_WITHIN = 20.0
#: Bytes of a message, from a stranger and from a peer that was let in.
MOST_OF_STRANGERS, MOST_BYTES = 16 << 10, 16 << 20


class WebSocketConnection(WSProtocol):
    """``address``: where the peer is counted as a stranger. ``most``: requests under way at a time, in the
    whole port, of which a WebSocket is one for as long as it lives."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        *,
        strangers: Strangers,
        address: str,
        most: int,
    ) -> None:
        super().__init__(config, server_state, app_state)
        self._served = self.app
        self.app = self._serve
        self._strangers = strangers
        self._address = address
        self._most = most
        #: None when the peer was let in.
        self._stranger: Stranger | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self.buffer.max_length = MOST_OF_STRANGERS
        self._reading = ReadingWatch()
        #: The last ping that wasn't answered, because the peer takes nothing.
        self._ping: Ping | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._stranger = self._strangers.enter(self._address, transport.abort)
        self._deadline = self.loop.call_later(KNOWN_WITHIN, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave_strangers()
        self._reading.end()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Called by the transport: the peer has to read first."""
        super().pause_writing()
        self._reading.begin(self.transport)

    def resume_writing(self) -> None:
        """Called by the transport: the peer has read."""
        self._reading.end()
        super().resume_writing()
        if (ping := self._ping) is not None and not (self.close_sent or self.transport.is_closing()):
            self._ping = None
            super().handle_ping(ping)

    def handle_ping(self, event: Ping) -> None:
        """Answer a ping. Where the peer reads nothing, the answers would gather: it gets that to the last of
        them alone, once it reads (RFC 6455, 5.5.3)."""
        if self.writable.is_set():
            super().handle_ping(event)
        else:
            self._ping = event

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if len(self.tasks) > self._most:
            refusal = problem(
                503, "unavailable", f"{self._most} requests are under way", "try again in a while"
            )
            headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
            await receive()
            await send({"type": "websocket.http.response.start", "status": 503, "headers": headers})
            await send({"type": "websocket.http.response.body", "body": refusal.encode()})
            return
        scope["extensions"] = {**scope.get("extensions", {}), LET_IN: self._let_in, CUT: self.transport.abort}
        await self._served(scope, receive, send)

    def _let_in(self) -> None:
        self.buffer.max_length = MOST_BYTES
        self._leave_strangers()

    def _leave_strangers(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._stranger is not None:
            self._strangers.leave(self._stranger)
            self._stranger = None

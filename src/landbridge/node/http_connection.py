"""One HTTP connection: uvicorn's, with deadlines for what a peer sends, and counted while nobody knows it.

A peer is a stranger until an application has let it in (``protocol.http.caller_known``), once for the whole
connection. It is counted while the port waits for its bytes, not while an application works for it.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from functools import partial
from typing import Any, cast

import h11
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from landbridge.errors import Unavailable
from landbridge.node.web_socket import WebSocketConnection
from landbridge.protocol.http import LET_IN, Problem, problem
from landbridge.transport.reading_watch import ReadingWatch
from landbridge.transport.strangers import Stranger, Strangers

#: Seconds for the head of a request, from the connection's beginning or the answer before.
HEAD_WITHIN = 10.0
#: Seconds for its body; and bytes of it, each of which it may take a second longer.
BODY_WITHIN, BODY_RATE = 20.0, 16 << 10
#: The paths that are answered however many requests are under way: they tell how the process is.
HEALTH = ("/healthz", "/readyz")


class _Wait(Enum):
    """What a connection waits for."""

    HEAD = "head"
    BODY = "body"
    #: The application, which has the whole request.
    ANSWER = "answer"


class HttpConnection(H11Protocol):
    """``most``: requests under way at a time, in the whole port. ``web_sockets``: may a peer make the
    connection a WebSocket?"""

    def __init__(
        self,
        config: Config,
        state: ServerState,
        strangers: Strangers,
        stranger: Stranger,
        most: int,
        *,
        web_sockets: bool = False,
    ) -> None:
        super().__init__(config, state, {})
        self._app = self.app
        self.app = self._serve
        self._strangers = strangers
        self._most = most
        #: Where the peer is counted as a stranger.
        self._address = stranger.address
        #: None while the peer isn't counted.
        self._stranger: Stranger | None = stranger
        self._known = self._is_handed_over = False
        self._waits_for = _Wait.ANSWER
        #: When the wait began, in the loop's time, and bytes that have come since.
        self._since = 0.0
        self._received = 0
        if web_sockets:
            # uvicorn makes it when a peer asks for an upgrade, and hands the transport over to it.
            connection = partial(
                WebSocketConnection, strangers=strangers, address=stranger.address, most=most
            )
            self.ws_protocol_class = cast(Any, connection)
        self._deadline: asyncio.TimerHandle | None = None
        self._reading = ReadingWatch()

    # -- transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        self._leave_strangers()  # it makes no room for itself
        # Known peers hold a connection for each request, and for a few seconds after it.
        if len(self.connections) > self._most + self._strangers.most and not self._strangers.make_room():
            self.transport.abort()
        else:
            self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._reading.end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        self._look()

    def pause_writing(self) -> None:
        """Called by the transport: the peer has to read first."""
        super().pause_writing()
        self._reading.begin(self.transport)

    def resume_writing(self) -> None:
        """Called by the transport: the peer has read."""
        self._reading.end()
        super().resume_writing()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Called by uvicorn: the transport is the WebSocket's from now on, and so are its deadlines."""
        self._stop_waiting()
        self._reading.end()
        self._is_handed_over = True
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look()

    # -- strangers ---------------------------------------------------------------------------------

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        if len(self.tasks) > self._most and scope["path"] not in HEALTH:
            error = Unavailable(f"{self._most} requests are under way", hint="try again in a while")
            await _refuse(send, problem(503, error.code, str(error), error.hint))
            return
        scope["extensions"] = {**scope.get("extensions", {}), LET_IN: self._let_in}
        await self._app(scope, receive, send)

    def _let_in(self) -> None:
        self._known = True
        self._leave_strangers()

    def _leave_strangers(self) -> None:
        if self._stranger is not None:
            self._strangers.leave(self._stranger)
            self._stranger = None

    # -- deadlines ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """See what the connection waits for, and how long it may."""
        state = self.conn.their_state
        waits_for = {h11.IDLE: _Wait.HEAD, h11.SEND_BODY: _Wait.BODY}.get(state, _Wait.ANSWER)
        if waits_for is self._waits_for or self.transport.is_closing() or self._is_handed_over:
            return
        self._stop_waiting()
        self._waits_for = waits_for
        if waits_for is _Wait.ANSWER:
            return
        if not self._known:
            self._stranger = self._strangers.enter(self._address, self.transport.abort)
        self._since, self._received = self.loop.time(), 0
        self._deadline = self.loop.call_later(self._allowed(), self._check)

    def _stop_waiting(self) -> None:
        self._leave_strangers()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _allowed(self) -> float:
        """Seconds that the wait may take, with what has come until now."""
        return HEAD_WITHIN if self._waits_for is _Wait.HEAD else BODY_WITHIN + self._received / BODY_RATE

    def _check(self) -> None:
        left = self._since + self._allowed() - self.loop.time()
        if left <= 0 and (self.flow.read_paused or self.transport.get_write_buffer_size()):
            left = HEAD_WITHIN  # it is not the peer that keeps us waiting, or the peer still reads the answer
        if left > 0:
            self._deadline = self.loop.call_later(left, self._check)
            return
        self._deadline = None
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and self._has_begun():
            allowed = f"{self._allowed():.0f} s"
            late = f"the {self._waits_for.value} of the request did not come within {allowed}"
            self.transport.write(_raw(problem(408, "slow_request", late, "send it in one go")))
        if self.cycle is not None:
            self.cycle.disconnected = True  # what the application answers from now on goes nowhere
        self.transport.close()

    def _has_begun(self) -> bool:
        """Whether the peer has sent a part of a request. A silent peer is told nothing."""
        return self._waits_for is _Wait.BODY or self._received > 0


async def _refuse(send: Any, refusal: Problem) -> None:
    body = refusal.encode()
    headers = {**refusal.headers, "content-length": str(len(body))}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def _raw(refusal: Problem) -> bytes:
    """Return a whole answer, after which the connection is closed."""
    body = refusal.encode()
    headers = {**refusal.headers, "content-length": str(len(body)), "connection": "close"}
    lines = [f"HTTP/1.1 {refusal.status} {refusal.title}", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode() + body

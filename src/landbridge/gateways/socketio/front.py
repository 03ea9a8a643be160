"""The ASGI application at ``/socket.io/``: what comes from strangers is checked here, before the library sees
it.

Of the rules of Engine.IO 4 the library leaves out some, and passes over errors of a client with the answer
"ok". Here one GET and one POST of a client are under way at a time, a body holds packets that the library
will read whole, a frame of a WebSocket begins with a type, and a client that breaks a rule is cut off.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from typing import Any
from urllib.parse import parse_qs

import msgspec
from socketio.exceptions import ConnectionRefusedError as Refusal

from landbridge.broker.figures import GatewayFigure
from landbridge.errors import BadFrame, BadRequest, BusError, Forbidden
from landbridge.gateways.http.cross_origin import CrossOrigin
from landbridge.gateways.http.exchange import ClientGone, HttpRequest, Receive, Scope, Send
from landbridge.gateways.http.sessions import SessionPool
from landbridge.gateways.socketio.client import AnsweredPoll, SocketClient
from landbridge.gateways.socketio.engine import MOST_BYTES, MOST_PACKETS, SocketEngine
from landbridge.gateways.socketio.register import SocketRegister
from landbridge.protocol.http import caller_known, cut_caller, problem_of
from landbridge.transport.strangers import site_of

#: Where the gateway is.
PATH = "/socket.io/"
#: Bytes of a body from a client that has not signed in.
MOST_OF_STRANGERS = 16 << 10
#: Parameters of a query.
MOST_PARAMETERS = 16
#: Characters of what tells one request of a client from the next.
LONGEST_MARK = 64
#: Seconds in which a client that polls has to go over to the WebSocket that it has opened.
UPGRADE_WITHIN = 20.0
#: Seconds that a WebSocket may take before it takes more.
WRITE_WITHIN = 60.0
#: Packets that a client may send, by their first character: close, pong, message; on a WebSocket upgrade too.
_POSTED, _FRAMED = frozenset("134b"), frozenset("1345")
_SEPARATOR = "\x1e"
#: Where the scope of a WebSocket has its client.
_CLIENT = "landbridge.socketio_client"
_LEFT_OUT = frozenset({b"content-length", b"transfer-encoding", b"connection", b"upgrade"})


class SocketGateway:
    """The application. ``pool``: the connections of the HTTP gateway. ``origins``: the web sites whose pages
    may use it. ``note``: tells the status log of what went wrong (cause, how often, an example)."""

    def __init__(
        self,
        pool: SessionPool,
        origins: Iterable[str] = (),
        note: Callable[[str, int, str], None] = lambda *_: None,
    ) -> None:
        self.register = SocketRegister(pool, note)
        self._origins = CrossOrigin(origins)
        self.engine = SocketEngine(self._begin, _sign_in)

    def _begin(self, id: str, environ: dict[str, Any]) -> SocketClient:
        scope = environ["asgi.scope"]
        client = SocketClient(self.register, self.engine, id, site_of(scope.get("client") or ("",)))
        if scope["type"] == "websocket":
            client.scopes.append(scope)
            scope[_CLIENT] = client
        return client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of HTTP, or serve one WebSocket."""
        if scope["type"] == "websocket":
            await self._serve_socket(scope, receive, send)
            return
        if self._origins:
            send = self._origins.answering(scope, send)
        try:
            request = HttpRequest(scope, receive, send)
        except BusError as error:
            await HttpRequest({**scope, "headers": []}, receive, send).refuse(problem_of(error))
            return
        try:
            await self._serve(request, receive, send)
        except ClientGone:
            pass
        except BusError as error:
            if request.is_answered:
                raise RuntimeError(f"an answer was broken off: {error}") from error
            await request.refuse(problem_of(error))

    # -- long polling ------------------------------------------------------------------------------

    async def _serve(self, request: HttpRequest, receive: Receive, send: Send) -> None:
        scope = request.scope
        self._check_origin(scope)
        if request.method == "OPTIONS" and self._origins.is_preflight(request):
            await self._origins.answer_preflight(request)
            return
        if request.method not in ("GET", "POST"):
            raise BadRequest(f"{request.method[:20]} of this path", hint="it takes GET and POST")
        client = self._client(scope)
        if client is None:
            if request.method == "POST":
                raise BadRequest("a POST without a session", hint="GET begins one")
            await self.engine.handle_request(scope, receive, send)
            return
        if client.is_signed_in:
            caller_known(scope)
        if request.method in client.polling:
            error = BadFrame(f"two requests {request.method} of one session at a time")
            await client.end(error)
            raise error
        mark = _mark(scope)
        if mark and mark in (client.last_get.mark, client.last_post.mark):
            repeated = client.last_get if request.method == "GET" else client.last_post
            await request.answer(200, repeated.body, b"text/plain; charset=UTF-8")
            return
        answer = AnsweredPoll(mark)
        client.polling.add(request.method)
        try:
            if request.method == "POST":
                await self._post(client, request, _keeping(answer, send))
                client.last_post = answer
            else:
                await self.engine.handle_request(scope, receive, _keeping(answer, send))
                client.last_get = answer
        finally:
            client.polling.discard(request.method)

    async def _post(self, client: SocketClient, request: HttpRequest, send: Send) -> None:
        body = await request.body(MOST_BYTES if client.is_signed_in else MOST_OF_STRANGERS)
        try:
            _check_body(body)
        except BadFrame as error:
            await client.end(error)
            raise
        # The library believes the header, and reads nothing where there is none.
        length = (b"content-length", b"%d" % len(body))
        headers = [pair for pair in request.scope["headers"] if pair[0] not in _LEFT_OUT]
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> MutableMapping[str, Any]:
            return next(parts)

        await self.engine.handle_request({**request.scope, "headers": [*headers, length]}, replay, send)

    def _client(self, scope: Scope) -> SocketClient | None:
        """The client whose session a request is of; None where it wants to begin one."""
        text = scope["query_string"].decode("latin-1")
        try:
            query = parse_qs(text, keep_blank_values=True, max_num_fields=MOST_PARAMETERS)
        except ValueError:
            raise BadRequest(f"a query of more than {MOST_PARAMETERS} parameters") from None
        if "j" in query:
            raise BadRequest("JSONP is not served", hint="transports polling and websocket")
        ids = query.get("sid", [])
        if len(ids) > 1:
            raise BadRequest("the parameter sid is given twice")
        if not ids:
            return None
        found = self.engine.peers.get(ids[0])
        if not isinstance(found, SocketClient) or found.is_ending:
            raise BadRequest("there is no such session", hint="connect again")
        return found

    def _check_origin(self, scope: Scope) -> None:
        if not self._origins.allows(scope):
            raise Forbidden("pages of this origin may not use the gateway", hint="landbridge up --origin …")

    # -- WebSocket ---------------------------------------------------------------------------------

    async def _serve_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await receive()  # websocket.connect
        try:
            self._check_origin(scope)
            client = self._client(scope)
            if client is not None and client.scopes:
                raise BadRequest("the session has a WebSocket already, or is about to", hint="one at a time")
        except BusError as error:
            await _deny(scope, send, error)
            return
        end: asyncio.TimerHandle | None = None
        if client is not None:
            client.scopes.append(scope)
            scope[_CLIENT] = client
            if client.is_signed_in:
                caller_known(scope)
            end = asyncio.get_running_loop().call_later(UPGRADE_WITHIN, self._end_upgrade, client, scope)
        # The server of HTTP has taken these out; the library wants to see them.
        asked = [(b"connection", b"upgrade"), (b"upgrade", b"websocket")]
        scope["headers"] = [*(pair for pair in scope["headers"] if pair[0] not in _LEFT_OUT), *asked]
        socket = _CheckedSocket(scope, first, receive, send)
        try:
            await self.engine.handle_request(scope, socket.receive, socket.send)
        finally:
            if client is not None and end is not None:
                end.cancel()
                self.engine.end_upgrade(client.id)
                if scope in client.scopes:
                    client.scopes.remove(scope)

    def _end_upgrade(self, client: SocketClient, scope: Scope) -> None:
        if self.engine.is_upgrading(client.id):
            cut_caller(scope)

    # -- end and figures ---------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for the work of clients that have gone. The pool's ``stopping`` ends those that are there."""
        while self.register.tasks:
            await asyncio.wait(list(self.register.tasks))
        await self.engine.shutdown()

    def figures(self) -> Iterator[GatewayFigure]:
        """For the terminal's metrics."""
        found = self.register
        clients = found.by_service.total()
        counts = found.figures
        yield GatewayFigure("landbridge_socketio_clients", "clients signed in", {}, clients, counts=False)
        yield GatewayFigure("landbridge_socketio_published", "messages published", {}, counts.published)
        yield GatewayFigure("landbridge_socketio_sent", "packets put on their way", {}, counts.sent)
        yield GatewayFigure("landbridge_socketio_settled", "messages settled by callback", {}, counts.settled)
        yield GatewayFigure("landbridge_socketio_refused", "requests refused", {}, counts.refused)
        yield GatewayFigure("landbridge_socketio_slow", "clients cut as too slow", {}, counts.slow)


async def _sign_in(client: Any, auth: bytes) -> None:
    try:
        await client.sign_in(auth)
    except BusError as error:
        client.note_refusal(error)
        raise Refusal(str(error), msgspec.to_builtins(problem_of(error))) from None


def _mark(scope: Scope) -> str:
    """What tells a request from the next one of the client; "" where nothing does. What sends HTTP for the
    client may repeat a request whose answer was lost with the connection, and then the mark is the same."""
    found = parse_qs(scope["query_string"].decode("latin-1")).get("t", [""])[0]
    return f"{scope['method']} {found}" if 0 < len(found) <= LONGEST_MARK else ""


def _keeping(answer: AnsweredPoll, send: Send) -> Send:
    """Keep the body of an answer that is sent, for the case that the request is repeated."""

    async def keep(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] != 200:
            answer.mark = ""
        answer.body += message.get("body", b"")
        await send(message)

    return keep


def _check_body(body: bytes) -> None:
    """BadFrame where the library would not read every packet of a body."""
    try:
        packets = body.decode().split(_SEPARATOR)
    except UnicodeDecodeError:
        raise BadFrame("a body that is not UTF-8") from None
    if len(packets) > MOST_PACKETS:
        raise BadFrame(f"{len(packets)} packets in one body", hint=f"at most {MOST_PACKETS}")
    for packet in packets:
        if not packet or packet[0] not in _POSTED or not _is_readable(packet):
            raise BadFrame(
                "a packet that is not one of Engine.IO", hint="protocol 4, as Socket.IO 3 and 4 use"
            )


def _is_readable(packet: str) -> bool:
    if packet[0] == "b":
        try:
            base64.b64decode(packet[1:], validate=True)
        except (binascii.Error, ValueError):
            return False
    # A message is a packet of Socket.IO, whose type is a digit. Of any other the library reads JSON.
    return packet[0] != "4" or packet[1:2] in tuple("0123456")


class _CheckedSocket:
    """One WebSocket, whose frames are checked, and which is cut where it takes nothing."""

    def __init__(self, scope: Scope, first: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        self._scope = scope
        self._first: MutableMapping[str, Any] | None = first
        self._receive = receive
        self._send = send

    async def receive(self) -> MutableMapping[str, Any]:
        if self._first is not None:
            first, self._first = self._first, None
            return first
        message = await self._receive()
        text = message.get("text")
        if text is not None and text != "2probe" and (text[:1] not in _FRAMED or not _is_readable(text)):
            return {"type": "websocket.disconnect", "code": 1002}
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        try:
            async with asyncio.timeout(WRITE_WITHIN):
                await self._send(message)
        except TimeoutError:
            cut_caller(self._scope)
            self._on_lost()
            raise OSError("the client takes nothing") from None
        except Exception:
            self._on_lost()
            raise

    def _on_lost(self) -> None:
        """End the session at once: the library reads on, and may wait for room that nobody will make."""
        client: SocketClient | None = self._scope.get(_CLIENT)
        if client is not None:
            client.on_lost()


async def _deny(scope: Scope, send: Send, error: BusError) -> None:
    """Refuse a WebSocket by an answer of HTTP, where the server can do that."""
    refusal = problem_of(error)
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008})
        return
    headers = [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": refusal.encode()})

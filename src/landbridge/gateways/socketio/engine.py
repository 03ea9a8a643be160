"""The library python-socketio as the gateway uses it: its Engine.IO transports, its handshake, its packets.

Where the library leaves out a rule of the protocol or a bound, this module and ``front`` have it (ADR 47):
what waits for a client is bounded by bytes, packets are read strictly, and whatever is not understood ends
the connection instead of being logged and passed over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import engineio
import socketio
import structlog
from engineio import payload

from landbridge.errors import BadFrame, BusError
from landbridge.gateways.socketio import packet
from landbridge.gateways.socketio.packet import StrictPacket

log = structlog.get_logger("landbridge.http")

#: Bytes that may wait for one client, beyond which nothing more is put there until the client has read.
MOST_WAITING = 256 << 10
#: Bytes of one message from a client that has signed in, whichever the transport.
MOST_BYTES = 16 << 20
#: Packets of one POST. The library takes 16, and drops the others with the answer "ok".
MOST_PACKETS = 1000
#: Seconds between two pings, and for the answer. A client that has not read its pings is gone.
PING_EVERY, PONG_WITHIN = 25, 20

# The library would write to stderr by a handler of its own, which an error of a client could fill.
_LOG = logging.getLogger("landbridge.socketio.library")
_LOG.setLevel(logging.CRITICAL + 1)


class SendQueue(asyncio.Queue[Any]):
    """What waits for a client."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        #: Bytes that wait.
        self.size = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    def _put(self, item: Any) -> None:
        super()._put(item)
        self.size += _weight(item)
        if self.size >= MOST_WAITING:
            self._has_room.clear()

    def _get(self) -> Any:
        item = super()._get()
        self.size -= _weight(item)
        if self.size < MOST_WAITING:
            self._has_room.set()
        return item

    @property
    def is_full(self) -> bool:
        """Has the client to read first?"""
        return not self._has_room.is_set()

    async def room(self) -> None:
        """Wait until there is room."""
        await self._has_room.wait()


def _weight(item: Any) -> int:
    data = getattr(item, "data", None)
    return 64 + (len(data) if isinstance(data, str | bytes) else 0)


class _Transports(engineio.AsyncServer):  # type: ignore[misc]  # the library has no types
    def create_queue(self, *args: Any, **kwargs: Any) -> SendQueue:
        return SendQueue(*args, **kwargs)


class SocketPeer(Protocol):
    """One connection, as the engine sees it."""

    is_ending: bool
    is_signed_in: bool
    #: A packet whose attachments are on their way.
    partial: StrictPacket | None

    def expect(self, packet: StrictPacket | None) -> None:
        """The attachments of this packet are on their way; None: of none."""

    async def receive(self, event: StrictPacket) -> None:
        """An event has come. Returns when more may be read."""

    async def acknowledged(self, answer: StrictPacket) -> None:
        """The client has called the callback of a message."""

    async def end(self, error: BusError | None) -> None:
        """End the connection."""

    def on_gone(self) -> None:
        """The connection has ended."""


class SocketEngine(socketio.AsyncServer):  # type: ignore[misc]  # the library has no types
    """Takes connections. ``begin``: makes the peer of a new one, by its id and its environment; None refuses
    it. ``sign_in``: called with the peer and the JSON of its credentials."""

    def __init__(
        self,
        begin: Callable[[str, dict[str, Any]], SocketPeer | None],
        sign_in: Callable[[Any, bytes], Awaitable[None]],
    ) -> None:
        super().__init__(
            serializer=StrictPacket,
            async_mode="asgi",
            async_handlers=False,
            logger=_LOG,
            engineio_logger=_LOG,
            cors_allowed_origins=[],  # ``front`` looks at origins, as the HTTP port does
            max_http_buffer_size=MOST_BYTES,
            http_compression=False,  # a secret beside what an attacker chooses is not packed with it
            ping_interval=PING_EVERY,
            ping_timeout=PONG_WITHIN,
        )
        payload.Payload.max_decode_packets = MOST_PACKETS
        self._begin = begin
        self._sign_in = sign_in
        #: Every connection, by its id, which only its client knows.
        self.peers: dict[str, SocketPeer] = {}
        self.on("connect", self._on_sign_in)

    def _engineio_server_class(self) -> type[_Transports]:
        return _Transports

    def queue_of(self, id: str) -> SendQueue | None:
        """What waits for a client; None when it is gone."""
        found = self.eio.sockets.get(id)
        return None if found is None or found.closed else found.queue

    async def say(self, id: str, part: str | bytes) -> None:
        """Put a part of a packet to what waits for a client."""
        try:
            await self.eio.send(id, part)
        except engineio.exceptions.EngineIOError:
            pass  # the client is gone, which its peer is told by on_gone

    async def close(self, id: str) -> None:
        """End a connection when the client has got what waits for it. No packet says so: the stock client of
        Python would take that for the end, where it comes back by itself from a lost connection."""
        found = self.eio.sockets.get(id)
        if found is not None and not found.closed:
            # The library's disconnect() would wait until the client has read everything, however long.
            await found.close(wait=False, abort=True)
            found.queue.put_nowait(None)  # the writer of a WebSocket ends, and closes it

    def is_upgrading(self, id: str) -> bool:
        """Has a client begun to go over from polling to a WebSocket?"""
        found = self.eio.sockets.get(id)
        return found is not None and found.upgrading

    def end_upgrade(self, id: str) -> None:
        """Its WebSocket has ended. The library answers polls with nothing, and at once, as long as it waits
        for one; it forgets to end that where the client goes without a word."""
        if self.is_upgrading(id):
            self.eio.sockets[id].upgrading = False

    # -- what the library calls --------------------------------------------------------------------

    async def _handle_eio_connect(self, id: str, environ: dict[str, Any]) -> bool | None:
        peer = self._begin(id, environ)
        if peer is None:
            return False
        self.peers[id] = peer
        await super()._handle_eio_connect(id, environ)
        return None

    async def _handle_eio_message(self, id: str, data: str | bytes) -> None:
        peer = self.peers.get(id)
        if peer is None or peer.is_ending:
            return
        try:
            await self._take(id, peer, data)
        except BusError as error:
            await peer.end(error)
        except Exception as crash:
            # The library would log it with what the client has sent, and go on.
            log.error("socket.io crashed", exc_info=crash)
            await peer.end(BusError("the gateway failed", hint="see the log of the terminal"))

    async def _handle_eio_disconnect(self, id: str, reason: str) -> None:
        await super()._handle_eio_disconnect(id, reason)
        peer = self.peers.pop(id, None)
        if peer is not None:
            peer.on_gone()

    async def _take(self, id: str, peer: SocketPeer, data: str | bytes) -> None:
        found = peer.partial
        if found is not None:
            if not isinstance(data, bytes):
                raise BadFrame("text where an attachment was announced")
            found.attachments.append(data)
            if found.size > MOST_BYTES:
                raise BadFrame(f"a packet of more than {MOST_BYTES} bytes with its attachments")
            if len(found.attachments) < found.attachment_count:
                return
            peer.expect(None)
        elif isinstance(data, bytes):
            raise BadFrame("an attachment that was not announced")
        else:
            found = StrictPacket(encoded_packet=data)
            if found.packet_type == packet.CONNECT:
                await self._handle_connect(id, found.namespace, found.data)
                await self._forget_if_gone(id)
                return
            if not peer.is_signed_in or found.namespace != "/":
                raise BadFrame("a packet before the sign-in, or of another namespace")
            if found.attachment_count:
                peer.expect(found)
                return
        if found.packet_type == packet.DISCONNECT:
            await peer.end(None)
        elif found.packet_type in (packet.EVENT, packet.BINARY_EVENT):
            await peer.receive(found)
        elif found.packet_type in (packet.ACK, packet.BINARY_ACK):
            await peer.acknowledged(found)
        else:
            raise BadFrame("a packet that only a server sends")

    async def _forget_if_gone(self, id: str) -> None:
        """The library keeps a client for good that leaves while it signs in."""
        sid = self.manager.sid_from_eio_sid(id, "/")
        if id not in self.peers and sid is not None:
            await self.manager.disconnect(sid, "/", ignore_queue=True)

    async def _on_sign_in(self, sid: str, environ: dict[str, Any], auth: bytes | None) -> None:
        await self._sign_in(self.peers[self.manager.eio_sid_from_sid(sid, "/")], auth or b"")

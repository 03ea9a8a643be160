"""A bad network for tests, without root: lines through which TCP connections go, and what can happen to them.

    line = Line("127.0.0.1", 7420, delay=0.05)
    await line.open()                  # line.url leads to 127.0.0.1:7420, 50 ms later
    line.black_hole()                  # nothing passes, nobody is told
    line.heal()

Silence is as TCP sees it: what is sent meanwhile is held and comes when the line is healed, unless somebody
has given up by then. The end of a connection doesn't pass through a silent line either.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, cast

#: Bytes of one direction of a connection under way or held, above which its sender isn't read from: enough
#: for 160 MB/s over 100 ms, and little for a test.
BUFFER = 16 << 20
#: Seconds by which what a line has lost comes late: the least retransmission timer of Linux.
RETRANSMISSION = 0.2
#: SO_LINGER with 0 s: closing sends a reset.
_LINGER = struct.pack("ii", 1, 0)

#: Sees the bytes of a direction, in pieces as they come.
Tap: TypeAlias = Callable[["Way", bytes], None]


class Way:
    """One direction of a line. Everything may be changed at any time, and counts for what comes then."""

    def __init__(self, name: Literal["forth", "back"], delay: float, jitter: float, rate: float) -> None:
        #: "forth": from the one that dials.
        self.name = name
        #: Seconds, and by how much more at most.
        self.delay = delay
        self.jitter = jitter
        #: Bytes per second of each connection; 0 = no limit.
        self.rate = rate
        #: Share of the pieces that come late, as after a retransmission.
        self.loss = 0.0
        #: Nothing passes.
        self.silent = False
        #: Bytes that have passed.
        self.passed = 0


class _Stream:
    """One direction of one connection: what is under way."""

    def __init__(self, line: Line, way: Way, ended: Callable[[], None]) -> None:
        self._line = line
        self._way = way
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        #: (when it is due, bytes); no bytes: the sender has ended; None: it has broken.
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._held = 0
        #: When the last piece is due: a stream is never reordered.
        self._last = 0.0
        #: When the line has room for the next piece at its rate.
        self._free = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._source: asyncio.Transport | None = None
        self._sink: asyncio.Transport | None = None
        self._sink_full = False
        self._reading = True

    def comes_from(self, transport: asyncio.Transport) -> None:
        self._source = transport

    def goes_to(self, transport: asyncio.Transport) -> None:
        self._sink = transport
        self.move()

    def take(self, data: bytes | None) -> None:
        way, now = self._way, self._loop.time()
        due = now + way.delay + (self._line.dice.uniform(0, way.jitter) if way.jitter else 0.0)
        if way.rate and data:
            self._free = max(self._free, now) + len(data) / way.rate
            due = max(due, self._free + way.delay)
        if way.loss and self._line.dice.random() < way.loss:
            due += RETRANSMISSION
        self._last = max(self._last, due)
        self._pieces.append((self._last, data))
        self._held += len(data or b"")
        if len(self._pieces) == 1:
            self.move()
        self._throttle()

    def move(self) -> None:
        """Let out what is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._sink is None or self._sink_full or self._way.silent:
            return
        now = self._loop.time()
        while self._pieces and not self._sink_full:
            due, data = self._pieces[0]
            if due > now:
                self._timer = self._loop.call_at(due, self.move)
                break
            self._pieces.popleft()
            self._out(self._sink, data)
        self._throttle()

    def _out(self, sink: asyncio.Transport, data: bytes | None) -> None:
        if data is None:
            reset(sink)
        elif not data:
            try:
                if not sink.is_closing():
                    sink.write_eof()
            except OSError:  # reset by its peer, and we haven't heard of it yet
                pass
            self._ended()
        else:
            self._held -= len(data)
            self._way.passed += len(data)
            for tap in self._line.taps:
                tap(self._way, data)
            if not sink.is_closing():
                sink.write(data)

    def sink_full(self, full: bool) -> None:
        self._sink_full = full
        if not full:
            self.move()

    def _throttle(self) -> None:
        reading = self._held <= BUFFER
        if self._source is not None and reading != self._reading and not self._source.is_closing():
            self._reading = reading
            if reading:
                self._source.resume_reading()
            else:
                self._source.pause_reading()

    def drop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pieces.clear()


class _End(asyncio.Protocol):
    """The line's end of a socket. ``out``: what it hears; ``into``: what it is to say."""

    def __init__(self, line: Line, out: _Stream, into: _Stream, lost: Callable[[], None]) -> None:
        self._line = line
        self._out = out
        self._into = into
        self._lost = lost
        self.transport: asyncio.Transport | None = None
        self.gone = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._line.transports.add(self.transport)
        if self._line.refusing:  # the line was cut while this one was being made
            reset(self.transport)
            return
        self._out.comes_from(self.transport)
        self._into.goes_to(self.transport)

    def data_received(self, data: bytes) -> None:
        self._out.take(data)

    def eof_received(self) -> bool:
        self._out.take(b"")
        return True  # the other direction goes on

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        if self.transport is not None:
            self._line.transports.discard(self.transport)
        self._into.drop()
        self._out.take(None if exc is not None else b"")
        self._lost()

    def pause_writing(self) -> None:
        self._into.sink_full(True)

    def resume_writing(self) -> None:
        self._into.sink_full(False)


class _Connection:
    """A connection through a line: two sockets, two streams."""

    def __init__(self, line: Line) -> None:
        self._line = line
        #: Directions that have not ended yet.
        self._open = 2
        self.forth = _Stream(line, line.forth, self._ended)
        self.back = _Stream(line, line.back, self._ended)
        self.near = _End(line, self.forth, self.back, self._lost)
        self.far = _End(line, self.back, self.forth, self._lost)
        self._dialling: asyncio.Task[None] | None = None

    def dial(self) -> None:
        self._dialling = asyncio.ensure_future(self._dial())

    async def _dial(self) -> None:
        """Opening takes both ways: a packet there and one back."""
        line = self._line
        await line.both_ways.wait()
        try:
            loop = asyncio.get_running_loop()
            await loop.create_connection(lambda: self.far, line.host, line.port)
        except OSError:
            self.reset()

    def _ended(self) -> None:
        self._open -= 1
        if not self._open:
            for end in (self.near, self.far):
                if end.transport is not None:
                    end.transport.close()

    def _lost(self) -> None:
        if self.near.gone and (self.far.gone or self.far.transport is None):
            self.close()

    def reset(self) -> None:
        for end in (self.near, self.far):
            if end.transport is not None:
                reset(end.transport)
        self.close()

    def close(self) -> None:
        if self._dialling is not None:
            self._dialling.cancel()
        self.forth.drop()
        self.back.drop()
        self._line.forget(self)


class Line:
    """A way to ``host:port`` that behaves as it is told. ``seed``: of its jitter and losses."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        delay: float = 0.0,
        jitter: float = 0.0,
        rate: float = 0.0,
        seed: int | None = None,
    ) -> None:
        """``delay``, ``jitter`` (seconds) and ``rate`` (bytes per second): of each direction."""
        self.host, self.port = host, port
        self.forth = Way("forth", delay, jitter, rate)
        self.back = Way("back", delay, jitter, rate)
        self.dice = random.Random(seed)
        #: See everything that passes.
        self.taps: list[Tap] = []
        #: New connections are reset.
        self.refusing = False
        #: Set while neither way is silent.
        self.both_ways = asyncio.Event()
        self.both_ways.set()
        #: Those that are open, of whatever is still connected or half of it.
        self.transports: set[asyncio.Transport] = set()
        self._connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, host, port)

    async def __aenter__(self) -> Line:
        await self.open()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.close()

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None
        host, port, *_ = self._server.sockets[0].getsockname()
        return host, port

    @property
    def url(self) -> str:
        host, port = self.address
        return f"lb://{host}:{port}"

    @property
    def connections(self) -> int:
        return len(self._connections)

    def _accept(self) -> asyncio.Protocol:
        if self.refusing:
            return _Refusal()
        connection = _Connection(self)
        self._connections.add(connection)
        connection.dial()
        return connection.near

    def forget(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    # -- faults ------------------------------------------------------------------------------------

    def black_hole(self) -> None:
        """Nothing passes, in either direction."""
        self.silence("forth", "back")

    def silence(self, *ways: Literal["forth", "back"]) -> None:
        """Nothing passes in these directions."""
        for way in (self.forth, self.back):
            way.silent = way.silent or way.name in ways
        self.both_ways.clear()

    def reset(self) -> None:
        """Every connection breaks; new ones may be made."""
        for connection in list(self._connections):
            connection.reset()

    def cut(self) -> None:
        """Every connection breaks, and new ones are refused."""
        self.refusing = True
        self.reset()

    def heal(self) -> None:
        """As if nothing had been; delay, jitter, rate and loss stay."""
        self.refusing = False
        self.forth.silent = self.back.silent = False
        self.both_ways.set()
        for connection in list(self._connections):
            connection.forth.move()
            connection.back.move()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        # A socket that is just being accepted becomes a transport in one of the next turns, and goes in
        # another.
        for _ in range(10):
            await asyncio.sleep(0)
        while self.transports:
            for transport in list(self.transports):
                reset(transport)
            await asyncio.sleep(0.001)


class _Refusal(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        reset(cast(asyncio.Transport, transport))


def reset(transport: asyncio.Transport) -> None:
    """End a connection by a TCP reset."""
    if not transport.is_closing():
        held: socket.socket | None = transport.get_extra_info("socket")
        if held is not None:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    transport.abort()

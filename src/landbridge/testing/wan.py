"""A bad network for tests, without root: lines through which TCP connections go, and what can happen to them.

    line = Line("127.0.0.1", 7420, delay=0.05)
    await line.open()                  # line.url leads to 127.0.0.1:7420, 50 ms later
    line.black_hole()                  # nothing passes, nobody is told
    line.heal()

Silence is as TCP sees it: what is sent meanwhile is held and comes when the line is healed, unless one of the
ends has given up by then. The end of a connection doesn't pass through a silent line either.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

#: Bytes of one direction of a connection under way or held, above which its sender isn't read from: enough
#: for 160 MB/s over 100 ms, and little for a test.
BUFFER = 16 << 20
#: Seconds by which what a line has lost comes late: the least retransmission timer of Linux.
RETRANSMISSION = 0.2
#: Bytes that are read from a socket at once.
_PIECE = 1 << 18
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
        #: Cleared while the way is silent: nothing passes.
        self.flows = asyncio.Event()
        self.flows.set()
        #: Bytes that have passed.
        self.passed = 0


class _Stream:
    """One direction of one connection: what is under way."""

    def __init__(
        self, line: Line, way: Way, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        self._line = line
        self._way = way
        self._source = source
        self._sink = sink
        #: (when it is due, bytes); no bytes: the sender has ended; None: its connection broke.
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        self._held = 0
        self._has_pieces, self._has_room = asyncio.Event(), asyncio.Event()

    async def run(self) -> None:
        """Until the sender has ended, and what it sent has passed."""
        await asyncio.gather(self._take(), self._give())

    async def _take(self) -> None:
        way, dice, clock = self._way, self._line.dice, asyncio.get_running_loop().time
        due = free_at = 0.0  # when the last piece is due; when there is room for the next one at the rate
        data: bytes | None = b"-"
        while data:
            try:
                data = await self._source.read(_PIECE)
            except OSError:
                data = None
            now = clock()
            free_at = max(free_at, now) + (len(data or b"") / way.rate if way.rate else 0.0)
            late = RETRANSMISSION if way.loss and dice.random() < way.loss else 0.0
            jitter = dice.uniform(0, way.jitter) if way.jitter else 0.0
            # A stream is never reordered: nothing is due before what came before it.
            due = max(due, now + way.delay + jitter + late, free_at + way.delay + late)
            self._pieces.append((due, data))
            self._has_pieces.set()
            self._held += len(data or b"")
            while self._held > BUFFER:
                self._has_room.clear()
                await self._has_room.wait()

    async def _give(self) -> None:
        way, sink, clock = self._way, self._sink, asyncio.get_running_loop().time
        while True:
            while not self._pieces:
                self._has_pieces.clear()
                await self._has_pieces.wait()
            due, data = self._pieces[0]
            if due > clock():
                await asyncio.sleep(due - clock())
            await way.flows.wait()
            self._pieces.popleft()
            if data is None:
                reset(sink.transport)
                return
            try:
                if not data:
                    if not sink.is_closing():
                        sink.write_eof()
                    return
                self._held -= len(data)
                self._has_room.set()
                way.passed += len(data)
                for tap in self._line.taps:
                    tap(way, data)
                if not sink.is_closing():
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass  # its peer is gone, which the other direction tells


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
        #: The connections through the line → their sockets: one, or both.
        self._connections: dict[asyncio.Task[Any], list[asyncio.StreamWriter]] = {}
        self._server: asyncio.Server | None = None

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = await asyncio.start_server(self._accept, host, port, limit=_PIECE)

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

    async def _accept(self, near: asyncio.StreamReader, to_near: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        sockets = self._connections[task] = [to_near]
        task.add_done_callback(self._connections.pop)
        try:
            if self.refusing:
                reset(to_near.transport)
                return
            # Opening takes both ways: a packet there and one back.
            await self.forth.flows.wait()
            await self.back.flows.wait()
            far, to_far = await asyncio.open_connection(self.host, self.port, limit=_PIECE)
            sockets.append(to_far)
            forth, back = _Stream(self, self.forth, near, to_far), _Stream(self, self.back, far, to_near)
            await asyncio.gather(forth.run(), back.run())
        except (OSError, asyncio.CancelledError):
            for writer in sockets:
                reset(writer.transport)
        finally:
            for writer in sockets:
                writer.close()
            await asyncio.gather(*(writer.wait_closed() for writer in sockets), return_exceptions=True)

    # -- faults ------------------------------------------------------------------------------------

    def black_hole(self) -> None:
        """Nothing passes, in either direction."""
        self.silence("forth", "back")

    def silence(self, *ways: Literal["forth", "back"]) -> None:
        """Nothing passes in these directions."""
        for way in (self.forth, self.back):
            if way.name in ways:
                way.flows.clear()

    def reset(self) -> None:
        """Every connection breaks; new ones may be made."""
        for task, sockets in self._connections.items():
            for writer in sockets:
                reset(writer.transport)
            task.cancel()

    def cut(self) -> None:
        """Every connection breaks, and new ones are refused."""
        self.refusing = True
        self.reset()

    def heal(self) -> None:
        """As if nothing had been; delay, jitter, rate and loss stay."""
        self.refusing = False
        self.forth.flows.set()
        self.back.flows.set()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.cut()
        # A socket that is just being accepted becomes a connection in one of the next turns.
        for _ in range(10):
            await asyncio.sleep(0)
        await asyncio.gather(*self._connections, return_exceptions=True)


def reset(transport: asyncio.WriteTransport) -> None:
    """End a connection by a TCP reset."""
    if not transport.is_closing():
        held: socket.socket | None = transport.get_extra_info("socket")
        if held is not None:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
    transport.abort()

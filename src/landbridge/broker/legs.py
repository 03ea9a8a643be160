"""A leg: a session at another node of the terminal, for what a client asks of this node and that node has, or
for what this node asks itself. It ends with what it is for, and is never made again: whoever needs another
one makes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

from landbridge.errors import BusError, Disconnected, LimitReached, NotOwner, TerminalUnreachable, from_wire
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Role, Session
from landbridge.transport.incoming import Incoming
from landbridge.transport.keepalive import keep_alive
from landbridge.transport.outgoing import Outgoing, gathering

#: Connects a protocol that the given function makes.
Dial: TypeAlias = Callable[[Callable[[], asyncio.Protocol]], Awaitable[Any]]
#: Numbers of requests from here on are the node's own; clients count from 1.
OWN_REQUESTS = 1 << 61
#: Seconds for which a node that can't be reached is dialled again, and between two tries.
DIAL_FOR, DIAL_AGAIN = 5.0, 0.1
#: Bytes waiting to be written to a node above which nothing more is read from the client.
HIGH_WATER = 4 << 20


class Leg:
    """One session at another node."""

    def __init__(
        self,
        node: str,
        hello: Callable[[], frames.Hello],
        took: Callable[[Leg, Frame, memoryview], None],
        lost: Callable[[Leg, BusError], None],
        throttled: Callable[[], None] = lambda: None,
    ) -> None:
        """``took``: gets every frame that answers no request of this node's own. ``lost``: called once, when
        the leg ends and nobody has closed it. ``throttled``: called when ``is_full`` has changed."""
        self.node = node
        self.closed = False
        #: It takes nothing more at the moment.
        self.is_full = False
        self._hello, self._took, self._lost, self._throttled = hello, took, lost, throttled
        #: What waits for the welcome, and how many bytes it is.
        self._waiting: list[tuple[Frame, tuple[bytes | memoryview, ...]]] | None = []
        self._waiting_bytes = 0
        self._asked: dict[int, asyncio.Future[tuple[Frame, memoryview]]] = {}
        self._next = OWN_REQUESTS
        self._wire: _Wire | None = None
        self._dialling: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------

    def begin(self, dial: Dial) -> None:
        self._dialling = asyncio.get_running_loop().create_task(self._dial(dial))

    async def _dial(self, dial: Dial) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + DIAL_FOR
        while True:
            wire = _Wire(self)
            try:
                await dial(lambda made=wire: made)  # type: ignore[misc]
                wire.send(self._hello())
                await wire.welcomed
            except (TerminalUnreachable, Disconnected, LimitReached, OSError) as error:
                if loop.time() >= until:
                    self._end(TerminalUnreachable(f"the node {self.node} can't be reached: {error}"))
                    return
            except BusError as error:
                self._end(error)
                return
            else:
                self._welcome(wire)
                return
            await asyncio.sleep(DIAL_AGAIN)

    def _welcome(self, wire: _Wire) -> None:
        if self.closed:
            wire.close()
            return
        self._wire = wire
        waiting, self._waiting = self._waiting or [], None
        with gathering:
            for frame, tail in waiting:
                wire.send(frame, *tail)
        self.write_ready(wire.is_full)

    def close(self, goodbye: bool = False) -> None:
        """End it. ``goodbye``: what the client holds goes back uncounted."""
        if self.closed:
            return
        self.closed = True
        if self._dialling is not None:
            self._dialling.cancel()
        if self._wire is not None:
            if goodbye:
                self._wire.send(frames.Bye())
            self._wire.close()
        self._fail(Disconnected("the leg was closed"))

    def _end(self, error: BusError) -> None:
        if not self.closed:
            self.closed = True
            self._fail(error)
            self._lost(self, error)

    def _fail(self, error: BusError) -> None:
        asked, self._asked = self._asked, {}
        for done in asked.values():
            if not done.done():
                done.set_exception(error)
                done.exception()  # whoever waits gets it; if nobody does, nothing is to be said

    # -- frames ------------------------------------------------------------------------------------

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        if self._waiting is not None:
            self._waiting.append((frame, tail))
            self._waiting_bytes += sum(map(len, tail))
            if self._waiting_bytes > HIGH_WATER:
                self.write_ready(True)
        elif self._wire is not None:
            self._wire.send(frame, *tail)

    async def ask(self, make: Callable[[int], Frame], *tail: bytes | memoryview) -> tuple[Any, memoryview]:
        """Ask something of this node's own. Returns the answer's result and tail."""
        if self.closed:
            raise Disconnected(f"the leg to the node {self.node} has ended")
        number, self._next = self._next, self._next + 1
        done = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(make(number), *tail)
            frame, answer = await done
        finally:
            self._asked.pop(number, None)
        return cast(Any, frame).result, answer

    def received(self, frame: Frame, tail: memoryview) -> None:
        request = getattr(frame, "request", 0)
        if request < OWN_REQUESTS:
            self._took(self, frame, tail)
        elif (done := self._asked.get(request)) is not None and not done.done():
            if isinstance(frame, frames.Refused):
                done.set_exception(from_wire(frame.code, frame.message, frame.hint, frame.details))
            else:
                done.set_result((frame, tail))

    def lost(self, error: BusError) -> None:
        if self._wire is not None:
            self._end(error)

    def write_ready(self, is_full: bool) -> None:
        if is_full != self.is_full:
            self.is_full = is_full
            self._throttled()

    def read(self, reading: bool) -> None:
        """Does the client take what comes?"""
        if self._wire is not None:
            self._wire.read(reading)


class _Wire(Incoming):
    """The connection of a leg."""

    def __init__(self, leg: Leg) -> None:
        super().__init__(Session(Role.CLIENT))
        self._leg = leg
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None
        self._reading = True
        self._closing: BusError | None = None
        self.is_full = False
        self.welcomed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER)
        self._outgoing = Outgoing(self._transport)
        keep_alive(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended(self._closing or Disconnected(f"the leg was lost{f': {exc}' if exc else ''}"))

    def _ended(self, error: BusError) -> None:
        self._closing = error
        self.session.close()
        if not self.welcomed.done():
            self.welcomed.set_exception(error)
            self.welcomed.exception()
        self._leg.lost(error)

    def data_received(self, data: bytes | bytearray) -> None:
        try:
            events = self.session.receive_data(data)
        except BusError as error:
            self._ended(error)
            self.close()
            return
        with gathering:
            for frame, tail in events:
                if isinstance(frame, frames.Closing):
                    self._ended(from_wire(frame.code, frame.message, frame.hint))
                    self.close()
                    return
                if isinstance(frame, frames.Welcome):
                    self.session.max_frame = max(frame.max_frame, self.session.max_frame)
                    if not self.welcomed.done():
                        self.welcomed.set_result(None)
                else:
                    self._leg.received(frame, tail)

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        if self._outgoing is not None and self._closing is None:
            self._outgoing.send(frame, *tail)

    def close(self) -> None:
        if self._outgoing is not None:
            self._outgoing.close()

    def pause_writing(self) -> None:
        self.is_full = True
        self._leg.write_ready(True)

    def resume_writing(self) -> None:
        self.is_full = False
        self._leg.write_ready(False)

    def read(self, reading: bool) -> None:
        if self._transport is None or reading == self._reading or self._closing is not None:
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


def for_client(error: BusError, node: str) -> BusError:
    """Why a client's connection ends whose leg has ended with this error."""
    if isinstance(error, Disconnected | TerminalUnreachable):
        return NotOwner(f"the node {node} has what you use and is gone: {error}")
    return error

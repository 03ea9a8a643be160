"""Frames on their way out of a connection, of either side: those of one turn of the loop leave in one system
call. A write per frame would cost more than the frame.

A frame that is sent by itself waits for the loop's next turn, in case that others follow. The turn costs a
look at every socket. Code that knows when it has sent everything puts it into ``with gathering:`` instead,
and what was sent is written at the end of the block.
"""

from __future__ import annotations

import asyncio
from threading import local

from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Session

#: Bytes that aren't kept waiting for the end of the turn.
ENOUGH = 64 << 10


class Gathering(local):
    """The connections of a thread's loop that write when the outermost block ends."""

    def __init__(self) -> None:
        self.depth = 0
        self.waiting: list[Outgoing] = []

    def __enter__(self) -> None:
        self.depth += 1

    def __exit__(self, *_: object) -> None:
        self.depth -= 1
        if not self.depth and self.waiting:
            waiting, self.waiting = self.waiting, []
            for outgoing in waiting:
                outgoing.flush_soon()


gathering = Gathering()


class Outgoing:
    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._buffers: list[bytes | memoryview] = []
        self._size = 0
        self._soon = False

    def send(self, frame: Frame, *tail: bytes | memoryview) -> None:
        buffers = Session.send(frame, *tail)
        self._buffers += buffers
        self._size += sum(map(len, buffers))
        if self._size >= ENOUGH:
            self.flush()
        elif not self._soon:
            self._soon = True
            if gathering.depth:
                gathering.waiting.append(self)
            else:
                self._loop.call_soon(self.flush_soon)

    def send_now(self, frame: Frame, *tail: bytes | memoryview) -> None:
        """Send a frame that no other one follows in this turn, as far as the caller knows."""
        self._buffers += Session.send(frame, *tail)
        self.flush()

    def flush_soon(self) -> None:
        """The moment has come that what was sent has waited for."""
        self._soon = False
        self.flush()

    def flush(self) -> None:
        """Write what was sent."""
        buffers, self._buffers, self._size = self._buffers, [], 0
        if buffers and not self._transport.is_closing():  # else it was lost meanwhile
            if len(buffers) == 1:
                self._transport.write(buffers[0])
            else:
                self._transport.writelines(buffers)

    def close(self) -> None:
        """Write what is left, then close."""
        self.flush()
        self._transport.close()

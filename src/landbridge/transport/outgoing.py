"""Frames on their way out of a connection, of either side: those of one turn of the loop leave in one system
call. A write per frame would cost more than the frame."""

from __future__ import annotations

import asyncio

from landbridge.protocol.frames import Frame
from landbridge.protocol.session import Session

#: Bytes that aren't kept waiting for the end of the turn.
ENOUGH = 64 << 10


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
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._soon = False
        self.flush()

    def flush(self) -> None:
        buffers, self._buffers, self._size = self._buffers, [], 0
        if buffers and not self._transport.is_closing():  # else it was lost meanwhile
            self._transport.writelines(buffers)

    def close(self) -> None:
        """Write what is left, then close."""
        self.flush()
        self._transport.close()

"""A link inside one process: two asyncio protocols joined back to back, with the same bytes, the same back
pressure and the same order as over a socket."""

from __future__ import annotations

import asyncio
from typing import Any


class MemoryTransport(asyncio.Transport):
    """One end. What is written to it is received by the peer's protocol in the loop's next turn."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self._peer: MemoryTransport
        #: Written by the peer, not yet received here.
        self._inbox: list[bytes] = []
        self._waiting = 0
        self._high = 1 << 20
        self._peer_paused = False
        self._reading = True
        self._closing = False
        self._scheduled = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        peer = self._peer
        if self._closing or peer._closing:
            return
        peer._inbox.append(bytes(data))
        peer._waiting += len(data)
        peer._schedule()
        if peer._waiting > self._high and not peer._peer_paused:
            peer._peer_paused = True
            self._protocol.pause_writing()

    def _schedule(self) -> None:
        if not self._scheduled and self._reading:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._receive)

    def _receive(self) -> None:
        self._scheduled = False
        if self._closing or not self._reading or not self._inbox:
            return
        data = b"".join(self._inbox)
        self._inbox.clear()
        self._waiting = 0
        if self._peer_paused:
            self._peer_paused = False
            self._peer._protocol.resume_writing()
        self._protocol.data_received(data)

    def close(self) -> None:
        if self._closing:
            return
        peer = self._peer
        if peer._reading and peer._inbox:  # what was written before the close still arrives
            peer._receive()
        loop = asyncio.get_running_loop()
        for end in (self, peer):
            if not end._closing:
                end._closing = True
                loop.call_soon(end._protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        if self._inbox:
            self._schedule()

    def is_reading(self) -> bool:
        return self._reading

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is not None:
            self._high = high

    def get_write_buffer_size(self) -> int:
        return self._peer._waiting

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


def join(one: asyncio.Protocol, other: asyncio.Protocol) -> MemoryTransport:
    """Connect two protocols. Returns the first one's transport."""
    here, there = MemoryTransport(one), MemoryTransport(other)
    here._peer, there._peer = there, here
    other.connection_made(there)
    one.connection_made(here)
    return here

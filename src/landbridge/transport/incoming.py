"""Bytes on their way into a connection, of either side. A large frame is read into memory of its own, where
it stays: its batch is a view of what the kernel wrote, and the only copy is the kernel's."""

from __future__ import annotations

import asyncio
from threading import local

from landbridge.protocol.session import Session

#: Bytes read at once where no large frame is under way.
AT_ONCE = 64 << 10


class _Scratch(local):
    """For what is taken out of it at once, so one per thread will do."""

    def __init__(self) -> None:
        self.room = memoryview(bytearray(AT_ONCE))


_scratch = _Scratch()


class Incoming(asyncio.Protocol, asyncio.BufferedProtocol):
    """A protocol whose ``data_received`` gives to a session what it gets. asyncio's own transports write into
    the buffers; those of uvloop call that method for every asyncio.Protocol, and were measured to take no
    more time (it reads into memory that is touched already); those within a process know only that method."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def data_received(self, data: bytes | bytearray) -> None:
        """For each kind of connection to say: what it does with frames, and with a peer that sends none."""
        raise NotImplementedError

    def get_buffer(self, sizehint: int) -> memoryview:
        room = self.session.room()
        return _scratch.room if room is None else room

    def buffer_updated(self, nbytes: int) -> None:
        if self.session.filling:
            frame = self.session.filled(nbytes)
            if frame is not None:
                self.data_received(frame)
        else:
            self.data_received(bytes(_scratch.room[:nbytes]))

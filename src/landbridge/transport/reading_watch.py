"""Looks whether a peer reads: one that doesn't would hold what answers it for ever, whatever becomes of its
token."""

from __future__ import annotations

import asyncio

#: Seconds in which a peer has to take some of what waits for it.
READ_WITHIN = 60.0


class ReadingWatch:
    """Of one connection. It is cut where its peer takes nothing."""

    def __init__(self) -> None:
        self._look: asyncio.TimerHandle | None = None

    def begin(self, transport: asyncio.Transport) -> None:
        """More waits for the peer than may: it has to read."""
        waiting = transport.get_write_buffer_size()
        self._look = asyncio.get_running_loop().call_later(READ_WITHIN, self._check, transport, waiting)

    def _check(self, transport: asyncio.Transport, waiting: int) -> None:
        if transport.get_write_buffer_size() < waiting:
            self.begin(transport)
        else:
            transport.abort()

    def end(self) -> None:
        """It has read, or the connection is over."""
        if self._look is not None:
            self._look.cancel()
            self._look = None

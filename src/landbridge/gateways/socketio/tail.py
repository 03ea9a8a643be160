"""The end of a topic's log, as the clients of one token follow it: they share what is read and waited for.

Only clients that show the same token share, so nobody gets what the terminal would not give to the client's
own token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from landbridge.client.bus import Bus
from landbridge.client.fetch import Stretch
from landbridge.protocol import operations as table

T = TypeVar("T")

#: Bytes of the log that are read at a time, and seconds that one wait for more takes.
AT_ONCE, WITHIN = 128 << 10, 30.0


class LogTail:
    """Reads one topic's log over one connection to the terminal."""

    def __init__(self, bus: Bus, topic: str) -> None:
        self._bus = bus
        self._topic = topic
        #: Reads under way, by their offset.
        self._reads: dict[int, asyncio.Task[Stretch]] = {}
        #: Waits under way, by the offset that they wait for. Who follows the log of a topic that was made
        #: anew meanwhile waits for another one than who follows the new log.
        self._waits: dict[int, asyncio.Task[Any]] = {}

    async def read(self, offset: int) -> Stretch:
        """Batches of the log from an offset; none at its end."""
        found = self._reads.get(offset)
        if found is None:
            found = self._reads[offset] = _begun(self._bus.fetch(self._topic, offset, AT_ONCE))
            found.add_done_callback(lambda _: self._reads.pop(offset, None))
        return await asyncio.shield(found)

    async def grown(self, offset: int) -> None:
        """Wait until the log has this offset, or for a while."""
        found = self._waits.get(offset)
        if found is None:
            call = self._bus.call(table.TOPIC_WAIT.name, offsets={self._topic: offset}, within=WITHIN)
            found = self._waits[offset] = _begun(call)
            found.add_done_callback(lambda _: self._waits.pop(offset, None))
        await asyncio.shield(found)


def _begun(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    task = asyncio.ensure_future(work)
    # Where every client has left, nobody asks for the error.
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return task


#: By connection, and by topic. A tail goes with its connection.
_TAILS: WeakKeyDictionary[Bus, dict[str, LogTail]] = WeakKeyDictionary()
#: Topics whose tails one connection keeps.
MOST_TAILS = 1000


def tail_of(bus: Bus, topic: str) -> LogTail:
    """The tail of a topic, which is shared by those who use this connection."""
    tails = _TAILS.setdefault(bus, {})
    if topic not in tails and len(tails) >= MOST_TAILS:
        tails.clear()  # who uses one of these keeps it, and shares it no more
    return tails.setdefault(topic, LogTail(bus, topic))

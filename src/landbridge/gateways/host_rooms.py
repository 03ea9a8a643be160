"""How many requests are under way: of all hosts, and fewer of one, so that a host that is slow takes only its
own part."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit
from weakref import WeakValueDictionary


class HostRooms:
    """Room for requests. ``most``: under way at once; ``most_of_one``: of them, to one host."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most_of_one = most_of_one
        self._room = asyncio.Semaphore(most)
        #: By host, while somebody waits or is under way there.
        self._of_hosts: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, url: str) -> AsyncIterator[None]:
        """Wait for room, and have it in the block."""
        host = urlsplit(url).hostname or ""
        # The local name keeps it alive, and with it the count.
        of_host = self._of_hosts.setdefault(host, asyncio.Semaphore(self._most_of_one))
        # First the host's: whoever waits for a slow host must not hold the room of others meanwhile.
        async with of_host, self._room:
            yield

"""How many requests are under way: of all hosts, and fewer of one. Hosts that are slow take only their part.

Half of the room is for hosts whose last request was quick, and the others wait for the other half. Among
those that may begin, the host that has had the least of the room lately is next. So receivers that take long
and never fail, however many, don't hold up those that are quick.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

#: Seconds within which a request of a quick host has its answer.
QUICK = 2.0
#: Hosts that are remembered as quick.
MOST_REMEMBERED = 10_000


class HostRooms:
    """Room for requests. ``most``: under way at once; ``most_of_one``: of them, to one host."""

    def __init__(self, most: int, most_of_one: int, clock: Callable[[], float] | None = None) -> None:
        self._most, self._most_of_one = most, most_of_one
        #: Requests under way to hosts that are not known to be quick, at most.
        self._most_unproven = max(1, most // 2)
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        #: Requests under way: all, those to hosts that were not known to be quick, and by host.
        self._under_way = self._unproven = 0
        self._of_hosts: dict[str, int] = {}
        #: Who waits, by host, in the order of arrival. A host that nobody waits for is not there.
        self._waiting: dict[str, deque[asyncio.Future[bool]]] = {}
        #: Hosts whose last request was quick; whoever was so the longest time ago is first.
        self._quick: dict[str, None] = {}
        #: The virtual time: where the request that began last began. And where the next one of each host
        #: begins: behind all the seconds that it has had, and not before now. Empty while nobody waits.
        self._now = 0.0
        self._next: dict[str, float] = {}

    @asynccontextmanager
    async def taken(self, url: str) -> AsyncIterator[None]:
        """Wait for room, and have it in the block."""
        host = urlsplit(url).hostname or ""
        is_proven = await self._enter(host)
        begun_at = self._clock()
        try:
            yield
        finally:
            self._leave(host, is_proven, self._clock() - begun_at)

    async def _enter(self, host: str) -> bool:
        """Wait for room. Returns whether the host was known to be quick when it got it."""
        if host not in self._waiting and self._may_begin(host):
            return self._begin(host)
        self._next[host] = max(self._now, self._next.get(host, 0.0))
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(host, deque()).append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had the room already
                self._free(host, turn.result())
            raise

    def _may_begin(self, host: str) -> bool:
        has_room = self._under_way < self._most and self._of_hosts.get(host, 0) < self._most_of_one
        return has_room and (host in self._quick or self._unproven < self._most_unproven)

    def _begin(self, host: str) -> bool:
        is_proven = host in self._quick
        self._under_way += 1
        self._unproven += not is_proven
        self._of_hosts[host] = self._of_hosts.get(host, 0) + 1
        self._now = max(self._now, self._next.get(host, 0.0))
        return is_proven

    def _leave(self, host: str, is_proven: bool, took: float) -> None:
        self._quick.pop(host, None)
        if took < QUICK:
            self._quick[host] = None
            if len(self._quick) > MOST_REMEMBERED:
                del self._quick[next(iter(self._quick))]
        self._next[host] = max(self._now, self._next.get(host, 0.0)) + took
        self._free(host, is_proven)

    def _free(self, host: str, is_proven: bool) -> None:
        self._under_way -= 1
        self._unproven -= not is_proven
        self._of_hosts[host] -= 1
        if not self._of_hosts[host]:
            del self._of_hosts[host]
        self._pass_on()

    def _pass_on(self) -> None:
        """Let those begin for whom there is room."""
        while self._waiting:
            ready = [each for each in self._waiting if self._may_begin(each)]
            if not ready:
                return
            host = min(ready, key=self._next.__getitem__)
            turn = self._waiting[host].popleft()
            if not self._waiting[host]:
                del self._waiting[host]
            if not turn.cancelled():
                turn.set_result(self._begin(host))
        self._next.clear()

"""A thread whose time is shared evenly by those who use it.

Whoever has had the least of it lately is next (start-time fair queueing). So whoever comes seldom waits for
the one that is at work at most, however much the others want.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class FairThread:
    """One thread, and who waits for it."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._is_busy = False
        #: Who waits: the virtual time of its beginning, a number for the order of arrival, and what is set.
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._arrivals = 0
        #: The virtual time: where the work that began last began. And of each user where its next one begins,
        #: which is behind all that it has had; empty while nobody waits.
        self._now = 0.0
        self._next: dict[str, float] = {}

    async def run(self, user: str, work: Callable[[], T]) -> T:
        """Do some work in the thread when it is this user's turn."""
        begin = max(self._now, self._next.get(user, 0.0))
        if self._is_busy:
            await self._turn(begin)
        self._is_busy, self._now = True, max(self._now, begin)
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            return await loop.run_in_executor(self._pool, work)
        finally:
            self._next[user] = begin + loop.time() - started
            self._pass_on()

    async def _turn(self, begin: float) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._arrivals += 1
        heapq.heappush(self._waiting, (begin, self._arrivals, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was this user's turn already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Let the next one begin."""
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_busy = False
        self._next.clear()

    def close(self) -> None:
        """Begin nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

"""A thread whose time is shared evenly by those who use it.

Whoever has had the least of it lately is next (start-time fair queueing). So whoever comes seldom waits for
the one that is at work at most, however much the others want.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class FairThread:
    """One thread, and who waits for it."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, name)
        self._is_busy = False
        #: What each user waits for, in the order of arrival. A user that waits for nothing is not there.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        #: The virtual time: where the work that began last began. And where the next work of each user
        #: begins: behind all that it has had, and not before now. Empty while nobody waits.
        self._now = 0.0
        self._next: dict[str, float] = {}

    async def run(self, user: str, work: Callable[[], T]) -> T:
        """Do some work in the thread when it is this user's turn."""
        if self._is_busy:
            await self._turn(user)
        self._is_busy = True
        begin = self._now = max(self._now, self._next.get(user, 0.0))
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            return await loop.run_in_executor(self._pool, work)
        finally:
            self._next[user] = begin + loop.time() - started
            self._pass_on()

    async def _turn(self, user: str) -> None:
        self._next[user] = max(self._now, self._next.get(user, 0.0))
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was this user's turn already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Let the next one begin."""
        while self._waiting:
            user = min(self._waiting, key=self._next.__getitem__)
            turn = self._waiting[user].popleft()
            if not self._waiting[user]:
                del self._waiting[user]
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._is_busy = False
        self._next.clear()

    def close(self) -> None:
        """Begin nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

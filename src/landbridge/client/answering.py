"""The requests that a service's handler answers: at most so many at a time, the others wait their turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from landbridge.client.replies import RequestMessage


class RequestDesk:
    """Gives requests to a handler."""

    def __init__(self, concurrency: int, answer: Callable[[RequestMessage], Awaitable[None]]) -> None:
        """``answer`` answers one request, and raises nothing but a cancellation."""
        self._free = concurrency
        self._answer = answer
        self._waiting: deque[RequestMessage] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def take(self, request: RequestMessage) -> None:
        """A request has come."""
        if self._closed:
            return  # the subscription is about to end, and then the terminal gives it to another consumer
        self._waiting.append(request)
        if self._free:
            self._free -= 1
            task = asyncio.ensure_future(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Answer requests until none waits. A task for many of them: under load, none is made per request."""
        try:
            while self._waiting and not self._closed:
                request = self._waiting.popleft()
                if not request.is_late:  # else its caller has given up
                    await self._answer(request)
        finally:
            self._free += 1

    async def close(self, grace: float) -> None:
        """Let the handlers at work finish, within so many seconds. Requests that wait are not begun."""
        self._closed = True
        self._waiting.clear()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in list(self._tasks):
            task.cancel()

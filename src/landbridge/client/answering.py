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
        #: A task was made that has not begun.
        self._is_starting = False
        self._closed = False

    def take(self, request: RequestMessage) -> None:
        """A request has come."""
        if self._closed:
            return  # the subscription is about to end, and then the terminal gives it to another consumer
        self._waiting.append(request)
        if self._free and not self._is_starting:
            self._start()

    def _start(self) -> None:
        self._free -= 1
        self._is_starting = True
        task = asyncio.ensure_future(self._work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Answer requests until none waits. Before a handler begins, the task for the next request is made,
        in case the handler has to wait for something. Handlers that don't are all called by one task: under
        load, none is made per request."""
        self._is_starting = False
        try:
            while self._waiting and not self._closed:
                request = self._waiting.popleft()
                if self._waiting and self._free and not self._is_starting:
                    self._start()
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

"""Waiting for what will happen, without saying how long it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

#: Seconds after which a test that waits has failed. Never the time that anything should take.
LIMIT = 60.0


async def eventually(holds: Callable[..., Any], what: str = "") -> None:
    """Let the loop run until ``holds()`` is true."""
    end = asyncio.get_running_loop().time() + LIMIT
    while not holds():
        if asyncio.get_running_loop().time() > end:
            raise AssertionError(f"this never came true: {what or holds}")
        await asyncio.sleep(0.001)


async def until(holds: Callable[[], Awaitable[Any]]) -> None:
    """Ask again and again, for what has to be awaited, until the answer is true."""
    async with asyncio.timeout(LIMIT):
        while not await holds():
            await asyncio.sleep(0.01)


async def promised(
    measure: Callable[[], Awaitable[float]], within: float, again: Callable[[], Awaitable[None]]
) -> None:
    """Measure up to three times, until it took less than ``within`` seconds: a busy machine makes one attempt
    slow, a broken promise every one. ``again`` prepares the next attempt."""
    took = [await measure()]
    while took[-1] >= within and len(took) < 3:
        await again()
        took.append(await measure())
    assert min(took) < within, f"took {', '.join(f'{one:.1f}' for one in took)} s instead of {within:.0f} s"


async def turns(count: int = 20) -> None:
    """Let the loop go round: for things that must not happen although they could have by now."""
    for _ in range(count):
        await asyncio.sleep(0)


class Reader:
    """A subscription read by hand. Leaving the block closes it."""

    def __init__(self, subscription: Any, *, batches: bool = False) -> None:
        self.subscription = subscription
        self._items = subscription.batches() if batches else aiter(subscription)

    async def __aenter__(self) -> Reader:
        await self.subscription.open()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.subscription.close()
        await self._items.aclose()

    async def next(self) -> Any:
        async with asyncio.timeout(LIMIT):
            return await anext(self._items)

    async def take(self, count: int) -> list[Any]:
        return [await self.next() for _ in range(count)]

    async def payloads(self, count: int, *, ack: bool = True) -> list[bytes]:
        payloads = []
        for _ in range(count):
            message = await self.next()
            payloads.append(message.payload)
            if ack:
                await message.ack()
        return payloads

"""The ways to reach a terminal, all with the same asynchronous surface, so that one suite runs over them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import landbridge
import landbridge.sync
from landbridge.broker.server import Terminal
from landbridge.client.nouns import Noun
from landbridge.testing import attach

_END = object()


class Threaded:
    """The synchronous façade behind ``await``: each call runs in a thread."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if isinstance(found, Noun):
            return Threaded(found)
        if not callable(found) or name in ("json", "text"):
            return found

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(found, *args, **options)

        return call

    def __len__(self) -> int:
        return len(self._inner)

    def __iter__(self) -> Any:
        return map(Threaded, self._inner)

    async def __aenter__(self) -> Any:
        await asyncio.to_thread(self._inner.__enter__)
        return self

    async def __aexit__(self, *error: Any) -> None:
        await asyncio.to_thread(self._inner.__exit__, *error)


class ThreadedSubscription(Threaded):
    def __aiter__(self) -> AsyncIterator[Any]:
        return self._each(lambda: iter(self._inner))

    def batches(self) -> AsyncIterator[Any]:
        return self._each(self._inner.batches)

    async def poll(self, timeout: float | None = None) -> Any:
        found = await asyncio.to_thread(self._inner.poll, timeout)
        return None if found is None else Threaded(found)

    async def poll_batch(self, timeout: float | None = None) -> Any:
        found = await asyncio.to_thread(self._inner.poll_batch, timeout)
        return None if found is None else Threaded(found)

    async def _each(self, begin: Callable[[], Any]) -> AsyncIterator[Any]:
        items = begin()
        try:
            while (item := await asyncio.to_thread(next, items, _END)) is not _END:
                yield Threaded(item)
        finally:
            await asyncio.to_thread(self._inner.close)


class ThreadedTransaction(Threaded):
    async def ack(self, message: Threaded) -> None:
        await asyncio.to_thread(self._inner.ack, message._inner)


class ThreadedBus(Threaded):
    def publisher(self, topic: str) -> Any:
        return Threaded(self._inner.publisher(topic))

    def subscribe(self, topic: Any = None, **options: Any) -> Any:
        return ThreadedSubscription(self._inner.subscribe(topic, **options))

    def transaction(self, **options: Any) -> Any:
        return ThreadedTransaction(self._inner.transaction(**options))


class Way:
    """How a test's clients get to its terminal."""

    def __init__(self, name: str) -> None:
        self.name = name

    @asynccontextmanager
    async def connect(
        self,
        terminal: Terminal,
        *,
        subject: str = "test",
        scopes: list[str] | None = None,
        life: float = 3600.0,
        patience: float = 5.0,
    ) -> AsyncIterator[Any]:
        scopes = ["admin"] if scopes is None else scopes
        if self.name == "memory":
            async with attach(
                terminal, subject=subject, scopes=scopes, life=life, patience=patience
            ) as memory_bus:
                yield memory_bus
            return
        token = terminal.issue_token(subject, scopes, life)
        if self.name == "tcp":
            async with landbridge.connect(
                terminal.url, token=token, name=subject, patience=patience
            ) as tcp_bus:
                yield tcp_bus
            return
        bus = await asyncio.to_thread(
            landbridge.sync.connect, terminal.url, token=token, name=subject, patience=patience
        )
        async with ThreadedBus(bus) as threaded:
            yield threaded


WAYS = [Way("memory"), Way("tcp"), Way("sync")]

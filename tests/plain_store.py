"""A store with plain methods, for tests that read better without ``await``: its event loop is in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from threading import Thread
from typing import TypeVar

from landbridge.broker.log import Log
from landbridge.core.log.store import Bounds, LogBounds, Store, StoredBatch, Write
from landbridge.testing.plain import at_once

T = TypeVar("T")


def bounds_of(store: Store, log: Log) -> LogBounds:
    """What a store in memory knows of a log."""
    return at_once(store.logs(log.number % store.units))[log.number]


class PlainStore:
    """Unit 0 of a store. It claims the unit when it is opened."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._epoch = 0
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __del__(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Awaitable[T]) -> T:
        async def main() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(main(), self._loop).result()

    def open(self) -> None:
        self._run(self.store.open())
        self._epoch = self._run(self.store.claim(0))

    def commit(self, writes: Sequence[Write]) -> Bounds:
        async def main() -> Bounds:  # a driver may want the running loop before the first await
            return await self.store.commit(0, self._epoch, writes)

        return self._run(main())

    def logs(self) -> dict[int, LogBounds]:
        return self._run(self.store.logs(0))

    def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        return self._run(self.store.read(log, offset, max_bytes))

    def seek_time(self, log: int, time: int) -> int:
        return self._run(self.store.seek_time(log, time))

    def ledger(self, log: int, producer: bytes) -> bytes | None:
        return self._run(self.store.ledger(log, producer))

    def documents(self, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        return self._run(self.store.documents(0, kind, prefix))

    def check(self) -> list[str]:
        return self._run(self.store.check())

    def close(self) -> None:
        self._run(self.store.close())

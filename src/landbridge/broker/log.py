"""A log as the terminal sees it: its bounds, and those of its batches that are in memory.

New batches are kept as they are committed, so consumers that keep up never cause a read; the others share
what is read ahead for them. One cache for all logs, bounded in bytes, least recently used goes first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from landbridge.core.log import record
from landbridge.core.log.batch import Batch
from landbridge.core.log.store import LogBounds, Store, StoredBatch
from landbridge.errors import BadFrame, BusError, StoreCorrupt

#: Bytes per read of a consumer that is behind.
READ_AHEAD = 2 << 20


class Cache:
    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[tuple[int, int], Log] = OrderedDict()
        self.size = 0

    def put(self, log: Log, first: int, batch: Batch) -> None:
        if first in log.batches:
            return
        log.batches[first] = batch
        insort(log.firsts, first)
        self._held[log.number, first] = log
        self.size += batch.size
        # The newest stays even if it alone is above the bound: somebody is about to read it.
        while self.size > self._most and len(self._held) > 1:
            (_, oldest), owner = self._held.popitem(last=False)
            self._forget(owner, oldest)

    def touch(self, log: Log, first: int) -> None:
        self._held.move_to_end((log.number, first))

    def drop(self, log: Log, before: int | None = None) -> None:
        for first in [first for first in log.firsts if before is None or first < before]:
            if before is None or first + len(log.batches[first]) <= before:
                del self._held[log.number, first]
                self._forget(log, first)

    def _forget(self, log: Log, first: int) -> None:
        self.size -= log.batches.pop(first).size
        log.firsts.pop(bisect_right(log.firsts, first) - 1)


class Log:
    def __init__(
        self, number: int, bounds: LogBounds, store: Store, cache: Cache, reader: ThreadPoolExecutor
    ) -> None:
        self.number = number
        self.first, self.end = bounds.first, bounds.end
        #: Bytes stored.
        self.bytes = bounds.bytes
        #: Time of the newest append.
        self.time = bounds.time
        self._store, self._cache, self._reader = store, cache, reader
        #: first offset → batch, and the first offsets, sorted. Filled and emptied by the cache.
        self.batches: dict[int, Batch] = {}
        self.firsts: list[int] = []
        #: Who waits for a read that is under way.
        self._waiting: list[Callable[[BusError | None], None]] | None = None
        #: Who waits for the log to grow.
        self._growth: list[asyncio.Future[None]] = []

    def extend(self, first: int, batch: Batch, size: int, time: int) -> None:
        self.end = first + len(batch)
        self.bytes += size
        self.time = max(self.time, time)
        self._cache.put(self, first, batch)
        if self._growth:
            growth, self._growth = self._growth, []
            for waiter in growth:
                if not waiter.done():
                    waiter.set_result(None)

    def growth(self) -> asyncio.Future[None]:
        """Done with the next append. Whoever waits no longer cancels it."""
        self._growth = [waiter for waiter in self._growth if not waiter.done()]
        self._growth.append(asyncio.get_running_loop().create_future())
        return self._growth[-1]

    def trim(self, first: int, bytes: int) -> None:
        """Everything below is gone; what is left has so many bytes."""
        self.first, self.bytes = first, bytes
        self._cache.drop(self, first)

    def forget(self) -> None:
        self._cache.drop(self)

    def batch_at(self, offset: int) -> tuple[int, Batch] | None:
        """The batch that holds an offset, if it is in memory."""
        index = bisect_right(self.firsts, offset) - 1
        if index < 0:
            return None
        first = self.firsts[index]
        batch = self.batches[first]
        if offset >= first + len(batch):
            return None
        self._cache.touch(self, first)
        return first, batch

    def load(self, offset: int, then: Callable[[BusError | None], None]) -> None:
        """Read from an offset on in the background, then call. One read at a time; a caller that comes
        while one is under way looks again after it."""
        if self._waiting is not None:
            self._waiting.append(then)
            return
        self._waiting = [then]
        loop = asyncio.get_running_loop()
        read = loop.run_in_executor(self._reader, self._store.read, self.number, offset, READ_AHEAD)
        read.add_done_callback(self._loaded)

    def _loaded(self, read: asyncio.Future[list[StoredBatch]]) -> None:
        waiting, self._waiting = self._waiting or [], None
        error: BusError | None = None
        if read.cancelled():
            return
        failure = read.exception()
        if failure is None:
            try:
                # Oldest last: it is needed first, so it should be evicted last.
                for stored in reversed(read.result()):
                    self._cache.put(self, stored.first, record.unwrap(stored.data))
            except BusError as broken:
                error = StoreCorrupt(f"log {self.number} holds a batch that doesn't decode: {broken}")
        elif isinstance(failure, BusError):
            error = failure
        else:
            raise failure
        for then in waiting:
            then(error)

    async def read(self, offset: int) -> tuple[int, Batch] | None:
        """The batch that holds an offset, or the first one after it; None at the end of the log."""
        while offset < self.end:
            found = self.batch_at(offset)
            if found is not None:
                return found
            if self.firsts and (offset < self.first):
                offset = self.first
                continue
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

            def finish(error: BusError | None, done: asyncio.Future[None] = done) -> None:
                if done.done():
                    return
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

            self.load(offset, finish)
            await done
        return None

    async def fetch(self, offset: int, max_bytes: int) -> list[tuple[int, Batch]]:
        """Consecutive batches from the one that holds an offset, or the first one after it; at least one,
        unless the log ends there. What is not in memory is read past the cache: a bulk read of old messages
        must not push out what the consumers are about to take."""
        offset = max(offset, self.first)
        found: list[tuple[int, Batch]] = []
        size, at = 0, offset
        while at < self.end and (held := self.batch_at(at)) is not None:
            first, batch = held
            size += batch.size
            if found and size > max_bytes:
                return found
            found.append((first, batch))
            at = first + len(batch)
        if found or offset >= self.end:
            return found
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._fetch, offset, max_bytes)

    def _fetch(self, offset: int, max_bytes: int) -> list[tuple[int, Batch]]:
        try:
            stored = self._store.read(self.number, offset, max_bytes)
            return [(each.first, record.unwrap(each.data)) for each in stored]
        except BadFrame as broken:
            raise StoreCorrupt(f"log {self.number} holds a batch that doesn't decode: {broken}") from None

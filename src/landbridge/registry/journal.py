"""The journal: the one way to the disk. What waits while a commit is on its way goes into the next one, and
all of it is answered after that: a thousand tickets cost a few fsyncs, and the event loop waits for none of
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from landbridge.core.log.store import DropLog, Store, StoredBatch, Write
from landbridge.errors import BusError, ShuttingDown, StoreFailed
from landbridge.registry.audit import Event, Tail


@dataclass(frozen=True, slots=True)
class _Entry:
    log: int
    event: Event
    writes: Sequence[Write]
    #: Called when it is stored, before the writer is answered: memory follows the disk even where the one who
    #: asked has gone away.
    after: Callable[[], None] | None
    done: asyncio.Future[None]


class Journal:
    def __init__(self, store: Store, *, keep: int) -> None:
        self._store = store
        self._keep = keep
        #: Number → its end. One that has no event yet has no entry.
        self._tails: dict[int, Tail] = {}
        self._waiting: list[_Entry] = []
        self._writing: asyncio.Task[None] | None = None
        self._closed = False
        # The Store allows one writer beside one reader: a thread each.
        self._writer = ThreadPoolExecutor(1, "landbridge-registry-writer")
        self._reader = ThreadPoolExecutor(1, "landbridge-registry-reader")

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        bounds = await loop.run_in_executor(self._reader, self._store.logs)
        self._tails = {number: Tail(number, self._keep, known) for number, known in bounds.items()}

    async def write(
        self, log: int, event: Event, writes: Sequence[Write] = (), after: Callable[[], None] | None = None
    ) -> None:
        """An audit event and the change that it tells of, in one commit. Returns when it is stored; raises
        StoreFailure, with nothing changed, when it isn't."""
        if self._closed:
            raise ShuttingDown("the registry is shutting down")
        done = asyncio.get_running_loop().create_future()
        self._waiting.append(_Entry(log, event, writes, after, done))
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_all())
        await done

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._reader, self._store.read, log, offset, max_bytes)

    async def close(self) -> None:
        self._closed = True
        if self._writing is not None:
            await self._writing
        self._writer.shutdown(wait=False)
        self._reader.shutdown(wait=False)

    async def _write_all(self) -> None:
        while self._waiting:
            entries, self._waiting = self._waiting, []
            error = await self._commit(entries)
            for entry in entries:
                if error is None and entry.after is not None:
                    entry.after()
                if entry.done.cancelled():
                    continue
                if error is None:
                    entry.done.set_result(None)
                else:
                    entry.done.set_exception(error)
        self._writing = None

    async def _commit(self, entries: list[_Entry]) -> BusError | None:
        events: dict[int, list[Event]] = {}
        for entry in entries:
            events.setdefault(entry.log, []).append(entry.event)
        changes = [write for entry in entries for write in entry.writes]
        dropped = {write.log for write in changes if isinstance(write, DropLog)}
        tails = {log: self._tails.get(log) or Tail(log, self._keep) for log in events if log not in dropped}
        appends = {log: tail.append(events[log][-1].time, events[log]) for log, tail in tails.items()}
        writes = [write for group in appends.values() for write in group] + changes
        try:
            await asyncio.get_running_loop().run_in_executor(self._writer, self._store.commit, writes)
        except BusError as error:
            return error
        except Exception as error:
            return StoreFailed(f"the store broke: {type(error).__name__}")
        for log, tail in tails.items():
            tail.stored(appends[log])
            self._tails[log] = tail
        for log in dropped:
            self._tails.pop(log, None)
        return None

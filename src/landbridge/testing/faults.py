"""Faults as small classes, not patches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from landbridge.core.log.store import Bounds, LogBounds, Store, StoredBatch, Write
from landbridge.errors import BusError, StoreFull


class FaultyStore:
    """A store whose commits fail or wait when told to, and whose reads wait when told to.

    fail_on: numbers of commits (from 1) that raise ``error`` and store nothing."""

    def __init__(self, store: Store, *, fail_on: Iterable[int] = (), error: BusError | None = None) -> None:
        self._store = store
        self.units = store.units
        self.fail_on = set(fail_on)
        self.error = error or StoreFull("no room (as told)")
        self.failing = False
        self.commits = 0
        #: Cleared: commits wait until it is set; likewise the reads.
        self.gate = asyncio.Event()
        self.gate.set()
        self.read_gate = asyncio.Event()
        self.read_gate.set()

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        await self.gate.wait()
        self.commits += 1
        if self.failing or self.commits in self.fail_on:
            raise self.error
        return await self._store.commit(unit, epoch, writes)

    async def open(self) -> None:
        await self._store.open()

    async def claim(self, unit: int) -> int:
        return await self._store.claim(unit)

    async def logs(self, unit: int) -> dict[int, LogBounds]:
        await self.read_gate.wait()
        return await self._store.logs(unit)

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        await self.read_gate.wait()
        return await self._store.read(log, offset, max_bytes)

    async def seek_time(self, log: int, time: int) -> int:
        await self.read_gate.wait()
        return await self._store.seek_time(log, time)

    async def ledger(self, log: int, producer: bytes) -> bytes | None:
        await self.read_gate.wait()
        return await self._store.ledger(log, producer)

    async def documents(self, unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        await self.read_gate.wait()
        return await self._store.documents(unit, kind, prefix)

    async def check(self) -> list[str]:
        return await self._store.check()

    async def close(self) -> None:
        await self._store.close()

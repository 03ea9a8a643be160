"""Faults as small classes, not patches."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from landbridge.core.log.store import Append, Bounds, Copy, LogBounds, Store, StoredBatch, Write
from landbridge.errors import BusError, StoreFull


class FaultyStore:
    """A store whose commits fail or wait when told to, and whose reads wait when told to.

    fail_on: numbers of commits (from 1) that raise ``error`` and store nothing.
    full: commits with batches raise StoreFull, the others go through; ``is_low`` says so in advance, unless
    ``full_by_surprise``."""

    def __init__(self, store: Store, *, fail_on: Iterable[int] = (), error: BusError | None = None) -> None:
        self._store = store
        self.units = store.units
        self.fail_on = set(fail_on)
        self.error = error or StoreFull("no room (as told)")
        self.failing = False
        self.full = self.full_by_surprise = False
        #: Bytes free and in all that the disk is said to have; None: as it is.
        self.usage: tuple[int, int] | None = None
        self.commits = 0
        #: Cleared: commits wait until it is set; likewise the reads.
        self.gate = asyncio.Event()
        self.gate.set()
        self.read_gate = asyncio.Event()
        self.read_gate.set()

    @property
    def is_low(self) -> bool:
        return self._store.is_low or (self.full and not self.full_by_surprise)

    @property
    def findings(self) -> Sequence[str]:
        return self._store.findings

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        await self.gate.wait()
        self.commits += 1
        if self.failing or self.commits in self.fail_on:
            raise self.error
        if self.full and any(isinstance(write, Append | Copy) for write in writes):
            raise StoreFull("no room for batches (as told)")
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

    async def disk(self) -> tuple[int, int] | None:
        return self.usage or await self._store.disk()

    async def check(self) -> list[str]:
        return await self._store.check()

    async def close(self) -> None:
        await self._store.close()

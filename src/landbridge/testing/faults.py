"""Faults as small classes, not patches."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from landbridge.core.log.store import LogBounds, Store, StoredBatch, Write
from landbridge.errors import BusError, StoreFull


class FaultyStore:
    """A store whose commits fail or wait when told to.

    fail_on: numbers of commits (from 1) that raise ``error`` and store nothing."""

    blocks = True  #: at the gate, if not at a disk

    def __init__(self, store: Store, *, fail_on: Iterable[int] = (), error: BusError | None = None) -> None:
        self._store = store
        self.fail_on = set(fail_on)
        self.error = error or StoreFull("no room (as told)")
        self.failing = False
        self.commits = 0
        #: Cleared: commits wait until it is set.
        self.gate = threading.Event()
        self.gate.set()

    def commit(self, writes: Sequence[Write]) -> None:
        self.gate.wait()
        self.commits += 1
        if self.failing or self.commits in self.fail_on:
            raise self.error
        self._store.commit(writes)

    def open(self) -> None:
        self._store.open()

    def logs(self) -> dict[int, LogBounds]:
        return self._store.logs()

    def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        return self._store.read(log, offset, max_bytes)

    def seek_time(self, log: int, time: int) -> int:
        return self._store.seek_time(log, time)

    def ledger(self, log: int, producer: bytes) -> bytes | None:
        return self._store.ledger(log, producer)

    def documents(self, kind: str, prefix: str = "") -> Any:
        return self._store.documents(kind, prefix)

    def check(self) -> list[str]:
        return self._store.check()

    def close(self) -> None:
        self._store.close()

"""A store that forgets everything when its object goes: for tests, trials and topics nobody must keep.

The contents outlive ``close`` and are there again after ``open``, so that a test may restart a terminal
on the same object.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from threading import Lock

from landbridge.core.store import (
    Append,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    StoredBatch,
    Trim,
    Write,
)
from landbridge.errors import StoreBusy, StoreFailed
from landbridge.stores.bounds import extended, size_of


class _Log:
    """The batches of one log, oldest first, and what is known of it when they are all gone."""

    def __init__(self, bounds: LogBounds) -> None:
        self.bounds = bounds
        self.batches: list[StoredBatch] = []


def _end(batch: StoredBatch) -> int:
    return batch.end


def _time(batch: StoredBatch) -> int:
    return batch.time


class MemoryStore:
    blocks = False

    def __init__(self) -> None:
        self._lock = Lock()  #: held by every method: a read sees a commit whole or not at all
        self._is_open = False
        self._logs: dict[int, _Log] = {}
        self._ledger: dict[int, dict[bytes, bytes]] = {}  #: log → producer → entry
        self._documents: dict[str, dict[str, bytes]] = {}  #: kind → key → value

    def open(self) -> None:
        with self._lock:
            if self._is_open:
                raise StoreBusy("this memory store is open already")
            self._is_open = True

    def close(self) -> None:
        with self._lock:
            self._is_open = False

    def commit(self, writes: Sequence[Write]) -> None:
        with self._lock:
            self._require_open()
            # All or nothing: only an append can be refused, so look at all of them before doing any.
            self._check_appends(writes)
            for write in writes:
                self._apply(write)

    def logs(self) -> dict[int, LogBounds]:
        with self._lock:
            self._require_open()
            return {number: log.bounds for number, log in self._logs.items()}

    def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        with self._lock:
            self._require_open()
            if log not in self._logs:
                return []
            batches = self._logs[log].batches
            start = bisect_right(batches, offset, key=_end)
            stop, room = start, max_bytes
            while stop < len(batches):
                room -= len(batches[stop].data)
                if room < 0 and stop > start:
                    break
                stop += 1
            return batches[start:stop]

    def seek_time(self, log: int, time: int) -> int:
        with self._lock:
            self._require_open()
            if log not in self._logs:
                return 0
            batches = self._logs[log].batches
            at = bisect_left(batches, time, key=_time)
            return batches[at].first if at < len(batches) else self._logs[log].bounds.end

    def ledger(self, log: int, producer: bytes) -> bytes | None:
        with self._lock:
            self._require_open()
            return self._ledger.get(log, {}).get(producer)

    def documents(self, kind: str, prefix: str = "") -> Iterable[tuple[str, bytes]]:
        with self._lock:
            self._require_open()
            found = self._documents.get(kind, {})
            return sorted((key, value) for key, value in found.items() if key.startswith(prefix))

    def check(self) -> list[str]:
        with self._lock:
            self._require_open()
            return []

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreFailed("the memory store is not open", hint="call open() first")

    def _bounds_of(self, log: int) -> LogBounds | None:
        return self._logs[log].bounds if log in self._logs else None

    def _check_appends(self, writes: Sequence[Write]) -> None:
        #: what the logs' bounds would become; only the end and the time of them matter here
        ahead: dict[int, LogBounds | None] = {}
        for write in writes:
            if isinstance(write, Append):
                bounds = ahead[write.log] if write.log in ahead else self._bounds_of(write.log)
                ahead[write.log] = extended(bounds, write, 0)
            elif isinstance(write, DropLog):
                ahead[write.log] = None

    def _apply(self, write: Write) -> None:
        match write:
            case Append():
                self._append(write)
            case Trim():
                self._trim(write)
            case DropLog(log):
                self._logs.pop(log, None)
                self._ledger.pop(log, None)
            case PutDocument(kind, key, value):
                self._documents.setdefault(kind, {})[key] = bytes(value)
            case DeleteDocument(kind, key):
                self._documents.get(kind, {}).pop(key, None)
            case PutLedger(log, producer, entry):
                if entry is None:
                    self._ledger.get(log, {}).pop(producer, None)
                else:
                    self._ledger.setdefault(log, {})[producer] = bytes(entry)

    def _append(self, write: Append) -> None:
        bounds = extended(self._bounds_of(write.log), write, size_of(write))
        log = self._logs.setdefault(write.log, _Log(bounds))
        log.bounds = bounds
        # bytes(): the caller may reuse the buffer behind a memoryview as soon as commit returns.
        log.batches.append(StoredBatch(write.first, write.end, write.time, bytes(write.data)))

    def _trim(self, write: Trim) -> None:
        log = self._logs.get(write.log)
        if log is None:
            return
        count = bisect_right(log.batches, write.before, key=_end)
        freed = sum(len(batch.data) for batch in log.batches[:count])
        del log.batches[:count]
        was = log.bounds
        first = log.batches[0].first if log.batches else was.end
        log.bounds = LogBounds(first, was.end, was.bytes - freed, was.time)

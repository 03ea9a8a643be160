"""A store that forgets everything when its object goes: for tests, trials and topics nobody must keep.

The contents outlive ``close`` and are there again after ``open``, so that a test may restart a terminal
on the same object.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from landbridge.core.log.store import (
    Append,
    Bounds,
    Copy,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    StoredBatch,
    Trim,
    Write,
)
from landbridge.errors import BadRequest, Fenced, StoreBusy, StoreFailed
from landbridge.stores.bounds import check_source, extended, is_ledger_only, size_of


@dataclass(frozen=True, slots=True)
class _Copied(Append):
    """An append that a copy comes to."""

    choice: bytes | None = None


class _Log:
    """The batches of one log, oldest first, and what is known of it when they are all gone."""

    def __init__(self, bounds: LogBounds) -> None:
        self.bounds = bounds
        self.batches: list[StoredBatch] = []


_first, _end, _time = attrgetter("first"), attrgetter("end"), attrgetter("time")


def _choice_of(batch: Append | StoredBatch | None) -> bytes | None:
    return batch.choice if isinstance(batch, _Copied | StoredBatch) else None


class MemoryStore:
    """``units``: into how many units it is divided. A commit that names a log of another unit is refused."""

    is_low = False  #: it grows as long as there is memory
    findings: Sequence[str] = ()

    def __init__(self, *, units: int = 1) -> None:
        self.units = units
        self._is_open = False
        self._epochs = [0] * units  #: the epoch of each unit; 0 = never claimed
        self._logs: dict[int, _Log] = {}
        self._ledger: dict[int, dict[bytes, PutLedger]] = {}  #: log → producer → what was put last
        #: (unit, kind) → key → value
        self._documents: dict[tuple[int, str], dict[str, bytes]] = {}

    def copy(self) -> MemoryStore:
        """What is stored at this moment, as a store of its own, which is not open."""
        copied = MemoryStore(units=self.units)
        copied._epochs = list(self._epochs)
        for number, log in self._logs.items():
            copied._logs[number] = _Log(log.bounds)
            copied._logs[number].batches = list(log.batches)
        copied._ledger = {log: dict(entries) for log, entries in self._ledger.items()}
        copied._documents = {key: dict(found) for key, found in self._documents.items()}
        return copied

    async def open(self) -> None:
        if self._is_open:
            raise StoreBusy("this memory store is open already")
        self._is_open = True

    async def close(self) -> None:
        self._is_open = False

    async def claim(self, unit: int) -> int:
        self._require_open(unit)
        self._epochs[unit] += 1
        return self._epochs[unit]

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        self._require_open(unit)
        if epoch != self._epochs[unit]:
            raise Fenced(f"unit {unit} is owned under epoch {self._epochs[unit]}, not {epoch}")
        for write in writes:
            log = getattr(write, "log", unit)
            if log % self.units != unit:
                raise BadRequest(f"a commit of unit {unit} can't write to log {log} of another unit")
        # All or nothing: only appends and copies can be refused, so look at all of them before doing any.
        for write in self._checked(writes):
            self._apply(unit, write)
        trimmed = {write.log for write in writes if isinstance(write, Trim)}
        return {log: self._logs[log].bounds for log in trimmed if log in self._logs}

    async def logs(self, unit: int) -> dict[int, LogBounds]:
        self._require_open(unit)
        return {number: log.bounds for number, log in self._logs.items() if number % self.units == unit}

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
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

    async def seek_time(self, log: int, time: int) -> int:
        self._require_open()
        if log not in self._logs:
            return 0
        batches = self._logs[log].batches
        at = bisect_left(batches, time, key=_time)
        return batches[at].first if at < len(batches) else self._logs[log].bounds.end

    async def ledger(self, log: int, producer: bytes) -> bytes | None:
        self._require_open()
        found = self._ledger.get(log, {}).get(producer)
        return None if found is None else found.entry

    async def documents(self, unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        self._require_open(unit)
        found = self._documents.get((unit, kind), {})
        return sorted((key, value) for key, value in found.items() if key.startswith(prefix))

    async def disk(self) -> tuple[int, int] | None:
        return None

    async def check(self) -> list[str]:
        self._require_open()
        return []

    def _require_open(self, unit: int = 0) -> None:
        if not self._is_open:
            raise StoreFailed("the memory store is not open", hint="call open() first")
        if not 0 <= unit < self.units:
            raise BadRequest(f"the store has {self.units} units, no unit {unit}")

    def _bounds_of(self, log: int) -> LogBounds | None:
        return self._logs[log].bounds if log in self._logs else None

    def _checked(self, writes: Sequence[Write]) -> list[Write]:
        """The writes, with every copy as the append that it comes to. BadRequest if one breaks the rules."""
        #: what the logs' bounds would become; only the end and the time of them matter here
        ahead: dict[int, LogBounds | None] = {}
        #: of the logs that are trimmed here, what would be gone: batches with an end up to this
        gone: dict[int, int] = {}
        #: what would be there beside what is: log and first offset → the append
        added: dict[tuple[int, int], Append] = {}
        dropped: set[int] = set()
        checked: list[Write] = []
        for write in writes:
            match write:
                case Copy(log, first, end, time, from_log, from_first, choice):
                    source: Append | StoredBatch | None = added.get((from_log, from_first))
                    if source is None and from_log not in dropped:
                        source = self._batch(from_log, from_first)
                    if source is not None and source.end <= gone.get(from_log, 0):
                        source = None
                    known = _choice_of(source)
                    check_source(write, None if source is None else source.end, known)
                    assert source is not None
                    write = _Copied(log, first, end, time, source.data, known if choice is None else choice)
                case Trim(log, before):
                    bounds = ahead[log] if log in ahead else self._bounds_of(log)
                    gone[log] = max(gone.get(log, 0), min(before, bounds.end if bounds else 0))
                case DropLog(log):
                    ahead[log] = None
                    gone.pop(log, None)
                    dropped.add(log)
                    added = {key: append for key, append in added.items() if key[0] != log}
            if isinstance(write, Append):
                bounds = ahead[write.log] if write.log in ahead else self._bounds_of(write.log)
                ahead[write.log] = extended(bounds, write, 0)
                added[write.log, write.first] = write
            checked.append(write)
        return checked

    def _batch(self, log: int, first: int) -> StoredBatch | None:
        batches = self._logs[log].batches if log in self._logs else []
        at = bisect_left(batches, first, key=_first)
        return batches[at] if at < len(batches) and batches[at].first == first else None

    def _apply(self, unit: int, write: Write) -> None:
        match write:
            case Append():
                self._append(write)
            case Copy():
                raise AssertionError("a copy that was not looked at")
            case Trim():
                self._trim(write)
            case DropLog(log):
                self._logs.pop(log, None)
                self._ledger.pop(log, None)
            case PutDocument(kind, key, value):
                self._documents.setdefault((unit, kind), {})[key] = bytes(value)
            case DeleteDocument(kind, key):
                self._documents.get((unit, kind), {}).pop(key, None)
            case PutLedger(log, producer, entry):
                if entry is None:
                    self._ledger.get(log, {}).pop(producer, None)
                else:
                    self._ledger.setdefault(log, {})[producer] = write

    def _append(self, write: Append) -> None:
        bounds = extended(self._bounds_of(write.log), write, size_of(write))
        log = self._logs.setdefault(write.log, _Log(bounds))
        log.bounds = bounds
        # bytes(): the caller may reuse the buffer behind a memoryview as soon as commit returns.
        data = bytes(write.data)
        log.batches.append(StoredBatch(write.first, write.end, write.time, data, _choice_of(write)))

    def _trim(self, write: Trim) -> None:
        log = self._logs.get(write.log)
        if is_ledger_only(write.log, self.units, log.bounds if log else None):
            known = max(log.bounds.forgotten if log else 0, self._forget(write.log, write.before))
            self._logs[write.log] = _Log(LogBounds(0, 0, 0, 0, known))
            return
        if log is None:
            return
        count = bisect_right(log.batches, write.before, key=_end)
        if not count:
            return
        freed = sum(len(batch.data) for batch in log.batches[:count])
        del log.batches[:count]
        was = log.bounds
        first = log.batches[0].first if log.batches else was.end
        forgotten = max(was.forgotten, self._forget(write.log, first))
        log.bounds = LogBounds(first, was.end, was.bytes - freed, was.time, forgotten)

    def _forget(self, log: int, before: int) -> int:
        """Forget the producers whose last entry is below. Returns when the youngest of them was born."""
        entries = self._ledger.get(log, {})
        gone = [key for key, put in entries.items() if put.last is not None and put.last < before]
        return max((entries.pop(producer).born for producer in gone), default=0)


class MemoryHandle:
    """One node's way to a store in memory that several nodes share, as nodes share a server: for tests of
    nodes in one process. Whoever claims a unit by one handle fences the owner that has claimed it by
    another."""

    is_low = False
    findings: Sequence[str] = ()

    def __init__(self, engine: MemoryStore) -> None:
        self.units = engine.units
        self._engine = engine
        self._is_open = False

    async def open(self) -> None:
        if self._is_open:
            raise StoreBusy("this handle is open already")
        self._is_open = True
        self._engine._is_open = True

    async def close(self) -> None:
        self._is_open = False

    def _there(self) -> MemoryStore:
        if not self._is_open:
            raise StoreFailed("this handle of the memory store is not open", hint="call open() first")
        return self._engine

    async def claim(self, unit: int) -> int:
        return await self._there().claim(unit)

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        return await self._there().commit(unit, epoch, writes)

    async def logs(self, unit: int) -> dict[int, LogBounds]:
        return await self._there().logs(unit)

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        return await self._there().read(log, offset, max_bytes)

    async def seek_time(self, log: int, time: int) -> int:
        return await self._there().seek_time(log, time)

    async def ledger(self, log: int, producer: bytes) -> bytes | None:
        return await self._there().ledger(log, producer)

    async def documents(self, unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        return await self._there().documents(unit, kind, prefix)

    async def disk(self) -> tuple[int, int] | None:
        return None

    async def check(self) -> list[str]:
        return await self._there().check()

"""A log as the terminal sees it: its bounds, those of its batches that are in memory, and its ledger.

New batches are kept as they are committed, so consumers that keep up never cause a read; the others share
what is read ahead for them. One cache for all logs, bounded in bytes, least recently used goes first.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right, insort
from collections import OrderedDict
from functools import partial

from landbridge.broker.damage import decoded
from landbridge.core.log import ledger, record
from landbridge.core.log.batch import Batch
from landbridge.core.log.ledger import Entry
from landbridge.core.log.store import LogBounds, Store, StoredBatch
from landbridge.core.rules.choice import RowChoice, decode_choice
from landbridge.core.shipping.history import History, with_run
from landbridge.errors import BadFrame, StoreCorrupt
from landbridge.stores.writer import NotLoaded

#: Bytes per read of a consumer that is behind.
READ_AHEAD = 2 << 20
#: Compressed batches take about such a share of what they are.
PACKED_SHARE = 4
#: Ledger entries kept in memory per log; the others are read when their producer comes back.
PRODUCERS = 1024
#: Bytes that a batch in memory takes beside its data: a batch of one message of 100 B takes 600.
OVERHEAD = 500


class Cache:
    """The batches in memory, of all logs and views."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[tuple[int, int], LogReader] = OrderedDict()
        self.size = 0

    def put(self, log: LogReader, first: int, batch: Batch) -> None:
        if first in log.batches:
            return
        log.batches[first] = batch
        insort(log.firsts, first)
        self._held[log.number, first] = log
        self.size += batch.size + OVERHEAD
        # The newest stays even if it alone is above the bound: somebody is about to read it.
        while self.size > self._most and len(self._held) > 1:
            (_, oldest), owner = self._held.popitem(last=False)
            self._forget(owner, oldest)

    def resize(self, most_bytes: int) -> None:
        """Hold so many bytes from now on. What is too many goes with the next batch."""
        self._most = most_bytes

    def touch(self, log: LogReader, first: int) -> None:
        self._held.move_to_end((log.number, first))

    def drop(self, log: LogReader, before: int | None = None) -> None:
        for first in [first for first in log.firsts if before is None or first < before]:
            if before is None or first + len(log.batches[first]) <= before:
                del self._held[log.number, first]
                self._forget(log, first)

    def _forget(self, log: LogReader, first: int) -> None:
        self.size -= log.batches.pop(first).size + OVERHEAD
        log.firsts.pop(bisect_right(log.firsts, first) - 1)


class LogReader:
    """Batches by their offsets: those in memory at once, the others when they are loaded."""

    def __init__(self, number: int, cache: Cache) -> None:
        self.number = number
        #: Bytes of a message, about, of the compressed batches that were read last; 0: there were none.
        self.mean_size = 0
        self._cache = cache
        #: first offset → batch, and the first offsets, sorted. Filled and emptied by the cache.
        self.batches: dict[int, Batch] = {}
        self.firsts: list[int] = []
        #: The read that is under way; whoever comes meanwhile waits for the same one.
        self._loading: asyncio.Task[None] | None = None

    def span(self) -> tuple[int, int]:
        """The oldest offset, and the one behind the newest."""
        raise NotImplementedError

    async def _read(self, offset: int, max_bytes: int) -> list[tuple[int, Batch]]:
        raise NotImplementedError

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

    def load(self, offset: int) -> asyncio.Task[None]:
        """Read from an offset on into the cache. One read at a time: a caller that comes while one is under
        way waits for that one, and has to look again."""
        if self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load(offset))
        return self._loading

    async def _load(self, offset: int) -> None:
        try:
            for first, batch in reversed(await self._read(offset, READ_AHEAD)):
                # Oldest last: it is needed first, so it should be evicted last.
                self._cache.put(self, first, batch)
        finally:
            self._loading = None

    async def read(self, offset: int) -> tuple[int, Batch] | None:
        """The batch that holds an offset, or the first one after it; None at the end of the log."""
        while offset < self.span()[1]:
            found = self.batch_at(offset)
            if found is not None:
                return found
            if self.firsts and (offset < self.span()[0]):
                offset = self.span()[0]
                continue
            # Shielded: others may wait for the same read.
            await asyncio.shield(self.load(offset))
        return None

    async def fetch(self, offset: int, max_bytes: int) -> list[tuple[int, Batch]]:
        """Consecutive batches from the one that holds an offset, or the first one after it; at least one,
        unless the log ends there. What is not in memory is read past the cache: a bulk read of old messages
        must not push out what the consumers are about to take."""
        first, end = self.span()
        offset = max(offset, first)
        found: list[tuple[int, Batch]] = []
        size, at = 0, offset
        while at < end and (held := self.batch_at(at)) is not None:
            first, batch = held
            size += batch.size
            if found and size > max_bytes:
                return found
            found.append((first, batch))
            at = first + len(batch)
        if found or offset >= end:
            return found
        return await self._read(offset, max_bytes)


class Log(LogReader):
    def __init__(self, number: int, bounds: LogBounds, store: Store, cache: Cache) -> None:
        super().__init__(number, cache)
        self.first, self.end = bounds.first, bounds.end
        #: Where it ended when this terminal was started, or the topic made.
        self.began = bounds.end
        #: The runs of this terminal that have added to it, and whether the present one is on disk with them.
        self.history: History = []
        self.is_run_stored = False
        #: Bytes stored.
        self.bytes = bounds.bytes
        #: The level at which batches are stored compressed; 0: they are stored as they are.
        self.pack_level = 0
        #: Time of the newest append.
        self.time = bounds.time
        #: Producers that were born up to here may have been forgotten by the ledger.
        self.forgotten = bounds.forgotten
        self._store = store
        #: What the ledger says of the producers that were here last; the others are read when they come back.
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()
        #: Nothing was ever stored in this log, so its ledger is empty too.
        self.is_new = bounds.end == 0
        #: Who waits for the log to grow, and how many may be in the list before it is looked through.
        self._growth: list[asyncio.Future[None]] = []
        self._most_growth = 0

    def span(self) -> tuple[int, int]:
        return self.first, self.end

    def extend(self, first: int, batch: Batch, time: int) -> None:
        self.end = first + len(batch)
        self.is_new = False
        self.bytes += batch.stored_size
        if batch.packed is not None:
            batch.packed = None  # it is on disk
            self._learn_size(batch)
        self.time = max(self.time, time)
        self._cache.put(self, first, batch)
        if self._growth:
            growth, self._growth = self._growth, []
            for waiter in growth:
                if not waiter.done():
                    waiter.set_result(None)

    def _learn_size(self, batch: Batch) -> None:
        self.mean_size += (batch.size // len(batch) - self.mean_size) // 8 + 1

    def history_of(self, run: int) -> list[tuple[int, int]]:
        """The history with the present run in it."""
        return list(self.history) if self.is_run_stored else with_run(self.history, run, self.began)

    def run_stored(self, history: History) -> None:
        self.history, self.is_run_stored = history, True

    def on_growth(self, waiter: asyncio.Future[None]) -> None:
        """Let this be done with the next append. Whoever waits no longer cancels it."""
        if len(self._growth) >= self._most_growth:
            self._growth = [waiter for waiter in self._growth if not waiter.done()]
            self._most_growth = 2 * len(self._growth) + 16
        self._growth.append(waiter)

    def trim(self, bounds: LogBounds) -> None:
        """The log was trimmed, and the ledger with it."""
        self.first, self.bytes, self.forgotten = bounds.first, bounds.bytes, bounds.forgotten
        self._cache.drop(self, self.first)
        gone = [producer for producer, entry in self._entries.items() if entry.is_below(self.first)]
        for producer in gone:
            del self._entries[producer]  # or it is read again, where it is one that stays

    async def _read(self, offset: int, max_bytes: int) -> list[tuple[int, Batch]]:
        # What is compressed gets larger: reading as many bytes as are wanted would read most of them in vain.
        share = PACKED_SHARE if self.pack_level else 1
        stored = await self._store.read(self.number, offset, max_bytes // share)
        if any(record.is_packed(each.data) for each in stored):
            found = await asyncio.to_thread(self._unwrap, stored, max_bytes)
            for _, batch in found:
                self._learn_size(batch)
            return found
        return self._unwrap(stored, max_bytes)

    def _unwrap(self, stored: list[StoredBatch], max_bytes: int) -> list[tuple[int, Batch]]:
        """The batches of these records, as many as are so large together, and at least one."""
        found: list[tuple[int, Batch]] = []
        size = 0
        for each in stored:
            try:
                batch = record.unwrap(each.data)
                if each.choice is not None:
                    whole, batch = batch, decode_choice(each.choice).of(batch)
                    batch.stored_size = whole.stored_size
            except BadFrame as broken:
                if found:
                    break  # the next read's business
                raise StoreCorrupt(
                    f"log {self.number}, offset {each.first}: the batch doesn't decode: {broken}"
                ) from None
            size += batch.size if batch.stored_size < batch.size else 0
            if found and size > max_bytes:
                break
            found.append((each.first, batch))
        return found

    async def choice_at(self, offset: int) -> tuple[int, RowChoice] | None:
        """Of a rule's topic: the choice that the message of an offset belongs to, and the offset of its first
        message. None where the message was stored anew, or there is none."""
        if not self.first <= offset < self.end:
            return None
        for each in await self._store.read(self.number, offset, 1):
            if each.choice is not None and each.first <= offset < each.end:
                return each.first, decode_choice(each.choice)
        return None

    async def time_before(self, offset: int) -> int | None:
        """The time of the message before an offset; None where the log doesn't have that message."""
        if not self.first < offset <= self.end:
            return None
        found = await self.fetch(offset - 1, 1)
        if not found or found[0][0] >= offset:  # trimmed meanwhile
            return None
        first, batch = found[0]
        return batch.time_of(offset - 1 - first)

    # -- producers ---------------------------------------------------------------------------------

    def entry(self, producer: bytes) -> Entry:
        """What the ledger says of a producer. NotLoaded where it has to be read from the disk first."""
        found = self._entries.get(producer)
        if found is not None:
            return found
        if self.is_new:
            return ledger.EMPTY
        raise NotLoaded(partial(self._load_entry, producer))

    async def _load_entry(self, producer: bytes) -> None:
        raw = await self._store.ledger(self.number, producer)
        if producer not in self._entries:
            what = f"the ledger's entry of a producer of log {self.number}"
            self.learn(producer, ledger.EMPTY if raw is None else decoded(what, ledger.decode, raw))

    def learn(self, producer: bytes, entry: Entry) -> None:
        self._entries[producer] = entry
        if len(self._entries) > PRODUCERS:
            self._entries.popitem(last=False)

    def forget_producer(self, producer: bytes) -> None:
        self._entries.pop(producer, None)

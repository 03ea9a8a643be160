"""Group commit: everything that waits goes into one transaction, and its callers are answered after it.

One commit is on its way at a time, in a thread of its own. While it is, new work queues up; the next commit
takes all of it. Work is turned into writes only when its commit is formed, that is, when the one before is
applied: so the state in memory is always exactly what is on disk, and undoing a failed commit is dropping it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from landbridge.core.log import ledger, record
from landbridge.core.log.batch import Batch
from landbridge.core.log.ledger import Entry, Transactions
from landbridge.core.log.store import Append, Copy, DropLog, PutLedger, Store, Trim, Write
from landbridge.errors import BusError, ShuttingDown, StoreFailed

if TYPE_CHECKING:
    from landbridge.broker.topic import Topic

#: Puts its writes into the commit that is being formed; raises BusError to be left out of it.
Work: TypeAlias = "Callable[[Commit], None]"
Refuse: TypeAlias = Callable[[BusError], None]

#: Bytes that a copied batch counts in a commit: what it adds to the tables of the store, about.
COPY = 256

#: The number of the log that has no batches, only the ledger of transactions.
TRANSACTIONS = 0


class Commit:
    """One transaction in the making."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.writes: list[Write] = []
        #: Bytes of batches to be written with it.
        self.size = 0
        #: Called in order when it is on disk, or when it failed.
        self.after: list[Callable[[], None]] = []
        self.undo: list[Refuse] = []
        #: What this commit adds: batches by topic, in order; producers' new ledger entries.
        self.appended: dict[Topic, list[tuple[int, Batch]]] = {}
        self.entries: dict[tuple[Topic, bytes], Entry] = {}
        self.transactions: dict[bytes, Transactions] = {}

    def append(self, topic: Topic, batch: Batch, *, held: tuple[int, int] | None = None) -> int:
        """Put a batch at the end of the topic's log. Returns its first offset. ``held``: the log and
        the first offset there where the store has this very batch already, so that it isn't written again."""
        batches = self.appended.get(topic)
        if batches:
            last_first, last = batches[-1]
            first = last_first + len(last)
        else:
            batches = self.appended[topic] = []
            first = topic.log.end
        time = max(self.now, topic.log.time)
        number, end = topic.log.number, first + len(batch)
        if held is not None:
            self.writes.append(Copy(number, first, end, time, *held))
            self.size += COPY
        else:
            data = record.wrap(batch)
            self.writes.append(Append(number, first, end, time, data))
            self.size += len(data)
        batches.append((first, batch))
        return first

    def keeps(self, topic: Topic) -> bool:
        """The topic's log is there as its bounds in memory say, also when what is in this commit so far is
        done. Where it isn't, a copy out of it would be refused, and with it the commit of everybody."""
        return not topic.deleted and not any(
            isinstance(write, Trim | DropLog) and write.log == topic.log.number for write in self.writes
        )

    def entry(self, topic: Topic, producer: bytes) -> Entry:
        """What the ledger says, with this commit counted in."""
        return self.entries.get((topic, producer)) or topic.entry(producer)

    def remember(self, topic: Topic, producer: bytes, entry: Entry) -> None:
        self.entries[topic, producer] = entry

    def seal(self) -> list[Write]:
        """All writes, with each producer's ledger entry once, as it is at the end."""
        for (topic, producer), entry in self.entries.items():
            self.writes.append(PutLedger(topic.log.number, producer, ledger.encode(entry)))
        for producer, transactions in self.transactions.items():
            self.writes.append(PutLedger(TRANSACTIONS, producer, ledger.encode(transactions)))
        return self.writes


class Committer:
    """Forms commits from queued work and has a thread write them."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], int],
        most_bytes: int,
        finish: Callable[[Commit], None],
        applied: Callable[[Commit], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._most_bytes = most_bytes
        #: Adds the writes that every commit may carry (changed cursors), before it is sealed.
        self._finish = finish
        #: Takes the batches of a stored commit into memory, before its callers are answered.
        self._applied = applied
        self._waiting: deque[tuple[Work, Refuse | None]] = deque()
        self._forming = False
        self._busy = False
        self._closed: BusError | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Commit | None] = queue.SimpleQueue()
        #: None where the store has nothing to wait for: then commits are made in the loop.
        self._thread: threading.Thread | None = None
        if store.blocks:
            self._thread = threading.Thread(target=self._write, name="landbridge-writer", daemon=True)
            self._thread.start()
        self.commits = 0

    def put(self, work: Work, refuse: Refuse | None = None) -> None:
        """Queue work for the next commit. ``refuse`` hears why it was left out or failed."""
        if self._closed is not None:
            if refuse is not None:
                refuse(self._closed)
            return
        self._waiting.append((work, refuse))
        self.poke()

    def poke(self) -> None:
        """Form a commit soon, also if only ``finish`` has something to write."""
        if not self._forming and not self._busy:
            self._forming = True
            self._loop.call_soon(self._form)

    def _form(self) -> None:
        self._forming = False
        if self._busy:
            return
        commit = Commit(self._clock())
        while self._waiting and commit.size < self._most_bytes:
            work, refuse = self._waiting.popleft()
            try:
                work(commit)
            except BusError as error:
                if refuse is not None:
                    refuse(error)
                continue
            except Exception as crash:  # a bug must not stop everybody else's commits
                self._tell(crash)
                if refuse is not None:
                    refuse(BusError(f"the terminal failed: {type(crash).__name__}"))
                continue
            if refuse is not None:
                commit.undo.append(refuse)
        self._finish(commit)
        if not commit.writes and not commit.entries and not commit.transactions:
            self._call(commit.after)
            self._settle_idle()
            return
        self._busy = True
        commit.seal()
        if self._thread is None:
            self._loop.call_soon(self._written, commit, self._store_it(commit))
        else:
            self._queue.put(commit)

    def _store_it(self, commit: Commit) -> BusError | None:
        try:
            self._store.commit(commit.writes)
        except BusError as failure:
            return failure
        except BaseException as failure:
            return StoreFailed(f"the store broke: {failure!r}")
        return None

    def _write(self) -> None:
        while (commit := self._queue.get()) is not None:
            error = self._store_it(commit)
            try:
                self._loop.call_soon_threadsafe(self._written, commit, error)
            except RuntimeError:  # the loop was closed under us: a test or a crash, nobody waits any more
                return

    def _written(self, commit: Commit, error: BusError | None) -> None:
        self._busy = False
        self.commits += 1
        if error is None:
            self._applied(commit)
            self._call(commit.after)
        else:
            self._call([partial(undo, error) for undo in reversed(commit.undo)])
        if self._waiting:
            self.poke()
        else:
            self._settle_idle()

    def _call(self, callbacks: list[Callable[[], None]]) -> None:
        """All of them, whatever one of them does: each is somebody's answer."""
        for callback in callbacks:
            try:
                callback()
            except Exception as crash:
                self._tell(crash)

    def _tell(self, crash: Exception) -> None:
        self._loop.call_exception_handler({"message": "a commit's callback failed", "exception": crash})

    def _settle_idle(self) -> None:
        if not self._waiting and not self._busy:
            for waiter in self._idle:
                if not waiter.done():
                    waiter.set_result(None)
            self._idle.clear()

    async def drain(self) -> None:
        """Wait until all that is queued is written."""
        while self._waiting or self._busy or self._forming:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def close(self) -> None:
        await self.drain()
        self._closed = ShuttingDown("the terminal is shutting down")
        if self._thread is not None:
            self._queue.put(None)
            await self._loop.run_in_executor(None, self._thread.join)

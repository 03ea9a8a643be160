"""The journal: every change of the registry goes to the disk with the audit event that tells of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from landbridge.core.log.store import DropLog, Store, StoredBatch, Write
from landbridge.registry.audit import AuditRecord, Tail
from landbridge.stores.writer import Commit, Writer, adding

#: Bytes of one commit. Audit events are small and aren't counted, so this is never reached.
MOST_BYTES = 1 << 20


class JournalCommit(Commit):
    """A commit with audit events. All events of a log become one batch."""

    def __init__(self, tails: dict[int, Tail], keep: int) -> None:
        super().__init__(0)
        self._tails = tails
        self._keep = keep
        self.events: dict[int, list[AuditRecord]] = {}

    def seal(self) -> list[Write]:
        """All writes, with the events of each log as one batch."""
        dropped = {write.log for write in self.writes if isinstance(write, DropLog)}
        appends: list[Write] = []
        for log, events in self.events.items():
            if log in dropped:
                continue
            tail = self._tails.get(log) or Tail(log, self._keep)
            writes = tail.append(events[-1].time, events)
            appends += writes
            self.on_stored.insert(0, partial(self._extend, log, tail, writes))
        for log in dropped:
            self.on_stored.insert(0, partial(self._tails.pop, log, None))
        return appends + self.writes

    def _extend(self, log: int, tail: Tail, writes: list[Write]) -> None:
        tail.on_stored(writes)
        self._tails[log] = tail


class Journal:
    """The one way of the registry to its store."""

    def __init__(self, store: Store, *, keep: int) -> None:
        self._store = store
        self._keep = keep
        #: Log → its end. A log without an event yet has no entry.
        self._tails: dict[int, Tail] = {}
        self._writer: Writer[JournalCommit]

    async def open(self) -> None:
        """Become the registry store's owner, and learn where its logs end."""
        epoch = await self._store.claim(0)
        bounds = await self._store.logs(0)
        self._tails = {number: Tail(number, self._keep, known) for number, known in bounds.items()}
        self._writer = Writer(
            self._store,
            0,
            epoch,
            begin=lambda: JournalCommit(self._tails, self._keep),
            finish=lambda commit: None,
            apply=lambda commit: None,
            most_bytes=MOST_BYTES,
        )

    async def put(self, writes: Sequence[Write]) -> None:
        """Commit writes without an audit event."""
        await self._writer.put(adding(writes))

    async def write(
        self,
        log: int,
        event: AuditRecord,
        writes: Sequence[Write] = (),
        after: Callable[[], None] | None = None,
    ) -> None:
        """Commit an audit event and the change that it tells of. Returns when both are stored; raises
        StoreFailure, with nothing changed, when they aren't. ``after`` is called as soon as they are stored,
        also where the caller has gone away: memory follows the disk."""

        def work(commit: JournalCommit) -> None:
            commit.events.setdefault(log, []).append(event)
            commit.writes.extend(writes)
            if after is not None:
                commit.on_stored.append(after)

        await self._writer.put(work)

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Read audit events from an offset on."""
        return await self._store.read(log, offset, max_bytes)

    async def close(self) -> None:
        """Write what is queued."""
        await self._writer.close()

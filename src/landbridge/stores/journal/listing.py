"""What a journal has, listed: for a copy of the store into another kind of store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from landbridge.stores.journal.journal import CommitJournal, is_below
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.remote import StoredEntry
from landbridge.stores.threads import KIND

T = TypeVar("T")
#: Entries that are read from the index at once.
AT_ONCE = 10_000


def kinds_of(journal: CommitJournal) -> list[str]:
    """The kinds of documents, without the driver's own."""
    found = set(journal.index.kinds())
    for layer in journal.state.layers():
        found |= layer.documents.keys()
    return sorted(kind for kind in found - {KIND} if journal.documents(kind))


def ledger_logs_of(journal: CommitJournal) -> list[int]:
    """The logs that have a ledger."""
    found = set(journal.index.ledger_logs())
    for layer in journal.state.layers():
        found |= layer.ledger.keys()
    return sorted(log for log in found if ledger_of(journal, log))


def ledger_of(journal: CommitJournal, log: int) -> list[StoredEntry]:
    """The entries of a log's ledger, sorted by producer. What is newer than the index hides what is in it."""
    found: dict[bytes, StoredEntry | None] = {}
    void: int | None = None
    for layer in journal.state.layers():
        for producer, put in layer.ledger.get(log, {}).items():
            if producer not in found:
                is_there = put.entry is not None and not is_below(put.last, void)
                found[producer] = (
                    StoredEntry(producer, put.entry or b"", put.last, put.born) if is_there else None
                )
        if log in layer.dropped:
            return _sorted(found)
        if log in layer.floors:
            void = max(void or 0, layer.floors[log])
    nameless = journal.index.entry(log, b"")  # the pages below begin behind it
    rows = [] if nameless is None else [(log, b"", nameless.entry or b"", nameless.last, nameless.born)]
    while True:
        for _, producer, entry, last, born in rows:
            if producer not in found:
                found[producer] = None if is_below(last, void) else StoredEntry(producer, entry, last, born)
        page = journal.index.entries_after(log, rows[-1][1] if rows else b"", AT_ONCE)
        rows = [row for row in page if row[0] == log]
        if not rows:
            return _sorted(found)


def _sorted(found: dict[bytes, StoredEntry | None]) -> list[StoredEntry]:
    return sorted((each for each in found.values() if each is not None), key=lambda each: each.producer)


class ListedJournal(JournalStore):
    """The embedded store, which can say all that it has."""

    async def kinds(self, unit: int) -> list[str]:
        return await self._listed(kinds_of)

    async def ledger_logs(self, unit: int) -> list[int]:
        return await self._listed(ledger_logs_of)

    async def ledgers(self, log: int) -> list[StoredEntry]:
        return await self._listed(lambda journal: ledger_of(journal, log))

    async def _listed(self, ask: Callable[[CommitJournal], T]) -> T:
        assert isinstance(self.driver, CommitJournal)
        return await asyncio.get_running_loop().run_in_executor(None, ask, self.driver)

"""The keys of a topic at work: what its commits look up, write and forget of them (``core/log/keys.py``).

The entries are in a ledger-only log of the store that goes with the topic's log, so they cost nothing where
no key is used. What was looked up is kept in memory, also that there is no entry; all changes are made here,
so it stays true.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.damage import decoded
from landbridge.core.log import keys
from landbridge.core.log.batch import Batch
from landbridge.core.log.keys import KeyEntry
from landbridge.core.log.store import DropLog, LogBounds, PutLedger, Store, Trim, keys_of
from landbridge.errors import BusError
from landbridge.stores.writer import NotLoaded

#: Entries of a topic that are kept in memory.
KNOWN = 4096
#: Entries that are asked of the store at the same time.
READ_AT_ONCE = 256


class PublishOutcome(NamedTuple):
    """What became of a publish that may be a repeat."""

    first: int  #: offset of the first message: of those stored now, or of the first time where none was
    repeated: bool  #: all of it was stored before, by another request
    batch: bytes = b""  #: id of the batch that was stored the first time, where that is another one


class TopicKeys:
    """The keys and unique ids of one topic."""

    def __init__(self, log: int, bounds: LogBounds | None, store: Store, kept: int) -> None:
        """``bounds``: of the ledger-only log, None where no key was ever used. ``kept``: how many messages
        that are gone are remembered."""
        self.number = keys_of(log, store.units)
        #: Has a key or a unique id ever been stored?
        self.is_used = bounds is not None
        #: Keys of messages that were stored up to this moment may be forgotten.
        self.forgotten = bounds.forgotten if bounds is not None else 0
        self._store, self._kept = store, kept
        #: Name → its entry; None where there is none on disk. What was used last stays.
        self._known: OrderedDict[bytes, KeyEntry | None] = OrderedDict()

    def entries(self, commit: BrokerCommit, names: Iterable[bytes]) -> dict[bytes, KeyEntry]:
        """The entries that there are of these names, with this commit counted in. NotLoaded where one has to
        be read first."""
        pending = commit.keys.get(self.number, {})
        found: dict[bytes, KeyEntry] = {}
        missing: list[bytes] = []
        for name in names:
            entry = pending.get(name)
            if entry is None and self.is_used:
                if name not in self._known:
                    missing.append(name)
                    continue
                entry = self._known[name]
            if entry is not None:
                found[name] = entry
        if missing:
            raise NotLoaded(partial(self._load, missing))
        return found

    def entry(self, commit: BrokerCommit, name: bytes) -> KeyEntry | None:
        return self.entries(commit, (name,)).get(name)

    async def _load(self, names: list[bytes]) -> None:
        # Room is made before: what is loaded here is asked for next, however much it is.
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)
        what = f"the ledger of keys of log {self.number}"
        for at in range(0, len(names), READ_AT_ONCE):
            some = names[at : at + READ_AT_ONCE]
            found = await asyncio.gather(*(self._store.ledger(self.number, name) for name in some))
            for name, raw in zip(some, found, strict=True):
                # A commit may have been faster: what it has written is newer.
                if self._known.get(name) is None:
                    self._known[name] = None if raw is None else decoded(what, keys.decode, raw)

    def is_known(self, name: bytes) -> bool:
        """Can a commit be formed without a read?"""
        return not self.is_used or name in self._known

    def has(self, name: bytes) -> bool:
        """Is there an entry on disk? NotLoaded where it has to be read first."""
        if self.is_used and name not in self._known:
            raise NotLoaded(partial(self._load, [name]))
        return self._known.get(name) is not None

    async def load(self, name: bytes) -> None:
        """Read an entry ahead, so that the writer need not wait for it. A failure is met again there."""
        with suppress(BusError):
            await self._load([name])

    def remember(self, commit: BrokerCommit, entries: dict[bytes, KeyEntry], last: int) -> None:
        """Write entries into a commit. ``last``: the offset that they live as long as."""
        if not self.is_used:
            commit.writes.append(Trim(self.number, 0))  # from now on the store knows that there are some
        for name, entry in entries.items():
            commit.writes.append(PutLedger(self.number, name, keys.encode(entry), last, commit.now))
        commit.keys.setdefault(self.number, {}).update(entries)
        commit.on_stored.append(partial(self._remembered, entries))

    def _remembered(self, entries: dict[bytes, KeyEntry]) -> None:
        self.is_used = True
        for name, entry in entries.items():
            self._known[name] = entry
            self._known.move_to_end(name)
        while len(self._known) > KNOWN:
            self._known.popitem(last=False)

    def trim(self, commit: BrokerCommit, first: int) -> None:
        """The topic's log begins at ``first`` after this commit: forget what belongs to messages long
        gone."""
        before = keys.kept_from(first, self._kept)
        if before and self.is_used:
            commit.writes.append(Trim(self.number, before))
            commit.on_stored.append(partial(self._trimmed, commit, before))

    def _trimmed(self, commit: BrokerCommit, before: int) -> None:
        self.forgotten = commit.trimmed[self.number].forgotten
        gone = [name for name, entry in self._known.items() if entry is not None and entry.first < before]
        for name in gone:
            del self._known[name]  # or it is read again, where it lives longer

    def drop(self, commit: BrokerCommit) -> None:
        """The topic is deleted. Also where no key is known: this very commit may have the first one."""
        commit.writes.append(DropLog(self.number))

    # -- unique ids --------------------------------------------------------------------------------

    def check_ids(self, commit: BrokerCommit, *batches: Batch) -> None:
        """NotLoaded where an id has to be looked up before the batches can be stored. All batches of a topic
        that one piece of work stores are given at once: what is loaded next might push out what was
        before."""
        ids = (id for batch in batches for id in keys.given_ids(batch) if id)
        self.entries(commit, map(keys.id_name, ids))

    def split(self, commit: BrokerCommit, batch: Batch) -> tuple[Batch | None, int]:
        """What of a batch is to be stored where ids are unique, None where nothing is; and the offset of the
        first message that is there already, -1 where none is."""
        ids = keys.given_ids(batch)
        if not ids:
            return batch, -1
        names = [keys.id_name(id) if id else b"" for id in ids]
        found = self.entries(commit, (name for name in names if name))
        indices = keys.fresh(names, set(found))
        if len(indices) == len(batch):
            return batch, -1
        first = next((found[name].first for name in names if name in found), -1)
        return (batch.gather(indices) if indices else None), first

    def remember_ids(self, commit: BrokerCommit, batch: Batch, first: int) -> None:
        """The batch is stored from ``first`` on."""
        ids = keys.given_ids(batch)
        entries = {keys.id_name(id): KeyEntry(first + n) for n, id in enumerate(ids) if id}
        if entries:
            self.remember(commit, entries, first)

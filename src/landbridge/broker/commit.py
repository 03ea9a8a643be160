"""A commit of the broker: batches appended to logs, and who of their producers has stored what."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import partial
from typing import NamedTuple

from landbridge.broker.log import Log
from landbridge.core.log import ledger, record
from landbridge.core.log.batch import Batch
from landbridge.core.log.keys import KeyEntry
from landbridge.core.log.ledger import Entry, Transactions
from landbridge.core.log.packing import pack
from landbridge.core.log.store import (
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    PutDocument,
    PutLedger,
    Trim,
    Write,
)
from landbridge.core.shipping.history import encode as encode_history
from landbridge.stores.writer import Commit

#: The kind of the documents that tell the history of a log, by its number.
HISTORY = "history"
#: The kind of the documents that are settings of the terminal.
SETTINGS = "settings"
#: Among them: the number of the last start, of the terminal or, with several nodes, of each unit.
START = "start"
#: Kinds of documents of unit 0 that the other nodes of a terminal follow (``broker/mirror.py``): settings,
#: services, revoked tokens, pauses. Of what the crossing keeps, the directory alone. And the kind and the key
#: of the document that changes with them.
FOLLOWED = frozenset({SETTINGS, "service", "revoked", "pause"})
CROSSING, DIRECTORY = "network", "directory"
VERSION = "trust"
#: Bytes that a copied batch counts in a commit: about what it adds to the tables of the store.
COPY = 256
#: Bytes that a commit compresses of what the middleware has not: some milliseconds.
PACK_AT_ONCE, PACK_LEVEL = 1 << 20, 3


class ChosenFrom(NamedTuple):
    """The batch that messages were chosen from."""

    choice: bytes  #: which they are (``landbridge.core.rules.choice``)
    size: int  #: bytes of the batch in the store


def _is_followed(write: Write) -> bool:
    if not isinstance(write, PutDocument | DeleteDocument):
        return False
    return write.kind in FOLLOWED or (write.kind, write.key) == (CROSSING, DIRECTORY)


def note_change(commit: BrokerCommit) -> bool:
    """A commit is about to leave: does it change what a terminal's other nodes follow? Then it says so."""
    if commit.unit == 0 and any(_is_followed(write) for write in commit.writes):
        commit.writes.append(PutDocument(VERSION, VERSION, os.urandom(8)))
        return True
    return False


class BrokerCommit(Commit):
    def __init__(self, now: int, unit: int, run: int = 0) -> None:
        """``run``: the number of the terminal's run, as other terminals know it; 0: they know none."""
        super().__init__(now)
        self.unit, self.run = unit, run
        #: Logs whose history this commit writes.
        self._noted: set[Log] = set()
        #: What this commit adds: batches by log, in order; producers' new ledger entries.
        self.appended: dict[Log, list[tuple[int, Batch]]] = {}
        self.entries: dict[tuple[Log, bytes], Entry] = {}
        #: Of the producers that may be forgotten: when each was born, by the terminal's clock, and the offset
        #: that its entry lives as long as.
        self.born: dict[tuple[Log, bytes], tuple[int, int]] = {}
        self.transactions: dict[bytes, Transactions] = {}
        #: The tokens of transactions in this commit that have reservations in other units.
        self.reservations: set[bytes] = set()
        #: Bytes of batches that it may still compress.
        self._pack_room = PACK_AT_ONCE
        #: Keys and unique ids that this commit stores: ledger-only log → name → entry.
        self.keys: dict[int, dict[bytes, KeyEntry]] = {}
        #: Documents that this commit writes → their new version, None where it deletes them.
        self.documents: dict[Hashable, str | None] = {}

    def append(
        self,
        log: Log,
        batch: Batch,
        *,
        held: tuple[int, int] | None = None,
        chosen: ChosenFrom | None = None,
        needs_room: bool = True,
    ) -> int:
        """Put a batch at the end of a log. Returns the offset of its first message. ``held``: the log and the
        first offset there where the store has this very batch already, so that it isn't written again; with
        ``chosen``, where it has a batch that these messages were chosen from.
        StoreFull where there is no room; work that changes something before asks ``need_room`` first.
        ``needs_room``: False for a batch that may take of the disk's reserve."""
        if needs_room:
            self.need_room()
        if self.run and not log.is_run_stored:
            self.note_run(log)
        batches = self.appended.get(log)
        if batches:
            last_first, last = batches[-1]
            first = last_first + len(last)
        else:
            batches = self.appended[log] = []
            first = log.end
        time = max(self.now, log.time)
        end = first + len(batch)
        if held is not None:
            choice = None if chosen is None else chosen.choice
            self.writes.append(Copy(log.number, first, end, time, *held, choice))
            self.size += COPY
            if chosen is not None:
                self.size += len(chosen.choice)
                batch.stored_size = chosen.size
        else:
            if log.pack_level and batch.packed is None and batch.size <= self._pack_room:
                # It didn't come through the middleware: it is from another terminal, or the bus's own.
                self._pack_room -= batch.size
                pack(batch, min(log.pack_level, PACK_LEVEL))
            if batch.packed is None:
                batch.stored_size = batch.size
            data = record.wrap(batch)
            self.writes.append(Append(log.number, first, end, time, data))
            self.size += len(data)
        batches.append((first, batch))
        return first

    def note_run(self, log: Log) -> None:
        """Write down that the log is added to in this run of the terminal, before or with the first time."""
        if log not in self._noted:
            self._noted.add(log)
            history = log.history_of(self.run)
            self.writes.append(PutDocument(HISTORY, str(log.number), encode_history(history)))
            self.on_stored.append(partial(log.run_stored, history))

    def keeps(self, log: Log) -> bool:
        """Will the log still be there as its bounds in memory say once this commit is done? Where it isn't, a
        copy out of it would be refused, and with it the commit of everybody."""
        return not any(isinstance(write, Trim | DropLog) and write.log == log.number for write in self.writes)

    def entry(self, log: Log, producer: bytes) -> Entry:
        """What the ledger says, with this commit counted in. NotLoaded where it has to be read first."""
        return self.entries.get((log, producer)) or log.entry(producer)

    def end_of(self, log: Log) -> int:
        """Where a log ends, with this commit counted in."""
        batches = self.appended.get(log)
        return batches[-1][0] + len(batches[-1][1]) if batches else log.end

    def remember(
        self, log: Log, producer: bytes, entry: Entry, born: int = 0, last: int | None = None
    ) -> None:
        """``born``: the entry is forgotten when the log no longer holds what it speaks of; 0: never.
        ``last``: the offset that it lives as long as, where that is not its last batch's."""
        self.entries[log, producer] = entry
        if born:
            self.born[log, producer] = born, entry.firsts[-1] if last is None else last

    def seal(self) -> list[Write]:
        """All writes, with each producer's ledger entry once, as it is at the end."""
        for (log, producer), entry in self.entries.items():
            born, last = self.born.get((log, producer), (0, None))
            self.writes.append(PutLedger(log.number, producer, ledger.encode(entry), last, born))
        for producer, transactions in self.transactions.items():
            self.writes.append(transactions.put(self.unit, producer))
        return self.writes

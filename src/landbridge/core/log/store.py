"""The port to durable storage: what a terminal asks of a disk, and nothing else.

A store is dumb. It knows logs by number, batches as opaque bytes with a first offset, documents as
opaque bytes under (kind, key), and ledger entries. Offsets, retention, who may read: all that is decided
above.

It is divided into units. A unit is what one commit can change atomically and what one process owns at a time.
An owner claims a unit and gets an epoch; its commits carry that epoch, and a commit with an older one is
refused as ``fenced``. The embedded store has one unit, a cluster of databases has many. ``claim`` and
``commit`` are the only methods that change anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | memoryview
#: A log from this number on has a ledger and never a batch, as a unit's own log.
LEDGER_ONLY = 1 << 48


def keys_of(log: int, units: int) -> int:
    """The number of the ledger-only log that goes with a log, in the same unit of the store."""
    return LEDGER_ONLY * units + log


@dataclass(frozen=True, slots=True)
class Append:
    """Put one batch at the end of a log. The first append to a number makes the log."""

    log: int  #: the log's number; the broker gives each topic a new one, never reused
    first: int  #: offset of the batch's first message; equals the log's end, or starts the log anywhere
    end: int  #: offset after its last message
    time: int  #: when the terminal took it, microseconds since 1970; never decreases within a log
    data: Buffer  #: the encoded batch


@dataclass(frozen=True, slots=True)
class Copy:
    """Put a batch that one log holds at the end of another, or of the same, by the rules of an append.
    Then each has it for itself, whatever is trimmed or dropped; a driver need not write its bytes again.
    BadRequest where there is no such batch.

    Without a ``choice`` it is the whole batch, with the choice that it has where it is now. With one, the log
    has some of the batch's messages, ``end - first`` of them, at least one and no more than the batch has.
    The bytes of the choice say which, to whoever reads the batch; the store doesn't look at them.
    BadRequest for a choice out of a batch that has one already."""

    log: int
    first: int
    end: int  #: without a choice as far from ``first`` as the batch's end is from its first offset now
    time: int
    from_log: int  #: the log that holds it, with what comes before in this commit counted in
    from_first: int  #: offset of its first message there
    choice: bytes | None = None  #: which of its messages the log has; None: all


@dataclass(frozen=True, slots=True)
class Trim:
    """Forget whole batches whose end is at or below ``before``, and the ledger's entries whose ``last`` is
    gone with them. The log's end stays known for ever, even when every batch is gone. A unit's own log, whose
    number is the unit's, and logs from LEDGER_ONLY on never have batches: of them the entries are forgotten
    whose ``last`` is below; the first trim makes their bounds known."""

    log: int
    before: int


@dataclass(frozen=True, slots=True)
class DropLog:
    """Forget a log: its batches, its bounds and its ledger."""

    log: int


@dataclass(frozen=True, slots=True)
class PutDocument:
    kind: str
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class DeleteDocument:
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class PutLedger:
    """Remember what a producer has stored in a log; ``entry`` None forgets the producer."""

    log: int
    producer: bytes
    entry: bytes | None
    #: The offset that the entry lives as long as; None: it stays until it is forgotten by a PutLedger.
    last: int | None = None
    #: The bounds of the log say the highest one of the entries that a trim has forgotten.
    born: int = 0


Write: TypeAlias = Append | Copy | Trim | DropLog | PutDocument | DeleteDocument | PutLedger


@dataclass(frozen=True, slots=True)
class LogBounds:
    """Where a log begins and ends. An empty log has ``first == end``."""

    first: int  #: offset of the oldest message still stored
    end: int  #: offset that the next message will get
    bytes: int  #: size of the stored batches' data
    time: int  #: time of the newest append ever made, 0 where there was none
    forgotten: int = 0  #: the highest ``born`` of the ledger entries that trims have forgotten


#: Log → its bounds.
Bounds: TypeAlias = Mapping[int, LogBounds]


@dataclass(frozen=True, slots=True)
class StoredBatch:
    first: int
    end: int
    time: int
    data: bytes
    choice: bytes | None = None  #: which messages of the data the log has, as the copy said; None: all


class Store(Protocol):
    """What a driver offers. Every method is awaited and none blocks the event loop: a driver whose device
    makes it wait brings a thread of its own (``stores/threads.py``). One commit per unit is under way at a
    time; reads may go on beside it.

    A log belongs to the unit ``log % units``, so every method that names a log knows its unit.
    Errors are the StoreFailure branch of landbridge.errors, unless a method says otherwise."""

    #: Number of units, fixed when the store is made. Everything that one commit writes is in one unit.
    units: int

    #: There is no room for batches at the moment: an Append or a Copy is likely to be refused with StoreFull,
    #: while commits that free room go through. Becomes False by itself when there is room again.
    @property
    def is_low(self) -> bool: ...

    #: What was found damaged when the store was opened, a sentence each. It concerns what the sentence names;
    #: the rest works.
    @property
    def findings(self) -> Sequence[str]: ...

    async def open(self) -> None:
        """Make or open it, check its version, recover after a crash. StoreTooNew, StoreBusy (another
        process has it), StoreCorrupt, StoreFailed."""

    async def claim(self, unit: int) -> int:
        """Become the owner of a unit. Returns the unit's new epoch, which is on disk and greater than every
        epoch before: from now on commits with an earlier one are refused."""

    def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Awaitable[Bounds]:
        """All of it or nothing, in the order given, and on disk (fsync) when it is done. Returns the bounds
        of the logs that it has trimmed, as they are after it.

        Fenced: another owner has claimed the unit; nothing was written. StoreFull, StoreBusy, StoreCorrupt (a
        trim or a copy met damage): nothing was written, and a later commit may succeed. StoreFailed: the
        outcome is unknown (a failing fsync); the store then refuses every commit until it is opened anew.
        BadRequest, TooLarge: a fault of the caller, such as an append that leaves a gap or goes back in time,
        a copy of what isn't there, or a log of another unit; nothing was written."""

    async def logs(self, unit: int) -> dict[int, LogBounds]:
        """Every log of a unit. Cheap: independent of how much the logs hold."""

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        """Consecutive batches, starting with the one that holds ``offset`` (or the first one after it,
        where it was trimmed), at least one if there is any, then as many as fit into ``max_bytes``.
        Empty at the end of the log. StoreCorrupt names log and offset when a check fails."""

    async def seek_time(self, log: int, time: int) -> int:
        """The first offset of the oldest batch whose time is at or after ``time``; the log's end when
        there is none, 0 for an unknown log. Logarithmic in the log's size."""

    async def ledger(self, log: int, producer: bytes) -> bytes | None: ...

    async def documents(self, unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        """All (key, value) of a kind in a unit whose key starts with ``prefix``, sorted by key."""

    async def disk(self) -> tuple[int, int] | None:
        """Bytes that are free on the disk of the data, and bytes in all; None where there is no disk."""

    async def check(self) -> list[str]:
        """Look for damage, slowly and thoroughly. One line for each finding; empty when all is well."""

    async def close(self) -> None: ...

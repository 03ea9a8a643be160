"""A terminal's data, taken from one store to another: between a data folder and a server, or between servers.

Everything goes by the store port. The number of units may change on the way (broker/division.py). What is
there is compared at the end. An interrupted copy goes on where it was, unless the terminal has run since.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias

import msgspec

from landbridge.broker import topic as topics
from landbridge.broker.commit import SETTINGS
from landbridge.broker.division import Division, PlacedDocument, merged
from landbridge.broker.topic_table import NEXT_LOG
from landbridge.core.log.store import (
    LEDGER_ONLY,
    Append,
    Copy,
    DeleteDocument,
    DropLog,
    LogBounds,
    PutDocument,
    PutLedger,
    Store,
    StoredBatch,
    Trim,
    Write,
)
from landbridge.core.store_address import StoreAddress, is_address
from landbridge.errors import BadRequest, StoreCorrupt
from landbridge.node import stores
from landbridge.stores.journal.listing import ListedJournal
from landbridge.stores.remote import StoredEntry

#: Told of (bytes done, bytes in all).
Tell: TypeAlias = Callable[[int, int], None]
#: Bytes of batches in one commit, and writes of other kinds.
BYTES_AT_ONCE, WRITES_AT_ONCE = 4 << 20, 500
#: The producer of the entry that only makes known what a log has forgotten.
FORGOTTEN = b"copy"
#: Hints.
DIFFERS = (
    "no terminal starts on this copy, and its source is as it was: remove the copy, and repeat the command"
)
UNREADABLE = "look for the damage with 'landbridge store check'"


class ListedStore(Store, Protocol):
    """A store that can say all that it has."""

    async def kinds(self, unit: int) -> list[str]: ...
    async def ledger_logs(self, unit: int) -> list[int]: ...
    async def ledgers(self, log: int) -> list[StoredEntry]: ...


class CopiedStore(msgspec.Struct, frozen=True):
    """What was copied of one store. ``digest``: SHA-256 over all of it, the same at both ends."""

    store: str
    units: int
    logs: int
    batches: int
    messages: int
    bytes: int
    documents: int
    entries: int
    digest: str


class Copying(msgspec.Struct, frozen=True):
    """What a store says of itself while it is being filled."""

    source: str
    epoch: int  #: of the source, which grows whenever a terminal or a copy opens it


class StorePlace(msgspec.Struct, frozen=True):
    """A data folder or a server."""

    folder: Path | None
    address: StoreAddress | None

    def __str__(self) -> str:
        return str(self.folder if self.address is None else self.address)


def place_of(text: str) -> StorePlace:
    """From what the user has written. BadRequest."""
    if is_address(text) or text.startswith("@"):
        return StorePlace(None, stores.address_of(text))
    return StorePlace(Path(text).absolute(), None)


async def copy_stores(source: StorePlace, target: StorePlace, tell: Tell) -> list[CopiedStore]:
    """Copy the terminal's store and the registry's, as far as they are there. Nothing at the source is
    changed."""
    if str(source) == str(target):
        raise BadRequest("a store can't be copied to where it is")
    copied = []
    async with AsyncExitStack() as stack:
        found = [
            (name, each)
            for name in (stores.BUS, stores.REGISTRY)
            if (each := await stack.enter_async_context(_source(source, name))) is not None
        ]
        if not found:
            raise BadRequest(f"there is no store in {source}")
        for name, store in found:
            async with _target(target, name) as into:
                copying = _StoreCopy(name, store, into, str(source), tell)
                await copying.begin()
                if target.folder is not None and source.address is not None:
                    stores.note(target.folder, source.address)  # until all of it is in the folder
                copied.append(await copying.run())
    if target.folder is not None:
        stores.note(target.folder, None)
    elif source.folder is not None:
        stores.note(source.folder, target.address)
    return copied


@asynccontextmanager
async def _source(place: StorePlace, name: str) -> AsyncIterator[ListedStore | None]:
    if place.folder is not None:
        folder = place.folder / name
        if not (any(folder.glob("*.segment")) or (place.folder / f"{name}.db").exists()):
            yield None
            return
        store: ListedStore = ListedJournal(folder)
    else:
        assert place.address is not None
        address = place.address if name == stores.BUS else stores.registry_address(place.address)
        remote = stores.store_at(address)
        try:
            await remote.find()
        finally:
            await remote.close()
        if not remote.exists:
            yield None
            return
        store = remote
    await store.open()
    try:
        if not await stores.is_whole(store):
            raise BadRequest(f"the store {place} is itself a copy that is not complete")
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def _target(place: StorePlace, name: str) -> AsyncIterator[ListedStore]:
    store: ListedStore
    if place.folder is not None:
        store = ListedJournal(place.folder / name)
    else:
        assert place.address is not None
        address = place.address if name == stores.BUS else stores.registry_address(place.address)
        store = stores.store_at(address)
        await store.find()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


class _StoreCopy:
    def __init__(self, name: str, source: ListedStore, target: ListedStore, origin: str, tell: Tell) -> None:
        self._name, self._source, self._target = name, source, target
        self._origin, self._tell = origin, tell
        self._epochs: list[int] = []  #: of the target's units
        self._epoch = 0  #: the greatest of the source's
        #: The target is a whole copy already, made by a command that ended before it had done all else.
        self._is_whole = False
        self._done = self._whole = 0
        self._batches = self._messages = self._bytes = 0
        #: Of each log of the target: what was put into it, hashed.
        self._digests: dict[int, str] = {}
        self._division: Division
        self._plan: dict[int, tuple[int, LogBounds]]
        self._documents: list[PlacedDocument]
        self._entries: list[PutLedger]

    async def begin(self) -> None:
        """BadRequest where the target has data of its own."""
        await self._claim()
        source = self._source
        bounds = {
            log: each for unit in range(source.units) for log, each in (await source.logs(unit)).items()
        }
        self._division = await self._divide(bounds)
        self._plan = self._planned(bounds)
        # Once to copy it, and once to compare.
        self._whole = 2 * sum(each.bytes for _, each in self._plan.values())
        self._documents = await self._placed()
        self._entries = await self._merged()
        await self._begin()

    async def run(self) -> CopiedStore:
        target, documents, entries = self._target, self._documents, self._entries
        if not self._is_whole:
            for number, (log, each) in sorted(self._plan.items()):
                await self._copy_log(log, each, number)
            await self._put([(each.unit, PutDocument(each.kind, each.key, each.value)) for each in documents])
            await self._put([(each.log % target.units, each) for each in entries])
            await self._compare()
        whole = hashlib.sha256(repr(sorted(self._digests.items())).encode())
        for document in sorted(documents):
            whole.update(repr(document).encode())
        for entry in entries:
            whole.update(repr(entry).encode())
        await target.commit(0, self._epochs[0], [DeleteDocument(stores.COPYING, stores.COPYING)])
        return CopiedStore(
            self._name,
            target.units,
            len(self._digests),
            self._batches,
            self._messages,
            self._bytes,
            len(documents),
            len(entries),
            whole.hexdigest(),
        )

    async def _claim(self) -> None:
        """Own every unit of both, so that nobody changes anything meanwhile. Epochs go on growing: numbers
        that begin with them must not come again."""
        highest = self._epoch = max([await self._source.claim(unit) for unit in range(self._source.units)])
        for unit in range(self._target.units):
            epoch = await self._target.claim(unit)
            while epoch <= highest:
                epoch = await self._target.claim(unit)
            self._epochs.append(epoch)

    async def _divide(self, bounds: Iterable[int]) -> Division:
        source = self._source
        found: list[tuple[str, bytes]] = []
        numbers = list(bounds)
        for unit in range(source.units):
            found += await source.documents(unit, topics.KIND)
            settings = dict(await source.documents(unit, SETTINGS))
            with_next = settings.get(NEXT_LOG, b"1")
            if not with_next.isdigit():
                raise StoreCorrupt("the number of the next log is damaged", hint="start the terminal once")
            numbers.append(int(with_next) * source.units)
        return Division(source.units, self._target.units, found, numbers)

    def _planned(self, bounds: dict[int, LogBounds]) -> dict[int, tuple[int, LogBounds]]:
        """Each log of the target, with the log that it is a copy of and the bounds that it is to have."""
        plan: dict[int, tuple[int, LogBounds]] = {}
        for log, each in bounds.items():
            for number in self._division.logs(log):
                if number in plan:  # the own logs of several units become one
                    each = replace(each, forgotten=max(each.forgotten, plan[number][1].forgotten))
                plan[number] = log, each
        return plan

    async def _placed(self) -> list[PlacedDocument]:
        placed: list[PlacedDocument] = []
        for unit in range(self._source.units):
            for kind in await self._source.kinds(unit):
                if kind == stores.COPYING:
                    continue
                for key, value in await self._source.documents(unit, kind):
                    found = self._division.document(unit, kind, key, value)
                    if found is not None:
                        placed.append(found)
        return [*placed, *self._division.settings()]

    async def _merged(self) -> list[PutLedger]:
        """All ledgers as they are to be at the target."""
        found: dict[tuple[int, bytes], list[PutLedger]] = {}
        for unit in range(self._source.units):
            for log in await self._source.ledger_logs(unit):
                for each in await self._source.ledgers(log):
                    if self._division.keeps(each.producer):
                        for number in self._division.logs(log):
                            put = PutLedger(number, each.producer, each.entry, each.last, each.born)
                            found.setdefault((number, each.producer), []).append(put)
        return [merged(each) for _, each in sorted(found.items())]

    async def _begin(self) -> None:
        """Mark the target as a copy that is not complete. What is there already has to be an earlier part of
        the same copy; if the terminal has run since, it is removed."""
        target = self._target
        marks = await target.documents(0, stores.COPYING)
        mark = msgspec.json.encode(Copying(self._origin, self._epoch))
        remember = PutDocument(stores.COPYING, stores.COPYING, mark)
        if marks and msgspec.json.decode(marks[0][1], type=Copying) == Copying(self._origin, self._epoch - 1):
            await target.commit(0, self._epochs[0], [remember])
            return
        logs = {log: unit for unit in range(target.units) for log in await target.logs(unit)}
        kinds = [(unit, kind) for unit in range(target.units) for kind in await target.kinds(unit)]
        if not marks and (logs or kinds):
            try:
                await self._compare()
            except StoreCorrupt:
                raise BadRequest(
                    "the target has data of its own",
                    hint="name another store, or remove that one by its own means",
                ) from None
            self._is_whole = True
            return
        # Until all of it is removed, the target is no part of this copy either: no source has this epoch.
        away = PutDocument(stores.COPYING, stores.COPYING, msgspec.json.encode(Copying(self._origin, -1)))
        await target.commit(0, self._epochs[0], [away])
        gone: list[tuple[int, Write]] = [(unit, DropLog(log)) for log, unit in logs.items()]
        for unit in range(target.units):
            gone += [(unit, DropLog(log)) for log in await target.ledger_logs(unit)]
        for unit, kind in kinds:
            if kind != stores.COPYING:
                found = await target.documents(unit, kind)
                gone += [(unit, DeleteDocument(kind, key)) for key, _ in found]
        await self._put(gone)
        await target.commit(0, self._epochs[0], [remember])

    async def _put(self, writes: Sequence[tuple[int, Write]]) -> None:
        by_unit: dict[int, list[Write]] = {}
        for unit, write in writes:
            by_unit.setdefault(unit, []).append(write)
        for unit, each in by_unit.items():
            for at in range(0, len(each), WRITES_AT_ONCE):
                await self._target.commit(unit, self._epochs[unit], each[at : at + WRITES_AT_ONCE])

    # -- logs --------------------------------------------------------------------------------------

    async def _copy_log(self, log: int, bounds: LogBounds, number: int) -> None:
        unit = number % self._target.units
        known = (await self._target.logs(unit)).get(number)
        at = bounds.first if known is None else max(known.end, bounds.first)
        writes = self._beginning(number, bounds) if known is None else []
        while at < bounds.end:
            batches = await self._source.read(log, at, BYTES_AT_ONCE)
            if not batches:
                raise StoreCorrupt(f"log {log}: nothing can be read at offset {at}", hint=UNREADABLE)
            if known is None and not bounds.forgotten:
                writes = []  # the first append makes the log
            size = sum(len(each.data) for each in batches)
            appends = _appends(number, batches, self._target.units)
            await self._target.commit(unit, self._epochs[unit], [*writes, *appends])
            known, writes, at = bounds, [], batches[-1].end
            self._more(size)
        if writes:
            await self._target.commit(unit, self._epochs[unit], writes)

    def _beginning(self, number: int, bounds: LogBounds) -> list[Write]:
        """Make a log that knows what it has forgotten, and where it ends if nothing is left of it. A batch
        that is trimmed at once stands for all that was trimmed."""
        forgotten = PutLedger(number, FORGOTTEN, b"", 0, bounds.forgotten)
        if bounds.end == 0:
            return [forgotten, Trim(number, 1)]  # it has a ledger alone
        if bounds.first == 0:
            return []
        # What comes next begins where this ends, and is no older.
        time = bounds.time if bounds.first == bounds.end else 0
        gone = Append(number, bounds.first - 1, bounds.first, time, b"")
        return [gone, forgotten, Trim(number, bounds.first)]

    def _more(self, size: int) -> None:
        self._done += size
        self._tell(self._done, max(self._whole, 1))

    # -- comparing ---------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """StoreCorrupt where the target has not all that the source has, or more."""
        source, target = self._source, self._target
        plan, documents, entries = self._plan, self._documents, self._entries
        there = {log: each for unit in range(target.units) for log, each in (await target.logs(unit)).items()}
        if there != {number: bounds for number, (_, bounds) in plan.items()}:
            raise StoreCorrupt("the copy has other logs than the store", hint=DIFFERS)
        for number, (log, bounds) in sorted(plan.items()):
            digest, counts = await self._digest(source, log, bounds)
            if (await self._digest(target, number, bounds))[0] != digest:
                raise StoreCorrupt(f"the copy of log {log} has other batches than the log", hint=DIFFERS)
            self._digests[number] = digest
            batches, messages, size = counts
            self._batches += batches
            self._messages += messages
            self._bytes += size
            self._more(size)
        stored = [
            PlacedDocument(unit, kind, key, value)
            for unit in range(target.units)
            for kind in await target.kinds(unit)
            if kind != stores.COPYING
            for key, value in await target.documents(unit, kind)
        ]
        if sorted(stored) != sorted(documents):
            raise StoreCorrupt("the copy has other documents than the store", hint=DIFFERS)
        kept = [
            PutLedger(log, each.producer, each.entry, each.last, each.born)
            for unit in range(target.units)
            for log in await target.ledger_logs(unit)
            for each in await target.ledgers(log)
        ]
        if sorted(kept, key=_name) != sorted(entries, key=_name):
            raise StoreCorrupt("the copy has other ledgers than the store", hint=DIFFERS)

    async def _digest(self, store: Store, log: int, bounds: LogBounds) -> tuple[str, tuple[int, int, int]]:
        found = hashlib.sha256(repr(bounds).encode())
        at, batches, size = bounds.first, 0, 0
        while at < bounds.end:
            some = await store.read(log, at, BYTES_AT_ONCE)
            if not some:
                raise StoreCorrupt(f"log {log}: nothing can be read at offset {at}", hint=UNREADABLE)
            for each in some:
                found.update(repr((each.first, each.end, each.time, each.choice, len(each.data))).encode())
                found.update(each.data)
                batches, size, at = batches + 1, size + len(each.data), each.end
        return found.hexdigest(), (batches, bounds.end - bounds.first, size)


def _appends(number: int, batches: Sequence[StoredBatch], units: int) -> list[Write]:
    """Writes that put these batches at the end of a log. A batch of which the log has a choice of messages
    goes into a log that is dropped again, and is copied from there with the choice."""
    aside = (LEDGER_ONLY // units - 1) * units + number % units
    writes: list[Write] = []
    end = 0
    for each in batches:
        if each.choice is None:
            writes.append(Append(number, each.first, each.end, each.time, each.data))
        else:
            first, end = end, end + each.end - each.first
            writes.append(Append(aside, first, end, each.time, each.data))
            writes.append(Copy(number, each.first, each.end, each.time, aside, first, each.choice))
    return [*writes, DropLog(aside)] if end else writes


def _name(put: PutLedger) -> tuple[int, bytes]:
    return put.log, put.producer

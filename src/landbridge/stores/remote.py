"""A store on a server that others run: what Redis and PostgreSQL have in common behind the port.

Each commit of a unit has an epoch and a number, and the unit's record in the server has those of the last
one. So a commit may be asked for again when the answer was lost: the server knows whether it has done it.
Until that is known, the commit is neither done nor failed; it waits, as long as the server is away (ADR 40).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog

from landbridge.core.log.store import (
    LEDGER_ONLY,
    Append,
    Bounds,
    Copy,
    DeleteDocument,
    LogBounds,
    PutDocument,
    PutLedger,
    StoredBatch,
    Trim,
    Write,
)
from landbridge.core.store_address import UNITS, StoreAddress
from landbridge.errors import (
    BadRequest,
    BusError,
    Fenced,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreTooNew,
)
from landbridge.stores.bounds import check_append, check_source

T = TypeVar("T")
log = structlog.get_logger("landbridge.store")

#: The form in which data is kept in a server. A newer one is refused.
FORMAT = 1
#: The largest offset, time or size: Redis counts with doubles, and the drivers keep the same rules.
LARGEST = 2**53 - 1
#: Seconds that a server may be away when the store is opened.
OPEN_WITHIN = 20.0
#: Seconds in which a store has to become free that another process seems to have.
HOLD_WITHIN = 0.3
#: Seconds between two attempts to reach a server: the first, and the longest.
PAUSE, LONGEST_PAUSE = 0.02, 1.0
#: Seconds that a server counts as full after it has refused a commit.
FULL_FOR = 3.0
#: Seconds that a server has to be away until the log says so, and between two lines that do.
TELL_AFTER, TELL_EVERY = 0.5, 10.0
#: Seconds between two looks at how much room there is, and whether another process has the store.
LOOK_EVERY = 1.0
#: Bytes that ``check`` reads at once.
CHECK_AT_ONCE = 8 << 20


class Away(Exception):
    """The server doesn't answer, or can't at the moment: it is asked again. Whether what was asked has
    happened is not known."""


@dataclass(frozen=True, slots=True)
class CommitAnswer:
    """What a server says to a commit."""

    #: "done", "known" (it had done it before), "fenced", "lost" (it doesn't know what it had answered
    #: before), "gap", "source" (a write breaks the rules)
    kind: str
    #: Of "fenced" and "lost": the epoch and number that the server knows; of "gap": end and time of the log;
    #: of "source": the end of the batch that was to be copied, None where there is none.
    first: int | None = None
    second: int = 0
    #: Of "gap" and "source": which of the writes.
    index: int = 0
    #: Of "source": the log that was to be copied from has a choice of the batch's messages.
    has_choice: bool = False


@dataclass(frozen=True, slots=True)
class ServerRoom:
    """How much more a server can take."""

    is_low: bool
    disk: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """An entry of a producer's ledger as it is stored, for a copy of the store."""

    producer: bytes
    entry: bytes
    last: int | None
    born: int


class Engine(Protocol):
    """What a driver does with its server. Each method raises Away where it has no answer, and is then called
    again."""

    async def prepare(self, units: int | None) -> int | None:
        """Reach the server, and check its settings. Returns the units of the store that is there, None where
        there is none. StoreFailed, StoreTooNew."""

    async def make(self, units: int) -> int:
        """Make the store where there is none. Returns its units."""

    async def hold(self) -> None:
        """Keep other processes out. StoreBusy where one has the store."""

    async def claim(self, unit: int, claimant: bytes) -> int:
        """``claimant``: another one for each claim, so that one that is asked for again is known."""

    async def commit(self, unit: int, epoch: int, number: int, writes: Sequence[Write]) -> CommitAnswer:
        """StoreFull where there is no room; nothing was written then."""

    async def logs(self, unit: int, only: Sequence[int] | None = None) -> dict[int, LogBounds]: ...
    async def read(self, unit: int, log: int, offset: int, max_bytes: int) -> list[StoredBatch]: ...
    async def seek_time(self, unit: int, log: int, time: int) -> int: ...
    async def ledger(self, unit: int, log: int, producer: bytes) -> bytes | None: ...
    async def documents(self, unit: int, kind: str, prefix: str) -> list[tuple[str, bytes]]: ...
    async def look(self) -> ServerRoom: ...
    async def check(self, unit: int) -> list[str]: ...
    async def kinds(self, unit: int) -> list[str]: ...
    async def ledgers(self, unit: int, log: int) -> list[StoredEntry]: ...
    async def ledger_logs(self, unit: int) -> list[int]: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class _Unit:
    """What this process knows of a unit that it has claimed."""

    epoch: int = 0  #: 0: not claimed since the store was opened
    number: int = 0  #: of the last commit that the server has answered
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    #: Why every further commit is refused; None while all is well.
    failed: StoreFailed | None = None


class RemoteStore:
    """The port, on a server. ``units`` is right once ``find`` or ``open`` has asked the server."""

    findings: Sequence[str] = ()

    def __init__(self, address: StoreAddress, engine: Engine) -> None:
        self.address = address
        self.units = address.units or UNITS
        #: Whether the server has the store, once ``find`` has asked.
        self.exists = False
        #: Why the server gives no answers at the moment; empty while it does.
        self.trouble = ""
        self._engine = engine
        self._is_open = False
        self._units: list[_Unit] = []
        self._room = ServerRoom(False, None)
        self._full_until = 0.0  #: loop time up to which the server counts as full
        self._looking: asyncio.Task[None] | None = None
        #: Loop time up to which an answer is waited for; None: as long as it takes.
        self._until: float | None = None
        self._told_at = 0.0
        #: Commits that the server has refused because another process has claimed their unit.
        self.fenced = 0

    @property
    def is_low(self) -> bool:
        if not self._is_open:
            return False
        return self._room.is_low or asyncio.get_running_loop().time() < self._full_until

    # -- life --------------------------------------------------------------------------------------

    async def find(self, within: float | None = None) -> int:
        """The units of the store that is there, or that ``open`` would make. Checks the server's settings.
        ``within``: seconds that the server may be away."""
        within = OPEN_WITHIN if within is None else within
        found = await self._answered(lambda: self._engine.prepare(self.address.units), within)
        self.exists = found is not None
        if found is not None:
            self.units = self._agreed(found)
        return self.units

    def _agreed(self, found: int) -> int:
        if self.address.units not in (None, found):
            raise BadRequest(
                f"the store {self.address} has {found} units, not {self.address.units}",
                hint="leave 'units' out of the URL: the number is fixed when a store is made",
            )
        return found

    async def open(self) -> None:
        if self._is_open:
            raise StoreBusy(f"this process has the store {self.address} open already")
        self._until = None
        try:
            await self.find()
            await self._hold()
            if not self.exists:
                log.info("making the store", store=str(self.address), units=self.units)
            self.units = self._agreed(
                await self._answered(lambda: self._engine.make(self.units), OPEN_WITHIN)
            )
            self._room = await self._answered(self._engine.look, OPEN_WITHIN)
        except BaseException:
            await self._engine.close()
            raise
        self._units = [_Unit() for _ in range(self.units)]
        self._is_open = True
        self._looking = asyncio.create_task(self._look())

    async def _hold(self) -> None:
        """Keep other processes out. The server may not have noticed yet that a process which had the store
        was killed a moment ago."""
        until = asyncio.get_running_loop().time() + HOLD_WITHIN
        while True:
            try:
                return await self._answered(self._engine.hold, OPEN_WITHIN)
            except StoreBusy:
                if asyncio.get_running_loop().time() > until:
                    raise
                await asyncio.sleep(PAUSE)

    async def close(self) -> None:
        self._is_open = False
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
            self._looking = None
        await self._engine.close()

    def leave_within(self, seconds: float) -> None:
        """The process ends: from then on nothing waits for a server that is away."""
        self._until = asyncio.get_running_loop().time() + seconds

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY)
            try:
                await self._engine.hold()
                self._room = await self._engine.look()
            except (Away, BusError):
                # Whoever commits or reads tells of it; here nothing is lost but a look.
                continue

    # -- asking until there is an answer -----------------------------------------------------------

    async def _answered(self, ask: Callable[[], Awaitable[T]], within: float | None = None) -> T:
        """Ask until the server answers. StoreFailed when ``within`` seconds have passed, or those of
        ``leave_within``."""
        loop = asyncio.get_running_loop()
        begun, pause = loop.time(), PAUSE
        while True:
            try:
                found = await ask()
            except Away as why:
                now = loop.time()
                if within is None and not self._is_open:
                    raise StoreFailed("the store was closed meanwhile") from None
                until = self._until if within is None else begun + within
                if until is not None and now + pause > until:
                    raise StoreFailed(
                        f"the store {self.address} can't be used: {why}",
                        hint="start the server or mend the way to it, then start this again",
                    ) from None
                self._tell(str(why), now, now - begun)
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
            else:
                self.trouble = ""
                if self._told_at:
                    self._told_at = 0.0
                    log.info("the store answers again", store=str(self.address))
                return found

    def _tell(self, why: str, now: float, waited: float) -> None:
        self.trouble = why
        if waited > TELL_AFTER and now - self._told_at > TELL_EVERY:
            self._told_at = now
            log.warning("waiting for the store", store=str(self.address), why=why)

    # -- changing ----------------------------------------------------------------------------------

    async def claim(self, unit: int) -> int:
        self._require_open(unit)
        state = self._units[unit]
        async with state.turn:
            claimant = os.urandom(16)
            state.epoch = await self._answered(lambda: self._engine.claim(unit, claimant))
            state.number, state.failed = 0, None
            return state.epoch

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        self._require_open(unit)
        self._check(unit, writes)
        state = self._units[unit]
        async with state.turn:
            if epoch != state.epoch:
                raise Fenced(f"unit {unit} was claimed anew, under epoch {state.epoch}; not {epoch}")
            if state.failed is not None:
                raise state.failed
            number = state.number + 1
            answer = await self._settled(state, lambda: self._engine.commit(unit, epoch, number, writes))
            self._judge(unit, state, number, answer, writes)
            state.number = number
            trimmed = sorted({write.log for write in writes if isinstance(write, Trim)})
            if not trimmed:
                return {}
            return await self._settled(state, lambda: self._engine.logs(unit, trimmed))

    async def _settled(self, state: _Unit, ask: Callable[[], Awaitable[T]]) -> T:
        """The answer to a commit. Where there is none, the unit takes no further commits."""
        try:
            return await self._answered(ask)
        except StoreFailed as failure:
            state.failed = failure
            raise
        except StoreFull:
            # What is free now may be too little for the next one as well, and servers tell little about it.
            self._full_until = asyncio.get_running_loop().time() + FULL_FOR
            raise
        except BusError:
            raise
        except BaseException as crash:
            state.failed = StoreFailed(f"a commit was given up before its outcome was known: {crash!r}")
            raise

    def _judge(
        self, unit: int, state: _Unit, number: int, answer: CommitAnswer, writes: Sequence[Write]
    ) -> None:
        """Raise what the answer means, if the commit was not done."""
        if answer.kind in ("done", "known"):
            return
        if answer.kind == "gap":
            end, time = answer.first, answer.second
            write = writes[answer.index]
            assert end is not None
            assert isinstance(write, Append | Copy)
            # What the log was when the write came to it, earlier writes of this commit counted in.
            check_append(LogBounds(end, end, 0, time), write)
            raise StoreFailed(f"log {write.log}: the server has refused an append that follows its end")
        if answer.kind == "source":
            write = writes[answer.index]
            assert isinstance(write, Copy)
            check_source(write, answer.first, b"" if answer.has_choice else None)
            raise StoreFailed(f"log {write.log}: the server has refused a copy of a batch that it has")
        if answer.kind == "fenced":
            self.fenced += 1
            why = f"unit {unit} is owned under epoch {answer.first}, not {state.epoch}"
            log.warning("a late commit was refused", store=str(self.address), why=why)
            raise Fenced(why)
        state.failed = StoreFailed(
            f"unit {unit} of {self.address} has lost commits that it had confirmed: it knows commit "
            f"{answer.second} "
            f"of epoch {answer.first}, and commit {number - 1} of epoch {state.epoch} was on disk",
            hint="a failover or a restart has lost a tail: look for a server that has it, or restart the "
            "terminal to "
            "go on without it (docs/guarantees.md, 'Stores on servers')",
        )
        log.error("the store has lost commits", store=str(self.address), unit=unit, why=str(state.failed))
        raise state.failed

    def _check(self, unit: int, writes: Sequence[Write]) -> None:
        """BadRequest for what no server need be asked about."""
        for write in writes:
            number = getattr(write, "log", unit)
            if number % self.units != unit:
                raise BadRequest(f"a commit of unit {unit} can't write to log {number} of another unit")
            if isinstance(write, Append | Copy):
                check_append(None, write)
                if max(write.end, write.time) > LARGEST:
                    raise BadRequest(f"log {number}: offsets and times end at {LARGEST}")
            elif isinstance(write, PutLedger) and max(write.last or 0, write.born) > LARGEST:
                raise BadRequest(f"log {number}: numbers of a ledger end at {LARGEST}")
            elif isinstance(write, PutDocument | DeleteDocument):
                try:
                    f"{write.kind}{write.key}".encode()
                except UnicodeEncodeError:
                    raise BadRequest(f"the key {write.key!r} of a document is no text") from None

    # -- reading -----------------------------------------------------------------------------------

    async def logs(self, unit: int) -> dict[int, LogBounds]:
        self._require_open(unit)
        return await self._answered(lambda: self._engine.logs(unit))

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        self._require_open()
        unit = log % self.units
        return await self._answered(lambda: self._engine.read(unit, log, min(offset, LARGEST), max_bytes))

    async def seek_time(self, log: int, time: int) -> int:
        self._require_open()
        return await self._answered(lambda: self._engine.seek_time(log % self.units, log, min(time, LARGEST)))

    async def ledger(self, log: int, producer: bytes) -> bytes | None:
        self._require_open()
        return await self._answered(lambda: self._engine.ledger(log % self.units, log, producer))

    async def documents(self, unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        self._require_open(unit)
        return await self._answered(lambda: self._engine.documents(unit, kind, prefix))

    async def disk(self) -> tuple[int, int] | None:
        self._require_open()
        return self._room.disk

    async def check(self) -> list[str]:
        """Read everything, and compare."""
        self._require_open()
        found: list[str] = []
        for unit in range(self.units):
            for number, bounds in sorted((await self.logs(unit)).items()):
                found += await self._check_log(number, bounds)
            found += await self._answered(lambda unit=unit: self._engine.check(unit))  # type: ignore[misc]
        return found

    async def _check_log(self, number: int, bounds: LogBounds) -> list[str]:
        found: list[str] = []
        at, size = bounds.first, 0
        while at < bounds.end:
            try:
                batches = await self.read(number, at, CHECK_AT_ONCE)
            except StoreCorrupt as error:
                found.append(str(error))
                return found
            for batch in batches:
                if batch.first != at or batch.end > bounds.end:
                    # A commit since the bounds were read has appended or trimmed.
                    now = (await self.logs(number % self.units)).get(number)
                    if now != bounds:
                        return found
                    found.append(f"log {number}: a batch at offset {batch.first} where {at} was expected")
                    return found
                at, size = batch.end, size + len(batch.data)
            if not batches:
                break
        now = (await self.logs(number % self.units)).get(number)
        if now == bounds and (at, size) != (bounds.end, bounds.bytes):
            found.append(
                f"log {number}: its batches end at offset {at} with {size} bytes; its bounds say "
                f"{bounds.end} and {bounds.bytes}"
            )
        return found

    # -- for a copy of the store -------------------------------------------------------------------

    async def kinds(self, unit: int) -> list[str]:
        """The kinds of documents that a unit has, sorted."""
        self._require_open(unit)
        return await self._answered(lambda: self._engine.kinds(unit))

    async def ledger_logs(self, unit: int) -> list[int]:
        """The logs of a unit that have a ledger, sorted."""
        self._require_open(unit)
        return await self._answered(lambda: self._engine.ledger_logs(unit))

    async def ledgers(self, log: int) -> list[StoredEntry]:
        """The entries of a log's ledger, sorted by producer."""
        self._require_open()
        return await self._answered(lambda: self._engine.ledgers(log % self.units, log))

    def _require_open(self, unit: int = 0) -> None:
        if not self._is_open:
            raise StoreFailed("the store is not open", hint="call open() first")
        if not 0 <= unit < self.units:
            raise BadRequest(f"the store has {self.units} units, no unit {unit}")


def may_be_ledger_only(log: int, units: int) -> bool:
    """Has the log a number of those that have a ledger and never a batch?"""
    return log < units or log >= LEDGER_ONLY


def too_new(address: StoreAddress, found: int) -> StoreTooNew:
    return StoreTooNew(
        f"the store {address} was written in form {found}, and this version knows {FORMAT}",
        hint="update landbridge",
    )


def in_use(address: StoreAddress, by: str) -> StoreBusy:
    return StoreBusy(
        f"the store {address} is in use by {by}",
        hint="stop that terminal, or give this one a store of its own: ?name=NAME at the end of the URL; "
        "nodes of one terminal are all started with --node NAME",
    )

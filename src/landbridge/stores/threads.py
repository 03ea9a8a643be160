"""From a blocking driver to the port: a thread that commits, and another one that reads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from time import time
from typing import Any, Protocol, TypeAlias, TypeVar

from landbridge.core.log.store import Bounds, LogBounds, PutDocument, StoredBatch, Write
from landbridge.errors import BadRequest, BusError, Fenced, StoreFailed

T = TypeVar("T")
#: The document that keeps the epoch of the unit.
KIND, KEY = "unit", "0"


class BegunCommit(Protocol):
    def sync(self) -> None:
        """Wait until it is on disk. OSError."""


class BlockingDriver(Protocol):
    """A store of one unit whose methods block. The meaning of each is that of the port's (core/log/store.py);
    one ``commit`` may run beside one read."""

    is_low: bool
    findings: list[str]

    def open(self) -> None: ...
    def commit(self, writes: Sequence[Write], epoch: int) -> Bounds: ...
    def begin(self, writes: Sequence[Write], epoch: int) -> BegunCommit | None:
        """Begin a small commit without waiting for anything. None: it has to go by ``commit``."""
        ...

    def end(self, begun: Any, error: OSError | None) -> Bounds:
        """A commit that was begun is on disk, or failed to get there."""
        ...

    def logs(self) -> dict[int, LogBounds]: ...
    def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]: ...
    def seek_time(self, log: int, time: int) -> int: ...
    def ledger(self, log: int, producer: bytes) -> bytes | None: ...
    def documents(self, kind: str, prefix: str = "") -> Iterable[tuple[str, bytes]]: ...
    def usage(self) -> tuple[int, int]: ...
    def check(self) -> list[str]: ...
    def close(self) -> None: ...


#: Who waits for it, its writes and epoch, and the commit if it is begun.
CommitTask: TypeAlias = "tuple[asyncio.Future[Bounds], Sequence[Write], int, BegunCommit | None]"


class ThreadedStore:
    """A blocking driver behind the store port. It has one unit."""

    units = 1

    def __init__(self, driver: BlockingDriver) -> None:
        self.driver = driver
        #: The epoch that was last claimed; 0 before the first claim since it was opened.
        self._epoch = 0
        self._reader: ThreadPoolExecutor | None = None
        self._commits: SimpleQueue[CommitTask | None] = SimpleQueue()
        self._writer: Thread | None = None

    @property
    def is_low(self) -> bool:
        return self.driver.is_low

    @property
    def findings(self) -> Sequence[str]:
        return self.driver.findings

    async def open(self) -> None:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "landbridge-reader")
        await self._run(self.driver.open)
        self._epoch = 0
        # A queue per thread: a thread that was left behind by a dead loop takes nothing from the new one.
        self._commits = SimpleQueue()
        loop = asyncio.get_running_loop()
        self._writer = Thread(
            target=self._write, args=(loop, self._commits), name="landbridge-writer", daemon=True
        )
        self._writer.start()

    async def close(self) -> None:
        if self._writer is not None:
            self._commits.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._writer.join)
            self._writer = None
        if self._reader is not None:
            await self._run(self.driver.close)
            self._reader.shutdown()
            self._reader = None

    async def claim(self, unit: int) -> int:
        self._check_unit(unit)
        stored = dict(await self._run(self.driver.documents, KIND))
        try:
            epoch = int(stored.get(KEY, b"0")) + 1
        except ValueError:
            # The document is damaged. Nobody starts a store once a minute for years.
            epoch = int(time() / 60)
        self._epoch = epoch
        await self.commit(unit, epoch, [PutDocument(KIND, KEY, str(epoch).encode())])
        return epoch

    def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> asyncio.Future[Bounds]:
        done: asyncio.Future[Bounds] = asyncio.get_running_loop().create_future()
        if unit != 0:
            done.set_exception(BadRequest(f"the store has one unit, not a unit {unit}"))
        elif self._writer is None:
            done.set_exception(StoreFailed("the store is not open", hint="call open() first"))
        elif epoch != self._epoch:
            done.set_exception(Fenced(f"unit {unit} is owned under epoch {self._epoch}, not {epoch}"))
        else:
            try:
                begun = self.driver.begin(writes, epoch)
            except BusError as failure:
                done.set_exception(failure)
            else:
                self._commits.put((done, writes, epoch, begun))
        return done

    def _write(
        self,
        loop: asyncio.AbstractEventLoop,
        commits: SimpleQueue[CommitTask | None],
    ) -> None:
        """The writer's thread."""
        while (commit := commits.get()) is not None:
            done, writes, epoch, begun = commit
            if begun is None:
                told = self._told(loop, _settle, done, self._commit(writes, epoch))
            else:
                # Only the wait for the disk is here: each turn of this thread costs the loop one of its own.
                error = None
                try:
                    begun.sync()
                except OSError as failure:
                    error = failure
                told = self._told(loop, self._end, done, begun, error)
            if not told:
                return

    def _told(self, loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> bool:
        try:
            loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:  # the loop was closed under us: a test or a crash, nobody waits any more
            return False
        return True

    def _commit(self, writes: Sequence[Write], epoch: int) -> Bounds | BusError:
        try:
            return self.driver.commit(writes, epoch)
        except BusError as failure:
            return failure
        except BaseException as failure:
            return StoreFailed(f"the store broke: {failure!r}")

    def _end(self, done: asyncio.Future[Bounds], begun: BegunCommit, error: OSError | None) -> None:
        try:
            result: Bounds | BusError = self.driver.end(begun, error)
        except BusError as failure:
            result = failure
        _settle(done, result)

    async def logs(self, unit: int) -> dict[int, LogBounds]:
        self._check_unit(unit)
        return await self._run(self.driver.logs)

    async def read(self, log: int, offset: int, max_bytes: int) -> list[StoredBatch]:
        return await self._run(self.driver.read, log, offset, max_bytes)

    async def seek_time(self, log: int, time: int) -> int:
        return await self._run(self.driver.seek_time, log, time)

    async def ledger(self, log: int, producer: bytes) -> bytes | None:
        return await self._run(self.driver.ledger, log, producer)

    async def documents(self, unit: int, kind: str, prefix: str = "") -> list[tuple[str, bytes]]:
        self._check_unit(unit)
        return list(await self._run(self.driver.documents, kind, prefix))

    async def disk(self) -> tuple[int, int] | None:
        return await self._run(self.driver.usage)

    async def check(self) -> list[str]:
        # Not in the reader's thread: it takes minutes where the store is large.
        return await asyncio.get_running_loop().run_in_executor(None, self.driver.check)

    def _check_unit(self, unit: int) -> None:
        if unit != 0:
            raise BadRequest(f"the store has one unit, not a unit {unit}")

    async def _run(self, method: Callable[..., T], *args: object) -> T:
        if self._reader is None:
            raise StoreFailed("the store is not open", hint="call open() first")
        return await asyncio.get_running_loop().run_in_executor(self._reader, method, *args)


def _settle(done: asyncio.Future[Bounds], result: Bounds | BusError) -> None:
    if done.done():
        return
    if isinstance(result, BusError):
        done.set_exception(result)
    else:
        done.set_result(result)

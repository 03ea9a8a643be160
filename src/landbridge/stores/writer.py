"""Group commit, once for everybody who writes to a store: all work that waits goes into one commit, and its
callers are answered when that commit is on disk.

One commit of a unit is on its way at a time. While it is, new work queues up; the next commit takes all of
it. Work is turned into writes only when its commit is formed, that is, when the one before is applied: so the
state in memory is always exactly what is on disk, and undoing a failed commit is dropping it (ADR 2).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Generic, TypeVar

from landbridge.core.log.store import Bounds, Store, Write
from landbridge.errors import BusError, ShuttingDown, StoreFailed

T = TypeVar("T")
#: Work that goes into one commit: forming it is one turn of the loop, and answering for it another one.
WORK_AT_ONCE = 256


class Commit:
    """One commit in the making."""

    def __init__(self, now: int) -> None:
        self.now = now  #: microseconds since 1970
        self.writes: list[Write] = []
        self.size = 0  #: bytes of batches to be written with it
        self.work = 0  #: pieces of work that went into it; a large one adds to it
        #: Called in order when the commit is on disk, before anybody is answered: memory follows the disk.
        self.on_stored: list[Callable[[], object]] = []
        #: Called in reverse order when it failed: undo what was done to memory while it was formed.
        self.on_failed: list[Callable[[], object]] = []
        #: The bounds of the logs that it has trimmed, once it is on disk.
        self.trimmed: Bounds = {}

    def seal(self) -> list[Write]:
        """All writes. Nothing is added after this."""
        return self.writes


C = TypeVar("C", bound=Commit)


class NotLoaded(Exception):
    """Raised by work that needs something from the disk before it can be turned into writes. The work must
    not have changed anything yet. The writer awaits ``load`` and then asks the work again; order is kept."""

    def __init__(self, load: Callable[[], Awaitable[None]]) -> None:
        self.load = load


class Answered(Exception):
    """Raised by work whose result doesn't depend on the commit, because nothing has to be written for it. The
    work must not have changed anything."""

    def __init__(self, result: Any) -> None:
        self.result = result


def adding(writes: Iterable[Write]) -> Callable[[Commit], None]:
    """Work that only adds these writes."""
    return lambda commit: commit.writes.extend(writes)


class Writer(Generic[C]):
    """The one writer of one unit."""

    def __init__(
        self,
        store: Store,
        unit: int,
        epoch: int,
        *,
        begin: Callable[[], C],
        finish: Callable[[C], None],
        apply: Callable[[C], None],
        most_bytes: int,
    ) -> None:
        self.unit = unit
        self._store = store
        self._epoch = epoch
        self._begin = begin  #: makes an empty commit
        self._finish = finish  #: adds the writes that every commit may carry (changed cursors)
        self._apply = apply  #: takes a stored commit into memory, before its callers are answered
        self._most_bytes = most_bytes
        self._waiting: deque[tuple[Callable[[C], Any], asyncio.Future[Any]]] = deque()
        self._answers: list[tuple[asyncio.Future[Any], Any]] = []  #: of the commit under way: who gets what
        self._forming = False  #: a commit is going to be formed in the loop's next turn
        self._poked = False  #: a commit was asked for since the last one was formed
        self._committing = False  #: a commit is under way
        self._load: asyncio.Task[None] | None = None  #: reads what the next commit needs
        self._closed: BusError | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self.commits = 0  #: number of commits made, failed ones included

    def put(self, work: Callable[[C], T]) -> asyncio.Future[T]:
        """Queue work for the next commit. The future has the work's result when the commit is on disk, or the
        BusError that the work raised or that the commit failed with."""
        done: asyncio.Future[T] = self._loop.create_future()
        if self._closed is not None:
            done.set_exception(self._closed)
        else:
            self._waiting.append((work, done))
            self.poke()
        return done

    def tell(self, work: Callable[[C], object]) -> None:
        """The same for work whose end nobody waits for."""
        self.put(work).add_done_callback(_look_away)

    @property
    def is_busy(self) -> bool:
        """Is a commit under way, or a load that the next one waits for?"""
        return self._committing or self._load is not None

    def poke(self) -> None:
        """Form a commit soon, also if only ``finish`` has something to write."""
        self._poked = True
        if not self._forming and not self.is_busy:
            self._forming = True
            self._loop.call_soon(self._form)

    def _form(self) -> None:
        self._forming = False
        if self.is_busy:
            return
        self._poked = False
        commit = self._begin()
        answers = self._answers = []
        while self._waiting and commit.size < self._most_bytes and commit.work < WORK_AT_ONCE:
            commit.work += 1
            work, done = self._waiting[0]
            try:
                answers.append((done, work(commit)))
            except NotLoaded as missing:
                self._load = self._loop.create_task(self._load_first(missing))
                break
            except Answered as known:
                if not done.done():
                    done.set_result(known.result)
            except BusError as error:
                _reject(done, error)
            except Exception as crash:  # a bug must not stop everybody else's commits
                self._report(crash)
                _reject(done, BusError(f"the terminal failed: {type(crash).__name__}"))
            self._waiting.popleft()
        self._finish(commit)
        writes = commit.seal()
        if writes:
            self._committing = True
            stored = asyncio.ensure_future(self._store.commit(self.unit, self._epoch, writes))
            stored.add_done_callback(lambda stored: self._on_stored(commit, stored))
        else:
            self._answer(commit, None)

    async def _load_first(self, missing: NotLoaded) -> None:
        """Load what the first work in the queue needs."""
        error: BaseException | None = None
        try:
            await missing.load()
        except Exception as failure:
            error = failure
        self._load = None
        if error is not None:
            _, done = self._waiting.popleft()
            if not isinstance(error, BusError):
                self._report(error)
                error = StoreFailed(f"the store broke: {error!r}")
            _reject(done, error)
        self._next()

    def _on_stored(self, commit: C, stored: asyncio.Future[Bounds]) -> None:
        self.commits += 1
        self._committing = False
        if stored.cancelled():
            error: BaseException | None = StoreFailed("the commit was given up")
        else:
            error = stored.exception()
        if error is not None and not isinstance(error, BusError):
            error = StoreFailed(f"the store broke: {error!r}")
        if error is None:
            commit.trimmed = stored.result()
        # Form the next commit in this turn of the loop: the disk must not wait for another turn, which takes
        # milliseconds where many connections have something to say. But not if nobody has asked for one: what
        # only ``finish`` would write can wait for others.
        self._forming = True
        self._answer(commit, error)
        if self._waiting or self._poked:
            self._form()
        else:
            self._forming = False
            self._next()

    def _answer(self, commit: C, error: BusError | None) -> None:
        answers, self._answers = self._answers, []
        if error is None:
            self._call(lambda: self._apply(commit))
            for follow in commit.on_stored:
                self._call(follow)
            for done, result in answers:
                if not done.done():
                    done.set_result(result)
        else:
            for undo in reversed(commit.on_failed):
                self._call(undo)
            for done, _ in answers:
                _reject(done, error)
        self._next()

    def _next(self) -> None:
        """A commit or a load has ended."""
        if self.is_busy:
            return
        if self._waiting or self._poked:
            self.poke()
        elif not self._forming:
            idle, self._idle = self._idle, []
            for waiter in idle:
                if not waiter.done():
                    waiter.set_result(None)

    def _call(self, callback: Callable[[], object]) -> None:
        """A callback that crashes must not keep the others from being called."""
        try:
            callback()
        except Exception as crash:
            self._report(crash)

    def _report(self, crash: BaseException) -> None:
        self._loop.call_exception_handler({"message": "a part of a commit crashed", "exception": crash})

    async def drain(self) -> None:
        """Wait until all that is queued is written."""
        while self._waiting or self.is_busy or self._forming:
            waiter = self._loop.create_future()
            self._idle.append(waiter)
            await waiter

    async def close(self) -> None:
        """Write what is queued, then refuse the rest."""
        await self.drain()
        self._closed = ShuttingDown("the terminal is shutting down")


def _reject(done: asyncio.Future[Any], error: BusError) -> None:
    if not done.done():
        done.set_exception(error)


def _look_away(done: asyncio.Future[Any]) -> None:
    """Nobody waits for this one; without a look at its error asyncio would complain."""
    if not done.cancelled():
        done.exception()

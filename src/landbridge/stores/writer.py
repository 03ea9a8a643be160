"""Group commit, once for everybody who writes to a store: all work that waits goes into one commit, and its
callers are answered when that commit is on disk.

One commit of a unit is on its way at a time. While it is, new work queues up; the next commit takes all of
it. Work is turned into writes only when its commit is formed, that is, when the one before is applied: so the
state in memory is always exactly what is on disk, and undoing a failed commit is dropping it (ADR 2).

A full disk refuses only the work that needs room. Such work says so with ``Commit.need_room`` while it is
formed, and is refused there as long as the store is low. If the disk turns out to be full in the commit
itself, the work that needs room fails, and the other work is formed into the next commit.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from landbridge.core.log.store import Bounds, Store, Write
from landbridge.errors import BusError, Fenced, ShuttingDown, StoreFailed, StoreFull

T = TypeVar("T")
#: Called once: with the result of a piece of work, or with the BusError that ended it.
Then: TypeAlias = Callable[[Any], None]
#: Work that goes into one commit: forming it is one turn of the loop, and answering for it another one.
WORK_AT_ONCE = 256


class Commit:
    """One commit in the making."""

    def __init__(self, now: int) -> None:
        self.now = now  #: microseconds since 1970
        self.writes: list[Write] = []
        self.size = 0  #: bytes of batches to be written with it
        self.work = 0  #: pieces of work that went into it; a large one adds to it
        self.full: StoreFull | None = None  #: why work that needs room is refused; None while there is room
        self.needs = 0  #: how often work has said that it needs room
        self.can_shrink = False  #: some of it is written in less room where there is none: see ``full``
        #: Called in order when the commit is on disk, before anybody is answered: memory follows the disk.
        self.on_stored: list[Callable[[], object]] = []
        #: Called in reverse order when it failed: undo what was done to memory while it was formed. The work
        #: may then be formed again, in another commit.
        self.on_failed: list[Callable[[], object]] = []
        #: Called in reverse order after these when the work is not formed again: its caller is told that it
        #: failed.
        self.on_given_up: list[Callable[[], object]] = []
        #: The bounds of the logs that it has trimmed, once it is on disk.
        self.trimmed: Bounds = {}

    def need_room(self) -> None:
        """The work that is being formed stores messages or other data that may be large, or can't be formed
        twice. StoreFull where there is no room. Work calls this before it changes anything."""
        if self.full is not None:
            raise self.full
        self.needs += 1

    def seal(self) -> list[Write]:
        """All writes. Nothing is added after this."""
        return self.writes


C = TypeVar("C", bound=Commit)


class Formed(NamedTuple):
    """A piece of work in a commit."""

    work: Callable[[Any], Any]
    then: Then
    result: Any
    needs_room: bool


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
        around: AbstractContextManager[object] | None = None,
        fenced: Callable[[], BusError] | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        """``fenced``: called once when another owner has claimed the unit; callers get the error that it
        makes. ``check``: called before a commit is formed and before it leaves; raises a BusError where it
        must not."""
        self._fenced, self._check = fenced, check
        self.unit = unit
        self._store = store
        self._epoch = epoch
        self._begin = begin  #: makes an empty commit
        self._finish = finish  #: adds the writes that every commit may carry (changed cursors)
        self._apply = apply  #: takes a stored commit into memory, before its callers are answered
        self._most_bytes = most_bytes
        self._around = around or nullcontext()  #: entered while the callers of a commit are told its end
        self._waiting: deque[tuple[Callable[[C], Any], Then]] = deque()
        self._formed: list[Formed] = []  #: the work of the commit under way
        self._ended: list[tuple[Then, Any]] = []  #: who is told what before this turn of the loop ends
        self._full: StoreFull | None = None  #: the commit before had no room: the next one is formed without
        self._forming = False  #: a commit is going to be formed in the loop's next turn
        self._poked = False  #: a commit was asked for since the last one was formed
        self._committing = False  #: a commit is under way
        self._load: asyncio.Task[None] | None = None  #: reads what the next commit needs
        self._closed: BusError | None = None
        self._stopped = False  #: nothing is written any more, not even what is queued
        self._idle: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self.commits = 0  #: number of commits made, failed ones included
        self.commit_seconds = 0.0  #: what they have taken, together
        self._since = 0.0  #: when the commit under way began, in the loop's time

    def put(self, work: Callable[[C], T]) -> asyncio.Future[T]:
        """Queue work for the next commit. The future has the work's result when the commit is on disk, or the
        BusError that the work raised or that the commit failed with."""
        done: asyncio.Future[T] = self._loop.create_future()
        self.hand_in(work, partial(_end, done))
        return done

    def hand_in(self, work: Callable[[C], T], then: Callable[[T | BusError], None]) -> None:
        """The same for callers of which there are many. ``then`` is called in the turn of the loop in which
        the commit is on disk; whoever waits for a future goes on a turn later."""
        if self._closed is not None:
            then(self._closed)
        else:
            self._waiting.append((work, then))
            self.poke()

    def tell(self, work: Callable[[C], object]) -> None:
        """The same for work whose end nobody waits for."""
        self.hand_in(work, _ignore)

    @property
    def is_busy(self) -> bool:
        """Is a commit under way, or a load that the next one waits for?"""
        return self._committing or self._load is not None

    def poke(self) -> None:
        """Form a commit soon, also if only ``finish`` has something to write."""
        self._poked = True
        if not (self._forming or self._committing or self._load is not None):
            self._forming = True
            self._loop.call_soon(self._form_and_tell)

    def _form_and_tell(self) -> None:
        self._form()
        if self._ended:
            with self._around:
                self._tell_all()

    def _form(self) -> None:
        self._forming = False
        if self.is_busy:
            return
        self._poked = False
        if self._stopped:
            self._next()
            return
        if self._check is not None and not self._may_write():
            return
        commit = self._begin()
        commit.full, self._full = self._full, None
        if commit.full is None and self._store.is_low:
            commit.full = StoreFull("the disk has no room for messages")
        formed = self._formed = []
        while self._waiting and commit.size < self._most_bytes and commit.work < WORK_AT_ONCE:
            commit.work += 1
            waiting = work, then = self._waiting[0]
            needs = commit.needs
            try:
                result = work(commit)
                formed.append(Formed(work, then, result, commit.needs > needs))
            except NotLoaded as missing:
                self._load = self._loop.create_task(self._load_for(waiting, missing))
                break
            except Answered as known:
                self._ended.append((then, known.result))
            except BusError as error:
                self._ended.append((then, error))
            except Exception as crash:  # a bug must not stop everybody else's commits
                self._report(crash)
                self._ended.append((then, BusError(f"the terminal failed: {type(crash).__name__}")))
            self._waiting.popleft()
        self._finish(commit)
        writes = commit.seal()
        if writes:
            self._committing = True
            self._since = self._loop.time()
            stored = asyncio.ensure_future(self._commit(writes))
            stored.add_done_callback(partial(self._on_stored, commit))
        else:
            self._end(commit, None)
            self._next()

    def _may_write(self) -> bool:
        """Is the unit still this process's to write? If not, nothing is decided by what is in memory, which
        may be older than what is stored: whoever waits is told."""
        assert self._check is not None
        try:
            self._check()
        except BusError as error:
            waiting, self._waiting = self._waiting, deque()
            self._ended += [(then, error) for _, then in waiting]
            self._next()
            if self._ended:
                self._loop.call_soon(self._tell_all)
            return False
        return True

    def _commit(self, writes: list[Write]) -> Awaitable[Bounds]:
        if self._check is not None:
            try:
                self._check()
            except BusError as error:
                refused: asyncio.Future[Bounds] = self._loop.create_future()
                refused.set_exception(error)
                return refused
        return self._store.commit(self.unit, self._epoch, writes)

    async def _load_for(self, waiting: tuple[Callable[[C], Any], Then], missing: NotLoaded) -> None:
        """Load what work in the queue needs."""
        error: BaseException | None = None
        try:
            await missing.load()
        except Exception as failure:
            error = failure
        self._load = None
        if error is not None:
            if waiting not in self._waiting:  # the writer was stopped meanwhile, and the caller was told
                self._next()
                return
            self._waiting.remove(waiting)
            if not isinstance(error, BusError):
                self._report(error)
                error = StoreFailed(f"the store broke: {error!r}")
            self._ended.append((waiting[1], error))
            self._tell_all()
        self._next()

    def _on_stored(self, commit: C, stored: asyncio.Future[Bounds]) -> None:
        self.commits += 1
        self.commit_seconds += self._loop.time() - self._since
        self._committing = False
        if stored.cancelled():
            error: BaseException | None = StoreFailed("the commit was given up")
        else:
            error = stored.exception()
        if error is not None and not isinstance(error, BusError):
            error = StoreFailed(f"the store broke: {error!r}")
        if error is None:
            commit.trimmed = stored.result()
        elif isinstance(error, Fenced) and self._fenced is not None:
            if self._closed is None:
                self.stop(self._fenced())
            error = self._closed
            assert error is not None
        # Form the next commit in this turn of the loop: the disk must not wait for another turn, which takes
        # milliseconds where many connections have something to say, nor for the answers. But not if nobody
        # has asked for one: what only ``finish`` would write can wait for others.
        self._forming = True
        with self._around:
            if isinstance(error, StoreFull) and (commit.needs or commit.can_shrink):
                self._form_without(commit, error)
            else:
                self._end(commit, error)
            if self._waiting or self._poked:
                self._form()
            else:
                self._forming = False
                self._next()
            self._tell_all()

    def _end(self, commit: C, error: BusError | None) -> None:
        """Memory follows a commit that is on disk, or forgets one that failed."""
        formed, self._formed = self._formed, []
        if error is None:
            self._call(partial(self._apply, commit))
            for follow in commit.on_stored:
                self._call(follow)
            self._ended += [(each.then, each.result) for each in formed]
        else:
            for undo in (*reversed(commit.on_failed), *reversed(commit.on_given_up)):
                self._call(undo)
            self._ended += [(each.then, error) for each in formed]

    def _tell_all(self) -> None:
        """Tell the callers whose work has ended, in the order in which it did."""
        ended, self._ended = self._ended, []
        for then, result in ended:
            try:
                then(result)
            except Exception as crash:  # the others have to be told all the same
                self._report(crash)

    def _form_without(self, commit: C, error: StoreFull) -> None:
        """There was no room for a commit: undo it, and put the work that needs no room back to the front."""
        formed, self._formed = self._formed, []
        for undo in reversed(commit.on_failed):
            self._call(undo)
        self._ended += [(each.then, error) for each in formed if each.needs_room]
        again = [(each.work, each.then) for each in formed if not each.needs_room]
        if again:
            self._waiting.extendleft(reversed(again))
            self._full = error

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

    async def close(self, why: BusError | None = None) -> None:
        """Write what is queued, then refuse the rest."""
        await self.drain()
        self._closed = self._closed or why or ShuttingDown("the terminal is shutting down")

    def stop(self, why: BusError) -> None:
        """Write nothing any more: what is queued is refused, and whatever comes."""
        self._closed, self._stopped = why, True
        waiting, self._waiting = self._waiting, deque()
        self._ended += [(then, why) for _, then in waiting]
        self._loop.call_soon(self._form_and_tell)


def _end(done: asyncio.Future[Any], result: Any) -> None:
    """End a future with a result or an error, unless whoever waited for it has given up."""
    if done.done():
        return
    if isinstance(result, BusError):
        done.set_exception(result)
    else:
        done.set_result(result)


def _ignore(result: object) -> None:
    """Nobody waits for this."""

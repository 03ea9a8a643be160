"""Code of users in the middleware: found by its entry point, called in a thread of its own, within a budget
of time.

A call can't be stopped from outside. One that takes too long refuses its batch and goes on without anybody
waiting for it; the next batch gets another thread. When too many calls have not come back, batches are
refused at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from queue import SimpleQueue
from typing import Any

from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.spec import TransformStage
from landbridge.core.middleware.transform import GROUP, Transform, TransformRow, apply, rows_for, take_back
from landbridge.core.wording import counted, did_you_mean
from landbridge.errors import BadRequest, BusError, MiddlewareFailed

#: Calls of one stage that have not come back in time.
MOST_STUCK = 3


def load_transform(spec: TransformStage) -> Transform:
    """Find a transform and make it. BadRequest where it isn't installed, MiddlewareFailed where it can't be
    made."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if spec.use not in found:
        hint = did_you_mean(spec.use, found, f"a package offers it as an entry point of the group {GROUP}")
        raise BadRequest(f"transform: no entry point {spec.use[:60]!r} in the group {GROUP}", hint=hint)
    try:
        made = found[spec.use].load()(dict(spec.options))
    except BusError:
        raise
    except Exception as error:
        raise MiddlewareFailed(
            f"the transform {spec.use} can't be made: {type(error).__name__}: {str(error)[:200]}"
        ) from None
    if not callable(made):
        kind = type(made).__name__
        raise MiddlewareFailed(f"the entry point {spec.use} has made {kind}, which can't be called")
    transform: Transform = made
    return transform


class TransformThread:
    """One thread of one stage."""

    def __init__(self, name: str) -> None:
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        # As a daemon: a call that never returns must not keep the process from ending.
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def call(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Do this in the thread."""
        done: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put((work, done))
        return done

    def end(self) -> None:
        """Let the thread end when it has done what it was given."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            work, done = call
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            try:
                self._loop.call_soon_threadsafe(_end, done, result, error)
            except RuntimeError:  # the terminal has ended meanwhile
                return


def _end(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)


class Transforming:
    """The stage at work."""

    def __init__(self, spec: TransformStage, topic: str) -> None:
        self._spec, self._topic = spec, topic
        self._transform = load_transform(spec)
        self._thread: TransformThread | None = None
        self._stuck = 0
        self._is_over = False

    async def work(self, rows: BatchRows) -> None:
        """Let the transform change a batch. MiddlewareFailed where it raises or takes too long."""
        name = self._spec.use
        if self._stuck >= MOST_STUCK:
            stuck = f"{self._stuck} calls of the transform {name} have not come back"
            raise MiddlewareFailed(stuck, hint="repair it, and restart the terminal")
        if self._thread is None:
            self._thread = TransformThread(f"landbridge-{name}"[:60])
        thread = self._thread
        given = rows_for(rows, self._topic)
        done: asyncio.Future[list[TransformRow]] = thread.call(lambda: apply(self._transform, name, given))
        await asyncio.wait([done], timeout=self._spec.within)
        if not done.done():
            self._thread = None
            self._stuck += 1
            done.add_done_callback(self._came_back)
            thread.end()
            raise MiddlewareFailed(
                f"the transform {name} has taken more than {self._spec.within:g} s "
                f"for {counted(len(rows), 'message')}",
                hint="give it more time with 'within', or smaller batches",
            )
        if self._is_over:
            self.close()
        take_back(rows, name, done.result(), keeps_keys=self._spec.at == "deliver")

    def _came_back(self, done: asyncio.Future[Any]) -> None:
        self._stuck -= 1
        if not done.cancelled():
            done.exception()  # nobody waits for it

    def close(self) -> None:
        """Let the thread end, also one that is begun for a batch that is still under way."""
        self._is_over = True
        if self._thread is not None:
            self._thread.end()
            self._thread = None

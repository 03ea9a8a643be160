"""Virtual time and processes: an event loop whose clock jumps to the next timer as soon as nothing else is
left to do, and processes that can be killed at any moment.

    loop = VirtualLoop(network)              an hour of 20 terminals passes in seconds, always in the same way
    paris = VirtualProcess("paris")
    loop.start(paris, terminal.open())       whatever is begun in a process belongs to it
    paris.kill()                             and never runs again

No thread, no socket: work for an executor is done on the spot, and connections are the network's business.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from contextvars import Context, ContextVar, copy_context
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack
from weakref import WeakSet

from landbridge.broker.clock import JUMP, Clock
from landbridge.core.time import SECOND

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
#: Where the clocks stand when a loop begins, in microseconds since 1970.
START = 1_800_000_000_000_000
#: How often what is left at the end is asked to end; some tasks take a few turns over it.
ROUNDS = 20

_process: ContextVar[VirtualProcess | None] = ContextVar("process", default=None)


class Stalled(RuntimeError):
    """A task waits, but nothing is ready to run and no timer is set."""


class VirtualProcess:
    """Callbacks, timers and tasks that die together. Each is recognised by its context, which it inherits
    from the one that made it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.context: Context = copy_context()
        self.context.run(_process.set, self)
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        #: After its death: tasks that stopped where they were. A task that is collected would run its
        #: ``finally`` after all.
        self._halted: list[asyncio.Task[Any]] = []

    def began(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)

    def kill(self) -> None:
        """No line of it runs any more, not even a ``finally``."""
        self.alive = False
        self._halted = list(self._tasks)

    def __repr__(self) -> str:
        return f"<VirtualProcess {self.name}{'' if self.alive else ', dead'}>"

    @staticmethod
    def current() -> VirtualProcess | None:
        return _process.get()


class VirtualNetwork(Protocol):
    """What a loop asks for connections."""

    async def connect(
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]: ...
    def listen(self, factory: Callable[[], asyncio.Protocol], host: str, port: int) -> Any: ...


class _Leap(selectors.DefaultSelector):
    """Waits for no file: a wait is over at once, and the clock has moved by its length."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise Stalled("nothing is ready and no timer runs")
        if timeout > 0:
            self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, network: VirtualNetwork | None = None) -> None:
        self._leap = _Leap()
        super().__init__(self._leap)
        self.network = network
        #: What reached the loop because nobody caught it.
        self.crashes: list[dict[str, Any]] = []
        #: The dead stay too: see VirtualProcess.
        self._processes: set[VirtualProcess] = set()
        self._ending = False
        self.set_exception_handler(self._crashed)

    def time(self) -> float:
        """Seconds since the loop began."""
        return self._leap.now

    def _crashed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._ending:
            self.crashes.append(context)

    # -- callbacks ---------------------------------------------------------------------------------

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        context = copy_context() if context is None else context
        return super().call_soon(self._run, context.get(_process), callback, args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        context = copy_context() if context is None else context
        return super().call_at(when, self._run, context.get(_process), callback, args, context=context)

    def _run(
        self, process: VirtualProcess | None, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if process is None or process.alive or self._ending:
            callback(*args)

    def create_task(  # type: ignore[override]  # narrower than asyncio's: what the bus uses
        self, work: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        task = super().create_task(work, name=name, context=context)
        process = _process.get() if context is None else context.get(_process)
        if process is not None:
            process.began(task)
            self._processes.add(process)
        return task

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """At once: a thread would finish at a moment of its own choice."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    # -- connections -------------------------------------------------------------------------------

    async def create_connection(  # type: ignore[override]  # likewise
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if self.network is None:
            raise OSError("this loop has no network")
        return await self.network.connect(factory, host, port)

    async def create_server(  # type: ignore[override]  # likewise
        self, factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> Any:
        if self.network is None:
            raise OSError("this loop has no network")
        return self.network.listen(factory, host, port)

    # -- life --------------------------------------------------------------------------------------

    def start(self, process: VirtualProcess, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work in a process."""
        return self.create_task(work, context=process.context)

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Until ``main`` is done; then whatever is left is ended, and the loop closed."""
        asyncio.set_event_loop(self)
        try:
            return self.run_until_complete(main)
        finally:
            self._ending = True  # the killed may now run their last lines: nobody looks any more
            for _ in range(ROUNDS):
                left = asyncio.all_tasks(self)
                if not left:
                    break
                for task in left:
                    task.cancel()
                self.run_until_complete(asyncio.wait(left, timeout=0.0))
            asyncio.set_event_loop(None)
            self.close()


class VirtualClock(Clock):
    """A terminal's clock on a loop's time, right or wrong by ``skew`` seconds."""

    def __init__(self, loop: VirtualLoop, skew: float = 0.0) -> None:
        self._loop = loop
        self._offset = START + round(skew * SECOND)
        #: What the wall says, which the terminal follows when it next looks.
        self._wall = self._offset

    def __call__(self) -> int:
        return self._offset + int(self._loop.time() * SECOND)

    def set(self, skew: float) -> None:
        """Somebody sets the wall clock."""
        self._wall = START + round(skew * SECOND)

    def resync(self) -> int:
        delta, self._offset = self._wall - self._offset, self._wall
        return delta if abs(delta) >= JUMP else 0

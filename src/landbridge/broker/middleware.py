"""The middleware of a terminal's topics at work: which stages a batch goes through, in what order, and beside
whom.

A topic with middleware has a *chain*. Batches of its producers queue up in it, one after the other, so their
order stays. What a chain has let through, or has refused, goes to the writer, which asks first whether the
batch is a repeat: so a repeat is answered as before, whatever the chain says now. A topic without middleware
has no chain, and nothing of this is called.

Stages that look at messages work on the event loop, in slices, because what they do holds the interpreter
anyway. All chains share one *pace*: at most one slice of a few hundred microseconds to a millisecond is
worked on in one turn of the loop, whoever's it is. Compression lets other threads run, so it has threads of
its own. Code of users, which may do anything, has a thread for each chain, and a budget of time.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from landbridge.broker.figures import GatewayFigure
from landbridge.core.log.batch import Batch
from landbridge.core.log.packing import check_library, pack
from landbridge.core.middleware.event_types import EventType
from landbridge.core.middleware.rows import Rows
from landbridge.core.middleware.schema import compile_schema
from landbridge.core.middleware.spec import (
    AnyStage,
    CompressStage,
    ValidateStage,
    check_stages,
    is_late,
    name_of,
)
from landbridge.core.middleware.validate import Checkers, Validation
from landbridge.errors import BusError, MiddlewareFailed
from landbridge.stores.writer import NotLoaded

#: Messages and bytes of a slice, and seconds of one chain's turn.
SLICE_MESSAGES, SLICE_BYTES, TURN = 128, 64 << 10, 0.001
#: Bytes of a batch that is compressed on the event loop: it takes less than handing it to a thread.
PACK_HERE = 16 << 10
#: Threads that compress.
PACKERS = 2

#: A batch that may be stored, or why not.
Outcome: TypeAlias = "Batch | BusError"


class Publisher(Protocol):
    """Who publishes."""

    @property
    def subject(self) -> str: ...

    @property
    def claims(self) -> Mapping[str, str]:
        """What is known of the subject, by the names of ``core/middleware/spec.py``."""


class RowStage(Protocol):
    """A stage that looks at one message after the other."""

    def work(self, rows: Rows, lo: int, hi: int) -> None: ...


class StageCounts(msgspec.Struct):
    """What a kind of stage has done in a topic since the start."""

    messages: int = 0
    #: Batches that were refused.
    refused: int = 0
    seconds: float = 0.0


class WorkingStage(NamedTuple):
    """A stage of a chain, ready for use."""

    name: str
    spec: AnyStage
    #: None: it takes the batch as a whole.
    by_row: RowStage | None
    counts: StageCounts


class Job(NamedTuple):
    """A batch that waits for its turn in a chain."""

    batch: Batch
    publisher: Publisher
    #: Is the batch stored already? NotLoaded where the disk has to be asked.
    is_known: Callable[[], bool]
    #: Called with what became of it, in the order in which the batches came.
    then: Callable[[Outcome], None]


class Pace:
    """Shares the event loop among all chains."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def work(self, steps: Iterable[None]) -> None:
        """Take these steps, as many in one turn of the loop as belong into it."""
        left = iter(steps)
        while True:
            async with self._lock:  # those who wait get it in the order in which they came
                until = perf_counter() + TURN
                for _ in left:
                    if perf_counter() >= until:
                        break
                else:
                    return
            await asyncio.sleep(0)


class Host(Protocol):
    """What a chain asks of the terminal."""

    def check_size(self, topic: str, batch: Batch) -> None:
        """TooLarge for a batch that is larger than what clients may publish."""

    async def types_of(self, topic: str) -> dict[str, EventType]:
        """The event types that a topic lists."""

    def chain_ended(self, topic: str) -> None:
        """What waited in the topic's chain is through, and nothing has to go through it any more."""

    def log_crash(self, what: str, error: BaseException) -> None: ...


class Middleware:
    """The chains of all topics."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.pace = Pace()
        self.packers = ThreadPoolExecutor(PACKERS, "landbridge-pack")
        #: Topic → name of a stage → what it has done. Kept when a chain changes.
        self._counts: dict[str, dict[str, StageCounts]] = {}
        self._chains: dict[str, Chain] = {}

    def chain_for(self, topic: str, stages: Sequence[AnyStage]) -> Chain | None:
        """The chain of a topic with these stages; None where nothing is to be done before storing."""
        chain = self._chains.get(topic)
        early = tuple(stage for stage in stages if not is_late(stage))
        if chain is None:
            if not early:
                return None
            chain = self._chains[topic] = Chain(self, topic, early)
        elif not chain.change(early):
            del self._chains[topic]
            return None
        return chain

    def chain_ended(self, chain: Chain) -> None:
        """A chain without stages is empty."""
        if self._chains.get(chain.topic) is chain:
            self.host.chain_ended(chain.topic)

    def types_changed(self, topic: str) -> None:
        """Event types of the topic were registered or removed."""
        if topic in self._chains:
            self._chains[topic].renew()

    def forget(self, topic: str) -> None:
        """The topic is deleted."""
        self._chains.pop(topic, None)
        self._counts.pop(topic, None)

    def counts(self, topic: str, stage: str) -> StageCounts:
        """What a stage has done in a topic; the counts of new ones are all 0."""
        return self._counts.setdefault(topic, {}).setdefault(stage, StageCounts())

    def figures(self) -> Iterable[GatewayFigure]:
        """For the terminal's metrics."""
        for topic, stages in self._counts.items():
            for stage, counts in stages.items():
                labels = {"topic": topic, "stage": stage}
                prefix = "landbridge_middleware"
                yield GatewayFigure(
                    f"{prefix}_messages", "messages that a stage has let through", labels, counts.messages
                )
                yield GatewayFigure(
                    f"{prefix}_refused_batches", "batches that a stage has refused", labels, counts.refused
                )
                yield GatewayFigure(
                    f"{prefix}_seconds", "seconds that a stage has worked", labels, counts.seconds
                )

    async def close(self) -> None:
        """Stop. Batches that wait in chains are not stored, and nobody was told that they are."""
        for chain in self._chains.values():
            await chain.close()
        self.packers.shutdown(wait=False)


def check(stages: Sequence[AnyStage]) -> None:
    """BadRequest or MiddlewareFailed where a chain of these stages can't work here."""
    check_stages(stages)
    for stage in stages:
        if isinstance(stage, CompressStage):
            check_library()
        elif isinstance(stage, ValidateStage):
            compile_schema(True)


class Chain:
    """What is done with the batches of one topic before they are stored."""

    def __init__(self, middleware: Middleware, topic: str, stages: tuple[AnyStage, ...]) -> None:
        self._middleware = middleware
        self.topic = topic
        self._specs = stages
        #: Its stages, ready for use; None: they have to be made ready, anew perhaps.
        self._stages: list[WorkingStage] | None = None
        #: Grows with each change.
        self._version = 0
        self._jobs: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None

    def change(self, stages: tuple[AnyStage, ...]) -> bool:
        """Work with these stages from the next batch on. Returns False where there are none and nothing
        waits, so that batches need not come through the chain any more."""
        self._specs = stages
        self.renew()
        return bool(stages) or bool(self._jobs)

    def renew(self) -> None:
        """Something that the stages go by has changed."""
        self._stages = None
        self._version += 1

    def put(self, job: Job) -> None:
        """Take a batch through the stages, after those that came before."""
        self._jobs.append(job)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def run(self, batch: Batch, publisher: Publisher) -> Outcome:
        """The same for a caller who waits."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def then(outcome: Outcome) -> None:
            if not done.done():
                done.set_result(outcome)

        self.put(Job(batch, publisher, _is_new, then))
        return await done

    async def _work(self) -> None:
        try:
            while self._jobs:
                job = self._jobs[0]
                try:
                    outcome = await self._outcome_of(job)
                finally:
                    self._jobs.popleft()
                job.then(outcome)
        finally:
            self._task = None
        if not self._specs:
            self._middleware.chain_ended(self)

    async def _outcome_of(self, job: Job) -> Outcome:
        try:
            if await _ask(job.is_known):
                return job.batch
            return await self._run(job.batch, job.publisher)
        except BusError as error:
            return error
        except Exception as crash:
            self._middleware.host.log_crash(f"the middleware of {self.topic}", crash)
            return MiddlewareFailed(f"the middleware of {self.topic} failed: {type(crash).__name__}")

    async def _run(self, batch: Batch, publisher: Publisher) -> Batch:
        while (stages := self._stages) is None:
            version = self._version
            made = await self._make_ready(self._specs)
            if version == self._version:  # else something has changed meanwhile
                self._stages = made
        rows = Rows(batch)
        waiting: list[WorkingStage] = []
        for stage in stages:
            if stage.by_row is not None:
                waiting.append(stage)
                continue
            await self._work_by_row(rows, waiting)
            waiting = []
            if isinstance(stage.spec, CompressStage):
                batch = self._checked(rows)
                await self._pack(batch, stage.spec, stage.counts)
                return batch
        await self._work_by_row(rows, waiting)
        return self._checked(rows)

    def _checked(self, rows: Rows) -> Batch:
        """The batch after the stages. TooLarge where they have made too much of it."""
        batch = rows.to_batch()
        if batch is not rows.batch:
            self._middleware.host.check_size(self.topic, batch)
        return batch

    async def _make_ready(self, specs: tuple[AnyStage, ...]) -> list[WorkingStage]:
        stages: list[WorkingStage] = []
        for spec in specs:
            by_row: RowStage | None = None
            if isinstance(spec, ValidateStage):
                types = await self._middleware.host.types_of(self.topic)
                by_row = Validation(Checkers(types), refuses_unlisted=spec.unlisted == "refuse")
            name = name_of(spec)
            stages.append(WorkingStage(name, spec, by_row, self._middleware.counts(self.topic, name)))
        return stages

    async def _work_by_row(self, rows: Rows, stages: list[WorkingStage]) -> None:
        if stages:
            await self._middleware.pace.work(_steps(rows, stages))

    async def _pack(self, batch: Batch, spec: CompressStage, counts: StageCounts) -> None:
        began = perf_counter()
        if batch.size <= PACK_HERE:
            pack(batch, spec.level)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._middleware.packers, partial(pack, batch, spec.level))
        counts.messages += len(batch)
        counts.seconds += perf_counter() - began

    async def close(self) -> None:
        """Stop at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


def _steps(rows: Rows, stages: list[WorkingStage]) -> Iterable[None]:
    """Take the messages through these stages, a slice with each step."""
    for lo, hi in rows.slices(SLICE_MESSAGES, SLICE_BYTES):
        for _, _, by_row, counts in stages:
            assert by_row is not None
            began = perf_counter()
            try:
                by_row.work(rows, lo, hi)
            except BusError:
                counts.refused += 1
                raise
            finally:
                counts.seconds += perf_counter() - began
            counts.messages += hi - lo
        rows.end_slice()
        yield


async def _ask(is_known: Callable[[], bool]) -> bool:
    while True:
        try:
            return is_known()
        except NotLoaded as missing:
            load: Callable[[], Awaitable[None]] = missing.load
            await load()


def _is_new() -> bool:
    return False


def accepted(outcome: Outcome) -> Batch:
    """The batch, as it is to be stored. Raises the refusal where it was refused."""
    if isinstance(outcome, BusError):
        raise outcome
    return outcome


async def run_all(batches: Sequence[tuple[Chain | None, Batch]], publisher: Publisher) -> list[Outcome]:
    """Take the batches of a transaction through the chains of their topics."""
    return [batch if chain is None else await chain.run(batch, publisher) for chain, batch in batches]

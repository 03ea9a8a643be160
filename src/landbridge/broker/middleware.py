"""The middleware of a terminal's topics: which stages their messages go through, and in what order.

A topic with stages before storing has a *chain*. Batches of its producers queue up in it, one after the
other, so their order stays. What a chain has let through, or has refused, goes to the writer, which asks
first whether the batch is a repeat: so a repeat is answered as before, whatever the chain says now. A topic
with stages before delivery has a *view* (``view.py``) for each set of them. A topic without middleware has
neither, and nothing of this is called.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import NamedTuple, Protocol, TypeAlias

import msgspec

from landbridge.broker.figures import GatewayFigure
from landbridge.broker.limits import Limits
from landbridge.broker.log import Cache, Log, LogReader
from landbridge.broker.stage_work import StageCounts, WorkingStage, Workshop, end, make_ready
from landbridge.broker.view import GetReady, TopicView
from landbridge.core.log.batch import Batch
from landbridge.core.middleware.event_types import EventType
from landbridge.core.middleware.spec import (
    AnyStage,
    CompressStage,
    RedactStage,
    TransformStage,
    ValidateStage,
    is_late,
)
from landbridge.errors import BusError, MiddlewareFailed, ShuttingDown, TooLarge, TooOld
from landbridge.protocol import frames
from landbridge.protocol.session import MAX_HEAD
from landbridge.stores.writer import NotLoaded

#: Batches and bytes that are compressed together.
TOGETHER, TOGETHER_BYTES = 64, 2 << 20
#: A batch that may be stored, or why not.
Outcome: TypeAlias = "Batch | BusError"


class PublishingSubject(Protocol):
    """Who publishes."""

    @property
    def subject(self) -> str: ...

    @property
    def claims(self) -> Mapping[str, str]:
        """What is known of the subject, by the names of ``core/middleware/spec.py``."""


class RunsBatches(Protocol):
    """A topic's middleware."""

    async def run(self, batch: Batch, publisher: PublishingSubject) -> Outcome: ...


class WaitingBatch(NamedTuple):
    """A batch that waits for its turn in a chain."""

    batch: Batch
    publisher: PublishingSubject
    #: Is the batch stored already? NotLoaded where the disk has to be asked.
    is_known: Callable[[], bool]
    #: Called with what became of it, in the order in which the batches came.
    then: Callable[[Outcome], None]


class MiddlewareHost(Protocol):
    """What a chain asks of the terminal."""

    @property
    def limits(self) -> Limits: ...

    def check_size(self, topic: str, batch: Batch) -> None:
        """TooLarge for a batch that is larger than what clients may publish."""

    async def types_of(self, topic: str) -> dict[str, EventType]:
        """The event types that a topic lists."""

    def chain_ended(self, topic: str) -> None:
        """What waited in the topic's chain is through, and nothing has to go through it any more."""

    def log_crash(self, what: str, error: BaseException) -> None: ...


class Middleware:
    """The chains and views of all topics."""

    def __init__(self, host: MiddlewareHost, cache: Cache) -> None:
        self.host = host
        self.workshop = Workshop()
        self._cache = cache
        #: Topic → name of a stage → what it has done. Kept when the stages change.
        self._counts: dict[str, defaultdict[str, StageCounts]] = {}
        self._chains: dict[str, Chain] = {}
        self._views: dict[str, TopicViews] = {}
        #: Logs have numbers from 0 on.
        self._view_numbers = count(-1, -1)

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

    def views_for(self, topic: str, log: Log, stages: Sequence[AnyStage]) -> TopicViews | None:
        """The views of a topic with these stages; None where its groups read the log."""
        if (before := self._views.pop(topic, None)) is not None:
            before.forget()
        if not any(map(is_late, stages)):
            return None
        views = self._views[topic] = TopicViews(self, topic, log, tuple(stages))
        return views

    def new_view(self, topic: str, log: Log, get_ready: GetReady) -> TopicView:
        """A view of a topic's log."""
        limits = self.host.limits
        most = limits.max_frame - min(MAX_HEAD, limits.max_frame // 2)

        def check_size(batch: Batch) -> None:
            if batch.size > most:
                raise TooLarge(f"a batch of {batch.size} bytes before delivery, allowed are {most}")
            self.host.check_size(topic, batch)

        return TopicView(next(self._view_numbers), log, self._cache, self.workshop, get_ready, check_size)

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
        if (chain := self._chains.pop(topic, None)) is not None:
            chain.change(())
        if (views := self._views.pop(topic, None)) is not None:
            views.forget()
        self._counts.pop(topic, None)

    def counts_of(self, topic: str) -> Mapping[str, StageCounts]:
        """What the stages of a topic have done, by name; the counts of new ones are all 0."""
        return self._counts.setdefault(topic, defaultdict(StageCounts))

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
        for views in self._views.values():
            views.forget()
        self.workshop.close()


class TopicViews:
    """The views of one topic: what its groups read in place of the log."""

    def __init__(self, middleware: Middleware, topic: str, log: Log, stages: tuple[AnyStage, ...]) -> None:
        self._middleware, self._topic, self._log = middleware, topic, log
        self._late = [stage for stage in stages if is_late(stage)]
        #: Places of stages among those before delivery → the view that they make.
        self._views: dict[tuple[int, ...], TopicView] = {}
        self._ready: dict[tuple[int, ...], list[WorkingStage]] = {}

    def of(self, group: str | None) -> LogReader:
        """Where a group reads. None: whoever reads a topic in no group's name gets it by all stages."""
        places = tuple(at for at, stage in enumerate(self._late) if group not in _exceptions(stage))
        if not places:
            return self._log
        view = self._views.get(places)
        if view is None:
            get_ready = partial(self._get_ready, places)
            view = self._views[places] = self._middleware.new_view(self._topic, self._log, get_ready)
        return view

    async def _get_ready(self, places: tuple[int, ...]) -> list[WorkingStage]:
        if places not in self._ready:
            counts = self._middleware.counts_of(self._topic)
            self._ready[places] = make_ready(
                [self._late[at] for at in places], self._topic, {}, counts, self._middleware.workshop.checking
            )
        return self._ready[places]

    async def run(self, batch: Batch) -> Batch:
        """Take a batch that is in no log through all stages."""
        places = tuple(range(len(self._late)))
        return await self._middleware.workshop.run(batch, await self._get_ready(places), {})

    def forget(self) -> None:
        """The views are not used any more."""
        for view in self._views.values():
            view.forget()
        for stages in self._ready.values():
            end(stages)


def _exceptions(stage: AnyStage) -> tuple[str, ...]:
    return stage.except_groups if isinstance(stage, TransformStage | RedactStage) else ()


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
        #: Those that no stage has looked at, and before them those whose end was not told.
        self._jobs: deque[WaitingBatch] = deque()
        self._under_way: deque[WaitingBatch] = deque()
        self._task: asyncio.Task[None] | None = None

    def change(self, stages: tuple[AnyStage, ...]) -> bool:
        """Work with these stages from the next batch on. Returns False where there are none and nothing
        waits, so that batches need not come through the chain any more."""
        self._specs = stages
        self.renew()
        return bool(stages) or self._task is not None

    def renew(self) -> None:
        """Something that the stages go by has changed."""
        end(self._stages)
        self._stages = None
        self._version += 1

    def put(self, job: WaitingBatch) -> None:
        """Take a batch through the stages, after those that came before."""
        self._jobs.append(job)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def run(self, batch: Batch, publisher: PublishingSubject) -> Outcome:
        """The same for a caller who waits."""
        done: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def then(outcome: Outcome) -> None:
            if not done.done():
                done.set_result(outcome)

        self.put(WaitingBatch(batch, publisher, _is_new, then))
        return await done

    async def _work(self) -> None:
        packing: asyncio.Task[None] | None = None
        packed: list[tuple[WaitingBatch, Outcome]] = []
        try:
            while self._jobs or packed:
                done = [(job, await self._outcome_of(job)) for job in self._take()]
                if packing is not None:
                    await packing
                for job, outcome in packed:
                    self._under_way.popleft()
                    job.then(outcome)
                # These are compressed while the next ones go through the other stages.
                packed, packing = done, self._begin_packing([outcome for _, outcome in done])
        finally:
            self._task = None
            if packing is not None:
                packing.cancel()
        if not self._specs:
            self._middleware.chain_ended(self)

    def _take(self) -> list[WaitingBatch]:
        """The next batches. Those that wait together are compressed together, which takes less."""
        most = TOGETHER if any(isinstance(spec, CompressStage) for spec in self._specs) else 1
        taken: list[WaitingBatch] = []
        room = TOGETHER_BYTES
        while self._jobs and len(taken) < most and room > 0:
            taken.append(self._jobs.popleft())
            self._under_way.append(taken[-1])
            room -= taken[-1].batch.size
        return taken

    def _begin_packing(self, outcomes: list[Outcome]) -> asyncio.Task[None] | None:
        stage = self._stages[-1] if self._stages else None
        if stage is None or not isinstance(stage.spec, CompressStage):
            return None
        batches = [outcome for outcome in outcomes if isinstance(outcome, Batch)]
        return asyncio.ensure_future(self._pack(batches, stage))

    async def _pack(self, batches: list[Batch], stage: WorkingStage) -> None:
        try:
            await self._middleware.workshop.pack(batches, stage)
        except Exception as crash:  # they are stored as they are
            self._middleware.host.log_crash(f"compress of {self.topic}", crash)

    async def _outcome_of(self, job: WaitingBatch) -> Outcome:
        try:
            if await _ask(job.is_known):
                # The writer answers from the ledger. If that has forgotten the batch by then, it must not be
                # stored past the stages.
                return TooOld(f"what this producer has stored in {self.topic} is no longer known")
            return await self._run(job.batch, job.publisher)
        except BusError as error:
            return error
        except Exception as crash:
            self._middleware.host.log_crash(f"the middleware of {self.topic}", crash)
            return MiddlewareFailed(f"the middleware of {self.topic} failed: {type(crash).__name__}")

    async def _run(self, batch: Batch, publisher: PublishingSubject) -> Batch:
        while (stages := self._stages) is None:
            version, specs = self._version, self._specs
            types: dict[str, EventType] = {}
            if any(isinstance(spec, ValidateStage) for spec in specs):
                types = await self._middleware.host.types_of(self.topic)
            if version == self._version:  # else something has changed meanwhile
                counts = self._middleware.counts_of(self.topic)
                checking = self._middleware.workshop.checking
                self._stages = make_ready(specs, self.topic, types, counts, checking)
        changed = await self._middleware.workshop.run(batch, stages, publisher.claims, self.topic)
        if changed is not batch:
            self._middleware.host.check_size(self.topic, changed)
        return changed

    async def close(self) -> None:
        """Stop at once."""
        end(self._stages)
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        waiting = [*self._under_way, *self._jobs]
        self._under_way.clear()
        self._jobs.clear()
        for job in waiting:
            job.then(ShuttingDown("the terminal is shutting down"))


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


async def through(
    chain: Chain | None,
    views: TopicViews | None,
    publisher: PublishingSubject,
    frame: frames.SendRequest,
    batch: Batch,
) -> tuple[frames.SendRequest, bytes]:
    """Take a request that isn't stored through the stages of its topic, as the one message of a batch.
    Returns what is to be asked, and the payload."""
    if chain is not None:
        batch = accepted(await chain.run(batch, publisher))
    if views is not None:
        batch = await views.run(batch)
    asked = msgspec.structs.replace(frame, headers=batch.headers(0), key=batch.key(0))
    return asked, batch.payload(0)


async def run_all(
    batches: Sequence[tuple[RunsBatches | None, Batch]], publisher: PublishingSubject
) -> list[Outcome]:
    """Take the batches of a transaction through the chains of their topics."""
    return [batch if chain is None else await chain.run(batch, publisher) for chain, batch in batches]

"""Stages of middleware, ready for use, and batches on their way through them.

Stages that look at one message after the other work on the event loop, in slices, because what they do holds
the interpreter anyway. All of them share one *pace*: in a turn of the loop they work for about a millisecond,
whosever batches these are. Compression lets other threads run, so it has threads of its own. Code of users,
which may do anything, has a thread for each stage.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from time import perf_counter
from typing import NamedTuple, Protocol

import msgspec

from landbridge.broker.checking_process import CheckingProcess
from landbridge.broker.transforms import Transforming, load_transform
from landbridge.core.log.batch import Batch
from landbridge.core.log.packing import check_library, pack, pack_all
from landbridge.core.middleware.authorise import Authorisation
from landbridge.core.middleware.event_types import EventType
from landbridge.core.middleware.redact import Redaction
from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.schema import compile_schema
from landbridge.core.middleware.spec import (
    AnyStage,
    AuthoriseStage,
    CompressStage,
    RedactStage,
    TransformStage,
    ValidateStage,
    check_stages,
    name_of,
)
from landbridge.core.middleware.validate import RowsPart, ToBeExplained, TopicSchemas, Validation
from landbridge.errors import BadRequest, BusError, MiddlewareFailed

#: Messages and bytes of a slice, and seconds of work in one turn of the loop.
SLICE_MESSAGES, SLICE_BYTES, TURN = 128, 64 << 10, 0.001
#: Bytes of a message from which on stages look at it in a thread: it can't be divided into slices, and
#: patterns in two hundred thousand texts take a second.
LARGE = 128 << 10
#: Bytes that are compressed on the event loop, at low levels: that takes less than handing them to a thread.
PACK_HERE, LOW_LEVEL = 16 << 10, 3
#: Threads that compress.
PACKERS = 2


class RowStage(Protocol):
    """A stage that looks at one message after the other."""

    def work(self, rows: BatchRows, lo: int, hi: int) -> None: ...


class StageCounts(msgspec.Struct):
    """What a kind of stage has done in a topic since the start."""

    messages: int = 0
    #: Batches that were refused.
    refused: int = 0
    seconds: float = 0.0


class WorkingStage(NamedTuple):
    """A stage, ready for use."""

    spec: AnyStage
    #: None for compress.
    works: RowStage | Transforming | None
    counts: StageCounts


class StepPlace(enum.Enum):
    """Where the next step is taken."""

    HERE = enum.auto()
    #: In a thread: one large message.
    THREAD = enum.auto()
    #: Where ``CheckingProcess`` is asked: it may take seconds, of which the interpreter is not needed.
    PROCESS = enum.auto()


class StagePace:
    """Shares the event loop among all batches that are on their way through stages."""

    def __init__(self, threads: ThreadPoolExecutor, checking: CheckingProcess) -> None:
        self._lock = asyncio.Lock()
        self._threads = threads
        self._checking = checking

    async def work(self, steps: Iterable[StepPlace], user: str) -> None:
        """Take these steps, as many in one turn of the loop as belong into it. Each says where the next one
        is taken. ``user``: whose steps they are."""
        left = iter(steps)
        where = StepPlace.HERE
        while True:
            if where is StepPlace.PROCESS:
                where = await self._checking.run(user, partial(next, left))
            elif where is StepPlace.THREAD:
                where = await asyncio.get_running_loop().run_in_executor(self._threads, next, left)
            else:
                async with self._lock:  # those who wait get it in the order in which they came
                    until = perf_counter() + TURN
                    for where in left:
                        if where is not StepPlace.HERE or perf_counter() >= until:
                            break
                    else:
                        return
            await asyncio.sleep(0)


class Workshop:
    """What the stages of all topics work with."""

    def __init__(self) -> None:
        self._packers = ThreadPoolExecutor(PACKERS, "landbridge-pack")
        self.checking = CheckingProcess()
        self._pace = StagePace(self._packers, self.checking)

    async def run(
        self, batch: Batch, stages: Sequence[WorkingStage], claims: Mapping[str, str], topic: str = ""
    ) -> Batch:
        """Take a batch of a topic through these stages, but for compress. Their refusal is raised."""
        looking = [stage for stage in stages if stage.works is not None]
        shares = len(looking) > 1
        rows = BatchRows(batch, claims, shares_values=shares)
        by_row: list[tuple[RowStage, StageCounts]] = []
        for _, works, counts in stages:
            if works is None:
                continue
            if not isinstance(works, Transforming):
                by_row.append((works, counts))
                continue
            if by_row:
                await self._pace.work(_steps(rows, by_row), topic)
                by_row = []
            began = perf_counter()
            try:
                await works.work(rows)
                rows = BatchRows(rows.to_batch(), claims, shares_values=shares)
            except BusError:
                counts.refused += 1
                raise
            finally:
                counts.seconds += perf_counter() - began
            counts.messages += len(batch)
        if by_row:
            await self._pace.work(_steps(rows, by_row), topic)
        return rows.to_batch()

    async def pack(self, batches: Sequence[Batch], stage: WorkingStage) -> None:
        """Compress batches that have been through the other stages."""
        spec, _, counts = stage
        assert isinstance(spec, CompressStage)
        began = perf_counter()
        if spec.level <= LOW_LEVEL and sum(batch.size for batch in batches) <= PACK_HERE:
            for batch in batches:
                pack(batch, spec.level)
        else:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._packers, partial(pack_all, batches, spec.level))
        counts.seconds += perf_counter() - began
        counts.messages += sum(map(len, batches))

    def close(self) -> None:
        """Let the threads end."""
        self._packers.shutdown(wait=False)
        self.checking.close()


def _steps(rows: BatchRows, stages: list[tuple[RowStage, StageCounts]]) -> Iterator[StepPlace]:
    """Take the messages through these stages, a part of a slice with each step."""
    checks = next((stage for stage, _ in stages if isinstance(stage, Validation)), None)
    for lo, hi in rows.slices(SLICE_MESSAGES, SLICE_BYTES):
        whole = (RowsPart(lo, hi, by_process=False),)
        for part in whole if checks is None else checks.parts(rows, lo, hi):
            if part.by_process:
                yield StepPlace.PROCESS
            elif hi - lo == 1 and len(rows.payloads[lo]) > LARGE:
                yield StepPlace.THREAD
            for stage, counts in stages:
                yield from _take(rows, part, stage, counts)
            rows.end_slice()
            yield StepPlace.HERE


def _take(rows: BatchRows, part: RowsPart, stage: RowStage, counts: StageCounts) -> Iterator[StepPlace]:
    """Take some messages through one stage."""
    lo, hi, by_process = part
    began = perf_counter()
    try:
        if isinstance(stage, Validation):
            stage.work(rows, lo, hi, by_process=by_process)
        else:
            stage.work(rows, lo, hi)
    except ToBeExplained as misfit:
        counts.refused += 1
        yield StepPlace.PROCESS
        misfit.tell()
    except BusError:
        counts.refused += 1
        raise
    finally:
        counts.seconds += perf_counter() - began
    counts.messages += hi - lo


def check(stages: Sequence[AnyStage]) -> None:
    """BadRequest or MiddlewareFailed where these stages can't work here."""
    check_stages(stages)
    for stage in stages:
        if isinstance(stage, CompressStage):
            check_library()
        elif isinstance(stage, ValidateStage):
            compile_schema(True)
        elif isinstance(stage, RedactStage):
            Redaction(stage)
        elif isinstance(stage, TransformStage):
            load_transform(stage)


def make_ready(
    specs: Sequence[AnyStage],
    topic: str,
    types: Mapping[str, EventType],
    counts: Mapping[str, StageCounts],
    checking: CheckingProcess,
) -> list[WorkingStage]:
    """Stages, ready for use. MiddlewareFailed where one can't work here any more. ``counts``: of each name of
    a stage. ``checking``: where checks are made that may take long."""
    try:
        return _make_ready(specs, topic, types, counts, checking)
    except BadRequest as error:  # it was good when it was set, but a package may be gone since
        raise MiddlewareFailed(str(error), hint=error.hint) from None


def _make_ready(
    specs: Sequence[AnyStage],
    topic: str,
    types: Mapping[str, EventType],
    counts: Mapping[str, StageCounts],
    checking: CheckingProcess,
) -> list[WorkingStage]:
    ready = []
    for spec in specs:
        works: RowStage | Transforming | None = None
        if isinstance(spec, ValidateStage):
            works = Validation(TopicSchemas(types), checking, refuses_unlisted=spec.unlisted == "refuse")
        elif isinstance(spec, AuthoriseStage):
            works = Authorisation(spec)
        elif isinstance(spec, RedactStage):
            works = Redaction(spec)
        elif isinstance(spec, TransformStage):
            works = Transforming(spec, topic)
        ready.append(WorkingStage(spec, works, counts[name_of(spec)]))
    return ready


def end(stages: Sequence[WorkingStage] | None) -> None:
    """These stages are not used any more."""
    for stage in stages or ():
        if isinstance(stage.works, Transforming):
            stage.works.close()

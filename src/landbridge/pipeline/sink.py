"""Writing tables to topics, once (ADR 12).

Each task puts its rows on a stage of the terminal, where nobody sees them, and returns which ones they are.
The driver commits the rows of the tasks that count, under a number; the terminal publishes a number once,
whatever happens to this side before or after.
"""

from __future__ import annotations

import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from landbridge.errors import BadRequest, BusError, OffsetGone
from landbridge.pipeline.access import Access, answer
from landbridge.pipeline.options import WriteOptions
from landbridge.pipeline.source import freeze

if TYPE_CHECKING:
    import pyarrow as pa

#: Batches on their way to the stage, per task.
UNANSWERED = 8


@dataclass
class Staged(WriterCommitMessage):
    """What one task has put on a stage."""

    stage: str
    #: The stage's log that the runs are in; None where there are no rows.
    log: int | None = None
    #: By topic, in the order of the rows.
    runs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


def stage_rows(rows: Iterator[pa.RecordBatch], stage: str, access: Access, topic: str) -> Staged:
    from landbridge.pipeline.columns import batches

    bus = access.bus()
    staged = Staged(stage)
    unanswered: deque[tuple[str, int, Future[tuple[int, int]]]] = deque()

    def take() -> None:
        name, count, future = unanswered.popleft()
        log, first = answer(future, f"a batch for {name}")
        if staged.log not in (None, log):
            raise OffsetGone(f"the stage {stage} was removed while rows were put there", hint="run it again")
        staged.log = log
        runs = staged.runs.setdefault(name, [])
        if runs and runs[-1][1] == first:
            runs[-1] = (runs[-1][0], first + count)
        else:
            runs.append((first, first + count))

    for each in rows:
        for name, count, data in batches(each, topic, bus.new_id, time.time_ns() // 1000):
            unanswered.append((name, count, bus.stage_soon(stage, name, data)))
            if len(unanswered) >= UNANSWERED:
                take()
    while unanswered:
        take()
    freeze()
    return staged


def commit_staged(access: Access, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
    """Publish what the tasks have staged, as this number; their order is the order of the rows."""
    staged = [message for message in messages if isinstance(message, Staged)]
    if not staged:
        return
    logs = {each.log for each in staged if each.log is not None}
    if len(logs) > 1:
        raise OffsetGone("the stage was removed between two tasks", hint="run it again")
    runs: dict[str, list[tuple[int, int]]] = {}
    for each in staged:
        for topic, some in each.runs.items():
            runs.setdefault(topic, []).extend(some)
    access.bus().call(
        "stage.commit",
        stage=staged[0].stage,
        number=number,
        log=max(logs, default=None),
        runs=list(runs.items()),
    )
    freeze()


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, access: Access, options: WriteOptions) -> None:
        self._access, self._options = access, options
        self._stage = options.producer_id or f"write-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage_rows(iterator, self._stage, self._access, self._options.topic)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        commit_staged(self._access, messages, self._options.producer_batch)
        self._drop()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        try:
            self._drop()
        except BusError:
            pass  # what is left there is removed by its age

    def _drop(self) -> None:
        """Remove what wasn't published. A commit that was decided is brought to its end by this, not undone.
        The number is remembered for as long as somebody may come with it again."""
        self._access.bus().call("stage.drop", stage=self._stage, forget=not self._options.producer_id)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, access: Access, options: WriteOptions) -> None:
        self._access, self._options = access, options
        freeze()  # Spark makes one for every micro-batch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise BadRequest("a streaming write outside of a streaming query")
        return stage_rows(iterator, f"query-{query}", self._access, self._options.topic)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_staged(self._access, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Nothing. Spark says this also of a batch whose commit reached the terminal and whose answer got
        lost; and what was staged and not committed goes with the next commit of the query."""

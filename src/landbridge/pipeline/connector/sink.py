"""Writing tables to topics, each row once (ADR 12).

Each task puts its rows on a stage of the terminal, where no consumer sees them, and returns which rows these
are. The driver commits the rows of the successful tasks under a number. The terminal publishes a number once,
whatever fails in Spark before or after.
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
from landbridge.pipeline.connector.access import TerminalAccess, answer
from landbridge.pipeline.connector.options import WriteOptions
from landbridge.pipeline.connector.source import freeze

if TYPE_CHECKING:
    import pyarrow as pa

#: Batches of one task that are on their way to the stage.
UNANSWERED = 8


@dataclass
class StagedRows(WriterCommitMessage):
    """What one task has put on a stage."""

    stage: str
    #: The stage's log that the runs are in; None where there are no rows.
    log: int | None = None
    #: By topic, in the order of the rows.
    runs: dict[str, list[tuple[int, int]]] = field(default_factory=dict)


def stage_rows(rows: Iterator[pa.RecordBatch], stage: str, access: TerminalAccess, topic: str) -> StagedRows:
    from landbridge.pipeline.connector.columns import batches

    bus = access.bus()
    staged = StagedRows(stage)
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


def commit_staged(
    access: TerminalAccess, messages: Sequence[WriterCommitMessage | None], number: int
) -> None:
    """Publish what the tasks have staged, under this number and in the order of the tasks."""
    staged = [message for message in messages if isinstance(message, StagedRows)]
    if not staged:
        return
    logs = {each.log for each in staged if each.log is not None}
    if len(logs) > 1:
        raise OffsetGone("the stage was removed between two tasks", hint="run it again")
    runs: dict[str, list[tuple[int, int]]] = {}
    for each in staged:
        for topic, some in each.runs.items():
            runs.setdefault(topic, []).extend(some)
    log = max(logs, default=None)
    access.bus().call("stage.commit", stage=staged[0].stage, number=number, log=log, runs=list(runs.items()))
    freeze()


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, access: TerminalAccess, options: WriteOptions) -> None:
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
            pass  # The terminal removes the stage when it is old enough.

    def _drop(self) -> None:
        """Remove the rows that were not published. A commit that the terminal has decided is completed by
        this, not undone. The stage's number is kept where the producer may repeat it."""
        self._access.bus().call("stage.drop", stage=self._stage, forget=not self._options.producer_id)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, access: TerminalAccess, options: WriteOptions) -> None:
        self._access, self._options = access, options
        freeze()  # Spark makes a writer for every micro-batch.

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
        if not query:
            raise BadRequest("a streaming write outside of a streaming query")
        return stage_rows(iterator, f"query-{query}", self._access, self._options.topic)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        commit_staged(self._access, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Does nothing. Spark also calls it for a batch whose commit has reached the terminal and whose
        answer was lost. The next commit of the query removes what was staged and not committed."""

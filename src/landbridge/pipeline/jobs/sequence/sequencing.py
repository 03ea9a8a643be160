"""Shards as Spark's state: the processors behind ``sequence`` and ``events``. They load and store the state,
and keep one timer."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from landbridge.pipeline.connector.source import freeze
from landbridge.pipeline.jobs.sequence.audience import Audience
from landbridge.pipeline.jobs.sequence.packs import OUT, packs, unpack
from landbridge.pipeline.jobs.sequence.policy import GapPolicy
from landbridge.pipeline.jobs.sequence.shard import Shard

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues

#: Microseconds of a millisecond. Spark's timers are in milliseconds.
MILLI = 1000


class Sequencing(StatefulProcessor):
    """Takes packs of numbered rows and gives packs of rows in order."""

    def __init__(self, policy: GapPolicy, shards: int) -> None:
        self._policy, self._shards = policy, shards

    def init(self, handle: StatefulProcessorHandle) -> None:
        freeze()
        self._handle = handle
        fields = [StructField(name, BinaryType()) for name in ("positions", "held")]
        self._state = handle.getValueState("shard", StructType(fields))

    def handleInputRows(  # noqa: N802 - Spark's names
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: TimerValues,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        tables = [unpack(packed) for frame in rows for packed in frame["rows"]]
        shard = self._load()
        given = shard.take(timerValues.getCurrentProcessingTimeInMs() * MILLI, pa.concat_tables(tables))
        self._store(shard)
        yield from self._frames(given)

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        shard = self._load()
        given = shard.advance(timerValues.getCurrentProcessingTimeInMs() * MILLI)
        if expiredTimerInfo.getExpiryTimeInMs() == shard.timer:
            shard.timer = 0  # Spark deletes it itself.
        self._store(shard)
        if given is not None:
            yield from self._frames(given)

    def close(self) -> None:
        pass

    def _load(self) -> Shard:
        shard = Shard(self._policy, self._shards)
        stored = self._state.get()
        if stored is not None:
            shard.restore(*stored)
        return shard

    def _store(self, shard: Shard) -> None:
        deadline = shard.next_deadline()
        wanted = 0 if deadline is None else -(-deadline // MILLI)
        if wanted != shard.timer:
            if shard.timer:
                self._handle.deleteTimer(shard.timer)
            if wanted:
                self._handle.registerTimer(wanted)
            shard.timer = wanted
        self._state.update(shard.save())

    def _frames(self, rows: pa.Table) -> Iterator[pd.DataFrame]:
        for some in self.given(rows):
            for packed in packs(some):
                yield pd.DataFrame({"rows": [packed]})

    def given(self, rows: pa.Table) -> Iterator[pa.Table]:
        """What the processor gives for the rows that a shard has released."""
        yield rows


class Dispatching(Sequencing):
    """Takes packs of numbered events and gives packs of notifications. There is one shard."""

    def __init__(self, policy: GapPolicy, users: tuple[bytes, ...]) -> None:
        super().__init__(policy, 1)
        self._users = users

    def init(self, handle: StatefulProcessorHandle) -> None:
        super().init(handle)
        fields = [StructField("users", BinaryType())]
        self._audience = handle.getValueState("audience", StructType(fields))

    def given(self, rows: pa.Table) -> Iterator[pa.Table]:
        audience = Audience(self._users)
        stored = self._audience.get()
        if stored is not None:
            audience.restore(stored[0])
        aside = pc.or_(rows.column("late"), pc.is_valid(rows.column("reason")))
        told = audience.tell(rows.filter(pc.invert(aside)).column("value").to_pylist())
        while some := list(islice(told, OUT)):
            yield _notifications(some)
        self._audience.update((audience.save(),))
        rest = rows.filter(aside)
        clients = pa.nulls(rest.num_rows, pa.binary())
        yield pa.Table.from_arrays(
            [clients, *map(rest.column, ("value", "late", "reason"))], schema=NOTIFICATIONS
        )


#: The client is null in rows that no client is told.
NOTIFICATIONS = pa.schema(
    [("client", pa.binary()), ("line", pa.binary()), ("late", pa.bool_()), ("reason", pa.string())]
)
MEANINGLESS = "an event that means nothing; it had its turn"


def _notifications(told: list[tuple[bytes | None, bytes]]) -> pa.Table:
    clients, lines = zip(*told, strict=True)
    reasons = [MEANINGLESS if client is None else None for client in clients]
    columns = [clients, lines, [False] * len(told), reasons]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, NOTIFICATIONS, strict=True)]
    return pa.Table.from_arrays(arrays, schema=NOTIFICATIONS)

"""The job ``archive``: topics into a lake, each message once.

Each micro-batch becomes files and one commit record (``lake/lake.py``). A micro-batch that is run again after
a crash finds its record and does nothing; or it finds none and clears what the crashed attempt has left.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from landbridge.core.lake import (
    ANOTHER_LAKE,
    MESSAGES,
    REJECTS,
    LakeRecord,
    LakeState,
    Overtaken,
    ends_of,
)
from landbridge.core.log.planning import LogPosition, Positions, to_json
from landbridge.errors import AlreadyArchived, BadOption, BusError, OtherLog, StoreBusy
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.connector.failure import with_hint
from landbridge.pipeline.connector.options import EARLIEST, LATEST, read_options
from landbridge.pipeline.connector.progress import checkpointed
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.running import Place, query_of
from landbridge.pipeline.lake.files import files_at
from landbridge.pipeline.lake.lake import CHECKPOINTS, Lake, micros
from landbridge.pipeline.lake.rows import PAYLOADS, Payload, rejected, transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: The most rows of a micro-batch: what is done again after a crash, and with --delta what the driver holds.
ROWS = 2_000_000
#: Files that a task writes at once. With up to so many topics and days Spark needn't sort, and the rows stay
#: in their order.
WRITERS = 64


@dataclass(frozen=True)
class Archive:
    """Topics, or those of a pattern, into a lake."""

    lake: str
    topics: tuple[str, ...] = ()
    pattern: str = ""
    payload: Payload = "auto"
    #: The group whose cursor retention waits for; "" = none.
    group: str = "archive"
    #: Where to begin with topics that the lake doesn't have yet.
    start_at: Literal["earliest", "latest"] = "earliest"
    rows: int = ROWS
    fail_on_data_loss: bool = True
    #: Write Delta tables by delta-rs, instead of Parquet files and commit records.
    delta: bool = False
    #: Takes rows away; None: all messages are archived.
    choose: Callable[[DataFrame], DataFrame] | None = None

    def __post_init__(self) -> None:
        if self.payload not in PAYLOADS:
            raise BadOption(f"payload is one of {', '.join(PAYLOADS)}, not {self.payload!r}")
        if self.start_at not in ("earliest", "latest"):
            raise BadOption(f"topics start at 'earliest' or 'latest', not {self.start_at!r}")
        if self.rows < 1:
            raise BadOption(f"a micro-batch has at least one row, not {self.rows}")
        if not self.lake:
            raise BadOption("the lake has no path", hint="a folder, or a URL such as hdfs://host/lake")
        if bool(self.topics) == bool(self.pattern):
            raise BadOption(
                "either topics or a pattern say what is archived", hint="orders bills, or --pattern '#'"
            )
        read_options(self._options(), stream=True)

    @property
    def name(self) -> str:
        return "archive"

    @property
    def checkpoint(self) -> str:
        """The default place of its checkpoint: in the lake, because the two belong together."""
        return f"{self.lake.rstrip('/')}/{CHECKPOINTS}/{self.group or self.name}"

    def _options(self) -> dict[str, str]:
        which = {"subscribe": ",".join(self.topics)} if self.topics else {"subscribePattern": self.pattern}
        group = {"group": self.group} if self.group else {}
        return {
            **which,
            **group,
            "startingOffsets": self.start_at,
            "maxOffsetsPerTrigger": str(self.rows),
            "failOnDataLoss": str(self.fail_on_data_loss).lower(),
            "includeHeaders": "true",
            "includeMetadata": "true",
        }

    def start(self, place: Place) -> StreamingQuery:
        options = self._options()
        take: Callable[[DataFrame, int], None]
        if self.delta:
            from landbridge.pipeline.jobs.delta import DeltaLake

            take = DeltaLake(self.lake, self.payload).take
        else:
            lake = Lake(place.spark, self.lake)
            options |= self._starting_offsets(lake.state(), place)
            checkpoint = files_at(place.spark, place.checkpoint)
            take = Batches(lake, self.payload, lambda batch: checkpointed(checkpoint, batch)).take

        def each(frame: DataFrame, batch: int) -> None:
            try:
                take(frame, batch)
            except BusError as error:
                raise with_hint(error) from None

        name = " ".join(filter(None, (self.name, self.group)))  # A session has each name once.
        messages = place.stream(**options)
        if self.choose is not None:
            messages = self.choose(messages)
        return place.writer(messages, name).foreachBatch(each).start()

    def _starting_offsets(self, state: LakeState, place: Place) -> dict[str, str]:
        """A query with a new checkpoint begins where the lake ends, in the same log. Spark ignores this at
        later starts; then the checkpoint and the lake's records say of which logs they are."""
        from landbridge.pipeline.connector.source import SourceTopics

        if not state.ends:
            return {}
        wanted = read_options(self._options(), stream=True)
        names = SourceTopics(TerminalAccess.of(place.where), wanted).names()
        new = LogPosition(EARLIEST if self.start_at == "earliest" else LATEST)
        positions = {name: state.position(name) or new for name in names}
        for name in state.ends:
            if name in positions and not state.logs.get(name):
                what = "was archived by Landbridge 0.1, which didn't keep of which log the offsets are"
                raise OtherLog(f"the lake's topic {name} {what}", hint=ANOTHER_LAKE)
        return {"startingOffsets": json.dumps(to_json(positions))} if positions else {}


class Batches:
    """Writes micro-batches into a lake."""

    def __init__(
        self, lake: Lake, payload: Payload, positions: Callable[[int], Positions] = lambda batch: {}
    ) -> None:
        self._lake, self._payload = lake, payload
        #: Where a micro-batch ends.
        self._positions = positions
        #: Whether the files that earlier runs of this query have left are cleared.
        self._clear = False

    def take(self, frame: DataFrame, batch: int) -> None:
        query, lake = query_of(frame), self._lake
        if not self._clear:
            lake.recover(lambda name: name.startswith(f"{query}-"))
            self._clear = True
        if lake.state().has(query, batch):
            return  # The micro-batch was committed before Spark could note it.
        attempt = lake.attempt(f"{query}-{batch}")
        self._stage(frame, attempt.url)
        places = attempt.staged()
        files = lake.describe(places)
        ends, positions = ends_of(files), self._positions(batch)
        reached = {topic: positions[topic] for topic in ends if topic in positions}
        record = LakeRecord(
            attempt=attempt.id,
            at=micros(),
            query=query,
            batch=batch,
            added=files,
            ends=ends,
            logs={topic: at.log for topic, at in reached.items()},
            stamps={topic: at.stamp for topic, at in reached.items() if at.stamp is not None},
        )
        try:
            if places:
                attempt.put_in_place(places)
                lake.commit(record)
            else:  # There are no rows; or another process took this one for dead and removed the files.
                lake.state().check(record)
        except (AlreadyArchived, OtherLog):
            attempt.withdraw(places)
            raise
        except Overtaken as error:
            attempt.withdraw(places)
            if not lake.state().has(query, batch):
                raise StoreBusy(f"{error}", hint="start the job again, it goes on where it was") from None
        attempt.clear()

    def _stage(self, frame: DataFrame, url: str) -> None:
        """Write the files in one pass over the messages. Rejects are rare; they take a second pass."""
        from pyspark.sql import Observation

        frame.sparkSession.conf.set("spark.sql.maxConcurrentOutputFileWriters", WRITERS)
        rows = transform(frame, self._payload)
        if self._payload != "json":
            _write(rows, f"{url}/{MESSAGES}")
            return
        seen: Any = Observation()
        counted = rows.observe(seen, F.count_if(F.col("json").isNull()).alias("rejects"))
        _write(counted.where("json is not null"), f"{url}/{MESSAGES}")
        if seen.get["rejects"]:
            _write(rejected(rows), f"{url}/{REJECTS}")


def _write(rows: DataFrame, url: str) -> None:
    # A task of the source has a run of the log, and few rows are one task. So the files are few and in the
    # order of the offsets without a shuffle.
    rows.write.partitionBy("topic", "date").parquet(url)

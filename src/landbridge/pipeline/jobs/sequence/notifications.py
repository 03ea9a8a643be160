"""The job ``events``: ``landbridge events`` as a table. It takes numbered events in any order and gives the
notifications of each client, in order and once. The sequencer and the exchange are those of the core."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from landbridge.core.events.parser import valid_id
from landbridge.core.events.sequencer import HOLD
from landbridge.errors import BadOption
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.running import Place
from landbridge.pipeline.jobs.sequence.policy import GapPolicy
from landbridge.pipeline.jobs.sequence.sequence import OrderedFlow, through

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

SCHEMA = "client binary, line binary, late boolean, reason string"


def notifications(frame: DataFrame, policy: GapPolicy | None = None, users: Iterable[str] = ()) -> DataFrame:
    """What each client is told of a stream of events, lines ``sequence|type|from|to`` in the column value.

    client, line    in order for each client; client is null in the rows of the next two
    late            true: its number was given up before it came
    reason          why nobody is told: the line is no event, or means nothing

    A client is there from the first event that names it, or from the beginning where ``users`` names it. All
    events are one sequence, whatever their keys, so one task does the work. Needs the settings ``STATE``."""
    from landbridge.pipeline.jobs.sequence.packs import SHARD
    from landbridge.pipeline.jobs.sequence.sequencing import Dispatching

    policy = policy or GapPolicy(hold=HOLD)
    policy.check()
    rows = frame.select(
        "value",
        *(
            name for name in ("topic", "offset") if name in frame.columns
        ),  # They decide between equal numbers.
        F.lit(b"").alias("source"),
        F.lit(None).cast("bigint").alias("sequence"),
        F.lit(None).cast("string").alias("reason"),
        F.lit(0).alias(SHARD),
    )
    return through(rows, Dispatching(policy, _ids(users)), SCHEMA, policy, lines=True)


def _ids(users: Iterable[str]) -> tuple[bytes, ...]:
    ids = tuple(user.encode() for user in users)
    for user in ids:
        if not valid_id(user):
            raise BadOption(
                f"{user.decode()[:80]!r} can't be the id of a client",
                hint="1 to 64 printable ASCII characters without a space and |",
            )
    return ids


@dataclass(frozen=True)
class Events(OrderedFlow):
    """A job: a topic of events into a topic of notifications, keyed by client."""

    policy: GapPolicy
    #: Clients that are there from the beginning.
    users: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        self.policy.check()
        _ids(self.users)

    @property
    def name(self) -> str:
        return f"events-{self.to}"

    def start(self, place: Place) -> StreamingQuery:
        told = notifications(self.stream(place), self.policy, self.users)
        headers = F.lit(None).cast("array<struct<key:string,value:binary>>")
        rows = told.withColumnsRenamed({"client": "key", "line": "value"}).withColumn("headers", headers)
        return self.publish(rows, place, self.name, partitions=1)  # One sequence is one task.

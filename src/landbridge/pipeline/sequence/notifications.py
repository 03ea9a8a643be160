"""The job ``events``: what ``landbridge events`` does, as a table. Numbered events in any order in; out comes
what each client is told, in order and once. The sequencer and the exchange are the core's, as there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from landbridge.core.events.parser import valid_id
from landbridge.core.events.sequencer import HOLD
from landbridge.errors import BadOption
from landbridge.pipeline.sequence.policy import Policy
from landbridge.pipeline.sequence.sequence import (
    AT_MOST,
    check_flow,
    messages,
    stateful,
    stream_of,
    through,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from landbridge.pipeline.running import Place

SCHEMA = "client binary, line binary, late boolean, reason string"


def notifications(frame: DataFrame, policy: Policy | None = None, users: Iterable[str] = ()) -> DataFrame:
    """What each client is told of a stream of events, lines ``sequence|type|from|to`` in the column value.

    client, line    in order for each client; client is null in the rows of the next two
    late            true: its number was given up before it came
    reason          why nobody is told: the line is no event, or means nothing

    A client is there from the first event on that names it, or from the beginning where ``users`` names it.
    All events are one sequence, whatever their keys: one task does the work. Needs the settings ``STATE``."""
    from pyspark.sql import functions as F

    from landbridge.pipeline.sequence.packs import SHARD
    from landbridge.pipeline.sequence.sequencing import Dispatching

    policy = policy or Policy(hold=HOLD)
    policy.check()
    ties = [name for name in ("topic", "offset") if name in frame.columns]
    rows = frame.select(
        "value",
        *ties,
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
class Events:
    """From a topic of events into one of notifications, keyed by client."""

    #: Or several, joined by commas.
    topic: str
    to: str
    policy: Policy
    #: What comes after its number was given up: dropped, or passed on to ``TO.late``.
    late: Literal["drop", "pass"] = "drop"
    #: Who is there from the beginning.
    users: tuple[str, ...] = ()
    #: The group whose cursor the job moves; None: none.
    group: str | None = None
    at_most: int = AT_MOST

    def __post_init__(self) -> None:
        check_flow(self.topic, self.to, self.late, self.at_most)
        self.policy.check()
        _ids(self.users)

    @property
    def name(self) -> str:
        return f"events-{self.to}"

    def start(self, place: Place) -> StreamingQuery:
        from pyspark.sql import functions as F

        events = stream_of(place, self.topic, self.group, self.at_most)
        told = notifications(events, self.policy, self.users)
        headers = F.lit(None).cast("array<struct<key:string,value:binary>>")
        rows = told.withColumnsRenamed({"client": "key", "line": "value"}).withColumn("headers", headers)
        # One sequence is one task; others would only be started.
        with stateful(place.spark, once=place.trigger.once, partitions=1):
            return place.to_topic(messages(rows, self.to, self.late), self.name)

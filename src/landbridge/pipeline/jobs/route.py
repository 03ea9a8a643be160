"""The job ``route``: the messages of a topic that rules choose, into another topic or into a lake.

The rules are those of ``core/rules``, run by the same code on the same batches, so a job over a topic's
history chooses what a terminal would have chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from landbridge.core.log.batch import Batch
from landbridge.core.names import check_name
from landbridge.core.rules.budget import STEPS, Budget
from landbridge.core.rules.query import Query, Rule, canonical
from landbridge.core.rules.ruleset import CompiledQuery, RuleSet
from landbridge.errors import BadOption, LimitReached
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.archive import Archive
from landbridge.pipeline.jobs.running import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: The most rows of a micro-batch.
AT_MOST = 500_000
#: The header of a message that a rule could not decide about.
REASON_HEADER = "reject-reason"
#: The columns that rules read, and the one that is added.
_READ = ("value", "key", "headers")
_REASON = "undecided"


@dataclass(frozen=True)
class QueryRoute:
    """From a topic to a topic or a lake: each message once that at least one query matches."""

    topic: str
    queries: tuple[Query, ...]
    #: A topic; "" = into the lake.
    to: str = ""
    #: A folder or URL; "" = into the topic.
    lake: str = ""
    #: The group whose cursor retention and lag see; "" = the job's name.
    group: str = ""
    at_most: int = AT_MOST
    #: What a rule may use for a message.
    steps: int = STEPS
    _digest: str = field(default="", init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_name(self.topic, "topic")
        if not self.queries:
            raise BadOption(
                "a route has at least one rule", hint='--match \'{"state": ["paid"]}\', or --rule FILE'
            )
        if bool(self.to) == bool(self.lake):
            raise BadOption(
                "a route leads either to a topic or into a lake", hint="--to TOPIC, or --out FOLDER"
            )
        if self.to:
            check_name(self.to, "topic")
            check_name(self.rejects, "topic")
            if self.to == self.topic:
                raise BadOption(f"{self.to} would be read and written at once", hint="route to another topic")
        if self.at_most < 1 or self.steps < 1:
            raise BadOption("a micro-batch has at least one row, and a rule at least one step")
        for query in self.queries:
            CompiledQuery(query)  # what is wrong with it is said before Spark is started
        digest = hashlib.sha256(b"\n".join(sorted(map(canonical, self.queries)))).hexdigest()[:12]
        object.__setattr__(self, "_digest", digest)

    @property
    def name(self) -> str:
        """Of the job, its checkpoint and its group. Other rules are another job, which begins anew."""
        return ".".join(filter(None, ("route", self.topic, self.to, self._digest)))

    @property
    def rejects(self) -> str:
        """The topic of the messages that a rule could not decide about within its budget."""
        return f"{self.to}.rejects"

    @property
    def checkpoint(self) -> str | None:
        """The default place of its checkpoint: that of a lake is in the lake; None: where those of jobs
        are."""
        return self._archive().checkpoint if self.lake else None

    def start(self, place: Place) -> StreamingQuery:
        if self.lake:
            return self._archive().start(place)
        messages = place.stream(
            subscribe=self.topic,
            startingOffsets="earliest",
            includeHeaders="true",
            group=self.group or self.name,
            maxOffsetsPerTrigger=str(self.at_most),
        )
        return place.to_topics(self.transform(messages), self.name)

    def choose(self, messages: DataFrame) -> DataFrame:
        """The rows that a rule matches, and those about which a rule could not decide, with the reason in a
        column."""
        from pyspark.sql.types import StringType, StructField, StructType

        schema = StructType([*messages.schema.fields, StructField(_REASON, StringType())])
        return messages.mapInArrow(Choosing(self.queries, self.steps), schema)

    def transform(self, messages: DataFrame) -> DataFrame:
        """The rows as messages for the topic, and for that of rejects."""
        headers = F.coalesce(F.col("headers"), F.array().cast(messages.schema["headers"].dataType))
        told = F.struct(F.lit(REASON_HEADER).alias("key"), F.encode(F.col(_REASON), "utf-8").alias("value"))
        is_undecided = F.col(_REASON).isNotNull()
        return self.choose(messages).select(
            F.when(is_undecided, self.rejects).otherwise(self.to).alias("topic"),
            "key",
            "value",
            F.when(is_undecided, F.array_append(headers, told)).otherwise(F.col("headers")).alias("headers"),
        )

    def _archive(self) -> Archive:
        return Archive(
            self.lake,
            (self.topic,),
            group=self.group or self.name,
            rows=self.at_most,
            choose=self._decided,
        )

    def _decided(self, messages: DataFrame) -> DataFrame:
        # A lake has no place for what is undecided, and to leave it out would be a loss.
        decided = Choosing(self.queries, self.steps, refuse=True)
        return messages.mapInArrow(decided, messages.schema)


class Choosing:
    """The function that Spark's workers run on record batches of a topic."""

    def __init__(self, queries: Sequence[Query], steps: int = STEPS, *, refuse: bool = False) -> None:
        self._queries, self._steps = tuple(queries), steps
        #: Fail where a rule can't decide, instead of telling so in a column.
        self._refuse = refuse
        #: Compiled in each worker.
        self._rules: RuleSet | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rules": None}

    def __call__(self, record_batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if self._rules is None:
            rules = [Rule(f"{index}", query) for index, query in enumerate(self._queries)]
            self._rules = RuleSet(rules, budget=Budget(steps=self._steps))
        for rows in record_batches:
            chosen, causes = self._chosen(self._rules, rows)
            undecided = sorted(set(causes) - chosen)
            if undecided and self._refuse:
                row = rows.slice(undecided[0], 1).to_pylist()[0]
                raise LimitReached(
                    f"{row['topic']}@{row['offset']}: {causes[undecided[0]]}",
                    hint="--steps gives rules more; routed to a topic, such messages go to TO.rejects",
                )
            places = sorted({*chosen, *undecided})
            if not places:
                continue
            taken = rows.take(pa.array(places, pa.int64()))
            if not self._refuse:
                reasons = [None if place in chosen else causes[place] for place in places]
                taken = taken.append_column(_REASON, pa.array(reasons, pa.string()))
            yield taken

    def _chosen(self, rules: RuleSet, rows: pa.RecordBatch) -> tuple[set[int], dict[int, str]]:
        """The rows that match, and for rows about which a rule couldn't decide the cause."""
        from landbridge.pipeline.connector.columns import batches

        chosen: set[int] = set()
        causes: dict[int, str] = {}
        first = 0
        read = rows.select([name for name in _READ if name in rows.schema.names])
        for _, count, encoded in batches(read, "any", lambda: bytes(16), 0):
            found = rules.match_batch(Batch.decode(encoded))
            for indices in found.rows.values():
                chosen.update(first + index for index in indices)
            for each in found.exceeded:
                causes.setdefault(first + each.row, f"rule {int(each.rule) + 1} is undecided: {each.cause}")
            first += count
        return chosen, causes

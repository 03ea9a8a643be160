"""Topics as tables for SQL: ``log.NAME`` is what the terminal keeps, ``archive.NAME`` what a lake has, and
``topic.NAME`` both as one, without a gap or an overlap.

The seam is where the lake ends: up to there everything of the topic is in the lake, from there on the log is
read. Where the lake doesn't begin at the beginning and the log still has what is before, that comes first.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from landbridge.core.names import check_name
from landbridge.core.wording import counted, did_you_mean
from landbridge.errors import BadOption, BusError, OffsetGone, UnknownTopic
from landbridge.pipeline.access import Access
from landbridge.pipeline.lake.archive import PARSED
from landbridge.pipeline.sql.need import ALL, Need, needs
from landbridge.pipeline.sql.statement import Rewritten, Statement, View, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from landbridge.core.lake import DataFile, State
    from landbridge.pipeline.lake.lake import Lake

#: In the order of ``SELECT *``. All but ``json`` are those of ``format("landbridge")``.
COLUMNS = {
    "topic": "string",
    "offset": "bigint",
    "timestamp": "timestamp",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "id": "string",
    "priority": "int",
    "origin": "string",
    "json": "variant",
}
#: How far a producer's clock may be ahead of the terminal's, in microseconds: the log is searched by when the
#: terminal took a message, and ``timestamp`` is when its producer published it.
CLOCKS_APART = 86_400_000_000
DAY = 86_400_000_000

_SHOW = re.compile(r"\s*show\s+(topics|tables|views)\s*;?\s*", re.IGNORECASE)


class Span(NamedTuple):
    """What a log has: offsets from ``first`` to before ``end``."""

    first: int
    end: int


class Views:
    """The tables, of one terminal and one lake.

    where: the options context, or url and token; none: the current context.
    lake: where the archive is; None: ``topic.NAME`` is the log.
    allow_gaps: go on where neither archive nor log has some offsets. ``tell`` is told of it."""

    def __init__(
        self,
        spark: SparkSession,
        *,
        where: Mapping[str, str] | None = None,
        lake: str | None = None,
        allow_gaps: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        if not hasattr(spark, "_jsparkSession"):
            raise BadOption("views need a session with a JVM of its own, and this one is Spark Connect's")
        self._spark = spark
        self._where = dict(where or {})
        self._access = Access.of(self._where)
        self._allow_gaps = allow_gaps
        self._tell = tell or (lambda text: None)
        self._lake: Lake | None = None
        if lake is not None:
            from landbridge.pipeline.lake.lake import Lake

            self._lake = Lake(spark, lake)
        #: Views that were made, for names that no other statement has.
        self._made = 0
        #: The last statement, as Spark has it.
        self._last = Rewritten("", [])
        # Spark shows what it raises also to those who catch it.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)

    # -- statements ------------------------------------------------------------------------------------

    def sql(self, text: str) -> DataFrame:
        """Run a statement; the topics that it names, and no others, are opened."""
        if _SHOW.fullmatch(text):
            return self.topics()
        statement = Statement.parse(self._spark, text)
        stand_ins = {view: self._stand_in(view.topic) for view in statement.views}
        needed: dict[str, Need] = {}
        if stand_ins:
            needed = needs(self._run(statement, stand_ins))
        return self._run(statement, {v: self.open(v, needed.get(v.topic, ALL)) for v in statement.views})

    def refusal(self, error: Exception) -> BusError:
        """What went wrong while the rows of the last statement were read; raises again what isn't known."""
        return refusal(error, self._last)

    def _run(self, statement: Statement, frames: Mapping[View, DataFrame]) -> DataFrame:
        names = {}
        for view, frame in frames.items():
            self._made += 1
            names[view] = f"landbridge_{view.kind}_{self._made}"
            frame.createOrReplaceTempView(names[view])
        self._last = statement.rewritten(names)
        try:
            return self._spark.sql(self._last.text)
        except Exception as error:
            raise refusal(error, self._last) from None
        finally:
            for name in names.values():  # the plan has taken them in
                self._spark.catalog.dropTempView(name)

    def _stand_in(self, topic: str) -> DataFrame:
        """No rows and all columns of a topic, in a form that the optimizer can't see through."""
        from pyspark.sql import functions as F

        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "json")
        rows = self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), columns)
        return rows.withColumn("json", F.expr(PARSED)).where(F.col("topic") == topic)

    # -- tables ----------------------------------------------------------------------------------------

    def open(self, view: View, need: Need = ALL) -> DataFrame:
        check_name(view.topic, "topic")
        tables = {"topic": self.topic, "log": self.log, "archive": self.archive}
        return tables[view.kind](view.topic, need)

    def log(self, topic: str, need: Need = ALL) -> DataFrame:
        """What the terminal has of a topic now; what is published later is not in it."""
        return self._from_log(topic, self._span(topic), need)

    def archive(self, topic: str, need: Need = ALL) -> DataFrame:
        lake = self._lake
        if lake is None:
            raise BadOption(f"archive.{topic}: nothing says where the archive is", hint="--lake FOLDER")
        state = lake.state()
        if topic not in state.ends:
            raise self._unknown(topic, list(state.ends), f"the lake has no topic {topic}")
        return self._from_lake(lake, state, topic, need)

    def topic(self, topic: str, need: Need = ALL) -> DataFrame:
        lake = self._lake
        if lake is None:
            return self.log(topic, need)
        for last in (False, True):
            state = lake.state()
            archived = state.ends.get(topic)
            try:
                span = self._span(topic)
            except UnknownTopic:
                if archived is None:
                    raise
                return self._from_lake(lake, state, topic, need)  # it was deleted, and is in the archive
            if archived is None:
                return self._from_log(topic, span, need)
            # Archived and trimmed between the two looks, it would seem to be gone.
            if span.first <= archived <= span.end:
                break
            if last:
                self._gap(topic, span, archived)
        assert archived is not None
        frames = []
        begins = min((file.first for file in _files(state, topic)), default=archived)
        if span.first < begins and _overlap(need, span.first, begins):
            frames.append(self._from_log(topic, Span(span.first, min(begins, span.end)), need))
        if _overlap(need, begins, archived):
            frames.append(self._from_lake(lake, state, topic, need))
        if not frames or (archived < span.end and _overlap(need, archived, span.end)):
            start = min(max(archived, span.first), span.end)
            frames.append(self._from_log(topic, Span(start, span.end), need))
        whole, *more = frames
        for each in more:
            whole = whole.union(each)
        return whole

    def _gap(self, topic: str, span: Span, archived: int) -> None:
        if span.first > archived:
            lost = counted(span.first - archived, "message")
            what = (
                f"{lost} of {topic} are neither in the archive, which ends before offset {archived}, nor in "
                f"the log, which begins at {span.first}"
            )
            hint = "retention was faster than the archive job; --allow-gaps goes on without them"
        else:
            what = f"the archive of {topic} ends before offset {archived}, and its log already at {span.end}"
            hint = "the topic was made anew; read archive.NAME and log.NAME, or --allow-gaps"
        if not self._allow_gaps:
            raise OffsetGone(what, hint=hint)
        self._tell(what)

    def span(self, topic: str) -> Span:
        """The offsets that ``topic.NAME`` has, by what is known of log and lake: nothing is read."""
        spans = []
        if self._lake is not None:
            state = self._lake.state()
            spans += [Span(file.first, file.end) for file in _files(state, topic)]
        try:
            spans.append(self._span(topic))
        except UnknownTopic:
            if not spans:
                raise
        return Span(min(each.first for each in spans), max(each.end for each in spans))

    def topics(self) -> DataFrame:
        """A row for each topic, of the terminal and of the lake."""
        ends = {} if self._lake is None else self._lake.state().ends
        rows = {str(row["name"]): row for row in self._described()}
        found: list[dict[str, Any]] = [
            {each: rows.get(name, {}).get(each) for each in _DESCRIBED}
            | {"topic": name, "archived": ends.get(name)}
            for name in sorted({*rows, *ends})
        ]
        columns = ",".join(f"{each}:bigint" for each in (*_DESCRIBED, "archived"))
        # As a literal it needs no job.
        inline = f"SELECT inline(from_json(:rows, 'array<struct<topic:string,{columns}>>'))"
        return self._spark.sql(inline, {"rows": json.dumps(found)})

    # -- the log ---------------------------------------------------------------------------------------

    def _described(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        after = ""
        while True:
            page = self._access.bus().call("topic.list", after=after)
            rows += page["topics"]
            after = page["next"]
            if not after:
                return rows

    def _span(self, topic: str) -> Span:
        try:
            return Span(*self._access.bus().call("topic.wait", offsets={topic: 0})[topic])
        except UnknownTopic as error:
            raise self._unknown(topic, [str(row["name"]) for row in self._described()], str(error)) from None

    @staticmethod
    def _unknown(topic: str, others: list[str], what: str) -> UnknownTopic:
        return UnknownTopic(what, hint=did_you_mean(topic, others, "see SHOW TOPICS"))

    def _from_log(self, topic: str, span: Span, need: Need) -> DataFrame:
        from pyspark.sql import functions as F

        first, end = span
        if need.since is not None:
            moment = max(0, need.since - CLOCKS_APART)
            first = max(first, self._access.bus().call("topic.seek_time", times={topic: moment})[topic])
        first = max(first, need.first or 0)
        end = end if need.end is None else min(end, need.end)
        first, end = min(first, span.end), min(max(first, end), span.end)
        wanted = set(COLUMNS) if need.columns is None else set(need.columns)
        read = {name: kind for name, kind in COLUMNS.items() if name in wanted} or {"offset": "bigint"}
        reader = self._spark.read.format("landbridge").options(**self._where)
        frame = reader.schema(", ".join(f"{name} {kind}" for name, kind in read.items() if name != "json"))
        offsets = {"startingOffsets": first, "endingOffsets": end}
        rows = frame.options(
            subscribe=topic,
            failOnDataLoss=str(not self._allow_gaps).lower(),
            **{name: json.dumps({topic: {"0": at}}) for name, at in offsets.items()},
        ).load()
        # The others are needed by nobody, and headers and ids would be made row by row.
        made = {name: name for name in read} | ({"json": PARSED} if "value" in read else {})
        columns = [
            F.expr(made.get(name, f"cast(null as {kind})")).alias(name) for name, kind in COLUMNS.items()
        ]
        return rows.select(*columns)

    # -- the lake --------------------------------------------------------------------------------------

    @staticmethod
    def _from_lake(lake: Lake, state: State, topic: str, need: Need) -> DataFrame:
        from landbridge.core.lake import MESSAGES, REJECTS

        wanted = [file for file in _files(state, topic) if _touches(need, file)]
        frames = []
        for table in (MESSAGES, REJECTS):
            files = [file for file in wanted if file.part.table == table]
            if files or table == MESSAGES:
                frame = lake.frame(files, table)
                if table == REJECTS:  # payloads that were to be JSON and are not: messages all the same
                    frame = frame.selectExpr("*", "cast(null as variant) json")
                frames.append(frame.select(*COLUMNS))
        return frames[0] if len(frames) == 1 else frames[0].union(frames[1])


#: Columns of SHOW TOPICS, as the terminal describes a topic.
_DESCRIBED = ("messages", "bytes", "first", "end", "groups")


def _files(state: State, topic: str) -> list[DataFile]:
    return [file for file in state.files.values() if file.part.topic == topic]


def _overlap(need: Need, first: int, end: int) -> bool:
    """Is anything of these offsets needed?"""
    return first < end and (need.first is None or need.first < end) and (need.end is None or need.end > first)


def _touches(need: Need, file: DataFile) -> bool:
    """May a file have rows that are needed? Its folder is the day of its rows, in UTC."""
    if not _overlap(need, file.first, file.end):
        return False
    day = file.part.date
    since, until = _day(need.since), _day(None if need.until is None else need.until + DAY)
    return (since is None or day >= since) and (until is None or day <= until)


def _day(micros: int | None) -> str | None:
    from datetime import UTC, datetime, timedelta

    if micros is None:
        return None
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).date().isoformat()
    except OverflowError:
        return None

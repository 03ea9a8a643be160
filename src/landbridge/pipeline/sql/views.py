"""Topics as tables for SQL: ``log.NAME`` is the terminal's log, ``archive.NAME`` is what a lake has, and
``topic.NAME`` is both as one, without a gap or an overlap.

The two meet where the lake ends: up to there the lake has everything of the topic, and from there on the log
is read. If the lake doesn't begin at offset 0 and the log still has what is before, the log is read there,
too.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple

from landbridge.core.lake import MESSAGES, REJECTS, DataFile, LakeState
from landbridge.core.log.planning import LogPosition, Span, to_json
from landbridge.core.names import check_name
from landbridge.core.wording import counted, did_you_mean
from landbridge.errors import BadOption, BusError, OffsetGone, OtherLog, UnknownTopic
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.functions import F
from landbridge.pipeline.lake.lake import Lake
from landbridge.pipeline.lake.rows import PARSED
from landbridge.pipeline.sql.need import ALL, Need, needs
from landbridge.pipeline.sql.statement import Rewritten, Statement, View, refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

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
#: How far a producer's clock may be ahead of the terminal's, in microseconds. The log is searched by the time
#: at which the terminal took a message, and ``timestamp`` is the time of its producer.
CLOCKS_APART = 86_400_000_000
DAY = 86_400_000_000

#: Columns of SHOW TOPICS that are in the terminal's description of a topic.
_DESCRIBED = ("messages", "bytes", "first", "end", "groups")
_SHOW = re.compile(r"\s*show\s+(topics|tables|views)\s*;?\s*", re.IGNORECASE)


class Logged(NamedTuple):
    """A run of a topic's log, and which log it is."""

    span: Span
    log: str

    def cut(self, first: int, end: int) -> Logged:
        return Logged(Span(self.span.topic, min(first, end), end), self.log)


class Views:
    """The tables of one terminal and one lake.

    where: the options context, or url and token; none: the current context.
    lake: where the archive is; None: ``topic.NAME`` is the log.
    allow_gaps: go on where neither archive nor log has some offsets, and ``tell`` it."""

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
        self._access = TerminalAccess.of(self._where)
        self._allow_gaps = allow_gaps
        self._tell = tell or (lambda text: None)
        self._lake = None if lake is None else Lake(spark, lake)
        #: topic → the log that it has to have, for a reader that comes back with offsets.
        self._expected: dict[str, str] = {}
        #: The number of views that were made, for names that no other statement has.
        self._made = 0
        #: The last statement, as Spark has it.
        self._last = Rewritten("", [])
        # PySpark logs what it raises, even if the error is caught.
        logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)

    # -- statements ------------------------------------------------------------------------------------

    def sql(self, text: str) -> DataFrame:
        """Run a statement. Only the topics that it names are opened."""
        if _SHOW.fullmatch(text):
            return self.topics()
        statement = Statement.parse(self._spark, text)
        stand_ins = {view: self._stand_in(view.topic) for view in statement.views}
        needed = needs(self._run(statement, stand_ins)) if stand_ins else {}
        return self._run(statement, {v: self.open(v, needed.get(v.topic, ALL)) for v in statement.views})

    def refusal(self, error: Exception) -> BusError:
        """The error of reading the rows of the last statement. Raises an unknown error again."""
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
            for name in names.values():  # The plan includes them by now.
                self._spark.catalog.dropTempView(name)

    def _stand_in(self, topic: str) -> DataFrame:
        """All columns of a topic and no rows, in a form that the optimizer doesn't fold away."""
        columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "json")
        rows = self._spark.createDataFrame(self._spark.sparkContext.emptyRDD(), columns)
        return rows.withColumn("json", F.expr(PARSED)).where(F.col("topic") == topic)

    # -- tables ----------------------------------------------------------------------------------------

    def open(self, view: View, need: Need = ALL) -> DataFrame:
        check_name(view.topic, "topic")
        tables = {"topic": self.topic, "log": self.log, "archive": self.archive}
        return tables[view.kind](view.topic, need)

    def log(self, topic: str, need: Need = ALL) -> DataFrame:
        """What the terminal has of a topic now. Messages that are published later are not in it."""
        return self._from_log(self._logged(topic), need)

    def archive(self, topic: str, need: Need = ALL) -> DataFrame:
        if self._lake is None:
            raise BadOption(f"archive.{topic}: nothing says where the archive is", hint="--lake FOLDER")
        state = self._lake.state()
        if topic not in state.ends:
            raise _unknown(topic, list(state.ends), f"the lake has no topic {topic}")
        return self._from_lake(self._lake, state, topic, need)

    def topic(self, topic: str, need: Need = ALL) -> DataFrame:
        lake = self._lake
        if lake is None:
            return self.log(topic, need)
        for is_last_look in (False, True):
            state = lake.state()
            position = state.position(topic)
            archived = None if position is None else position.offset
            try:
                logged = self._logged(topic, position)
            except UnknownTopic:
                if archived is None:
                    raise
                return self._from_lake(lake, state, topic, need)  # It was deleted, and is in the archive.
            if archived is None:
                return self._from_log(logged, need)
            # Messages that are archived and trimmed between the two looks would seem to be gone: look again.
            if logged.span.first <= archived:
                break
            if is_last_look:
                self._gap(logged.span, archived)
        assert archived is not None
        first, end = logged.span.first, logged.span.end
        frames = []
        begins = min((file.first for file in _files(state, topic)), default=archived)
        if need.overlaps(first, begins):
            frames.append(self._from_log(logged.cut(first, min(begins, end)), need))
        if need.overlaps(begins, archived):
            frames.append(self._from_lake(lake, state, topic, need))
        if not frames or need.overlaps(archived, end):
            frames.append(self._from_log(logged.cut(max(archived, first), end), need))
        return reduce(lambda one, other: one.union(other), frames)

    def _gap(self, logged: Span, archived: int) -> None:
        topic, first, _ = logged
        lost = counted(first - archived, "message")
        what = (
            f"{lost} of {topic} are neither in the archive, which ends before offset {archived}, nor in "
            f"the log, which begins at {first}"
        )
        hint = "retention was faster than the archive job; --allow-gaps goes on without them"
        if not self._allow_gaps:
            raise OffsetGone(what, hint=hint)
        self._tell(what)

    def span(self, topic: str) -> tuple[int, int, str]:
        """(first, end, log): the offsets that ``topic.NAME`` has, by what log and lake say, and the log that
        counts them. No row is read. From now on the topic has to have this log."""
        state = LakeState() if self._lake is None else self._lake.state()
        spans = [(file.first, file.end) for file in _files(state, topic)]
        try:
            logged = self._logged(topic, state.position(topic))
            spans.append(logged.span[1:])
            log = logged.log
        except UnknownTopic:
            if not spans:
                raise
            log = state.logs.get(topic, "")
        self._expected[topic] = log
        return min(first for first, _ in spans), max(end for _, end in spans), log

    def topics(self) -> DataFrame:
        """A row for each topic of the terminal and of the lake."""
        ends = {} if self._lake is None else self._lake.state().ends
        rows = {str(row["name"]): row for row in self._described()}
        found: list[dict[str, Any]] = [
            {each: rows.get(name, {}).get(each) for each in _DESCRIBED}
            | {"topic": name, "archived": ends.get(name)}
            for name in sorted({*rows, *ends})
        ]
        columns = ",".join(f"{each}:bigint" for each in (*_DESCRIBED, "archived"))
        # A literal needs no Spark job.
        inline = f"SELECT inline(from_json(:rows, 'array<struct<topic:string,{columns}>>'))"
        return self._spark.sql(inline, {"rows": json.dumps(found)})

    # -- the log ---------------------------------------------------------------------------------------

    def _described(self) -> list[dict[str, Any]]:
        from landbridge.pipeline.connector.source import described_topics

        return list(described_topics(self._access.bus()))

    def _logged(self, topic: str, archived: LogPosition | None = None) -> Logged:
        """What the log has. ``archived`` is where the lake ends: a position of this log, or an error."""
        offset = 0 if archived is None else archived.offset
        try:
            there = self._access.bus().topics.wait({topic: offset})[topic]
        except UnknownTopic as error:
            raise _unknown(topic, [str(row["name"]) for row in self._described()], str(error)) from None
        if self._expected.get(topic, there.log) != there.log:
            raise OtherLog(f"the topic {topic} was made anew meanwhile", hint="run it again")
        if archived is not None:
            what = archived.difference(log=there.log, end=there.end, before=there.before)
            if what is not None:
                hint = f"read archive.{topic} and log.{topic} as two tables, and archive it into another lake"
                raise OtherLog(f"the archive and the log of {topic} are not one: {what}", hint=hint)
        return Logged(Span(topic, there.first, there.end), there.log)

    def _from_log(self, logged: Logged, need: Need) -> DataFrame:
        span = logged.span
        topic, first, end = span
        if need.since is not None:
            moment = max(0, need.since - CLOCKS_APART)
            first = max(first, self._access.bus().call("topic.seek_time", times={topic: moment})[topic])
        first = min(max(first, need.first or 0), span.end)
        end = min(max(first, end if need.end is None else min(end, need.end)), span.end)
        wanted = COLUMNS if need.columns is None else need.columns
        read = {name: kind for name, kind in COLUMNS.items() if name in wanted} or {"offset": "bigint"}
        start, until = {topic: LogPosition(first, logged.log)}, {topic: LogPosition(end)}
        rows = (
            self._spark.read.format("landbridge")
            .schema(", ".join(f"{name} {kind}" for name, kind in read.items() if name != "json"))
            .options(
                **self._where,
                subscribe=topic,
                failOnDataLoss=str(not self._allow_gaps).lower(),
                startingOffsets=json.dumps(to_json(start)),
                endingOffsets=json.dumps(to_json(until)),
            )
            .load()
        )
        # The other columns are not needed; headers and ids would cost work per row.
        made = {name: name for name in read} | ({"json": PARSED} if "value" in read else {})
        return rows.select(
            *(F.expr(made.get(name, f"cast(null as {kind})")).alias(name) for name, kind in COLUMNS.items())
        )

    # -- the lake --------------------------------------------------------------------------------------

    @staticmethod
    def _from_lake(lake: Lake, state: LakeState, topic: str, need: Need) -> DataFrame:
        wanted = [file for file in _files(state, topic) if _may_have(file, need)]
        rejects = [file for file in wanted if file.part.table == REJECTS]
        rows = lake.frame([file for file in wanted if file.part.table == MESSAGES], MESSAGES).select(*COLUMNS)
        if not rejects:
            return rows
        # Their payloads were to be JSON and are not. They are messages of the topic all the same.
        without_json = lake.frame(rejects, REJECTS).selectExpr("*", "cast(null as variant) json")
        return rows.union(without_json.select(*COLUMNS))


def _unknown(topic: str, others: list[str], what: str) -> UnknownTopic:
    return UnknownTopic(what, hint=did_you_mean(topic, others, "see SHOW TOPICS"))


def _files(state: LakeState, topic: str) -> list[DataFile]:
    return [file for file in state.files.values() if file.part.topic == topic]


def _may_have(file: DataFile, need: Need) -> bool:
    """Whether a file may have rows that are needed. Its folder is the day of its rows, in UTC."""
    since, until = _day(need.since), _day(None if need.until is None else need.until + DAY)
    day = file.part.date
    in_time = (since is None or day >= since) and (until is None or day <= until)
    return in_time and need.overlaps(file.first, file.end)


def _day(micros: int | None) -> str | None:
    if micros is None:
        return None
    try:
        return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)).date().isoformat()
    except OverflowError:
        return None

"""The job ``replay``: the messages of a topic, from its log or its archive, are published again, each once.

A replay goes through the source by offsets, in chunks. Each chunk is one batch write (ADR 12). Its producer
is the replay's name together with the source's log, and its number is the source offset before which
everything is replayed then. So the terminal knows how far a replay is, and the numbers only grow. A replay
that is started again goes on from there, also with other chunks, another rate, or on another machine. Of a
topic that was made anew, it begins at the beginning.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from landbridge.core.names import check_name
from landbridge.errors import BadOption, BadStatement, OtherLog
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.running import Place
from landbridge.pipeline.sql.need import Need
from landbridge.pipeline.sql.statement import Rewritten, refusal
from landbridge.pipeline.sql.views import COLUMNS, Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The header that says where a message is from: ``orders@1234``.
HEADER = "replayed-from"
REPLAYED = ("topic", "key", "value", "headers")
NO_HEADERS = "cast(array() as array<struct<key:string,value:binary>>)"
#: Rows of a chunk: what is on its way at once. With a rate, a chunk has the rows of one second.
CHUNK = 200_000
#: All columns, in a condition: ``hash(*)``.
_STAR = re.compile(r"[(,.]\s*\*")
#: The most stretches of offsets whose rows are counted before the start.
STRETCHES = 10_000


class Extent(NamedTuple):
    """How much a replay is about."""

    rows: int
    #: Of the payloads.
    bytes: int
    #: Offsets of the source, from ``first`` to before ``end``; 0 and 0 where there are no rows.
    first: int
    end: int
    #: Timestamps in microseconds; None where there are no rows.
    oldest: int | None
    newest: int | None


class Chunk(NamedTuple):
    """Offsets of the source, from ``first`` to before ``end``, with about so many rows that match."""

    first: int
    end: int
    rows: int


class Replayed(NamedTuple):
    #: Published by this run.
    rows: int
    #: Offset of the source before which everything is replayed.
    reached: int
    #: Offset of the source at which the replay is complete.
    end: int
    #: Timestamp in microseconds of the newest message that was replayed; None: none was.
    newest: int | None
    #: Offset at which this run began, after those of earlier runs.
    began: int
    seconds: float

    @property
    def finished(self) -> bool:
        return self.reached >= self.end


@dataclass(frozen=True)
class Replay:
    """From a topic, with its archive if there is a lake, into another topic."""

    source: str
    to: str
    #: The column timestamp in microseconds, from ``since`` to before ``until``; None: no bound.
    since: int | None = None
    until: int | None = None
    #: A condition of SQL on the columns of the view ``topic.NAME``; "" = all.
    where: str = ""
    lake: str | None = None
    allow_gaps: bool = False
    #: Messages per second; None: as fast as it goes.
    rate: float | None = None
    #: Two replays with the same name are the same replay. "": the name is made from what is replayed.
    called: str = ""

    def __post_init__(self) -> None:
        check_name(self.source, "topic")
        check_name(self.to, "topic")
        if self.source == self.to:
            raise BadOption(f"{self.to} would be read and written at once", hint="replay into another topic")
        if self.called:
            check_name(self.called, "replay")
        if self.rate is not None and self.rate <= 0:
            raise BadOption(f"a rate of {self.rate} messages per second")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise BadOption("a replay that ends before it begins")

    @property
    def name(self) -> str:
        return self.called or identity(self.source, self.to, self.since, self.until, self.where, self.lake)

    # -- what is replayed ------------------------------------------------------------------------------

    def rows(
        self,
        views: Views,
        first: int | None = None,
        end: int | None = None,
        columns: Collection[str] = REPLAYED,
    ) -> DataFrame:
        """The rows that match, of these offsets. ``columns`` are those that the caller uses."""
        condition = self.where.lower()
        wanted = {*columns, *(name for name in COLUMNS if name in condition), "offset", "timestamp"}
        if "json" in wanted:
            wanted.add("value")  # The column json is made of it.
        if _STAR.search(condition):
            wanted |= set(COLUMNS)
        frame = views.topic(self.source, Need(first, end, self.since, self.until, frozenset(wanted)))
        bounds = {"offset": (first, end, F.lit), "timestamp": (self.since, self.until, F.timestamp_micros)}
        for name, (low, high, literal) in bounds.items():
            frame = frame if low is None else frame.where(F.col(name) >= literal(F.lit(low)))
            frame = frame if high is None else frame.where(F.col(name) < literal(F.lit(high)))
        return frame.where(self.where) if self.where else frame

    def extent(self, place: Place) -> Extent:
        """How much would be replayed, and from when. Nothing is written."""
        with self._explained():
            found = self.rows(self._views(place), columns=("value",)).selectExpr(
                "count(*)",
                "sum(length(value))",
                "min(offset)",
                "max(offset) + 1",
                "min(unix_micros(timestamp))",
                "max(unix_micros(timestamp))",
            )
            rows, size, first, end, oldest, newest = found.collect()[0]
        return Extent(rows, size or 0, first or 0, end or 0, oldest, newest)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise Spark's errors about the condition in one sentence, with the place marked."""
        try:
            yield
        except Exception as error:
            refused = refusal(error, Rewritten(self.where, []))
            if isinstance(refused, BadStatement) and not refused.hint:
                refused.hint = "a condition such as \"json:amount::int > 10 AND cast(key as string) = 'eu'\""
            raise refused from error

    def _views(self, place: Place, tell: Callable[[str], None] | None = None) -> Views:
        return Views(place.spark, where=place.where, lake=self.lake, allow_gaps=self.allow_gaps, tell=tell)

    # -- replaying -------------------------------------------------------------------------------------

    def run(
        self,
        place: Place,
        *,
        stop: threading.Event | None = None,
        stop_at: float | None = None,
        tell: Callable[[Replayed], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Replayed:
        """Replay what is there now and hasn't been replayed. Ends early, after a chunk, when ``stop`` is set
        or at ``stop_at``, in seconds since 1970."""
        stop = stop or threading.Event()
        views = self._views(place, warn)
        with self._explained():
            begun = time.monotonic()
            first, end, log = views.span(self.source)
            access, stage = TerminalAccess.of(place.where), identity(self.name, log)
            if position_of(access, self.name) is not None:
                raise OtherLog(
                    f"the replay {self.name} was begun by Landbridge 0.1, which didn't keep of which log",
                    hint="--name with another name begins anew; --since leaves out what was replayed",
                )
            reached = reached_by(access, stage, first, end)
            done = Replayed(0, reached, end, None, reached, 0.0)
            for chunk in self.chunks(views, reached, end):
                if stop.is_set() or (stop_at is not None and time.time() >= stop_at):
                    break
                chunk_begun = time.monotonic()
                rows, newest = self._publish(views, chunk, place, stage) if chunk.rows else (0, None)
                done = done._replace(
                    rows=done.rows + rows,
                    reached=chunk.end,
                    newest=done.newest if newest is None else newest,
                    seconds=time.monotonic() - begun,
                )
                if tell is not None:
                    tell(done)
                if self.rate is not None and not done.finished:
                    # Chunk by chunk: the time that a slow chunk has lost is not made up for by a burst.
                    wait = chunk_begun + rows / self.rate - time.monotonic()
                    if stop_at is not None:
                        wait = min(wait, stop_at - time.time())
                    stop.wait(max(0.0, wait))
        return done

    def chunks(self, views: Views, first: int, end: int) -> Iterator[Chunk]:
        """Stretches of the source with about a chunk's rows each, in order and without gaps."""
        if first >= end:
            return
        most = CHUNK if self.rate is None else max(1, min(CHUNK, round(self.rate)))
        width = max(most, -(-(end - first) // STRETCHES))
        stretch = f"(offset - {first}) div {width}"
        counted = self.rows(views, first, end, ()).groupBy(F.expr(stretch)).count().collect()
        begin, held = first, 0
        for index, rows in sorted((int(row[0]), int(row[1])) for row in counted):
            at, after = first + index * width, min(end, first + (index + 1) * width)
            if held and held + rows > most:
                yield Chunk(begin, at, held)
                begin, held = at, 0
            if rows <= most:
                held += rows
                continue
            # Too many rows for one chunk: cut it into equal stretches of offsets.
            parts = min(-(-rows // most), after - begin)
            size = -(-(after - begin) // parts)
            for cut in range(begin, after, size):
                yield Chunk(cut, min(after, cut + size), -(-rows // parts))
            begin = after
        if begin < end:
            yield Chunk(begin, end, held)

    def _publish(self, views: Views, chunk: Chunk, place: Place, stage: str) -> tuple[int, int | None]:
        """Publish a chunk, once for this stage. Returns (rows, the newest timestamp)."""
        from pyspark.sql import Observation

        seen = Observation()
        # One task, so that the rows are in the order of the offsets. Chunks are small enough for that.
        rows = self.rows(views, chunk.first, chunk.end).coalesce(1).sortWithinPartitions("offset")
        counts = (F.count(F.lit(1)).alias("rows"), F.max(F.unix_micros("timestamp")).alias("newest"))
        writer = transform(rows.observe(seen, *counts)).write
        writer.format("landbridge").mode("append").options(
            **place.where, topic=self.to, producerId=stage, producerBatch=str(chunk.end)
        ).save()
        return int(seen.get["rows"]), seen.get["newest"]


def transform(frame: DataFrame) -> DataFrame:
    """Rows of a topic as they are replayed: key, value and headers, with one more that says where from."""
    place = F.concat("topic", F.lit("@"), "offset").cast("binary")
    header = F.array(F.struct(F.lit(HEADER).alias("key"), place.alias("value")))
    headers = F.concat(F.coalesce("headers", F.expr(NO_HEADERS)), header)
    return frame.select("key", "value", headers.alias("headers"))


def identity(*asked: object) -> str:
    """A name for a replay. The same arguments make the same name."""
    return f"replay-{hashlib.sha256(repr(asked).encode()).hexdigest()[:20]}"


def position_of(access: TerminalAccess, stage: str) -> int | None:
    number: int | None = access.bus().call("stage.show", stage=stage)["number"]
    return number


def reached_by(access: TerminalAccess, name: str, first: int, end: int) -> int:
    """The offset before which a replay has published everything, as the terminal knows it; at least ``first``
    and at most ``end``."""
    number = position_of(access, name)
    return first if number is None else min(max(number, first), end)

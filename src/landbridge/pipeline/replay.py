"""The job ``replay``: what a topic had, from its log or from its archive, into a topic again, each once.

A replay goes through the source by offsets, in chunks. Each chunk is one batch write (ADR 12): its producer
is the replay's name, its number the source offset before which all is replayed then. So the terminal knows
how far a replay is, numbers only grow, and whoever runs it again goes on from there: with other chunks,
another rate, on another machine.
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
from landbridge.errors import BadOption, BadStatement
from landbridge.pipeline.access import Access
from landbridge.pipeline.running import Place
from landbridge.pipeline.sql.need import Need
from landbridge.pipeline.sql.statement import Rewritten, refusal
from landbridge.pipeline.sql.views import COLUMNS, Views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Says where a message is from: ``orders@1234``.
HEADER = "replayed-from"
REPLAYED = ("topic", "key", "value", "headers")
NO_HEADERS = "cast(array() as array<struct<key:string,value:binary>>)"
#: Rows of a chunk: what is on its way at once. With a rate, that of one second.
CHUNK = 200_000
#: All columns, in a condition: ``hash(*)``.
_STAR = re.compile(r"[(,.]\s*\*")
#: Stretches of offsets whose rows are counted before the start, at most.
STRETCHES = 10_000


class Extent(NamedTuple):
    """What a replay is about."""

    rows: int
    #: Of the payloads.
    bytes: int
    #: Offsets of the source, from ``first`` to before ``end``; 0 and 0 where there are no rows.
    first: int
    end: int
    #: Timestamps in microseconds, None where there are no rows.
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
    #: Offset of the source before which all is replayed.
    reached: int
    #: Where it would have ended.
    end: int
    #: Microseconds: the newest message that was replayed; None: none was.
    newest: int | None
    #: Offset at which this run began, after what earlier ones have done.
    began: int
    seconds: float

    @property
    def finished(self) -> bool:
        return self.reached >= self.end


@dataclass(frozen=True)
class Replay:
    """From a topic, with its archive if there is a lake, into another."""

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
    #: Two replays of the same name are the same replay; "" = after what is replayed.
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
        """What matches, of these offsets; ``columns`` are those that somebody looks at."""
        from pyspark.sql import functions as F

        said = self.where.lower()
        wanted = {*columns, *(name for name in COLUMNS if name in said), "offset", "timestamp"}
        if "json" in wanted:
            wanted.add("value")  # which it is made of
        if _STAR.search(said):
            wanted |= set(COLUMNS)
        frame = views.topic(self.source, Need(first, end, self.since, self.until, frozenset(wanted)))
        for offset, bound in (("offset >= ", first), ("offset < ", end)):
            frame = frame if bound is None else frame.where(f"{offset}{bound}")
        if self.since is not None:
            frame = frame.where(F.col("timestamp") >= F.timestamp_micros(F.lit(self.since)))
        if self.until is not None:
            frame = frame.where(F.col("timestamp") < F.timestamp_micros(F.lit(self.until)))
        return frame.where(self.where) if self.where else frame

    def extent(self, place: Place) -> Extent:
        """How much it is, and from when: nothing is written."""
        with self._told():
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
    def _told(self) -> Iterator[None]:
        """What Spark has against the condition, short and with the place marked."""
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
        """Replay what is there now and hasn't been; ends early, after a chunk, when ``stop`` is set or at
        ``stop_at``, in seconds since 1970."""
        stop = stop or threading.Event()
        views = self._views(place, warn)
        stage = Stage(Access.of(place.where), self.name)
        with self._told():
            begun = time.monotonic()
            first, end = views.span(self.source)
            reached = stage.reached(first, end)
            done = Replayed(0, reached, end, None, reached, 0.0)
            for chunk in self.chunks(views, reached, end):
                if stop.is_set() or (stop_at is not None and time.time() >= stop_at):
                    break
                chunk_begun = time.monotonic()
                rows, newest = self._publish(views, chunk, place) if chunk.rows else (0, None)
                done = done._replace(
                    rows=done.rows + rows,
                    reached=chunk.end,
                    newest=done.newest if newest is None else newest,
                    seconds=time.monotonic() - begun,
                )
                if tell is not None:
                    tell(done)
                if self.rate is not None and not done.finished:
                    # Chunk by chunk: what was lost by a slow one is not made up for by a burst.
                    wait = chunk_begun + rows / self.rate - time.monotonic()
                    if stop_at is not None:
                        wait = min(wait, stop_at - time.time())
                    stop.wait(max(0.0, wait))
        return done

    def chunks(self, views: Views, first: int, end: int) -> Iterator[Chunk]:
        """Stretches of the source with about a chunk's rows each, in order and without gaps."""
        from pyspark.sql import functions as F

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
            # Too many for one: it is cut into equal stretches of offsets.
            parts = min(-(-rows // most), after - begin)
            size = -(-(after - begin) // parts)
            for cut in range(begin, after, size):
                yield Chunk(cut, min(after, cut + size), -(-rows // parts))
            begin = after
        if begin < end:
            yield Chunk(begin, end, held)

    def _publish(self, views: Views, chunk: Chunk, place: Place) -> tuple[int, int | None]:
        """(rows, the newest timestamp) of a chunk, which is published when this returns."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        seen = Observation()
        # In one task: the order of the rows is that of the offsets, and tasks are short.
        rows = self.rows(views, chunk.first, chunk.end).coalesce(1).sortWithinPartitions("offset")
        counts = (F.count(F.lit(1)).alias("rows"), F.max(F.unix_micros("timestamp")).alias("newest"))
        writer = transform(rows.observe(seen, *counts)).write
        writer.format("landbridge").mode("append").options(
            **place.where, topic=self.to, producerId=self.name, producerBatch=str(chunk.end)
        ).save()
        return int(seen.get["rows"]), seen.get["newest"]


def transform(frame: DataFrame) -> DataFrame:
    """Rows of a topic as they are replayed: key, value and headers, and a header that says where from."""
    from pyspark.sql import functions as F

    place = F.concat("topic", F.lit("@"), "offset").cast("binary")
    header = F.array(F.struct(F.lit(HEADER).alias("key"), place.alias("value")))
    headers = F.concat(F.coalesce("headers", F.expr(NO_HEADERS)), header)
    return frame.select("key", "value", headers.alias("headers"))


def identity(*said: object) -> str:
    """A name for a replay that is the same whenever the same is asked for."""
    return f"replay-{hashlib.sha256(repr(said).encode()).hexdigest()[:20]}"


class Stage:
    """How far a replay is, as the terminal knows it."""

    def __init__(self, access: Access, name: str) -> None:
        self._access = access
        self._name = name

    def reached(self, first: int, end: int) -> int:
        """The highest number that was published, if it is between these; else the nearer of them."""
        number = self._access.bus().call("stage.show", stage=self._name)["number"]
        return first if number is None else min(max(number, first), end)

"""Reading topics as tables. The driver plans by offsets; each task reads its spans by itself, as no group."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from landbridge.core.log.planning import Span, admit, backlog, from_json, plan, to_json
from landbridge.core.names import matches
from landbridge.errors import BadOption, OffsetGone
from landbridge.pipeline.access import Access, answer
from landbridge.pipeline.failure import with_hint
from landbridge.pipeline.options import EARLIEST, LATEST, Bound, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from landbridge.client.fetch import FetchedBatch
    from landbridge.client.sync import Bus

#: Bytes asked for at once. More don't make it faster, and leave the processor's caches.
AT_ONCE = 2 << 20
#: Seconds that a trigger waits for the first message, instead of Spark asking again and again.
POLL = 1.0

#: Objects that are worth freezing, and how often a worker does it: what is frozen is never looked at again.
FREEZE_FROM, FREEZES = 5_000, 4

_frozen = 0


def freeze() -> None:
    """At the end of a worker's first tasks: what is imported by now is never garbage, and Spark looks for
    garbage after every task, which took more than a small task itself."""
    global _frozen
    if _frozen < FREEZES and len(gc.get_objects()) >= FREEZE_FROM:
        gc.collect()
        gc.freeze()
        _frozen += 1


class Task(InputPartition):
    """The spans that one task reads."""

    def __init__(self, spans: Sequence[Span]) -> None:
        super().__init__([tuple(span) for span in spans])

    @property
    def spans(self) -> list[Span]:
        return [Span(*each) for each in self.value]


class Topics:
    """The topics of a query, as the driver sees them."""

    def __init__(self, access: Access, options: ReadOptions) -> None:
        self._access = access
        self._options = options

    def names(self) -> list[str]:
        options = self._options
        if not options.pattern:
            return list(options.topics)
        names: list[str] = []
        page: dict[str, Any] = {"next": ""}
        while True:
            page = self._access.bus().call("topic.list", after=page["next"])
            names += [row["name"] for row in page["topics"] if matches(options.pattern, row["name"])]
            if not page["next"]:
                return names

    def bounds(self, wait_beyond: dict[str, int] | None = None) -> dict[str, tuple[int, int]]:
        """(first, end) of each log; after a while, if there is nothing beyond these offsets yet."""
        names = self.names()
        if not names:
            return {}
        offsets = {name: (wait_beyond or {}).get(name, 0) for name in names}
        within = POLL if wait_beyond is not None else 0.0
        found = self._access.bus().call("topic.wait", offsets=offsets, within=within)
        return {name: (first, end) for name, (first, end) in found.items()}

    def resolve(self, bound: Bound) -> dict[str, int]:
        """What a bound stands for, now."""
        bounds = self.bounds()
        if bound.moment is not None:
            times = dict.fromkeys(bounds, bound.moment) if isinstance(bound.moment, int) else bound.moment
            self._check(times, bounds)
            found: dict[str, int] = self._access.bus().call("topic.seek_time", times=times) if times else {}
            return found
        places = dict.fromkeys(bounds, bound.at) if isinstance(bound.at, int) else bound.at
        self._check(places, bounds)
        return {name: _place(at, *bounds[name]) for name, at in places.items()}

    def _check(self, given: dict[str, int], bounds: dict[str, tuple[int, int]]) -> None:
        if set(given) != set(bounds):
            raise BadOption(
                f"offsets for {', '.join(sorted(given)) or 'no topic'}, and the pattern "
                f"{self._options.pattern} covers {', '.join(sorted(bounds)) or 'none'}",
                hint="name each topic that is read, and no other",
            )


def _place(at: int, first: int, end: int) -> int:
    return {EARLIEST: first, LATEST: end}.get(at, at)


class Reading:
    """What a task does; the same for both kinds of reader."""

    _access: Access
    _options: ReadOptions
    _schema: StructType

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from landbridge.pipeline.columns import Columns, runs

        if not isinstance(partition, Task):  # Spark's own, where there is nothing to read
            return
        columns = Columns(self._schema)
        bus = self._access.bus()
        for span in partition.spans:
            fetched = fetch(bus, span, fail_on_data_loss=self._options.fail_on_data_loss)
            yield from (columns.rows(span.topic, run) for run in runs(fetched))
        freeze()


def fetch(bus: Bus, span: Span, *, fail_on_data_loss: bool) -> Iterator[FetchedBatch]:
    """The batches of a span, cut to it; the next stretch is on its way while one is worked on."""
    topic, at, end = span
    ahead = bus.fetch_soon(topic, at, AT_ONCE)
    while at < end:
        stretch = answer(ahead, f"a fetch of {topic}")
        batches = stretch.batches
        begin = batches[0].first if batches else max(at, stretch.end)
        if (begin > at or not batches) and fail_on_data_loss:
            lost = min(begin, end) if batches else end
            raise data_lost(topic, f"offsets {at} to {lost - 1} are gone, it has {stretch.first} on")
        if not batches:
            return
        next_at = batches[-1].end
        if next_at < end:
            ahead = bus.fetch_soon(topic, next_at, AT_ONCE)
        for each in batches:
            lo, hi = max(at - each.first, 0), min(end - each.first, len(each.batch))
            if lo < hi:
                part = each.batch if hi - lo == len(each.batch) else each.batch.slice(lo, hi)
                yield each._replace(first=each.first + lo, batch=part)
        at = next_at


def data_lost(topic: str, what: str) -> OffsetGone:
    hint = "retention removed it, or the topic was made anew; failOnDataLoss=false goes on with the rest"
    return with_hint(OffsetGone(f"the topic {topic}: {what}", hint=hint))


class BatchReader(Reading, DataSourceReader):
    def __init__(self, schema: StructType, access: Access, options: ReadOptions) -> None:
        self._schema, self._access, self._options = schema, access, options

    def partitions(self) -> list[InputPartition]:
        options = self._options
        topics = Topics(self._access, options)
        start, end = topics.resolve(options.start), topics.resolve(options.end)
        bounds = topics.bounds()
        for name, at in start.items():
            first, last = bounds[name]
            if options.fail_on_data_loss and not first <= at <= last:
                raise data_lost(name, f"there is no offset {at}, it has {first} to {last - 1}")
            if end[name] > last and options.fail_on_data_loss:
                raise data_lost(name, f"it ends at {last}, before {end[name]}")
            start[name] = min(max(at, first), last)
            end[name] = max(start[name], min(end[name], last))
        planned = plan(
            start, end, at_least=options.min_partitions, most_rows=options.max_records_per_partition
        )
        freeze()
        return [Task(spans) for spans in planned]


class StreamReader(Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType, access: Access, options: ReadOptions) -> None:
        self._schema, self._access, self._options = schema, access, options
        #: The ends of the logs when they were last looked at: what progress events call the latest offset.
        self._latest: dict[str, int] | None = None
        #: Where a query that takes what is available now ends; None: it goes on for ever.
        self._target: dict[str, int] | None = None
        #: When rows were last admitted, in seconds of a clock that never goes back.
        self._admitted_at = time.monotonic()

    @property
    def _topics(self) -> Topics:
        return Topics(self._access, self._options)

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        offsets = self._topics.resolve(self._options.start)
        if self._options.fail_on_data_loss:
            for name, (first, end) in self._topics.bounds().items():
                if name in offsets and not first <= offsets[name] <= end:
                    raise data_lost(name, f"there is no offset {offsets[name]}, it has {first} to {end - 1}")
        self._settle(offsets)  # from now on retention waits for the query
        return to_json(offsets)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = {name: end for name, (_, end) in self._topics.bounds().items()}

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = from_json(start)
        if self._target is not None:
            latest = dict(self._target)
        else:
            bounds = self._topics.bounds(wait_beyond=begun)
            latest = {name: end for name, (_, end) in bounds.items()}
        self._latest = dict(latest)
        for name, at in begun.items():
            if name not in latest or latest[name] < at:
                if self._options.fail_on_data_loss and self._target is None:
                    raise data_lost(name, f"the query is at {at}, and it ends at {latest.get(name, 0)}")
                latest[name] = at
        waiting = sum(backlog(begun, latest).values())
        if not waiting or self._hold_back(waiting, limit):
            return to_json(begun)
        self._admitted_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            latest = admit(begun, latest, limit.max_rows)
        return to_json(latest)

    def _hold_back(self, waiting: int, limit: ReadLimit) -> bool:
        """Is it too little for a trigger, and not for too long yet?"""
        options = self._options
        if self._target is not None or waiting >= options.min_offsets_per_trigger:
            return False
        held = time.monotonic() - self._admitted_at < options.max_trigger_delay
        if held:
            time.sleep(min(0.1, options.max_trigger_delay))  # the wait for messages is over at once
        return held

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        options = self._options
        planned = plan(
            from_json(start),
            from_json(end),
            at_least=options.min_partitions,
            most_rows=options.max_records_per_partition,
        )
        return [Task(spans) for spans in planned]

    def commit(self, end: dict[str, Any]) -> None:
        self._settle(from_json(end))

    def _settle(self, offsets: dict[str, int]) -> None:
        if self._options.group:
            bus = self._access.bus()
            for topic, offset in offsets.items():
                bus.call("group.advance", topic=topic, name=self._options.group, to=offset)

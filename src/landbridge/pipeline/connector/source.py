"""Reading topics as tables. The driver plans by offsets; each task reads its spans, outside of any group."""

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

from landbridge.core.log.planning import Offsets, Span, admit, backlog, from_json, plan, to_json
from landbridge.core.names import matches
from landbridge.errors import BadOption, OffsetGone
from landbridge.pipeline.connector.access import TerminalAccess, answer
from landbridge.pipeline.connector.failure import with_hint
from landbridge.pipeline.connector.options import EARLIEST, LATEST, Bound, PerTopic, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from landbridge.client.fetch import FetchedBatch
    from landbridge.client.sync import Bus

#: Bytes of one fetch. Larger fetches are not faster, and don't fit into the processor's caches.
AT_ONCE = 2 << 20
#: Seconds that a trigger waits for the first message, so that Spark needn't ask again and again.
POLL = 1.0

#: A worker freezes when it has so many objects, and so many times at most: the garbage collector never looks
#: at frozen objects again.
FREEZE_FROM, FREEZES = 5_000, 4

_frozen = 0


def freeze() -> None:
    """Take what a worker has imported out of the garbage collector's sight, at the end of its first tasks.
    Spark collects garbage after every task, which took longer than a small task itself."""
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


def described_topics(bus: Bus) -> Iterator[dict[str, Any]]:
    """Every topic that the token may see, as the terminal describes it."""
    page: dict[str, Any] = {"next": ""}
    while True:
        page = bus.call("topic.list", after=page["next"])
        yield from page["topics"]
        if not page["next"]:
            return


class SourceTopics:
    """The topics of a query, as the driver sees them."""

    def __init__(self, access: TerminalAccess, options: ReadOptions) -> None:
        self._access, self._options = access, options

    def names(self) -> list[str]:
        pattern = self._options.pattern
        if not pattern:
            return list(self._options.topics)
        names = (str(row["name"]) for row in described_topics(self._access.bus()))
        return [name for name in names if matches(pattern, name)]

    def bounds(self, wait_beyond: Offsets | None = None) -> dict[str, tuple[int, int]]:
        """(first, end) of each log. Waits for up to POLL seconds until a log goes beyond ``wait_beyond``."""
        names = self.names()
        if not names:
            return {}
        offsets = {name: (wait_beyond or {}).get(name, 0) for name in names}
        within = POLL if wait_beyond is not None else 0.0
        found = self._access.bus().call("topic.wait", offsets=offsets, within=within)
        return {name: (first, end) for name, (first, end) in found.items()}

    def resolve(self, bound: Bound) -> dict[str, int]:
        """The offsets that a bound stands for, now."""
        bounds = self.bounds()
        if bound.moment is not None:
            times = self._for_each(bound.moment, bounds)
            found: dict[str, int] = self._access.bus().call("topic.seek_time", times=times) if times else {}
            return found
        offsets = self._for_each(bound.at, bounds)
        return {
            name: dict(zip((EARLIEST, LATEST), bounds[name], strict=True)).get(at, at)
            for name, at in offsets.items()
        }

    def _for_each(self, given: PerTopic, bounds: dict[str, tuple[int, int]]) -> dict[str, int]:
        numbers = dict.fromkeys(bounds, given) if isinstance(given, int) else given
        if set(numbers) != set(bounds):
            raise BadOption(
                f"offsets for {', '.join(sorted(numbers)) or 'no topic'}, and the pattern "
                f"{self._options.pattern} covers {', '.join(sorted(bounds)) or 'none'}",
                hint="name each topic that is read, and no other",
            )
        return numbers


def fetch(bus: Bus, span: Span, *, fail_on_data_loss: bool) -> Iterator[FetchedBatch]:
    """The batches of a span, cut to it. While one stretch is worked on, the next is on its way."""
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


def check_offset(topic: str, at: int, first: int, end: int) -> None:
    if not first <= at <= end:
        raise data_lost(topic, f"there is no offset {at}, it has {first} to {end - 1}")


class _Reading:
    """What both kinds of reader do."""

    def __init__(self, schema: StructType, access: TerminalAccess, options: ReadOptions) -> None:
        self._schema, self._access, self._options = schema, access, options

    @property
    def _topics(self) -> SourceTopics:
        return SourceTopics(self._access, self._options)

    def _tasks(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        return [Task(spans) for spans in plan(start, end, at_least=least, most_rows=most)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from landbridge.pipeline.connector.columns import Columns, runs

        if not isinstance(partition, Task):  # Spark passes one of its own where there is nothing to read.
            return
        columns = Columns(self._schema)
        bus = self._access.bus()
        for span in partition.spans:
            fetched = fetch(bus, span, fail_on_data_loss=self._options.fail_on_data_loss)
            yield from (columns.rows(span.topic, run) for run in runs(fetched))
        freeze()


class BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        topics, strict = self._topics, self._options.fail_on_data_loss
        start, end = topics.resolve(self._options.start), topics.resolve(self._options.end)
        bounds = topics.bounds()
        for name, at in start.items():
            first, last = bounds[name]
            if strict:
                check_offset(name, at, first, last)
                if end[name] > last:
                    raise data_lost(name, f"it ends at {last}, before {end[name]}")
            start[name] = min(max(at, first), last)
            end[name] = max(start[name], min(end[name], last))
        tasks = self._tasks(start, end)
        freeze()
        return tasks


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType, access: TerminalAccess, options: ReadOptions) -> None:
        super().__init__(schema, access, options)
        #: The ends of the logs when they were last looked at. Progress events call them the latest offsets.
        self._latest: dict[str, int] | None = None
        #: The end of a query that takes what is available now; None: the query goes on for ever.
        self._target: dict[str, int] | None = None
        #: When rows were last admitted, in seconds of the monotonic clock.
        self._admitted_at = time.monotonic()

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        offsets = self._topics.resolve(self._options.start)
        if self._options.fail_on_data_loss:
            for name, (first, end) in self._topics.bounds().items():
                check_offset(name, offsets.get(name, first), first, end)
        self._settle(offsets)  # From now on retention waits for the query.
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
            latest = {name: end for name, (_, end) in self._topics.bounds(wait_beyond=begun).items()}
        self._latest = dict(latest)
        for name, at in begun.items():
            if name not in latest or latest[name] < at:
                if self._options.fail_on_data_loss and self._target is None:
                    raise data_lost(name, f"the query is at {at}, and it ends at {latest.get(name, 0)}")
                latest[name] = at
        waiting = sum(backlog(begun, latest).values())
        if not waiting or self._hold_back(waiting):
            return to_json(begun)
        self._admitted_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            latest = admit(begun, latest, limit.max_rows)
        return to_json(latest)

    def _hold_back(self, waiting: int) -> bool:
        """Whether so few messages wait that a trigger isn't worth it yet."""
        options = self._options
        if self._target is not None or waiting >= options.min_offsets_per_trigger:
            return False
        held = time.monotonic() - self._admitted_at < options.max_trigger_delay
        if held:  # The terminal's wait returns at once as long as any message is there.
            time.sleep(min(0.1, options.max_trigger_delay))
        return held

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._tasks(from_json(start), from_json(end))

    def commit(self, end: dict[str, Any]) -> None:
        self._settle(from_json(end))

    def _settle(self, offsets: dict[str, int]) -> None:
        if self._options.group:
            bus = self._access.bus()
            for topic, offset in offsets.items():
                bus.call("group.advance", topic=topic, name=self._options.group, to=offset)

"""Reading topics as tables. The driver plans by offsets; each task reads its spans, outside of any group."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from landbridge.core.log.planning import (
    LogPosition,
    Offsets,
    Positions,
    Span,
    admit,
    backlog,
    from_json,
    offsets_of,
    plan,
    starts,
    to_json,
)
from landbridge.core.names import matches
from landbridge.errors import BadOption, OffsetGone, OtherLog
from landbridge.pipeline.connector.access import TerminalAccess, answer
from landbridge.pipeline.connector.failure import with_hint
from landbridge.pipeline.connector.options import EARLIEST, LATEST, Bound, PerTopic, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from landbridge.client.fetch import FetchedBatch
    from landbridge.client.sync import Bus
    from landbridge.protocol.operations import TopicBounds

#: Bytes of one fetch. Larger fetches are not faster, and don't fit into the processor's caches.
AT_ONCE = 2 << 20
#: Seconds that a trigger waits for the first message, so that Spark needn't ask again and again.
POLL = 1.0

#: A worker freezes when it has so many objects, and so many times at most: the garbage collector never looks
#: at frozen objects again.
FREEZE_FROM, FREEZES = 5_000, 4

#: What to do about an offset that is of another log, by where the offset was kept.
IN_CHECKPOINT = (
    "begin with a new checkpoint folder, where startingOffsets says from which offset on; or "
    "failOnDataLoss=false goes on with what the topic has now"
)
IN_OPTION = "take another offset: this one means nothing in the log that the topic has now"
IN_PLAN = "run it again"

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
    """The spans that one task reads, and the log that each is of."""

    def __init__(self, spans: Sequence[Span], logs: Mapping[str, str]) -> None:
        super().__init__([(*span, logs[span.topic]) for span in spans])

    @property
    def spans(self) -> list[Span]:
        return [Span(*each[:3]) for each in self.value]

    @property
    def logs(self) -> dict[str, str]:
        return {topic: log for topic, _, _, log in self.value}


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

    def bounds(
        self, at: Offsets | None = None, *, names: Iterable[str] | None = None, wait: bool = False
    ) -> dict[str, TopicBounds]:
        """The bounds of each log, and what is before the offsets ``at``. ``wait``: until a log goes beyond
        these offsets, for up to POLL seconds."""
        offsets = {name: (at or {}).get(name, 0) for name in (self.names() if names is None else names)}
        if not offsets:
            return {}
        return self._access.bus().topics.wait(offsets, POLL if wait else 0.0)

    def resolve(self, bound: Bound, *, strict: bool = False) -> dict[str, LogPosition]:
        """The positions that a bound stands for, now. ``strict``: an offset that the log doesn't have is an
        error. An offset that was given with its log is an error where the topic has another log."""
        asked = self._asked(bound, self.bounds())
        found = self.bounds(asked, names=asked)
        positions = {}
        for name, at in asked.items():
            there = found[name]
            offset = {EARLIEST: there.first, LATEST: there.end}.get(at, at)
            given = bound.positions.get(name)
            if given is not None:
                check_position(name, given, there, IN_OPTION)
            if strict:
                check_offset(name, offset, there.first, there.end)
            positions[name] = LogPosition(offset, there.log, there.newest if at == LATEST else there.before)
        return positions

    def _asked(self, bound: Bound, bounds: Mapping[str, TopicBounds]) -> dict[str, int]:
        """The offsets that a bound names, EARLIEST and LATEST among them."""
        if bound.moment is not None:
            times = self._for_each(bound.moment, bounds)
            found: dict[str, int] = self._access.bus().call("topic.seek_time", times=times) if times else {}
            return found
        return self._for_each(bound.at, bounds)

    def _for_each(self, given: PerTopic, bounds: Mapping[str, object]) -> dict[str, int]:
        numbers = dict.fromkeys(bounds, given) if isinstance(given, int) else given
        if set(numbers) != set(bounds):
            raise BadOption(
                f"offsets for {', '.join(sorted(numbers)) or 'no topic'}, and the pattern "
                f"{self._options.pattern} covers {', '.join(sorted(bounds)) or 'none'}",
                hint="name each topic that is read, and no other",
            )
        return numbers


def fetch(bus: Bus, span: Span, log: str, *, fail_on_data_loss: bool) -> Iterator[FetchedBatch]:
    """The batches of a span of a log, cut to it. While one stretch is worked on, the next is on its way."""
    topic, at, end = span
    ahead = bus.fetch_soon(topic, at, AT_ONCE)
    while at < end:
        stretch = answer(ahead, f"a fetch of {topic}")
        batches = stretch.batches
        if stretch.log != log:  # The topic was made anew after the read was planned.
            if fail_on_data_loss:
                here = LogPosition(at, log).difference(log=stretch.log, end=stretch.end, before=None)
                raise other_log(topic, str(here), IN_PLAN)
            return
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


def other_log(topic: str, what: str, hint: str) -> OtherLog:
    return with_hint(OtherLog(f"the topic {topic}: {what}", hint=hint))


def check_position(topic: str, position: LogPosition, there: TopicBounds, hint: str) -> None:
    """``there`` has to be what the terminal says of this position's offset."""
    what = position.difference(log=there.log, end=there.end, before=there.before)
    if what is not None:
        raise other_log(topic, what, hint)


def kept_positions(document: Mapping[str, Any]) -> dict[str, LogPosition]:
    """The positions of a checkpoint. Those of 0.1 don't say of which logs they are, and are refused."""
    positions = from_json(document)
    for name, position in positions.items():
        if not position.log:
            offsets = json.dumps(to_json(positions))
            raise other_log(
                name,
                f"the checkpoint was made by Landbridge 0.1: it has offset {position.offset}, and not the "
                "log that counts it",
                f"begin with a new checkpoint folder; startingOffsets={offsets} goes on at the same place, "
                "if no topic was made anew and no terminal restored since",
            )
    return positions


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

    def _tasks(self, start: Positions, end: Positions) -> list[InputPartition]:
        least, most = self._options.min_partitions, self._options.max_records_per_partition
        planned = plan(starts(start, end), offsets_of(end), at_least=least, most_rows=most)
        logs = {name: position.log for name, position in end.items()}
        return [Task(spans, logs) for spans in planned]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from landbridge.pipeline.connector.columns import Columns, runs

        if not isinstance(partition, Task):  # Spark passes one of its own where there is nothing to read.
            return
        columns = Columns(self._schema)
        bus = self._access.bus()
        logs = partition.logs
        for span in partition.spans:
            fetched = fetch(bus, span, logs[span.topic], fail_on_data_loss=self._options.fail_on_data_loss)
            yield from (columns.rows(span.topic, run) for run in runs(fetched))
        freeze()


class BatchReader(_Reading, DataSourceReader):
    def partitions(self) -> list[InputPartition]:
        topics, strict = self._topics, self._options.fail_on_data_loss
        start = topics.resolve(self._options.start, strict=strict)
        end = topics.resolve(self._options.end)
        bounds = topics.bounds()
        for name, (at, _, _) in start.items():
            there = bounds[name]
            if strict:
                check_position(name, start[name], there, IN_PLAN)
                if end[name].offset > there.end:
                    raise data_lost(name, f"it ends at {there.end}, before {end[name].offset}")
            begin = min(max(at, there.first), there.end)
            start[name] = LogPosition(begin, there.log)
            end[name] = LogPosition(max(begin, min(end[name].offset, there.end)), there.log)
        tasks = self._tasks(start, end)
        freeze()
        return tasks


class StreamReader(_Reading, DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, schema: StructType, access: TerminalAccess, options: ReadOptions) -> None:
        super().__init__(schema, access, options)
        #: The ends of the logs when they were last looked at. Progress events call them the latest offsets.
        self._latest: dict[str, LogPosition] | None = None
        #: The end of a query that takes what is available now; None: the query goes on for ever.
        self._target: dict[str, LogPosition] | None = None
        #: When rows were last admitted, in seconds of the monotonic clock.
        self._admitted_at = time.monotonic()
        #: Whether positions of the checkpoint were compared with the logs since this start of the query.
        self._compared = False

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        positions = self._topics.resolve(self._options.start, strict=self._options.fail_on_data_loss)
        self._settle(positions)  # From now on retention waits for the query.
        return to_json(positions)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        most = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._target = _ends(self._topics.bounds())

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        return None if self._latest is None else to_json(self._latest)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        begun = kept_positions(start)
        bounds = self._topics.bounds(offsets_of(begun), wait=self._target is None)
        latest = _ends(bounds) if self._target is None else dict(self._target)
        self._latest = dict(latest)
        begins = self._begins(begun, bounds)
        self._compared = True
        if begins:  # A log that the query doesn't know begins where it begins: an empty micro-batch says so.
            return to_json({**begun, **begins})
        for name, at in begun.items():
            there = latest.get(name)
            if there is None or there.log != at.log or there.offset <= at.offset:
                latest[name] = at
        latest = {name: latest[name] for name in begun}
        waiting = sum(backlog(offsets_of(begun), offsets_of(latest)).values())
        if not waiting or self._hold_back(waiting):
            return to_json(begun)
        self._admitted_at = time.monotonic()
        if isinstance(limit, ReadMaxRows):
            latest = self._admit(begun, latest, limit.max_rows)
        return to_json(latest)

    def _begins(self, begun: Positions, bounds: Mapping[str, TopicBounds]) -> dict[str, LogPosition]:
        """Where the query goes on in logs that it doesn't know. A log that was changed for another one, or
        whose history was, is data loss."""
        strict, begins = self._options.fail_on_data_loss, {}
        for name in begun:
            if strict and name not in bounds:
                raise data_lost(name, f"the query is at {begun[name].offset}, and the topic is gone")
        for name, there in bounds.items():
            at = begun.get(name)
            if at is None:
                if self._target is None or name in self._target:
                    begins[name] = LogPosition(there.first, there.log)
            elif strict:
                check_position(name, at, there, IN_CHECKPOINT)
                check_offset(name, at.offset, there.first, there.end)
            elif at.log != there.log:
                begins[name] = LogPosition(there.first, there.log)
            elif at.offset > there.end:
                begins[name] = LogPosition(there.end, there.log, there.newest)
        return begins

    def _admit(self, begun: Positions, latest: Positions, most: int) -> dict[str, LogPosition]:
        """At most so many rows. Offsets between the ends of logs are looked up for their stamps."""
        admitted = admit(offsets_of(begun), offsets_of(latest), most)
        known = {(name, each.offset): each for some in (begun, latest) for name, each in some.items()}
        cut = {name: at for name, at in admitted.items() if (name, at) not in known}
        bounds = self._topics.bounds(cut, names=cut)
        for name, at in cut.items():
            known[name, at] = LogPosition(at, latest[name].log, bounds[name].before)
        return {name: known[name, at] for name, at in admitted.items()}

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
        begin, until = kept_positions(start), kept_positions(end)
        if not self._compared and self._options.fail_on_data_loss:
            # A micro-batch that was planned before this start of the query.
            for positions in (begin, until):
                bounds = self._topics.bounds(offsets_of(positions), names=positions)
                for name, position in positions.items():
                    check_position(name, position, bounds[name], IN_CHECKPOINT)
        self._compared = True
        return self._tasks(begin, until)

    def commit(self, end: dict[str, Any]) -> None:
        self._settle(kept_positions(end))

    def _settle(self, positions: Positions) -> None:
        if self._options.group:
            bus = self._access.bus()
            for topic, (to, log, _) in positions.items():
                try:
                    bus.call("group.advance", topic=topic, name=self._options.group, to=to, log=log)
                except OtherLog:  # The next look at the log says so, or goes on with the new one.
                    pass


def _ends(bounds: Mapping[str, TopicBounds]) -> dict[str, LogPosition]:
    return {name: LogPosition(there.end, there.log, there.newest) for name, there in bounds.items()}

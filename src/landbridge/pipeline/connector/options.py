"""The options of ``format("landbridge")``: their names, their values, and an error for everything else.

Spark hands options over as text, and their names in any case. Nothing here connects to a terminal.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from landbridge.core.log.planning import LogPosition, from_json, offsets_of
from landbridge.core.names import check_name, check_pattern
from landbridge.errors import BadName, BadOption

#: Offsets that stand for the beginning and for the end of a log.
EARLIEST, LATEST = -2, -1
#: topic → number; or one number for every topic. Offsets (or EARLIEST, LATEST), or moments in microseconds.
PerTopic: TypeAlias = "int | dict[str, int]"

BATCH_READ, STREAM_READ, BATCH_WRITE, STREAM_WRITE = "batch read", "stream", "batch write", "streaming write"
_READS, _WRITES = (BATCH_READ, STREAM_READ), (BATCH_WRITE, STREAM_WRITE)
#: Every option, and the uses of the format that take it.
OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("url", "context", "token"), _READS + _WRITES),
    **dict.fromkeys(("subscribe", "subscribePattern", "assign"), _READS),
    **dict.fromkeys(("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"), _READS),
    **dict.fromkeys(("failOnDataLoss", "includeHeaders", "includeMetadata"), _READS),
    **dict.fromkeys(("minPartitions", "maxRecordsPerPartition"), _READS),
    **dict.fromkeys(("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"), (BATCH_READ,)),
    **dict.fromkeys(("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay"), (STREAM_READ,)),
    "group": (STREAM_READ,),
    "topic": _WRITES,
    **dict.fromkeys(("producerId", "producerBatch"), (BATCH_WRITE,)),
}
#: In lower case: options of Spark itself, which it shows to every source and sink.
_OF_SPARK = {"checkpointlocation", "queryname"}

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Bound(msgspec.Struct, frozen=True):
    """Where a read begins or ends. Where there is a moment, it decides, and not the offsets."""

    at: PerTopic
    moment: PerTopic | None = None
    #: Of the offsets that were given with their log: where they have to be.
    positions: dict[str, LogPosition] = {}


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    #: Either topics or a pattern; the other one is empty.
    topics: tuple[str, ...] = ()
    pattern: str = ""
    start: Bound
    end: Bound = Bound(LATEST)
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int = 0
    #: Seconds for which fewer messages than ``min_offsets_per_trigger`` may be kept waiting.
    max_trigger_delay: float = 900.0
    #: The group whose cursor the query moves; "" = none.
    group: str = ""


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    #: The topic of all rows; "" = the column ``topic`` names it.
    topic: str = ""
    #: A batch write of the same producer and batch is published once; "" = every write is published.
    producer_id: str = ""
    producer_batch: int = 0


class GivenOptions:
    """The options of one read or write. An option that is of no use there is refused."""

    def __init__(self, options: Mapping[str, str], *uses: str) -> None:
        names = {name.lower(): name for name in OPTIONS}
        taken = {key: name for key, name in names.items() if set(uses) & set(OPTIONS[name])}
        #: By name in lower case.
        self._values: dict[str, str] = {}
        for name, value in options.items():
            key = name.lower()
            self._values[key] = str(value).strip()
            if key in taken or key in _OF_SPARK:
                continue
            if key == "path":
                hint = 'option("subscribe", …) to read, option("topic", …) to write'
                raise BadOption("a topic is not a path", hint=hint)
            if key in names:
                raise BadOption(f"the option {names[key]} is of no use for a {uses[0]}")
            close = difflib.get_close_matches(key, taken, 1)
            hint = f"did you mean {taken[close[0]]}?" if close else "see docs/pipeline.md"
            raise BadOption(f"there is no option {name[:60]!r}", hint=hint)

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str) -> str:
        """Returns "" where the option is not given."""
        return self._values.get(name.lower(), "")

    def flag(self, name: str, default: bool) -> bool:
        text = self.text(name).lower()
        if name in self and text not in ("true", "false"):
            raise BadOption(f"{name} is 'true' or 'false', not {text[:60]!r}")
        return text == "true" if name in self else default

    def count(self, name: str, *, least: int = 1) -> int | None:
        text = self.text(name)
        if name not in self:
            return None
        if not text.isascii() or not text.isdecimal() or not least <= int(text) < 1 << 62:
            raise BadOption(f"{name} is a whole number from {least} on, not {text[:60]!r}")
        return int(text)

    def name(self, name: str, what: str) -> str:
        try:
            return check_name(self.text(name), what) if name in self else ""
        except BadName as error:
            raise BadOption(f"{name}: {error}", hint=error.hint) from None

    def document(self, name: str) -> dict[str, Any]:
        try:
            document = json.loads(self.text(name))
        except ValueError as error:
            raise BadOption(f"{name} is not JSON: {error}") from None
        if not isinstance(document, dict) or not document:
            raise BadOption(f'{name} is a JSON object such as {{"orders": {{"0": 23}}}}')
        return document

    def numbers(self, name: str) -> dict[str, int]:
        """A JSON object with a number for each topic."""
        return offsets_of(self.positions(name))

    def positions(self, name: str) -> dict[str, LogPosition]:
        try:
            return from_json(self.document(name))
        except ValueError as error:
            raise BadOption(f"{name}: {error}") from None

    def span(self, name: str, default: float) -> float:
        """Returns seconds."""
        if name not in self:
            return default
        span = _SPAN.fullmatch(self.text(name))
        if span is None:
            raise BadOption(f"{name} is a span such as '30s', '15m' or '1h', not {self.text(name)[:60]!r}")
        return float(span[1]) * _SECONDS[span[2]]

    def moment(self, name: str) -> int:
        """Milliseconds since 1970, as in Kafka, or a date and time with a zone. Returns microseconds."""
        text = self.text(name)
        if text.isascii() and text.isdecimal():
            return 1000 * int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            moment = datetime.min
        if moment.tzinfo is None:
            raise BadOption(
                f"{name} is in milliseconds since 1970 or a time with its zone, not {text[:60]!r}",
                hint="1767225600000, or 2026-01-01T00:00:00Z",
            )
        return int(moment.timestamp() * 1_000_000)


def read_options(options: Mapping[str, str], *, stream: bool) -> ReadOptions:
    given = GivenOptions(options, STREAM_READ if stream else BATCH_READ)
    if given.text("startingOffsets") == "latest" and not stream:
        raise BadOption("a batch read from 'latest' on would read nothing", hint="'earliest', or offsets")
    topics, pattern = _topics(given)
    start = _bound(given, "starting", LATEST if stream else EARLIEST, topics)
    end = Bound(LATEST) if stream else _bound(given, "ending", LATEST, topics)
    if EARLIEST in (end.at.values() if isinstance(end.at, dict) else [end.at]):
        raise BadOption("endingOffsets can't be 'earliest'", hint="'latest', or offsets")
    most, least = given.count("maxOffsetsPerTrigger"), given.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise BadOption(f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}")
    if "maxTriggerDelay" in given and least is None:
        raise BadOption("maxTriggerDelay has no effect without minOffsetsPerTrigger")
    return ReadOptions(
        topics=topics,
        pattern=pattern,
        start=start,
        end=end,
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        min_partitions=given.count("minPartitions") or 1,
        max_records_per_partition=given.count("maxRecordsPerPartition"),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least or 0,
        max_trigger_delay=given.span("maxTriggerDelay", 900.0),
        group=given.name("group", "group"),
    )


def write_options(options: Mapping[str, str], *, stream: bool) -> WriteOptions:
    if stream and any(name.lower() in ("producerid", "producerbatch") for name in options):
        raise BadOption(
            "a stream needs no producerId: Spark's query id and batch ids make sure that it is written once",
            hint="keep the checkpoint",
        )
    given = GivenOptions(options, STREAM_WRITE if stream else BATCH_WRITE)
    if "producerBatch" in given and "producerId" not in given:
        raise BadOption("producerBatch has no effect without producerId")
    return WriteOptions(
        topic=given.name("topic", "topic"),
        producer_id=given.name("producerId", "producer"),
        producer_batch=given.count("producerBatch", least=0) or 0,
    )


def extra_columns(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Whether the headers are wanted, and whether Landbridge's own columns are. Spark asks for the schema
    before it says which use it has for the format."""
    given = GivenOptions(options, BATCH_READ, STREAM_READ, BATCH_WRITE, STREAM_WRITE)
    return given.flag("includeHeaders", False), given.flag("includeMetadata", False)


def _topics(given: GivenOptions) -> tuple[tuple[str, ...], str]:
    """Returns (topics, pattern), of which one is empty."""
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(ways) != 1:
        given_ways = f"{' and '.join(ways)} were given" if ways else "none was given"
        raise BadOption(f"exactly one of subscribe, subscribePattern and assign is needed; {given_ways}")
    try:
        if ways == ["subscribePattern"]:
            return (), check_pattern(given.text("subscribePattern"))
        if ways == ["subscribe"]:
            names = [name.strip() for name in given.text("subscribe").split(",")]
        else:
            assigned = given.document("assign")
            names = list(assigned)
            for topic, partitions in assigned.items():
                if partitions != [0]:
                    raise BadOption(f"assign: the topic {topic!r} has one partition, [0], not {partitions!r}")
        return tuple(sorted({check_name(name, "topic") for name in names})), ""
    except BadName as error:
        raise BadOption(f"{ways[0]}: {error}", hint=error.hint) from None


def _bound(given: GivenOptions, which: str, default: int, topics: tuple[str, ...]) -> Bound:
    """``which``: "starting" or "ending"."""
    offsets, by_timestamp = f"{which}Offsets", f"{which}OffsetsByTimestamp"
    at: PerTopic = default
    moment: PerTopic | None = None
    known: dict[str, LogPosition] = {}
    if offsets in given:
        text = given.text(offsets)
        if text.startswith("{"):
            positions = given.positions(offsets)
            at = offsets_of(positions)
            known = {topic: each for topic, each in positions.items() if each.log}
            if any(offset < EARLIEST for offset in at.values()):
                raise BadOption(f"{offsets}: -2 is the earliest, -1 the latest, and nothing is below")
        elif text in ("earliest", "latest"):
            at = EARLIEST if text == "earliest" else LATEST
        else:
            example = '{"orders": {"0": 23}}'
            raise BadOption(f"{offsets} is 'earliest', 'latest' or JSON such as {example}, not {text[:60]!r}")
    if f"{which}Timestamp" in given:
        moment = given.moment(f"{which}Timestamp")
    elif by_timestamp in given:
        moment = {topic: 1000 * time for topic, time in given.numbers(by_timestamp).items()}
    for name, numbers in ((offsets, at), (by_timestamp, moment)):
        if topics and isinstance(numbers, dict) and set(numbers) != set(topics):
            raise BadOption(
                f"{name} speaks of {', '.join(sorted(numbers))}, and {', '.join(topics)} are read",
                hint="name each topic that is read, and no other",
            )
    return Bound(at, moment, known)

"""The options of ``format("landbridge")``: what each may be, and a sentence for everything else.

Spark hands them over as text, in whatever case. Nothing here connects to anything.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeAlias

import msgspec

from landbridge.core.log.planning import from_json
from landbridge.core.names import check_name, check_pattern
from landbridge.errors import BadName, BadOption

#: Offsets that stand for a place.
EARLIEST, LATEST = -2, -1
#: topic → offset, EARLIEST or LATEST; or one of the two for every topic.
Place: TypeAlias = "int | dict[str, int]"
#: topic → microseconds; or one moment for every topic.
Moment: TypeAlias = "int | dict[str, int]"

ACCESS = ("url", "context", "token")
READ = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "includeMetadata",
    "minPartitions",
    "maxRecordsPerPartition",
)
READ_BATCH = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
READ_STREAM = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "group")
WRITE = ("topic",)
WRITE_BATCH = ("producerId", "producerBatch")
#: Of Spark itself, which it shows to every source and sink.
SPARKS = ("checkpointLocation", "queryName")

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Bound(msgspec.Struct, frozen=True):
    """Where a read begins or ends; what is said of moments goes before what is said of offsets."""

    at: Place
    moment: Moment | None = None


class ReadOptions(msgspec.Struct, frozen=True, kw_only=True):
    #: Exactly one of the two.
    topics: tuple[str, ...] = ()
    pattern: str = ""
    start: Bound
    end: Bound = Bound(LATEST)
    fail_on_data_loss: bool = True
    min_partitions: int = 1
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int = 0
    #: Seconds that fewer than ``min_offsets_per_trigger`` may be kept waiting.
    max_trigger_delay: float = 900.0
    #: The group whose cursor the query moves; "" = none.
    group: str = ""


class WriteOptions(msgspec.Struct, frozen=True, kw_only=True):
    #: Goes before the column of that name; "" = the column says it.
    topic: str = ""
    #: Under which batch writes are published once; "" = each is its own.
    producer_id: str = ""
    producer_batch: int = 0


class Given:
    """Options as they were given, for one use of them: what is not known to it is refused."""

    def __init__(self, options: Mapping[str, str], known: tuple[str, ...], what: str) -> None:
        every = (*ACCESS, *READ, *READ_BATCH, *READ_STREAM, *WRITE, *WRITE_BATCH)
        names = {name.lower(): name for name in every}
        taken = {name.lower() for name in (*ACCESS, *known, *SPARKS)}
        #: By name in lower case.
        self._values: dict[str, str] = {}
        for name, value in options.items():
            key = name.lower()
            if key == "path":
                raise BadOption(
                    "a topic is not a path",
                    hint='option("subscribe", …) to read, option("topic", …) to write',
                )
            if key not in taken:
                self._refuse(name, names, taken, what)
            self._values[key] = str(value)

    @staticmethod
    def _refuse(name: str, names: dict[str, str], taken: set[str], what: str) -> None:
        key = name.lower()
        if key in names:
            raise BadOption(f"the option {names[key]} is of no use for a {what}")
        close = difflib.get_close_matches(key, [n for n in names if n in taken], 1)
        hint = f"did you mean {names[close[0]]}?" if close else "see docs/pipeline.md"
        raise BadOption(f"there is no option {name[:60]!r}", hint=hint)

    def text(self, name: str) -> str:
        return self._values.get(name.lower(), "").strip()

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def flag(self, name: str, default: bool) -> bool:
        said = self.text(name).lower()
        if name not in self:
            return default
        if said not in ("true", "false"):
            raise BadOption(f"{name} is 'true' or 'false', not {said[:60]!r}")
        return said == "true"

    def count(self, name: str, *, least: int = 1) -> int | None:
        if name not in self:
            return None
        said = self.text(name)
        if not said.isascii() or not said.isdecimal() or not least <= int(said) < 1 << 62:
            raise BadOption(f"{name} is a whole number from {least} on, not {said[:60]!r}")
        return int(said)

    def name(self, name: str, what: str) -> str:
        if name not in self:
            return ""
        try:
            return check_name(self.text(name), what)
        except BadName as error:
            raise BadOption(f"{name}: {error}", hint=error.hint) from None

    def document(self, name: str) -> Any:
        try:
            found = json.loads(self.text(name))
        except ValueError as error:
            raise BadOption(f"{name} is not JSON: {error}") from None
        if not isinstance(found, dict) or not found:
            raise BadOption(f'{name} is a JSON object such as {{"orders": {{"0": 23}}}}')
        return found

    def span(self, name: str, default: float) -> float:
        if name not in self:
            return default
        said = _SPAN.fullmatch(self.text(name))
        if said is None:
            raise BadOption(f"{name} is a span such as '30s', '15m' or '1h', not {self.text(name)[:60]!r}")
        return float(said[1]) * _SECONDS[said[2]]


def read_options(options: Mapping[str, str], *, stream: bool) -> ReadOptions:
    known = (*READ, *(READ_STREAM if stream else READ_BATCH))
    given = Given(options, known, "stream" if stream else "batch read")
    if given.text("startingOffsets") == "latest" and not stream:
        raise BadOption("a batch read from 'latest' on would read nothing", hint="'earliest', or offsets")
    topics, pattern = _topics(given)
    start = _bound(given, "starting", LATEST if stream else EARLIEST)
    end = Bound(LATEST) if stream else _bound(given, "ending", LATEST)
    if not stream and (end.at == EARLIEST or _says(end.at, EARLIEST)):
        raise BadOption("endingOffsets can't be 'earliest'", hint="'latest', or offsets")
    for each, which in ((start, "startingOffsets"), (end, "endingOffsets")):
        _check_topics(topics, each.at, which)
        _check_topics(topics, each.moment, f"{which}ByTimestamp")
    most, least = given.count("maxOffsetsPerTrigger"), given.count("minOffsetsPerTrigger")
    if most is not None and least is not None and least > most:
        raise BadOption(f"minOffsetsPerTrigger {least} is more than maxOffsetsPerTrigger {most}")
    if "maxTriggerDelay" in given and least is None:
        raise BadOption("maxTriggerDelay says nothing without minOffsetsPerTrigger")
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
            "a stream needs no producerId: Spark's query id and batch ids make it once",
            hint="keep the checkpoint",
        )
    known = WRITE if stream else (*WRITE, *WRITE_BATCH)
    given = Given(options, known, "streaming write" if stream else "batch write")
    if "producerBatch" in given and "producerId" not in given:
        raise BadOption("producerBatch says nothing without producerId")
    return WriteOptions(
        topic=given.name("topic", "topic"),
        producer_id=given.name("producerId", "producer"),
        producer_batch=given.count("producerBatch", least=0) or 0,
    )


def extra_columns(options: Mapping[str, str]) -> tuple[bool, bool]:
    """Are the headers wanted, and are our own columns? Asked before it is known what for."""
    given = Given(options, (*READ, *READ_BATCH, *READ_STREAM, *WRITE, *WRITE_BATCH), "read")
    return given.flag("includeHeaders", False), given.flag("includeMetadata", False)


def _topics(given: Given) -> tuple[tuple[str, ...], str]:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(ways) != 1:
        said = f"{' and '.join(ways)} were given" if ways else "none was given"
        raise BadOption(f"exactly one of subscribe, subscribePattern and assign is needed; {said}")
    try:
        if ways == ["subscribePattern"]:
            return (), check_pattern(given.text("subscribePattern"))
        if ways == ["subscribe"]:
            names = [name.strip() for name in given.text("subscribe").split(",")]
        else:
            names = _assigned(given.document("assign"))
        return tuple(sorted({check_name(name, "topic") for name in names})), ""
    except BadName as error:
        raise BadOption(f"{ways[0]}: {error}", hint=error.hint) from None


def _assigned(document: dict[str, Any]) -> list[str]:
    for topic, partitions in document.items():
        if partitions != [0]:
            raise BadOption(f"assign: the topic {topic!r} has one partition, [0], not {partitions!r}")
    return list(document)


def _bound(given: Given, which: str, default: int) -> Bound:
    place: Place = default
    said = given.text(f"{which}Offsets")
    if f"{which}Offsets" in given:
        words = {"earliest": EARLIEST, "latest": LATEST}
        if said in words:
            place = words[said]
        elif not said.startswith("{"):
            raise BadOption(
                f"{which}Offsets is 'earliest', 'latest' or JSON such as {{\"orders\": {{\"0\": 23}}}}, "
                f"not {said[:60]!r}"
            )
        else:
            place = _numbers(given, f"{which}Offsets")
            if any(offset < EARLIEST for offset in place.values()):
                raise BadOption(f"{which}Offsets: -2 is the earliest, -1 the latest, and nothing is below")
    if f"{which}Timestamp" in given:
        return Bound(place, _moment(given.text(f"{which}Timestamp"), f"{which}Timestamp"))
    if f"{which}OffsetsByTimestamp" in given:
        times = _numbers(given, f"{which}OffsetsByTimestamp")
        return Bound(place, {topic: 1000 * time for topic, time in times.items()})
    return Bound(place)


def _numbers(given: Given, name: str) -> dict[str, int]:
    try:
        return from_json(given.document(name))
    except ValueError as error:
        raise BadOption(f"{name}: {error}") from None


def _moment(said: str, name: str) -> int:
    """Milliseconds since 1970, as Kafka's, or a date and time with a zone."""
    if said.isascii() and said.isdecimal():
        return 1000 * int(said)
    moment: datetime | None = None
    try:
        moment = datetime.fromisoformat(said)
    except ValueError:
        pass
    if moment is None or moment.tzinfo is None:
        raise BadOption(
            f"{name} is in milliseconds since 1970 or a time with its zone, not {said[:60]!r}",
            hint="1767225600000, or 2026-01-01T00:00:00Z",
        )
    return int(moment.timestamp() * 1_000_000)


def _says(place: Place, offset: int) -> bool:
    return isinstance(place, dict) and offset in place.values()


def _check_topics(topics: tuple[str, ...], given: int | dict[str, int] | None, name: str) -> None:
    if topics and isinstance(given, dict) and set(given) != set(topics):
        raise BadOption(
            f"{name} speaks of {', '.join(sorted(given))}, and {', '.join(topics)} are read",
            hint="name each topic that is read, and no other",
        )

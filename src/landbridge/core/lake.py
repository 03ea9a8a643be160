"""Which files of a lake count. These are decisions only; ``pipeline/lake/lake.py`` has the disk (ADR-13).

A lake is a list of commit records, numbered from 0 without a gap. Its state is what the records add up to. A
writer builds a record on the state that it knows and creates the next number. If another writer was faster,
it reads that record, checks its own again, and tries the number after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from landbridge.core.log.planning import LogPosition
from landbridge.errors import AlreadyArchived, LakeDamaged, OtherLog, StoreTooNew

#: The format of records and states. A higher number was written by a newer Landbridge.
#: Version 1 didn't say of which logs the offsets are.
VERSION = 2
#: After so many records the state is written down, so that no reader has to read many more records than that.
STATE_EVERY = 64
#: The two tables, each a folder.
MESSAGES, REJECTS = "messages", "rejects"
#: A lake has one log of each topic, because two messages of the topic would have the same offset otherwise.
ANOTHER_LAKE = "archive the topic into another lake; this one stays as it is, and can be read"


class DataFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A Parquet file. ``path`` is relative to the lake:
    ``messages/topic=orders/date=2026-01-31/….parquet``."""

    path: str
    rows: int
    bytes: int
    #: Offsets of its rows: from ``first`` to before ``end``, maybe with gaps.
    first: int
    end: int

    @property
    def part(self) -> Part:
        table, topic, date, _ = self.path.split("/")
        return Part(table, topic.removeprefix("topic="), date.removeprefix("date="))


class Part(NamedTuple):
    """The files of a topic and a day, in one of the tables."""

    table: str
    topic: str
    date: str

    @property
    def folder(self) -> str:
        return f"{self.table}/topic={self.topic}/date={self.date}"


class LakeRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit: all of it counts, or nothing."""

    version: int = VERSION
    #: Who wrote it. Two attempts have different names, even at the same micro-batch.
    attempt: str
    #: Microseconds since 1970, for people. No decision depends on it.
    at: int = 0
    #: The streaming query and its micro-batch; "" and -1 for other commits. A micro-batch is committed once.
    query: str = ""
    batch: int = -1
    added: tuple[DataFile, ...] = ()
    #: Files that no longer count and may still be on the disk.
    removed: tuple[str, ...] = ()
    #: Files of earlier ``removed`` that are no longer on the disk.
    gone: tuple[str, ...] = ()
    #: Attempts that may never commit, because their files are about to be removed.
    fenced: tuple[str, ...] = ()
    #: topic → offset before which everything is in the lake, for the topics of this record.
    ends: dict[str, int] = {}
    #: topic → the log that counts these offsets, and the time of the message before the end.
    logs: dict[str, str] = {}
    stamps: dict[str, int] = {}


class LakeState(msgspec.Struct, kw_only=True):
    """What the records up to ``number`` add up to."""

    version: int = VERSION
    #: The last record; -1: there is none yet.
    number: int = -1
    #: The files that count, by path.
    files: dict[str, DataFile] = {}
    #: topic → offset before which everything is in the lake.
    ends: dict[str, int] = {}
    #: topic → the log that counts the topic's offsets. A topic that Landbridge 0.1 has archived has none.
    logs: dict[str, str] = {}
    #: topic → the time of the message before the end; none where it isn't known.
    stamps: dict[str, int] = {}
    #: query → its last committed micro-batch.
    batches: dict[str, int] = {}
    #: Files that no longer count and may still be on the disk.
    leaving: set[str] = set()
    #: Attempts that may never commit: one for each crash after which the job was not started again.
    fenced: set[str] = set()

    def has(self, query: str, batch: int) -> bool:
        return batch <= self.batches.get(query, -1)

    def position(self, topic: str) -> LogPosition | None:
        """Where the lake ends; None where it has nothing of the topic."""
        if topic not in self.ends:
            return None
        return LogPosition(self.ends[topic], self.logs.get(topic, ""), self.stamps.get(topic))

    def includes(self, record: LakeRecord) -> bool:
        """Whether a record was committed that adds files, ends a micro-batch or fences attempts."""
        if record.query:
            return self.has(record.query, record.batch)
        known = {*self.files, *self.leaving}
        return any(file.path in known for file in record.added) or bool(self.fenced & {*record.fenced})

    def check(self, record: LakeRecord) -> None:
        """Check that a record may be the next one. Raises AlreadyArchived if another query has committed its
        rows, OtherLog if the lake has another log of the topic, and Overtaken if the state that the record
        was built on has changed."""
        if record.attempt in self.fenced:
            raise Overtaken(f"the attempt {record.attempt} was given up by another process")
        if record.query and self.has(record.query, record.batch):
            raise Overtaken(f"micro-batch {record.batch} is in the lake already")
        if missing := [path for path in record.removed if path not in self.files]:
            raise Overtaken(f"{missing[0]} was removed by another process")
        if not record.query:
            return
        for file in sorted(record.added, key=lambda file: file.first):
            topic = file.part.topic
            here, there = record.logs.get(topic, ""), self.logs.get(topic, "")
            if topic in self.ends and here != there:
                what = LogPosition(self.ends[topic], there).difference(log=here, end=0, before=None)
                raise OtherLog(f"the lake's topic {topic}: {what}", hint=ANOTHER_LAKE)
            if file.first < self.ends.get(topic, 0):
                raise AlreadyArchived(
                    f"the lake has the topic {topic} up to offset {self.ends[topic] - 1}, and this query "
                    f"would add from {file.first} on",
                    hint="is the topic archived by another job? Go on with the checkpoint that was used, or "
                    "take another lake",
                )

    def apply(self, record: LakeRecord) -> None:
        """Add the next record."""
        if record.version > VERSION:
            raise StoreTooNew(f"the lake has records of version {record.version}", hint="update landbridge")
        for path in record.removed:
            if self.files.pop(path, None) is None:
                raise LakeDamaged(f"record {self.number + 1} removes {path}, which is not there")
            self.leaving.add(path)
        for file in record.added:
            self.files[file.path] = file
        self.leaving.difference_update(record.gone)
        self.fenced.update(record.fenced)
        for topic, end in record.ends.items():
            if end > self.ends.get(topic, 0):
                self.ends[topic] = end
                self.stamps.pop(topic, None)
                if topic in record.stamps:
                    self.stamps[topic] = record.stamps[topic]
        self.logs.update(record.logs)
        if record.query:
            self.batches[record.query] = record.batch
        self.number += 1


class Overtaken(Exception):
    """A record can no longer be committed and needn't be, because another writer was faster. Users never see
    this error."""


def ends_of(files: Iterable[DataFile]) -> dict[str, int]:
    """topic → the end of its last file."""
    ends: dict[str, int] = {}
    for file in files:
        topic = file.part.topic
        ends[topic] = max(file.end, ends.get(topic, 0))
    return ends


def to_compact(
    files: Mapping[str, DataFile], target: int, *, topic: str | None = None, before: str | None = None
) -> dict[Part, list[DataFile]]:
    """The files to rewrite, by part and in the order of their offsets: those well below the target, where a
    part has at least two.

    target: bytes that a file should have. before: only days before this one, as ``2026-01-31``."""
    small: dict[Part, list[DataFile]] = defaultdict(list)
    for file in files.values():
        part = file.part
        if topic not in (None, part.topic) or (before is not None and part.date >= before):
            continue
        # A file of three quarters of the target stays. Otherwise the last file of a part, which is always
        # somewhat smaller, would be rewritten every time.
        if 4 * file.bytes < 3 * target:
            small[part].append(file)
    return {
        part: sorted(several, key=lambda file: (file.first, file.path))
        for part, several in sorted(small.items())
        if len(several) > 1
    }


def file_count(files: Iterable[DataFile], target: int) -> int:
    """The number of files that these are rewritten to."""
    return max(1, -(-sum(file.bytes for file in files) // target))


# -- on the disk --------------------------------------------------------------------------------------

_record = msgspec.json.Decoder(LakeRecord)
_state = msgspec.json.Decoder(LakeState)


def record_name(number: int) -> str:
    return f"{number:012d}.json"


def state_name(number: int) -> str:
    return f"{number:012d}.state.json"


def encode(document: LakeRecord | LakeState) -> bytes:
    indent = 1 if isinstance(document, LakeRecord) else 0
    return msgspec.json.format(msgspec.json.encode(document), indent=indent)


def decode_record(data: bytes, name: str) -> LakeRecord:
    try:
        return _record.decode(data)
    except msgspec.MsgspecError as error:
        raise LakeDamaged(f"the commit record {name} can't be read: {error}") from None


def decode_state(data: bytes, name: str) -> LakeState:
    try:
        state = _state.decode(data)
    except msgspec.MsgspecError as error:
        raise LakeDamaged(f"the state {name} can't be read: {error}") from None
    if state.version > VERSION:
        raise StoreTooNew(f"the lake has a state of version {state.version}", hint="update landbridge")
    return state


class Listing(NamedTuple):
    """The content of the folder with the commits."""

    #: Numbers of states and of records, ascending.
    states: list[int]
    records: list[int]

    @classmethod
    def of(cls, names: Iterable[str]) -> Listing:
        numbers: dict[str, list[int]] = {"state.json": [], "json": []}
        for name in names:
            number, _, kind = name.partition(".")
            if number.isdecimal() and kind in numbers:
                numbers[kind].append(int(number))
        return cls(sorted(numbers["state.json"]), sorted(numbers["json"]))

    def unread(self, known: int) -> list[int]:
        """The records after ``known``. Raises LakeDamaged where one is missing."""
        later = [number for number in self.records if number > known]
        if later != list(range(known + 1, known + 1 + len(later))):
            raise LakeDamaged(f"commit records are missing after number {known}: there are {later[:3]} …")
        return later

    def expendable(self) -> list[str]:
        """Names that may be removed, oldest first: what the state before the last one includes. The order
        matters, see ``Lake.commit``."""
        if len(self.states) < 2:
            return []
        kept = self.states[-2]
        older = [state_name(number) for number in self.states if number < kept]
        return older + [record_name(number) for number in self.records if number <= kept]

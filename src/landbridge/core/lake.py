"""What a lake is: which of its files count. Decisions only; ``pipeline/lake/lake.py`` has the disk (ADR-13).

A lake is a list of commit records, numbered from 0 without a gap. The state is what they add up to. Whoever
wants to commit builds a record on the state that it knows and creates the next number; if another was faster,
it reads that one, checks its own again, and tries the number after it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from landbridge.errors import AlreadyArchived, LakeDamaged, StoreTooNew

#: Of records and of states. A higher one was written by a newer Landbridge.
VERSION = 1
#: Records after which the state is written down, so that nobody has to read more than about so many.
STATE_EVERY = 64
#: The two tables, each a folder.
MESSAGES, REJECTS = "messages", "rejects"


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
    """The files of a topic and a day."""

    table: str
    topic: str
    date: str

    @property
    def folder(self) -> str:
        return f"{self.table}/topic={self.topic}/date={self.date}"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One commit: all of it counts, or nothing."""

    version: int = VERSION
    #: Who wrote it: unlike any other attempt, also of the same micro-batch.
    attempt: str
    #: Microseconds since 1970, for people; nothing is decided by it.
    at: int = 0
    #: The streaming query and its micro-batch, if it is one. A micro-batch is committed once.
    query: str = ""
    batch: int = -1
    added: tuple[DataFile, ...] = ()
    #: Files that don't count any more, and that nobody may have removed yet.
    removed: tuple[str, ...] = ()
    #: Files removed earlier, which are not on the disk any more.
    gone: tuple[str, ...] = ()
    #: Attempts that may never commit: their files are about to be removed.
    fenced: tuple[str, ...] = ()
    #: topic → offset before which everything is in the lake, for topics of this record.
    ends: dict[str, int] = {}


class State(msgspec.Struct, kw_only=True):
    """What the records up to ``number`` add up to."""

    version: int = VERSION
    #: The last record; -1: there is none yet.
    number: int = -1
    #: The files that count, by path.
    files: dict[str, DataFile] = {}
    #: topic → offset before which everything is in the lake.
    ends: dict[str, int] = {}
    #: query → its last micro-batch that is committed.
    batches: dict[str, int] = {}
    #: Files that don't count any more and may still be on the disk.
    leaving: set[str] = set()
    #: Attempts that may never commit. One per crash that nobody came back from.
    fenced: set[str] = set()

    def has(self, query: str, batch: int) -> bool:
        return batch <= self.batches.get(query, -1)

    def includes(self, record: Record) -> bool:
        """Was it committed? For a record that adds files, ends a micro-batch or bars attempts."""
        if record.query:
            return self.has(record.query, record.batch)
        known = {*self.files, *self.leaving}
        return any(file.path in known for file in record.added) or bool(self.fenced & {*record.fenced})

    def check(self, record: Record) -> None:
        """May it be the next? AlreadyArchived if its rows are there by another query; Overtaken if what it
        was built on has changed."""
        if record.attempt in self.fenced:
            raise Overtaken(f"the attempt {record.attempt} was given up by somebody else")
        if record.query and self.has(record.query, record.batch):
            raise Overtaken(f"micro-batch {record.batch} is in the lake already")
        if missing := [path for path in record.removed if path not in self.files]:
            raise Overtaken(f"{missing[0]} was removed by somebody else")
        if not record.query:
            return
        for topic, first in _firsts(record.added).items():
            if first < self.ends.get(topic, 0):
                raise AlreadyArchived(
                    f"the lake has the topic {topic} up to offset {self.ends[topic] - 1}, and this query "
                    f"would add from {first} on",
                    hint="was the topic made anew, is it of another terminal, or archived by another job? "
                    "Go on with the checkpoint that was used, or take another lake",
                )

    def apply(self, record: Record) -> None:
        """Take the next record in."""
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
            self.ends[topic] = max(end, self.ends.get(topic, 0))
        if record.query:
            self.batches[record.query] = record.batch
        self.number += 1


class Overtaken(Exception):
    """A record can't be committed any more, and needn't be: somebody else was faster. Never seen outside."""


def ends_of(files: Iterable[DataFile]) -> dict[str, int]:
    ends: dict[str, int] = {}
    for file in files:
        topic = file.part.topic
        ends[topic] = max(file.end, ends.get(topic, 0))
    return ends


def _firsts(files: Iterable[DataFile]) -> dict[str, int]:
    firsts: dict[str, int] = {}
    for file in files:
        topic = file.part.topic
        firsts[topic] = min(file.first, firsts.get(topic, file.first))
    return firsts


def to_compact(
    files: Mapping[str, DataFile], target: int, *, topic: str | None = None, before: str | None = None
) -> dict[Part, list[DataFile]]:
    """The files to be written anew, by part, in the order of their offsets: those well below the target,
    where there are at least two.

    target: bytes that a file should have. before: only days before this one, as ``2026-01-31``."""
    small: dict[Part, list[DataFile]] = defaultdict(list)
    for file in files.values():
        part = file.part
        if topic not in (None, part.topic) or (before is not None and part.date >= before):
            continue
        # A file of three quarters of the target is left in peace: else the last one, which is always somewhat
        # smaller, would be written anew each time.
        if 4 * file.bytes < 3 * target:
            small[part].append(file)
    return {
        part: sorted(several, key=lambda file: (file.first, file.path))
        for part, several in sorted(small.items())
        if len(several) > 1
    }


def file_count(files: Iterable[DataFile], target: int) -> int:
    """How many files these are to become."""
    return max(1, -(-sum(file.bytes for file in files) // target))


# -- on the disk --------------------------------------------------------------------------------------

_record = msgspec.json.Decoder(Record)
_state = msgspec.json.Decoder(State)


def record_name(number: int) -> str:
    return f"{number:012d}.json"


def state_name(number: int) -> str:
    return f"{number:012d}.state.json"


def encode(document: Record | State) -> bytes:
    return msgspec.json.format(msgspec.json.encode(document), indent=1 if isinstance(document, Record) else 0)


def decode_record(data: bytes, name: str) -> Record:
    try:
        return _record.decode(data)
    except msgspec.MsgspecError as error:
        raise LakeDamaged(f"the commit record {name} can't be read: {error}") from None


def decode_state(data: bytes, name: str) -> State:
    try:
        state = _state.decode(data)
    except msgspec.MsgspecError as error:
        raise LakeDamaged(f"the state {name} can't be read: {error}") from None
    if state.version > VERSION:
        raise StoreTooNew(f"the lake has a state of version {state.version}", hint="update landbridge")
    return state


class Listing(NamedTuple):
    """What the folder of the commits has."""

    #: Numbers of states and of records, ascending.
    states: list[int]
    records: list[int]

    @classmethod
    def of(cls, names: Iterable[str]) -> Listing:
        states: list[int] = []
        records: list[int] = []
        for name in names:
            number, _, kind = name.partition(".")
            if number.isdecimal() and kind in ("json", "state.json"):
                (records if kind == "json" else states).append(int(number))
        return cls(sorted(states), sorted(records))

    def unread(self, known: int) -> list[int]:
        """Records after ``known``, which must be without a gap."""
        later = [number for number in self.records if number > known]
        if later != list(range(known + 1, known + 1 + len(later))):
            raise LakeDamaged(f"commit records are missing after number {known}: there are {later[:3]} …")
        return later

    def expendable(self) -> list[str]:
        """Names that may be removed, oldest first: what the state before the last one has in it. The order
        matters, see ``Lake.commit``."""
        if len(self.states) < 2:
            return []
        kept = self.states[-2]
        older = [state_name(number) for number in self.states if number < kept]
        return older + [record_name(number) for number in self.records if number <= kept]

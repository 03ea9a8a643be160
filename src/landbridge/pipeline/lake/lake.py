"""A lake: messages as Parquet files, by topic and day, and the commit records that say which files count
(ADR-13).

    LAKE/messages/topic=orders/date=2026-01-31/….parquet
    LAKE/rejects/topic=orders/date=2026-01-31/….parquet      payloads that are not what they should be
    LAKE/_commits/000000000012.json                          the twelfth commit: files added and removed
    LAKE/_commits/000000000012.state.json                    what the commits add up to, every now and then
    LAKE/_staging/ATTEMPT/                                   files on their way in
    LAKE/_checkpoints/GROUP/                                 Spark's, of the archive job

A commit goes: Spark writes files to the stage; an *intent* on the stage names where they will be; they are
moved there; the record is created. Up to the record, ``Lake.read`` doesn't know them; afterwards it has them
all. Whoever comes next clears what an attempt that died has left, by its intent.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from landbridge.core.lake import (
    MESSAGES,
    REJECTS,
    STATE_EVERY,
    DataFile,
    Listing,
    Record,
    State,
    decode_record,
    decode_state,
    encode,
    record_name,
    state_name,
)
from landbridge.errors import LakeDamaged
from landbridge.pipeline.files import files_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS, STAGING, CHECKPOINTS = "_commits", "_staging", "_checkpoints"
INTENT = "intent.json"

_DATA = (
    "key binary, value binary, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>, id string, priority int, origin string"
)
#: Columns inside of the files, by table. Topic and date are in the names of the folders.
COLUMNS = {MESSAGES: f"{_DATA}, json variant", REJECTS: f"{_DATA}, reason string"}


def columns(table: str) -> list[str]:
    """The names of a table's columns, without those of its folders."""
    return [column.split()[0] for column in COLUMNS[table].split(", ")]


#: How often to look again when files of the commits vanish between the listing and the reading, because
#: somebody has just written a newer state down.
LOOKS = 10


class Snapshot(NamedTuple):
    """A lake at one moment."""

    #: The last commit; -1: none.
    number: int
    #: topic → offset before which everything is in the lake.
    ends: dict[str, int]
    #: URLs of the files with messages.
    files: list[str]
    rows: int
    bytes: int


class Staged(NamedTuple):
    """A file that Spark has written, and where it is going to be."""

    path: str
    goes_to: str
    bytes: int


class Attempt:
    """One try at a commit, with a stage of its own. Two tries at the same micro-batch share no file name."""

    def __init__(self, lake: Lake, name: str) -> None:
        self._lake = lake
        self.id = f"{name}-{uuid.uuid4().hex[:12]}"
        self.folder = f"{STAGING}/{self.id}"

    @property
    def url(self) -> str:
        """Where Spark writes: below it as it shall be in the lake, a table's folder first."""
        return f"{self._lake.url}/{self.folder}"

    def staged(self) -> list[Staged]:
        found = self._lake.disk.below(self.folder, ".parquet")
        places = []
        for index, entry in enumerate(found):
            folder = entry.path.removeprefix(f"{self.folder}/").rpartition("/")[0]
            places.append(Staged(entry.path, f"{folder}/{self.id}-{index:05d}.parquet", entry.bytes))
        return places

    def put_in_place(self, places: Sequence[Staged]) -> None:
        intent = msgspec.json.encode([each.goes_to for each in places])
        self._lake.disk.create(f"{self.folder}/{INTENT}", intent)
        self._lake.disk.move([(each.path, each.goes_to) for each in places])

    def withdraw(self, places: Sequence[Staged]) -> None:
        """The files go, too. In this order: the intent is what they could be found by."""
        self._lake.disk.delete(each.goes_to for each in places)
        self.clear()

    def clear(self) -> None:
        self._lake.disk.delete([self.folder])


class Lake:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.disk = files_at(spark, path.rstrip("/") or path)
        self.url = self.disk.url
        #: As far as it was last read: a writer reads only what others have committed since.
        self._state = State()

    # -- reading --------------------------------------------------------------------------------------

    def read(self) -> DataFrame:
        """The messages: exactly what is committed, whatever else is on the disk."""
        return self.table(MESSAGES)

    def rejects(self) -> DataFrame:
        """What could not be decoded, with the reason."""
        return self.table(REJECTS)

    def table(self, name: str) -> DataFrame:
        files = [file for file in self.state().files.values() if file.part.table == name]
        return self.frame(files, name)

    def frame(self, files: Iterable[DataFile], table: str) -> DataFrame:
        """The rows of some files."""
        schema = f"topic string, date date, {COLUMNS[table]}"
        names = [f"{self.url}/{file.path}" for file in files]
        if not names:
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.schema(schema).option("basePath", f"{self.url}/{table}")
        return reader.parquet(*names).select("topic", "date", *columns(table))

    def snapshot(self) -> Snapshot:
        state = self.state()
        files = [file for file in state.files.values() if file.part.table == MESSAGES]
        return Snapshot(
            state.number,
            dict(state.ends),
            [f"{self.url}/{file.path}" for file in files],
            sum(file.rows for file in files),
            sum(file.bytes for file in files),
        )

    def state(self) -> State:
        """What counts, as of now. Not to be changed by who asks."""
        for look in range(LOOKS):
            try:
                return self._catch_up()
            except (FileNotFoundError, LakeDamaged) as error:
                # A listing isn't a snapshot: it may show a record and not the one before it.
                if look == LOOKS - 1:
                    raise LakeDamaged(f"{self.url}/{COMMITS}: {error}") from None
        raise AssertionError("the last look has returned or raised")

    def _catch_up(self) -> State:
        listing = Listing.of(self.disk.names(COMMITS))
        state = self._state
        newest = listing.states[-1] if listing.states else -1
        if newest > state.number:
            name = state_name(newest)
            state = self._state = decode_state(self.disk.read(f"{COMMITS}/{name}"), name)
        for number in listing.unread(state.number):
            name = record_name(number)
            state.apply(decode_record(self.disk.read(f"{COMMITS}/{name}"), name))
        return state

    # -- writing --------------------------------------------------------------------------------------

    def attempt(self, name: str) -> Attempt:
        return Attempt(self, name)

    def commit(self, record: Record) -> State:
        """Make it count, as the next number. Raises what ``State.check`` does, and nothing has changed
        then."""
        while True:
            state = self.state()
            state.check(record)
            number = state.number + 1
            if not self.disk.create(f"{COMMITS}/{record_name(number)}", encode(record)):
                continue
            # Records are removed from the oldest on. So with the one before it there, ours is the last.
            if not number or self.disk.exists(f"{COMMITS}/{record_name(number - 1)}"):
                break
            # Else we slept between the look and the creation for so long that the number was used and removed
            # again, and nobody reads ours; or we slept afterwards, and a state has it.
            self._state = State()
            if self.state().includes(record):
                break
            self.disk.delete([f"{COMMITS}/{record_name(number)}"])
        state = self.state()
        if number % STATE_EVERY == STATE_EVERY - 1:
            self._write_state(state)
        return state

    def _write_state(self, state: State) -> None:
        """For those who come later. If it fails or two do it, nothing is lost."""
        self.disk.create(f"{COMMITS}/{state_name(state.number)}", encode(state))
        names = Listing.of(self.disk.names(COMMITS)).expendable()
        self.disk.delete(f"{COMMITS}/{name}" for name in names)

    def recover(self, wanted: Callable[[str], bool]) -> int:
        """Clear what attempts have left that ended in the middle; ``wanted`` says of which. Returns how many.

        An attempt may not be dead, only slow. So before anything of it goes, a record bars it from
        committing: else it could commit what is gone, or the half of its files that it still found."""
        ended = 0
        for name in self.disk.names(STAGING):
            if not wanted(name):
                continue
            state = self.state()
            if name not in state.fenced and not any(path in state.files for path in self._intended(name)):
                state = self.commit(Record(attempt=f"{name}-barred", at=micros(), fenced=(name,)))
            # Asked again: it may have got on until it was barred, or even have committed.
            self.disk.delete(path for path in self._intended(name) if path not in state.files)
            self.disk.delete([f"{STAGING}/{name}"])
            ended += 1
        return ended

    def _intended(self, name: str) -> list[str]:
        """Where the files of an attempt are or would be; nothing, if it didn't come so far."""
        try:
            return msgspec.json.decode(self.disk.read(f"{STAGING}/{name}/{INTENT}"), type=list[str])
        except FileNotFoundError:
            return []

    def describe(self, places: Sequence[Staged]) -> tuple[DataFile, ...]:
        """Staged files as they will be known: rows and offsets are from their footers."""
        described = []
        for each in places:
            rows, first, end = self._footer(each.path)
            described.append(DataFile(each.goes_to, rows, each.bytes, first, end))
        return tuple(described)

    def _footer(self, path: str) -> tuple[int, int, int]:
        """(rows, first offset, offset after the last)."""
        jvm: Any = self._spark._jvm
        place = jvm.org.apache.hadoop.fs.Path(f"{self.url}/{path}")
        file = jvm.org.apache.parquet.hadoop.util.HadoopInputFile.fromPath(
            place, self._spark._jsc.hadoopConfiguration()
        )
        reader = jvm.org.apache.parquet.hadoop.ParquetFileReader.open(file)
        try:
            bounds = []
            for block in reader.getFooter().getBlocks():
                for column in block.getColumns():
                    if column.getPath().toDotString() == "offset":
                        statistics = column.getStatistics()
                        bounds += [int(statistics.genericGetMin()), int(statistics.genericGetMax())]
            return int(reader.getRecordCount()), min(bounds), max(bounds) + 1
        finally:
            reader.close()


def micros() -> int:
    return time.time_ns() // 1000

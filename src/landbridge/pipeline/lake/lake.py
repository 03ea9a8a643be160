"""A lake: messages as Parquet files, by topic and day, and the commit records that say which files count
(ADR-13).

    LAKE/messages/topic=orders/date=2026-01-31/….parquet
    LAKE/rejects/topic=orders/date=2026-01-31/….parquet      messages whose payload is not JSON but should be
    LAKE/_commits/000000000012.json                          the record of commit 12: files added and removed
    LAKE/_commits/000000000012.state.json                    the sum of the commits so far, now and then
    LAKE/_staging/ATTEMPT/                                   files that are not committed yet
    LAKE/_checkpoints/GROUP/                                 Spark's checkpoint of the archive job

A commit has four steps. Spark writes files to the stage. An *intent* on the stage names where they will be.
They are moved there. The record is created. ``Lake.read`` has none of the files before the record is there,
and all of them afterwards. If an attempt dies, the next writer clears its files by the intent.
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
    LakeRecord,
    LakeState,
    Listing,
    decode_record,
    decode_state,
    encode,
    record_name,
    state_name,
)
from landbridge.errors import LakeDamaged
from landbridge.pipeline.lake.files import files_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS, STAGING, CHECKPOINTS = "_commits", "_staging", "_checkpoints"
INTENT = "intent.json"

_DATA = (
    "key binary, value binary, offset bigint, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>, id string, priority int, origin string"
)
#: table → the columns in its files. Topic and date are in the names of the folders.
COLUMNS = {MESSAGES: f"{_DATA}, json variant", REJECTS: f"{_DATA}, reason string"}
#: How often the commits are read again when files vanish between the listing and the reading, because another
#: process has just written a newer state.
LOOKS = 10


def columns(table: str) -> list[str]:
    """The names of a table's columns, without those of its folders."""
    return [column.split()[0] for column in COLUMNS[table].split(", ")]


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


class StagedFile(NamedTuple):
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
        #: Where Spark writes. The folders below it are those of the lake, a table's folder first.
        self.url = f"{lake.url}/{self.folder}"

    def staged(self) -> list[StagedFile]:
        places = []
        for index, found in enumerate(self._lake.disk.below(self.folder, ".parquet")):
            folder = found.path.removeprefix(f"{self.folder}/").rpartition("/")[0]
            places.append(StagedFile(found.path, f"{folder}/{self.id}-{index:05d}.parquet", found.bytes))
        return places

    def put_in_place(self, places: Sequence[StagedFile]) -> None:
        intent = msgspec.json.encode([each.goes_to for each in places])
        self._lake.disk.create(f"{self.folder}/{INTENT}", intent)
        self._lake.disk.move([(each.path, each.goes_to) for each in places])

    def withdraw(self, places: Sequence[StagedFile]) -> None:
        """Remove the files, and then the stage, because its intent is what the files could be found by."""
        self._lake.disk.delete(each.goes_to for each in places)
        self.clear()

    def clear(self) -> None:
        self._lake.disk.delete([self.folder])


class Lake:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self.disk = files_at(spark, path.rstrip("/") or path)
        self.url = self.disk.url
        #: As it was last read. The next look reads only what was committed since.
        self._state = LakeState()

    # -- reading --------------------------------------------------------------------------------------

    def read(self) -> DataFrame:
        """The messages: exactly what is committed, whatever else is on the disk."""
        return self.frame(self._files(MESSAGES), MESSAGES)

    def rejects(self) -> DataFrame:
        """The messages that could not be decoded, with the reason."""
        return self.frame(self._files(REJECTS), REJECTS)

    def _files(self, table: str) -> list[DataFile]:
        return [file for file in self.state().files.values() if file.part.table == table]

    def frame(self, files: Iterable[DataFile], table: str) -> DataFrame:
        """The rows of some files."""
        schema = f"topic string, date date, {COLUMNS[table]}"
        names = [f"{self.url}/{file.path}" for file in files]
        if not names:
            return self._spark.createDataFrame([], schema)
        reader = self._spark.read.schema(schema).option("basePath", f"{self.url}/{table}")
        return reader.parquet(*names).select("topic", "date", *columns(table))

    def snapshot(self) -> Snapshot:
        files, state = self._files(MESSAGES), self._state
        urls = [f"{self.url}/{file.path}" for file in files]
        rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
        return Snapshot(state.number, dict(state.ends), urls, rows, size)

    def state(self) -> LakeState:
        """What counts, as of now. The caller must not change it."""
        for look in range(LOOKS):
            try:
                return self._catch_up()
            except (FileNotFoundError, LakeDamaged) as error:
                # A listing is no snapshot: it may show a record and not the one before it.
                if look == LOOKS - 1:
                    raise LakeDamaged(f"{self.url}/{COMMITS}: {error}") from None
        raise AssertionError("the last look has returned or raised")

    def _catch_up(self) -> LakeState:
        listing = Listing.of(self.disk.names(COMMITS))
        newest = listing.states[-1] if listing.states else -1
        if newest > self._state.number:
            name = state_name(newest)
            self._state = decode_state(self.disk.read(f"{COMMITS}/{name}"), name)
        for number in listing.unread(self._state.number):
            name = record_name(number)
            self._state.apply(decode_record(self.disk.read(f"{COMMITS}/{name}"), name))
        return self._state

    # -- writing --------------------------------------------------------------------------------------

    def attempt(self, name: str) -> Attempt:
        return Attempt(self, name)

    def commit(self, record: LakeRecord) -> LakeState:
        """Make a record count, as the next number. Raises what ``LakeState.check`` raises, before anything is
        changed."""
        while True:
            state = self.state()
            state.check(record)
            number = state.number + 1
            if not self.disk.create(f"{COMMITS}/{record_name(number)}", encode(record)):
                continue
            # Records are removed from the oldest on. So if the record before it exists, ours is the last one.
            if not number or self.disk.exists(f"{COMMITS}/{record_name(number - 1)}"):
                break
            # Otherwise this process slept before the creation, and the number was used and removed again: no
            # reader finds our record. Or it slept after it, and a state includes our record.
            self._state = LakeState()
            if self.state().includes(record):
                break
            self.disk.delete([f"{COMMITS}/{record_name(number)}"])
        state = self.state()
        if number % STATE_EVERY == STATE_EVERY - 1:
            # Nothing is lost if this fails, or if two processes do it.
            self.disk.create(f"{COMMITS}/{state_name(state.number)}", encode(state))
            expendable = Listing.of(self.disk.names(COMMITS)).expendable()
            self.disk.delete(f"{COMMITS}/{name}" for name in expendable)
        return state

    def recover(self, wanted: Callable[[str], bool]) -> int:
        """Clear the files of attempts that ended in the middle; ``wanted`` says of which attempts. Returns
        the number of attempts.

        An attempt may be slow and not dead. So before any of its files are removed, a record fences it.
        Otherwise it could commit files that are gone."""
        ended = 0
        for name in self.disk.names(STAGING):
            if not wanted(name):
                continue
            state = self.state()
            if name not in state.fenced and not any(path in state.files for path in self._intended(name)):
                state = self.commit(LakeRecord(attempt=f"{name}-barred", at=micros(), fenced=(name,)))
            # The intent is read again: the attempt may have got on, or even committed, until it was fenced.
            self.disk.delete(path for path in self._intended(name) if path not in state.files)
            self.disk.delete([f"{STAGING}/{name}"])
            ended += 1
        return ended

    def _intended(self, name: str) -> list[str]:
        """Where the files of an attempt are or would be; an empty list if it has no intent yet."""
        try:
            return msgspec.json.decode(self.disk.read(f"{STAGING}/{name}/{INTENT}"), type=list[str])
        except FileNotFoundError:
            return []

    def describe(self, places: Sequence[StagedFile]) -> tuple[DataFile, ...]:
        """Staged files as a record names them. Rows and offsets are from their footers."""
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

"""The columns of a topic as a table, and back: the buffers of a batch become Arrow arrays, and Arrow arrays
become the buffers of a batch. Both have Arrow's layout. So there is no work per row, except for headers and
for the ids of messages that were published without one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landbridge.client.fetch import FetchedBatch
from landbridge.core.log.batch import Batch, Column, HeaderValue, assemble, encode_headers
from landbridge.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: The columns, with the names of Kafka's connector where it has them, and their types in Spark's words.
COLUMNS = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "id": "string",
    "priority": "int",
    "origin": "string",
}
#: Columns that may be null. The others are declared NOT NULL, so that Spark needn't look for nulls.
_NULLABLE = ("key", "headers", "origin")
#: Columns that are read only where an option asks for them.
_HEADERS, _METADATA = ("headers",), ("id", "priority", "origin")

#: The value of the column timestampType: the time is the producer's. Kafka's 1, the time of the append, never
#: occurs.
CREATE_TIME = 0
#: Rows of a record batch. The small batches of a slow producer are joined up to this size.
ROWS = 1 << 14
#: Bytes and rows at which a batch is cut on its way to the bus.
CUT_BYTES, CUT_ROWS = 3 << 20, 1 << 16

_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode

#: Batches of one topic, in order.
Run: TypeAlias = Sequence[FetchedBatch]


def schema(*, headers: bool, metadata: bool) -> str:
    left_out = (*(() if headers else _HEADERS), *(() if metadata else _METADATA))
    return ", ".join(
        f"{name} {kind}" + ("" if name in _NULLABLE else " NOT NULL")
        for name, kind in COLUMNS.items()
        if name not in left_out
    )


class Columns:
    """Makes what a reader yields: record batches with the columns of a schema, in its order."""

    def __init__(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        known = {name: getattr(self, f"_{name}") for name in COLUMNS}
        self._makers = [known[name] for name in self.schema.names]
        #: (type, value) → an array of that value, the longest that was needed. Shorter ones are slices of it.
        self._constants: dict[tuple[str, Any], pa.Array] = {}

    def rows(self, topic: str, run: Run) -> pa.RecordBatch:
        """Some batches of a topic as one record batch."""
        count = sum(len(each.batch) for each in run)
        arrays = [make(topic, run, count) for make in self._makers]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, value: Any, kind: pa.DataType, count: int) -> pa.Array:
        key = (str(kind), value)
        held = self._constants.get(key)
        if held is None or len(held) < count:
            held = self._constants[key] = pa.repeat(pa.scalar(value, kind), max(count, ROWS))
        return held.slice(0, count)

    def _value(self, topic: str, run: Run, count: int) -> pa.Array:
        return _concat([binary(each.batch, Column.PAYLOAD) for each in run])

    def _key(self, topic: str, run: Run, count: int) -> pa.Array:
        if not any(each.batch.has(Column.KEY) for each in run):
            return self._constant(None, pa.binary(), count)
        return _concat(
            [
                binary(batch, Column.KEY, nullable=True)
                if batch.has(Column.KEY)
                else self._constant(None, pa.binary(), len(batch))
                for batch in (each.batch for each in run)
            ]
        )

    def _topic(self, topic: str, run: Run, count: int) -> pa.Array:
        return self._constant(topic, pa.string(), count)

    def _partition(self, topic: str, run: Run, count: int) -> pa.Array:
        return self._constant(0, pa.int32(), count)

    def _offset(self, topic: str, run: Run, count: int) -> pa.Array:
        if run[-1].end - run[0].first == count:
            return pa.array(np.arange(run[0].first, run[-1].end, dtype=np.int64))
        return pa.array(np.concatenate([np.arange(each.first, each.end, dtype=np.int64) for each in run]))

    def _timestamp(self, topic: str, run: Run, count: int) -> pa.Array:
        micros = np.empty(count, np.int64)
        at = 0
        for each in run:
            times = each.batch.times()
            micros[at : at + len(each.batch)] = each.batch.time if times is None else np.array(times)
            at += len(each.batch)
        return pa.array(micros).view(pa.timestamp("us", "UTC"))

    def _timestampType(self, topic: str, run: Run, count: int) -> pa.Array:  # noqa: N802 - the column's name
        return self._constant(CREATE_TIME, pa.int32(), count)

    def _headers(self, topic: str, run: Run, count: int) -> pa.Array:
        kind = self.schema.field("headers").type
        rows: list[list[dict[str, Any]] | None] = []
        for each in run:
            raw = each.batch.raw_headers()
            rows += [None] * len(each.batch) if raw is None else map(_header_rows, raw)
        return pa.array(rows, kind)

    def _id(self, topic: str, run: Run, count: int) -> pa.Array:
        return pa.array([each.batch.id_of(i) for each in run for i in range(len(each.batch))], pa.string())

    def _priority(self, topic: str, run: Run, count: int) -> pa.Array:
        found = [each.batch.priorities() or bytes(len(each.batch)) for each in run]
        return pa.array(np.frombuffer(b"".join(found), np.uint8).astype(np.int32))

    def _origin(self, topic: str, run: Run, count: int) -> pa.Array:
        return _concat([self._constant(each.origin or None, pa.string(), len(each.batch)) for each in run])


def _header_rows(raw: bytes) -> list[dict[str, Any]] | None:
    if not raw:
        return None
    return [{"key": name, "value": header_bytes(value)} for name, value in _headers(raw).items()]


def _concat(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def check_read_schema(schema: StructType) -> None:
    """A user's own schema may leave columns out; it may not name others or give them other types."""
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            raise BadOption(f"a topic has no column {field.name!r}", hint=f"it has {', '.join(COLUMNS)}")
        if field.dataType.simpleString() != kind:
            raise BadOption(
                f"the column {field.name} is {kind}, not {field.dataType.simpleString()}",
                hint=f"cast({field.name} as …) after the read",
            )
    if not schema.fields:
        raise BadOption("a schema without columns")


def binary(batch: Batch, column: Column, *, nullable: bool = False) -> pa.Array:
    """A column of variable length as an Arrow array over the batch's own memory. ``nullable``: an empty value
    becomes null."""
    ends, data = batch.span(column)
    starts = np.frombuffer(ends, np.int32)
    if starts[0]:
        starts = starts - starts[0]
    valid, nulls = None, 0
    if nullable:
        present = np.diff(starts) != 0
        nulls = len(batch) - int(np.count_nonzero(present))
        if nulls:
            valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    buffers = [valid, pa.py_buffer(starts), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(batch), buffers, nulls)


def header_bytes(value: HeaderValue) -> bytes:
    """Text as UTF-8, bytes as they are, numbers and booleans as in JSON."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def runs(batches: Iterator[FetchedBatch]) -> Iterator[list[FetchedBatch]]:
    """Group batches into runs of about ROWS rows, because every record batch costs Spark some time."""
    held: list[FetchedBatch] = []
    rows = 0
    for each in batches:
        if held and rows + len(each.batch) > ROWS:
            yield held
            held, rows = [], 0
        held.append(each)
        rows += len(each.batch)
    if held:
        yield held


# -- to the bus ---------------------------------------------------------------------------------------


def check_write_schema(schema: StructType, topic: str) -> None:
    """Check that a data frame has the columns that messages need. Other columns are ignored."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in kinds:
        raise BadOption(
            f"there is no column value, only {', '.join(kinds) or 'none'}",
            hint='select(to_json(struct("*")).alias("value"))',
        )
    for name in ("key", "value"):
        if kinds.get(name, "binary") not in ("binary", "string"):
            raise BadOption(f"the column {name} is {kinds[name]}, and has to be binary or string")
    if kinds.get("headers", COLUMNS["headers"]) != COLUMNS["headers"]:
        raise BadOption(f"the column headers is {kinds['headers']}, and has to be {COLUMNS['headers']}")
    if not topic and kinds.get("topic") != "string":
        raise BadOption("nothing says which topic", hint='option("topic", …), or a string column topic')


def batches(rows: pa.RecordBatch, topic: str, new_id: Any, now: int) -> Iterator[tuple[str, int, bytes]]:
    """The rows as (topic, number of messages, encoded batch), in order within each topic. ``topic``, if it
    is not empty, is the topic of all rows, whatever the column of that name says."""
    if not rows.num_rows:
        return
    for name, part in _by_topic(rows, topic):
        columns = {Column.PAYLOAD: _filled(part.column("value"))}
        if "key" in part.schema.names and (key := _filled(part.column("key"))).nbytes:
            columns[Column.KEY] = key
        if "headers" in part.schema.names and part.column("headers").null_count < part.num_rows:
            columns[Column.HEADERS] = _encoded_headers(part.column("headers"))
        for first, end in _cuts(columns, part.num_rows):
            spans = {column: _span(array, first, end) for column, array in columns.items()}
            present = {c: span for c, span in spans.items() if c is Column.PAYLOAD or len(span[1])}
            yield name, end - first, assemble(end - first, present, id=new_id(), time=now)


def _by_topic(rows: pa.RecordBatch, topic: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    if topic:
        yield topic, rows
        return
    names = rows.column("topic")
    if names.null_count:
        raise BadOption("a row whose topic is null", hint='option("topic", …), or give each row one')
    encoded = names.dictionary_encode()
    if len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), rows
        return
    for index, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, rows.filter(pc.equal(encoded.indices, index))


def _filled(array: pa.Array) -> pa.Array:
    """As plain binary, with null as empty, because a message has no null."""
    if array.type != pa.binary():
        array = array.cast(pa.binary())
    return pc.fill_null(array, b"") if array.null_count else array


def _encoded_headers(array: pa.Array) -> pa.Array:
    rows = []
    for row in array.to_pylist():
        rows.append(encode_headers({each["key"]: _header(each["value"]) for each in row or ()}))
    return pa.array(rows, pa.binary())


def _header(value: bytes | None) -> str | bytes:
    """A table has bytes in the place of text. What was text is text again, as other doors expect of a content
    type for example."""
    try:
        return (value or b"").decode()
    except UnicodeDecodeError:
        return value or b""


def _ends(array: pa.Array) -> memoryview:
    ends = memoryview(array.buffers()[1])
    return ends[4 * array.offset : 4 * (array.offset + len(array) + 1)]


def _span(array: pa.Array, first: int, end: int) -> tuple[memoryview, memoryview]:
    ends = _ends(array)[4 * first : 4 * (end + 1)]
    begin, stop = ends[:4].cast("i")[0], ends[-4:].cast("i")[0]
    data = array.buffers()[2]
    return ends, memoryview(data if data is not None else b"").cast("B")[begin:stop]


def _cuts(columns: Mapping[Column, pa.Array], count: int) -> Iterator[tuple[int, int]]:
    """(first, end) of runs of rows that stay below both bounds. A row that is larger on its own is a run."""
    sizes = np.zeros(count + 1, np.int64)
    for array in columns.values():
        sizes += np.frombuffer(_ends(array), np.int32)
    first = 0
    while first < count:
        most = int(np.searchsorted(sizes, sizes[first] + CUT_BYTES, "right")) - 1
        end = min(count, first + CUT_ROWS, max(first + 1, most))
        yield first, end
        first = end

"""The columns of a topic as a table, and back: from the buffers of a batch to Arrow arrays and from Arrow
arrays to the buffers of a batch. Both are in Arrow's layout, so nothing is done per row, except for headers
and for the ids of messages that were given none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landbridge.client.fetch import FetchedBatch
from landbridge.core.batch import Batch, Column, HeaderValue, assemble, encode_headers
from landbridge.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: As Spark writes them down; the names of Kafka's.
SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)
HEADERS = "headers array<struct<key:string,value:binary>>"
METADATA = "id string, priority int, origin string"

#: In the column timestampType: the time is the producer's. 1, the time of the append, is never given.
CREATE_TIME = 0
#: Rows of a record batch, into which the small batches of a slow producer are joined.
ROWS = 1 << 16
#: Bytes and rows at which a batch is cut on its way to the bus.
CUT_BYTES, CUT_ROWS = 3 << 20, 1 << 16

_headers = msgspec.msgpack.Decoder(dict[str, Any]).decode


def schema(*, headers: bool, metadata: bool) -> str:
    return ", ".join([SCHEMA, *([HEADERS] if headers else []), *([METADATA] if metadata else [])])


class Columns:
    """What a reader yields: the columns of a schema, in its order."""

    def __init__(self, schema: StructType) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self.schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        known = {name: getattr(self, f"_{name}") for name in COLUMNS}
        self._makers = [known[name] for name in self.schema.names]
        #: Columns of one value, the longest that was needed; shorter ones are slices of it.
        self._constants: dict[tuple[str, Any], pa.Array] = {}

    def rows(self, topic: str, fetched: FetchedBatch) -> pa.RecordBatch:
        arrays = [make(topic, fetched) for make in self._makers]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _constant(self, value: Any, kind: pa.DataType, count: int) -> pa.Array:
        key = (str(kind), value)
        held = self._constants.get(key)
        if held is None or len(held) < count:
            held = self._constants[key] = pa.repeat(pa.scalar(value, kind), max(count, ROWS))
        return held.slice(0, count)

    def _value(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        return binary(fetched.batch, Column.PAYLOAD)

    def _key(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        if not fetched.batch.has(Column.KEY):
            return self._constant(None, pa.binary(), len(fetched.batch))
        return binary(fetched.batch, Column.KEY, nullable=True)

    def _topic(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        return self._constant(topic, pa.string(), len(fetched.batch))

    def _partition(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        return self._constant(0, pa.int32(), len(fetched.batch))

    def _offset(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        return pa.array(np.arange(fetched.first, fetched.end, dtype=np.int64))

    def _timestamp(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        batch = fetched.batch
        times = batch.times()
        micros = np.full(len(batch), batch.time, np.int64) if times is None else np.array(times, np.int64)
        return pa.array(micros).view(pa.timestamp("us", "UTC"))

    def _timestampType(self, topic: str, fetched: FetchedBatch) -> pa.Array:  # noqa: N802 - the column's name
        return self._constant(CREATE_TIME, pa.int32(), len(fetched.batch))

    def _headers(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        kind = self.schema.field("headers").type
        raw = fetched.batch.raw_headers()
        if raw is None:
            return self._constant(None, kind, len(fetched.batch))
        rows = [
            [{"key": name, "value": header_bytes(value)} for name, value in _headers(each).items()]
            if each
            else None
            for each in raw
        ]
        return pa.array(rows, kind)

    def _id(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        batch = fetched.batch
        return pa.array([batch.id_of(index) for index in range(len(batch))], pa.string())

    def _priority(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        priorities = fetched.batch.priorities()
        if priorities is None:
            return self._constant(0, pa.int32(), len(fetched.batch))
        return pa.array(np.frombuffer(priorities, np.uint8).astype(np.int32))

    def _origin(self, topic: str, fetched: FetchedBatch) -> pa.Array:
        return self._constant(fetched.origin or None, pa.string(), len(fetched.batch))


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


def check_read_schema(schema: StructType) -> None:
    """A schema that a user gave may leave columns out, and not make others up."""
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
    """A variable column as an Arrow array over the batch's own memory. ``nullable``: empty is null."""
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
    """Text as UTF-8, bytes as they are, numbers and truth as JSON writes them."""
    if isinstance(value, bytes):
        return value
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def joined(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows, small batches put together: Spark has a price per batch."""
    held: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if held and rows + len(batch) > ROWS:
            yield _together(held)
            held, rows = [], 0
        held.append(batch)
        rows += len(batch)
    if held:
        yield _together(held)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


# -- to the bus ---------------------------------------------------------------------------------------

_TEXT = ("binary", "string")


def check_write_schema(schema: StructType, topic: str) -> None:
    """What a data frame must have to become messages; other columns are left where they are."""
    kinds = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in kinds:
        raise BadOption(
            f"there is no column value, only {', '.join(kinds) or 'none'}",
            hint='select(to_json(struct("*")).alias("value"))',
        )
    for name in ("key", "value"):
        if kinds.get(name, "binary") not in _TEXT:
            raise BadOption(f"the column {name} is {kinds[name]}, and has to be binary or string")
    if kinds.get("headers", COLUMNS["headers"]) != COLUMNS["headers"]:
        raise BadOption(f"the column headers is {kinds['headers']}, and has to be {COLUMNS['headers']}")
    if not topic and kinds.get("topic") != "string":
        raise BadOption("nothing says which topic", hint='option("topic", …), or a string column topic')


def batches(rows: pa.RecordBatch, topic: str, new_id: Any, now: int) -> Iterator[tuple[str, int, bytes]]:
    """The rows as (topic, messages, encoded batch), in order within each topic. ``topic`` goes before the
    column of that name."""
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
    """As plain binary, null as empty: the bus knows no null."""
    if array.type != pa.binary():
        array = array.cast(pa.binary())
    return pc.fill_null(array, b"") if array.null_count else array


def _encoded_headers(array: pa.Array) -> pa.Array:
    rows = []
    for row in array.to_pylist():
        pairs: Mapping[str, bytes] = {each["key"]: each["value"] or b"" for each in row or ()}
        rows.append(encode_headers(pairs))
    return pa.array(rows, pa.binary())


def _ends(array: pa.Array) -> memoryview:
    ends = memoryview(array.buffers()[1])
    return ends[4 * array.offset : 4 * (array.offset + len(array) + 1)]


def _span(array: pa.Array, first: int, end: int) -> tuple[memoryview, memoryview]:
    ends = _ends(array)[4 * first : 4 * (end + 1)]
    begin, stop = ends[:4].cast("i")[0], ends[-4:].cast("i")[0]
    data = array.buffers()[2]
    return ends, memoryview(data if data is not None else b"").cast("B")[begin:stop]


def _cuts(columns: Mapping[Column, pa.Array], count: int) -> Iterator[tuple[int, int]]:
    """Runs of rows that stay below both bounds; a row that alone is larger than that goes alone."""
    sizes = np.zeros(count + 1, np.int64)
    for array in columns.values():
        sizes += np.frombuffer(_ends(array), np.int32)
    first = 0
    while first < count:
        most = int(np.searchsorted(sizes, sizes[first] + CUT_BYTES, "right")) - 1
        end = min(count, first + CUT_ROWS, max(first + 1, most))
        yield first, end
        first = end

"""Batches to Arrow and back, without Spark's JVM."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.client.fetch import FetchedBatch
from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.errors import BadOption
from landbridge.pipeline.connector import columns
from landbridge.pipeline.connector.columns import (
    Columns,
    batches,
    check_read_schema,
    check_write_schema,
    runs,
)

ID = bytes(range(16))
_bytes = st.binary(max_size=12)


def field_struct(*fields: tuple[str, str]) -> Any:
    from pyspark.sql import types

    simple = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "headers": types.ArrayType(
            types.StructType(
                [types.StructField("key", types.StringType()), types.StructField("value", types.BinaryType())]
            )
        ),
    }
    return types.StructType([types.StructField(name, simple[kind]) for name, kind in fields])


EVERYTHING = field_struct(
    *((name, "headers" if name == "headers" else kind) for name, kind in columns.COLUMNS.items())
)


@given(
    st.lists(st.tuples(_bytes, _bytes, st.integers(0, 9), st.integers(0, 1 << 50)), min_size=1, max_size=30),
    st.data(),
)
def test_rows_are_the_messages(messages: list[tuple[bytes, bytes, int, int]], data: st.DataObject) -> None:
    payloads, keys, priorities, times = map(list, zip(*messages, strict=True))
    whole = Batch.decode(build(payloads, id=ID, time=7, keys=keys, priorities=priorities, times=times))
    lo = data.draw(st.integers(0, len(messages) - 1))
    hi = data.draw(st.integers(lo + 1, len(messages)))
    batch = whole.slice(lo, hi)
    if data.draw(st.booleans()):  # a slice that has been on the wire: its ends don't start at 0
        batch = Batch.decode(batch.encode())
    rows = Columns(EVERYTHING).rows("orders", [FetchedBatch(100 + lo, "ter_a", batch)])
    rows.validate(full=True)
    assert rows.schema.names == list(columns.COLUMNS)
    assert rows.column("value").to_pylist() == payloads[lo:hi]
    assert rows.column("key").to_pylist() == [key or None for key in keys[lo:hi]]
    assert rows.column("offset").to_pylist() == list(range(100 + lo, 100 + hi))
    assert rows.column("timestamp").cast(pa.int64()).to_pylist() == times[lo:hi]
    assert rows.column("priority").to_pylist() == priorities[lo:hi]
    assert rows.column("id").to_pylist() == [f"{ID.hex()}-{index}" for index in range(lo, hi)]
    assert set(rows.column("topic").to_pylist()) == {"orders"}
    assert set(rows.column("origin").to_pylist()) == {"ter_a"}
    assert set(rows.column("partition").to_pylist()) == set(rows.column("timestampType").to_pylist()) == {0}


def test_defaults_cost_no_column_and_read_as_null() -> None:
    batch = Batch.decode(build([b"a", b"b"], id=ID, time=1_800_000_000_000_000))
    rows = Columns(EVERYTHING).rows("orders", [FetchedBatch(0, "", batch)])
    assert rows.column("key").to_pylist() == rows.column("headers").to_pylist() == [None, None]
    assert rows.column("origin").to_pylist() == [None, None]
    assert rows.column("timestamp")[1].value == 1_800_000_000_000_000


def test_headers_are_bytes_under_names() -> None:
    given = encode_headers({"text": "é", "raw": b"\0", "number": 3, "truth": True, "half": 0.5})
    batch = Batch.decode(build([b"a", b"b"], id=ID, time=1, headers=[given, b""]))
    rows = Columns(EVERYTHING).rows("orders", [FetchedBatch(0, "", batch)])
    first, second = rows.column("headers").to_pylist()
    assert {each["key"]: each["value"] for each in first} == {
        "text": "é".encode(),
        "raw": b"\0",
        "number": b"3",
        "truth": b"true",
        "half": b"0.5",
    }
    assert second is None


def test_small_batches_are_joined_and_large_ones_left() -> None:
    sizes = [1, 2, 3, columns.ROWS, 5]
    source, first = [], 0
    for size in sizes:
        source.append(FetchedBatch(first, "", Batch.decode(build([b"x"] * size, id=ID, time=1))))
        first += size
    together = list(runs(iter(source)))
    assert [[len(each.batch) for each in run] for run in together] == [[1, 2, 3], [columns.ROWS], [5]]
    assert [each for run in together for each in run] == source


_column = st.none() | st.lists(_bytes, min_size=3, max_size=3)


@given(
    st.lists(
        st.tuples(
            _column,
            st.none() | st.lists(st.integers(0, 1 << 50), min_size=3, max_size=3),
            st.booleans(),
            st.integers(0, 2),
            st.sampled_from(["", "ter_a"]),
        ),
        min_size=1,
        max_size=4,
    )
)
def test_a_run_is_its_batches_one_after_the_other(parts: list[tuple[Any, Any, bool, int, str]]) -> None:
    run, first = [], 0
    for keys, times, special, gap, origin in parts:
        more: dict[str, Any] = (
            {"headers": [encode_headers({"a": 1}), b"", b""], "priorities": [3, 0, 9]} if special else {}
        )
        batch = Batch.decode(build([b"a", b"", b"ccc"], id=ID, time=first, keys=keys, times=times, **more))
        first += gap  # where retention took something, and that is no failure
        run.append(FetchedBatch(first, origin, batch))
        first += 3
    made = Columns(EVERYTHING)
    expected = pa.concat_batches([made.rows("orders", [each]) for each in run])
    rows = made.rows("orders", run)
    rows.validate(full=True)
    assert rows.equals(expected)


_cell = st.none() | _bytes
_topic = st.sampled_from(["orders", "bills"])


@given(st.lists(st.tuples(_cell, _cell, _topic), min_size=1, max_size=30), st.data())
def test_what_is_written_is_what_was_in_the_rows(rows: list[Any], data: st.DataObject) -> None:
    table = pa.record_batch(
        {
            "key": pa.array([row[0] for row in rows], pa.binary()),
            "value": pa.array([row[1] for row in rows], pa.binary()),
            "topic": pa.array([row[2] for row in rows], pa.string()),
            "ignored": pa.array(range(len(rows))),
        }
    )
    lo = data.draw(st.integers(0, len(rows) - 1))
    topic = data.draw(st.sampled_from(["", "all"]))
    found: dict[str, list[tuple[bytes, bytes]]] = {}
    for name, count, encoded in batches(table.slice(lo), topic, lambda: ID, 5):
        batch = Batch.decode(encoded)
        batch.validate()
        assert len(batch) == count
        keys = batch.keys() or [b""] * count
        found.setdefault(name, []).extend(zip(keys, batch.payloads(), strict=True))
    expected: dict[str, list[tuple[bytes, bytes]]] = {}
    for key, value, name in rows[lo:]:
        expected.setdefault(topic or name, []).append((key or b"", value or b""))
    assert found == expected


def test_batches_are_cut_by_bytes_and_by_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CUT_BYTES", 100)
    monkeypatch.setattr(columns, "CUT_ROWS", 7)
    values = [b"x" * size for size in [*[10] * 20, 500, 1, 99, 2]]
    table = pa.record_batch({"value": pa.array(values)})
    made = [(count, Batch.decode(data)) for _, count, data in batches(table, "orders", lambda: ID, 5)]
    assert [payload for _, batch in made for payload in batch.payloads()] == values
    assert [count for count, _ in made] == [7, 7, 6, 1, 2, 1]


def test_text_and_headers_are_written() -> None:
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    headers = pa.array(
        [[{"key": "a", "value": b"1"}, {"key": "b", "value": None}, {"key": "c", "value": b"\xff"}], None],
        kind,
    )
    table = pa.record_batch({"value": pa.array(["é", None]), "headers": headers})
    ((_, _, data),) = batches(table, "orders", lambda: ID, 5)
    batch = Batch.decode(data)
    assert batch.payloads() == ["é".encode(), b""]
    assert (batch.headers(0), batch.headers(1)) == ({"a": "1", "b": "", "c": b"\xff"}, {})


def test_a_row_without_a_topic_is_refused() -> None:
    table = pa.record_batch({"value": pa.array([b"x"]), "topic": pa.array([None], pa.string())})
    with pytest.raises(BadOption, match="topic is null"):
        list(batches(table, "", lambda: ID, 5))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ([("payload", "binary")], "no column 'payload'"),
        ([("value", "string")], "the column value is binary, not string"),
        ([], "without columns"),
    ],
)
def test_a_schema_that_a_topic_does_not_have(fields: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(BadOption, match=said):
        check_read_schema(field_struct(*fields))


@pytest.mark.parametrize(
    ("fields", "topic", "said"),
    [
        ([("n", "int")], "orders", "no column value"),
        ([("value", "int")], "orders", "has to be binary or string"),
        ([("value", "binary"), ("key", "int")], "orders", "the column key is int"),
        ([("value", "binary"), ("headers", "string")], "orders", "the column headers is string"),
        ([("value", "binary")], "", "which topic"),
        ([("value", "binary"), ("topic", "int")], "", "which topic"),
    ],
)
def test_rows_that_can_not_become_messages(fields: list[tuple[str, str]], topic: str, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        check_write_schema(field_struct(*fields), topic)

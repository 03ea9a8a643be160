"""Packs: many rows as one, for their way through a stateful operator.

Spark 4.3 hands rows to a stateful operator in Python one by one, each as a tuple, which costs more than the
work on them. So the rows of a shard are put into a pack, which is an Arrow stream in one binary cell. The
operator takes packs and gives packs, and behind it they become rows again. Rows are copied three times,
always as whole columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

#: The column with the shard of a row. Beside a pack it is a column, too.
SHARD = "shard"
#: The schemas of what ``Packing`` gives and of what a stateful operator gives.
PACKED, PACKS = f"{SHARD} int, rows binary", "rows binary"

#: Rows, and bytes, of all shards together at which packs are made.
ROWS, BYTES = 1 << 16, 16 << 20
#: Rows of a pack that an operator gives. They become one batch of the bus.
OUT = 20_000


def pack(rows: pa.Table) -> bytes:
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, rows.schema) as stream:
        stream.write_table(rows)
    packed: bytes = out.getvalue().to_pybytes()
    return packed


def unpack(packed: bytes | bytearray) -> pa.Table:
    """The table uses the memory of the pack."""
    return pa.ipc.open_stream(pa.py_buffer(packed)).read_all()


def packs(rows: pa.Table, most: int = OUT) -> Iterator[bytes]:
    for at in range(0, rows.num_rows, most):
        yield pack(rows.slice(at, most))


def gathered(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The same rows, in few tables of a bounded size."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROWS or size >= BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


class Packing:
    """For ``mapInArrow``: rows with a column ``shard`` in, packs by shard out."""

    def __init__(self, prepare: Callable[[pa.Table], pa.Table] | None = None) -> None:
        #: Changes rows before they are packed; None: nothing is changed.
        self._prepare = prepare

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for table in gathered(batches):
            shards = table.column(SHARD).to_numpy()
            rows = table.drop_columns([SHARD])
            if self._prepare is not None:
                rows = self._prepare(rows)
            found, packed = [], []
            for shard, some in split(rows, shards):
                found.append(shard)
                packed.append(pack(some))
            yield pa.RecordBatch.from_arrays(
                [pa.array(found, pa.int32()), pa.array(packed, pa.binary())], names=[SHARD, "rows"]
            )


def split(rows: pa.Table, shards: np.ndarray) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each shard, in their order."""
    order = np.argsort(shards, kind="stable")
    ordered = shards[order]
    cuts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    if len(cuts) > 2:
        rows = rows.take(pa.array(order)).combine_chunks()
    for first, end in pairwise(cuts):
        yield int(ordered[first]), rows.slice(first, end - first)


class Unpacking:
    """For ``mapInArrow``: packs in, their rows out."""

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for packed in batch.column("rows").to_pylist():
                yield from unpack(packed).to_batches()

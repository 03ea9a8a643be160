"""A shard: the sequencers of many sources, and the rows that wait from one micro-batch to the next.

The sequencers are the core's. They never look into a payload, so their payloads here are the places of rows
in a table: the rows stay columns, and only places are put in order. All rows of a micro-batch are taken at
once, ordered by source, number and offset. So the result depends on which rows there are, and never on the
order in which Spark's tasks brought them. A micro-batch that is run again gives the same rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from landbridge.core.events.sequencer import Sequencer, SequencerState
from landbridge.core.time import SECOND
from landbridge.errors import BadOption, SequenceGap
from landbridge.pipeline.connector.failure import with_hint
from landbridge.pipeline.jobs.sequence.packs import pack, unpack
from landbridge.pipeline.jobs.sequence.policy import GapPolicy

#: Columns of the rows that a shard takes: the source (bytes), the number, and why it has none (else null).
SOURCE, SEQUENCE, REASON = "source", "sequence", "reason"
#: The column that a shard adds: whether the number was given up before the row came.
LATE = "late"
#: The most ranges of given-up numbers that are remembered of a source. A row with an older number is taken
#: for a repetition.
GIVEN_UP = 1000

Range = tuple[int, int]


class Known(msgspec.Struct, array_like=True):
    """The state of a source."""

    #: Without the payloads: the rows that wait are in the shard's table.
    sequencer: SequencerState
    #: Numbers that were given up and have not come, as sorted, disjoint ranges ``[first, end)``.
    given_up: list[Range] = []


class _Positions(msgspec.Struct, array_like=True):
    #: The number of shards. With another number, sources would be in other shards.
    shards: int
    sources: dict[bytes, Known] = {}
    #: When the timer fires, in milliseconds since 1970; 0: no timer is set.
    timer: int = 0


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Positions).decode


class Shard:
    def __init__(self, policy: GapPolicy, shards: int = 1) -> None:
        self._policy = policy
        self._positions = _Positions(shards)
        #: The rows that wait, with their source and number; None: there are none.
        self._held: pa.Table | None = None

    # -- state -------------------------------------------------------------------------------------

    def save(self) -> tuple[bytes, bytes]:
        """Positions, and the rows that wait."""
        return _encode(self._positions), b"" if self._held is None else pack(self._held)

    def restore(self, positions: bytes | bytearray, held: bytes | bytearray) -> None:
        shards = self._positions.shards
        self._positions = _decode(positions)
        if self._positions.shards != shards:
            raise with_hint(
                BadOption(
                    f"the checkpoint is of a job with shards={self._positions.shards}, not {shards}",
                    hint="give the same number, or another checkpoint",
                )
            )
        self._held = unpack(held) if held else None

    @property
    def held(self) -> int:
        """The number of rows that wait."""
        return 0 if self._held is None else self._held.num_rows

    @property
    def timer(self) -> int:
        """When the timer fires, in milliseconds since 1970; 0: no timer is set."""
        return self._positions.timer

    @timer.setter
    def timer(self, at: int) -> None:
        self._positions.timer = at

    def next_deadline(self) -> int | None:
        """When ``advance`` is due, in microseconds; None: not before the next rows."""
        if self._policy.gap_within is None:
            return None
        open_since = (known.sequencer.gap_since for known in self._positions.sources.values())
        oldest = min((since for since in open_since if since is not None), default=None)
        return None if oldest is None else oldest + int(self._policy.gap_within * SECOND)

    # -- rows --------------------------------------------------------------------------------------

    def take(self, now: int, rows: pa.Table) -> pa.Table:
        """Returns the rows whose turn it is, in order for each source; then those that came too late, and
        those with a reason to be rejected."""
        rejected = pc.is_valid(rows.column(REASON))
        refused, rows = rows.filter(rejected), rows.filter(pc.invert(rejected))
        work = _Work(self, now, rows)
        for source, numbers, places in _by_source(rows, work.before):
            work.offer(source, numbers, places)
        return pa.concat_tables([work.settle(), _marked(refused, late=False)])

    def advance(self, now: int) -> pa.Table | None:
        """Give up the gaps that have been open for too long. Returns the rows that waited for them; None
        where no row waits."""
        if self._held is None or self._policy.gap_within is None:
            return None
        span = int(self._policy.gap_within * SECOND)
        work = _Work(self, now, self._held.slice(0, 0))
        for source, known in list(self._positions.sources.items()):
            since = known.sequencer.gap_since
            if since is not None and since + span <= now:
                work.advance(source)
        return work.settle()


class _Work:
    """One call of a shard: the sequencers that it uses, the rows that it releases, and those that wait."""

    def __init__(self, shard: Shard, now: int, rows: pa.Table) -> None:
        self._shard, self._now = shard, now
        held = shard._held
        #: The number of rows that were waiting. In the table they come before the new ones.
        self.before = 0 if held is None else held.num_rows
        if held is not None and held.schema != rows.schema:
            raise with_hint(
                BadOption(
                    f"{self.before} rows wait that have other columns than those that come now",
                    hint="go back to the columns of before until nothing waits, or take another checkpoint",
                )
            )
        self._table = rows if held is None else pa.concat_tables([held, rows])
        self._numbers = self._table.column(SEQUENCE).to_numpy()
        self._waiting = {} if held is None else _places(held)
        #: source → its sequencer, for the sources of this call.
        self._opened: dict[bytes, Sequencer] = {}
        #: Places of rows, in the order of their release.
        self._released: list[int] = []
        self._late: list[int] = []

    def _open(self, source: bytes) -> tuple[Sequencer, Known]:
        sequencer = self._opened[source] = self._shard._policy.sequencer()
        known = self._shard._positions.sources.get(source)
        if known is None:
            known = self._shard._positions.sources[source] = Known(sequencer.save())
            return sequencer, known
        places = self._waiting.pop(source, None)
        if places is None:
            sequencer.restore(known.sequencer)
        else:
            payloads = cast("list[bytes]", places.tolist())
            numbers = self._numbers[places].tolist()
            state = msgspec.structs.replace(known.sequencer, numbers=numbers, payloads=payloads)
            sequencer.restore(state)
        return sequencer, known

    def offer(self, source: bytes, numbers: list[int], places: list[int]) -> None:
        sequencer, known = self._open(source)
        at, late, skipped = sequencer.next, sequencer.late, sequencer.skipped
        try:
            released = sequencer.offer(self._now, numbers, cast("list[bytes]", places))
        except SequenceGap as error:
            named = SequenceGap(f"source {_shown(source)}: {error}", hint=_ROOM)
            raise with_hint(named) from None
        self._close(sequencer, known, at, skipped, cast("list[int]", released))
        if sequencer.late != late:
            self._sort_out(sequencer, known, places)

    def advance(self, source: bytes) -> None:
        sequencer, known = self._open(source)
        at, skipped = sequencer.next, sequencer.skipped
        released = sequencer.advance(self._now)
        self._close(sequencer, known, at, skipped, cast("list[int]", released))

    def _close(self, sequencer: Sequencer, known: Known, at: int, skipped: int, released: list[int]) -> None:
        self._released += released
        if sequencer.skipped != skipped:
            missing = _gaps(at, self._numbers[released])
            known.given_up = (known.given_up + missing)[-GIVEN_UP:]
        state = sequencer.save()
        known.sequencer = msgspec.structs.replace(state, numbers=[], payloads=[]) if state.numbers else state

    def _sort_out(self, sequencer: Sequencer, known: Known, places: list[int]) -> None:
        """Among the rows that the sequencer has dropped, find those whose number was given up. The first row
        of such a number is late; the others are repetitions."""
        if not known.given_up:
            return
        for place in places:
            number = int(self._numbers[place])
            if number < sequencer.next and _remove(known.given_up, number):
                self._late.append(place)

    def settle(self) -> pa.Table:
        """Keep the rows that wait, and return the others."""
        waiting = list(self._waiting.values())
        opened = [
            np.fromiter(s.held.values(), np.int64, len(s.held)) for s in self._opened.values() if s.held
        ]
        still = np.concatenate([*waiting, *opened]) if waiting or opened else None
        self._shard._held = None if still is None else self._table.take(pa.array(still)).combine_chunks()
        released = _marked(self._table.take(pa.array(self._released, pa.int64())), late=False)
        if not self._late:
            return released
        late = _marked(self._table.take(pa.array(self._late, pa.int64())), late=True)
        return pa.concat_tables([released, late])


_ROOM = "nothing of the micro-batch was published; let more wait (hold), or give gaps up (on_gap=skip)"


def _by_source(rows: pa.Table, before: int) -> Iterator[tuple[bytes, list[int], list[int]]]:
    """Yields (source, its numbers in ascending order, the places of their rows). ``before`` rows come before
    these in the table. Of two rows with one number the one with the smaller offset is first."""
    if not rows.num_rows:
        return
    encoded = rows.column(SOURCE).combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    numbers = rows.column(SEQUENCE).to_numpy()
    order = np.lexsort((*_ties(rows), numbers, codes))
    ordered = codes[order]
    cuts = [0, *(np.flatnonzero(np.diff(ordered)) + 1).tolist(), len(ordered)]
    sources = encoded.dictionary.to_pylist()
    sorted_numbers, places = numbers[order].tolist(), (order + before).tolist()
    for first, end in pairwise(cuts):
        yield sources[ordered[first]], sorted_numbers[first:end], places[first:end]


def _ties(rows: pa.Table) -> list[Any]:
    """The columns that order rows of one number, the least important first: the offset, then the topic."""
    names = rows.schema.names
    ties = [rows.column("offset").to_numpy()] if "offset" in names else []
    if "topic" in names and pc.count_distinct(rows.column("topic")).as_py() > 1:
        ties.append(pc.rank(rows.column("topic"), tiebreaker="dense").to_numpy())
    return ties


def _places(held: pa.Table) -> dict[bytes, Any]:
    """Source → the places of its rows."""
    encoded = held.column(SOURCE).combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    cuts = np.flatnonzero(np.diff(codes[order])) + 1
    return dict(zip(encoded.dictionary.to_pylist(), np.split(order, cuts), strict=True))


def _gaps(at: int, released: Any) -> list[Range]:
    """The ranges that are missing between ``at`` and the last of the released numbers."""
    previous = np.concatenate([[at - 1], released[:-1]])
    missing = np.flatnonzero(released - previous > 1)
    return list(zip((previous[missing] + 1).tolist(), released[missing].tolist(), strict=True))


def _remove(ranges: list[Range], number: int) -> bool:
    """Take a number out of sorted ranges. Returns False if it isn't in them."""
    at = bisect_right(ranges, (number, 1 << 64)) - 1
    if at < 0 or number >= ranges[at][1]:
        return False
    first, end = ranges[at]
    ranges[at : at + 1] = [r for r in ((first, number), (number + 1, end)) if r[0] < r[1]]
    return True


def _marked(rows: pa.Table, *, late: bool) -> pa.Table:
    return rows.append_column(LATE, pa.repeat(pa.scalar(late), rows.num_rows))


def _shown(source: bytes) -> str:
    return repr(source.decode(errors="replace")[:64])

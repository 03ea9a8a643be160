"""The batch: the unit of I/O of the bus, immutable, columnar, in Arrow's buffer layout.

    0   u8   version                  40  columns, in the order of Column, present ones only,
    1   u8   0                            every buffer padded to 8 bytes:
    2   u16  bit set of the columns         PAYLOAD KEY HEADERS ID   (n+1) × i32 ends, then the bytes
    4   u32  n, the number of messages      TIME DELIVER_AT EXPIRES_AT           n × i64 microseconds
    8   16s  id of the batch (UUIDv7)       PRIORITY                             n × u8
    24  u32  base: index of the first message in the batch as it was published
    28  u32  0
    32  i64  time: when it was published, unless there is a TIME column

All little-endian. A column whose values are all default (no key, no headers, priority 0, …) is absent.
The ends are cumulative and need not start at 0: a slice of a batch is a slice of its ends and of its bytes,
with nothing computed per message. The terminal moves batches and reads only the columns it needs.

A message's id, unless it was given one, is the batch's id and the message's index in it, so that ids cost
nothing to make, to store or to send.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import msgspec

from landbridge.errors import BadFrame

if sys.byteorder != "little":  # pragma: no cover - the buffers are read in place
    raise ImportError("landbridge needs a little-endian machine")

Buffer: TypeAlias = bytes | memoryview
HeaderValue: TypeAlias = str | bytes | int | float | bool
Headers: TypeAlias = Mapping[str, HeaderValue]

VERSION = 1
#: Of the batch's own encoding; a frame around it has its own limit.
MAX_MESSAGES = 1 << 20
#: Messages that are gathered from among more than this times as many are read one by one.
SPARSE = 8
LOWEST_PRIORITY, HIGHEST_PRIORITY = 0, 9
#: Microseconds since 1970 that are no moment: the year 10000, which no calendar of ours knows.
NO_MOMENT = 253_402_300_800 * 1_000_000

_HEAD = struct.Struct("<BBHI16sIIq")
_END = struct.Struct("<i")
assert _HEAD.size == 40
_PADDING = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class Column(IntEnum):
    PAYLOAD = 0
    KEY = 1
    HEADERS = 2
    ID = 3
    TIME = 4
    PRIORITY = 5
    DELIVER_AT = 6
    EXPIRES_AT = 7


_VARIABLE = frozenset({Column.PAYLOAD, Column.KEY, Column.HEADERS, Column.ID})
#: Bytes per value of the other columns.
_WIDTH = {Column.TIME: 8, Column.PRIORITY: 1, Column.DELIVER_AT: 8, Column.EXPIRES_AT: 8}
_KNOWN = (1 << len(Column)) - 1


def _layout(present: int) -> tuple[tuple[Column, int], ...]:
    """The columns of a set, in the order of the batch: each with the bytes per value, 0 where they vary."""
    return tuple((column, _WIDTH.get(column, 0)) for column in Column if present >> column & 1)


_LAYOUTS = tuple(map(_layout, range(_KNOWN + 1)))

_encode_headers = msgspec.msgpack.Encoder().encode
_decode_map = msgspec.msgpack.Decoder(dict[str, Any]).decode
_SCALARS = frozenset({str, bytes, int, float, bool})


def decode_headers(raw: bytes) -> dict[str, HeaderValue]:
    """The opposite of ``encode_headers``, for headers that were checked."""
    # msgspec has no union of str and bytes, so the types of the values are checked here.
    headers: dict[str, HeaderValue] = _decode_map(raw)
    if not _SCALARS.issuperset(map(type, headers.values())):
        raise msgspec.ValidationError("a header that is neither text, bytes, a number nor a boolean")
    return headers


def _variable(values: Sequence[bytes]) -> list[Buffer]:
    ends = array("i", accumulate(map(len, values), initial=0)).tobytes()
    size = len(ends)
    total = sum(map(len, values))
    return [ends, _PADDING[size & 7], b"".join(values), _PADDING[total & 7]]


def _fixed(code: str, values: Iterable[int]) -> list[Buffer]:
    data = array(code, values).tobytes()
    return [data, _PADDING[len(data) & 7]]


def _is_needed(values: Sequence[bytes] | Sequence[int], column: Column, count: int) -> bool:
    if len(values) != count:
        raise ValueError(f"a batch of {count} messages with {len(values)} values in column {column.name}")
    return column is Column.TIME or any(values)


def build(
    payloads: Sequence[bytes],
    *,
    id: bytes,
    time: int,
    base: int = 0,
    keys: Sequence[bytes] | None = None,
    headers: Sequence[bytes] | None = None,
    ids: Sequence[bytes] | None = None,
    times: Sequence[int] | None = None,
    priorities: Sequence[int] | None = None,
    deliver_at: Sequence[int] | None = None,
    expires_at: Sequence[int] | None = None,
) -> bytes:
    """Encode a batch from its columns. A column is given for all messages or not at all; ``headers`` come
    encoded by ``encode_headers``; an empty key, headers or id means that the message has none; a
    ``deliver_at`` or ``expires_at`` of 0 means at once and never."""
    count = len(payloads)
    if not 0 < count <= MAX_MESSAGES:
        raise ValueError(f"a batch has 1 to {MAX_MESSAGES} messages, not {count}")
    if len(id) != 16:  # struct would cut or fill it
        raise ValueError(f"the id of a batch has 16 bytes, not {len(id)}")
    parts: list[Buffer] = [b""]
    columns = 1 << Column.PAYLOAD
    parts += _variable(payloads)
    for column, variable in ((Column.KEY, keys), (Column.HEADERS, headers), (Column.ID, ids)):
        if variable is not None and _is_needed(variable, column, count):
            columns |= 1 << column
            parts += _variable(variable)
    for column, code, fixed in (
        (Column.TIME, "q", times),
        (Column.PRIORITY, "B", priorities),
        (Column.DELIVER_AT, "q", deliver_at),
        (Column.EXPIRES_AT, "q", expires_at),
    ):
        if fixed is not None and _is_needed(fixed, column, count):
            columns |= 1 << column
            parts += _fixed(code, fixed)
    parts[0] = _HEAD.pack(VERSION, 0, columns, count, id, base, 0, time)
    return b"".join(parts)


def assemble(count: int, columns: Mapping[Column, tuple[Buffer, Buffer]], *, id: bytes, time: int) -> bytes:
    """Encode a batch from columns of variable length that are in Arrow's layout already: ``count + 1`` ends,
    which need not start at 0, and the bytes from the first end on. No work per message."""
    if not 0 < count <= MAX_MESSAGES:
        raise ValueError(f"a batch has 1 to {MAX_MESSAGES} messages, not {count}")
    present = 0
    parts: list[Buffer] = [b""]
    for column in sorted(columns):
        ends, data = columns[column]
        if len(ends) != 4 * (count + 1) or column not in _VARIABLE:
            raise ValueError(f"{len(ends)} bytes of ends for {count} messages in column {column.name}")
        present |= 1 << column
        parts += [ends, _PADDING[len(ends) & 7], data, _PADDING[len(data) & 7]]
    parts[0] = _HEAD.pack(VERSION, 0, present, count, id, 0, 0, time)
    return b"".join(parts)


def encode_headers(headers: Headers | None) -> bytes:
    return _encode_headers(headers) if headers else b""


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where a batch came from, if from another terminal."""

    terminal: str
    #: Which life of the topic's log there, and the offsets in it, in the order of the batch's messages.
    incarnation: int
    runs: list[tuple[int, int]]
    via: list[str]  #: the terminals that have had it on the way, the first one being where it was published
    arrived_at: int  #: microseconds
    epoch: int = 0  #: of the shipment; 0 = not known


class Batch:
    """A view of an encoded batch, or of a run of its messages. Making one, and slicing it, copies nothing."""

    __slots__ = (
        "_columns", "_data", "_hi", "_lo", "audience", "base", "id", "is_letter", "origin", "packed", "size",
        "stored_size", "time",
    )  # fmt: skip

    def __init__(
        self,
        data: memoryview,
        columns: dict[Column, tuple[int, int]],
        lo: int,
        hi: int,
        head: tuple[bytes, int, int],
    ) -> None:
        #: The whole encoded batch, whichever run of it this is.
        self._data = data
        #: Where a present column's buffers stand in the data: (ends or values, bytes or 0).
        self._columns = columns
        #: The run of messages that this is: indices into the columns.
        self._lo, self._hi = lo, hi
        #: 16 bytes; index of message 0 of the *columns* as published; microseconds.
        self.id, self.base, self.time = head
        #: Bytes of memory that the data keeps alive.
        self.size = len(data)
        #: The groups that it is for; None = all. Not encoded here: it stands in the log's record around it.
        self.audience: frozenset[str] | None = None
        #: Are these dead letters that the terminal itself has put here? In the record too.
        self.is_letter = False
        #: Where it was published, if not here; of the whole batch, so a slice has none. In the record too.
        self.origin: Origin | None = None
        #: The same batch compressed, which the log stores in its place; until that is done. A slice has none.
        self.packed: bytes | None = None
        #: Bytes that the log holds for it.
        self.stored_size = self.size

    @classmethod
    def decode(cls, data: Buffer) -> Batch:
        """Read the head and find the columns. Checks every length before it is used; the ends in between
        are checked by ``validate``, which costs a look at each."""
        view = memoryview(data)
        length = len(view)
        if length < _HEAD.size:
            raise BadFrame(f"a batch of {length} bytes is shorter than its head")
        version, _, present, count, id, base, _, time = _HEAD.unpack_from(view)
        if version != VERSION:
            raise BadFrame(f"batch version {version}, this is {VERSION}")
        if not 0 < count <= MAX_MESSAGES:
            raise BadFrame(f"a batch of {count} messages, allowed are 1 to {MAX_MESSAGES}")
        if base + count > 1 << 32:  # the base of a slice would not fit
            raise BadFrame(f"a batch of {count} messages with the base {base}")
        if present & ~_KNOWN or not present & 1:
            raise BadFrame(f"a batch with the column set {present:#x}")
        columns: dict[Column, tuple[int, int]] = {}
        at = _HEAD.size
        for column, width in _LAYOUTS[present]:
            if not width:
                size = 4 * (count + 1)
                bytes_at = at + size + (-size & 7)
                if bytes_at > length:
                    raise BadFrame(f"a batch that is cut off in column {column.name}")
                (begin,), (end,) = _END.unpack_from(view, at), _END.unpack_from(view, at + size - 4)
                if not 0 <= begin <= end:
                    raise BadFrame(f"a batch whose column {column.name} ends before it begins")
                columns[column] = (at, bytes_at - begin)
                at = bytes_at + (end - begin) + (begin - end & 7)
            else:
                columns[column] = (at, 0)
                size = width * count
                at += size + (-size & 7)
            if at > length:
                raise BadFrame(f"a batch that is cut off in column {column.name}")
        if at != length:
            raise BadFrame(f"a batch with {length - at} bytes too many")
        return cls(view, columns, 0, count, (id, base, time))

    def __len__(self) -> int:
        return self._hi - self._lo

    def __repr__(self) -> str:
        return f"Batch({self.id.hex()}, base={self.base + self._lo}, {len(self)} messages)"

    @property
    def begin(self) -> int:
        """The index of its first message in the batch as it was published."""
        return self.base + self._lo

    # -- columns -----------------------------------------------------------------------------------

    def has(self, column: Column) -> bool:
        return column in self._columns

    def _ends(self, column: Column) -> tuple[int, ...]:
        at = self._columns[column][0] + 4 * self._lo
        return struct.unpack_from(f"<{len(self) + 1}i", self._data, at)

    def _cells(self, column: Column) -> list[bytes]:
        ends = self._ends(column)
        at = self._columns[column][1]
        # One copy of the column's run, then slices of a bytes object: the quickest way in CPython.
        run = bytes(self._data[at + ends[0] : at + ends[-1]])
        if ends[0]:
            first = ends[0]
            return [run[a - first : b - first] for a, b in pairwise(ends)]
        return [run[a:b] for a, b in pairwise(ends)]

    def _cell(self, column: Column, index: int) -> bytes:
        if column not in self._columns:
            return b""
        at, bytes_at = self._columns[column]
        a, b = struct.unpack_from("<2i", self._data, at + 4 * (self._lo + index))
        return bytes(self._data[bytes_at + a : bytes_at + b])

    def _fixed(self, column: Column) -> tuple[int, ...] | None:
        if column not in self._columns:
            return None
        width = _WIDTH[column]
        at = self._columns[column][0] + width * self._lo
        return struct.unpack_from(f"<{len(self)}{'q' if width == 8 else 'B'}", self._data, at)

    def payloads(self) -> list[bytes]:
        return self._cells(Column.PAYLOAD)

    def payload(self, index: int) -> bytes:
        return self._cell(Column.PAYLOAD, index)

    def keys(self) -> list[bytes] | None:
        """The keys, b"" where a message has none; None when no message has one."""
        return self._cells(Column.KEY) if Column.KEY in self._columns else None

    def key(self, index: int) -> bytes:
        return self._cell(Column.KEY, index)

    def sole_key(self) -> bytes | None:
        """The key that all messages have, b"" where none has any; None when they differ."""
        if Column.KEY not in self._columns:
            return b""
        key, count = self.key(0), len(self)
        if count == 1 or key != self.key(count - 1):
            return key if count == 1 else None
        run = self.span(Column.KEY)[1]
        if len(run) != len(key) * count or bytes(run) != key * count:
            return None
        # The same bytes may be cut in other places: "a", "aa", "", "a" are no four of "a".
        ends = self._ends(Column.KEY)
        return key if not key or ends == tuple(range(ends[0], ends[-1] + 1, len(key))) else None

    def headers(self, index: int) -> dict[str, HeaderValue]:
        raw = self._cell(Column.HEADERS, index)
        return decode_headers(raw) if raw else {}

    def ids(self) -> list[bytes] | None:
        """The ids that the producer has given, b"" where it gave none; None when no message has one."""
        return self._cells(Column.ID) if Column.ID in self._columns else None

    def raw_headers(self) -> list[bytes] | None:
        return self._cells(Column.HEADERS) if Column.HEADERS in self._columns else None

    def priorities(self) -> bytes | None:
        """One byte a message; None when all are 0."""
        if Column.PRIORITY not in self._columns:
            return None
        at = self._columns[Column.PRIORITY][0]
        return bytes(self._data[at + self._lo : at + self._hi])

    def deliver_at(self) -> tuple[int, ...] | None:
        return self._fixed(Column.DELIVER_AT)

    def expires_at(self) -> tuple[int, ...] | None:
        return self._fixed(Column.EXPIRES_AT)

    def times(self) -> tuple[int, ...] | None:
        """None when every message has the batch's time."""
        return self._fixed(Column.TIME)

    def time_of(self, index: int) -> int:
        if Column.TIME not in self._columns:
            return self.time
        at = self._columns[Column.TIME][0] + 8 * (self._lo + index)
        return int(struct.unpack_from("<q", self._data, at)[0])

    def id_of(self, index: int) -> str:
        given = self._cell(Column.ID, index)
        return given.decode() if given else f"{self.id.hex()}-{self.base + self._lo + index}"

    def index_of(self, id: str) -> int | None:
        """Where the message with this id stands; None where there is none. One that was given to the message
        is searched for, one that the bus has made says it."""
        if Column.ID in self._columns:
            ids, given = self._cells(Column.ID), id.encode()
            if given and given in ids:
                return ids.index(given)
        head, _, index = id.rpartition("-")
        place = int(index) - self.base - self._lo if head == self.id.hex() and index.isdecimal() else -1
        return place if 0 <= place < len(self) and self.id_of(place) == id else None

    def span(self, column: Column) -> tuple[memoryview, memoryview]:
        """A variable column's ends (n+1 × i32, not rebased) and its bytes from ends[0] on, in place: what
        becomes an Arrow array without work per row."""
        at, bytes_at = self._columns[column]
        ends = self._data[at + 4 * self._lo : at + 4 * (self._hi + 1)]
        begin, end = ends[:4].cast("i")[0], ends[-4:].cast("i")[0]
        return ends, self._data[bytes_at + begin : bytes_at + end]

    # -- parts -------------------------------------------------------------------------------------

    def slice(self, lo: int, hi: int) -> Batch:
        """Messages lo to hi (exclusive), without copying."""
        if not 0 <= lo < hi <= len(self):
            raise IndexError(f"slice {lo}:{hi} of a batch of {len(self)}")
        head = (self.id, self.base, self.time)
        part = Batch(self._data, self._columns, self._lo + lo, self._lo + hi, head)
        part.audience, part.is_letter = self.audience, self.is_letter
        return part

    def gather(self, indices: Sequence[int]) -> Batch:
        """The messages at these indices, in this order, as a batch of its own; they keep their ids."""

        low, high = min(indices), max(indices) + 1
        part = self.slice(low, high)  # whatever else the batch holds costs nothing
        places = [i - low for i in indices]
        is_sparse = len(part) > SPARSE * len(places)

        def pick(column: Column) -> list[bytes] | None:
            if column not in self._columns:
                return None
            if is_sparse:
                return [part._cell(column, i) for i in places]
            cells = part._cells(column)
            return [cells[i] for i in places]

        def pick_fixed(column: Column) -> list[int] | None:
            if column not in self._columns:
                return None
            at, width = self._columns[column][0], _WIDTH[column]
            run = self._data[at + width * part._lo : at + width * part._hi]
            values = run.cast("B").cast("q" if width == 8 else "B")
            return [values[i] for i in places]

        gathered = Batch.decode(
            build(
                pick(Column.PAYLOAD) or [],
                id=self.id,
                time=self.time,
                keys=pick(Column.KEY),
                headers=pick(Column.HEADERS),
                ids=[self.id_of(i).encode() for i in indices],
                times=pick_fixed(Column.TIME),
                priorities=pick_fixed(Column.PRIORITY),
                deliver_at=pick_fixed(Column.DELIVER_AT),
                expires_at=pick_fixed(Column.EXPIRES_AT),
            )
        )
        gathered.audience, gathered.is_letter = self.audience, self.is_letter
        return gathered

    def encode(self) -> Buffer:
        """The bytes of this batch. Of a whole batch: the bytes it was decoded from, uncopied. Of a slice:
        its runs of the columns, joined."""
        total = struct.unpack_from("<I", self._data, 4)[0]
        if self._lo == 0 and self._hi == total:
            return self._data
        columns = 0
        parts: list[Buffer] = [b""]
        for column, (at, _) in self._columns.items():
            columns |= 1 << column
            if column in _VARIABLE:
                ends, run = self.span(column)
                parts += [ends, _PADDING[len(ends) & 7], run, _PADDING[len(run) & 7]]
            else:
                width = _WIDTH[column]
                values = self._data[at + width * self._lo : at + width * self._hi]
                parts += [values, _PADDING[len(values) & 7]]
        parts[0] = _HEAD.pack(VERSION, 0, columns, len(self), self.id, self.base + self._lo, 0, self.time)
        return b"".join(parts)

    # -- checks ------------------------------------------------------------------------------------

    def largest_payload(self) -> int:
        ends = self._ends(Column.PAYLOAD)
        return max(b - a for a, b in pairwise(ends))

    def payload_bytes(self) -> int:
        """Size of the payload column: a bound on the largest payload that costs no look at each."""
        return len(self.span(Column.PAYLOAD)[1])

    def check_moments(self) -> None:
        """BadFrame for a moment before 1970 or after the year 9999: whoever shows it would fail."""
        for moments in ((self.time,), self.times(), self.deliver_at(), self.expires_at()):
            if moments is not None and not 0 <= min(moments) <= max(moments) < NO_MOMENT:
                raise BadFrame("a batch with a moment before 1970 or after the year 9999")

    def validate(self) -> None:
        """Check what a stranger made: ends that only grow (a reader slices by them, Arrow trusts them),
        priorities in range, ids and headers that decode. Sorting what is sorted already runs in C."""
        for column in self._columns:
            if column in _VARIABLE:
                ends = self._ends(column)
                if list(ends) != sorted(ends):
                    raise BadFrame(f"a batch whose column {column.name} has ends that shrink")
        priorities = self.priorities()
        if priorities is not None and max(priorities) > HIGHEST_PRIORITY:
            raise BadFrame(f"a priority of {max(priorities)}, allowed are 0 to {HIGHEST_PRIORITY}")
        try:
            for raw in self.raw_headers() or ():
                if raw:
                    decode_headers(raw)
            if Column.ID in self._columns:
                for id in self._cells(Column.ID):
                    id.decode()
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadFrame(f"a batch with headers or ids that don't decode: {error}") from None

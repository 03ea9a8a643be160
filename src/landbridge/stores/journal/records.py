"""One commit as bytes: a header, the batches' data, and the list of its writes.

    header   magic, checksum, number, epoch, unit, length of the list, length of the data      40 bytes
    data     the batches, one after the other
    list     msgpack: what was written, in order; for each batch its place, its length and its checksum
    padding  to a multiple of 8

The checksum of the header covers the list, the store's incarnation, the segment and the position in it, so
that a record which lies where it was not written, or was left by an earlier use of the file, is not taken for
one. It does not cover the data, which has a checksum for each batch: damage to one batch is damage to that
batch alone.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Final, NamedTuple, TypeAlias

import msgspec
from isal.isal_zlib import crc32  # the same checksums as zlib's, four times as fast

from landbridge.core.log.store import Buffer

MAGIC: Final = b"LBr1"
HEADER: Final = struct.Struct("<4sIQQIIQ")
#: What the checksum covers beside the list: number, epoch, unit, lengths and the position.
COVERED: Final = struct.Struct("<QQIIQQ")
ALIGN: Final = 8
#: Bytes of a list of writes; a longer one is damage.
MOST_LISTED: Final = 1 << 30
#: What is outside of these is not from us, whatever the checksum says.
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


class Appended(msgspec.Struct, array_like=True, tag=0, gc=False):
    """A batch at the end of a log. Its data is the next ``length`` bytes of the record's data."""

    log: Int64
    first: Int64
    end: Int64
    time: Int64
    total: Int64  #: bytes of the log's batches before this one, counted since the log was made
    length: Count
    crc: Int64  #: of the data
    choice: bytes | None = None  #: which of its messages the log has (core/log/store.py); None: all


class Copied(msgspec.Struct, array_like=True, tag=1, gc=False):
    """A batch that lies in the journal already, at the end of a log. Written again, as it is, before the
    segment that holds this entry is removed."""

    log: Int64
    first: Int64
    end: Int64
    time: Int64
    total: Int64
    length: Count
    crc: Int64
    segment: Int64  #: where the data is
    position: Int64
    choice: bytes | None = None  #: which of its messages the log has (core/log/store.py); None: all


class Bounded(msgspec.Struct, array_like=True, tag=2, gc=False):
    """What a log is from now on: it was trimmed, or all small state is stated anew."""

    log: Int64
    first: Int64
    end: Int64
    bytes: Int64
    time: Int64
    forgotten: Int64
    total: Int64  #: bytes of all its batches since it was made
    made: Int64  #: number of the record that made the log: rows of earlier records are of a namesake
    floor: Int64  #: entries of its ledger whose ``last`` is below are forgotten by this


class Dropped(msgspec.Struct, array_like=True, tag=3, gc=False):
    log: Int64


class Documented(msgspec.Struct, array_like=True, tag=4, gc=False):
    """A document was put; ``value`` None: it was deleted."""

    kind: str
    key: str
    value: bytes | None


class Entered(msgspec.Struct, array_like=True, tag=5, gc=False):
    """A ledger's entry was put; ``entry`` None: it was deleted."""

    log: Int64
    producer: bytes
    entry: bytes | None
    last: Int64 | None
    born: Int64


class Owner(msgspec.Struct, array_like=True, gc=False):
    """A place in a log that holds a batch."""

    log: Int64
    first: Int64
    end: Int64
    time: Int64
    total: Int64
    choice: bytes | None = None  #: which of its messages the log has (core/log/store.py); None: all


class Moved(msgspec.Struct, array_like=True, tag=6, gc=False):
    """A batch was carried here from a segment that is to be removed. Its data is the next ``length`` bytes of
    the record's data."""

    owners: list[Owner]
    length: Count
    crc: Int64


class Restated(msgspec.Struct, array_like=True, tag=7, gc=False):
    """Every document, every entry of the ledger and every log's bounds that were there have been written
    again, from the record ``number`` on: what earlier records say of them no longer counts."""

    segment: Count
    number: Count


Entry: TypeAlias = Appended | Copied | Bounded | Dropped | Documented | Entered | Moved | Restated
encode_entries = msgspec.msgpack.Encoder().encode
decode_entries = msgspec.msgpack.Decoder(list[Entry]).decode


class Record(NamedTuple):
    """A record that was found in a segment."""

    position: int  #: where it begins in its segment
    end: int  #: where the next one begins
    number: int
    epoch: int
    unit: int
    data_at: int  #: where its data begins
    entries: list[Entry]

    def batches(self) -> Iterator[tuple[Appended | Moved, int]]:
        """The entries with data, each with the position of the data in the segment."""
        at = self.data_at
        for entry in self.entries:
            if isinstance(entry, Appended | Moved):
                yield entry, at
                at += entry.length


def seed_of(incarnation: bytes, segment: int) -> int:
    """With what the checksums of a segment's records begin."""
    return crc32(incarnation + segment.to_bytes(8, "little"))


def size_of_record(data: int, listed: int) -> int:
    """Bytes that a record takes."""
    return -(-(HEADER.size + data + listed) // ALIGN) * ALIGN


def encode_header(
    seed: int, position: int, number: int, epoch: int, unit: int, listed: Buffer, data: int
) -> bytes:
    crc = crc32(listed, crc32(COVERED.pack(number, epoch, unit, len(listed), data, position), seed))
    return HEADER.pack(MAGIC, crc, number, epoch, unit, len(listed), data)


#: What reading a segment needs: so many bytes at a position, fewer at the end of the file.
Pread: TypeAlias = Callable[[int, int], bytes]


def number_at(block: bytes, at: int) -> int:
    """The number that a header there would have."""
    return int.from_bytes(block[at + 8 : at + 16], "little")


def record_at(pread: Pread, seed: int, position: int, size: int) -> Record | None:
    """The record that begins at a position of a segment of this size; None if there is none, or a damaged
    one. The data is not looked at."""
    header = pread(HEADER.size, position)
    if len(header) < HEADER.size or header[:4] != MAGIC:
        return None
    _, crc, number, epoch, unit, listed, data = HEADER.unpack(header)
    if listed > MOST_LISTED or position + HEADER.size + data + listed > size:
        return None
    text = pread(listed, position + HEADER.size + data)
    if len(text) < listed:
        return None
    if crc32(text, crc32(COVERED.pack(number, epoch, unit, listed, data, position), seed)) != crc:
        return None
    try:
        entries = decode_entries(text)
    except msgspec.MsgspecError:  # a record of a later version, or a collision of checksums
        return None
    if sum(entry.length for entry in entries if isinstance(entry, Appended | Moved)) != data:
        return None
    end = position + size_of_record(data, listed)
    return Record(position, end, number, epoch, unit, position + HEADER.size, entries)


def next_record(pread: Pread, seed: int, position: int, size: int, after: int) -> Record | None:
    """The first record at or after a position that has a number higher than ``after``, behind damage; None if
    there is none any more."""
    piece, at = 1 << 22, position
    while at < size:
        block = pread(piece + HEADER.size, at)
        found = block.find(MAGIC)
        while found >= 0:
            # The number first: what earlier uses of the file have left has lower ones.
            if (at + found) % ALIGN == 0 and number_at(block, found) > after:
                record = record_at(pread, seed, at + found, size)
                if record is not None and record.number > after:
                    return record
            found = block.find(MAGIC, found + 1)
        if len(block) < piece:
            return None
        at += piece
    return None

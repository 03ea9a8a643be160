"""A record: what stands in a log for one batch. Almost always the batch itself; where the terminal has
something to add that the producer didn't say (for which groups it is, where it came from, that it is a dead
letter), an envelope around it. So has a batch that is stored compressed. No client can write an envelope.
"""

from __future__ import annotations

import struct

import msgspec

from landbridge.core.log.batch import Batch, Buffer, Origin
from landbridge.core.log.packing import unpack
from landbridge.errors import BadFrame

#: First byte of an envelope; a bare batch starts with its version, which is small.
_MARK = 0xFF
_HEAD = struct.Struct("<BBHI")  # mark, 0, 0, length of the envelope; 8 bytes, so the batch stays aligned


class Envelope(msgspec.Struct, frozen=True, omit_defaults=True):
    audience: list[str] | None = None
    origin: Origin | None = None
    letter: bool = False
    #: Bytes of the batch, where it is compressed; 0: it isn't.
    size: int = 0


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Envelope).decode


def wrap(batch: Batch) -> Buffer:
    packed = batch.packed
    if batch.audience is None and batch.origin is None and not batch.is_letter and packed is None:
        return batch.encode()
    data = batch.encode()
    audience = None if batch.audience is None else sorted(batch.audience)
    size = 0 if packed is None else len(data)
    envelope = _encode(Envelope(audience, batch.origin, batch.is_letter, size))
    envelope += b" " * (-len(envelope) & 7)
    return b"".join((_HEAD.pack(_MARK, 0, 0, len(envelope)), envelope, data if packed is None else packed))


def is_packed(data: Buffer) -> bool:
    """May it take a while to unwrap this record?"""
    return len(data) > _HEAD.size and data[0] == _MARK and b'"size":' in bytes(data[: 1 << 10])


def unwrap(data: Buffer) -> Batch:
    view = memoryview(data)
    if not view or view[0] != _MARK:
        return Batch.decode(view)
    if len(view) < _HEAD.size:
        raise BadFrame("a record that is cut off")
    _, _, _, length = _HEAD.unpack_from(view)
    body = view[_HEAD.size :]
    try:
        envelope = _decode(body[:length])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(f"a record whose envelope doesn't decode: {error}") from None
    inner: Buffer = body[length:]
    batch = Batch.decode(inner if not envelope.size else unpack(inner, envelope.size))
    batch.stored_size = len(inner)
    batch.audience = None if envelope.audience is None else frozenset(envelope.audience)
    batch.origin, batch.is_letter = envelope.origin, envelope.letter
    return batch

"""Compressed batches: how the log of a topic with the stage ``compress`` holds them (zstd).

Only the store sees them. A batch is unpacked when it is read from the log, so whoever reads a topic gets
plain batches. What is unpacked is never larger than what the record says, and that is never larger than a
frame may be.
"""

from __future__ import annotations

from collections.abc import Sequence

from landbridge.core.log.batch import Batch, Buffer
from landbridge.errors import BadFrame, MiddlewareFailed

#: Bytes below which a batch is not worth it.
LEAST = 256
#: Bytes of the largest batch that is unpacked: above what a terminal takes in a frame.
MOST = 256 << 20
#: A packed batch that is not smaller than this part of the plain one is stored as it came.
WORTH = 0.95


def check_library() -> None:
    """MiddlewareFailed where batches can't be compressed here."""
    try:
        import zstandard  # noqa: F401
    except ImportError:
        raise MiddlewareFailed(
            "compress needs the package zstandard", hint="pip install 'landbridge[terminal]'"
        ) from None


def pack(batch: Batch, level: int) -> None:
    """Compress a batch for the log, if that makes it smaller."""
    import zstandard

    if batch.packed is None and batch.size >= LEAST:
        data = batch.encode()
        _take(batch, len(data), zstandard.ZstdCompressor(level=level).compress(data))


def pack_all(batches: Sequence[Batch], level: int) -> None:
    """The same for several. A thread that does this needs the interpreter twice, and not twice for each
    batch."""
    import zstandard

    waiting = [batch for batch in batches if batch.packed is None and batch.size >= LEAST]
    plain: list[bytes | bytearray | memoryview[int]] = [bytes(batch.encode()) for batch in waiting]
    if not waiting:
        return
    packed = zstandard.ZstdCompressor(level=level).multi_compress_to_buffer(plain, threads=1)
    for at, batch in enumerate(waiting):
        _take(batch, len(plain[at]), packed[at].tobytes())


def _take(batch: Batch, size: int, packed: bytes) -> None:
    if len(packed) < WORTH * size:
        batch.packed, batch.stored_size = packed, len(packed)


def unpack(packed: Buffer, size: int) -> bytes:
    """The bytes of a batch, of which the record says that they are ``size``. BadFrame where they are not."""
    import zstandard

    if not 0 < size <= MOST:
        raise BadFrame(f"a compressed batch of {size} bytes, allowed are {MOST}")
    try:
        # The size in the head of the data is what the decompressor makes room for.
        said = zstandard.frame_content_size(packed)
        if said != size:
            raise BadFrame(f"a compressed batch of {said} bytes, and its record says {size}")
        return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadFrame(f"a compressed batch that can't be read: {error}") from None

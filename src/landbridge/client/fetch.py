"""The answer to a bulk read of a topic's log: whole batches, by offset, as no group."""

from __future__ import annotations

from typing import NamedTuple

from landbridge.core.log.batch import Batch
from landbridge.errors import BadFrame
from landbridge.protocol import frames


class FetchedBatch(NamedTuple):
    """A batch of a topic's log."""

    first: int  #: offset of its first message
    origin: str  #: the terminal where it was published, "" for the one that was asked
    batch: Batch

    @property
    def end(self) -> int:
        """The offset after its last message."""
        return self.first + len(self.batch)


class Stretch(NamedTuple):
    """Consecutive batches of a log; none at its end. The first batch has the offset that was asked for. If
    that offset is gone, the first batch is the oldest one that the log has."""

    first: int  #: oldest offset that the log has
    end: int  #: offset that its next message will get
    batches: list[FetchedBatch]
    log: str = ""  #: the log's identity: a topic that was made anew has another one


def stretch(frame: frames.Fetched, tail: memoryview) -> Stretch:
    """The answer to a fetch, decoded."""
    batches: list[FetchedBatch] = []
    at = 0
    for first, count, size, origin in frame.batches:
        batch = Batch.decode(tail[at : at + size])
        if len(batch) != count:
            raise BadFrame(f"a fetched batch of {len(batch)} messages that was said to have {count}")
        batches.append(FetchedBatch(first, origin, batch))
        at += size
    if at != len(tail):
        raise BadFrame(f"fetched batches with {len(tail) - at} bytes too many")
    return Stretch(frame.first, frame.end, batches, frame.log)

"""A choice: which messages of a stored batch a rule topic has. The bytes stand beside the rule topic's copy
of the batch (``Copy.choice`` in core/log/store.py), so that what a rule chooses is stored once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from landbridge.core.log.batch import Batch
from landbridge.core.log.ranges import Range, count
from landbridge.errors import BadFrame

#: Messages that are fewer than one in so many of their batch get bytes of their own: a slice would keep all
#: of the batch in memory for as long as somebody holds it.
OWN_BYTES = 4
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[int]).decode


class RowChoice(NamedTuple):
    """Some messages of a batch."""

    #: The offset of the batch's first message in the log of the source.
    offset: int
    #: Which of its messages, by their places in it, in order.
    rows: Sequence[Range]

    def __len__(self) -> int:
        return count(self.rows)

    def offset_at(self, index: int) -> int:
        """The offset in the log of the source of the message that is at a place among the chosen ones."""
        for first, end in self.rows:
            if index < end - first:
                return self.offset + first + index
            index -= end - first
        raise IndexError(index)

    def of(self, batch: Batch) -> Batch:
        """These messages of the batch, for whoever reads the rule topic. What the batch's record says of the
        source (for which groups it is, where it came from) does not hold there. BadFrame for what the batch
        doesn't have."""
        if not self.rows or self.rows[-1][1] > len(batch):
            raise BadFrame(f"a choice of messages that a batch of {len(batch)} doesn't have")
        if len(self.rows) == 1:
            chosen = batch.slice(*self.rows[0])
            if len(chosen) * OWN_BYTES < len(batch):
                chosen = Batch.decode(chosen.encode())
        else:
            chosen = batch.gather([row for first, end in self.rows for row in range(first, end)])
        chosen.audience, chosen.is_letter = None, False
        return chosen


def runs_of(rows: Iterable[int]) -> list[Range]:
    """Places in order as runs."""
    runs: list[Range] = []
    first = end = -1
    for row in rows:
        if row != end:
            if end > first:
                runs.append((first, end))
            first = row
        end = row + 1
    if end > first:
        runs.append((first, end))
    return runs


def encode_choice(choice: RowChoice) -> bytes:
    """The offset, then of each run the distance from the one before and the length: mostly a byte each."""
    numbers, at = [choice.offset], 0
    for first, end in choice.rows:
        numbers += (first - at, end - first)
        at = end
    return _encode(numbers)


def decode_choice(data: bytes) -> RowChoice:
    """BadFrame for what ``encode_choice`` didn't make."""
    try:
        offset, *numbers = _decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise BadFrame(f"a choice that doesn't decode: {error}") from None
    runs: list[Range] = []
    at = 0
    for distance, length in zip(numbers[::2], numbers[1::2], strict=False):
        if length < 1 or distance < (1 if runs else 0):
            raise BadFrame("a choice whose runs aren't in order")
        runs.append((at + distance, at + distance + length))
        at += distance + length
    if not runs or len(numbers) % 2 or offset < 0:
        raise BadFrame("a choice of nothing")
    return RowChoice(offset, runs)

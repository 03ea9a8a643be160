"""The one rule that every driver keeps: a log grows only at its end, and its clock never runs back.

Reads find a batch by its first offset and a moment by halving the offsets, so a gap, an overlap or a
decreasing time would not fail at the append that makes it but at some read months later. Hence the check
here, at the door. Breaking it is a fault in the caller's program, not in the disk: BadRequest.
"""

from __future__ import annotations

from typing import Protocol

from landbridge.core.log.store import LEDGER_ONLY, Append, Copy, LogBounds
from landbridge.errors import BadRequest

#: Offsets and times are 64-bit and signed, in every driver and on the wire.
LIMIT = 2**63 - 1


class LogEnd(Protocol):
    """What an append is compared with."""

    @property
    def end(self) -> int: ...
    @property
    def time(self) -> int: ...


def size_of(append: Append) -> int:
    """Bytes of its data. ``len`` of a memoryview counts items, which need not be bytes."""
    data = append.data
    return data.nbytes if isinstance(data, memoryview) else len(data)


def check_source(copy: Copy, end: int | None, choice: bytes | None) -> None:
    """``end`` and ``choice`` of the batch that is to be copied, where it is now; ``end`` None where there is
    none."""
    if end is None:
        raise BadRequest(f"log {copy.from_log}: no batch begins at offset {copy.from_first}, to be copied")
    count, there = copy.end - copy.first, end - copy.from_first
    if copy.choice is not None:
        if choice is not None:
            raise BadRequest(
                f"log {copy.from_log}: at offset {copy.from_first} is a choice of a batch already"
            )
        if count > there:
            raise BadRequest(f"log {copy.log}: a choice of {count} messages of a batch of {there}")
    elif count != there:
        raise BadRequest(
            f"log {copy.log}: a copy from offset {copy.first} to {copy.end} of a batch that has "
            f"{there} messages"
        )


def is_ledger_only(log: int, units: int, bounds: LogEnd | None) -> bool:
    """Is it a log that has a ledger and never a batch: a unit's own, or one from LEDGER_ONLY on?"""
    return (log < units or log >= LEDGER_ONLY) and (bounds is None or bounds.end == 0)


def check_append(known: LogEnd | None, append: Append | Copy) -> None:
    """``known`` of the log before the append; None where the append makes the log."""
    log, first, end = append.log, append.first, append.end
    if not 0 <= first < end <= LIMIT:
        raise BadRequest(f"log {log}: a batch from offset {first} to {end} holds nothing or no valid offset")
    if known is None:
        return
    if first != known.end:
        raise BadRequest(f"log {log}: a batch at offset {first} does not follow the log's end {known.end}")
    if append.time < known.time:
        raise BadRequest(
            f"log {log}: a batch of time {append.time} comes after one of {known.time}",
            hint="give a log the later of now and its bounds' time",
        )


def extended(bounds: LogBounds | None, append: Append | Copy, size: int) -> LogBounds:
    """The log's bounds after an append; ``bounds`` None where the append makes the log."""
    check_append(bounds, append)
    if bounds is None:
        return LogBounds(append.first, append.end, size, append.time)
    return LogBounds(bounds.first, append.end, bounds.bytes + size, append.time, bounds.forgotten)

"""A group's durable position in a log: what is settled, and how often the rest was tried.

Everything below ``floor`` is settled; ``above`` holds what was settled out of order; ``tries`` what was given
back. That is all a group has to remember: what is neither settled nor leased is simply still to be delivered.

How it is stored: as a snapshot document while it is small, which for a group that reads in order is always.
A group that settles at random (priority, slow retries) may hold a hundred thousand ranges; writing them
with every ack would be quadratic. Then only the change is written, as a numbered delta, and a new snapshot
replaces them once the deltas outweigh it. Deltas name the generation of the snapshot they belong to, so old
ones need no deleting: their slots are written over.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from landbridge.core.log.ranges import Range, RangeSet

#: Ranges and tries up to which a snapshot is written every time: about 1 kB.
SMALL = 64


class Try(msgspec.Struct, frozen=True, array_like=True):
    attempts: int  #: deliveries so far that counted
    due: int  #: not to be delivered before, microseconds; 0 = at once


class _Snapshot(msgspec.Struct, array_like=True, tag=0):
    generation: int
    floor: int
    above: list[Range]
    tries: dict[int, Try]


class _Delta(msgspec.Struct, array_like=True, tag=1):
    generation: int
    settled: list[Range]
    tries: dict[int, Try]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Snapshot | _Delta).decode


class Cursor:
    def __init__(self, floor: int) -> None:
        self.floor = floor
        self.above = RangeSet()
        self.tries: dict[int, Try] = {}
        self._generation = 0
        #: Deltas written since the snapshot, and the ranges and tries in them.
        self._deltas = 0
        self._delta_size = 0
        #: Documents that may be stored of it: those in the slots below this one.
        self.slots = 0
        #: What changed since ``documents`` was last called.
        self._settled: list[Range] = []
        self._tried: dict[int, Try] = {}
        #: The next document must be a snapshot (first write, seek, an undone settle).
        self._whole = True
        self.dirty = True

    # -- changes -----------------------------------------------------------------------------------

    def settle(self, ranges: Iterable[Range]) -> None:
        for first, end in ranges:
            if first <= self.floor:
                if end > self.floor:
                    self._raise_floor(end)
            else:
                self.above.add(first, end)
            self._settled.append((first, end))
            if self.tries:
                self._forget_tries(first, end)
        self.dirty = True

    def _raise_floor(self, floor: int) -> None:
        self.floor = floor
        while self.above:
            first, end = self.above.first()
            if first > self.floor:
                break
            self.above.remove(first, end)
            self.floor = max(self.floor, end)

    def _forget_tries(self, first: int, end: int) -> None:
        offsets: Iterable[int] = range(first, end)
        if end - first > len(self.tries):
            offsets = [offset for offset in self.tries if first <= offset < end]
        for offset in offsets:
            self.tries.pop(offset, None)
            self._tried.pop(offset, None)

    def unsettle(self, ranges: Iterable[Range]) -> None:
        """Undo a settle whose commit failed."""
        for first, end in ranges:
            if first < self.floor:
                self.above.add(first, self.floor)
                self.floor = first
            self.above.remove(first, end)
        self._whole = self.dirty = True

    def tried(self, offset: int, attempts: int, due: int) -> None:
        self.tries[offset] = self._tried[offset] = Try(attempts, due)
        self.dirty = True

    def seek(self, floor: int) -> None:
        self.floor = floor
        self.above.clear()
        self.tries.clear()
        self._settled.clear()
        self._tried.clear()
        self._whole = self.dirty = True

    # -- questions ---------------------------------------------------------------------------------

    def unsettled(self, end: int) -> Iterator[Range]:
        """What is not settled, up to the log's end, in order."""
        at = self.floor
        for first, settled_end in self.above:
            if first >= end:
                break
            if first > at:
                yield at, first
            at = settled_end
        if at < end:
            yield at, end

    def is_settled(self, offset: int) -> bool:
        return offset < self.floor or offset in self.above

    def lag(self, end: int) -> int:
        """How many messages are not settled."""
        return max(0, end - self.floor - self.above.size)

    # -- storing -----------------------------------------------------------------------------------

    def document(self) -> tuple[int, bytes]:
        """What to store now: (slot, value), slot 0 being the snapshot's. Clears ``dirty``; if the commit
        fails, call ``rewrite``."""
        size = len(self.above) + len(self.tries)
        change = len(self._settled) + len(self._tried)
        if self._whole or size <= SMALL or self._delta_size + change > size:
            self._generation += 1
            self._deltas = self._delta_size = 0
            slot, value = 0, _encode(_Snapshot(self._generation, self.floor, list(self.above), self.tries))
        else:
            self._deltas += 1
            self._delta_size += change
            slot, value = self._deltas, _encode(_Delta(self._generation, self._settled, self._tried))
        self._settled, self._tried = [], {}
        self._whole = self.dirty = False
        self.slots = max(self.slots, slot + 1)
        return slot, value

    def rewrite(self) -> None:
        """What ``document`` gave last was not stored."""
        self._whole = self.dirty = True

    @classmethod
    def restore(cls, documents: Iterable[tuple[int, bytes]]) -> Cursor:
        """From what was stored, in slot order."""
        cursor = cls(0)
        for slot, value in sorted(documents):
            cursor.slots = slot + 1
            stored = _decode(value)
            if isinstance(stored, _Snapshot):
                cursor.floor = stored.floor
                for first, end in stored.above:
                    cursor.above.add(first, end)
                cursor.tries = dict(stored.tries)
                cursor._generation = stored.generation
            elif stored.generation == cursor._generation and slot == cursor._deltas + 1:
                cursor.settle(stored.settled)
                cursor.tries.update(stored.tries)
                cursor._deltas = slot
                cursor._delta_size += len(stored.settled) + len(stored.tries)
        cursor._settled, cursor._tried = [], {}
        cursor._whole = cursor.dirty = False
        return cursor

"""Sets of offsets as sorted, disjoint, non-touching ranges ``[first, end)``.

A group that is read in order has one range, however many messages it covers; one that settles at random has
many, so every operation is logarithmic in the number of ranges.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

from sortedcontainers import SortedDict

Range: TypeAlias = tuple[int, int]


class RangeSet:
    __slots__ = ("_ends", "size")

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        #: first → end of each range.
        self._ends: SortedDict[int, int] = SortedDict()
        #: How many offsets are in the set.
        self.size = 0
        for first, end in ranges:
            self.add(first, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(self._ends.items())

    def __len__(self) -> int:
        """The number of ranges (``size`` counts offsets)."""
        return len(self._ends)

    def __bool__(self) -> bool:
        return bool(self._ends)

    def __contains__(self, offset: int) -> bool:
        found = self.range_at(offset)
        return found is not None and found[0] <= offset

    def __repr__(self) -> str:
        return f"RangeSet({list(self)})"

    def first(self) -> Range:
        found: Range = self._ends.peekitem(0)
        return found

    def last(self) -> Range:
        found: Range = self._ends.peekitem(-1)
        return found

    def range_at(self, offset: int) -> Range | None:
        """The range that holds ``offset``, else the next one after it."""
        index = self._ends.bisect_right(offset) - 1
        if index >= 0:
            first, end = self._ends.peekitem(index)
            if offset < end:
                return first, end
        if index + 1 < len(self._ends):
            found: Range = self._ends.peekitem(index + 1)
            return found
        return None

    def add(self, first: int, end: int) -> None:
        if first >= end:
            return
        ends = self._ends
        if not ends:
            ends[first] = end
            self.size = end - first
            return
        last_first, last_end = ends.peekitem(-1)
        if first > last_end:  # the usual case: after everything there is
            ends[first] = end
            self.size += end - first
            return
        if first >= last_first:  # grows the last range
            if end > last_end:
                ends[last_first] = end
                self.size += end - last_end
            return
        index = ends.bisect_right(first) - 1
        if index >= 0:
            before_first, before_end = ends.peekitem(index)
            if before_end >= first:
                first, end = before_first, max(end, before_end)
                self.size -= before_end - before_first
                del ends[before_first]
                index -= 1
        while index + 1 < len(ends):
            after_first, after_end = ends.peekitem(index + 1)
            if after_first > end:
                break
            end = max(end, after_end)
            self.size -= after_end - after_first
            del ends[after_first]
        ends[first] = end
        self.size += end - first

    def remove(self, first: int, end: int) -> None:
        """Take these offsets out, whether they are in or not."""
        if first >= end:
            return
        ends = self._ends
        if len(ends) == 1 and ends.get(first) == end:  # a group that keeps up takes all that has come
            self.clear()
            return
        index = ends.bisect_right(first) - 1
        if index >= 0:
            before_first, before_end = ends.peekitem(index)
            if before_end > first:
                if before_first == first:
                    del ends[before_first]
                    index -= 1
                else:
                    ends[before_first] = first
                self.size -= before_end - first
                if before_end > end:
                    ends[end] = before_end
                    self.size += before_end - end
                    return
        while index + 1 < len(ends):
            after_first, after_end = ends.peekitem(index + 1)
            if after_first >= end:
                return
            del ends[after_first]
            self.size -= after_end - after_first
            if after_end > end:
                ends[end] = after_end
                self.size += after_end - end
                return

    def clear(self) -> None:
        self._ends.clear()
        self.size = 0


def subtract(ranges: Sequence[Range], cuts: Sequence[Range]) -> list[Range]:
    """``ranges`` without ``cuts``; both sorted and disjoint, and so is the result."""
    kept: list[Range] = []
    index = 0
    for range_first, range_end in ranges:
        first = range_first
        while index < len(cuts) and cuts[index][1] <= first:
            index += 1
        at = index
        while at < len(cuts) and cuts[at][0] < range_end:
            cut_first, cut_end = cuts[at]
            if cut_first > first:
                kept.append((first, cut_first))
            first = max(first, cut_end)
            at += 1
        if first < range_end:
            kept.append((first, range_end))
    return kept


def intersect(ranges: Sequence[Range], others: Sequence[Range]) -> list[Range]:
    """What is in both; both sorted and disjoint, and so is the result."""
    common: list[Range] = []
    i = j = 0
    while i < len(ranges) and j < len(others):
        first = max(ranges[i][0], others[j][0])
        end = min(ranges[i][1], others[j][1])
        if first < end:
            common.append((first, end))
        if ranges[i][1] < others[j][1]:
            i += 1
        else:
            j += 1
    return common


def clip(ranges: Sequence[Range], first: int, end: int) -> list[Range]:
    """What sorted, disjoint ranges have between ``first`` and ``end``, found without a look at the others."""
    if first >= end:
        return []
    index = bisect_right(ranges, (first, first))
    if index and ranges[index - 1][1] > first:
        index -= 1
    found: list[Range] = []
    while index < len(ranges) and ranges[index][0] < end:
        found.append((max(ranges[index][0], first), min(ranges[index][1], end)))
        index += 1
    return found


def cut(ranges: list[Range], first: int, end: int) -> None:
    """Take one range out of sorted and disjoint ranges, in place."""
    found = clip(ranges, first, end)
    if not found:
        return
    index = bisect_right(ranges, (found[0][0], found[0][0]))
    if index and ranges[index - 1][1] > found[0][0]:
        index -= 1
    left = (ranges[index][0], found[0][0]), (found[-1][1], ranges[index + len(found) - 1][1])
    ranges[index : index + len(found)] = [each for each in left if each[0] < each[1]]


def normalise(ranges: Iterable[Range]) -> list[Range]:
    """Sorted, disjoint, joined where they touch; empty and backward ones dropped."""
    joined: list[Range] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined


def count(ranges: Iterable[Range]) -> int:
    total = 0
    for first, end in ranges:  # a sum over a generator takes twice as long for one range
        total += end - first
    return total
